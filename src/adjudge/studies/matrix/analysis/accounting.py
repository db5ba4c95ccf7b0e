"""What failed, and what a study consumed, cell by cell. Nothing is renormalised."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.studies.matrix.analysis.scores import known
from adjudge.studies.matrix.results import ArmResult, StudyResult

__all__ = ["CellAccount", "Missing", "accounts", "total"]

_ALL = "all"


class Missing(msgspec.Struct, frozen=True, kw_only=True):
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
    rewards: Missing
    scores: dict[str, Missing]
    calls: int
    failed_calls: dict[str, int]
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    priced_usd: float | None
    unpriced: int
    seconds: float


def accounts(result: StudyResult) -> list[CellAccount]:
    """One account a cell, in the study's order."""
    return [_account(arms, *cell) for cell, arms in result.cells()]


def total(result: StudyResult) -> CellAccount:
    """All arms together; ``judge`` and ``mitigation`` are ``all``."""
    return _account(result.arms, _ALL, _ALL)


def _account(arms: Sequence[ArmResult], judge: str, mitigation: str) -> CellAccount:
    entries = [entry for arm in arms for entry in arm.calls]
    prices = [price for entry in entries if (price := _price(entry)) is not None]
    unpriced = sum(_count(entry, "calls") for entry in entries if _price(entry) is None)
    calls = sum(_count(entry, "calls") for entry in entries)
    priced = math.fsum(prices) if prices else None
    return CellAccount(
        judge=judge,
        mitigation=mitigation,
        arms=len(arms),
        rewards=_missing(sum(arm.rewards for arm in arms), [arm.missing for arm in arms]),
        scores=_scores(arms),
        calls=calls,
        failed_calls=_sum([_kinds(entry) for entry in entries]),
        input_tokens=sum(_count(entry, "input_tokens") for entry in entries),
        output_tokens=sum(_count(entry, "output_tokens") for entry in entries),
        cost_usd=priced if calls and not unpriced else None,
        priced_usd=priced,
        unpriced=unpriced,
        seconds=math.fsum(arm.seconds for arm in arms),
    )


def _missing(asked: int, kinds: Sequence[Mapping[str, int]]) -> Missing:
    found = _sum(kinds)
    count = sum(found.values())
    return Missing(asked=asked, missing=count, share=count / asked if asked else None, kinds=found)


def _scores(arms: Sequence[ArmResult]) -> dict[str, Missing]:
    """By scorer: values that are not known, those whose kind is not said under ``unknown``."""
    asked: Counter[str] = Counter()
    kinds: dict[str, list[Mapping[str, int]]] = {}
    for arm in arms:
        for point in arm.points:
            for name, scored in point.scores.items():
                asked[name] += len(scored.values)
                gone = sum(not known(value) for value in scored.values)
                unsaid = gone - sum(scored.missing.values())
                kinds.setdefault(name, []).append(scored.missing)
                kinds[name].append({"unknown": max(0, unsaid)})
    return {name: _missing(asked[name], of) for name, of in kinds.items()}


def _sum(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for one in counts:
        found.update(one)
    return {kind: count for kind, count in found.most_common() if count}


def _count(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    return value if isinstance(value, int) else 0


def _kinds(entry: Mapping[str, Any]) -> dict[str, int]:
    value = entry.get("failures")
    return dict(value) if isinstance(value, Mapping) else {}


def _price(entry: Mapping[str, Any]) -> float | None:
    value = entry.get("cost_usd")
    return float(value) if isinstance(value, (int, float)) else None
