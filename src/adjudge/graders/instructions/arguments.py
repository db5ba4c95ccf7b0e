"""What an instruction's keyword arguments may be; each reader returns the value as checks take it.

A reader raises ``ValueError`` with what it wants; :mod:`~adjudge.graders.instructions.registry`
adds the instruction and the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any

from adjudge.graders.instructions.detection import LANGUAGES

__all__ = [
    "MAX_WORD",
    "Reader",
    "count",
    "is_given",
    "language",
    "letter",
    "lowered",
    "position",
    "relation",
    "text",
    "whole",
    "word",
    "word_list",
]

Reader = Callable[[Any], Any]

MAX_WORD = 200
"""Longest keyword in characters: a search costs up to that much per character of a response."""

_MAX_WORDS = 1000
_RELATIONS = ("less than", "at least")


def is_given(value: Any) -> bool:
    """Whether an argument says anything: ``None`` and NaN (tables' word for it) do not."""
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def whole(value: Any) -> int:
    """A whole number; tables store them as floats where a column has gaps."""
    fits = isinstance(value, int | Integral) and not isinstance(value, bool)
    if fits or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise ValueError("a whole number")


def count(value: Any) -> int:
    """A whole number that is not negative."""
    number = whole(value)
    if number < 0:
        raise ValueError("a whole number from 0")
    return number


def position(value: Any) -> int:
    """A whole number from 1."""
    number = whole(value)
    if number < 1:
        raise ValueError("a whole number from 1")
    return number


def text(value: Any) -> str:
    """Text with something in it, without the white space around it."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("text that is not blank")
    return value.strip()


def lowered(value: Any) -> str:
    """Text in lower case."""
    return text(value).lower()


def word(value: Any) -> str:
    """Text of at most :data:`MAX_WORD` characters."""
    found = text(value)
    if len(found) > MAX_WORD:
        raise ValueError(f"text of at most {MAX_WORD} characters")
    return found


def word_list(value: Any) -> tuple[str, ...]:
    """A list of at least one word, kept as written (white space included)."""
    wanted = f"a list of 1 to {_MAX_WORDS} texts of at most {MAX_WORD} characters"
    if not isinstance(value, list | tuple) or not 0 < len(value) <= _MAX_WORDS:
        raise ValueError(wanted)
    for item in value:
        if not isinstance(item, str) or not item or len(item) > MAX_WORD:
            raise ValueError(wanted)
    return tuple(value)


def letter(value: Any) -> str:
    """One character, in lower case."""
    if not isinstance(value, str) or len(value) != 1:
        raise ValueError("one character")
    return value.lower()


def relation(value: Any) -> bool:
    """``at least`` as true, ``less than`` as false."""
    if not isinstance(value, str) or value not in _RELATIONS:
        raise ValueError(" or ".join(map(repr, _RELATIONS)))
    return bool(value == "at least")


def language(value: Any) -> str:
    """A code that the language detection can answer."""
    if not isinstance(value, str) or value not in LANGUAGES:
        raise ValueError(f"one of {', '.join(sorted(LANGUAGES))}")
    return value
