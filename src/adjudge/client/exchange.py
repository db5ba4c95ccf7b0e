"""What trainers hand in, as requests; one HTTP request to the judge service, and its response.

:class:`GroupClient` is the trainer's side of ``/group_judge``: each sample of a group is sent as
soon as it is complete.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import os
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from adjudge.client.settings import ClientSettings
from adjudge.engine.clock import LogLimiter
from adjudge.engine.loop import run_on_engine
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply, Transport
from adjudge.judges.endpoint.calls import RETRYABLE_KINDS
from adjudge.judges.endpoint.limits import full_jitter
from adjudge.judges.wire import malformed_failure, parse_retry_after, response_failure
from adjudge.judges.wire.transport import AiohttpTransport, normalize_url
from adjudge.text import replace_surrogates
from adjudge.types import finite_number
from adjudge.wire import (
    JUDGE_KEY_VARIABLE,
    MAX_NESTING_DEPTH,
    ErrorInfo,
    GroupRequest,
    JudgeRequest,
    JudgeResponse,
)

_T = TypeVar("_T")

JUDGE_CALL = ChatCall(model="/judge", messages=())
BATCH_CALL = ChatCall(model="/batch_judge", messages=())
GROUP_CALL = ChatCall(model="/group_judge", messages=())
"""What an endpoint tells calls apart by; what is asked is in the wire of the exchange."""


RequestOrFailure = JudgeRequest | GradingFailure
"""A request, or why there is none."""

_encode = msgspec.json.Encoder().encode
_encode_in_order = msgspec.json.Encoder(order="deterministic").encode
_decode_request = msgspec.json.Decoder(JudgeRequest).decode
_AS_WRITTEN = {str, int, bool, type(None)}
_SCALARS = {*_AS_WRITTEN, float}


def encode_request(request: JudgeRequest) -> tuple[bytes, bytes]:
    """The request as JSON, and a digest of what its score depends on; runs in any thread.

    Half a surrogate pair that the policy wrote (the completion, the messages and the metadata, keys
    included) is a question mark; in the messages and the metadata, NaN and an infinite number are
    ``null``. Raises ``GradingFailure(invalid_input)`` for what is no request: a prompt that is not
    text, an infinite answer, metadata that JSON cannot hold.
    """
    try:
        try:
            return _encode_and_digest(request)
        except UnicodeEncodeError:
            written = {n: getattr(request, n) for n in ("completion", "messages", "metadata")}
            clean = msgspec.structs.replace(request, **replace_surrogates(written))
            return _encode_and_digest(clean)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"the request cannot be sent: {str(error) or type(error).__name__}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, problem) from None


def _encode_and_digest(request: JudgeRequest) -> tuple[bytes, bytes]:
    said = request
    if request.request_id is not None:  # the wire gives it one of its own
        said = msgspec.structs.replace(request, request_id=None)
    if (
        type(request.prompt) is type(request.completion) is str
        and type(request.answer) in _AS_WRITTEN
        and type(request.answer_type) in (str, type(None))
        and not (request.metadata or request.messages or request.images)
    ):
        body = key = _encode(said)
    else:
        _check_parts(request)
        body = _encode(said)
        if _decode_request(body).answer != request.answer:
            raise TypeError(f"answer: JSON cannot hold it ({type(request.answer).__name__})")
        key = _encode_in_order(said)  # the keys of an object have no order
    return body, hashlib.sha256(key).digest()


def _check_parts(request: JudgeRequest) -> None:
    """Refuse what JSON has no form for, or writes as something else: bytes as text, a set."""
    parts = [(n, getattr(request, n)) for n in ("prompt", "completion", "answer", "messages")]
    if isinstance(request.metadata, Mapping):
        columns = request.metadata.items()
        parts += [(f"metadata.{n}", one if type(n) is str else {n: one}) for n, one in columns]
    for name, given in parts:
        if not is_json(given):
            raise TypeError(f"{name}: JSON cannot hold it or its keys ({type(given).__name__})")


def is_json(value: Any, depth: int = MAX_NESTING_DEPTH - 1) -> bool:
    """Whether ``value`` arrives as it is, but that a tuple arrives as a list, NaN as ``null``."""
    if isinstance(value, dict) and {*map(type, value)} <= {str}:
        value = [*value.values()]
    if not isinstance(value, list | tuple) or not depth:
        return type(value) in _SCALARS
    return {*map(type, value)} <= _SCALARS or all(is_json(one, depth - 1) for one in value)


# ── the exchange ─────────────────────────────────────────────────────────────────────────────────


class ServiceAnswer(msgspec.Struct):
    """A JSON object of any server, as a response; :func:`read_response` takes what is of its type.

    Where a server refuses a request, or several, there is an ``error`` alone.
    """

    score: Any = None
    request_id: Any = None
    explanation: Any = None
    detailed_scores: Any = None
    confidence: Any = None
    metadata: Any = None
    error: Any = None


class _BatchAnswer(msgspec.Struct):
    """A JSON object of any server, as the responses to several requests."""

    responses: list[ServiceAnswer | list[Any] | str | float | bool | None] | None = None
    error: Any = None


class ServiceReply(Reply, frozen=True, kw_only=True):
    """The service's answer: one response per request of the exchange, in the requests' order."""

    responses: list[JudgeResponse]


class ServiceWire:
    """The format of one exchange; ``bodies`` are encoded requests by the ids they travel under.

    One goes to ``/judge``, several to ``/batch_judge``.
    """

    def __init__(self, bodies: Mapping[str, bytes], key_env: str) -> None:
        self._bodies = bodies
        self._key_env = key_env
        self.call = JUDGE_CALL if len(bodies) == 1 else BATCH_CALL

    def request(self, call: ChatCall) -> HttpRequest:
        """The POST; ``GradingFailure(auth)`` when the variable that must hold a key does not."""
        body = b",".join(
            b'{"request_id":%b,%b' % (_encode(name), said[1:])
            for name, said in self._bodies.items()
        )
        if call is BATCH_CALL:
            body = b'{"requests":[%b]}' % body
        headers = {"content-type": "application/json", "user-agent": "adjudge"}
        if key := read_key(self._key_env):
            headers["authorization"] = f"Bearer {key}"
        return HttpRequest(path=call.model, headers=headers, body=body)

    def reply(self, call: ChatCall, response: HttpResponse) -> ServiceReply:
        """The responses, or the ``GradingFailure`` of the exchange as a whole.

        A single request's failed judge is a response, although its status is not 2xx.
        """
        if response.cut:
            raise GradingFailure(ErrorKind.CONNECTION, "the response broke off")
        form: type[ServiceAnswer | _BatchAnswer]
        form = ServiceAnswer if call is JUDGE_CALL else _BatchAnswer
        said = _decode(response.body, form)
        if not 200 <= response.status < 300:
            facts = _of_type(said.metadata, dict) if isinstance(said, ServiceAnswer) else None
            judged = said and said.error and facts and "model_version" in facts  # it works
            failure = _read_refusal(call, response, said and said.error)
            if failure is not None and not (judged and response.status == 503):
                raise failure
        if isinstance(said, ServiceAnswer):
            found = [read_response(said)]
            # What else could it be about?
            found[0].request_id = found[0].request_id or next(iter(self._bodies))
        elif said is not None and said.error is not None:
            failed = JudgeResponse(error=_to_error_info(said.error))
            return ServiceReply(text="", responses=[failed] * len(self._bodies))
        elif said is None or said.responses is None:
            raise malformed_failure(response, "its body is not what a judge service answers")
        else:
            found = [read_response(one) for one in said.responses if type(one) is ServiceAnswer]
        # To each request the one response that names it, wherever that is.
        named: dict[str | None, JudgeResponse | None] = {}
        for one in found:
            named[one.request_id] = None if one.request_id in named else one
            one.request_id = None  # the wire's own
        problem = f"of the service's {len(found)} responses none, or several, have this request_id"
        lacks = JudgeResponse(error=ErrorInfo(ErrorKind.SERVER_ERROR, problem))
        return ServiceReply(text="", responses=[named.get(one) or lacks for one in self._bodies])


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


def _read_refusal(call: ChatCall, response: HttpResponse, said: Any) -> GradingFailure | None:
    """What a response outside 2xx says of the exchange; ``None``: what it says of one request."""
    failure, status = response_failure(response), response.status
    refused = status in (400, 404, 405, 413, 422)
    if isinstance(said, dict) and status not in (404, 405) and (refused or status == 503):
        error = _to_error_info(said)
        passes = error.kind in RETRYABLE_KINDS and error.passing
        if call is JUDGE_CALL and not passes:
            return None
        failure.kind = error.kind if passes else ErrorKind.SERVER_ERROR
    if refused:
        # Whatever the words remind of: nothing was judged, and asking again would not help.
        failure.kind = ErrorKind.INVALID_INPUT
    return failure


def _decode(body: bytes, form: type[_T]) -> _T | None:
    """What ``body`` says; ``None`` where it is no such JSON object."""
    try:
        return msgspec.json.decode(body, type=form)
    except (ValueError, RecursionError):
        return None


def read_response(said: ServiceAnswer) -> JudgeResponse:
    """One response: a finite score, or an error, never both and never neither.

    Where it has both, the error counts. What is neither is ``server_error``. Explanations and
    other additions that are not of their type are left out.
    """
    name, metadata = _of_type(said.request_id, str), _of_type(said.metadata, dict)
    if said.error is not None:
        return JudgeResponse(request_id=name, metadata=metadata, error=_to_error_info(said.error))
    if (score := _number(said.score)) is None:
        problem = f"the service's response has no number as its score ({said.score!r:.40})"
        error = ErrorInfo(ErrorKind.SERVER_ERROR, problem)
        return JudgeResponse(request_id=name, metadata=metadata, error=error)
    details = _of_type(said.detailed_scores, dict)
    return JudgeResponse(
        score,
        name,
        _of_type(said.explanation, str),
        details and {n: _number(one) for n, one in details.items()},
        _number(said.confidence),
        metadata,
    )


def _to_error_info(said: Any) -> ErrorInfo:
    """The error in an answer; one of a kind that is not known here would be the same again."""
    try:
        return msgspec.convert(said, ErrorInfo)
    except msgspec.ValidationError:
        kind = said.get("kind") if isinstance(said, dict) else None
        message = f"the service answered with an error of no known form: {said!s:.300}"
        return ErrorInfo(ErrorKind.SERVER_ERROR, message, local=kind not in [None, *ErrorKind])


def _of_type(value: Any, kind: type[_T]) -> _T | None:
    return value if isinstance(value, kind) else None


def _number(value: Any) -> float | None:
    return None if isinstance(value, bool) else finite_number(value)


def to_failure(error: ErrorInfo) -> GradingFailure:
    """What a judge said about one request."""
    return GradingFailure(error.kind, error.message, {"judge": True, **error.failure_metadata})


_SENT = "{s.judge_url}: {said} (sent {tries} ×, {until})"
_ADVICE = {
    ErrorKind.CIRCUIT_OPEN: "circuit breaker open: {s.judge_url} failed "
    "circuit_breaker_threshold = {s.circuit_breaker_threshold} times in a row and is asked again "
    "after circuit_breaker_timeout = {s.circuit_breaker_timeout:g} s; see its /health",
    ErrorKind.TIMEOUT: "timeout waiting for results: {said} (timeout = {s.timeout:g} s); raise "
    "timeout, or max_concurrent_requests where requests wait to be sent",
    ErrorKind.RATE_LIMITED: f"request queue full: {_SENT}; lower max_concurrent_requests, or "
    "raise timeout or the service's queue_size",
    ErrorKind.CONNECTION: _SENT,
    ErrorKind.SERVER_ERROR: _SENT,
    ErrorKind.AUTH: "{said}; the key is that of the variable {s.api_key_env} (api_key_env)",
}
"""What to do about a failure, by kind."""


def add_advice(failure: GradingFailure, s: ClientSettings) -> GradingFailure:
    """``failure`` with what to do about it, where it is not a judge's about one request."""
    facts, status = failure.metadata, failure.metadata.get("status") or 0
    own = facts.get("judge") or facts.get("local")
    waited = s.waits and failure.kind is ErrorKind.CIRCUIT_OPEN
    advice = "{said}" if own else _SENT if waited else _ADVICE.get(failure.kind, "{said}")
    if 300 <= status < 400 or status in (404, 405):
        advice = "{s.judge_url}: {said}; is this a judge service's address?"
    until = f"timeout = {s.timeout:g} s" if s.waits else f"max_retries = {s.max_retries}"
    said = advice.format(said=failure, tries=facts.get("attempts", 1), until=until, s=s)
    return GradingFailure(failure.kind, said, dict(facts))


# ── groups ───────────────────────────────────────────────────────────────────────────────────────

_log = logging.getLogger("adjudge")
_MAX_PAUSE_S = 30.0
_rng = random.Random()  # noqa: S311  (spreads retries)


class GroupClient:
    """Sends samples of groups to the judge service at ``url`` and waits for their groups.

    The answer comes when the whole group is there, or the service's ``group_timeout_s`` after its
    first sample; so give back what generation needs (a slot, a KV cache) before :meth:`judge`, and
    announce what will never come by :meth:`abort`. A request is sent again while the service cannot
    be reached, is full or stops: the same ``request_id`` is the same sample there, so nothing is
    judged twice. ``timeout_s`` is for everything together; keep it above the service's
    ``group_timeout_s`` (300) and ``deadline_s``. ``run_id`` keeps runs apart that use the same
    group ids. The key is read from the variable ``api_key_env`` for every request. One object
    serves any thread and loop.
    """

    def __init__(
        self,
        url: str,
        *,
        run_id: str | None = None,
        api_key_env: str = JUDGE_KEY_VARIABLE,
        timeout_s: float = 600.0,
        transport: Transport | None = None,
    ) -> None:
        self.url = normalize_url(url)
        self.run_id = run_id
        self.api_key_env = api_key_env
        self.timeout_s = timeout_s
        self._transport = transport
        self._failures = LogLimiter()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_transport": None}

    async def judge(self, request: GroupRequest) -> JudgeResponse:
        """The sample's answer: a score, or the error because of which it has none.

        Raises ``GradingFailure`` when there is no answer: ``timeout``, ``connection``,
        ``rate_limited``, ``server_error``, ``auth``.
        """
        if self.run_id is not None:
            fields = {**(request.metadata or {}), "run_id": self.run_id}
            request = msgspec.structs.replace(request, metadata=fields)
        return await run_on_engine(self._ask(request))

    async def abort(self, *, group_id: str, group_size: int, request_id: str) -> None:
        """Announce that a sample of the group will never be complete; raises as :meth:`judge`."""
        gone = GroupRequest(
            "", "", request_id=request_id, group_id=group_id, group_size=group_size, aborted=True
        )
        await self.judge(gone)

    async def aclose(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._transport is not None:
            await run_on_engine(self._transport.aclose())

    async def _ask(self, request: GroupRequest) -> JudgeResponse:
        body, _ = encode_request(request)
        wire = ServiceWire({request.request_id or "": body}, self.api_key_env)
        failure = late = GradingFailure(
            ErrorKind.TIMEOUT,
            f"no answer from the judge service within {self.timeout_s:g} s: raise timeout_s, "
            "or lower the service's group_timeout_s",
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timeout_s):
                for sends in itertools.count(1):
                    try:
                        self._transport = self._transport or AiohttpTransport()
                        response = await self._transport.post(self.url, wire.request(GROUP_CALL))
                        return _read_answer(response, request)
                    except GradingFailure as error:
                        if error.kind not in RETRYABLE_KINDS:
                            raise
                        failure = error
                        if n := self._failures.count(failure.kind):
                            words = "%s: a sample of a group is sent again (%s, %d ×): %s"
                            _log.warning(words, self.url, failure.kind, n, failure)
                    wait = parse_retry_after(failure.metadata.get("headers") or {}) or 0.0
                    wait = min(wait, _MAX_PAUSE_S)
                    await asyncio.sleep(max(wait, full_jitter(sends, _rng)))
                    failure = late
        raise failure


def _read_answer(response: HttpResponse, request: GroupRequest) -> JudgeResponse:
    """What the service said about the sample.

    Raises ``GradingFailure``: of a kind that may pass where it said nothing yet.
    """
    said = _decode(response.body, ServiceAnswer)
    if said is not None and said.request_id in (None, request.request_id):
        if request.aborted and response.status == 200:
            return JudgeResponse(request_id=request.request_id)
        answer = read_response(said)
        settled = "group" in (answer.metadata or {})
        if said.error is not None and (settled or response.status in (400, 413, 422)):
            return answer
        if settled and answer.error is None and response.status == 200:
            return answer
    if response.status in (401, 403):
        raise GradingFailure(ErrorKind.AUTH, "the judge service refused the key (api_key_env)")
    if response.status == 404:
        raise GradingFailure(ErrorKind.UNSUPPORTED, "this judge service has no /group_judge")
    if not 200 <= response.status < 300:
        raise response_failure(response)
    raise GradingFailure(ErrorKind.SERVER_ERROR, "the judge service's answer has no group's score")


# ── what trainers hand in ────────────────────────────────────────────────────────────────────────


_OWN_FIELDS = ("request_id", "metadata", "messages", "images")


def build_request(
    prompt: Any, completion: Any = None, answer: Any = None, answer_type: Any = None, **fields: Any
) -> RequestOrFailure:
    """One call's arguments; what is not text, a list, a mapping is found when it is encoded."""
    if completion is None:
        completion = fields.pop("completions", None)
    own = {name: fields.pop(name) for name in _OWN_FIELDS if name in fields}
    problem, metadata = "", own.get("metadata")
    if "completions" in fields:
        problem = "completion and completions: both are given. Give one of them"
    elif metadata is not None and not isinstance(metadata, Mapping):
        problem = f"metadata: must be a mapping (found {type(metadata).__name__})"
    elif not isinstance(completion, str):
        problem = f"completion: must be one text (found {type(completion).__name__})"
    if problem:
        return GradingFailure(ErrorKind.INVALID_INPUT, problem, {"local": True})
    if fields:
        own["metadata"] = {**(metadata or {}), **fields}
    if type(answer) is tuple:
        answer = list(answer)
    return JudgeRequest(prompt, completion, answer, answer_type, **own)


def build_requests(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    answers: Sequence[Any] | None = None,
    answer_types: Sequence[Any] | str | None = None,
    **fields: Sequence[Any],
) -> list[RequestOrFailure]:
    """Columns as requests by place; one ``answer_types`` is for all. Raises ``ConfigError``."""
    if one := fields.keys() & {"prompt", "completion", "answer", "answer_type"}:
        raise ConfigError(f"reward_batch: {min(one)}: the list is called {min(one)}s")
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
        build_request(prompt, completion, answer, kind, **dict(zip(fields, more, strict=True)))
        for prompt, completion, answer, kind, *more in zip(*given.values(), strict=True)
    ]
