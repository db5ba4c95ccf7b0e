"""What each plan of a study came to: its cells, how they differ, and the trend over its axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.studies.matrix.analysis.bootstrap import Estimate, Resampling
from adjudge.studies.matrix.analysis.comparing import Comparison, all_pairs
from adjudge.studies.matrix.analysis.regression import Observation, Regression, regress
from adjudge.studies.matrix.results import ArmResult, Level, StudyResult

__all__ = ["ArmRow", "PlanCell", "PlanResult", "Trend", "plan_result"]

OUTCOMES = ("gold", "gap", "loss")


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
    x: Level | None


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
    comparisons: list[Comparison]
    trends: list[Trend]


def plan_result(
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
    cells = {arm.cell: level_of(arm, axis) for arm in arms}
    return PlanResult(
        name=str(plan["name"]),
        question=str(plan.get("question") or "other"),
        x=axis,
        cells=[PlanCell(judge=j, mitigation=m, x=x) for (j, m), x in cells.items()],
        comparisons=all_pairs(result, list(cells), resampling),
        trends=_trends(arms, axis, rows),
    )


def level_of(arm: ArmResult, axis: str) -> Level | None:
    """The arm's place on an axis: a bias of its judge, or else a level; ``None`` without."""
    if axis in arm.bias:
        return arm.bias[axis]
    if axis == "mitigation":
        return arm.mitigation
    return arm.levels.get(axis)


def _trends(arms: Sequence[ArmResult], axis: str, rows: Mapping[str, ArmRow]) -> list[Trend]:
    """Outcomes on a numeric axis, one regression a mitigation; none where x is no number."""
    found = []
    for mitigation in dict.fromkeys(arm.mitigation for arm in arms):
        placed = [
            (arm, float(x))
            for arm in arms
            if arm.mitigation == mitigation
            and isinstance(x := level_of(arm, axis), (int, float))
            and not isinstance(x, bool)
        ]
        if len({x for _, x in placed}) < 2:
            continue
        for outcome in OUTCOMES:
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
