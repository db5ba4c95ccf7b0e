"""A judge's score on a benchmark, and judges compared, as ``summary.json`` has them.

Scores are by subset, with intervals, and with what is missing. Judges on the same items are
compared by the paired bootstrap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, islice
from typing import Any

import msgspec

from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    Judgement,
    benchmark_as_pairs,
    count_missing_kinds,
)
from adjudge.judge_evaluation.benchmarks.measures import (
    CalibrationMetrics,
    JudgedItem,
    LengthEffects,
    OrderCounts,
    ScoreScale,
    ScoreUnit,
    Stratum,
    WeightedMean,
    calibration_metrics,
    count_orders,
    make_stratum,
    measure_length_effects,
    win_probabilities,
)
from adjudge.judge_evaluation.benchmarks.readers import REWARDBENCH2_SUBSETS
from adjudge.stats import Estimate, mean_of_all
from adjudge.stats.agreement import binary_levels, estimate_youden
from adjudge.stats.estimates import (
    DEFAULT_RESAMPLES,
    ItemColumns,
    bootstrap_p_value,
    expanded_tail,
    percentile_interval,
    resample_statistics,
)

_MEAN_OF_SUBSETS = ("rewardbench2", "llmbar")

_Judged = list[JudgedItem]


class BenchmarkScore(msgspec.Struct, frozen=True, kw_only=True):
    """The score of one subset, or of all of them, beside what is missing.

    ``score`` is over what was answered (one verdict of a pair whose other is missing, too, where
    verdicts earn by themselves), ``None`` where that is nothing; ``low`` and ``high`` are its
    interval, or ``why`` there is none. It can rise when a wrong answer goes missing, so it never
    stands alone: ``at_least`` is the score if all that is missing were wrong, ``at_most`` if right,
    and ``at_least`` ≤ ``score`` ≤ ``at_most``. No failure raises the first or lowers the
    last. ``items`` = ``answered`` + ``missing``, the latter lacking a part at least; ``failures``
    counts what is missing by kind. ``own`` is what the benchmark's own script would print, failures
    counted as it counts them. ``orders`` is for pairs.
    """

    score: float | None
    low: float | None
    high: float | None
    why: str
    at_least: float | None
    at_most: float | None
    items: int
    answered: int
    missing: int
    failures: dict[str, int]
    own: float | None
    orders: OrderCounts | None


class BenchmarkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge scores on a benchmark.

    ``overall`` is the unweighted mean of the subsets for RewardBench-2 (all six are needed; ``why``
    says which are not there) and LLMBar, and over all pairs for JudgeBench and preference files.
    ``calibration`` is for pairs that were scored, ``lengths`` for all; of RewardBench-2 they are
    over its items as pairs (right, wrong), Ties left out. ``youden``: J of a judge that scores each
    answer by one of two numbers, items being groups.
    """

    overall: BenchmarkScore
    why: str
    subsets: dict[str, BenchmarkScore]
    calibration: CalibrationMetrics | None
    lengths: LengthEffects | None
    youden: Estimate | None


def score_benchmark(
    benchmark: Benchmark,
    judgements: Sequence[Judgement],
    *,
    scale: ScoreScale | None = None,
    resamples: int = DEFAULT_RESAMPLES,
) -> BenchmarkReport:
    """The official score of one judge, with intervals and whatever is missing beside it.

    Intervals are expanded 95 % percentile bootstrap intervals, drawn by item within subsets.
    ``judgements``: one an item, in the order of the items. ``scale`` says what a pair's scores are,
    for calibration; without it there is none. Raises :class:`~adjudge.errors.ConfigError` for
    probabilities outside [0, 1].
    """
    judged = _judged_by_subset(benchmark, judgements)
    strata = {name: make_stratum(benchmark.kind, rows) for name, rows in judged.items()}
    intervals, overall_interval = _intervals(benchmark, strata, resamples)
    subsets = {
        name: _score(benchmark, rows, [strata[name]], intervals[name])
        for name, rows in judged.items()
    }
    every = [row for rows in judged.values() for row in rows]
    overall = _score(benchmark, every, [*strata.values()], overall_interval)
    why = missing_subsets_message(benchmark)
    if why:
        overall = msgspec.structs.replace(
            overall, score=None, low=None, high=None, why=why, at_least=None, at_most=None
        )
    if benchmark.kind == "llmbar":
        own = mean_of_all(one.own for one in subsets.values())
        overall = msgspec.structs.replace(overall, own=own)
    compared = judged_pairs(benchmark, judgements)
    scored = bool(compared) and all(judgement.scores for _, judgement in compared)
    return BenchmarkReport(
        overall=overall,
        why=why,
        subsets=subsets,
        calibration=calibration_metrics(win_probabilities(compared, scale))
        if scored and scale
        else None,
        lengths=measure_length_effects(compared) if compared else None,
        youden=_youden(every),
    )


def _score(
    benchmark: Benchmark, rows: _Judged, strata: Sequence[Stratum], interval: Estimate
) -> BenchmarkScore:
    """``rows`` with their units: a stratum for each subset."""

    def score(fill: Callable[[WeightedMean], float | None]) -> float | None:
        parts = []
        for one in strata:
            rows = unit_columns(one.units.values(), list(map(fill, one.means)))
            parts.append((one.means, [math.fsum(column) for column in zip(*rows, strict=True)]))
        return overall_score(benchmark, parts)

    items, answered = sum(one.items for one in strata), sum(one.answered for one in strata)
    orders = count_orders(rows) if benchmark.kind != "rewardbench2" else None
    own = None
    if orders is not None and benchmark.kind != "preference":
        by_pair = benchmark.kind == "judgebench"
        own = orders.two_order_score if by_pair else orders.averaged_accuracy
    return BenchmarkScore(
        score=score(lambda _: None),
        low=interval.low,
        high=interval.high,
        why=interval.why,
        at_least=score(lambda mean: mean.low),
        at_most=score(lambda _: 1.0),
        items=items,
        answered=answered,
        missing=items - answered,
        failures=count_missing_kinds(judgement for _, judgement in rows),
        own=own,
        orders=orders,
    )


StratumTotals = tuple[Sequence[WeightedMean], Sequence[float]]
"""Of one subset: the means of its score, and the sums of its unit columns."""


def unit_columns(
    units: Iterable[ScoreUnit], fill: Sequence[float | None] | None = None
) -> list[ItemColumns]:
    """Sum and number of each unit's values for the first mean, the second and so on.

    ``fill``: what stands for a missing value, by mean; ``None``: it is left out.
    """
    rows = []
    for unit in units:
        filled = zip(unit, fill or [None] * len(unit), strict=True)
        known = [[x for one in earned if (x := other if one is None else one) is not None]
                 for earned, other in filled]  # fmt: skip
        rows.append(tuple(x for own in known for x in (math.fsum(own), float(len(own)))))
    return rows


def weighted_mean(means: Sequence[WeightedMean], totals: Sequence[float]) -> float | None:
    """The weighted sum of means from the sums of :func:`unit_columns`; ``None``: one has no value.

    >>> rows = unit_columns([((1.0, 0.0),), ((None,),)])
    >>> weighted_mean([WeightedMean()], [sum(column) for column in zip(*rows)])
    0.5
    """
    value = 0.0
    for place, mean in enumerate(means):
        total, count = totals[2 * place : 2 * place + 2]
        if not count:
            return None
        value += mean.weight * (total / count)
    return value


def overall_score(benchmark: Benchmark, parts: Sequence[StratumTotals]) -> float | None:
    """The unweighted mean of the subsets' scores, or the score over the units of all of them.

    ``None`` where a subset of those has none; all that are pooled have the same means.
    """
    if benchmark.kind in _MEAN_OF_SUBSETS:
        return mean_of_all(weighted_mean(*part) for part in parts)
    return weighted_mean(
        parts[0][0], [sum(of) for of in zip(*(own for _, own in parts), strict=True)]
    )


def _youden(rows: _Judged) -> Estimate | None:
    """J over single answers; ``None`` where the judge's scores are not of two levels."""
    groups: dict[str, list[tuple[bool, float]]] = {}
    for item, judgement in rows:
        groups.setdefault(f"{item.subset}/{item.cluster or item.id}", []).extend(
            (right, one)
            for right, one in zip(item.right, judgement.known_scores, strict=False)
            if one is not None
        )
    levels = binary_levels(score for group in groups.values() for _, score in group)
    if levels is None:
        return None
    passed = [[(ok, score == levels[1]) for ok, score in own] for own in groups.values() if own]
    return estimate_youden(passed)


def judged_pairs(benchmark: Benchmark, judgements: Sequence[Judgement]) -> _Judged:
    """The pairs with their judgements; of RewardBench-2 (right, wrong), scored, Ties left out."""
    judged = list(zip(benchmark.items, judgements, strict=True))
    if benchmark.kind != "rewardbench2":
        return judged
    found = {(item.subset, item.id): said.scores for item, said in judged}
    pairs: _Judged = []
    for item in benchmark_as_pairs(benchmark).items:
        scores, place = found[item.subset, item.cluster], int(item.id.rpartition("/")[2])
        said = Judgement(subset=item.subset, id=item.id, scores=[scores[0], scores[place]])
        pairs.append((item, said))
    return pairs


def _split_totals(strata: Iterable[Stratum], totals: Sequence[float]) -> list[StratumTotals]:
    """The totals of one subset after the other."""
    rest = iter(totals)
    return [(one.means, list(islice(rest, 2 * len(one.means)))) for one in strata]


def missing_subsets_message(benchmark: Benchmark) -> str:
    """Why there is no overall score; empty where there is one."""
    if benchmark.kind != "rewardbench2":
        return ""
    absent = [one for one in REWARDBENCH2_SUBSETS if one not in benchmark.subsets]
    return f"needs all six subsets; not there: {', '.join(absent)}" if absent else ""


def _judged_by_subset(benchmark: Benchmark, judgements: Sequence[Judgement]) -> dict[str, _Judged]:
    there = sorted(benchmark.subsets)
    if benchmark.kind == "rewardbench2":
        there.sort(key=REWARDBENCH2_SUBSETS.index)
    judged: dict[str, _Judged] = {name: [] for name in there}
    for item, said in zip(benchmark.items, judgements, strict=True):
        judged[item.subset].append((item, said))
    return judged


def _intervals(
    benchmark: Benchmark, strata: Mapping[str, Stratum], resamples: int
) -> tuple[dict[str, Estimate], Estimate]:
    """Of every subset and of the whole, from the same resamples."""

    def statistic(totals: Sequence[float]) -> list[float | None]:
        parts = _split_totals(strata.values(), totals)
        return [*(weighted_mean(*part) for part in parts), overall_score(benchmark, parts)]

    rows = [unit_columns(one.units[name] for name in sorted(one.units)) for one in strata.values()]
    drawn = resample_statistics(rows, statistic, resamples=resamples)
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
    judges: Mapping[str, Sequence[Judgement]],
    *,
    resamples: int = DEFAULT_RESAMPLES,
) -> list[JudgesCompared]:
    """Every two judges, in the order given; both are drawn the same items in every resample."""
    strata = {
        name: {
            subset: make_stratum(benchmark.kind, rows)
            for subset, rows in _judged_by_subset(benchmark, found).items()
        }
        for name, found in judges.items()
    }
    return [
        _compare_two(benchmark, (one, strata[one]), (other, strata[other]), resamples)
        for one, other in combinations(strata, 2)
    ]


def _compare_two(
    benchmark: Benchmark,
    first: tuple[str, Mapping[str, Stratum]],
    second: tuple[str, Mapping[str, Stratum]],
    resamples: int,
) -> JudgesCompared:
    rows, items = [], 0
    strata: list[Stratum] = []
    for name, one in first[1].items():
        shared = [(one.units[key], second[1][name].units[key]) for key in sorted(one.units)]
        items += sum(not any(None in earned for unit in both for earned in unit) for both in shared)
        # Less every value that either lacks.
        known = [
            [[pair for pair in zip(*earned, strict=True) if None not in pair]
             for earned in zip(*both, strict=True)]
            for both in shared
        ]  # fmt: skip
        sides = (
            unit_columns([[[pair[side] for pair in own] for own in unit] for unit in known])
            for side in (0, 1)
        )
        rows.append([(*a, *b) for a, b in zip(*sides, strict=True)])
        strata += 2 * [one]
    sizes = [len(of) for of in rows]
    why = missing_subsets_message(benchmark)

    def scores(totals: Sequence[float]) -> tuple[float | None, float | None]:
        if why:
            return None, None
        parts = _split_totals(strata, totals)
        return overall_score(benchmark, parts[::2]), overall_score(benchmark, parts[1::2])

    def gain(totals: Sequence[float]) -> float | None:
        a, b = scores(totals)
        return None if a is None or b is None else a - b

    totals = [math.fsum(column) for of in rows for column in zip(*of, strict=True)]
    difference = gain(totals)
    drawn = [] if difference is None else resample_statistics(rows, gain, resamples=resamples)
    score_a, score_b = scores(totals)
    return JudgesCompared(
        a=first[0],
        b=second[0],
        score_a=score_a,
        score_b=score_b,
        difference=difference,
        interval=percentile_interval(drawn, difference, tail=expanded_tail(*sizes)),
        p=bootstrap_p_value(drawn, *sizes),
        items=items,
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
    problems = benchmark.problems
    return {
        "kind": benchmark.kind,
        "title": benchmark.title or benchmark.kind,
        "official": OFFICIAL_SCORES[benchmark.kind],
        "files": benchmark.files,
        "items": len(benchmark.items),
        "subsets": dict(Counter(item.subset for item in benchmark.items)),
        "unusable": {
            "rows": len(problems),
            "first": [str(one) for one in problems[:_MAX_PROBLEMS]],
        },
    }
