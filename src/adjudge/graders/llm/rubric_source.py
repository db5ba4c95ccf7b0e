"""Where a rubric grader's rubric comes from: a file, an id, the spec itself, or the sample."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.config import nearest
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.rollouts.mapping import MISSING, get_path
from adjudge.rubrics import (
    GlobalRubric,
    Rubric,
    RubricBundle,
    find_bundle,
    load_rubric,
    parse_rubric,
    rubric_from,
    score_range,
)
from adjudge.rubrics.rubric import SCHEMES, Scheme
from adjudge.types import ScoreRange

__all__ = ["OneRubric", "Part", "RubricSource", "one_of"]

OneRubric = Rubric | GlobalRubric
Part = Literal["outcome", "events"]


class RubricSource:
    """The rubric by which a sample is judged.

    One of ``rubric`` (a file), ``rubric_id`` (looked up under ``rubric_dir``) or ``criteria`` (data
    of any shape that :func:`adjudge.rubrics.parse_rubric` reads, or a rubric object) makes it
    *fixed*; else it is read from each sample's column ``field``. ``part``: which rubric of a
    bundle. ``scheme`` other than ``auto``, and ``clip``, take the place of the rubric's own.
    Raises :class:`ConfigError`.
    """

    def __init__(
        self,
        rubric: Path | None,
        rubric_id: str | None,
        rubric_dir: Path,
        criteria: Any,
        part: Part,
        field: str,
        scheme: Scheme,
        clip: bool,
    ) -> None:
        given = {"rubric": rubric, "rubric_id": rubric_id, "criteria": criteria}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise ConfigError(f"{' and '.join(named)}: give one of them; each is a rubric")
        one_of("part", part, ("outcome", "events"))
        self.field, self.scheme, self.clip = field, one_of("scheme", scheme, SCHEMES), clip
        self.fixed: OneRubric | None = None
        if rubric is not None:
            self.fixed = self._settled(_part(load_rubric(rubric), part), str(rubric))
        elif rubric_id is not None:
            bundle = find_bundle(rubric_id, rubric_dir)
            self.fixed = self._settled(_part(bundle, part), f"rubric_id {rubric_id!r}")
        elif criteria is not None:
            is_rubric = isinstance(criteria, Rubric | GlobalRubric | RubricBundle)
            parsed = criteria if is_rubric else parse_rubric(criteria, where="criteria")
            self.fixed = self._settled(_part(parsed, part), "criteria")

    def of(self, fields: Mapping[str, Any]) -> OneRubric:
        """The fixed rubric, else the sample's own.

        Raises ``GradingFailure(invalid_input)`` where the sample has none, or one that cannot be
        used: broken, beyond the limits, or without anything to earn.
        """
        if self.fixed is not None:
            return self.fixed
        value = get_path(fields, self.field)
        if value is MISSING or value is None:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT,
                f"the sample has no rubric in {self.field!r}; name its column with `field`, or "
                "give the grader a rubric, a rubric_id or criteria",
            )
        own = rubric_from(value, where=self.field)
        try:
            return self._settled(own, self.field)
        except ConfigError as error:
            raise GradingFailure(ErrorKind.INVALID_INPUT, str(error)) from None

    @property
    def score_range(self) -> ScoreRange:
        """The exact range of a fixed rubric; what is sure of any, where samples bring their own."""
        if isinstance(self.fixed, GlobalRubric):
            return self.fixed.score_range
        if self.fixed is not None:
            return score_range(self.fixed) or (None, 1.0)
        bounded = self.clip or self.scheme in ("weights", "categories", "implicit")
        return (0.0 if bounded else None), 1.0

    def _settled(self, rubric: OneRubric, where: str) -> OneRubric:
        """``rubric`` under the grader's own settings."""
        if isinstance(rubric, GlobalRubric):
            if self.scheme not in ("auto", "implicit") or self.clip:
                raise ConfigError(f"{where}: scheme and clip are for criteria that are marked")
            return rubric
        try:
            if self.scheme != "auto":
                rubric = msgspec.structs.replace(rubric, scheme=self.scheme)
            if self.clip:
                rubric = msgspec.structs.replace(rubric, clip=True)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if score_range(rubric) is None:
            raise ConfigError(
                f"{where}: there is nothing to earn: a criterion of positive points is needed"
            )
        return rubric


def _part(rubric: Rubric | GlobalRubric | RubricBundle, part: Part) -> OneRubric:
    if not isinstance(rubric, RubricBundle):
        return rubric
    chosen = rubric.for_outcome if part == "outcome" else rubric.events
    if chosen is None:
        other = "events" if part == "outcome" else "outcome"
        raise ConfigError(f"part: the bundle has no rubric for {part!r}; it has one for {other!r}")
    return chosen


def one_of(name: str, found: Any, allowed: tuple[str, ...]) -> Any:
    """``found``, which must be one of ``allowed``; raises :class:`ConfigError`."""
    if found in allowed:
        return found
    hint = nearest(str(found), allowed)
    raise ConfigError(f"{name}: found {found!r}{hint} (allowed: {', '.join(allowed)})")
