"""The gap between what a policy was trained on and what was wanted, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from adjudge.studies.matrix.analysis.bootstrap import Column, Estimate, Resampling
from adjudge.studies.matrix.analysis.scores import NO_UNIT, change, of_point, ordered, peak_step
from adjudge.studies.matrix.results import ArmResult, Point

__all__ = ["CellGap", "Gap", "cell_gap", "gap_columns"]

_NO_STEP_0 = "no arm has step 0 and a later checkpoint that judge and gold scored"


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a cell against step 0.

    ``proxy``, ``gold``: changes in SDs of the first policy's answers; ``gap``: the one less the
    other, all over answers that both have scored. ``proxy_level``, ``gold_level``: each scorer's
    mean over all that it scored. ``step`` and ``distance`` (√KL): means over seeds, ``None``
    without arms. ``prompts_left_out``: without such a pair here or at step 0, over all seeds.
    """

    step: float | None
    distance: float | None
    proxy: Estimate
    gold: Estimate
    gap: Estimate
    proxy_level: Estimate
    gold_level: Estimate
    seeds: list[int]
    prompts_left_out: int


class CellGap(msgspec.Struct, frozen=True, kw_only=True):
    """A cell at its start, at its last checkpoint, and where its mean gold is highest.

    The step of the peak is chosen on the same numbers, so what is said of it is a little too good;
    its interval does not know of the choice. ``loss``: gold at the peak less gold at the end, in
    SDs and, ``loss_level``, as scores; 0 where the end is the peak. ``None`` where unknown.
    """

    judge: str
    mitigation: str
    start: Estimate
    end: Gap
    peak: Gap | None
    loss: Estimate
    loss_level: Estimate


def cell_gap(
    arms: Sequence[ArmResult], gold: str, units: Mapping[str, float], resampling: Resampling
) -> CellGap:
    """Of the arms of one cell, which differ in the seed. Intervals are over seeds and prompts."""
    step = peak_step(arms, gold)
    first = {arm.seed: points[0] for arm in arms if (points := ordered(arm))}
    loss = _loss(arms, gold, step, units.get(gold), resampling)
    return CellGap(
        judge=arms[0].judge,
        mitigation=arms[0].mitigation,
        start=resampling.means(
            {seed: [_level(point, gold)] for seed, point in first.items() if point.step == 0}, 1
        )[0],
        end=_gap(arms, gold, None, units, resampling),
        peak=None if step is None else _gap(arms, gold, step, units, resampling),
        loss=loss[0],
        loss_level=loss[1],
    )


def gap_columns(
    first: Point, last: Point, proxy: str, gold: str, units: Mapping[str, float]
) -> list[Column]:
    """By prompt: the changes of proxy and gold in SDs, and the one less the other."""
    if proxy not in units or gold not in units:
        return [{}, {}, {}]
    moved = change(first, last, [proxy, gold])
    scaled = {p: (a / units[proxy], b / units[gold]) for p, (a, b) in moved.items()}
    return [
        {prompt: a for prompt, (a, _) in scaled.items()},
        {prompt: b for prompt, (_, b) in scaled.items()},
        {prompt: a - b for prompt, (a, b) in scaled.items()},
    ]


def _gap(
    arms: Sequence[ArmResult],
    gold: str,
    step: int | None,
    units: Mapping[str, float],
    resampling: Resampling,
) -> Gap:
    """At ``step``, or at each arm's last checkpoint."""
    columns: dict[int, list[Column]] = {}
    points, left_out = [], 0
    for arm in arms:
        checkpoints = ordered(arm)
        if len(checkpoints) < 2 or checkpoints[0].step != 0:
            continue
        here = next((p for p in checkpoints if p.step == step), checkpoints[-1])
        three = gap_columns(checkpoints[0], here, arm.proxy, gold, units)
        columns[arm.seed] = [*three, _level(here, arm.proxy), _level(here, gold)]
        left_out += len(set(here.prompts)) - len(three[0])
        points.append(here)
    found = resampling.means(columns, 5)
    known = all(name in units for name in (arms[0].proxy, gold))
    why = _NO_STEP_0 if known else NO_UNIT
    changes = [
        msgspec.structs.replace(one, why=why) if one.value is None else one for one in found[:3]
    ]
    n = len(points)
    return Gap(
        step=math.fsum(point.step for point in points) / n if n else None,
        distance=math.fsum(point.distance for point in points) / n if n else None,
        proxy=changes[0],
        gold=changes[1],
        gap=changes[2],
        proxy_level=found[3],
        gold_level=found[4],
        seeds=sorted(seed for seed, of in columns.items() if of[2]),
        prompts_left_out=left_out,
    )


def _loss(
    arms: Sequence[ArmResult],
    gold: str,
    step: int | None,
    unit: float | None,
    resampling: Resampling,
) -> tuple[Estimate, Estimate]:
    """Gold at ``step`` less gold at the end: in SDs and as it is."""
    columns: dict[int, list[Column]] = {}
    for arm in arms:
        points = ordered(arm)
        peak = next((point for point in points if point.step == step), None)
        if peak is not None and len(points) > 1:
            moved = change(points[-1], peak, [gold])
            level = {prompt: by for prompt, (by,) in moved.items()}
            scaled = {} if unit is None else {prompt: by / unit for prompt, by in level.items()}
            columns[arm.seed] = [scaled, level]
    loss, level_loss = resampling.means(columns, 2)
    if unit is None:
        loss = Estimate(why=NO_UNIT)
    return loss, level_loss


def _level(point: Point, scorer: str) -> Column:
    return {prompt: by for prompt, (by,) in of_point(point, [scorer]).items()}
