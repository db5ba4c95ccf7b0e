"""The formats in which trainers ask a reward over HTTP, each at its own path.

A format of yours derives from :class:`Format`, or has the two members of :class:`WireFormat` and
does all by itself. ``adjudge serve reward.toml --format module:Class`` adds it.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from adjudge.errors import ConfigError, ErrorKind, RolloutError
from adjudge.extensions import load_extension
from adjudge.intake.rollouts import read_rollout
from adjudge.service.requests import RequestRefused, check_request, error_body, invalid_request
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse

ScoreFunction = Callable[[Sequence[JudgeRequest]], Awaitable[list[JudgeResponse]]]
"""Judges requests: one response each, in order; a score that is a number, or an error."""


class WireFormat(Protocol):
    """A trainer's own request and response on a path of its own."""

    @property
    def path(self) -> str:
        """Where the trainer posts to."""

    async def answer(self, body: bytes, score: ScoreFunction) -> tuple[int, bytes]:
        """HTTP status and JSON body; what ``score`` and msgspec raise becomes the right status."""


MAX_ITEMS = 1024
"""The most samples in one request of a list format."""

_OWN_FAULT = {ErrorKind.INVALID_INPUT, ErrorKind.UNSUPPORTED}
_encode = msgspec.json.Encoder().encode


class Format(ABC):
    """One trainer's request and response at ``path``; stateless.

    A failed judge is an error of the whole request, which the trainers' clients ask again or raise:
    503, and 422 where asking again cannot help. There is never a number in its place.
    """

    path: str

    async def answer(self, body: bytes, score: ScoreFunction) -> tuple[int, bytes]:
        """The HTTP status and the JSON body; raises only what ``score`` raises."""
        try:
            requests = self.requests(body)
            if len(requests) > MAX_ITEMS:
                raise invalid_request(
                    f"{len(requests)} samples in one request, at most {MAX_ITEMS}"
                )
            for request in requests:
                check_request(request, 0)
        except RequestRefused as refused:
            return refused.status, error_body(refused.kind, str(refused))
        responses = await score(requests) if requests else []
        if (failure := find_failure(responses, len(requests))) is not None:
            return self.failed(body, failure)
        return 200, _encode(self.reply(body, responses))

    @abstractmethod
    def requests(self, body: bytes) -> list[JudgeRequest]:
        """What is to be judged; raises :class:`~adjudge.service.requests.RequestRefused`."""

    @abstractmethod
    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:
        """The answer when every sample has a score."""

    def failed(self, body: bytes, failure: ErrorInfo) -> tuple[int, bytes]:  # noqa: ARG002  (hook)
        """The answer when one has none."""
        status = 422 if failure.kind in _OWN_FAULT or failure.local else 503
        return status, _encode({"error": failure})


def rollout_request(prompt: Any, completion: Any, answer: Any, **more: Any) -> JudgeRequest:
    """A request about a prompt and its completion, texts or messages, as all doors read them.

    ``answer``: a label as it was sent, whatever the dataset had; an empty text is none.
    """
    try:
        parts = read_rollout(prompt, completion)
    except RolloutError as error:
        raise invalid_request(str(error)) from None
    answer = None if answer == "" else answer
    return JudgeRequest(parts.prompt, parts.response or "", answer, messages=parts.messages, **more)


def find_failure(responses: Sequence[JudgeResponse], asked: int) -> ErrorInfo | None:
    """Why there are not ``asked`` scores; the first failure, and how many there are."""
    if len(responses) != asked:
        return ErrorInfo(ErrorKind.BUG, f"{len(responses)} responses to {asked} requests")
    failures = [
        one.error or ErrorInfo(ErrorKind.BUG, "the judge gave neither a score nor a reason")
        for one in responses
        if one.error is not None or one.score is None or not math.isfinite(one.score)
    ]
    if not failures:
        return None
    # Where any may pass by itself, asking the whole request again makes sense.
    first = next((one for one in failures if one.passing), failures[0])
    if asked == 1:
        return first
    message = f"{len(failures)} of {asked} failed, first: {first.message}"
    return msgspec.structs.replace(first, message=message)


_SHIPPED = {
    "openrlhf": "adjudge.service.formats.trainers:OpenRLHF",
    "slime": "adjudge.service.formats.trainers:Slime",
    "slime-parts": "adjudge.service.formats.trainers:SlimeWithParts",
    "llamafactory": "adjudge.service.formats.trainers:LlamaFactory",
    "nemo-gym": "adjudge.service.formats.nemo_gym:NemoGym",
    "nemo-gym-session": "adjudge.service.formats.nemo_gym:NemoGymSession",
    "nemo-gym-metrics": "adjudge.service.formats.nemo_gym:NemoGymMetrics",
    "nemo-gym-marked": "adjudge.service.formats.nemo_gym:NemoGymMarked",
}
_ON_DEMAND = ("nemo-gym-marked",)
"""Formats that are there when they are named, in the place of the one at their path."""
FORMAT_GROUP = "adjudge.service_formats"
"""The entry-point group of formats that packages bring."""


def load_formats(names: Sequence[str]) -> tuple[WireFormat, ...]:
    """The shipped formats, and those of the user: ``module:Class`` or a package's name for one.

    Raises :class:`ConfigError` for what cannot be imported or is no format.
    """
    named = [_load_format(name) for name in names]
    taken = {one.path for name, one in zip(names, named, strict=True) if name in _SHIPPED}
    shipped = [_load_format(name) for name in _SHIPPED if name not in _ON_DEMAND]
    return (*(one for one in shipped if one.path not in taken), *named)


def _load_format(name: str) -> WireFormat:
    where = f"--format {name}"
    found: Any = load_extension(FORMAT_GROUP, name, where=where, shipped=_SHIPPED)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(
                f"{where}: a format is made without arguments, and this one cannot be: "
                f"{type(error).__name__}: {error}"
            ) from error
    path = getattr(found, "path", None)
    is_path = isinstance(path, str) and path.startswith("/")
    if not is_path or not inspect.iscoroutinefunction(getattr(found, "answer", None)):
        raise ConfigError(
            f"{where}: must have a path that begins with '/' (found {path!r:.80}) and a method "
            "`async def answer(self, body, score)`"
        )
    return found  # type: ignore[no-any-return]
