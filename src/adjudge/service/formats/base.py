"""What the trainers' formats have in common: bytes in, a status and bytes out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from adjudge.client.wire import Answer, ErrorInfo, JudgeRequest, JudgeResponse
from adjudge.errors import ErrorKind
from adjudge.service.reading import Refused, check_request, error_body

__all__ = ["MAX_ITEMS", "Format", "Label", "Score", "answer_of", "failure_of", "invalid", "refusal"]

MAX_ITEMS = 1024
"""The most samples in one request of a list format."""

Score = Callable[[Sequence[JudgeRequest]], Awaitable[list[JudgeResponse]]]
"""Judges requests: one response each, in order."""

Label = Any
"""What trainers send as reference: text, as a rule, and whatever else the dataset had there."""

_OWN_FAULT = {ErrorKind.INVALID_INPUT, ErrorKind.UNSUPPORTED}
_encode = msgspec.json.Encoder().encode


class Format(ABC):
    """One trainer's request and response at ``path``; stateless.

    A failed judge is an error of the whole request, which the trainers' clients ask again or raise:
    503, and 422 where asking again cannot help. There is never a number in its place.
    """

    path: str
    trainer: str

    async def answer(self, body: bytes, score: Score) -> tuple[int, bytes]:
        """The HTTP status and the JSON body; raises only what ``score`` raises."""
        try:
            requests = self.requests(body)
            if len(requests) > MAX_ITEMS:
                raise invalid(f"{len(requests)} samples in one request, at most {MAX_ITEMS}")
            for request in requests:
                check_request(request, 0)
        except Refused as refused:
            return refusal(refused)
        responses = await score(requests) if requests else []
        if (failure := failure_of(responses, len(requests))) is not None:
            return self.failed(body, failure)
        return 200, _encode(self.reply(body, responses))

    @abstractmethod
    def requests(self, body: bytes) -> list[JudgeRequest]:
        """What is to be judged; raises :class:`~adjudge.service.reading.Refused`."""

    @abstractmethod
    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:
        """The answer when every sample has a score."""

    def failed(self, body: bytes, failure: ErrorInfo) -> tuple[int, bytes]:  # noqa: ARG002  (hook)
        """The answer when one has none."""
        status = 422 if failure.kind in _OWN_FAULT or failure.local else 503
        return status, _encode({"error": failure})


def refusal(refused: Refused) -> tuple[int, bytes]:
    """The answer to a request that cannot be read."""
    return refused.status, error_body(refused.kind, str(refused))


def invalid(message: str) -> Refused:
    """A request that says something which cannot be judged."""
    return Refused(422, ErrorKind.INVALID_INPUT, message)


def failure_of(responses: Sequence[JudgeResponse], asked: int) -> ErrorInfo | None:
    """Why there are not ``asked`` scores; the first failure, and how many there are."""
    if len(responses) != asked:
        return ErrorInfo(ErrorKind.BUG, f"{len(responses)} responses to {asked} requests")
    failures = [failure for one in responses if (failure := _failure(one)) is not None]
    if not failures:
        return None
    first = failures[0]
    if asked == 1:
        return first
    # Where any may pass by itself, asking the whole request again makes sense.
    first = next((one for one in failures if one.passing), first)
    message = f"{len(failures)} of {asked} failed, first: {first.message}"
    return msgspec.structs.replace(first, message=message)


def _failure(response: JudgeResponse) -> ErrorInfo | None:
    if response.error is not None:
        return response.error
    if response.score is None or not math.isfinite(response.score):
        return ErrorInfo(ErrorKind.BUG, "the judge gave neither a score nor a reason")
    return None


def answer_of(label: Label) -> Answer:
    """A label as reference: none where it is null or empty, JSON where it is an object."""
    if label is None or label == "":
        return None
    if isinstance(label, str | int | float | bool):
        return label
    if isinstance(label, list) and all(isinstance(part, str) for part in label):
        return label
    return _encode(label).decode()
