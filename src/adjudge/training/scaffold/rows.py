"""The rubrics that a dataset's rows bring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.rollouts.mapping import MISSING, get_path
from adjudge.rubrics import Criterion, rubric_from

__all__ = ["COLUMNS", "has_rubrics", "rubrics_of"]

COLUMNS = ("rubrics", "reward_model.rubrics", "extra_info.reward_model.rubrics")
"""Where a row's rubrics may stand: our own column, and verl's Parquet files."""


def has_rubrics(row: Mapping[str, Any]) -> bool:
    """Whether one of :data:`COLUMNS` has anything, be it readable or not.

    >>> has_rubrics({"rubrics": []}), has_rubrics({"reward_model": {"rubrics": ["Is kind"]}})
    (False, True)
    """
    return _found(row) is not None


def rubrics_of(row: Mapping[str, Any]) -> tuple[Criterion, ...]:
    """The criteria of the first of :data:`COLUMNS` that has any.

    Raises ``GradingFailure(invalid_input)`` where none has, or where they cannot be read.

    >>> [one.worth for one in rubrics_of({"rubrics": [{"criterion": "Is kind", "points": 2}]})]
    [2.0]
    """
    found = _found(row)
    if found is None:
        looked = ", ".join(COLUMNS)
        raise GradingFailure(ErrorKind.INVALID_INPUT, f"has no rubrics (looked for in {looked})")
    column, value = found
    return rubric_from(value, where=column).criteria


def _found(row: Mapping[str, Any]) -> tuple[str, Any] | None:
    for column in COLUMNS:
        value = get_path(row, column)
        if value is not MISSING and not _blank(value):
            return column, value
    return None


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | Mapping) and not value)
