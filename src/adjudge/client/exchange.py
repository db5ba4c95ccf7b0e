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
from adjudge.judges.endpoint.calls import RETRYABLE_KINDS
from adjudge.judges.wire.common import malformed_failure, response_failure
from adjudge.text import replace_surrogates
from adjudge.wire import JUDGE_KEY_VARIABLE, ErrorInfo, JudgeRequest, JudgeResponse

JUDGE_CALL = ChatCall(model="/judge", messages=())
BATCH_CALL = ChatCall(model="/batch_judge", messages=())
"""What an endpoint tells calls apart by; what is asked is in the wire of the exchange."""


class PreparedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that can be sent: its JSON, and what equal requests have in common."""

    request: JudgeRequest
    body: bytes
    key: bytes


_encode = msgspec.json.Encoder().encode
_encode_in_order = msgspec.json.Encoder(order="deterministic").encode
_decode_request = msgspec.json.Decoder(JudgeRequest).decode
_AS_WRITTEN = {str, int, bool, type(None)}


def prepare_request(request: JudgeRequest) -> PreparedRequest:
    """Encode a request and hash what its score depends on; runs in any thread.

    Half a surrogate pair that the policy wrote is a question mark. Raises
    ``GradingFailure(invalid_input)`` for what is no request: a prompt that is not text, an infinite
    answer, metadata that JSON cannot hold.
    """
    try:
        try:
            return _prepare(request)
        except UnicodeEncodeError:
            return _prepare(with_unicode_text(request))
    except UnicodeEncodeError:
        problem = "half of a surrogate pair, which UTF-8 cannot hold"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = str(error) or type(error).__name__
    raise GradingFailure(ErrorKind.INVALID_INPUT, f"the request cannot be sent: {problem}")


def _prepare(request: JudgeRequest) -> PreparedRequest:
    said = request
    if request.request_id is not None:  # the wire gives it one of its own
        said = msgspec.structs.replace(request, request_id=None)
    body = key = _encode(said)
    bare = request.metadata is None is request.messages
    if not (
        bare
        and request.images is None
        and type(request.completion) is type(request.prompt) is str
        and type(request.answer) in _AS_WRITTEN
        and isinstance(request.answer_type, str | None)
    ):
        _check_arrival(request, _decode_request(body))
    if not bare:  # their keys have no order
        key = _encode_in_order(said)
    return PreparedRequest(request, body, hashlib.sha256(key).digest())


def _check_arrival(request: JudgeRequest, arrives: JudgeRequest) -> None:
    """Refuse what JSON writes as something else: bytes as text, an infinite number as null."""
    for name in ("prompt", "completion", "answer"):
        given = getattr(request, name)
        if getattr(arrives, name) != given:
            raise TypeError(f"{name}: JSON cannot hold it ({type(given).__name__} {given!r:.40})")


def with_unicode_text(request: JudgeRequest) -> JudgeRequest:
    """``request`` with question marks for halves of surrogate pairs that the policy wrote.

    Where it writes: the completion, the messages and the metadata, keys included.
    """
    written = {name: getattr(request, name) for name in ("completion", "messages", "metadata")}
    return msgspec.structs.replace(request, **replace_surrogates(written))


# ── the exchange ─────────────────────────────────────────────────────────────────────────────────


class ReplyItem(msgspec.Struct, gc=False):
    """A response as it comes: any server's, so every field may be anything."""

    score: Any = None
    request_id: Any = None
    explanation: Any = None
    detailed_scores: Any = None
    confidence: Any = None
    metadata: Any = None
    error: Any = None


_Anything = ReplyItem | list[Any] | str | int | float | bool | None


class _BatchReply(msgspec.Struct):
    responses: list[_Anything] | None = None
    error: Any = None


_decode_item = msgspec.json.Decoder(_Anything).decode
_decode_batch = msgspec.json.Decoder(_BatchReply).decode


class ServiceReply(Reply, frozen=True, kw_only=True):
    """The service's answer: the responses in it, as they came."""

    items: list[_Anything]


class ServiceWire:
    """The format of one exchange: ``(request_id, encoded request)`` each, one or many.

    One goes to ``/judge``, several to ``/batch_judge``.
    """

    def __init__(self, settings: ClientSettings, items: Sequence[tuple[str, bytes]]) -> None:
        self._settings = settings
        self._items = items
        self.call = JUDGE_CALL if len(items) == 1 else BATCH_CALL

    def request(self, call: ChatCall) -> HttpRequest:
        """The POST; ``GradingFailure(auth)`` when the variable that must hold a key does not."""
        bodies = [
            b'{"request_id":"%b",%b' % (name.encode(), said[1:]) for name, said in self._items
        ]
        body = bodies[0] if call is JUDGE_CALL else b'{"requests":[%b]}' % b",".join(bodies)
        return make_post(call.model, body, self._settings.api_key_env)

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
                return ServiceReply(text="", items=[_decode_item(response.body)])
            found = _decode_batch(response.body)
        except (ValueError, RecursionError):
            found = _BatchReply()
        if found.error is not None:
            error = _to_error_info(found.error)
            raise GradingFailure(error.kind, error.message, dict(error.failure_metadata))
        if found.responses is None:
            raise malformed_failure(response, "its body is not what a judge service answers")
        return ServiceReply(text="", items=found.responses)


def make_post(path: str, body: bytes, key_env: str) -> HttpRequest:
    """A POST with the key; ``GradingFailure(auth)`` as :func:`read_key`."""
    headers = {"content-type": "application/json", "user-agent": "adjudge"}
    if key := read_key(key_env):
        headers["authorization"] = f"Bearer {key}"
    return HttpRequest(path=path, headers=headers, body=body)


def read_key(name: str) -> str:
    """The key in the environment variable ``name``, or ``""`` where the usual one is not set.

    Raises ``GradingFailure(auth)`` where another one has none, or what it has cannot be a key.
    """
    key = os.environ.get(name, "").strip()
    if key.isascii() and key.isprintable() and (key or name == JUDGE_KEY_VARIABLE):
        return key
    problem = "holds characters that no key has" if key else "is not set"
    raise GradingFailure(
        ErrorKind.AUTH, f"the environment variable {name} {problem}; it must hold the key"
    )


def _read_refusal(call: ChatCall, response: HttpResponse) -> ServiceReply:
    """A response outside 2xx: a judge that failed, else raise what is wrong with the exchange."""
    failure = response_failure(response)
    item = read_item(response.body)
    said = None
    if isinstance(item, ReplyItem) and isinstance(item.error, dict):
        said = _to_error_info(item.error)
    if said is not None and response.status == 503:
        passes = said.kind in RETRYABLE_KINDS and said.passing
        if call is JUDGE_CALL and not passes:
            return ServiceReply(text="", items=[item])
        failure.kind = said.kind if passes else ErrorKind.SERVER_ERROR
    elif response.status in (400, 404, 405, 413, 422):
        # Whatever the words remind of: nothing was judged, and asking again would not help.
        failure.kind = ErrorKind.INVALID_INPUT
        failure.metadata[FINAL] = response.status in (404, 405) or bool(said and said.final)
        if said is not None and said.kind is ErrorKind.UNSUPPORTED:
            failure.kind = said.kind
    raise failure


def read_item(body: bytes) -> _Anything:
    """The one response in ``body``; ``None`` for what is no JSON."""
    try:
        found: _Anything = _decode_item(body)
    except (ValueError, RecursionError):
        return None
    return found


def read_response(item: ReplyItem) -> JudgeResponse:
    """One response: with a finite score, or with an error, never both and never neither.

    Where it has both, the error counts. What is neither is ``server_error``. Explanations and
    other additions that are not of their type are left out.
    """
    name = item.request_id if isinstance(item.request_id, str) else None
    metadata = item.metadata if isinstance(item.metadata, dict) else None
    if item.error is not None:
        return JudgeResponse(request_id=name, metadata=metadata, error=_to_error_info(item.error))
    if (score := _finite_number(item.score)) is None:
        said = "no score" if item.score is None else f"no number as its score ({item.score!r:.40})"
        error = ErrorInfo(ErrorKind.SERVER_ERROR, f"the service's response has {said}")
        return JudgeResponse(request_id=name, metadata=metadata, error=error)
    details = item.detailed_scores
    if details is not None:
        details = (
            {key: _finite_number(value) for key, value in details.items()}
            if isinstance(details, dict)
            else None
        )
    explanation = item.explanation if isinstance(item.explanation, str) else None
    return JudgeResponse(
        score, name, explanation, details, _finite_number(item.confidence), metadata
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
    if type(value) is float:
        return value if math.isfinite(value) else None
    try:
        return float(value) if type(value) is int else None
    except OverflowError:
        return None


def to_failure(error: ErrorInfo) -> GradingFailure:
    """What a judge said about one request."""
    return GradingFailure(error.kind, error.message, {"judge": True, **error.failure_metadata})


_ADVICE = {
    ErrorKind.CIRCUIT_OPEN: "circuit breaker open: {url} failed circuit_breaker_threshold = "
    "{s.circuit_breaker_threshold} times in a row and is asked again after "
    "circuit_breaker_timeout = {s.circuit_breaker_timeout:g} s; see its /health",
    ErrorKind.TIMEOUT: "timeout waiting for results: {said} (timeout = {s.timeout:g} s); raise "
    "timeout, or max_concurrent_requests where requests wait to be sent",
    ErrorKind.RATE_LIMITED: "request queue full: {said}; lower max_concurrent_requests or "
    "max_batch_size, or raise the service's queue_size",
    ErrorKind.CONNECTION: "{url}: {said} (sent {tries} ×, max_retries = {s.max_retries})",
    ErrorKind.SERVER_ERROR: "{url}: {said} (sent {tries} ×, max_retries = {s.max_retries})",
    ErrorKind.AUTH: "{said}; the key is that of the variable {s.api_key_env} (api_key_env)",
}
"""What to do about a failure, by kind."""


def add_advice(failure: GradingFailure, settings: ClientSettings) -> GradingFailure:
    """``failure`` with what to do about it; a new object, since many may get the same one."""
    kind, said, facts = failure.kind, str(failure), failure.metadata
    advice = _ADVICE.get(kind, "{said}")
    if facts.get("judge") or facts.get("local"):  # said by a judge about this request, or by us
        advice = "{said}"
    elif kind is ErrorKind.INVALID_INPUT and facts.get("status") in (404, 405):
        advice = "{said}; is judge_url = {url} a judge service's address?"
    url, tries = settings.judge_url, facts.get("attempts", 1)
    if url in said:
        advice = advice.removeprefix("{url}: ")
    said = advice.format(said=said, url=url, tries=tries, s=settings)
    return GradingFailure(kind, said, dict(facts))


# ── what trainers hand in ────────────────────────────────────────────────────────────────────────

RequestOrFailure = JudgeRequest | GradingFailure
"""A request, or why there is none."""


def build_request(
    prompt: Any, completion: Any, answer: Any, answer_type: Any, fields: Mapping[str, Any]
) -> RequestOrFailure:
    """One call's arguments; what is not text, a list, a mapping is found when it is encoded."""
    problem = ""
    messages = images = metadata = request_id = None
    if fields:
        rest = dict(fields)
        messages, images = rest.pop("messages", None), rest.pop("images", None)
        metadata, request_id = rest.pop("metadata", None), rest.pop("request_id", None)
        if "completions" in rest:
            if completion is not None:
                problem = "completion and completions: both are given. Give one of them"
            completion = rest.pop("completions")
        if not isinstance(metadata, Mapping | None):
            problem = f"metadata: must be a mapping (found {type(metadata).__name__})"
        elif rest:
            metadata = {**(metadata or {}), **rest}
    if not isinstance(completion, str) and not problem:
        found = "nothing" if completion is None else type(completion).__name__
        problem = f"completion: must be one text (found {found}). Use reward_batch for many"
    if problem:
        return GradingFailure(ErrorKind.INVALID_INPUT, problem, {"local": True})
    if type(answer) is tuple:
        answer = list(answer)
    return JudgeRequest(
        prompt, completion, answer, answer_type, request_id, metadata, messages, images
    )


def build_requests(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    answers: Sequence[Any] | None,
    answer_types: Sequence[Any] | str | None,
    fields: Mapping[str, Sequence[Any]],
) -> list[RequestOrFailure]:
    """Columns as requests, read by place; one ``answer_types`` text is for all.

    Raises ``ConfigError``.
    """
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
        is_list = hasattr(column, "__len__") and not isinstance(column, str | Mapping | set)
        if not is_list or len(column) != n:
            found = f"{len(column)} items" if is_list else type(column).__name__
            raise ConfigError(
                f"reward_batch: {name}: must be a list with as many items as prompts, which has "
                f"{n} (found {found})"
            )
    # Iterated and not indexed: a data frame's column is indexed by its labels.
    return [
        build_request(prompt, completion, answer, kind, dict(zip(fields, more, strict=True)))
        for prompt, completion, answer, kind, *more in zip(*given.values(), strict=True)
    ]
