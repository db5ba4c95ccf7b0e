"""A judge's score on a benchmark: by subset, with intervals, and with what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_training.benchmarks.intervals import RESAMPLES, Interval, percentile, resampled
from adjudge.judge_training.benchmarks.items import (
    Benchmark,
    BestOfItem,
    PairItem,
    RowProblem,
    as_pairs,
)
from adjudge.judge_training.benchmarks.judgements import Judgement, by_item, missing_kinds
from adjudge.judge_training.benchmarks.pairs import (
    AVERAGED,
    HALF_TIES,
    TWO_ORDERS,
    Orders,
    kappa_between_orders,
    orders_of,
    pair_stratum,
)
from adjudge.judge_training.benchmarks.preference import (
    Calibration,
    Lengths,
    Margins,
    ScoreScale,
    calibration_of,
    length_effects,
    margins_of,
    win_probabilities,
)
from adjudge.judge_training.benchmarks.rewardbench2 import (
    official_script,
    present_subsets,
    rewardbench2_stratum,
)
from adjudge.judge_training.benchmarks.shares import (
    Columns,
    Share,
    Stratum,
    mean_share,
    pooled_share,
    share_of,
    value_of_totals,
)

__all__ = [
    "BenchmarkReport",
    "SubsetReport",
    "missing_subsets",
    "overall_value",
    "pairs_of",
    "score_benchmark",
    "strata_of",
]

_PAIR_RULES = {"llmbar": AVERAGED, "judgebench": TWO_ORDERS, "preference": HALF_TIES}
_MEAN_OF_SUBSETS = ("rewardbench2", "llmbar")

_Judged = list[tuple[Any, Judgement]]


class SubsetReport(msgspec.Struct, frozen=True, kw_only=True):
    """One subset, or all of them: the score, its interval, and where it comes from.

    ``interval`` is that of ``accuracy_of_answered``. ``failures`` counts what is missing by kind.
    ``orders`` and ``kappa`` (between the orders) are for pairs. ``script`` is what RewardBench-2's
    own generative script would print, failures counted as it counts them: for comparison only.
    """

    share: Share
    interval: Interval
    failures: dict[str, int] = {}
    orders: Orders | None = None
    kappa: float | None = None
    script: float | None = None


class BenchmarkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge scores on a benchmark.

    ``overall`` is the unweighted mean of the subsets for RewardBench-2 (all six are needed; ``why``
    says which are not there) and LLMBar, and over all pairs for JudgeBench and preference files.
    ``margins`` and ``calibration`` are for pairs that were scored, ``lengths`` for all; of
    RewardBench-2 they are over its items as pairs (right, wrong), Ties left out. ``unusable`` are
    the rows that could not be read. ``contaminated`` counts, by subset, the items that the judge
    may have been trained on; ``None``: nobody looked.
    """

    benchmark: str
    judge: str
    overall: SubsetReport
    subsets: dict[str, SubsetReport]
    why: str = ""
    margins: Margins | None = None
    calibration: Calibration | None = None
    lengths: Lengths | None = None
    unusable: list[RowProblem] = []
    contaminated: dict[str, int] | None = None


def score_benchmark(
    benchmark: Benchmark,
    judgements: Iterable[Judgement],
    *,
    judge: str = "judge",
    scale: ScoreScale | None = None,
    contaminated: Mapping[str, int] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> BenchmarkReport:
    """The official score of one judge, with intervals and whatever is missing beside it.

    Intervals are 95 % percentile bootstrap intervals, drawn by item within subsets. ``scale`` says
    what a pair's scores are, for calibration; without it there is none. Items without a judgement
    are missing. Raises :class:`~adjudge.errors.ConfigError` for judgements that do not fit the
    items, and for probabilities outside [0, 1].
    """
    judged = _by_subset(benchmark, judgements)
    strata = {name: _stratum(benchmark, rows) for name, rows in judged.items()}
    intervals, overall_interval = _intervals(benchmark, strata, resamples, seed)
    subsets = {name: _subset(rows, strata[name], intervals[name]) for name, rows in judged.items()}
    every = [row for rows in judged.values() for row in rows]
    overall, why = _overall(benchmark, strata)
    pairs = [row for row in every if isinstance(row[0], PairItem)]
    compared = pairs_of(benchmark, [judgement for _, judgement in every])
    scored = bool(compared) and all(judgement.scores for _, judgement in compared)
    return BenchmarkReport(
        benchmark=benchmark.title or benchmark.kind,
        judge=judge,
        overall=SubsetReport(
            share=overall,
            interval=Interval(why=why) if why else overall_interval,
            failures=missing_kinds(judgement for _, judgement in every),
            orders=orders_of(pairs) if pairs else None,
            kappa=kappa_between_orders(pairs) if pairs else None,
            script=_script_mean(benchmark, list(subsets.values()), why),
        ),
        subsets=subsets,
        why=why,
        margins=margins_of(compared) if scored else None,
        calibration=calibration_of(win_probabilities(compared, scale))
        if scored and scale
        else None,
        lengths=length_effects(compared) if compared else None,
        unusable=benchmark.problems,
        contaminated=None if contaminated is None else dict(contaminated),
    )


def pairs_of(benchmark: Benchmark, judgements: Iterable[Judgement]) -> _Judged:
    """The pairs with their judgements; of RewardBench-2 (right, wrong), scored, Ties left out.

    Raises as :func:`score_benchmark` does.
    """
    found = by_item(benchmark, judgements)
    pairs: _Judged = []
    for item in as_pairs(benchmark).items:
        if not isinstance(item, PairItem):
            continue
        if benchmark.kind != "rewardbench2":
            pairs.append((item, found[item.subset, item.id]))
            continue
        scores, place = found[item.subset, item.cluster].scores, int(item.id.rpartition("/")[2])
        said = Judgement(subset=item.subset, id=item.id, scores=[scores[0], scores[place]])
        pairs.append((item, said))
    return pairs


def strata_of(benchmark: Benchmark, judgements: Iterable[Judgement]) -> dict[str, Stratum]:
    """The units of every subset by name; raises as :func:`score_benchmark` does."""
    judged = _by_subset(benchmark, judgements)
    return {name: _stratum(benchmark, rows) for name, rows in judged.items()}


def overall_value(
    benchmark: Benchmark, columns: Sequence[Columns], places: Sequence[Sequence[int]]
) -> float | None:
    """``accuracy_of_answered`` of the whole, over the units at ``places`` of each subset."""
    totals = [own.totals(at) for own, at in zip(columns, places, strict=True)]
    return _whole(benchmark, columns, totals)


def _whole(
    benchmark: Benchmark,
    columns: Sequence[Columns],
    totals: Sequence[list[tuple[float, int]]],
) -> float | None:
    if benchmark.kind in _MEAN_OF_SUBSETS:
        values = [
            value_of_totals(own.weights, each) for own, each in zip(columns, totals, strict=True)
        ]
        present = [value for value in values if value is not None]
        return sum(present) / len(present) if len(present) == len(values) else None
    pooled = [
        (sum(total for total, _ in term), sum(count for _, count in term))
        for term in zip(*totals, strict=True)
    ]
    return value_of_totals(columns[0].weights, pooled)


def missing_subsets(benchmark: Benchmark) -> str:
    """Why there is no overall score; empty where there is one."""
    if benchmark.kind != "rewardbench2":
        return ""
    _, absent = present_subsets(benchmark.subsets)
    return f"needs all six subsets; not there: {', '.join(absent)}" if absent else ""


def _by_subset(benchmark: Benchmark, judgements: Iterable[Judgement]) -> dict[str, _Judged]:
    found = by_item(benchmark, judgements)
    judged: dict[str, _Judged] = {name: [] for name in sorted(benchmark.subsets)}
    if benchmark.kind == "rewardbench2":
        judged = {name: [] for name in present_subsets(benchmark.subsets)[0]}
    for item in benchmark.items:
        if isinstance(item, BestOfItem) != (benchmark.kind == "rewardbench2"):
            raise ConfigError(f"{item.where}: is no item of {benchmark.kind}")
        judged[item.subset].append((item, found[item.subset, item.id]))
    return judged


def _stratum(benchmark: Benchmark, rows: _Judged) -> Stratum:
    if benchmark.kind == "rewardbench2":
        return rewardbench2_stratum(rows)
    return pair_stratum(rows, _PAIR_RULES[benchmark.kind])


def _subset(rows: _Judged, stratum: Stratum, interval: Interval) -> SubsetReport:
    pairs = isinstance(rows[0][0], PairItem)
    return SubsetReport(
        share=share_of(stratum),
        interval=interval,
        failures=missing_kinds(judgement for _, judgement in rows),
        orders=orders_of(rows) if pairs else None,
        kappa=kappa_between_orders(rows) if pairs else None,
        script=None if pairs else official_script(rows),
    )


def _overall(benchmark: Benchmark, strata: Mapping[str, Stratum]) -> tuple[Share, str]:
    shares = [share_of(stratum) for stratum in strata.values()]
    if benchmark.kind not in _MEAN_OF_SUBSETS:
        return pooled_share(list(strata.values())), ""
    share, why = mean_share(shares), missing_subsets(benchmark)
    if why:
        share = msgspec.structs.replace(share, accuracy_of_answered=None, low=None, high=None)
    return share, why


def _intervals(
    benchmark: Benchmark, strata: Mapping[str, Stratum], resamples: int, seed: int
) -> tuple[dict[str, Interval], Interval]:
    """Of every subset and of the whole, from the same resamples."""
    columns = [
        Columns(one.weights, [one.units[name] for name in sorted(one.units)])
        for one in strata.values()
    ]
    drawn: list[list[float | None]] = [[] for _ in columns]

    def statistic(places: Sequence[Sequence[int]]) -> float | None:
        totals = [own.totals(at) for own, at in zip(columns, places, strict=True)]
        for values, own, each in zip(drawn, columns, totals, strict=True):
            values.append(value_of_totals(own.weights, each))
        return _whole(benchmark, columns, totals)

    sizes = [own.size for own in columns]
    overall = percentile(resampled(sizes, statistic, resamples=resamples, seed=seed))
    return dict(zip(strata, map(percentile, drawn), strict=True)), overall


def _script_mean(benchmark: Benchmark, subsets: Sequence[SubsetReport], why: str) -> float | None:
    if benchmark.kind != "rewardbench2" or why:
        return None
    values = [one.script for one in subsets if one.script is not None]
    return sum(values) / len(values) if len(values) == len(subsets) else None
