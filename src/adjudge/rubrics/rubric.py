"""Rubrics as data: criteria, the formula that makes one score of their marks, bundles.

A criterion is a sentence that is true of a response or is not, and what that is worth. A rubric
may also be judged by one score with a scoring guide. A bundle holds the rubrics of a task.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Literal, get_args

import msgspec

from adjudge.config import suggest_name, unknown_key
from adjudge.errors import ConfigError
from adjudge.text import has_surrogates

MAX_TEXT = 4_000
"""Characters that a criterion may have."""

MAX_POINTS = 1e6
MIN_POINTS = 1e-6
"""Bounds on the size of points; inside them no formula over- or underflows."""

Mark = bool | float | None
"""What a judge said of a criterion: met or not (a share in [0, 1] on the ``bounded`` scale), or
``None``: not applicable. A criterion that nobody answered has no mark at all."""

CriterionScale = Literal["binary", "bounded"]

_ID = re.compile(r"[\w.-]{1,64}")


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
        raise ConfigError(
            f"category: is unknown{suggest_known_name(name, cls)} (allowed: {', '.join(cls)})"
        )


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
    scale: CriterionScale = "binary"
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
            raise ConfigError(
                "veto: needs points. Give positive points to a demand, negative ones to a fault."
            )
        if self.veto and self.scale == "bounded":
            raise ConfigError("veto: is possible only for yes or no. Set scale to binary.")

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


class Example(msgspec.Struct, frozen=True):
    """What the rubric says of one piece of work: its ``score``, and why.

    Raises :class:`ConfigError`.
    """

    text: str
    score: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        check_text(self.text, "text")
        check_text(self.reason, "reason")
        if not self.text.strip():
            raise ConfigError("text: must be a piece of work, or what it does")
        if self.score is not None:
            msgspec.structs.force_setattr(self, "score", require_finite(self.score, "score"))


def describe_type(value: object) -> str:
    """What a value is, in words that users of JSON and TOML know."""
    names = {"NoneType": "nothing", "dict": "a table", "str": "a text", "bool": "true or false"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")


def require_finite(value: object, what: str) -> float:
    """``value`` as a finite float; raises :class:`ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{what}: must be a number (found {describe_type(value)})")
    if not -sys.float_info.max <= value <= sys.float_info.max:
        raise ConfigError(f"{what}: must be finite")
    return float(value)


def _checked_points(given: object) -> float:
    points = require_finite(given, "points")
    if points != 0 and not MIN_POINTS <= abs(points) <= MAX_POINTS:
        raise ConfigError("points: must be 0 or between 1e-6 and 1e6 in size")
    return points


def suggest_known_name(name: object, allowed: Iterable[str]) -> str:
    """A hint at the name that was probably meant, or nothing; ``name`` may be anything."""
    return suggest_name(name[:40], map(str, allowed)) if isinstance(name, str) else ""


def check_text(text: object, what: str, limit: int = MAX_TEXT) -> None:
    """Raise :class:`ConfigError` for no text, too long a one, or one that is no UTF-8."""
    if not isinstance(text, str):
        raise ConfigError(
            f"{what}: must be a text (found {describe_type(text)}). Put it in quotes."
        )
    if len(text) > limit:
        raise ConfigError(
            f"{what}: is too long (found {len(text):,} characters; allowed: up to {limit:,})"
        )
    if has_surrogates(text):
        raise ConfigError(f"{what}: has half of a surrogate pair, which is not a character")


MAX_CRITERIA = 200
"""Criteria that a rubric may have."""

Scheme = Literal["auto", "points", "weights", "categories"]
SCHEMES = get_args(Scheme)


class Rubric(msgspec.Struct, frozen=True):
    """Criteria and how their marks become a score; :func:`adjudge.rubrics.score` applies it.

    ``criteria``: at most 200, :class:`Criterion` or plain sentences. ``scheme``:

    * ``points``: points of what is met over all positive points (HealthBench);
    * ``weights``: Σ w·met / Σ w, none negative (Rubrics as Rewards, equation 1);
    * ``categories``: the same with each category's weight, whatever the points say; a criterion
      with negative points is then credited when it is *not* met;
    * ``auto``: ``points`` where any are negative, else ``weights``.

    ``clip``: a negative score becomes 0. ``veto_score``: a failed veto caps the score there; a
    score that is lower stays. ``examples``: good and bad work, shown to the judge with the
    criteria.

    Raises :class:`ConfigError` for duplicate ids, and for criteria that the scheme cannot use.

    >>> rubric = Rubric(("Names a dose", "Says when to call a doctor"))
    >>> rubric.scheme, [criterion.id for criterion in rubric.criteria]
    ('weights', ['1', '2'])
    """

    criteria: tuple[Criterion, ...]
    id: str = ""
    version: str = ""
    description: str = ""
    scheme: Scheme = "auto"
    clip: bool = False
    veto_score: float = 0.0
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        criteria = _numbered(self.criteria)
        msgspec.structs.force_setattr(self, "examples", _examples(self.examples))
        msgspec.structs.force_setattr(self, "criteria", criteria)
        if self.scheme not in SCHEMES:
            hint = suggest_known_name(self.scheme, SCHEMES)
            raise ConfigError(f"scheme: is unknown{hint} (allowed: {', '.join(SCHEMES)})")
        if self.scheme == "auto":
            scheme = "points" if any(c.is_fault for c in criteria) else "weights"
            msgspec.structs.force_setattr(self, "scheme", scheme)
        cap = require_finite(self.veto_score, "veto_score")
        msgspec.structs.force_setattr(self, "veto_score", cap)
        _check_scheme(self)


def rubric_digest(rubric: msgspec.Struct) -> str:
    """16 hexadecimal digits that change with the rubric's content: for provenance and journals."""
    said: dict[str, Any] = msgspec.to_builtins(rubric)
    if not said.get("examples"):  # what no judge is shown
        said.pop("examples", None)
    return sha256(msgspec.json.encode(said, order="sorted")).hexdigest()[:16]


_MAX_EXAMPLES = 50
_EXAMPLE_TEXTS = ("text", "response", "trajectory")


def _examples(given: Any) -> tuple[Example, ...]:
    """Examples: each an :class:`Example`, a text, or a table of a text, a score and a reason."""
    if not isinstance(given, list | tuple):
        raise ConfigError(f"examples: must be a list (found {describe_type(given)})")
    if len(given) > _MAX_EXAMPLES:
        raise ConfigError(
            f"examples: are too many (found {len(given):,}; allowed: up to {_MAX_EXAMPLES})"
        )
    return tuple(_example(one, f"examples.{place}") for place, one in enumerate(given, start=1))


def _example(given: Any, where: str) -> Example:
    if isinstance(given, Example):
        return given
    found: Any = {"text": given} if isinstance(given, str) else given
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where}: must be a text or a table (found {describe_type(given)})")
    allowed = (*_EXAMPLE_TEXTS, "score", "reason")
    for key in found:
        if key not in allowed:
            raise ConfigError(f"{where}.{str(key)[:40]}: {unknown_key(str(key)[:40], allowed)}")
    texts = [key for key in _EXAMPLE_TEXTS if found.get(key) is not None]
    if len(texts) != 1:
        listed = " and ".join(texts) or "none"
        raise ConfigError(f"{where}: needs one of {', '.join(_EXAMPLE_TEXTS)} (found: {listed})")
    try:
        return Example(found[texts[0]], found.get("score"), found.get("reason") or "")
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def _numbered(given: Any) -> tuple[Criterion, ...]:
    """The criteria, those without an id called by their place."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError("criteria: must be a list of criteria")
    criteria = [_criterion(place, one) for place, one in enumerate(given, start=1)]
    if not criteria:
        raise ConfigError("criteria: is empty. Give at least one criterion.")
    if len(criteria) > MAX_CRITERIA:
        raise ConfigError(
            f"criteria: are too many (found {len(criteria):,}; allowed: up to {MAX_CRITERIA})"
        )
    counts = Counter(criterion.id for criterion in criteria)
    if repeated := [one for one, count in counts.items() if count > 1]:
        raise ConfigError(
            f"criteria: {len(repeated)} ids are used more than once (the first: {repeated[0]!r}). "
            "Give each criterion its own id, or leave the id out to use its place, from 1."
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
                f"{where}: is negative, which scheme 'weights' does not allow. Use scheme 'points'."
            )
        if rubric.scheme == "categories" and criterion.category is None:
            raise ConfigError(
                f"{where}: has no category, which scheme 'categories' needs. Add one."
            )


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
    score lies between the lowest and highest number there, in [0, 1] without a guide. ``examples``:
    good and bad work, with scores on that scale. Raises :class:`ConfigError`.

    >>> GlobalRubric("a@v1", criteria=["Explores"], scoring_guide={"0-4": "poor"}).score_range
    (0.0, 4.0)
    """

    id: str = ""
    description: str = ""
    criteria: tuple[str, ...] = ()
    scoring_guide: dict[str, str] = {}
    version: str = ""
    examples: tuple[Example, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "criteria", _aspects(self.criteria))
        msgspec.structs.force_setattr(self, "examples", _examples(self.examples))
        _check_guide(self.scoring_guide)
        for name in ("id", "description", "version"):
            check_text(getattr(self, name), name)
        low, high = self.score_range
        if low >= high:
            raise ConfigError(
                "scoring_guide: all ranges are the same number. Give at least two numbers."
            )
        for place, one in enumerate(self.examples, start=1):
            if one.score is not None and not low <= one.score <= high:
                raise ConfigError(
                    f"examples.{place}.score: must be on the scale of the scoring guide (found "
                    f"{one.score:g}; allowed: {low:g} to {high:g})"
                )

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
                raise ConfigError(f"{name}: must be a rubric (found {describe_type(part)})")

    @property
    def for_outcome(self) -> Rubric | GlobalRubric | None:
        """What an episode is judged by, if it is judged."""
        return self.outcome if self.outcome is not None else self.global_rubric


def _check_guide(guide: object) -> None:
    if not isinstance(guide, Mapping):
        raise ConfigError(f"scoring_guide: must be a table (found {describe_type(guide)})")
    if len(guide) > _MAX_BANDS:
        raise ConfigError(
            f"scoring_guide: has too many ranges (found {len(guide):,}; "
            f"allowed: up to {_MAX_BANDS})"
        )


def _aspects(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise ConfigError("criteria: must be a list of texts")
    if not 1 <= len(given) <= MAX_CRITERIA:
        raise ConfigError(f"criteria: must be 1 to {MAX_CRITERIA} texts (found {len(given):,})")
    for place, text in enumerate(given, start=1):
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(
                f"criteria: the one in place {place} must be a text. Leave out points and weights: "
                "a scoring guide gives one score to all criteria."
            )
        check_text(text, f"criteria: the one in place {place}")
    return tuple(given)
