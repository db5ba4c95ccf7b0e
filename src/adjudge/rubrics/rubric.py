"""Criteria that belong together, and the formula that makes one score of their marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Literal, get_args

import msgspec

from adjudge.errors import ConfigError
from adjudge.rubrics.criterion import Category, Criterion, checked_number, nearest_to

__all__ = ["MAX_CRITERIA", "SCHEMES", "Rubric", "Scheme", "digest"]

MAX_CRITERIA = 200
"""Criteria that a rubric may have."""

Scheme = Literal["auto", "points", "weights", "categories", "implicit"]
SCHEMES = get_args(Scheme)


class Rubric(msgspec.Struct, frozen=True):
    """Criteria and how their marks become a score; :func:`adjudge.rubrics.score` applies it.

    ``criteria``: at most 200, :class:`Criterion` or plain sentences. ``scheme``:

    * ``points``: points of what is met over all positive points (HealthBench);
    * ``weights``: Σ w·met / Σ w, none negative (Rubrics as Rewards, equation 1);
    * ``categories``: the same with each category's weight, whatever the points say; a criterion
      with negative points is then credited when it is *not* met;
    * ``implicit``: a judge sees all criteria and gives one score; there are no marks;
    * ``auto``: ``points`` where any are negative, else ``weights``.

    ``clip``: a negative score becomes 0. ``essential_gate``: every Essential criterion is a veto.
    ``veto_score``: a failed veto caps the score there; a score that is lower stays.

    Raises :class:`ConfigError` for duplicate ids, and for criteria that the scheme cannot use.
    """

    criteria: tuple[Criterion, ...]
    id: str = ""
    version: str = ""
    description: str = ""
    scheme: Scheme = "auto"
    clip: bool = False
    veto_score: float = 0.0
    essential_gate: bool = False

    def __post_init__(self) -> None:
        criteria = _numbered(self.criteria)
        msgspec.structs.force_setattr(self, "criteria", criteria)
        if self.scheme not in SCHEMES:
            hint = nearest_to(self.scheme, SCHEMES)
            raise ConfigError(f"scheme: is one of {', '.join(SCHEMES)}{hint}")
        if self.scheme == "auto":
            scheme = "points" if any(c.is_fault for c in criteria) else "weights"
            msgspec.structs.force_setattr(self, "scheme", scheme)
        cap = checked_number(self.veto_score, "veto_score")
        msgspec.structs.force_setattr(self, "veto_score", cap)
        _check_scheme(self)

    def is_gate(self, criterion: Criterion) -> bool:
        """Whether failing this criterion caps the score."""
        essential = self.essential_gate and criterion.category is Category.ESSENTIAL
        return criterion.veto or essential


def digest(rubric: msgspec.Struct) -> str:
    """16 hexadecimal digits that change with the rubric's content: for provenance and journals."""
    return sha256(msgspec.json.encode(rubric, order="sorted")).hexdigest()[:16]


def _numbered(given: Any) -> tuple[Criterion, ...]:
    """The criteria, those without an id called by their place."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError("criteria: must be a list of criteria")
    criteria = [_criterion(place, one) for place, one in enumerate(given, start=1)]
    if not criteria:
        raise ConfigError("criteria: there are none; a rubric needs at least one")
    if len(criteria) > MAX_CRITERIA:
        raise ConfigError(f"criteria: there are {len(criteria):,}, at most {MAX_CRITERIA} go")
    counts = Counter(criterion.id for criterion in criteria)
    if repeated := [one for one, count in counts.items() if count > 1]:
        raise ConfigError(
            f"criteria: {len(repeated)} ids are used more than once, {repeated[0]!r} first; "
            "give each its own, or none (its place, from 1, is then its id)"
        )
    return tuple(criteria)


def _criterion(place: int, given: Any) -> Criterion:
    criterion = Criterion(given) if isinstance(given, str) else given
    if not isinstance(criterion, Criterion):
        raise ConfigError(f"criteria.{place}: must be a Criterion or a sentence")
    return criterion if criterion.id else msgspec.structs.replace(criterion, id=str(place))


def _check_scheme(rubric: Rubric) -> None:
    for criterion in rubric.criteria:
        where = f"criteria: {criterion.id!r}"
        if rubric.scheme == "weights" and criterion.is_fault:
            raise ConfigError(
                f"{where}: negative under scheme 'weights'; use scheme 'points' for signed points"
            )
        if rubric.scheme == "categories" and criterion.category is None:
            raise ConfigError(f"{where}: has no category, which scheme 'categories' needs")
        if not rubric.is_gate(criterion):
            continue
        if criterion.worth == 0 or criterion.scale == "bounded":
            raise ConfigError(
                f"{where}: a gate is a matter of yes or no and needs points: "
                "scale must be binary and points not 0"
            )
