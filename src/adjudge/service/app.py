"""The service without a framework: routes that judge, and pages about it.

:meth:`Service.answer` is what the server asks (:mod:`.server`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from adjudge.errors import ConfigError, ErrorKind, RolloutError
from adjudge.judges.endpoint.connections import CallCounter
from adjudge.service import ServiceSettings
from adjudge.service.backend import Backend, GroupRendezvous, problem_response
from adjudge.service.formats import Format
from adjudge.service.metrics import RouteMetrics, ServiceMetrics
from adjudge.service.queue import BackendQueue, check_responses
from adjudge.service.requests import (
    CONTAINERS,
    REQUEST_FAULTS,
    ApiKeyAuth,
    AsgiReceive,
    BodyReader,
    RequestRefused,
    StrictReader,
    check_request,
    check_value_count,
    decode_rows,
    invalid_request,
)
from adjudge.text import encode_json
from adjudge.wire import (
    BATCH_LENGTH,
    MAX_ID_LENGTH,
    BatchRequest,
    BatchResponse,
    GroupRequest,
    JudgeRequest,
    JudgeResponse,
)

_DRAIN_POLL_S = 0.05
_client: ContextVar[str] = ContextVar("client", default="")
"""Whose key the request showed; each request has a task, and so a context, of its own."""
JSON_HEAD = b"content-type: application/json\r\n"
Reply = tuple[int, bytes, bytes]
"""The status, the lines of the head, and the body."""
_Answer = Callable[[bytes], Awaitable[Reply]]


class ServicePhase(StrEnum):
    """What the service is doing."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


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
        formats: Iterable[Format] = (),
        rendezvous: GroupRendezvous | None = None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.auth = ApiKeyAuth(keys or {})
        self.phase = ServicePhase.LOADING
        self.inflight = 0
        """HTTP requests being answered."""
        self._rendezvous = rendezvous or GroupRendezvous()
        self.metrics = ServiceMetrics()
        self.calls = CallCounter()
        self._batcher = BackendQueue(backend, settings, self.metrics.batches.observe)
        self.metrics.queue = self._batcher
        self._one = StrictReader(_StrictRequest, JudgeRequest)
        self._batch = StrictReader(_StrictBatch, BatchRequest)
        self._group = StrictReader(_StrictGroupRequest, GroupRequest)
        self._clients = settings.client_weights
        self._max_image = int(settings.max_body_mb * 1e6 / 2)
        self._max_values = settings.max_values
        self._bodies = BodyReader(int(settings.max_body_mb * 1e6), settings.max_held)
        self._routes: dict[str, tuple[_Answer, RouteMetrics]] = {}
        answers: list[tuple[str, _Answer]] = [
            ("/judge", self._judge),
            ("/batch_judge", self._batch_judge),
            ("/group_judge", self._group_judge),
            *((one.path, partial(self._answer_format, one)) for one in formats),
        ]
        for path, answer in answers:
            if path in self._routes or path in _PAGES or not path.startswith("/"):
                raise ConfigError(
                    f"formats: path: must begin with '/' and be no other route's (found {path!r})"
                )
            self._routes[path] = answer, self.metrics.routes.setdefault(path, RouteMetrics())

    @property
    def routes(self) -> list[str]:
        """The paths that judge."""
        without = "/group_judge" if type(self._rendezvous) is GroupRendezvous else ""
        return [path for path in self._routes if path != without]

    async def start(self) -> None:
        """Load the backend; then requests are taken."""
        await self.backend.start()
        if self.phase is ServicePhase.LOADING:
            self.phase = ServicePhase.READY

    async def drain(self, seconds: float) -> None:
        """Take no more requests; give those taken so long, then answer the rest ``cancelled``."""
        self.phase = ServicePhase.DRAINING
        self._rendezvous.stop_waiting()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.inflight and loop.time() < end:  # noqa: ASYNC110  (an event would cost each)
            await asyncio.sleep(_DRAIN_POLL_S)
        self._batcher.stop()
        await self._rendezvous.aclose()

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """Judge requests that are wholly here; raises :class:`RequestRefused`."""
        self.check_open()
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
            # Texts and numbers need not be looked through.
            parts = request.metadata or request.messages or request.images
            if parts or request.answer.__class__ in CONTAINERS:
                check_request(request, self._max_image)
        responses = await self._batcher.score(requests, _client.get() or _run_of(requests))
        for response in responses:
            if response.error is not None or response.failures is not None:
                self._count_failures(response)
        return responses

    def _count_failures(self, response: JudgeResponse) -> None:
        if response.error is not None:
            self.metrics.failures[response.error.kind] += 1
        self.metrics.failures.update((response.failures or {}).values())

    async def _join_groups(self, requests: Sequence[GroupRequest]) -> list[JudgeResponse]:
        """Samples of groups in a trainer's format; without a size of their own, the settings'."""
        size = self.settings.group_size
        if not size and not all(one.group_size for one in requests):
            raise invalid_request(
                "group_size: this spec compares the samples of a group, and the request does not "
                "say how many there are. Start the service with --group-size N"
            )
        for request in requests:
            check_request(request, self._max_image)
            request.group_size = request.group_size or size
        joining = [asyncio.ensure_future(self._join(one)) for one in requests]
        return [await one for one in joining]

    async def _join(self, request: GroupRequest) -> JudgeResponse:
        began = time.perf_counter()
        response = await self._rendezvous.join(request)
        check_responses([response], [request], self._batcher.facts(began))
        if not request.aborted:
            self._count_failures(response)
        return response

    async def answer(
        self, scope: dict[str, Any], receive: AsgiReceive, body: bytes | None = None
    ) -> Reply:
        """The answer to a request; ``body``: what it is, where all of it is here.

        Never a status of 500, whatever a format or a rendezvous raises.
        """
        route = self._routes.get(scope["path"])
        if route is None:
            return self._page(scope)
        judge, metrics = route
        began, size, reply = time.perf_counter(), 0, None
        self.inflight += 1
        try:
            if scope["method"] != "POST":
                raise RequestRefused(405, ErrorKind.UNSUPPORTED, "this route takes POST")  # noqa: TRY301
            client = self.auth.check(scope["headers"])
            if client in self._clients:  # who shows the shared key is told apart by run
                _client.set(client)
            self.check_open()
            if body is None:
                body = await self._bodies.read(scope["headers"], receive)
                size = len(body)
            else:
                size = len(body)
                self._bodies.hold(size, size)
            check_value_count(body, self._max_values)
            reply = await judge(body)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  a format may be a user's code
            reply = _failure_reply(error)
        finally:
            self._bodies.held -= size
            self.inflight -= 1
            metrics.outcomes[_request_outcome(reply, self.phase)] += 1
            metrics.seconds.observe(time.perf_counter() - began)
        return reply

    def _page(self, scope: dict[str, Any]) -> Reply:
        """One of the pages that judge nothing."""
        try:
            if (page := _PAGES.get(scope["path"])) is None:
                raise RequestRefused(404, ErrorKind.UNSUPPORTED, "Not Found")  # noqa: TRY301
            if scope["method"] not in ("GET", "HEAD"):
                raise RequestRefused(405, ErrorKind.UNSUPPORTED, "Method Not Allowed")  # noqa: TRY301
            make, needs_key, head = page
            if needs_key:
                self.auth.check(scope["headers"])
            return 200, head, make(self)
        except RequestRefused as refused:
            return _failure_reply(refused, allow=b"GET, HEAD")

    def check_open(self) -> None:
        """Raise :class:`RequestRefused` (503) unless requests are taken."""
        if self.phase is ServicePhase.READY:
            return
        wait = 1 if self.phase is ServicePhase.LOADING else 5
        raise RequestRefused(503, ErrorKind.SERVER_ERROR, f"the service is {self.phase}", wait)

    async def _judge(self, body: bytes) -> Reply:
        request, keys = self._one.read(body)
        [response] = await self.score((request,))
        if keys:
            response.warnings = self._one.warnings(keys)
        return _make_reply(response)

    async def _batch_judge(self, body: bytes) -> Reply:
        batch, keys = self._batch.read(body)
        requests = batch.requests
        rows = decode_rows(keys["requests"]) if keys else ()
        for number, request in enumerate(requests, 1):
            if request.request_id is None:
                request.request_id = str(number)
        reply = BatchResponse(await self.score(requests))
        for response, row in zip(reply.responses, rows, strict=False):
            response.warnings = self._one.warnings(row)
        if keys:
            reply.warnings = self._batch.warnings(keys)
        return 200, JSON_HEAD, encode_json(reply)

    async def _group_judge(self, body: bytes) -> Reply:
        request, keys = self._group.read(body)
        check_request(request, self._max_image)
        response = await self._join(request)
        response.warnings = self._group.warnings(keys)
        if request.aborted:
            return 200, JSON_HEAD, encode_json(response)
        return _make_reply(response)

    async def _answer_format(self, wire_format: Format, body: bytes) -> Reply:
        return 200, JSON_HEAD, await wire_format.answer(bytes(body), self.score)


def _make_reply(
    response: JudgeResponse, refused: RequestRefused | None = None, allow: bytes = b"POST"
) -> Reply:
    """A response with the status that a refusal has, else that of its error's kind."""
    status, wait, head = 200, None, JSON_HEAD
    if refused is not None:
        status, wait = refused.status, refused.retry_after
    elif (error := response.error) is not None:
        status = 422 if error.kind in REQUEST_FAULTS else 503
        wait = 1.0 if status == 503 and error.passing else None
    if wait is not None:
        head += b"retry-after: %d\r\n" % math.ceil(wait)
    if status == 405:
        head += b"allow: %b\r\n" % allow
    return status, head, encode_json(response)


def _failure_reply(error: BaseException, allow: bytes = b"POST") -> Reply:
    """A refusal with the status that it has; any other exception as a failed judgement."""
    if isinstance(error, RolloutError):  # texts or messages that cannot be read
        error = invalid_request(str(error))
    refused = error if isinstance(error, RequestRefused) else None
    return _make_reply(problem_response(error), refused, allow)


class _StrictRequest(JudgeRequest, forbid_unknown_fields=True):
    """A request without unknown keys."""


class _StrictGroupRequest(GroupRequest, forbid_unknown_fields=True):
    """The same, of a group."""


class _StrictBatch(BatchRequest, forbid_unknown_fields=True):
    requests: Annotated[list[_StrictRequest], BATCH_LENGTH]  # type: ignore[assignment]


def _run_of(requests: Sequence[JudgeRequest]) -> str:
    """The run that requests are of, which has a share of the queue where no key says whose."""
    if not requests or not (metadata := requests[0].metadata):
        return ""
    run = metadata.get("run_id")
    return run[:MAX_ID_LENGTH] if isinstance(run, str) else ""


def _request_outcome(reply: Reply | None, phase: ServicePhase) -> str:
    status = 0 if reply is None else reply[0]
    if status == 503:
        return "failed" if phase is ServicePhase.READY else "unavailable"
    return {0: "disconnected", 200: "answered", 429: "queue_full"}.get(status, "refused")


def _health(service: Service) -> bytes:
    """What clients read as :class:`adjudge.client.grader.ServiceInfo`, and more."""
    return encode_json({
        "status": "healthy",
        "model_loaded": service.phase is not ServicePhase.LOADING,
        "model_version": service.backend.version,
        "compares_groups": service.backend.compares_groups,
        "graders": list(service.backend.grader_names),
        "group_timeout_s": service.settings.group_timeout_s,
        "deadline_s": service.settings.deadline_s,
    })  # fmt: skip


def _ready(service: Service) -> bytes:
    service.check_open()
    return b'{"status":"ready"}'


def _reverify_mode(service: Service) -> bytes:
    """Whether NeMo-Gym may verify rows again: unless the spec compares a row with others."""
    return b'"stateless"' if service.backend.compares_groups is None else b'"unsupported"'


_PROMETHEUS_HEAD = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"
_PAGES: dict[str, tuple[Callable[[Service], bytes], bool, bytes]] = {
    "/health": (_health, False, JSON_HEAD),
    "/ready": (_ready, False, JSON_HEAD),
    "/metrics": (lambda service: service.metrics.text(), True, _PROMETHEUS_HEAD),
    "/calls": (lambda service: encode_json(service.calls.table()), True, JSON_HEAD),
    "/reverify_mode": (_reverify_mode, False, JSON_HEAD),
}
"""Each page, whether it needs a key (what watches a process has none), and its head."""
