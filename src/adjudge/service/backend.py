"""What ``adjudge serve TARGET`` puts behind the service: the class to derive from, its answers.

A backend is anything that scores requests: a reward spec (:mod:`.spec_backend`), a class of the
user's (:mod:`.user_backend`), replicas elsewhere (:mod:`.ray_backend`). An answer is a score that
is a number, or an error that says why not.
"""

from __future__ import annotations

import logging
import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.text import replace_surrogates
from adjudge.types import finite_number
from adjudge.wire import ErrorInfo, GroupRequest, JudgeRequest, JudgeResponse

_log = logging.getLogger("adjudge.service")
_MAX_LOGGED = 100
_MESSAGE_LIMIT = 500
EXPLANATION_LIMIT = 4_000
"""Characters of a response's explanation."""


_INFINITE = math.inf
_copy: Callable[[JudgeResponse], JudgeResponse] = JudgeResponse.__copy__  # type: ignore[attr-defined]


class Damping(msgspec.Struct, frozen=True):
    """A score whose confidence is under ``below`` (0 to 1) is multiplied by ``factor`` (0 to 1).

    This is no calibration: it pulls towards 0, so it raises negative scores, and on any other
    scale than one that begins at 0 it means little. A named option, never the default.
    """

    below: float = 0.5
    factor: float = 0.8

    @classmethod
    def parse(cls, text: str) -> Damping:
        """The damping that ``BELOW:FACTOR`` means; raises :class:`ConfigError`.

        >>> Damping.parse("0.5:0.8")
        Damping(below=0.5, factor=0.8)
        """
        try:
            below, factor = map(float, text.split(":"))
        except ValueError:
            below = factor = math.nan
        if not (0 <= below <= 1 and 0 <= factor <= 1):
            raise ConfigError(
                "damping: must be BELOW:FACTOR, two numbers from 0 to 1, like 0.5:0.8 "
                f"(found {text[:40]!r})"
            )
        return cls(below, factor)

    def apply(self, response: JudgeResponse) -> None:
        """Damp a score in place; ``metadata.damped`` has it as it was."""
        score, confidence = response.score, response.confidence
        if score is None or confidence is None or confidence >= self.below:
            return
        response.metadata = {**(response.metadata or {}), "damped": score}
        response.score = score * self.factor
        if (parts := response.reward_components) is not None:
            damped = {name: part * self.factor for name, part in parts.items()}
            response.reward_components = damped


class GroupRendezvous:
    """Where the samples of a group wait for each other; this one judges none."""

    async def join(self, request: GroupRequest) -> JudgeResponse:  # noqa: ARG002
        """The answer to one sample, once its group is complete or was closed."""
        message = "this service judges no groups. Use /judge"
        raise GradingFailure(ErrorKind.UNSUPPORTED, message)

    def stop_waiting(self) -> None:
        """Nobody can come any more: end the groups that are not complete."""

    async def aclose(self) -> None:
        """Answer those that still wait, and stop."""


class Backend(ABC):
    """Scores requests, many at once or one by one.

    ``version`` changes whenever the same request may get another score; it travels as
    ``metadata.model_version`` and clears clients' caches. ``one_by_one``: each request takes its
    own time (an LLM judge far away), so none should wait for a batch's others; then ``score`` is
    called with one request at a time, many times at once. Else it is called with batches, one
    after the other. ``compares_groups`` says what needs a whole group, ``None`` when nothing does.
    ``grader_names`` are what ``/health`` shows; ``rendezvous`` is where samples of groups go, for
    a backend other than a spec's (:func:`~adjudge.service.rendezvous.make_rendezvous`).
    """

    name: str
    version: str
    one_by_one: bool = False
    compares_groups: str | None = None
    grader_names: Sequence[str] = ()
    damping: Damping | None = None
    rendezvous: GroupRendezvous = GroupRendezvous()

    async def start(self) -> None:  # noqa: B027  (nothing to load by default)
        """Load what is needed; the service is not ready before."""

    @abstractmethod
    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """One response per request, in order; runs on the service's event loop and never blocks it.

        A failure of one request is that response's ``error``. What is raised is taken for the
        fault of one of the requests, which is then looked for.
        """

    async def aclose(self) -> None:  # noqa: B027
        """Let go of models, connections, threads."""


def find_shape_problem(responses: object, asked: int) -> str | None:
    """Why this cannot be the answer to ``asked`` requests; ``None`` when it can."""
    if not isinstance(responses, list | tuple):
        return f"the backend returned {type(responses).__name__}, not a list of responses"
    if len(responses) != asked:
        return f"the backend returned {len(responses)} responses to {asked} requests"
    for kind in set(map(type, responses)):
        if not issubclass(kind, JudgeResponse):
            return f"the backend returned {kind.__name__} instead of a JudgeResponse"
    return None


def check_responses(
    responses: Sequence[JudgeResponse], requests: Sequence[JudgeRequest], facts: dict[str, Any]
) -> list[JudgeResponse]:
    """The responses as they go out: with the requests' ids and ``facts`` in their metadata.

    Always new objects, since a backend may give the same one twice. A response with an error has
    no score; one without either, with a score that is no finite number, or with metadata that is no
    dict gets an error.
    """
    found: list[JudgeResponse] = [*map(_copy, responses)]
    for checked, request in zip(found, requests, strict=True):
        checked.request_id = request.request_id
        if (metadata := checked.metadata) is None:
            checked.metadata = facts
        elif isinstance(metadata, dict):
            checked.metadata = {**metadata, **facts}
        else:
            problem = f"the metadata is no dict but {type(metadata).__name__}"
            checked.metadata, checked.error = facts, ErrorInfo(ErrorKind.BUG, problem)
        score = checked.score
        if checked.error is None:
            if score.__class__ is float and -_INFINITE < score < _INFINITE:
                continue
            checked.score, checked.error = _check_score(score)
        if checked.error is not None:
            checked.score = checked.reward_components = None
    return found


def _check_score(score: object) -> tuple[float | None, ErrorInfo | None]:
    """A score of another type than most as a finite number, or why it is none."""
    if score is None:
        return None, ErrorInfo(ErrorKind.BUG, "the backend gave neither a score nor an error")
    if isinstance(score, bool) or not isinstance(score, int | float):
        return None, ErrorInfo(ErrorKind.BUG, f"the score is no number but {type(score).__name__}")
    if (number := finite_number(score)) is None:
        return None, ErrorInfo(ErrorKind.OUT_OF_RANGE, "the score is not a finite number")
    return number, None


def failure_response(failure: GradingFailure, request_id: str | None = None) -> JudgeResponse:
    """The answer to a request that got no score."""
    message = replace_surrogates(str(failure)[:_MESSAGE_LIMIT])
    return JudgeResponse(request_id=request_id, error=ErrorInfo.of(failure, message))


def shorten(text: str) -> str:
    """An explanation of at most :data:`EXPLANATION_LIMIT` characters."""
    return text if len(text) <= EXPLANATION_LIMIT else text[: EXPLANATION_LIMIT - 1] + "…"


class BackendErrors:
    """What backends raised: as an error for the client, and once each in the log.

    Neither has an exception's own words, which may quote the request, unless they are ours.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def report(self, problem: BaseException | str) -> JudgeResponse:
        """The answer to the one request that the problem was traced to."""
        if isinstance(problem, GradingFailure):
            return failure_response(problem)
        kind, message, callers = ErrorKind.BUG, str(problem), ""
        if isinstance(problem, JudgeAuthError):
            kind = ErrorKind.AUTH
        elif isinstance(problem, BaseException) and not isinstance(problem, ConfigError):
            frames = traceback.extract_tb(problem.__traceback__)
            places = [f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in frames]
            message = " at ".join([type(problem).__name__, *places[-1:]])
            callers = ", ".join(places[:-1])
            if isinstance(problem, TimeoutError | ConnectionError):
                late = isinstance(problem, TimeoutError)
                kind = ErrorKind.TIMEOUT if late else ErrorKind.CONNECTION
        if message not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(message)
            _log.error("the judge failed: %s; called from: %s (logged once)", message, callers)
        return failure_response(GradingFailure(kind, message))
