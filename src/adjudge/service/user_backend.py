"""A class of the user's own behind the judge service (``module:Class``).

Its signatures say what its constructor and ``score`` take. What it may not return is an error of
that request. :func:`load_backend` knows a class from a reward spec.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import typing
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import islice
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
)
from pydantic.errors import PydanticSchemaGenerationError

from adjudge.config_tables import explain_problem
from adjudge.engine.loop import SerialThread, find_raised
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.extensions import describe_cause, import_named
from adjudge.judges.base import digest_source
from adjudge.rewards.spec import RewardSpec, is_trained_judge
from adjudge.service.backend import EXPLANATION_LIMIT, Backend, Damping, failure_response
from adjudge.service.spec_backend import SpecBackend
from adjudge.text import shorten_text
from adjudge.wire import JudgeRequest, JudgeResponse

REQUEST_FIELDS = JudgeRequest.__struct_fields__
"""What a ``score`` method may take, by name."""


def extract_fields(request: JudgeRequest) -> dict[str, Any]:
    """A request as the keyword arguments of :data:`REQUEST_FIELDS`.

    ``answer`` is as it was sent; ``metadata`` a dict, ``images`` a list of ``data:`` URIs, both
    perhaps empty.
    """
    return {
        **{name: getattr(request, name) for name in REQUEST_FIELDS},
        "prompt": request.prompt or "",
        "metadata": dict(request.metadata or {}),
        "images": request.images or [],
    }


def find_score_fields(cls: type, where: str) -> tuple[str, ...]:
    """Which of :data:`REQUEST_FIELDS` the method ``score`` of ``cls`` takes.

    Raises :class:`ConfigError` for a parameter that no request can fill.
    """
    bound = isinstance(inspect.getattr_static(cls, "score"), staticmethod | classmethod)
    try:
        signature = inspect.signature(cls.score)  # type: ignore[attr-defined]
        takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        taken = [name for name in REQUEST_FIELDS if takes_all or name in signature.parameters]
        signature.bind(*[cls][bound:], **dict.fromkeys(taken))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: score: no request can call it: {error} (requests pass by name: "
            f"{', '.join(REQUEST_FIELDS)})"
        ) from None
    return tuple(taken)


def read_constructor_arguments(cls: type, given: Mapping[str, str], where: str) -> dict[str, Any]:
    """``given`` texts as the constructor's arguments, read as its annotations or defaults say.

    Raises :class:`ConfigError` for an argument that it does not take or that cannot be read so,
    and for one that it needs and did not get.
    """
    signature: Any = "()"
    try:
        signature = inspect.signature(cls)
        signature.bind(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: arguments: {error} (the class takes {signature}). Give each with --arg "
            "NAME=VALUE."
        ) from None
    init: Any = cls.__init__  # type: ignore[misc]
    hints: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        default = type(parameter.default)
        hints[name] = default if default in (bool, int, float) else str
        with suppress(Exception):  # no annotation, or a name that only a type checker knows
            alone = {name: init.__annotations__[name]}
            function = SimpleNamespace(__annotations__=alone, __wrapped__=init)
            hints[name] = typing.get_type_hints(function)[name]
    return {
        name: _read_argument(hints.get(name, str), text, where, name)
        for name, text in given.items()
    }


def _read_argument(annotation: Any, text: str, where: str, name: str) -> Any:
    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticSchemaGenerationError:
        return text
    except Exception:  # noqa: BLE001  (a class with a configuration of its own takes no other)
        adapter = TypeAdapter(annotation)
    for read in (adapter.validate_python, adapter.validate_json):
        with suppress(ValidationError):
            return read(text)
    wanted = inspect.formatannotation(annotation)
    raise ConfigError(f"{where}: {name}: must be {wanted} (found {text[:80]!r})")


_log = logging.getLogger("adjudge.service")
_CLOSING_S = 5.0
_FLOAT_BITS = 1023  # of the largest numbers


class UserBackend(Backend):
    """Scores with a class that has ``score(prompt, completion, answer, …)`` or ``score_batch``.

    ``score`` gets, by name, what its signature takes of :data:`REQUEST_FIELDS`; ``score_batch``
    gets a list of dicts of them and returns as many answers in order. An answer is a number or a
    mapping (see :func:`read_answer`). Plain methods run in one
    thread of their own, one call at a time, the constructor too; ``async`` ones on the event loop,
    which they must not block. ``score_batch`` is preferred where both are there.

    A failure is raised as :class:`~adjudge.GradingFailure` with its kind; any other exception is
    that request's ``bug``, whose message has its type and place but not its words, which may quote
    the request. For one of ``score_batch`` the service finds the request that causes it. Optional
    methods, plain or ``async``: ``start`` before the first
    request, ``close`` after the last. ``version`` of the object is part of the backend's, beside
    the class's source file and arguments.
    """

    def __init__(
        self,
        target: str,
        arguments: Mapping[str, str] | None = None,
        damping: Damping | None = None,
    ) -> None:
        self._class = _check_class(import_named(target, where="TARGET"), target)
        self._arguments = read_constructor_arguments(self._class, arguments or {}, target)
        self.name = target
        self.one_by_one = not callable(getattr(self._class, "score_batch", None))
        self._score_fields = find_score_fields(self._class, target) if self.one_by_one else ()
        self._thread = SerialThread("adjudge-judge")
        self._object: Any = None
        name = f"{self._class.__module__}:{self._class.__qualname__}"
        self._source = f"{name} {digest_source(self._class)} {sorted((arguments or {}).items())}"
        self.damping = damping
        self.version = self._versioned()

    def _versioned(self) -> str:
        own = getattr(self._object, "version", "")
        damped = "" if self.damping is None else f" {self.damping}"
        return sha256(f"{self._source} {own}{damped}".encode()).hexdigest()[:16]

    async def start(self) -> None:
        """Make the object; raises :class:`ConfigError` with what its constructor raised."""
        try:
            self._object = await self._thread.run(lambda: self._class(**self._arguments))
            await self._call("start")
            self.version = self._versioned()
        except (ConfigError, asyncio.CancelledError):
            raise
        except BaseException as error:
            cause = describe_cause(find_raised(error))
            raise ConfigError(f"{self.name}: the judge cannot be started: {cause}") from error

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """One response per request, in order; see :class:`~adjudge.service.backend.Backend`."""
        fields = [extract_fields(request) for request in requests]
        if self.one_by_one:
            said = [
                await self._call("score", **{name: one[name] for name in self._score_fields})
                for one in fields
            ]
        else:
            found = await self._call("score_batch", fields)
            read = partial(_answer_list, found, len(fields))
            # A generator does its work while it is read.
            said = read() if isinstance(found, list) else await self._thread.run(read)
        return [read_answer(*one) for one in zip(requests, said, strict=True)]

    async def _call(self, name: str, *given: Any, **named: Any) -> Any:
        """What a method of the object returns; ``None`` where it has none of that name."""
        method = getattr(self._object, name, None)
        if not callable(method):
            return None
        if inspect.iscoroutinefunction(method):
            return await method(*given, **named)
        return await self._thread.run(lambda: method(*given, **named))

    async def aclose(self) -> None:
        """Let the object close, and go, also where its ``close`` hangs or fails."""
        try:
            async with asyncio.timeout(_CLOSING_S):
                await self._call("close")
        except BaseException as error:  # noqa: BLE001  (somebody else's code; nothing else is left)
            cause = find_raised(error)  # TimeoutError: it is not waited for any longer
            _log.warning("%s: close failed: %r (it has %g s)", self.name, cause, _CLOSING_S)
        self._object = None
        self._thread.close()


def _answer_list(said: Any, count: int) -> list[Any]:
    """The answers to a batch; a set or mapping does not say which is whose."""
    unordered = isinstance(said, str | bytes | Mapping | Set)
    if unordered or not hasattr(said, "__iter__"):
        problem = f"a {type(said).__name__}, must be a list of answers"
    elif len(answers := list(islice(said, count + 1))) != count:  # a generator may never end
        found = len(answers) if len(answers) < count else "too many"
        problem = f"{found} answers to {count} requests"
    else:
        return answers
    raise GradingFailure(ErrorKind.BUG, f"score_batch returned {problem}")


def _check_class(found: Any, target: str) -> type:
    if not isinstance(found, type):
        raise ConfigError(f"{target}: must be a class (found {type(found).__name__})")
    for method in ("score", "score_batch"):
        if callable(getattr(found, method, None)):
            return found
    raise ConfigError(
        f"{target}: the class has no method score(prompt, completion, answer, ...) or "
        "score_batch(requests). Add one of them."
    )


def _read_number(value: Any) -> Any:
    """What pydantic reads as a number of any library; texts are none."""
    if value is None or isinstance(value, str | bytes):
        raise ValueError("must be a number; for a missing score raise adjudge.GradingFailure")
    return math.inf if isinstance(value, int) and value.bit_length() > _FLOAT_BITS else value


def _read_text(value: Any) -> Any:
    return shorten_text(value, EXPLANATION_LIMIT - 1) if isinstance(value, str) else value


def _check_plain(value: Any) -> Any:
    finite = type(value) is float and math.isfinite(value)
    if not finite and value is not None and type(value) not in (str, int, bool):
        raise ValueError("must be text, a whole or finite number, or a boolean")
    return value


_Number = Annotated[FiniteFloat, BeforeValidator(_read_number)]
_MaybeNumber = _Number | None


_Name = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]
"""A criterion's number is its name, as in JSON."""


class UserAnswer(BaseModel, extra="forbid"):
    """What a user's judge may return for a request, other than a number."""

    score: _Number
    explanation: Annotated[str | None, BeforeValidator(_read_text)] = None
    detailed_scores: dict[_Name, _MaybeNumber] | None = None
    confidence: Annotated[_MaybeNumber, Field(ge=0, le=1)] = None
    metadata: dict[str, Annotated[Any, AfterValidator(_check_plain)]] | None = None


_OUT_OF_RANGE = ("finite_number", "greater_than_equal", "less_than_equal")


def read_answer(request: JudgeRequest, said: Any) -> JudgeResponse:
    """The response to ``request`` that ``said`` stands for.

    ``said`` is a number (of any library), a mapping with the fields of :class:`UserAnswer`, or a
    ``GradingFailure`` (a batch's way to fail one). Everything else is the error ``bug``, a number
    that is not finite ``out_of_range``; there is no default.
    """
    if isinstance(said, GradingFailure):
        return failure_response(said, request.request_id)
    given = dict(said) if isinstance(said, Mapping) else {"score": said}
    try:
        found = UserAnswer.model_validate(given)
        msgspec.json.encode(found.__dict__)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        kind = ErrorKind.OUT_OF_RANGE if first["type"] in _OUT_OF_RANGE else ErrorKind.BUG
        problem = explain_problem(UserAnswer, first, given)
    except (TypeError, ValueError, OverflowError):  # half surrogates, huge numbers
        kind, problem = ErrorKind.BUG, "detailed_scores or metadata hold what JSON cannot"
    else:
        return JudgeResponse(request_id=request.request_id, **found.__dict__)
    return failure_response(GradingFailure(kind, problem), request.request_id)


def load_backend(
    target: str,
    *,
    arguments: Mapping[str, str] | None = None,
    damping: Damping | None = None,
) -> Backend:
    """The backend that ``target`` names: a reward spec, or a class (``module:Class``).

    A spec is a ``.toml`` file or the folder of a trained judge. ``arguments`` go to the class's
    constructor by name, read as its annotations or defaults say; a spec takes none. Nothing is
    loaded before ``start``. Raises :class:`ConfigError` naming what is wrong.
    """
    if target.endswith(".toml") or is_trained_judge(target):
        if arguments:
            raise ConfigError(
                f"{target}: a reward spec takes no arguments. Set the values in the file."
            )
        return SpecBackend(RewardSpec.load(target), damping)
    if ":" in target:
        return UserBackend(target, arguments, damping)
    raise ConfigError(
        f"{target!r}: must be a reward spec (a .toml file), the folder of a trained judge, or "
        "'module:Class' of your own judge"
    )
