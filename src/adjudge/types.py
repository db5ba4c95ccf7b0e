"""What graders return, and what reward functions take and return.

The nouns of graders are frozen msgspec structs: picklable, comparable, and JSON to msgspec.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

from adjudge.errors import Cause, ErrorKind, Fields, Metadata, is_final, is_passing, is_suspect
from adjudge.stats import rank_rewards

_log = logging.getLogger("adjudge")

Message = Fields
"""One chat message: ``role``, ``content`` (text, content parts or null), ``tool_calls``, …"""

ScoreRange = tuple[float | None, float | None]
"""Lowest and highest possible score, both included; ``None`` is an open end."""

Reduce = Literal["mean", "median", "vote"]
"""How the answers of several judges, or of several draws, become one."""


class GraderMode(StrEnum):
    """``POINTWISE`` graders see one sample; ``LISTWISE`` ones see all samples of a group.

    >>> GraderMode("listwise") is GraderMode.LISTWISE
    True
    """

    POINTWISE = "pointwise"
    LISTWISE = "listwise"


class Role(StrEnum):
    """How a score enters the reward.

    ``SCORE`` is averaged; ``PENALTY`` (≤ 0) is added, never averaged or normalised;
    ``GATE`` (0 or 1) multiplies or vetoes.

    >>> Role("gate") is Role.GATE, [str(role) for role in Role]
    (True, ['score', 'penalty', 'gate'])
    """

    SCORE = "score"
    PENALTY = "penalty"
    GATE = "gate"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and money that a judge call consumed; ``cost_usd`` is ``None`` when unpriced.

    >>> (Usage(input_tokens=10, cost_usd=0.01) + Usage(input_tokens=5)).input_tokens
    15
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None

    def __add__(self, other: Usage) -> Usage:
        """Both together; a cost where either has one."""
        costs = [one.cost_usd for one in (self, other) if one.cost_usd is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cost_usd=sum(costs) if costs else None,
        )


_UNPAID_SOURCES = ("shared", "cache", "cassette")


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a result came from; absent facts are ``None``.

    ``source`` is ``live``, ``shared`` (the live reply to an equal call), ``cache`` or ``cassette``;
    ``model`` is the judge's name as the server reported it; ``attempts`` counts every send, retries
    and hedges included; ``hedged``: the second copy of a slow call was faster.

    >>> used = Usage(input_tokens=10)
    >>> [Provenance(source=source, usage=used).paid == used for source in ("live", "cache")]
    [True, False]
    """

    source: str | None = None
    model: str | None = None
    prompt_hash: str | None = None
    usage: Usage | None = None
    latency_s: float | None = None
    attempts: int | None = None
    hedged: bool = False

    @property
    def paid(self) -> Usage | None:
        """What this answer itself consumed: nothing where its reply was kept or another's."""
        return None if self.source in _UNPAID_SOURCES else self.usage


class GraderScore(msgspec.Struct, frozen=True, tag_field="type", tag="score", omit_defaults=True):
    """A grader's answer: ``score`` is the raw number on the grader's own scale.

    Numbers that are not finite and booleans are refused with ``ValueError``/``TypeError``: a
    score is a measurement. ``score_range`` and ``role`` are stamped by the runner from the grader.

    >>> found = GraderScore("clarity", 4, "easy to follow", score_range=(1, 5))
    >>> found.score, found.normalized
    (4.0, 0.75)
    """

    name: str
    score: float
    reason: str = ""
    metadata: Metadata = {}
    score_range: ScoreRange | None = None
    role: Role = Role.SCORE
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        score = self.score
        if type(score) is not float:
            if isinstance(score, bool | str) or not hasattr(score, "__float__"):
                raise TypeError(f"score of {self.name!r} must be a number, got {score!r}")
            score = float(score)
            msgspec.structs.force_setattr(self, "score", score)
        if not math.isfinite(score):
            raise ValueError(f"score of {self.name!r} must be finite, got {score!r}")

    @property
    def normalized(self) -> float | None:
        """``(score − lo) / (hi − lo)`` in [0, 1]; ``None`` without a finite range."""
        bounds = finite_range(self.score_range)
        return None if bounds is None else (self.score - bounds[0]) / (bounds[1] - bounds[0])

    @property
    def evaluable(self) -> bool:
        """False when there was nothing to judge and ``score`` is the grader's stated default."""
        return bool(self.metadata.get("evaluable", True))

    @property
    def cause(self) -> Cause | None:
        """Whose doing it is that nothing was judged; ``None`` for an ordinary score.

        ``candidate``: the score is the grader's minimum, a verdict. ``not_applicable``: it is the
        grader's stated default, and :attr:`evaluable` is false.
        """
        if not self.metadata:
            return None
        if not self.evaluable:
            return Cause.NOT_APPLICABLE
        return Cause.CANDIDATE if self.metadata.get("cause") == Cause.CANDIDATE else None

    @property
    def trusted(self) -> bool:
        """False when what was judged stood where it could have faked the score."""
        return bool(self.metadata.get("trusted", True))


class GraderRank(msgspec.Struct, frozen=True, tag_field="type", tag="rank", omit_defaults=True):
    """A listwise answer: ``rank[i]`` is the place of sample *i*, 1 is best; ties share a number.

    A sample that alone made the judge fail has the rank ``None``, and ``failure`` says why; the
    others are ranked among themselves.

    >>> GraderRank("judge", [1, 3, 2]).as_scores()
    [1.0, 0.0, 0.5]
    """

    name: str
    rank: Sequence[float | None]
    reason: str = ""
    metadata: Metadata = {}
    role: Role = Role.SCORE
    provenance: Provenance | None = None
    failure: GraderError | None = None

    def __post_init__(self) -> None:
        places: Sequence[object] = self.rank
        for place in places:
            if isinstance(place, bool) or not isinstance(place, int | float):
                if place is not None or self.failure is None:
                    raise TypeError(f"ranks of {self.name!r} must be numbers, got {place!r}")
            elif not math.isfinite(place):
                raise ValueError(f"ranks of {self.name!r} must be finite, got {place!r}")

    def as_scores(self) -> list[float | None] | None:
        """Rank *r* of *n* as reward ``(n − r)/(n − 1)``, ties at mid-rank; ``None`` for n < 2.

        A sample without a rank has no reward, and does not count in n.
        """
        places = [place for place in self.rank if place is not None]
        if len(places) < 2:
            return None
        scores = iter(rank_rewards(places))
        return [None if place is None else next(scores) for place in self.rank]


_score_was_read = Event()
"""Set when this process first read ``score`` of a :class:`GraderError`."""


class GraderError(msgspec.Struct, frozen=True, tag_field="type", tag="error", omit_defaults=True):
    """No answer: ``kind`` says why, ``error`` says it in words. There is no ``score``.

    >>> error = GraderError("judge", "timeout", "no reply within 30 s")
    >>> error.kind, hasattr(error, "score")
    (<ErrorKind.TIMEOUT: 'timeout'>, False)
    """

    name: str
    kind: ErrorKind
    error: str
    metadata: Metadata = {}
    role: Role = Role.SCORE
    provenance: Provenance | None = None

    @property
    def passing(self) -> bool:
        """Whether it may pass by itself; see :func:`~errors.is_passing`."""
        return is_passing(self.kind, self.metadata)

    @property
    def final(self) -> bool:
        """Whether every further call would fail in the same way; see :func:`~errors.is_final`."""
        return is_final(self.kind, self.metadata)

    @property
    def cause(self) -> Cause:
        """Who caused it: never the candidate, because a fault of the candidate is a score."""
        nothing = self.kind is ErrorKind.NOT_APPLICABLE
        return Cause.NOT_APPLICABLE if nothing else Cause.JUDGE

    @property
    def suspect(self) -> bool:
        """Whether the candidate may have brought it about; see :func:`~errors.is_suspect`."""
        return is_suspect(self.kind, self.metadata)

    def __post_init__(self) -> None:
        if type(self.kind) is not ErrorKind:
            msgspec.structs.force_setattr(self, "kind", ErrorKind(self.kind))

    if not TYPE_CHECKING:  # to a type checker an error has no other attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raise ``AttributeError``; log the first time that a process asks for ``score``."""
            if name == "score" and not _score_was_read.is_set():
                _score_was_read.set()
                _log.warning(
                    "grader %s: .score of a GraderError was read (%s): a failure has no score. "
                    "Where your code takes a number instead, take None: the reward is missing. "
                    "This is logged once.", self.name, self.kind)  # fmt: skip
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )


GraderResult = GraderScore | GraderRank | GraderError


def finite_range(score_range: ScoreRange | None) -> tuple[float, float] | None:
    """Both ends of a range that scores can be normalised by, or ``None``.

    An infinite end is an open one, as ``None`` is.
    """
    low, high = score_range or (None, None)
    if low is None or high is None or not low < high or math.isinf(high - low):
        return None
    return low, high


def finite_number(value: object) -> float | None:
    """``value`` as a float where it is a finite number of any library; else ``None``."""
    if value.__class__ is float:
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str) or not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # an array of several, a huge integer
        return None
    return number if math.isfinite(number) else None


DATASET_COLUMNS = "dataset_columns"
"""Where a recorded row has the dataset's columns that have a name of the row's own."""


class RecordedColumns(dict[str, Any]):
    """Such columns, read back from a recording: no dataset's column of that name is one."""


class Sample(msgspec.Struct):
    """One rollout to be scored, from whatever door it came; :mod:`adjudge.intake` makes it.

    ``original_index`` is its place in the batch or among the rows of files, ``group_index`` its
    place in the group. ``response`` is what the policy said last, ``prompt`` what the user asked
    before the policy spoke, ``messages`` the conversation where there is one, of which the first
    ``opening_turns`` stand before the policy (``None``: not known). ``extra`` has all other fields
    that graders may ask for (``reference``, ``env_reward``, columns of the dataset). Of a rollout
    that ``is_lost`` nothing is judged, and its reward is missing; ``problem`` says what could not
    be read, if anything. ``group`` names its group where
    the data does; ``where`` is the ``FILE:ROW`` that it was read from, and no field.

    >>> sample = Sample(0, 0, "2 + 2?", "4", extra={"reference": "4"})
    >>> sample.fields()
    {'reference': '4', 'prompt': '2 + 2?', 'response': '4'}
    >>> sample == RewardSample(0, 0, "2 + 2?", "4", None, {"reference": "4"})
    True
    """

    original_index: int = 0
    group_index: int = 0
    prompt: str | None = None
    response: str | None = None
    messages: list[Metadata] | None = None
    extra: Fields = {}
    is_lost: bool = False
    opening_turns: int | None = None
    group: str | None = None
    where: str = ""
    problem: str = ""

    def __post_init__(self) -> None:
        if self.extra is None:  # a trainer's own code may say so
            self.extra = {}

    @property
    def reference(self) -> object:
        """The reference answer, if there is one."""
        return self.extra.get("reference")

    @property
    def env_reward(self) -> float | None:
        """The environment's own reward where it is a finite number, else ``None``."""
        return finite_number(self.extra.get("env_reward"))

    @property
    def step(self) -> int | None:
        """The training step that it is from, where its row has one."""
        step = self.extra.get("step")
        if isinstance(step, str) and step.isascii() and step.isdigit() and len(step) < 10:
            return int(step)  # a table's cell
        if isinstance(step, float) and step.is_integer():
            return int(step)
        return step if type(step) is int else None

    @property
    def ending(self) -> Literal["text", "ended_in_tool_call", "empty"]:
        """How the policy's last turn ended: in words, in a call of a tool, or in nothing."""
        if self.response:
            return "text"
        turns = [one for one in self.messages or () if one.get("role") == "assistant"]
        called = bool(turns and (turns[-1].get("tool_calls") or turns[-1].get("function_call")))
        return "ended_in_tool_call" if called else "empty"

    def fields(self) -> Metadata:
        """The sample as one flat mapping, which graders pick their arguments from.

        ``ending`` is a field where the policy's last turn in a conversation has no words.
        """
        flat = dict(self.extra)
        if self.prompt is not None:
            flat["prompt"] = self.prompt
        if self.response is not None:
            flat["response"] = self.response
        if self.messages is not None:
            flat["messages"] = self.messages
            if self.opening_turns is not None:
                flat["opening_turns"] = self.opening_turns
            if self.response == "":
                flat["ending"] = self.ending
        if self.group is not None:
            flat["group"] = self.group
        if isinstance(apart := self.extra.get(DATASET_COLUMNS), RecordedColumns):
            flat |= apart  # as graders saw them
        return flat


RewardSample = Sample
"""The name that trainers' reward functions know."""


RewardPart = float | GraderError
"""A part of a reward on its way: a number, or the failure that leaves it missing."""


@dataclass(slots=True)
class GradedSample:
    """What the graders said about one sample; the rollout itself is not kept.

    ``sampled``: its group was drawn. ``repeats`` are further draws, which make no reward: graders
    that take a draw were asked again, and of the others the first answer stands there too.
    """

    original_index: int
    group_index: int
    group: str
    env_reward: float | None
    outcome: dict[str, GraderResult]
    events: list[dict[str, GraderResult]] | GraderError
    sampled: bool = True
    repeats: tuple[GradedSample, ...] = ()

    def results(self) -> Iterator[tuple[str, GraderResult]]:
        """Every result with its grader's name, those of events included."""
        if isinstance(self.events, GraderError) or not self.events:
            return iter(self.outcome.items())
        return chain(self.outcome.items(), *(event.items() for event in self.events))

    def list_draws(self, name: str, event: int | None = None) -> list[GraderResult]:
        """Every draw of a grader about the sample, or an event of it; empty if it has but one."""
        every = []
        for one in (self, *self.repeats):
            events = one.events if isinstance(one.events, list) else []
            every.append(one.outcome[name] if event is None else events[event][name])
        return every if any(one is not every[0] for one in every) else []


@dataclass
class RewardResult:
    """One reward, or why it is missing.

    ``score`` is a finite float or ``None``; then ``missing`` says why. ``reward_info`` has the same
    keys for every sample of a run, ``None`` where a part is missing; ``details`` has each grader's
    score and reason or error. ``event_rewards`` is what each event (turn) adds to ``score``, in
    order; ``None`` where the score is missing, or is no sum with a part for each event.
    ``imputed``: the failures for which ``score`` has a grader's minimum (``missing.suspect``).

    >>> why = GraderError("judge", "timeout", "no reply within 30 s")
    >>> result = RewardResult(original_index=0, group_index=0, score=None, missing=why)
    >>> result.missing.kind
    <ErrorKind.TIMEOUT: 'timeout'>
    """

    original_index: int
    group_index: int
    score: float | None
    reward_info: dict[str, float | None] = field(default_factory=dict)
    details: Metadata | None = None
    missing: GraderError | None = None
    event_rewards: list[float] | None = None
    imputed: Sequence[GraderError] = ()

    @property
    def suspect(self) -> bool:
        """Whether the candidate may have brought a failure about: missing, or the minimum."""
        return bool(self.imputed) or (self.missing is not None and self.missing.suspect)


MISSING: object = msgspec.UNSET
"""What :func:`get_path` returns where there is nothing; a stored ``null`` is ``None``."""


def get_path(data: object, path: str) -> Any:
    """The value at ``path`` in nested mappings and lists, or :data:`MISSING`.

    A key that contains dots is found first, so flat columns named ``a.b`` work too.

    >>> get_path({"choices": [{"text": "hi"}]}, "choices.0.text")
    'hi'
    """
    if isinstance(data, Mapping) and path in data:
        return data[path]
    here = data
    for step in path.split("."):
        if isinstance(here, Mapping):
            here = here.get(step, MISSING)
        elif isinstance(here, list | tuple) and step.lstrip("-").isdigit():
            position = int(step)
            here = here[position] if -len(here) <= position < len(here) else MISSING
        else:
            return MISSING
        if here is MISSING:
            return MISSING
    return here
