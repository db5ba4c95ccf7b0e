"""Rubrics judged by one score with a scoring guide, and the rubrics of a task in one bundle."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.rubrics.criterion import check_text, kind_of
from adjudge.rubrics.rubric import MAX_CRITERIA, Rubric

__all__ = ["Band", "GlobalRubric", "RubricBundle"]

_NUMBER = r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)"
_RANGE = re.compile(rf" *{_NUMBER} *(?:(?:-|–|—|~|to|至|到) *{_NUMBER} *)?")
_MAX_BANDS = 50


class Band(msgspec.Struct, frozen=True, order=True):
    """One line of a scoring guide: scores from ``low`` to ``high`` mean ``text``."""

    low: float
    high: float
    text: str

    @classmethod
    def parse(cls, key: str, text: str) -> Band:
        """From a key such as ``0.9-1.0``, ``-1 to 0`` or ``5``; raises :class:`ConfigError`."""
        check_text(key, "scoring_guide: a range of scores", limit=64)
        found = _RANGE.fullmatch(key)
        if found is None:
            shown = repr(key[:40])
            raise ConfigError(f"scoring_guide: {shown}: must be a range of scores such as 0.9-1.0")
        low = float(found[1])
        high = low if found[2] is None else float(found[2])
        if low > high:
            raise ConfigError(f"scoring_guide: {key!r}: starts above its end")
        check_text(text, f"scoring_guide: {key!r}")
        return cls(low, high, text)


class GlobalRubric(msgspec.Struct, frozen=True):
    """Aspects in plain words, judged together by one score.

    ``scoring_guide``: what ranges of scores mean, such as ``{"0.9-1.0": "Excellent: …"}``. The
    score lies between the lowest and highest number there, in [0, 1] without a guide. Raises
    :class:`ConfigError`.

    >>> GlobalRubric("a@v1", criteria=["Explores"], scoring_guide={"0-4": "poor"}).score_range
    (0.0, 4.0)
    """

    id: str = ""
    description: str = ""
    criteria: tuple[str, ...] = ()
    scoring_guide: dict[str, str] = {}
    version: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "criteria", _aspects(self.criteria))
        _check_guide(self.scoring_guide)
        for name in ("id", "description", "version"):
            check_text(getattr(self, name), name)
        low, high = self.score_range
        if low >= high:
            raise ConfigError("scoring_guide: all its ranges are one number; a score needs two")

    @property
    def bands(self) -> list[Band]:
        """The scoring guide in ascending order."""
        return sorted(Band.parse(key, text) for key, text in self.scoring_guide.items())

    @property
    def score_range(self) -> tuple[float, float]:
        """Lowest and highest score."""
        bands = self.bands
        return (bands[0].low, max(band.high for band in bands)) if bands else (0.0, 1.0)


class RubricBundle(msgspec.Struct, frozen=True):
    """The rubrics of a task: ``outcome`` judges an episode, ``events`` each of its events.

    ``global_rubric`` is the outcome's where ``outcome`` is absent. Raises :class:`ConfigError`
    when there is none at all.
    """

    global_rubric: GlobalRubric | None = None
    outcome: Rubric | GlobalRubric | None = None
    events: Rubric | GlobalRubric | None = None

    def __post_init__(self) -> None:
        if self.global_rubric is None and self.outcome is None and self.events is None:
            raise ConfigError("a bundle needs global_rubric, outcome or events")
        for name in ("global_rubric", "outcome", "events"):
            kinds = GlobalRubric if name == "global_rubric" else Rubric | GlobalRubric
            if not isinstance(part := getattr(self, name), kinds | None):
                raise ConfigError(f"{name}: must be a rubric, not {kind_of(part)}")

    @property
    def for_outcome(self) -> Rubric | GlobalRubric | None:
        """What an episode is judged by, if it is judged."""
        return self.outcome if self.outcome is not None else self.global_rubric


def _check_guide(guide: object) -> None:
    if not isinstance(guide, Mapping):
        raise ConfigError(f"scoring_guide: must be a table, not {kind_of(guide)}")
    if len(guide) > _MAX_BANDS:
        raise ConfigError(f"scoring_guide: has {len(guide):,} ranges, at most {_MAX_BANDS} go")


def _aspects(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise ConfigError("criteria: must be a list of texts")
    if not 1 <= len(given) <= MAX_CRITERIA:
        raise ConfigError(f"criteria: there are {len(given):,}; 1 to {MAX_CRITERIA} go")
    for place, text in enumerate(given, start=1):
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(
                f"criteria: the one in place {place} must be a text; one score with a scoring "
                "guide knows no points or weights"
            )
        check_text(text, f"criteria: the one in place {place}")
    return tuple(given)
