"""What trainers hand in, as requests; one HTTP request to the judge service, and its response."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.client.settings import ClientSettings
from adjudge.errors import FINAL, ConfigError, ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply
from adjudge.judges.endpoint.limits import RETRYABLE_KINDS
from adjudge.judges.wire.common import malformed_failure, response_failure
from adjudge.text import replace_surrogates
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse

JUDGE_CALL = ChatCall(model="/judge", messages=())
BATCH_CALL = ChatCall(model="/batch_judge", messages=())
"""What an endpoint tells calls apart by; what is asked is in the wire of the exchange."""

_request_encoder = msgspec.json.Encoder()
_request_decoder = msgspec.json.Decoder(JudgeRequest)
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)


class _BatchReply(msgspec.Struct):
    responses: list[msgspec.Raw]


class _ReplyItem(msgspec.Struct):
    """A response as it comes: any server's, so every field may be anything."""

    score: Any = None
    request_id: Any = None
    explanation: Any = None
    detailed_scores: Any = None
    confidence: Any = None
    metadata: Any = None
    error: Any = None


class _ErrorReply(msgspec.Struct):
    error: ErrorInfo


_batch_decoder = msgspec.json.Decoder(_BatchReply)
_item_decoder = msgspec.json.Decoder(_ReplyItem)
_refusal_decoder = msgspec.json.Decoder(_ErrorReply)


def with_unicode_text(request: JudgeRequest) -> JudgeRequest:
    """``request`` with question marks for halves of surrogate pairs that the policy wrote.

    Where it writes: the completion, the messages and the metadata, keys included. What is nested
    without end comes back as it is, for :func:`encode_request` to refuse.
    """
    written = {name: getattr(request, name) for name in ("completion", "messages", "metadata")}
    try:
        return msgspec.structs.replace(request, **replace_surrogates(written))
    except RecursionError:
        return request


def encode_request(request: JudgeRequest) -> bytes:
    """``request`` as JSON, without its ``request_id``; the wire gives it one of its own.

    Raises ``GradingFailure(invalid_input)`` for what is no request: a prompt that is not text, an
    infinite answer, metadata that JSON cannot hold.
    """
    problem = "half of a surrogate pair, which UTF-8 cannot hold"
    try:
        if isinstance(request.answer, float) and not math.isfinite(request.answer):
            raise ValueError(f"the answer is {request.answer}")  # noqa: TRY301  (JSON has null)
        if request.request_id is not None:
            request = msgspec.structs.replace(request, request_id=None)
        body = _request_encoder.encode(request)
        arrives = _request_decoder.decode(body)
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


_key_encoder = msgspec.json.Encoder(order="deterministic")


class PreparedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that can be sent: its JSON, and what equal requests have in common."""

    request: JudgeRequest
    body: bytes
    key: bytes


def prepare_request(request: JudgeRequest) -> PreparedRequest:
    """Encode a request and hash what its score depends on; runs in any thread.

    Raises ``GradingFailure(invalid_input)`` for what is no request.
    """
    try:
        body = encode_request(request)
    except GradingFailure:
        request = with_unicode_text(request)
        body = encode_request(request)
    key = body
    if request.metadata is not None or request.messages is not None:  # their keys have no order
        key = _key_encoder.encode(msgspec.structs.replace(request, request_id=None))
    return PreparedRequest(request, body, hashlib.sha256(key).digest())


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
        return JUDGE_CALL if len(self._items) == 1 else BATCH_CALL

    def request(self, call: ChatCall) -> HttpRequest:
        """The POST; ``GradingFailure(auth)`` when the variable that must hold a key does not."""
        bodies = [
            b'{"request_id":"%b",%b' % (name.encode(), said[1:]) for name, said in self._items
        ]
        body = bodies[0] if call is JUDGE_CALL else b'{"requests":[%b]}' % b",".join(bodies)
        headers = {"content-type": "application/json", "user-agent": "adjudge"}
        if (key := read_key(self._settings)) is not None:
            headers["authorization"] = f"Bearer {key}"
        return HttpRequest(path=call.model, headers=headers, body=body)

    def reply(self, call: ChatCall, response: HttpResponse) -> ServiceReply:
        """The responses, or the ``GradingFailure`` of the exchange as a whole.

        A single request's failed judge is a response, although its status is not 2xx.
        """
        if response.cut:
            raise GradingFailure(ErrorKind.CONNECTION, "the response broke off")
        if not 200 <= response.status < 300:
            return _read_refusal(call, response)
        try:
            if call is JUDGE_CALL:
                found = [_raw_decoder.decode(response.body)]
            else:
                found = _batch_decoder.decode(response.body).responses
        except (ValueError, RecursionError):
            raise malformed_failure(
                response, "its body is not what a judge service answers"
            ) from None
        return ServiceReply(text="", responses=found)


def read_key(settings: ClientSettings) -> str | None:
    """The key; ``GradingFailure(auth)`` where a named variable has none, or it cannot be one."""
    name = settings.api_key_env
    key = os.environ.get(name, "").strip()
    if key.isascii() and key.isprintable() and (key or not settings.key_required):
        return key or None
    problem = "holds characters that no key has" if key else "is not set"
    raise GradingFailure(
        ErrorKind.AUTH, f"the environment variable {name} {problem}; it must hold the key"
    )


def _read_refusal(call: ChatCall, response: HttpResponse) -> ServiceReply:
    """A response outside 2xx: a judge that failed, else raise what is wrong with the exchange."""
    failure = response_failure(response)
    said = _read_error(response)
    if said is not None and response.status == 503:
        passes = said.kind in RETRYABLE_KINDS and said.passing
        if call is JUDGE_CALL and not passes:
            return ServiceReply(text="", responses=[msgspec.Raw(response.body)])
        failure.kind = said.kind if passes else ErrorKind.SERVER_ERROR
    elif response.status in (400, 404, 405, 413, 422):
        # Whatever the words remind of: nothing was judged, and asking again would not help.
        failure.kind = ErrorKind.INVALID_INPUT
        failure.metadata[FINAL] = response.status in (404, 405) or bool(said and said.final)
        if said is not None and said.kind is ErrorKind.UNSUPPORTED:
            failure.kind = said.kind
    raise failure


def _read_error(response: HttpResponse) -> ErrorInfo | None:
    try:
        return _refusal_decoder.decode(response.body).error
    except (ValueError, RecursionError):
        return None


def read_response(raw: msgspec.Raw | bytes) -> JudgeResponse | None:
    """One response: with a finite score, or with an error; ``None`` for what is no object.

    Where it has both, the error counts. What is neither is ``server_error``. Explanations and
    other additions that are not of their type are left out.
    """
    try:
        item = _item_decoder.decode(raw)
    except (ValueError, RecursionError):
        return None
    name = item.request_id if isinstance(item.request_id, str) else None
    metadata = item.metadata if isinstance(item.metadata, dict) else None
    error = None if item.error is None else _to_error_info(item.error)
    score = _finite_number(item.score)
    if error is None and score is None:
        found = (
            "no score" if item.score is None else f"a score that is no number ({item.score!r:.40})"
        )
        error = ErrorInfo(ErrorKind.SERVER_ERROR, f"the service's response has {found}")
    if error is not None:
        return JudgeResponse(request_id=name, metadata=metadata, error=error)
    details = item.detailed_scores
    return JudgeResponse(
        score=score,
        request_id=name,
        explanation=item.explanation if isinstance(item.explanation, str) else None,
        detailed_scores={key: _finite_number(value) for key, value in details.items()}
        if isinstance(details, dict)
        else None,
        confidence=_finite_number(item.confidence),
        metadata=metadata,
    )


def _to_error_info(said: Any) -> ErrorInfo:
    try:
        return msgspec.convert(said, ErrorInfo)
    except msgspec.ValidationError:
        words = f": {said}" if isinstance(said, str) else ""
        message = f"the service answered with an error of no known form{words:.200}"
        return ErrorInfo(ErrorKind.SERVER_ERROR, message)


def _finite_number(value: Any) -> float | None:
    """A finite number as such; ``None`` for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def to_failure(error: ErrorInfo) -> GradingFailure:
    """What a judge said about one request."""
    return GradingFailure(error.kind, error.message, {"judge": True, **error.failure_metadata})


def add_advice(failure: Exception, settings: ClientSettings) -> Exception:
    """``failure`` with what to do about it; a new object, since many may get the same one."""
    if not isinstance(failure, GradingFailure):
        return failure
    kind, said, facts = failure.kind, str(failure), failure.metadata
    url, local = settings.judge_url, facts.get("local")
    if facts.get("judge"):  # said by a judge, about this request
        pass
    elif kind is ErrorKind.CIRCUIT_OPEN:
        said = (
            f"circuit breaker open: {url} failed circuit_breaker_threshold = "
            f"{settings.circuit_breaker_threshold} times in a row and is asked again after "
            f"circuit_breaker_timeout = {settings.circuit_breaker_timeout:g} s; see its /health"
        )
    elif kind is ErrorKind.TIMEOUT:
        said = (
            f"timeout waiting for results: {said} (timeout = {settings.timeout:g} s); raise "
            "timeout, or max_concurrent_requests where requests wait to be sent"
        )
    elif kind is ErrorKind.RATE_LIMITED and not local:
        said = (
            f"request queue full: {said}; lower max_concurrent_requests or max_batch_size, or raise"
            " the service's queue_size"
        )
    elif kind in (ErrorKind.CONNECTION, ErrorKind.SERVER_ERROR):
        tries = facts.get("attempts", 1)
        where = "" if url in said else f"{url}: "
        said = f"{where}{said} (sent {tries} ×, max_retries = {settings.max_retries})"
    elif kind is ErrorKind.INVALID_INPUT and facts.get("status") in (404, 405):
        said = f"{said}; is judge_url = {url} a judge service's address?"
    elif kind is ErrorKind.AUTH:
        said = f"{said}; the key is that of the variable {settings.api_key_env} (api_key_env)"
    return GradingFailure(kind, said, dict(facts))


RequestOrFailure = JudgeRequest | GradingFailure
"""A request, or why there is none."""

_REQUEST_KEYWORDS = ("messages", "images", "metadata", "request_id")


def build_request(
    prompt: Any, completion: Any, answer: Any, answer_type: Any, fields: Mapping[str, Any]
) -> RequestOrFailure:
    """One call's arguments; what is not text, a list, a mapping is found when it is encoded."""
    rest = dict(fields)
    own = {name: rest.pop(name, None) for name in _REQUEST_KEYWORDS}
    if "completions" in rest:
        if completion is not None:
            return _input_failure("completion and completions: both are given. Give one of them")
        completion = rest.pop("completions")
    if not isinstance(completion, str):
        found = "nothing" if completion is None else type(completion).__name__
        return _input_failure(
            f"completion: must be one text (found {found}). Use reward_batch for many"
        )
    if rest:
        given = own["metadata"] or {}
        if not isinstance(given, Mapping):
            return _input_failure(f"metadata: must be a mapping (found {type(given).__name__})")
        own["metadata"] = {**given, **rest}
    if isinstance(answer, tuple):
        answer = list(answer)
    return JudgeRequest(prompt, completion, answer, answer_type, **own)


def build_requests(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    answers: Sequence[Any] | None,
    answer_types: Sequence[Any] | str | None,
    fields: Mapping[str, Sequence[Any]],
) -> list[RequestOrFailure]:
    """Columns as requests; one ``answer_types`` text is for all. Raises ``ConfigError``."""
    n = len(prompts) if hasattr(prompts, "__len__") else 0
    if answer_types is None or isinstance(answer_types, str):
        answer_types = [answer_types] * n
    given = {
        "prompts": prompts,
        "completions": completions,
        "answers": [None] * n if answers is None else answers,
        "answer_types": answer_types,
        **fields,
    }
    for name, column in given.items():
        if isinstance(column, str | Mapping) or not hasattr(column, "__len__"):
            raise ConfigError(
                f"reward_batch: {name}: must be a list (found {type(column).__name__})"
            )
        if len(column) != n:
            raise ConfigError(
                f"reward_batch: {name}: must have as many items as prompts (found {len(column)}; "
                f"prompts has {n})"
            )
    return [
        build_request(
            prompts[i],
            completions[i],
            given["answers"][i],
            answer_types[i],
            {name: column[i] for name, column in fields.items()},
        )
        for i in range(n)
    ]


def _input_failure(problem: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, problem, {"local": True})
