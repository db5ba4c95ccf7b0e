"""Cells compared: drift of features, differences between cells, and trends over a plan's axis.

Drift is what a judge's biases do to the policy, feature by feature, on the judges' dials. Two cells
are compared seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.stats import Estimate
from adjudge.stats.bootstrap import PromptColumn, Resampling, mean_over_seeds
from adjudge.stats.estimates import Observation, Regression, regress, t_interval
from adjudge_lab.studies.results import (
    ArmResult,
    CheckpointResult,
    FactorLevel,
    StudyResult,
    end_checkpoints,
    list_scorers,
    scores_by_prompt,
    sort_checkpoints,
)


class FeatureDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A feature's change from step 0 to the end, regressed on the judges' biases.

    ``left_out``: arms without mitigation whose judge's biases or whose feature is unknown.
    """

    feature: str
    regression: Regression
    left_out: int


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


def regress_drift(result: StudyResult) -> list[FeatureDrift]:
    """One regression a feature over the arms without mitigation, one dial a coefficient.

    A judge that declares biases has 0 of those that it does not name; one that declares none is
    unknown, not unbiased (say ``bias = {length = 0}``), and its arms are left out.
    """
    arms = [arm for arm in result.arms if arm.mitigation == "none"]
    described = [arm for arm in arms if arm.bias]
    dials = list(dict.fromkeys(name for arm in described for name in arm.bias))
    found = []
    for feature in list_features(result):
        observations = [
            Observation(arm.judge, {dial: arm.bias.get(dial, 0.0) for dial in dials}, moved)
            for arm in described
            if (moved := _feature_change(arm, feature)) is not None
        ]
        regression = (
            regress(observations, dials)
            if dials
            else Regression(why="no judge of an arm without mitigation declares its biases")
        )
        left_out = len(arms) - len(observations)
        found.append(FeatureDrift(feature=feature, regression=regression, left_out=left_out))
    return found


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
    """``a`` less ``b`` at their last checkpoints, in ``measure``'s own units.

    ``by_seed``: the differences; ``t``: their mean with Student's interval over seeds;
    ``bootstrap``: the same mean over resampled seeds and prompts, ``None`` for a feature, which is
    known by checkpoint only. Neither allows for how many pairs a study compares.
    """

    a: CellKey
    b: CellKey
    measure: str
    by_seed: dict[int, float]
    t: Estimate
    bootstrap: Estimate | None


def compare_cells(
    result: StudyResult,
    a: CellKey,
    b: CellKey,
    measure: str = "gold",
    resampling: Resampling | None = None,
) -> CellComparison:
    """Compare two cells over the seeds that both have, and the prompts that both answered.

    ``measure``: ``gold``, a scorer's name or a feature's. Raises :class:`ConfigError` for a measure
    or a cell that the study does not have.
    """
    cells = dict(result.cells())
    for cell in (a, b):
        if cell not in cells:
            raise ConfigError(
                f"there is no arm of {cell} (there are: {', '.join(map(str, cells))})"
            )
    scorers = list_scorers(result)
    name = result.gold if measure == "gold" and measure not in scorers else measure
    if name not in scorers and name not in list_features(result):
        raise ConfigError(
            f"cells cannot be compared by {measure!r}. Choose 'gold', a scorer "
            f"({', '.join(scorers)}) or a feature ({', '.join(list_features(result))})."
        )
    ends = [
        {arm.seed: sort_checkpoints(arm)[-1] for arm in cells[cell] if arm.points}
        for cell in (a, b)
    ]
    shared = {seed: (ends[0][seed], ends[1][seed]) for seed in ends[0] if seed in ends[1]}
    by_seed, booted = (_compare_by_score if name in scorers else _compare_by_feature)(
        shared, name, resampling or Resampling()
    )
    t = t_interval(list(by_seed.values())) if by_seed else Estimate(why=_NO_SEED)
    return CellComparison(a=a, b=b, measure=measure, by_seed=by_seed, t=t, bootstrap=booted)


def compare_all_cells(
    result: StudyResult, cells: Sequence[CellKey], resampling: Resampling
) -> list[CellComparison]:
    """Each cell less each one before it, by gold; of more than eight, each less the first."""
    few = len(cells) <= _MAX_PAIRED_CELLS
    return [
        compare_cells(result, cell, earlier, "gold", resampling)
        for place, cell in enumerate(cells)
        for earlier in (cells[:place] if few else cells[: min(place, 1)])
    ]


_SharedSeeds = Mapping[int, tuple[CheckpointResult, CheckpointResult]]


def _compare_by_score(
    shared: _SharedSeeds, scorer: str, resampling: Resampling
) -> tuple[dict[int, float], Estimate | None]:
    columns: dict[int, list[PromptColumn]] = {}
    for seed, points in sorted(shared.items()):
        a, b = (scores_by_prompt(point, [scorer]) for point in points)
        column = {prompt: a[prompt][0] - b[prompt][0] for prompt in a if prompt in b}
        if column:
            columns[seed] = [column]
    by_seed = {
        seed: math.fsum(column.values()) / len(column) for seed, (column,) in columns.items()
    }
    if not columns:
        return {}, Estimate(why=_NO_SEED)
    return by_seed, resampling.estimates(columns, lambda seeds: mean_over_seeds(seeds, 1))[0]


def _compare_by_feature(
    shared: _SharedSeeds, feature: str, resampling: Resampling
) -> tuple[dict[int, float], Estimate | None]:
    del resampling
    found = {}
    for seed, points in sorted(shared.items()):
        a, b = (point.features.get(feature, math.nan) for point in points)
        if math.isfinite(a - b):
            found[seed] = a - b
    return found, None


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

    ``slope``: a unit of x; ``within``: the mitigation that its arms have.
    """

    outcome: str
    mitigation: str
    slope: Estimate
    regression: Regression


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
            regression = regress(
                [
                    Observation(arm.judge, {axis: x}, value)
                    for arm, x in placed
                    if (value := getattr(rows[arm.name], outcome)) is not None
                ],
                [axis],
            )
            slope = regression.coefficients.get(axis, Estimate(why=regression.why))
            found.append(
                Trend(outcome=outcome, mitigation=mitigation, slope=slope, regression=regression)
            )
    return found
