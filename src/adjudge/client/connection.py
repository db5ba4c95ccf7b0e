"""A client of one judge service, and what it keeps on each event loop.

The client itself is configuration only, for any thread, loop and process. On a loop it has its way
to the service, its cache, and its counts, which ``get_metrics`` shows. What went wrong between
client and service is told in words that name the setting to change.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from cachetools import TTLCache

from adjudge.client.batcher import QueuedRequest, RequestBatcher
from adjudge.client.exchange import encode_request, with_unicode_text
from adjudge.client.settings import ClientSettings
from adjudge.errors import ErrorKind, GradingFailure, is_passing
from adjudge.judges.endpoint.connections import Connection, EndpointKey, aclose_one, connect
from adjudge.judges.endpoint.endpoint import Endpoint
from adjudge.judges.endpoint.stats import LatencyHistogram
from adjudge.wire import JudgeRequest, JudgeResponse


def may_fall_back(failure: GradingFailure) -> bool:
    """Whether a rule may stand in: the service is away, fails after retries, is given up, is late.

    Not where this side is at fault (``metadata["local"]``), the key is refused, the request is
    wrong, or a judge answered and could not be read.
    """
    return is_passing(failure.kind, failure.metadata)


def add_advice(failure: GradingFailure, settings: ClientSettings) -> GradingFailure:
    """``failure`` with what to do about it; a new object, since many may get the same one."""
    kind, said = failure.kind, str(failure)
    if failure.metadata.get("judge"):  # said by a judge, about this request
        message = said
    elif kind is ErrorKind.CIRCUIT_OPEN:
        message = (
            f"circuit breaker open: {settings.judge_url} failed circuit_breaker_threshold = "
            f"{settings.circuit_breaker_threshold} times in a row and is asked again after "
            f"circuit_breaker_timeout = {settings.circuit_breaker_timeout:g} s; see its /health"
        )
    elif kind is ErrorKind.TIMEOUT:
        message = (
            f"timeout waiting for results: {said} (timeout = {settings.timeout:g} s); raise "
            "timeout, or max_concurrent_requests where requests wait to be sent"
        )
    elif kind is ErrorKind.RATE_LIMITED and not failure.metadata.get("local"):
        message = (
            f"request queue full: {said}; lower max_concurrent_requests or max_batch_size, or raise"
            " the service's queue_size"
        )
    elif kind in (ErrorKind.CONNECTION, ErrorKind.SERVER_ERROR):
        tries = failure.metadata.get("attempts", 1)
        message = f"{said} (sent {tries} ×, max_retries = {settings.max_retries})"
        if settings.judge_url not in said:
            message = f"{settings.judge_url}: {message}"
    elif kind is ErrorKind.INVALID_INPUT and failure.metadata.get("status") in (404, 405):
        message = f"{said}; is judge_url = {settings.judge_url} a judge service's address?"
    elif kind is ErrorKind.AUTH:
        message = f"{said}; the key is that of the variable {settings.api_key_env} (api_key_env)"
    else:
        message = said
    return GradingFailure(kind, message, dict(failure.metadata))


_BINS = 10


class ClientCounts:
    """Requests by what became of them; ``requests == scored + errors`` once nothing is out."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.requests = self.scored = self.cache_hits = self.shared = self.fallbacks = 0
        self.failures: dict[str, int] = {}
        self.latencies = LatencyHistogram()
        self.histogram = [0] * _BINS
        self.below = self.above = 0

    @property
    def errors(self) -> int:
        """Requests that the judge did not score."""
        return sum(self.failures.values())

    def answered(
        self,
        response: JudgeResponse | None,
        failure: Exception | None,
        seconds: float,
        cached: bool,
    ) -> None:
        """A request has its outcome."""
        if response is None or response.score is None:
            self.failed(failure.kind if isinstance(failure, GradingFailure) else "bug")
            return
        self.scored += 1
        if not cached:
            self.latencies.add(seconds)
        if response.score < 0:
            self.below += 1
        elif response.score > 1:
            self.above += 1
        else:
            self.histogram[min(int(response.score * _BINS), _BINS - 1)] += 1

    def failed(self, kind: str) -> None:
        """A request was not scored."""
        self.failures[str(kind)] = self.failures.get(str(kind), 0) + 1


def collect_metrics(
    counts: ClientCounts, batcher: RequestBatcher, endpoint: Endpoint, version: str | None
) -> dict[str, Any]:
    """The numbers since the first request, always the same keys.

    Shares are of ``total_requests`` and 0 where there were none. ``latency`` is the median, in
    seconds as all times, ``None`` while nothing was scored. ``batch_processing_rate`` is batches a
    second, ``batched_share`` the share of requests sent that did not travel alone,
    ``current_queue_size`` those that wait to be sent. ``reward_histogram`` counts the judge's
    scores, cached ones too, between its ``edges``, and outside. ``last_failure_time`` is in POSIX
    seconds.
    """
    stats = endpoint.stats
    total = max(counts.requests, 1)
    elapsed = max(time.monotonic() - counts.started, 1e-9)
    return {
        "total_requests": counts.requests,
        "scored": counts.scored,
        "cache_hit_rate": counts.cache_hits / total,
        "cache_hits": counts.cache_hits,
        "shared_in_flight": counts.shared,
        "batch_processing_rate": batcher.posts / elapsed,
        "batches": batcher.posts,
        "batched_share": batcher.batched / max(batcher.sent, 1),
        "current_queue_size": batcher.waiting,
        "in_flight_requests": batcher.in_flight,
        "peak_in_flight_batches": stats.peak_in_flight,
        "errors": counts.errors,
        "error_rate": counts.errors / total,
        "failures": dict(counts.failures),
        "fallbacks": counts.fallbacks,
        "fallback_rate": counts.fallbacks / total,
        "stray_responses": batcher.strays,
        "retries": stats.retries + stats.timeouts,
        "latency": counts.latencies.quantile(0.5),
        "latency_p95": counts.latencies.quantile(0.95),
        "latency_p99": counts.latencies.quantile(0.99),
        "loop_lag_max": stats.loop_lag_max_s,
        "reward_histogram": {
            "edges": [edge / _BINS for edge in range(_BINS + 1)],
            "counts": list(counts.histogram),
            "below": counts.below,
            "above": counts.above,
        },
        "model_version": version,
        "circuit_breaker": _breaker_metrics(endpoint),
    }


def _breaker_metrics(endpoint: Endpoint) -> dict[str, Any]:
    now = asyncio.get_running_loop().time()
    detector = endpoint.servers[0].detector
    ago = None if detector.failed_at is None else now - detector.failed_at
    return {
        "state": detector.state(now).upper(),
        "failure_count": detector.failures,
        "last_failure_time": None if ago is None else time.time() - ago,
    }


_key_encoder = msgspec.json.Encoder(order="deterministic")
_KEY_FIELDS = ("prompt", "completion", "answer", "answer_type", "images", "metadata", "messages")


class RequestOutcome(msgspec.Struct):
    """What became of one request: ``response`` or ``failure``, and how long it took in seconds.

    ``cached``: an earlier request's score; ``shared``: that of an equal one in flight.
    """

    response: JudgeResponse | None = None
    failure: Exception | None = None
    cached: bool = False
    shared: bool = False
    latency: float = 0.0


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request that can be sent: its JSON, and what equal requests have in common."""

    request: JudgeRequest
    body: bytes
    key: bytes


class _SharedCall(msgspec.Struct, eq=False):
    """A request that was sent, and all who wait for it."""

    item: QueuedRequest | None = None
    waiters: list[asyncio.Future[RequestOutcome]] = []


def prepare_request(request: JudgeRequest) -> PreparedRequest:
    """Encode a request and hash what its score depends on; runs in any thread.

    Raises ``GradingFailure(invalid_input)`` for what is no request.
    """
    try:
        body = encode_request(request)
    except GradingFailure:
        request = with_unicode_text(request)
        body = encode_request(request)
    # An array of JSON values: no text can pass for a border between two, nor "None" for none.
    parts = [getattr(request, name) for name in _KEY_FIELDS]
    return PreparedRequest(request, body, hashlib.sha256(_key_encoder.encode(parts)).digest())


class LoopConnection:
    """Asks the service through ``endpoint``, from the running loop only."""

    def __init__(self, settings: ClientSettings, endpoint: Endpoint) -> None:
        self.settings = settings
        self.endpoint = endpoint
        self.batcher = RequestBatcher(endpoint, settings)
        self.counts = ClientCounts()
        self._loop = asyncio.get_running_loop()
        self._cache: TTLCache[bytes, JudgeResponse] = TTLCache(
            settings.cache_size, settings.cache_ttl, timer=self._loop.time
        )
        self._shared_calls: dict[bytes, _SharedCall] = {}
        self._version: str | None = None

    def ask(self, prepared: PreparedRequest) -> asyncio.Future[RequestOutcome]:
        """The answer, sooner or later; never an exception. Cancelling it takes the question back.

        Failures say what to change; they are never cached.
        """
        self.counts.requests += 1
        waiter: asyncio.Future[RequestOutcome] = self._loop.create_future()
        waiter.add_done_callback(self._make_on_done(prepared.request, self._loop.time()))
        key = prepared.key if self.settings.use_cache else None
        if key is not None and (kept := self._cache.get(key)) is not None:
            self.counts.cache_hits += 1
            waiter.set_result(RequestOutcome(kept, cached=True))
            return waiter
        call = None if key is None else self._shared_calls.get(key)
        if call is None:
            call = _SharedCall()
            try:
                call.item = self.batcher.submit(prepared.body, self._make_on_end(call, key))
            except GradingFailure as failure:
                waiter.set_result(RequestOutcome(failure=failure))
                return waiter
            if key is not None:
                self._shared_calls[key] = call
        else:
            self.counts.shared += 1
        call.waiters.append(waiter)
        waiter.add_done_callback(self._make_on_cancel(call, key))
        return waiter

    async def aclose(self) -> None:
        """End what is under way; the endpoint is its opener's to close."""
        await self.batcher.aclose()

    def metrics(self) -> dict[str, Any]:
        """See :func:`adjudge.client.connection.collect_metrics`."""
        return collect_metrics(self.counts, self.batcher, self.endpoint, self._version)

    def _make_on_end(
        self, call: _SharedCall, key: bytes | None
    ) -> Callable[[QueuedRequest, JudgeResponse | Exception], None]:
        def ended(_: QueuedRequest, outcome: JudgeResponse | Exception) -> None:
            if key is not None:
                self._shared_calls.pop(key, None)
            answer = RequestOutcome()
            if isinstance(outcome, JudgeResponse):
                self._store(key, outcome)
                answer.response = outcome
            elif isinstance(outcome, GradingFailure):
                answer.failure = add_advice(outcome, self.settings)
            else:
                answer.failure = outcome
            for n, waiter in enumerate(call.waiters):
                if not waiter.done():
                    waiter.set_result(msgspec.structs.replace(answer, shared=n > 0))

        return ended

    def _make_on_cancel(
        self, call: _SharedCall, key: bytes | None
    ) -> Callable[[asyncio.Future[RequestOutcome]], None]:
        def on_waiter_done(waiter: asyncio.Future[RequestOutcome]) -> None:
            if not waiter.cancelled() or call.item is None:
                return
            call.waiters.remove(waiter)
            if not call.waiters and not call.item.done:
                if key is not None:
                    self._shared_calls.pop(key, None)
                self.batcher.cancel(call.item)

        return on_waiter_done

    def _make_on_done(
        self, request: JudgeRequest, asked: float
    ) -> Callable[[asyncio.Future[RequestOutcome]], None]:
        def counted(waiter: asyncio.Future[RequestOutcome]) -> None:
            if waiter.cancelled():
                self.counts.failed(ErrorKind.CANCELLED)
                return
            answer = waiter.result()
            answer.latency = self._loop.time() - asked
            if answer.response is not None:  # on the wire it went by another name
                answer.response = msgspec.structs.replace(
                    answer.response, request_id=request.request_id
                )
            self.counts.answered(answer.response, answer.failure, answer.latency, answer.cached)

        return counted

    def _store(self, key: bytes | None, response: JudgeResponse) -> None:
        version = (response.metadata or {}).get("model_version")
        if isinstance(version, str) and version != self._version:
            self._cache.clear()  # another judge: its scores are on another ruler
            self._version = version
        if key is not None:
            self._cache[key] = response


_MAX_CONCURRENT_ASKS = 5_000
"""Requests of one call that are under way at once; more would fill the queue by themselves."""

_client_numbers = itertools.count()


class ServiceClient:
    """Asks one judge service; every object has limits, breaker and cache of its own.

    What belongs to an event loop is opened by the first request on it, and closes with
    :meth:`aclose` or with the loop. A pickled client, and one in a forked child, starts anew.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._closed = False
        self._connections: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[Connection, LoopConnection]
        ] = WeakKeyDictionary()
        self._endpoint_key = EndpointKey(
            provider=f"judge-service-{next(_client_numbers)}",
            base_urls=(settings.judge_url,),
            key_env=settings.api_key_env,
            settings=settings.endpoint,
            owner="judge service",
        )

    def __reduce__(self) -> tuple[type[ServiceClient], tuple[ClientSettings]]:
        return type(self), (self.settings,)

    async def ask(self, prepared: Sequence[PreparedRequest]) -> list[RequestOutcome]:
        """One answer per request, in order; runs on the running loop, whichever it is."""
        connection = await self.connection()
        answers: list[RequestOutcome] = []
        for start in range(0, len(prepared), _MAX_CONCURRENT_ASKS):
            waiters = [
                connection.ask(one) for one in prepared[start : start + _MAX_CONCURRENT_ASKS]
            ]
            try:
                await asyncio.wait(waiters)
            except asyncio.CancelledError:
                for waiter in waiters:
                    waiter.cancel()
                raise
            answers += [waiter.result() for waiter in waiters]
        return answers

    async def connection(self) -> LoopConnection:
        """The running loop's, opened if need be; ``RuntimeError`` after :meth:`aclose`."""
        if self._closed:
            raise RuntimeError("this client of a judge service is closed")
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if found is None or found[0].closed:
            connection = await connect(self._endpoint_key, None)
            found = self._connections.get(loop)
            if found is None or found[0] is not connection:
                connection.models.add("judge service")
                found = connection, LoopConnection(self.settings, connection.endpoint)
                self._connections[loop] = found
        return found[1]

    async def metrics(self) -> dict[str, Any]:
        """The running loop's counts, also after :meth:`aclose`."""
        found = self._connections.get(asyncio.get_running_loop())
        connection = await self.connection() if found is None else found[1]
        return connection.metrics()

    async def aclose(self) -> None:
        """End what is under way on the running loop and close its connections, for good."""
        self._closed = True
        found = self._connections.get(asyncio.get_running_loop())
        if found is not None:
            await found[1].aclose()
            await aclose_one(found[0])
