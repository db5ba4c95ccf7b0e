"""The classes to derive a grader from, and what all graders share.

A grader is one question asked of a sample. Here are its base classes and what it may answer; how
text graders read a sample (all of the response or the text after the thinking, its references);
limits of the parameters that a reward spec sets; any function as a grader; and judge results read
from a file, for demonstrations, tests and re-runs of aggregation.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from types import coroutine
from typing import (
    Any,
    ClassVar,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from adjudge.engine.loop import do_job
from adjudge.errors import Cause, ConfigError, ErrorKind, Fields, GradingFailure, InvalidInput
from adjudge.installation import install_command
from adjudge.text import compose_letters, final_text, shorten_text, strip_end_tokens
from adjudge.types import GraderError, GraderMode, GraderRank, GraderScore, Role, ScoreRange

View = Literal["final", "full"]
"""``final``: without thinking and end tokens. ``full``: the response as the policy wrote it."""


def view_text(response: str, view: View) -> str | None:
    """``response`` under ``view``; ``None`` as in :func:`final_text`.

    A token that ends a turn (``<|im_end|>``) behind the final text is no part of it.
    """
    if view == "full":
        return response
    text = final_text(response)
    return None if text is None else strip_end_tokens(text)


def check_parameters(grader: object) -> None:
    """The flags, ``Literal`` words and values with a ``Field`` of a dataclass are such."""
    from adjudge.config_tables import check_setting  # noqa: PLC0415  (who builds no grader)

    declaring = next(one for one in type(grader).__mro__ if "__dataclass_fields__" in vars(one))
    for name, kind in _list_checked(declaring):
        check_setting(kind, getattr(grader, name), name)


@cache
def _list_checked(declaring: Any) -> list[tuple[str, object]]:
    """The checked parameters of a dataclass, with their types."""
    from pydantic.fields import FieldInfo  # noqa: PLC0415  (who builds no grader)

    kinds = get_type_hints(declaring, include_extras=True)
    return [
        (one.name, kinds[one.name])
        for one in fields(declaring)
        if any(
            kind is bool
            or get_origin(kind) is Literal
            or any(isinstance(more, FieldInfo) for more in getattr(kind, "__metadata__", ()))
            for kind in (kinds[one.name], *get_args(kinds[one.name]))
        )
    ]


@cache
def require_package(owner: str, module: str, extra: str = "full") -> None:
    """``module`` of an extra is installed; once found, it is not looked for again."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{owner} needs the package {module}. Run: {install_command(extra)}")


NO_FINAL_TEXT = "no final text: <think> was never closed"


def require_text(response: object) -> str:
    """``response`` as text; anything but a string is ``GradingFailure(invalid_input)``."""
    if not isinstance(response, str):
        raise InvalidInput(f"response must be text, got {type(response).__name__}")
    return response


def final_response(response: object) -> str | None:
    """The text of ``response`` after its thinking; ``None`` for a ``<think>`` never closed."""
    return view_text(require_text(response), "final")


def read_references(reference: object) -> list[str]:
    """The reference texts of a sample: one text, or a list of texts; none may be empty.

    Letters are composed, as :func:`compose_letters` does. Anything else is
    ``GradingFailure(invalid_input)``.
    """
    found = [reference] if isinstance(reference, str) else reference
    if isinstance(found, list) and found and all(isinstance(r, str) and r.strip() for r in found):
        return list(map(compose_letters, found))
    raise InvalidInput(
        "reference must be text or a list of texts, none of them empty, "
        f"got {type(reference).__name__} {shorten_text(reference, 80)!r}",
    )


def read_count(value: object) -> int | None:
    """A whole number from 0, a float in tables with gaps; ``None`` for any other value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and value >= 0 else None


def is_nan(value: object) -> bool:
    """Whether a value is NaN, with which tables fill the gaps of a column."""
    return isinstance(value, float) and math.isnan(value)


_log = logging.getLogger("adjudge")

_TELLING_HOLDS = 2  # the first call may import modules
_LONGEST_HOLD_S = 0.05
_WATCHED_CALLS = 1000
"""A function that waits does so from the beginning; later calls cost nothing more."""

AnyFunction = Callable[..., Any]
"""Each grader names the fields that it takes, so nothing fixes a signature."""

GraderAnswer = GraderScore | GraderRank | GraderError | float | bool
"""What a grader may return: a result, or a bare number that the runner wraps."""


class BaseGrader:
    """One question asked of a sample (or of a group), answered by :meth:`aevaluate`.

    Derive, set ``score_range`` (lowest, highest; ``None`` is an open end) and ``role``, and write
    ``async def aevaluate(self, ...)`` naming the fields it needs: the runner passes exactly the
    fields that the signature names, so ``messages``, ``prompt``, ``response``, ``reference`` and
    any extra column are there by name; a parameter without default that a sample lacks is
    ``GraderError(invalid_input)``. ``**fields`` receives everything.

    A grader holds configuration and no per-call state: one object serves many samples at once.
    Return a :class:`~adjudge.GraderScore` or a number; raise
    :class:`~adjudge.GradingFailure` for "cannot say". Any other exception becomes
    ``GraderError(bug)`` for that sample alone.

    >>> import asyncio
    >>> class Politeness(BaseGrader):
    ...     score_range = (0.0, 1.0)
    ...
    ...     async def aevaluate(self, response):
    ...         return float("please" in response)
    >>> asyncio.run(Politeness("polite").aevaluate("One moment, please."))
    1.0
    """

    score_range: ScoreRange | None = None
    role: Role = Role.SCORE
    is_rule: bool = False
    """Computed without a judge, so it may stand in for one (``[missing] fallback``)."""
    fingerprint: str = ""
    """A digest of what answers depend on beside the parameters: files that were read."""

    def __init__(
        self, name: str = "", mode: GraderMode = GraderMode.POINTWISE, description: str = ""
    ) -> None:
        self.name = name or type(self).__name__
        self.mode = GraderMode(mode)
        self.description = description

    aevaluate: AnyFunction

    def _candidate_fault(self, reason: str, **metadata: object) -> GraderScore:
        """The grader's minimum, for what the candidate alone brought about: a verdict.

        An answer that is empty or unfinished, or that alone exceeds a budget of processor time,
        memory or size. ``metadata["cause"]`` says ``candidate``. Raises
        ``GradingFailure(invalid_input)`` where the scale has no lower end.
        """
        low = 0.0 if self.role is Role.GATE else (self.score_range or (None, None))[0]
        if low is None:
            message = f"{reason}, and {self.name} has no lowest score; set score_range"
            raise InvalidInput(message, {"suspect": True})
        metadata["cause"] = str(Cause.CANDIDATE)
        return GraderScore(self.name, low, reason, metadata, self.score_range, self.role)

    def check_machine(self) -> None:
        """Raise :class:`~adjudge.errors.ConfigError` for what this machine lacks, with the remedy.

        Called before the first sample: a sandbox, a package or a device that is not here would
        leave the reward of every sample missing that needs it. Nothing is needed by default.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


class RuleGrader(BaseGrader):
    """A grader that needs no judge: derive and write a pure synchronous ``evaluate``.

    One that must wait (for a killable process, a sandbox) writes ``aevaluate`` instead. The shipped
    ones are registered under ``type_name`` (the ``type`` of a reward spec).

    >>> class Brevity(RuleGrader):
    ...     score_range = (0.0, 1.0)
    ...
    ...     def evaluate(self, response):
    ...         return len(response) <= 10
    >>> Brevity("brief").evaluate("yes")
    True
    """

    type_name: ClassVar[str] = ""
    is_rule = True

    def __init__(self, name: str = "", description: str = "") -> None:
        super().__init__(
            name or self.type_name,
            GraderMode.POINTWISE,
            description or docstring_summary(type(self)),
        )

    evaluate: AnyFunction

    async def _awaited(self, *arguments: object, **fields: object) -> GraderAnswer:
        """:meth:`evaluate`, for callers that await; fields by place or by name."""
        answer: GraderAnswer = self.evaluate(*arguments, **fields)
        return answer

    aevaluate: AnyFunction = _awaited

    def _score(self, score: float, reason: str = "", **metadata: object) -> GraderScore:
        return GraderScore(self.name, score, reason, metadata, self.score_range, self.role)

    def _not_applicable(self, score: float, reason: str, **metadata: object) -> GraderScore:
        """The grader's stated value where there was nothing to judge; reports count it apart."""
        return self._score(score, reason, evaluable=False, **metadata)


@dataclass(eq=False, repr=False)
class ParametricRule(RuleGrader):
    """A rule with the fields of a dataclass as parameters, checked by their types.

    Checked are flags, the words of a ``Literal`` and ``Annotated`` values; what else must hold is
    said in ``__post_init__``.
    """

    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__init__(self.name)
        check_parameters(self)


class GraderTraits(msgspec.Struct, frozen=True):
    """What others go by of a grader. One of another package may lack any of it."""

    role: Role = Role.SCORE
    score_range: Any = None  # of any library's numbers
    mode: GraderMode = GraderMode.POINTWISE
    is_rule: bool = False
    asks_again: bool = False
    fingerprint: str = ""
    members: Any = ()
    model: Any = None
    check_fields: Any = None
    check_machine: Any = None

    @classmethod
    def of(cls, grader: object) -> GraderTraits:
        """The traits of any object; raises :class:`ConfigError` for one of another type."""
        try:
            return msgspec.convert(grader, cls, from_attributes=True)
        except msgspec.ValidationError as error:
            raise ConfigError(f"grader {grader!r}: {error}") from None


def is_listwise(grader: object) -> bool:
    """Whether ``grader`` (of this package or another) sees whole groups."""
    return GraderTraits.of(grader).mode is GraderMode.LISTWISE


def docstring_summary(cls: type) -> str:
    """The first line of a class's docstring: what a shipped grader is described by."""
    return (cls.__doc__ or "").strip().partition("\n")[0]


class FunctionGrader(BaseGrader):
    """A grader made of a function, synchronous or asynchronous.

    The function's parameters name the sample's fields it needs; it returns a number or a
    :class:`~adjudge.GraderScore` (a :class:`~adjudge.GraderRank` when listwise) and may raise
    :class:`~adjudge.GradingFailure`. A synchronous function runs on the event loop, so it should
    be quick; ``blocking=True`` runs one that waits (a request, a file) in a thread instead.

    >>> from adjudge.runner import GradingRunner
    >>> def brief(response: str) -> float:
    ...     return 1.0 if len(response) < 10 else 0.0
    >>> runner = GradingRunner({"brief": FunctionGrader(brief, score_range=(0, 1))})
    >>> [r.score for r in runner.run([{"response": "yes"}, {"response": "y" * 10}])["brief"]]
    [1.0, 0.0]
    """

    def __init__(
        self,
        func: AnyFunction,
        name: str = "",
        mode: GraderMode = GraderMode.POINTWISE,
        description: str = "",
        score_range: ScoreRange | None = None,
        role: Role = Role.SCORE,
        blocking: bool = False,
    ) -> None:
        fallback = getattr(func, "__name__", type(func).__name__)
        super().__init__(name or fallback, mode, description or (inspect.getdoc(func) or ""))
        self.func = func
        self.score_range = score_range
        self.role = role
        self.blocking = blocking
        self._holds, self._watched_calls = 0, _WATCHED_CALLS

    @property
    def evaluate(self) -> AnyFunction:
        """The function itself: its signature names the fields to pass."""
        return self.func

    async def aevaluate(self, *arguments: object, **fields: object) -> GraderAnswer:
        """Call the function; what it raises goes through."""
        if self.blocking:
            done: Future[Any] = Future()
            await asyncio.to_thread(do_job, done, partial(self.func, *arguments, **fields), ())
            answer = done.result()
        elif self._watched_calls:
            self._watched_calls -= 1
            return await self._watch(self._call(arguments, fields))
        else:
            answer = self.func(*arguments, **fields)
        result: GraderAnswer = await answer if inspect.isawaitable(answer) else answer
        return result

    async def _call(self, arguments: Sequence[object], fields: Fields) -> GraderAnswer:
        answer = self.func(*arguments, **fields)
        result: GraderAnswer = await answer if inspect.isawaitable(answer) else answer
        return result

    @coroutine
    def _watch(self, asked: Awaitable[GraderAnswer]) -> Generator[object, object, GraderAnswer]:
        """Await ``asked``; report once that a step keeps the event loop from its other work."""
        steps: Any = asked.__await__()
        step, given = steps.send, None
        while True:
            started = perf_counter()
            try:
                waits_for = step(given)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]  # what was awaited
            finally:
                self._check_hold(started)
            try:
                step, given = steps.send, (yield waits_for)
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: BLE001  (a cancellation, for the function)
                step, given = steps.throw, error

    def _check_hold(self, started: float) -> None:
        seconds = perf_counter() - started
        self._holds += seconds > _LONGEST_HOLD_S
        if seconds > _LONGEST_HOLD_S and self._holds == _TELLING_HOLDS:
            self._watched_calls = 0
            _log.warning(
                "grader %s: a call held the event loop for %.0f ms, so that nothing else ran. "
                "Where it waits, set blocking = true%s. This is logged once.",
                self.name,
                1000 * seconds,
                " and write a plain def" if inspect.iscoroutinefunction(self.func) else "",
            )


class _RecordedFailure(msgspec.Struct):
    kind: ErrorKind
    message: str = ""


class _RecordedRow(msgspec.Struct):
    id: str | int | float
    score: float | None = None
    reason: str = ""
    error: _RecordedFailure | None = None


class RecordedGrader(RuleGrader):
    """Gives back recorded judge results, failures included.

    Field: ``id``. Each row of the file is ``{"id", "score", "reason"}`` or
    ``{"id", "error": {"kind", "message"}}``. A recorded failure fails again with its kind; a sample
    without a row is ``invalid_input``.

    Args:
        path: A JSONL file, read once.
        score_range: The lowest and the highest score.
    """

    type_name = "recorded"
    is_rule = False

    def __init__(
        self, path: Path, score_range: tuple[float, float] = (0.0, 1.0), name: str = ""
    ) -> None:
        super().__init__(name)
        self.path = Path(path)
        self.score_range = score_range
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise ConfigError(f"path: {path} cannot be read: {error.strerror}") from error
        self.fingerprint = sha256(data).hexdigest()
        self._rows: dict[str, _RecordedRow] = {}
        for number, line in enumerate(data.splitlines(), start=1):
            try:
                row = msgspec.json.decode(line, type=_RecordedRow) if line.strip() else None
            except msgspec.MsgspecError as error:
                raise ConfigError(f"path: {path}:{number}: {error}") from error
            if row and self._rows.setdefault(_normalize_id(row.id), row) is not row:
                raise ConfigError(
                    f"path: {path}:{number}: the id {row.id!r} is on two lines. Keep one."
                )

    def evaluate(self, id: object) -> GraderScore:  # noqa: A002  (the sample's field)
        """The recorded result of the sample with this ``id``."""
        row = self._rows.get(_normalize_id(id))
        if row is None:
            raise InvalidInput(f"no recorded result for id = {id!r}")
        if row.score is not None and row.error is None:
            return self._score(row.score, row.reason)
        error = row.error or _RecordedFailure(ErrorKind.INVALID_INPUT, "neither score nor error")
        raise GradingFailure(error.kind, error.message or f"recorded {error.kind}")


def _normalize_id(value: object) -> str:
    """1, 1.0 and "1" are one id: columns change type between tools."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
