"""What ``adjudge serve TARGET`` puts behind the service: the class to derive from, its answers.

A backend is anything that scores requests: a reward spec (:mod:`.spec_backend`), a class of the
user's (:mod:`.user_backend`), replicas elsewhere (:mod:`.ray_backend`). An answer is a score that
is a number, or an error that says why not.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from adjudge.engine.loop import find_raised
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.graders.binding import find_error_place
from adjudge.judges.asking import find_error_kind
from adjudge.text import replace_surrogates
from adjudge.wire import ErrorInfo, GroupRequest, JudgeRequest, JudgeResponse

_log = logging.getLogger("adjudge.service")
_MAX_LOGGED = 100
_MESSAGE_LIMIT = 500
EXPLANATION_LIMIT = 4_000
"""Characters of a response's explanation that are shown."""


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
            response.reward_components = {name: one * self.factor for name, one in parts.items()}


class GroupRendezvous:
    """Where the samples of a group wait for each other; this one judges none."""

    async def join(self, request: GroupRequest) -> JudgeResponse:  # noqa: ARG002
        """The answer to one sample, once its group is complete or was closed."""
        raise GradingFailure(ErrorKind.UNSUPPORTED, "this service judges no groups. Use /judge")

    def stop_waiting(self) -> None:
        """Nobody can come any more: end the groups that are not complete."""

    async def aclose(self) -> None:
        """Answer those that still wait, and stop."""


class Backend(ABC):
    """Scores requests, many at once or one by one.

    ``version`` changes whenever the same request may get another score; it travels as
    ``metadata.model_version`` and clears clients' caches. ``one_by_one``: each request takes its
    own time (an LLM judge far away), so none should wait for a batch's others; then ``score`` is
    called with one request at a time, many times at once (``max_concurrency``: at most so many).
    Else it is called with batches, one after the other. ``compares_groups`` says what needs a whole
    group, ``None`` when nothing does. ``grader_names`` are what ``/health`` shows; ``rendezvous``
    is where samples of groups go, for a backend other than a spec's
    (:func:`~adjudge.service.rendezvous.make_rendezvous`).
    """

    name: str
    version: str
    one_by_one: bool = False
    max_concurrency: int | None = None
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


def failure_response(failure: GradingFailure, request_id: str | None = None) -> JudgeResponse:
    """The answer to a request that got no score."""
    message = replace_surrogates(str(failure)[:_MESSAGE_LIMIT])
    return JudgeResponse(request_id=request_id, error=ErrorInfo.of(failure, message))


_logged: dict[int, set[str]] = {logging.WARNING: set(), logging.ERROR: set()}


def log_once(level: int, message: str) -> None:
    """Log a message the first time; at most a hundred of a level, since clients can invent more."""
    known = _logged[level]
    if message not in known and len(known) < _MAX_LOGGED:
        known.add(message)
        _log.log(level, "%s (logged once)", message)


def problem_response(problem: BaseException) -> JudgeResponse:
    """The answer to the one request that an exception was traced to; logged once.

    Neither has the exception's own words, which may quote the request, unless they are ours.
    """
    problem = find_raised(problem)
    if isinstance(problem, GradingFailure):
        return failure_response(problem)
    kind, message = ErrorKind.BUG, str(problem)
    if isinstance(problem, JudgeAuthError):
        kind = ErrorKind.AUTH
    elif not isinstance(problem, ConfigError):
        message = f"{type(problem).__name__} at {find_error_place(problem)}"
        if isinstance(problem, TimeoutError | ConnectionError):
            kind = find_error_kind(problem)
    log_once(logging.ERROR, f"the judge failed: {message}")
    return failure_response(GradingFailure(kind, message))
