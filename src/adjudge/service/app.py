"""The service as an ASGI application: the routes that judge, without a framework in between.

Everything else (``/health``, ``/metrics``) goes to :mod:`.admin_routes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import msgspec

from adjudge.errors import PASSING_KINDS, ConfigError, ErrorKind, GradingFailure
from adjudge.judges.endpoint.connections import CallCounter
from adjudge.service.admin_routes import ADMIN_PATHS, admin_routes
from adjudge.service.backend import (
    Backend,
    BackendErrorReporter,
    BackendQueue,
    UnknownKeyReporter,
    check_response,
)
from adjudge.service.formats.base import WireFormat
from adjudge.service.metrics import RouteMetrics, ServiceMetrics
from adjudge.service.requests import (
    ApiKeyAuth,
    AsgiReceive,
    BodyMemoryLimit,
    RequestRefused,
    check_request,
    check_value_count,
    decode_body,
    error_body,
    read_body,
    refusal_from_error,
)
from adjudge.service.settings import ServiceSettings
from adjudge.wire import (
    MAX_BATCH,
    BatchRequest,
    BatchResponse,
    ErrorInfo,
    GroupRequest,
    JudgeRequest,
    JudgeResponse,
)

AsgiSend = Callable[[dict[str, Any]], Awaitable[None]]
_T = TypeVar("_T")
_MAX_RUN_ID = 256
_client: ContextVar[str] = ContextVar("client", default="")
"""Whose key the request showed; each request has a task, and so a context, of its own."""
_Reply = tuple[int, bytes, int | None]

_REQUEST_FAULTS = frozenset({ErrorKind.INVALID_INPUT, ErrorKind.UNSUPPORTED})
_STATUSES = frozenset(one for one in HTTPStatus if one >= 200) - {204, 205, 304}
"""What a format may answer with: statuses whose response has a body."""
_JSON_HEADER = (b"content-type", b"application/json")
_NO_HEADERS: tuple[tuple[bytes, bytes], ...] = ()


class ServicePhase(StrEnum):
    """What the service is doing."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class GroupRendezvous(Protocol):
    """Where the samples of a group wait for each other."""

    async def join(self, request: GroupRequest) -> JudgeResponse:
        """The answer to one sample, once its group is complete or was closed."""

    def stop_waiting(self) -> None:
        """Nobody can come any more: end the groups that are not complete."""

    async def aclose(self) -> None:
        """Answer those that still wait, and stop."""


class Service:
    """A backend behind HTTP. Made on the event loop that serves it; ``await start()`` loads it.

    ``keys``: what clients must show one of, by client (none: nothing). ``formats`` and
    ``rendezvous`` add the trainers' routes and ``/group_judge``. Raises :class:`ConfigError` for
    two formats on one path.
    """

    def __init__(
        self,
        backend: Backend,
        settings: ServiceSettings,
        *,
        keys: Mapping[str, str] | None = None,
        formats: Iterable[WireFormat] = (),
        rendezvous: GroupRendezvous | None = None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.auth = ApiKeyAuth(keys or {})
        self.phase = ServicePhase.LOADING
        self.formats = tuple(formats)
        self.inflight = 0
        """HTTP requests being answered."""
        self._rendezvous = rendezvous
        self.metrics = ServiceMetrics()
        self.calls = CallCounter()
        self._batcher = BackendQueue(backend, settings, self.metrics.batches.add)
        self.metrics.watch(self._batcher)
        self._error_reporter = BackendErrorReporter()
        self._unknown_keys = UnknownKeyReporter()
        self._clients = settings.client_weights
        self._max_body = int(settings.max_body_mb * 1e6)
        self._max_image = int(settings.max_image_mb * 1e6)
        self._body_memory = BodyMemoryLimit(settings.max_held)
        self._all_answered = asyncio.Event()
        self._routes = {
            "/judge": self._route("/judge", self._judge),
            "/batch_judge": self._route("/batch_judge", self._batch_judge),
            "/group_judge": self._route("/group_judge", self._group_judge),
        }
        for one in self.formats:
            if one.path in self._routes or one.path in ADMIN_PATHS:
                raise ConfigError(
                    f"{type(one).__name__}: path: the service has another route at {one.path!r}. "
                    "Give the format a path of its own."
                )
            self._routes[one.path] = self._route(one.path, self._in_format(one))
        self._admin = admin_routes(self)

    @property
    def routes(self) -> list[str]:
        """The paths that judge."""
        return list(self._routes)

    async def start(self) -> None:
        """Load the backend; then requests are taken."""
        await self.backend.start()
        if self.phase is ServicePhase.LOADING:
            self.phase = ServicePhase.READY

    async def drain(self, seconds: float) -> None:
        """Take no more requests; give those taken so long, then answer the rest ``cancelled``."""
        self.phase = ServicePhase.DRAINING
        self._all_answered.clear()
        if self._rendezvous is not None:
            self._rendezvous.stop_waiting()
        if self.inflight:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_answered.wait(), seconds)
        self._batcher.stop()
        if self._rendezvous is not None:
            await self._rendezvous.aclose()

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """Judge requests that are wholly here; raises :class:`RequestRefused` and ``QueueFull``."""
        self._check_open()
        if (what := self.backend.compares_groups) is not None:
            groups = [one for one in requests if isinstance(one, GroupRequest)]
            if len(groups) == len(requests):  # a format whose trainer says which belong together
                return await self._join_groups(groups)
            raise RequestRefused(
                422,
                ErrorKind.UNSUPPORTED,
                f"this spec compares the samples of a group ({what}): send them to /group_judge, "
                "or with NeMo-Gym's _ng_group_id and _ng_rollout_index",
            )
        for request in requests:
            if not _is_plain(request):
                check_request(request, self._max_image)
        client = _client.get() or _run_of(requests)
        responses = await self._batcher.score(requests, client)
        for response in responses:
            if response.error is not None:
                self.metrics.failed(response.error.kind)
        return responses

    async def _join_groups(self, requests: Sequence[GroupRequest]) -> list[JudgeResponse]:
        """Samples of groups in a trainer's format; without a size of their own, the settings'."""
        rendezvous = self._find_rendezvous()
        size = self.settings.group_size
        if not size and not all(one.group_size for one in requests):
            raise RequestRefused(
                422,
                ErrorKind.INVALID_INPUT,
                "group_size: this spec compares the samples of a group, and the request does not "
                "say how many there are. Start the service with --group-size N",
            )
        for request in requests:
            check_request(request, self._max_image)
            request.group_size = request.group_size or size
        joining = [asyncio.ensure_future(rendezvous.join(one)) for one in requests]
        return [await one for one in joining]

    def _find_rendezvous(self) -> GroupRendezvous:
        if self._rendezvous is None:
            message = "this service judges no groups. Use /judge"
            raise RequestRefused(422, ErrorKind.UNSUPPORTED, message)
        return self._rendezvous

    async def __call__(self, scope: dict[str, Any], receive: AsgiReceive, send: AsgiSend) -> None:
        """Answer one request, by the ASGI protocol."""
        route = self._routes.get(scope.get("path", ""))
        if route is None or scope["type"] != "http":
            await self._admin(scope, receive, send)  # type: ignore[arg-type]  # its own words for ours
            return
        answer, metrics = route
        began = time.perf_counter()
        outcome = "disconnected"
        self.inflight += 1
        try:
            status, body, retry_after = await self._reply(answer, scope, receive)
            outcome = _request_outcome(status, self.phase)
            headers = _NO_HEADERS if status == 200 else _reply_headers(status, retry_after)
            reply = scope.get("adjudge.reply")
            if (
                reply is None
                or scope["method"] == "HEAD"
                or not reply(status, b"".join(b"%b: %b\r\n" % one for one in headers), body)
            ):
                await _send_all(send, status, headers, body)
        finally:
            self.inflight -= 1
            if not self.inflight and self.phase is ServicePhase.DRAINING:
                self._all_answered.set()
            metrics.count(outcome, time.perf_counter() - began)

    def _route(
        self, path: str, answer: Callable[[bytes], Awaitable[_Reply]]
    ) -> tuple[Callable[[bytes], Awaitable[_Reply]], RouteMetrics]:
        return answer, self.metrics.route(path)

    async def _reply(
        self,
        answer: Callable[[bytes], Awaitable[_Reply]],
        scope: dict[str, Any],
        receive: AsgiReceive,
    ) -> _Reply:
        """The answer, or the refusal, to one request."""
        size = 0
        try:
            headers = scope["headers"]
            self._check_method_and_key(scope["method"], headers)
            body = await read_body(headers, receive, self._max_body, self._body_memory)
            size = len(body)
            await check_value_count(body, self.settings.max_values)
            return await answer(body)
        except RequestRefused as refused:
            return refused.status, error_body(refused.kind, str(refused)), refused.retry_after
        except GradingFailure as failure:
            return _failure_reply(failure)
        except Exception as error:  # noqa: BLE001  a format's or rendezvous' fault; never a 500
            response = self._error_reporter.report(error)
            return 503, _encode(response), None
        finally:
            self._body_memory.bytes -= size

    def _check_method_and_key(self, method: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Refuse what need not be read at all."""
        if method != "POST":
            raise RequestRefused(405, ErrorKind.UNSUPPORTED, "this route takes POST")
        client = self.auth.check(headers)
        if client in self._clients:  # who shows the shared key is told apart by run
            _client.set(client)
        self._check_open()

    def _check_open(self) -> None:
        if self.phase is ServicePhase.READY:
            return
        wait = 1 if self.phase is ServicePhase.LOADING else 5
        raise RequestRefused(503, ErrorKind.SERVER_ERROR, f"the service is {self.phase}", wait)

    async def _judge(self, body: bytes) -> _Reply:
        request, keys = _read_request(body)
        [response] = await self.score((request,))
        if keys:
            response.warnings = self._unknown_keys.warnings(keys, _ONE_KEYS)
        return self._response_reply(response)

    async def _batch_judge(self, body: bytes) -> _Reply:
        batch, keys = _read_batch(body)
        requests = batch.requests
        rows = decode_body(_raw_batch_decoder, body).requests if keys else []
        if not 1 <= len(requests) <= MAX_BATCH:
            raise RequestRefused(
                422,
                ErrorKind.INVALID_INPUT,
                f"requests: found {len(requests)}, must be 1 to {MAX_BATCH}",
            )
        for number, request in enumerate(requests, 1):
            if request.request_id is None:
                request.request_id = str(number)
        responses = await self.score(requests)
        reply = BatchResponse(responses)
        for response, row in zip(responses, rows, strict=False):
            response.warnings = self._unknown_keys.warnings(row, _ONE_KEYS)
        reply.warnings = self._unknown_keys.warnings(keys, ("requests",))
        try:
            return 200, _encode(reply), None
        except (TypeError, ValueError, RecursionError):
            reply.responses = [self._sendable(one) for one in responses]
            return 200, _encode(reply), None

    async def _group_judge(self, body: bytes) -> _Reply:
        request, keys = _read_group(body)
        check_request(request, self._max_image)
        rendezvous = self._find_rendezvous()
        self._check_open()
        began = time.perf_counter()
        response = await rendezvous.join(request)
        latency = round(time.perf_counter() - began, 6)
        facts = {"latency": latency, "model_version": self.backend.version}
        response = check_response(response, request, facts)
        response.warnings = self._unknown_keys.warnings(keys, _GROUP_KEYS)
        if request.aborted:
            return 200, _encode(response), None
        if response.error is not None:
            self.metrics.failed(response.error.kind)
        return self._response_reply(response)

    def _in_format(self, wire_format: WireFormat) -> Callable[[bytes], Awaitable[_Reply]]:
        async def answer(body: bytes) -> _Reply:
            try:
                # Anything, where the format is a user's.
                answered: tuple[Any, Any] = await wire_format.answer(body, self.score)
                status, reply = answered
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise refusal_from_error(error) from None
            except SystemExit as error:  # a format of the user's own must not end the service
                return 503, _encode(self._error_reporter.report(error)), None
            if not isinstance(reply, bytes) or status not in _STATUSES:
                name = type(wire_format).__name__
                problem = f"{name} answered with no HTTP status and bytes"
                return 503, _encode(self._error_reporter.report(problem)), None
            return status, reply, 1 if status == 503 and _may_pass(reply) else None

        return answer

    def _response_reply(self, response: JudgeResponse) -> _Reply:
        try:
            body = _encode(response)
        except (TypeError, ValueError, RecursionError):
            response = self._sendable(response)
            body = _encode(response)
        if response.error is None:
            return 200, body, None
        kind = response.error.kind
        if kind in _REQUEST_FAULTS:
            return 422, body, None
        return 503, body, 1 if response.error.passing else None

    def _sendable(self, response: JudgeResponse) -> JudgeResponse:
        """Itself; or a failure instead, when the backend put something in that is no JSON."""
        try:
            _encode(response)
        except (TypeError, ValueError, RecursionError) as error:
            self.metrics.failed(ErrorKind.BUG)
            broken = self._error_reporter.report(
                f"the response is no JSON ({type(error).__name__})"
            )
            facts = {"model_version": self.backend.version}
            return check_response(
                broken, JudgeRequest("", "", request_id=response.request_id), facts
            )
        return response


_encode = msgspec.json.Encoder().encode
_keys_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_KEYS: Mapping[str, msgspec.Raw] = {}
_ONE_KEYS, _GROUP_KEYS = JudgeRequest.__struct_fields__, GroupRequest.__struct_fields__


def _reader(
    strict: type[_T], loose: type[_T]
) -> Callable[[bytes], tuple[_T, Mapping[str, msgspec.Raw]]]:
    """Reads a body; also as its keys where it has unknown ones, which most have not.

    What is wrong with a body is said by the ``loose`` decoder.
    """
    decode, decoder = msgspec.json.Decoder(strict).decode, msgspec.json.Decoder(loose)

    def read(body: bytes) -> tuple[_T, Mapping[str, msgspec.Raw]]:
        try:
            return decode(body), _NO_KEYS
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return decode_body(decoder, body), decode_body(_keys_decoder, body)

    return read


class _StrictRequest(JudgeRequest, forbid_unknown_fields=True):
    """A request without unknown keys."""


class _StrictGroupRequest(GroupRequest, forbid_unknown_fields=True):
    """The same, of a group."""


class _StrictBatch(BatchRequest, forbid_unknown_fields=True):
    requests: list[_StrictRequest]  # type: ignore[assignment]


class _ErrorBody(msgspec.Struct):
    error: ErrorInfo


class _RawBatch(msgspec.Struct):
    requests: list[dict[str, msgspec.Raw]]


_read_request = _reader(_StrictRequest, JudgeRequest)
_read_batch = _reader(_StrictBatch, BatchRequest)
_read_group = _reader(_StrictGroupRequest, GroupRequest)
_decode_error = msgspec.json.Decoder(_ErrorBody).decode
_raw_batch_decoder = msgspec.json.Decoder(_RawBatch)


def _may_pass(reply: bytes) -> bool:
    """Whether a format's 503 is about a failure that may pass by itself."""
    try:
        return _decode_error(reply).error.passing
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _run_of(requests: Sequence[JudgeRequest]) -> str:
    """The run that requests are of, which has a share of the queue where no key says whose."""
    if not requests or not (metadata := requests[0].metadata):
        return ""
    run = metadata.get("run_id")
    return run[:_MAX_RUN_ID] if isinstance(run, str) else ""


def _is_plain(request: JudgeRequest) -> bool:
    """Whether it brings texts and numbers only, so that nothing in it has to be looked through."""
    parts = request.metadata or request.messages or request.images
    return not (parts or isinstance(request.answer, list | dict))


def _failure_reply(failure: GradingFailure) -> _Reply:
    body = error_body(failure.kind, str(failure))
    if failure.kind is ErrorKind.RATE_LIMITED:
        return 429, body, math.ceil(getattr(failure, "retry_after", 1))
    if failure.kind in _REQUEST_FAULTS:
        return 422, body, None
    return 503, body, 1 if failure.kind in PASSING_KINDS else None


def _reply_headers(status: int, retry_after: int | None) -> list[tuple[bytes, bytes]]:
    headers = []
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after))
    if status == 405:
        headers.append((b"allow", b"POST"))
    return headers


async def _send_all(
    send: AsgiSend, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> None:
    """By the ASGI protocol, for servers other than ours."""
    all_headers = [_JSON_HEADER, (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def _request_outcome(status: int, phase: ServicePhase) -> str:
    if status == 200:
        return "answered"
    if status == 429:
        return "queue_full"
    if status == 503:
        return "failed" if phase is ServicePhase.READY else "unavailable"
    return "refused"
