"""One criterion: a sentence that is true of a response or is not, and what that is worth."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

import msgspec

from adjudge.config import nearest
from adjudge.errors import ConfigError

__all__ = [
    "CATEGORY_WEIGHTS",
    "MAX_TEXT",
    "Category",
    "Criterion",
    "Mark",
    "Scale",
    "check_text",
    "checked_number",
    "kind_of",
    "nearest_to",
]

MAX_TEXT = 4_000
"""Characters that a criterion may have."""

MAX_POINTS = 1e6
MIN_POINTS = 1e-6
"""Bounds on the size of points; inside them no formula over- or underflows."""

Mark = bool | float | None
"""What a judge said of a criterion: met or not (a share in [0, 1] on the ``bounded`` scale), or
``None``: not applicable. A criterion that nobody answered has no mark at all."""

Scale = Literal["binary", "bounded"]

_ID = re.compile(r"[\w.-]{1,64}")
_HALF = re.compile("[\ud800-\udfff]")


class Category(StrEnum):
    """How much a criterion matters, in words (Rubrics as Rewards, arXiv 2507.17746)."""

    ESSENTIAL = "Essential"
    IMPORTANT = "Important"
    OPTIONAL = "Optional"
    PITFALL = "Pitfall"

    @classmethod
    def named(cls, name: object) -> Category:
        """The category of that name in any case; raises :class:`ConfigError`."""
        if isinstance(name, str):
            for category in cls:
                if category.casefold() == name.strip().casefold():
                    return category
        raise ConfigError(f"category: is none of {', '.join(cls)}{nearest_to(name, cls)}")


CATEGORY_WEIGHTS: Mapping[Category, float] = MappingProxyType(
    {
        Category.ESSENTIAL: 1.0,
        Category.IMPORTANT: 0.7,
        Category.OPTIONAL: 0.3,
        Category.PITFALL: 0.9,
    }
)
"""The weights of RaR-Explicit (arXiv 2507.17746, section 4.4). A pitfall is worth +0.9 because it
is phrased as what a good response avoids, so that meeting it is good."""


class Criterion(msgspec.Struct, frozen=True):
    """A criterion and its worth.

    ``points``: signed, 1e-6 to 1e6 in size, or 0: reported, never part of a score. Negative points
    are for a fault: *met* means that the response has it. Without points, the category's weight;
    without a category, 1. ``id``: letters, digits, ``_ . -``, at most 64; without one, the rubric
    gives its place, from 1. ``veto``: failing it (a fault met, or anything else unmet) decides the
    score alone. ``na_allowed``: a judge may say that it does not apply. ``scale``: ``binary`` is
    yes or no, ``bounded`` a share in [0, 1].

    Raises :class:`ConfigError` for anything else.

    >>> Criterion("Names a dose", category=Category.IMPORTANT).worth
    0.7
    """

    text: str
    id: str = ""
    points: float | None = None
    category: Category | None = None
    veto: bool = False
    na_allowed: bool = False
    scale: Scale = "binary"
    tags: dict[str, str] = {}

    def __post_init__(self) -> None:
        check_text(self.text, "text")
        if not self.text.strip():
            raise ConfigError("text: must be a sentence that can be true of a response")
        check_text(self.id, "id")
        if self.id and not _ID.fullmatch(self.id):
            raise ConfigError("id: must be letters, digits, _ . or -, at most 64 of them")
        if self.scale not in ("binary", "bounded"):
            raise ConfigError("scale: must be binary (yes or no) or bounded (a share in [0, 1])")
        if self.points is not None:
            msgspec.structs.force_setattr(self, "points", _checked_points(self.points))
        if self.category is not None:
            msgspec.structs.force_setattr(self, "category", Category.named(self.category))
        if self.veto and self.worth == 0:
            raise ConfigError("veto: needs points: positive for a demand, negative for a fault")
        if self.veto and self.scale == "bounded":
            raise ConfigError("veto: is a matter of yes or no, so scale must be binary")

    @property
    def worth(self) -> float:
        """The points, else the category's weight, else 1."""
        if self.points is not None:
            return self.points
        return 1.0 if self.category is None else CATEGORY_WEIGHTS[self.category]

    @property
    def is_fault(self) -> bool:
        """Whether meeting it is bad."""
        return self.worth < 0


def kind_of(value: object) -> str:
    """What a value is, in words that users of JSON and TOML know."""
    names = {"NoneType": "nothing", "dict": "a table", "str": "a text", "bool": "true or false"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")


def checked_number(value: object, what: str) -> float:
    """``value`` as a finite float; raises :class:`ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{what}: must be a number, not {kind_of(value)}")
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise ConfigError(f"{what}: must be finite")
    return float(value)


def _checked_points(given: object) -> float:
    points = checked_number(given, "points")
    if points != 0 and not MIN_POINTS <= abs(points) <= MAX_POINTS:
        raise ConfigError("points: must be 0 or between 1e-6 and 1e6 in size")
    return points


def nearest_to(name: object, allowed: Iterable[str]) -> str:
    """A hint at the name that was probably meant, or nothing; ``name`` may be anything."""
    return nearest(name[:40], map(str, allowed)) if isinstance(name, str) else ""


def check_text(text: object, what: str, limit: int = MAX_TEXT) -> None:
    """Raise :class:`ConfigError` for no text, too long a one, or one that is no UTF-8."""
    if not isinstance(text, str):
        raise ConfigError(f"{what}: must be a text, not {kind_of(text)}; put it in quotes")
    if len(text) > limit:
        raise ConfigError(f"{what}: has {len(text):,} characters, at most {limit:,} go")
    if not text.isascii() and _HALF.search(text):
        raise ConfigError(f"{what}: has half a surrogate pair, which is no character")
