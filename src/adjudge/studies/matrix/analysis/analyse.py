"""The analysis of a study, as ``summary.json`` has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.studies.matrix.analysis.accounting import accounts, total
from adjudge.studies.matrix.analysis.best_of import best_of
from adjudge.studies.matrix.analysis.bootstrap import ROUGH_BELOW, Resampling
from adjudge.studies.matrix.analysis.drift import drift, feature_curves
from adjudge.studies.matrix.analysis.fits import Fits, fit_arms
from adjudge.studies.matrix.analysis.gaps import cell_gap, gap_columns
from adjudge.studies.matrix.analysis.onset import Onset, cell_onset, onset
from adjudge.studies.matrix.analysis.plans import ArmRow, plan_result
from adjudge.studies.matrix.analysis.scores import ends, mean_of, seen_range, units
from adjudge.studies.matrix.analysis.transfer import transfer
from adjudge.studies.matrix.results import ArmResult, StudyResult

__all__ = ["CellFits", "analyse"]


class CellFits(msgspec.Struct, frozen=True, kw_only=True):
    """Fits of a cell's ``gold`` and ``proxy`` over √KL, in SDs of the first policy's answers."""

    judge: str
    mitigation: str
    fits: dict[str, Fits]


def analyse(
    result: StudyResult,
    plans: Sequence[Mapping[str, Any]] = (),
    *,
    seed: int = 0,
    draws: int = 1_000,
) -> dict[str, Any]:
    """All numbers of a study as plain data, ready for JSON: unknown is ``None``, never NaN.

    ``plans``: a table each with ``name``, ``question``, ``x`` and ``arms`` (names). ``draws``
    resamples, drawn by ``seed``, make the intervals, which are at 95 %. Changes and gaps are in
    ``units``: the SD of each scorer over the first policies' answers. Every estimate is a table of
    ``value``, ``low``, ``high`` and, where one of them is not known, ``why``.
    """
    resampling = Resampling(draws, seed)
    scale = units(result)
    cells = [arms for _, arms in result.cells()]
    seen = seen_range(result, result.gold)
    onsets = {arm.name: onset(arm, result.gold, seen=seen) for arm in result.arms}
    rows = {arm.name: _arm(arm, result.gold, scale, onsets[arm.name]) for arm in result.arms}
    found = {
        "settings": _settings(result, resampling),
        "gold": result.gold,
        "judges": result.judges,
        "units": {name: scale.get(name) for name in [*result.judges, result.gold]},
        "arms": list(rows.values()),
        "failed": result.failed,
        "cells": [cell_gap(arms, result.gold, scale, resampling) for arms in cells],
        "fits": [_fits(arms, result.gold, scale, resampling) for arms in cells],
        "best_of": best_of(result, scale, resampling),
        "transfer": transfer(result, scale, resampling),
        "onset": [cell_onset(arms, [onsets[arm.name] for arm in arms]) for arms in cells],
        "features": feature_curves(result),
        "drift": drift(result),
        "accounting": {"cells": accounts(result), "total": total(result)},
        "plans": [plan_result(result, plan, rows, resampling) for plan in plans],
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    return plain


def _settings(result: StudyResult, resampling: Resampling) -> dict[str, Any]:
    seeds = sorted({arm.seed for arm in result.arms})
    return {
        "draws": resampling.draws,
        "seed": resampling.seed,
        "level": 0.95,
        "seeds": seeds,
        "rough": len(seeds) < ROUGH_BELOW,
    }


def _fits(
    arms: Sequence[ArmResult], gold: str, scale: Mapping[str, float], resampling: Resampling
) -> CellFits:
    targets = {"gold": gold, "proxy": arms[0].proxy}
    return CellFits(
        judge=arms[0].judge,
        mitigation=arms[0].mitigation,
        fits={
            target: fit_arms(arms, name, scale.get(name), resampling)
            for target, name in targets.items()
        },
    )


def _arm(arm: ArmResult, gold: str, scale: Mapping[str, float], found: Onset) -> ArmRow:
    both = ends(arm)
    last = both[1] if both else None
    columns = gap_columns(*both, arm.proxy, gold, scale) if both else [{}, {}, {}]
    proxy, right, gap = (math.fsum(of.values()) / len(of) if of else None for of in columns)
    levels = [mean_of(last, name) if last else None for name in (arm.proxy, gold)]
    return ArmRow(
        name=arm.name,
        judge=arm.judge,
        mitigation=arm.mitigation,
        seed=arm.seed,
        step=last.step if last else None,
        distance=last.distance if last else None,
        proxy=proxy,
        gold=right,
        gap=gap,
        loss=found.loss / scale[gold] if found.loss is not None and gold in scale else None,
        proxy_level=levels[0],
        gold_level=levels[1],
        onset=found.step,
        onset_known=not found.why,
        features=dict(last.features) if last else {},
    )
