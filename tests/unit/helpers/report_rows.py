"""Numbers of a page that has all its samples in its table."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from adjudge.runs.page_rows import ReportRow


def series_of(rows: Sequence[ReportRow]) -> Any:
    """What a page draws its charts from, as :class:`~adjudge.runs.summary.GradingTotals` has it."""

    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    return SimpleNamespace(
        reward=[finite(row.reward) for row in rows],
        scores=list(zip(*(map(finite, row.scores) for row in rows), strict=True)),
        outcomes=[row.env_reward for row in rows],
        groups=[row.group for row in rows],
        unevaluable=sum(not all(row.evaluable) for row in rows),
    )
