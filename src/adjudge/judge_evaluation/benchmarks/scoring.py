"""A judge's score on a benchmark, judges compared, and both as plain data for ``summary.json``.

Scores are by subset, with intervals, and with what is missing. Judges on the same items are
compared by the paired bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations, islice
from typing import Any

import msgspec

from adjudge.datasets.rows import RowProblem
from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    Judgement,
    MissingJudgement,
    PairItem,
    benchmark_as_pairs,
    count_missing_kinds,
    judgements_by_item,
)
from adjudge.judge_evaluation.benchmarks.protocols import (
    AVERAGED_ORDERS,
    HALF_TIES,
    TWO_ORDER_SUM,
    OrderCounts,
    count_orders,
    pair_stratum,
    rewardbench2_stratum,
    split_present_subsets,
)
from adjudge.judge_evaluation.benchmarks.statistics import (
    CalibrationMetrics,
    LengthEffects,
    ScoreScale,
    ScoreShare,
    Stratum,
    StratumTotals,
    calibration_metrics,
    is_complete,
    measure_length_effects,
    measure_share,
    overall_score,
    unit_columns,
    units_answered_by_both,
    weighted_mean,
    win_probabilities,
)
from adjudge.stats import Estimate
from adjudge.stats.bootstrap import (
    DEFAULT_RESAMPLES,
    bootstrap_p_value,
    expanded_tail,
    percentile_interval,
    resample_statistics,
)
from adjudge.stats.raters import estimate_youden

_PAIR_RULES = {"llmbar": AVERAGED_ORDERS, "judgebench": TWO_ORDER_SUM, "preference": HALF_TIES}
_MEAN_OF_SUBSETS = ("rewardbench2", "llmbar")

_Judged = list[tuple[Any, Judgement]]


class SubsetReport(msgspec.Struct, frozen=True, kw_only=True):
    """One subset, or all of them: the score, its interval, and where it comes from.

    ``interval`` is that of ``accuracy_of_answered``. ``failures`` counts what is missing by kind.
    ``orders`` is for pairs.
    """

    share: ScoreShare
    interval: Estimate
    failures: dict[str, int] = {}
    orders: OrderCounts | None = None


class BenchmarkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge scores on a benchmark.

    ``overall`` is the unweighted mean of the subsets for RewardBench-2 (all six are needed; ``why``
    says which are not there) and LLMBar, and over all pairs for JudgeBench and preference files.
    ``youden``: J of a judge that scores each answer by one of two numbers, items being groups.
    ``calibration`` is for pairs that were scored, ``lengths`` for all; of
    RewardBench-2 they are over its items as pairs (right, wrong), Ties left out. ``unusable`` are
    the rows that could not be read.
    """

    benchmark: str
    judge: str
    overall: SubsetReport
    subsets: dict[str, SubsetReport]
    why: str = ""
    calibration: CalibrationMetrics | None = None
    lengths: LengthEffects | None = None
    youden: Estimate | None = None
    unusable: list[RowProblem] = []


def score_benchmark(
    benchmark: Benchmark,
    judgements: Iterable[Judgement],
    *,
    judge: str = "judge",
    scale: ScoreScale | None = None,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
) -> BenchmarkReport:
    """The official score of one judge, with intervals and whatever is missing beside it.

    Intervals are expanded 95 % percentile bootstrap intervals, drawn by item within subsets.
    ``scale`` says what a pair's scores are, for calibration; without it there is none. Items
    without a judgement are missing. Raises :class:`~adjudge.errors.ConfigError` for judgements that
    do not fit the items, and for probabilities outside [0, 1].
    """
    judged = _judgements_by_subset(benchmark, judgements)
    strata = {name: _stratum(benchmark, rows) for name, rows in judged.items()}
    intervals, overall_interval = _intervals(benchmark, strata, resamples, seed)
    subsets = {
        name: _subset_report(rows, strata[name], intervals[name]) for name, rows in judged.items()
    }
    every = [row for rows in judged.values() for row in rows]
    overall, why = _overall(benchmark, strata)
    pairs = [row for row in every if isinstance(row[0], PairItem)]
    compared = judged_pairs(benchmark, [judgement for _, judgement in every])
    scored = bool(compared) and all(judgement.scores for _, judgement in compared)
    return BenchmarkReport(
        benchmark=benchmark.title or benchmark.kind,
        judge=judge,
        overall=SubsetReport(
            share=overall,
            interval=Estimate(why=why) if why else overall_interval,
            failures=count_missing_kinds(judgement for _, judgement in every),
            orders=count_orders(pairs) if pairs else None,
        ),
        subsets=subsets,
        why=why,
        calibration=calibration_metrics(win_probabilities(compared, scale))
        if scored and scale
        else None,
        lengths=measure_length_effects(compared) if compared else None,
        youden=_youden(every, seed),
        unusable=benchmark.problems,
    )


def _youden(rows: _Judged, seed: int) -> Estimate | None:
    """J over single answers; ``None`` where the judge's scores are not of two levels."""
    groups: dict[str, list[tuple[bool, float]]] = {}
    for item, judgement in rows:
        right = (
            [item.label == "A", item.label == "B"]
            if isinstance(item, PairItem)
            else [place < item.correct for place in range(len(item.answers))]
        )
        pairs = zip(right, judgement.scores, strict=False)
        together = item.cluster or item.id if isinstance(item, PairItem) else item.id
        groups.setdefault(f"{item.subset}/{together}", []).extend(
            (ok, one) for ok, one in pairs if not isinstance(one, MissingJudgement)
        )
    levels = {score for group in groups.values() for _, score in group}
    if levels and levels.issubset((0.0, 1.0)):
        levels = {0.0, 1.0}
    if len(levels) != 2:
        return None
    top = max(levels)
    passed = [[(ok, score == top) for ok, score in group] for group in groups.values() if group]
    return estimate_youden(passed, seed=seed)


def judged_pairs(benchmark: Benchmark, judgements: Iterable[Judgement]) -> _Judged:
    """The pairs with their judgements; of RewardBench-2 (right, wrong), scored, Ties left out.

    Raises as :func:`score_benchmark` does.
    """
    found = judgements_by_item(benchmark, judgements)
    pairs: _Judged = []
    for item in benchmark_as_pairs(benchmark).items:
        if not isinstance(item, PairItem):
            continue
        if benchmark.kind != "rewardbench2":
            pairs.append((item, found[item.subset, item.id]))
            continue
        scores, place = found[item.subset, item.cluster].scores, int(item.id.rpartition("/")[2])
        said = Judgement(subset=item.subset, id=item.id, scores=[scores[0], scores[place]])
        pairs.append((item, said))
    return pairs


def score_strata(benchmark: Benchmark, judgements: Iterable[Judgement]) -> dict[str, Stratum]:
    """The units of every subset by name; raises as :func:`score_benchmark` does."""
    judged = _judgements_by_subset(benchmark, judgements)
    return {name: _stratum(benchmark, rows) for name, rows in judged.items()}


def _split_totals(strata: Iterable[Stratum], totals: Sequence[float]) -> list[StratumTotals]:
    """The totals of one subset after the other."""
    rest = iter(totals)
    return [(one.weights, list(islice(rest, 2 * len(one.weights)))) for one in strata]


def missing_subsets_message(benchmark: Benchmark) -> str:
    """Why there is no overall score; empty where there is one."""
    if benchmark.kind != "rewardbench2":
        return ""
    _, absent = split_present_subsets(benchmark.subsets)
    return f"needs all six subsets; not there: {', '.join(absent)}" if absent else ""


def _judgements_by_subset(
    benchmark: Benchmark, judgements: Iterable[Judgement]
) -> dict[str, _Judged]:
    found = judgements_by_item(benchmark, judgements)
    judged: dict[str, _Judged] = {name: [] for name in sorted(benchmark.subsets)}
    if benchmark.kind == "rewardbench2":
        judged = {name: [] for name in split_present_subsets(benchmark.subsets)[0]}
    for item in benchmark.items:
        judged[item.subset].append((item, found[item.subset, item.id]))
    return judged


def _stratum(benchmark: Benchmark, rows: _Judged) -> Stratum:
    if benchmark.kind == "rewardbench2":
        return rewardbench2_stratum(rows)
    return pair_stratum(rows, _PAIR_RULES[benchmark.kind])


def _subset_report(rows: _Judged, stratum: Stratum, interval: Estimate) -> SubsetReport:
    pairs = isinstance(rows[0][0], PairItem)
    return SubsetReport(
        share=measure_share([stratum]),
        interval=interval,
        failures=count_missing_kinds(judgement for _, judgement in rows),
        orders=count_orders(rows) if pairs else None,
    )


def _overall(benchmark: Benchmark, strata: Mapping[str, Stratum]) -> tuple[ScoreShare, str]:
    share = measure_share(list(strata.values()), pooled=_is_pooled(benchmark))
    if why := missing_subsets_message(benchmark):
        share = msgspec.structs.replace(share, accuracy_of_answered=None, low=None, high=None)
    return share, why


def _is_pooled(benchmark: Benchmark) -> bool:
    return benchmark.kind not in _MEAN_OF_SUBSETS


def _intervals(
    benchmark: Benchmark, strata: Mapping[str, Stratum], resamples: int, seed: int
) -> tuple[dict[str, Estimate], Estimate]:
    """Of every subset and of the whole, from the same resamples."""

    def statistic(totals: Sequence[float]) -> list[float | None]:
        parts = _split_totals(strata.values(), totals)
        own = [weighted_mean(*part) for part in parts]
        return [*own, overall_score(parts, pooled=_is_pooled(benchmark))]

    rows = [unit_columns(one.units[name] for name in sorted(one.units)) for one in strata.values()]
    drawn = resample_statistics(rows, statistic, resamples=resamples, seed=seed)
    *own, overall = zip(*drawn, strict=True)
    sizes = [len(one) for one in rows]
    return {
        name: percentile_interval(scores, tail=expanded_tail(size))
        for name, scores, size in zip(strata, own, sizes, strict=True)
    }, percentile_interval(overall, tail=expanded_tail(*sizes))


class JudgesCompared(msgspec.Struct, frozen=True, kw_only=True):
    """Judge ``a`` against judge ``b`` on what both answered.

    ``score_a`` and ``score_b`` are the benchmark's overall score over those items, ``difference``
    is a's less b's with its paired-bootstrap interval and ``p`` (two-sided; not adjusted for the
    number of pairs of judges). ``items`` counts the units that both
    answered: items, of the Ties subset prompts, of pairs with a cluster clusters.
    """

    a: str
    b: str
    score_a: float | None
    score_b: float | None
    difference: float | None
    interval: Estimate
    p: float | None
    items: int
    why: str = ""


def compare_judges(
    benchmark: Benchmark,
    judges: Mapping[str, Iterable[Judgement]],
    *,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
) -> list[JudgesCompared]:
    """Every two judges, in the order given; both are drawn the same items in every resample.

    Raises as :func:`~adjudge.judge_evaluation.benchmarks.scoring.score_benchmark` does.
    """
    strata = {name: score_strata(benchmark, found) for name, found in judges.items()}
    return [
        _compare_two(benchmark, (one, strata[one]), (other, strata[other]), resamples, seed)
        for one, other in combinations(strata, 2)
    ]


def _compare_two(
    benchmark: Benchmark,
    first: tuple[str, Mapping[str, Stratum]],
    second: tuple[str, Mapping[str, Stratum]],
    resamples: int,
    seed: int,
) -> JudgesCompared:
    both = [(one, second[1][name]) for name, one in first[1].items()]
    rows = [
        [(*a, *b) for a, b in zip(*map(unit_columns, units_answered_by_both(*pair)), strict=True)]
        for pair in both
    ]
    sizes = [len(of) for of in rows]
    why = missing_subsets_message(benchmark)

    def scores(totals: Sequence[float]) -> tuple[float | None, float | None]:
        if why:
            return None, None
        parts = _split_totals(chain(*both), totals)
        a, b = (
            overall_score(own, pooled=_is_pooled(benchmark)) for own in (parts[::2], parts[1::2])
        )
        return a, b

    def gain(totals: Sequence[float]) -> float | None:
        a, b = scores(totals)
        return None if a is None or b is None else a - b

    totals = [math.fsum(column) for of in rows for column in zip(*of, strict=True)]
    difference = gain(totals)
    drawn = (
        []
        if difference is None
        else resample_statistics(rows, gain, resamples=resamples, seed=seed)
    )
    score_a, score_b = scores(totals)
    return JudgesCompared(
        a=first[0],
        b=second[0],
        score_a=score_a,
        score_b=score_b,
        difference=difference,
        interval=percentile_interval(drawn, tail=expanded_tail(*sizes)),
        p=bootstrap_p_value(drawn, *sizes),
        items=sum(
            is_complete(chain(*unit)) and is_complete(chain(*second[1][name].units[key]))
            for name, one in first[1].items()
            for key, unit in one.units.items()
        ),
        why=why,
    )


OFFICIAL_SCORES = {
    "rewardbench2": "unweighted mean of six subsets: best of 4, and the Ties score",
    "llmbar": "unweighted mean of the subsets: accuracy averaged over both orders",
    "judgebench": "pairs with more right than wrong verdicts over both orders",
    "preference": "accuracy over both orders, a tie is half",
}
"""What the overall score is, by kind of benchmark."""

_MAX_PROBLEMS = 20


def benchmark_entry(benchmark: Benchmark) -> dict[str, Any]:
    """What was asked about."""
    counts = dict.fromkeys(benchmark.subsets, 0)
    for item in benchmark.items:
        counts[item.subset] += 1
    problems = benchmark.problems
    return {
        "kind": benchmark.kind,
        "title": benchmark.title or benchmark.kind,
        "official": OFFICIAL_SCORES[benchmark.kind],
        "files": benchmark.files,
        "items": len(benchmark.items),
        "subsets": counts,
        "unusable": {
            "rows": len(problems),
            "first": [str(one) for one in problems[:_MAX_PROBLEMS]],
        },
    }


def judge_entry(report: BenchmarkReport, benchmark: Benchmark, **facts: Any) -> dict[str, Any]:
    """One judge: its score, by subset, and what else is known of it; ``facts`` come first."""
    subsets = {name: _score_entry(one, benchmark) for name, one in report.subsets.items()}
    overall = _score_entry(report.overall, benchmark)
    if benchmark.kind == "llmbar":
        own = [one["own"] for one in subsets.values() if one["own"] is not None]
        overall["own"] = sum(own) / len(own) if len(own) == len(subsets) else None
    return {
        "name": report.judge,
        **facts,
        "overall": overall,
        "why": report.why,
        "subsets": subsets,
        "calibration": msgspec.to_builtins(report.calibration),
        "lengths": msgspec.to_builtins(report.lengths),
        "youden": msgspec.to_builtins(report.youden),
    }


def comparison_entry(one: JudgesCompared) -> dict[str, Any]:
    """Two judges on what both answered."""
    interval = {key: getattr(one.interval, key) for key in ("low", "high", "why")}
    return {**msgspec.to_builtins(one), "interval": interval}


def _score_entry(one: SubsetReport, benchmark: Benchmark) -> dict[str, Any]:
    """A score beside its interval, its bounds, and what is missing by kind."""
    share = one.share
    return {
        "score": share.accuracy_of_answered,
        "low": one.interval.low,
        "high": one.interval.high,
        "why": one.interval.why,
        "at_least": share.low,
        "at_most": share.high,
        "items": share.items,
        "answered": share.answered,
        "missing": share.missing,
        "failures": dict(one.failures),
        "own": _script_score(one, benchmark),
        "orders": msgspec.to_builtins(one.orders),
    }


def _script_score(one: SubsetReport, benchmark: Benchmark) -> float | None:
    """What the benchmark's own script would print, failures counted as it counts them."""
    if one.orders is None or benchmark.kind == "preference":
        return None
    if benchmark.kind == "judgebench":
        return one.orders.two_order_score
    return one.orders.averaged_accuracy
