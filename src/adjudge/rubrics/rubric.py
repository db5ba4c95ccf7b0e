"""Rubrics as data: criteria, the formula that makes one score of their marks, bundles.

A criterion is a sentence that is true of a response or is not, and what that is worth. A rubric
may also be judged by one score with a scoring guide. A bundle holds the rubrics of a task.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from functools import wraps
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
)
from pydantic.dataclasses import dataclass as checked_dataclass

from adjudge.config_tables import explain_problem
from adjudge.errors import ConfigError, Metadata

_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True)
def record(cls: _Class) -> _Class:
    """A frozen dataclass whose fields pydantic checks; :class:`ConfigError` names a wrong one."""
    config = ConfigDict(strict=True, allow_inf_nan=False)
    made: Any = checked_dataclass(frozen=True, config=config)(cls)
    create = made.__init__
    names = [one.name for one in dataclasses.fields(made)]

    @wraps(create)
    def init(self: object, *values: object, **named: object) -> None:
        try:
            create(self, *values, **named)
        except ValidationError as error:
            raise ConfigError(_explain(error, names)) from None

    made.__init__ = init
    return made  # type: ignore[no-any-return]


def _explain(error: ValidationError, names: list[str]) -> str:
    """The first problem; places in lists count from 1."""
    problem = error.errors()[0]
    first, *rest = problem["loc"] or ("",)
    places = [first if isinstance(first, str) else names[first]]
    places += [str(one + 1) if isinstance(one, int) else one for one in rest if "[" not in str(one)]
    key, cause = ".".join(filter(None, places)), problem.get("ctx", {}).get("error")
    if isinstance(cause, ValueError):
        return f"{key}{'.' if isinstance(cause, ConfigError) else ': '}{cause}".lstrip(":. ")
    return explain_problem(BaseModel, {**problem, "loc": (key,)}, None)


Text = Annotated[str, Field(max_length=4_000)]
"""What a judge is shown at most of one thing."""


def _check_words(text: str) -> str:
    if not text.strip():
        raise ValueError("must be a sentence that can be true of a response")
    return text


_Sentence = Annotated[Text, AfterValidator(_check_words)]


def _check_size(points: float) -> float:
    if points != 0 and abs(points) < 1e-6:
        raise ValueError("must be 0, or 1e-6 to 1e6 in size")
    return points


# Inside these bounds no formula over- or underflows.
_Points = Annotated[float, Field(ge=-1e6, le=1e6), AfterValidator(_check_size)]

Mark = bool | float | None
"""What a judge said of a criterion: met or not (a share in [0, 1] on the ``bounded`` scale), or
``None``: not applicable. A criterion that nobody answered has no mark at all."""

CriterionScale = Literal["binary", "bounded"]


class Category(StrEnum):
    """How much a criterion matters, in words (Rubrics as Rewards, arXiv 2507.17746)."""

    ESSENTIAL = "Essential"
    IMPORTANT = "Important"
    OPTIONAL = "Optional"
    PITFALL = "Pitfall"


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


def _spell(name: object) -> object:
    return name.strip().capitalize() if isinstance(name, str) else name


_Category = Annotated[Category, Field(strict=False), BeforeValidator(_spell)]


def _read_tags(given: object) -> object:
    """A table's values as text, or ``["axis:accuracy", …]``; a repeated key joins its values."""
    if isinstance(given, Mapping):
        try:
            return {
                key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
                for key, value in given.items()
                if value is not None
            }
        except (TypeError, ValueError, RecursionError):
            raise ValueError("must have values that JSON can hold") from None
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        return given
    tags: dict[str, str] = {}
    for key, _, value in (one.partition(":") for one in given):
        tags[key] = f"{tags[key]}, {value}" if key in tags else value
    return tags


_TagText = Annotated[str, Field(max_length=500)]
_Tags = Annotated[dict[_TagText, _TagText], BeforeValidator(_read_tags), Field(max_length=50)]


@record
class Criterion:
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

    text: _Sentence
    id: Annotated[str, Field(pattern=r"^[\w.-]{0,64}$")] = ""
    points: _Points | None = None
    category: _Category | None = None
    veto: bool = False
    na_allowed: bool = False
    scale: CriterionScale = "binary"
    tags: _Tags = field(default_factory=dict)

    def __post_init__(self) -> None:
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


@record
class Example:
    """What the rubric says of one piece of work: its ``score``, and why.

    Raises :class:`ConfigError`.
    """

    text: _Sentence
    score: float | None = None
    reason: Text = ""


MAX_CRITERIA = 200
"""Criteria that a rubric may have."""

Scheme = Literal["auto", "points", "weights", "categories"]


def _as_criterion(given: object) -> object:
    return Criterion(given) if isinstance(given, str) else given


def _as_example(given: object) -> object:
    if isinstance(given, Mapping):
        return Example(**given)
    return Example(given) if isinstance(given, str) else given


_Criterion = Annotated[InstanceOf[Criterion], BeforeValidator(_as_criterion)]
_Example = Annotated[InstanceOf[Example], BeforeValidator(_as_example)]
_Examples = Annotated[tuple[_Example, ...], Field(max_length=50, strict=False)]
_Count = Field(min_length=1, max_length=MAX_CRITERIA, strict=False, validate_default=True)


@record
class Rubric:
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

    criteria: Annotated[tuple[_Criterion, ...], _Count]
    id: Text = ""
    version: Text = ""
    description: Text = ""
    scheme: Scheme = "auto"
    clip: bool = False
    veto_score: float = 0.0
    examples: _Examples = ()

    def __post_init__(self) -> None:
        criteria = tuple(
            criterion if criterion.id else dataclasses.replace(criterion, id=str(place))
            for place, criterion in enumerate(self.criteria, start=1)
        )
        object.__setattr__(self, "criteria", criteria)
        if self.scheme == "auto":
            scheme = "points" if any(c.is_fault for c in criteria) else "weights"
            object.__setattr__(self, "scheme", scheme)
        [(most_used, count)] = Counter(criterion.id for criterion in criteria).most_common(1)
        if count > 1:
            raise ConfigError(
                f"criteria: the id {most_used!r} is used more than once. Give each criterion its "
                "own id, or leave the id out to use its place, from 1."
            )
        for place, criterion in enumerate(criteria, start=1):
            if self.scheme == "weights" and criterion.is_fault:
                raise ConfigError(
                    f"criteria.{place}.points: is negative, which scheme 'weights' does not allow. "
                    "Use scheme 'points'."
                )
            if self.scheme == "categories" and criterion.category is None:
                raise ConfigError(
                    f"criteria.{place}.category: is needed by scheme 'categories' "
                    f"(allowed: {', '.join(Category)})"
                )


def rubric_digest(rubric: Rubric | GlobalRubric | RubricBundle) -> str:
    """16 hexadecimal digits that change with the rubric's content: for provenance and journals."""
    said: Metadata = msgspec.to_builtins(rubric)
    if not said.get("examples"):  # what no judge is shown
        said.pop("examples", None)
    return sha256(msgspec.json.encode(said, order="sorted")).hexdigest()[:16]


_NUMBER = r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)"
_RANGE = re.compile(rf" *{_NUMBER} *(?:(?:-|–|—|~|to|至|到) *{_NUMBER} *)?")


class Band(msgspec.Struct, frozen=True, order=True):
    """One line of a scoring guide: scores from ``low`` to ``high`` mean ``text``."""

    low: float
    high: float
    text: str

    @classmethod
    def parse(cls, key: str, text: str) -> Band:
        """From a key such as ``0.9-1.0``, ``-1 to 0`` or ``5``; raises :class:`ConfigError`."""
        found = _RANGE.fullmatch(key)
        low = high = float(found[1]) if found else 0.0
        if found is not None and found[2] is not None:
            high = float(found[2])
        if found is None or low > high:
            raise ConfigError(
                f"scoring_guide.{key[:40]}: must be a range of scores such as 0.9-1.0, the lower "
                "one first"
            )
        return cls(low, high, text)


_Guide = Annotated[dict[str, Text], Field(max_length=50)]


@record
class GlobalRubric:
    """Aspects in plain words, judged together by one score.

    ``scoring_guide``: what ranges of scores mean, such as ``{"0.9-1.0": "Excellent: …"}``. The
    score lies between the lowest and highest number there, in [0, 1] without a guide. ``examples``:
    good and bad work, with scores on that scale. Raises :class:`ConfigError`.

    >>> GlobalRubric("a@v1", criteria=["Explores"], scoring_guide={"0-4": "poor"}).score_range
    (0.0, 4.0)
    """

    id: Text = ""
    description: Text = ""
    criteria: Annotated[tuple[_Sentence, ...], _Count] = ()
    scoring_guide: _Guide = field(default_factory=dict)
    version: Text = ""
    examples: _Examples = ()

    def __post_init__(self) -> None:
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


@record
class RubricBundle:
    """The rubrics of a task: ``outcome`` judges an episode, ``events`` each of its events.

    ``global_rubric`` is the outcome's where ``outcome`` is absent. Raises :class:`ConfigError`
    when there is none at all.
    """

    global_rubric: InstanceOf[GlobalRubric] | None = None
    outcome: InstanceOf[Rubric] | InstanceOf[GlobalRubric] | None = None
    events: InstanceOf[Rubric] | InstanceOf[GlobalRubric] | None = None

    def __post_init__(self) -> None:
        if self.global_rubric is None and self.outcome is None and self.events is None:
            raise ConfigError("a bundle needs global_rubric, outcome or events")

    @property
    def for_outcome(self) -> Rubric | GlobalRubric | None:
        """What an episode is judged by, if it is judged."""
        return self.outcome if self.outcome is not None else self.global_rubric
