"""One HTTP request to the judge service: what is sent, and what the response says."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from adjudge.client.settings import ClientSettings
from adjudge.client.wire import ErrorInfo, JudgeRequest, JudgeResponse
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply
from adjudge.judges.retry import RETRYABLE
from adjudge.judges.wire_errors import failure_of, malformed

__all__ = [
    "BATCH_CALL",
    "ONE_CALL",
    "ServiceReply",
    "ServiceWire",
    "encode",
    "read_response",
    "with_unicode_text",
]

ONE_CALL = ChatCall(model="/judge", messages=())
BATCH_CALL = ChatCall(model="/batch_judge", messages=())
"""What an endpoint tells calls apart by; what is asked is in the wire of the exchange."""

_encoder = msgspec.json.Encoder()
_request = msgspec.json.Decoder(JudgeRequest)
_raw = msgspec.json.Decoder(msgspec.Raw)


class _Batch(msgspec.Struct):
    responses: list[msgspec.Raw]


class _Item(msgspec.Struct):
    """A response as it comes: any server's, so every field may be anything."""

    score: Any = None
    request_id: Any = None
    explanation: Any = None
    detailed_scores: Any = None
    confidence: Any = None
    metadata: Any = None
    error: Any = None


class _Refusal(msgspec.Struct):
    error: ErrorInfo


_batch = msgspec.json.Decoder(_Batch)
_item = msgspec.json.Decoder(_Item)
_refusal = msgspec.json.Decoder(_Refusal)


def with_unicode_text(request: JudgeRequest) -> JudgeRequest:
    """``request`` with question marks for halves of surrogate pairs that the policy wrote.

    Where it writes: the completion, the messages and the metadata, keys included. What is nested
    without end comes back as it is, for :func:`encode` to refuse.
    """
    written = {name: getattr(request, name) for name in ("completion", "messages", "metadata")}
    try:
        return msgspec.structs.replace(request, **_with_unicode(written))
    except RecursionError:
        return request


def _with_unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_with_unicode(key): _with_unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_unicode(item) for item in value]
    return value


def encode(request: JudgeRequest) -> bytes:
    """``request`` as JSON, without its ``request_id``; the wire gives it one of its own.

    Raises ``GradingFailure(invalid_input)`` for what is no request: a prompt that is not text, an
    infinite answer, metadata that JSON cannot hold.
    """
    problem = "half of a surrogate pair, which UTF-8 cannot hold"
    try:
        if isinstance(request.answer, float) and not math.isfinite(request.answer):
            raise ValueError(f"the answer is {request.answer}")  # noqa: TRY301  (JSON has null)
        body = _encoder.encode(msgspec.structs.replace(request, request_id=None))
        arrives = _request.decode(body)
        for name in ("prompt", "completion", "answer"):
            given = getattr(request, name)
            if getattr(arrives, name) != given:  # bytes and the like become other text
                raise TypeError(f"{name} is a {type(given).__name__}")  # noqa: TRY301
    except UnicodeEncodeError:
        pass
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = str(error) or type(error).__name__
    else:
        return body
    raise GradingFailure(ErrorKind.INVALID_INPUT, f"the request cannot be sent: {problem}")


class ServiceReply(Reply, frozen=True, kw_only=True):
    """The service's answer: the responses in it, unread."""

    responses: list[msgspec.Raw]


class ServiceWire:
    """The format of one exchange: ``(request_id, encoded request)`` each, one or many.

    One goes to ``/judge``, several to ``/batch_judge``.
    """

    def __init__(self, settings: ClientSettings, items: Sequence[tuple[str, bytes]]) -> None:
        self._settings = settings
        self._items = items

    @property
    def call(self) -> ChatCall:
        """The call to ask an endpoint with."""
        return ONE_CALL if len(self._items) == 1 else BATCH_CALL

    def request(self, call: ChatCall) -> HttpRequest:
        """The POST; ``GradingFailure(auth)`` when the variable that must hold a key does not."""
        bodies = [
            b'{"request_id":"%b",%b' % (name.encode(), said[1:]) for name, said in self._items
        ]
        body = bodies[0] if call is ONE_CALL else b'{"requests":[%b]}' % b",".join(bodies)
        headers = {"content-type": "application/json", "user-agent": "adjudge"}
        if (key := self._key()) is not None:
            headers["authorization"] = f"Bearer {key}"
        return HttpRequest(path=call.model, headers=headers, body=body)

    def reply(self, call: ChatCall, response: HttpResponse) -> ServiceReply:
        """The responses, or the ``GradingFailure`` of the exchange as a whole.

        A single request's failed judge is a response, although its status is not 2xx.
        """
        if response.cut:
            raise GradingFailure(ErrorKind.CONNECTION, "the response broke off")
        if not 200 <= response.status < 300:
            return _refused(call, response)
        try:
            if call is ONE_CALL:
                found = [_raw.decode(response.body)]
            else:
                found = _batch.decode(response.body).responses
        except (ValueError, RecursionError):
            raise malformed(response, "its body is not what a judge service answers") from None
        return ServiceReply(text="", responses=found)

    def _key(self) -> str | None:
        name = self._settings.api_key_env
        key = os.environ.get(name, "").strip()
        if key.isascii() and key.isprintable() and (key or not self._settings.key_required):
            return key or None
        problem = "holds characters that no key has" if key else "is not set"
        raise GradingFailure(
            ErrorKind.AUTH, f"the environment variable {name} {problem}; it must hold the key"
        )


def _refused(call: ChatCall, response: HttpResponse) -> ServiceReply:
    """A response outside 2xx: a judge that failed, else raise what is wrong with the exchange."""
    failure = failure_of(response)
    said = _said(response)
    if said is not None and response.status == 503:
        passes = said.kind in RETRYABLE and said.passing
        if call is ONE_CALL and not passes:
            return ServiceReply(text="", responses=[msgspec.Raw(response.body)])
        failure.kind = said.kind if passes else ErrorKind.SERVER_ERROR
    elif response.status in (400, 404, 405, 413, 422):
        # Whatever the words remind of: nothing was judged, and asking again would not help.
        failure.kind = ErrorKind.INVALID_INPUT
        if said is not None and said.kind is ErrorKind.UNSUPPORTED:
            failure.kind = said.kind
    raise failure


def _said(response: HttpResponse) -> ErrorInfo | None:
    try:
        return _refusal.decode(response.body).error
    except (ValueError, RecursionError):
        return None


def read_response(raw: msgspec.Raw | bytes) -> JudgeResponse | None:
    """One response: with a finite score, or with an error; ``None`` for what is no object.

    Where it has both, the error counts. What is neither is ``server_error``. Explanations and
    other additions that are not of their type are left out.
    """
    try:
        item = _item.decode(raw)
    except (ValueError, RecursionError):
        return None
    name = item.request_id if isinstance(item.request_id, str) else None
    metadata = item.metadata if isinstance(item.metadata, dict) else None
    error = None if item.error is None else _error(item.error)
    score = _finite(item.score)
    if error is None and score is None:
        found = "no score" if item.score is None else f"a score that is none ({item.score!r:.40})"
        error = ErrorInfo(ErrorKind.SERVER_ERROR, f"the service's response has {found}")
    if error is not None:
        return JudgeResponse(request_id=name, metadata=metadata, error=error)
    details = item.detailed_scores
    return JudgeResponse(
        score=score,
        request_id=name,
        explanation=item.explanation if isinstance(item.explanation, str) else None,
        detailed_scores={key: _finite(value) for key, value in details.items()}
        if isinstance(details, dict)
        else None,
        confidence=_finite(item.confidence),
        metadata=metadata,
    )


def _error(said: Any) -> ErrorInfo:
    try:
        return msgspec.convert(said, ErrorInfo)
    except msgspec.ValidationError:
        words = f": {said}" if isinstance(said, str) else ""
        message = f"the service answered with an error inside{words:.200}"
        return ErrorInfo(ErrorKind.SERVER_ERROR, message)


def _finite(value: Any) -> float | None:
    """A finite number as such; ``None`` for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
