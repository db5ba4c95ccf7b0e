"""The analysis of a study, as ``summary.json`` has it, with what failed and what was consumed.

What was measured becomes numbers with intervals. Pure functions, nothing is read, and nothing is
renormalised for what failed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge_lab.statistics import MIN_BOOTSTRAP_SEEDS, Resampling
from adjudge_lab.studies.comparisons import (
    ArmRow,
    measure_feature_curves,
    summarise_plan,
)
from adjudge_lab.studies.kl_curves import CurveFits, best_of_curves, fit_arms
from adjudge_lab.studies.overoptimization import (
    HackingOnset,
    find_onset,
    gap_columns,
    measure_cell_gap,
    summarise_onsets,
    transfer_matrix,
)
from adjudge_lab.studies.results import (
    ArmResult,
    StudyResult,
    end_checkpoints,
    is_known,
    mean_score,
    observed_score_range,
    score_units,
)

_ALL_CELLS = "all"


class MissingCount(msgspec.Struct, frozen=True, kw_only=True):
    """``missing`` of ``asked`` by kind; ``share`` is ``None`` where nothing was asked."""

    asked: int
    missing: int
    share: float | None
    kinds: dict[str, int]


class CellAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Of a cell's arms together. ``rewards``: in training; ``scores``: at checkpoints, by scorer.

    ``cost_usd``: of the judge's calls, ``None`` where none was made or where ``unpriced`` calls
    have no known price; ``priced_usd``: what is known of it. ``tokens``: in and out.
    """

    judge: str
    mitigation: str
    arms: int
    rewards: MissingCount
    scores: dict[str, MissingCount]
    calls: int
    failed_calls: dict[str, int]
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    priced_usd: float | None
    unpriced: int
    seconds: float


def account_cells(result: StudyResult) -> list[CellAccount]:
    """One account a cell, in the study's order."""
    return [_account(arms, *cell) for cell, arms in result.cells()]


def account_total(result: StudyResult) -> CellAccount:
    """All arms together; ``judge`` and ``mitigation`` are ``all``."""
    return _account(result.arms, _ALL_CELLS, _ALL_CELLS)


def _account(arms: Sequence[ArmResult], judge: str, mitigation: str) -> CellAccount:
    entries = [entry for arm in arms for entry in arm.calls]
    prices = [entry["cost_usd"] for entry in entries if entry["cost_usd"] is not None]
    unpriced = sum(entry["calls"] for entry in entries if entry["cost_usd"] is None)
    calls = sum(entry["calls"] for entry in entries)
    priced = math.fsum(prices) if prices else None
    return CellAccount(
        judge=judge,
        mitigation=mitigation,
        arms=len(arms),
        rewards=_missing_count(sum(arm.rewards for arm in arms), [arm.missing for arm in arms]),
        scores=_missing_scores(arms),
        calls=calls,
        failed_calls=_sum_counts([entry["failures"] for entry in entries]),
        input_tokens=sum(entry["input_tokens"] for entry in entries),
        output_tokens=sum(entry["output_tokens"] for entry in entries),
        cost_usd=priced if calls and not unpriced else None,
        priced_usd=priced,
        unpriced=unpriced,
        seconds=math.fsum(arm.seconds for arm in arms),
    )


def _missing_count(asked: int, kinds: Sequence[Mapping[str, int]]) -> MissingCount:
    found = _sum_counts(kinds)
    count = sum(found.values())
    return MissingCount(
        asked=asked, missing=count, share=count / asked if asked else None, kinds=found
    )


def _missing_scores(arms: Sequence[ArmResult]) -> dict[str, MissingCount]:
    """By scorer: values that are not known; those without a kind under ``unknown``."""
    asked: Counter[str] = Counter()
    kinds: dict[str, list[Mapping[str, int]]] = {}
    for arm in arms:
        for point in arm.points:
            for name, scored in point.scores.items():
                asked[name] += len(scored.values)
                gone = sum(not is_known(value) for value in scored.values)
                unsaid = gone - sum(scored.missing.values())
                kinds.setdefault(name, []).append(scored.missing)
                kinds[name].append({"unknown": max(0, unsaid)})
    return {name: _missing_count(asked[name], of) for name, of in kinds.items()}


def _sum_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for one in counts:
        found.update(one)
    return {kind: count for kind, count in found.most_common() if count}


class CellFits(msgspec.Struct, frozen=True, kw_only=True):
    """Fits of a cell's ``gold`` and ``proxy`` over √KL, in SDs of the first policy's answers."""

    judge: str
    mitigation: str
    fits: dict[str, CurveFits]


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
    scale = score_units(result)
    cells = [arms for _, arms in result.cells()]
    seen = observed_score_range(result, result.gold)
    onsets = {arm.name: find_onset(arm, result.gold, seen=seen) for arm in result.arms}
    rows = {arm.name: _arm_row(arm, result.gold, scale, onsets[arm.name]) for arm in result.arms}
    found = {
        "settings": _settings(result, resampling),
        "gold": result.gold,
        "judges": result.judges,
        "units": {name: scale.get(name) for name in [*result.judges, result.gold]},
        "arms": list(rows.values()),
        "failed": result.failed,
        "cells": [measure_cell_gap(arms, result.gold, scale, resampling) for arms in cells],
        "fits": [_cell_fits(arms, result.gold, scale, resampling) for arms in cells],
        "best_of": best_of_curves(result, scale, resampling),
        "transfer": transfer_matrix(result, scale, resampling),
        "onset": [summarise_onsets(arms, [onsets[arm.name] for arm in arms]) for arms in cells],
        "features": measure_feature_curves(result),
        "accounting": {"cells": account_cells(result), "total": account_total(result)},
        "plans": [summarise_plan(result, plan, rows, resampling) for plan in plans],
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
        "rough": len(seeds) < MIN_BOOTSTRAP_SEEDS,
    }


def _cell_fits(
    arms: Sequence[ArmResult], gold: str, scale: Mapping[str, float], resampling: Resampling
) -> CellFits:
    targets = {"gold": gold, "proxy": arms[0].judge}
    return CellFits(
        judge=arms[0].judge,
        mitigation=arms[0].mitigation,
        fits={
            target: fit_arms(arms, name, scale.get(name), resampling)
            for target, name in targets.items()
        },
    )


def _arm_row(arm: ArmResult, gold: str, scale: Mapping[str, float], found: HackingOnset) -> ArmRow:
    both = end_checkpoints(arm)
    last = both[1] if both else None
    columns = gap_columns(*both, arm.judge, gold, scale) if both else [{}, {}, {}]
    proxy, right, gap = (math.fsum(of.values()) / len(of) if of else None for of in columns)
    levels = [mean_score(last, name) if last else None for name in (arm.judge, gold)]
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
