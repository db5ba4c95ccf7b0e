"""What columns beside the texts mean, in every door: the reference, a reward, how a turn ended."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

from adjudge.errors import RolloutError
from adjudge.types import MISSING

REFERENCE_COLUMNS = (
    *("reference", "ground_truth", "reference_answer", "expected_answer", "gold", "answer"),
    *("solution", "target", "expected", "label", "expected_output", "expectedOutput"),
    *("correct_answer", "true_answer", "gold_answer"),
)
"""The columns that may be the ``reference``: the first of them that a row has."""

_COLUMNS = frozenset(REFERENCE_COLUMNS)
_OTHERS = _COLUMNS - {"reference"}


def is_nothing(value: Any) -> bool:
    """Whether a value stands for none: null, NaN as tables write it, an empty text or list."""
    if value is None or value is MISSING:
        return True
    if isinstance(value, str | list | tuple | dict):
        return not value
    return isinstance(value, float) and math.isnan(value)


def find_reference(columns: Mapping[str, Any]) -> str | None:
    """The name of the column that is the row's reference.

    ``label`` counts only as text: as a number it is a class or a verdict. A ``reference`` that is
    :data:`~adjudge.types.MISSING` was chosen by the user and is not there: nothing stands in.
    """
    for name in REFERENCE_COLUMNS:
        if name in columns:
            value = columns[name]
            if value is MISSING:
                return None
            if not is_nothing(value) and (name != "label" or isinstance(value, str)):
                return name
    return None


class ReferenceChoice:
    """Sets the ``reference`` of rows, and says once which column was passed over for which."""

    def __init__(self, say: Callable[[str], None], remedy: str) -> None:
        self._say, self._remedy = say, remedy
        self._seen: set[tuple[str, str]] = set()

    def set(self, columns: dict[str, Any], *, fixed: bool = False) -> None:
        """Put the row's reference into its ``columns``; ``fixed``: the user named its column."""
        if fixed or _OTHERS.isdisjoint(columns):  # as in most rows
            value = columns.get("reference", MISSING)
            if not (value.__class__ is str and value) and is_nothing(value):
                columns.pop("reference", None)
            return
        present = [name for name in columns if name in _COLUMNS]
        chosen = find_reference(columns)
        if chosen is None:
            columns.pop("reference", None)
            return
        value = columns[chosen]
        columns["reference"] = value
        for other in present:
            if other not in (chosen, "reference") and (chosen, other) not in self._seen:
                self._check_other(chosen, other, value, columns[other])

    def _check_other(self, chosen: str, other: str, value: Any, passed: Any) -> None:
        if is_nothing(passed) or (other == "label" and not isinstance(passed, str)):
            return
        with suppress(ValueError, TypeError):  # an array of several has no one truth
            if passed == value:
                return
        self._seen.add((chosen, other))
        self._say(
            f"reference: is the column {chosen!r}; {other!r} is another, which is passed over. "
            f"{self._remedy.format(other)}"
        )


_NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.IGNORECASE)


def is_not_finite_text(value: Any) -> bool:
    """Whether a cell of a table is NaN or Infinity, as programs write a number that is missing."""
    return isinstance(value, str) and _NOT_FINITE.fullmatch(value) is not None


def read_env_reward(value: Any) -> float | None:
    """The environment's reward as a number, ``None`` where a row has none.

    A table's cell may be text. Raises :class:`RolloutError` for what is no number.
    """
    if value is None:
        return None
    if is_not_finite_text(value):  # null in a JSON file, too
        return None
    with suppress(OverflowError, ValueError, TypeError):
        if isinstance(value, str | Decimal) or hasattr(value, "__float__"):  # of any library
            number = float(value)
            if math.isfinite(number):
                return number
            if math.isnan(number):
                return None
    raise RolloutError(f"'env_reward' must be a finite number, got {describe_value(value)}")


def describe_value(value: Any) -> str:
    """A value's type and beginning, for an error."""
    try:
        return f"{type(value).__name__}: {value!r:.60}"
    except (ValueError, RecursionError):  # an integer too long to print; too deep
        return type(value).__name__


def find_finish_reason(ids: Sequence[int], ends: Collection[int], limit: int | None) -> str | None:
    """``stop`` or ``length`` for a response of these tokens; ``None`` where nothing tells.

    ``ends``: all tokens that end a turn. ``limit``: how many tokens the run lets a response have;
    a shorter one ended by itself, perhaps at a text that stops.
    """
    if len(ids) == 0:
        return None
    if int(ids[-1]) in ends:
        return "stop"
    if limit is None:
        return None
    return "length" if len(ids) >= limit else "stop"
