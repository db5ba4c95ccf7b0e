"""Rows of a page, and the numbers of a page that has all its samples in its table."""

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from adjudge.errors import ErrorKind
from adjudge.runs.rows import GradedRow
from adjudge.types import GradedSample, GraderError, GraderResult, GraderScore, RewardResult


def made_row(
    index: int,
    group: str,
    said: Mapping[str, GraderResult],
    reward: float | None = 0.5,
    why: tuple[ErrorKind, str] = (ErrorKind.TIMEOUT, "late"),
    **facts: Any,
) -> GradedRow:
    """A row of which each grader ``said`` something; ``why`` its reward is missing, if it is."""
    scores = {n: one.score if isinstance(one, GraderScore) else None for n, one in said.items()}
    details = {
        name: {"reason": one.reason}
        if isinstance(one, GraderScore)
        else {"kind": str(one.kind), "error": one.error}
        for name, one in said.items()
        if isinstance(one, GraderScore | GraderError)
    }
    info = {f"{name}_score": score for name, score in scores.items()}
    missing = GraderError("reward", *why) if reward is None else None
    judged = GradedSample(index, 0, group, facts.get("env_reward"), dict(said), [])
    row = GradedRow(index=index, group=group, judged=judged, **facts)
    row.result = RewardResult(index, 0, reward, info, details, missing)
    return row


def series_of(rows: Sequence[GradedRow]) -> Any:
    """What a page draws its charts from, as :class:`~adjudge.runs.summary.GradingTotals` has it."""

    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    return SimpleNamespace(
        reward=[finite(row.reward) for row in rows],
        scores=list(zip(*(map(finite, row.scores.values()) for row in rows), strict=True)),
        outcomes=[row.env_reward for row in rows],
        groups=[row.group for row in rows],
        unevaluable=sum(not all(map(row.is_evaluable, row.scores)) for row in rows),
    )
