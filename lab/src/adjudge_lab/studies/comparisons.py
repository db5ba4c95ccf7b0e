"""Cells compared: how features moved, differences between cells, and trends over a plan's axis.

Two cells are compared seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import linear_regression
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.stats import Estimate
from adjudge.stats.estimates import t_interval
from adjudge_lab.statistics import (
    Observation,
    PromptColumn,
    Resampling,
    estimate_slope,
    mean_over_seeds,
    widen_interval,
)
from adjudge_lab.studies.results import (
    ArmResult,
    FactorLevel,
    StudyResult,
    end_checkpoints,
    scores_by_prompt,
    sort_checkpoints,
)


class FeaturePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A feature at a step: the mean over ``seeds`` with the interval of t over them."""

    step: int
    distance: float
    seeds: int
    mean: Estimate


class FeatureCurve(msgspec.Struct, frozen=True, kw_only=True):
    """How a feature of the answers moved in a cell. ``change``: from step 0 to the end."""

    judge: str
    mitigation: str
    feature: str
    points: list[FeaturePoint]
    change: Estimate


def list_features(result: StudyResult) -> list[str]:
    """Names of all features that a checkpoint has, in the order they are first met."""
    found = (name for arm in result.arms for point in arm.points for name in point.features)
    return list(dict.fromkeys(found))


def measure_feature_curves(result: StudyResult) -> list[FeatureCurve]:
    """Every feature of every cell over the steps; features are means a checkpoint, so t."""
    return [
        FeatureCurve(
            judge=judge,
            mitigation=mitigation,
            feature=feature,
            points=list(_feature_points(arms, feature)),
            change=t_interval(
                [moved for arm in arms if (moved := _feature_change(arm, feature)) is not None]
            ),
        )
        for (judge, mitigation), arms in result.cells()
        for feature in list_features(result)
    ]


def _feature_change(arm: ArmResult, feature: str) -> float | None:
    both = end_checkpoints(arm)
    if both is None:
        return None
    first, last = (point.features.get(feature) for point in both)
    if first is None or last is None or not math.isfinite(last - first):
        return None
    return last - first


def _feature_points(arms: Sequence[ArmResult], feature: str) -> Iterator[FeaturePoint]:
    steps = sorted({point.step for arm in arms for point in arm.points})
    for step in steps:
        here = [
            point
            for arm in arms
            for point in arm.points
            if point.step == step and math.isfinite(point.features.get(feature, math.nan))
        ]
        if here:
            yield FeaturePoint(
                step=step,
                distance=math.fsum(point.distance for point in here) / len(here),
                seeds=len(here),
                mean=t_interval([point.features[feature] for point in here]),
            )


CellKey = tuple[str, str]
_MAX_PAIRED_CELLS = 8
_NO_SEED = "no seed in which both have it"


class CellComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The gold of ``a`` less that of ``b`` at their last checkpoints, as scores.

    ``by_seed``: the differences; ``t``: their mean with Student's interval over seeds;
    ``bootstrap``: the same mean over resampled seeds and prompts. Neither allows for how many pairs
    a study compares.
    """

    a: CellKey
    b: CellKey
    by_seed: dict[int, float]
    t: Estimate
    bootstrap: Estimate


def compare_cells(
    result: StudyResult, a: CellKey, b: CellKey, resampling: Resampling | None = None
) -> CellComparison:
    """Compare two cells over the seeds that both have, and the prompts that both answered.

    Raises :class:`ConfigError` for a cell that the study does not have.
    """
    cells = dict(result.cells())
    for cell in (a, b):
        if cell not in cells:
            raise ConfigError(
                f"there is no arm of {cell} (there are: {', '.join(map(str, cells))})"
            )
    ends = [
        {arm.seed: sort_checkpoints(arm)[-1] for arm in cells[cell] if arm.points}
        for cell in (a, b)
    ]
    shared = {seed: (ends[0][seed], ends[1][seed]) for seed in ends[0] if seed in ends[1]}
    columns: dict[int, list[PromptColumn]] = {}
    for seed, points in sorted(shared.items()):
        ours, theirs = (scores_by_prompt(point, [result.gold]) for point in points)
        column = {one: ours[one][0] - theirs[one][0] for one in ours if one in theirs}
        if column:
            columns[seed] = [column]
    if not columns:
        return CellComparison(
            a=a, b=b, by_seed={}, t=Estimate(why=_NO_SEED), bootstrap=Estimate(why=_NO_SEED)
        )
    by_seed = {
        seed: math.fsum(column.values()) / len(column) for seed, (column,) in columns.items()
    }
    return CellComparison(
        a=a,
        b=b,
        by_seed=by_seed,
        t=t_interval(list(by_seed.values())),
        bootstrap=(resampling or Resampling()).estimates(
            columns, lambda seeds: mean_over_seeds(seeds, 1)
        )[0],
    )


def compare_all_cells(
    result: StudyResult, cells: Sequence[CellKey], resampling: Resampling
) -> list[CellComparison]:
    """Each cell less each one before it, by gold; of more than eight, each less the first."""
    few = len(cells) <= _MAX_PAIRED_CELLS
    return [
        compare_cells(result, cell, earlier, resampling)
        for place, cell in enumerate(cells)
        for earlier in (cells[:place] if few else cells[: min(place, 1)])
    ]


TREND_OUTCOMES = ("gold", "gap", "loss")


class ArmRow(msgspec.Struct, frozen=True, kw_only=True):
    """An arm in one line: its end against step 0, ``proxy``, ``gold`` and ``gap`` in SDs.

    ``loss``: gold at its highest mean less gold at the end, over prompts that both have, in SDs.
    ``None`` where unknown.
    """

    name: str
    judge: str
    mitigation: str
    seed: int
    step: int | None
    distance: float | None
    proxy: float | None
    gold: float | None
    gap: float | None
    loss: float | None
    proxy_level: float | None
    gold_level: float | None
    onset: int | None
    onset_known: bool
    features: dict[str, float]


class PlanCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell of a plan, and where it is on the plan's axis."""

    judge: str
    mitigation: str
    x: FactorLevel | None


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """``outcome`` (gold, gap or loss of the arms, in SDs) regressed on the axis, a judge a unit.

    ``slope``: a unit of x, as unsure as judges and as seeds make it; ``mitigation``: that of its
    arms; ``arms``: how many entered.
    """

    outcome: str
    mitigation: str
    slope: Estimate
    arms: int


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's cells, pairs of them by gold, and trends where its axis has numbers."""

    name: str
    question: str
    x: str
    cells: list[PlanCell]
    comparisons: list[CellComparison]
    trends: list[Trend]


def summarise_plan(
    result: StudyResult,
    plan: Mapping[str, Any],
    rows: Mapping[str, ArmRow],
    resampling: Resampling,
) -> PlanResult:
    """``plan``: its ``name``, ``question``, axis ``x`` and the names of its ``arms``.

    Arms that failed are not among the results and are left out.
    """
    names, axis = set(plan["arms"]), str(plan.get("x") or "")
    arms = [arm for arm in result.arms if arm.name in names]
    cells = {arm.cell: axis_value(arm, axis) for arm in arms}
    return PlanResult(
        name=str(plan["name"]),
        question=str(plan.get("question") or "other"),
        x=axis,
        cells=[PlanCell(judge=j, mitigation=m, x=x) for (j, m), x in cells.items()],
        comparisons=compare_all_cells(result, list(cells), resampling),
        trends=_fit_trends(arms, axis, rows),
    )


def axis_value(arm: ArmResult, axis: str) -> FactorLevel | None:
    """The arm's place on an axis: a bias of its judge, or else a level; ``None`` without."""
    if axis in arm.bias:
        return arm.bias[axis]
    if axis == "mitigation":
        return arm.mitigation
    return arm.levels.get(axis)


def _fit_trends(arms: Sequence[ArmResult], axis: str, rows: Mapping[str, ArmRow]) -> list[Trend]:
    """Outcomes on a numeric axis, one regression a mitigation; none where x is no number."""
    found = []
    for mitigation in dict.fromkeys(arm.mitigation for arm in arms):
        placed = [
            (arm, float(x))
            for arm in arms
            if arm.mitigation == mitigation
            and isinstance(x := axis_value(arm, axis), (int, float))
            and not isinstance(x, bool)
        ]
        if len({x for _, x in placed}) < 2:
            continue
        for outcome in TREND_OUTCOMES:
            known = [
                (arm, x, value)
                for arm, x in placed
                if (value := getattr(rows[arm.name], outcome)) is not None
            ]
            slope = estimate_slope([Observation(arm.judge, x, value) for arm, x, value in known])
            if slope.low is not None:  # without an interval over judges, seeds cannot give one
                slope = widen_interval(slope, t_interval(_slopes_by_seed(known)))
            found.append(
                Trend(outcome=outcome, mitigation=mitigation, slope=slope, arms=len(known))
            )
    return found


def _slopes_by_seed(known: Sequence[tuple[ArmResult, float, float]]) -> list[float]:
    """The slope of each seed that has more than one place on the axis."""
    by_seed: dict[int, list[tuple[float, float]]] = {}
    for arm, x, value in known:
        by_seed.setdefault(arm.seed, []).append((x, value))
    return [
        linear_regression(*zip(*points, strict=True)).slope
        for points in by_seed.values()
        if len({x for x, _ in points}) > 1
    ]
