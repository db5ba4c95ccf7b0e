"""A client of one judge service: requests in batches, each response matched by its id.

::

    ask ─► a kept score, or that of an equal request under way
     └──► waits until its batch is full, or its oldest is batch_timeout old ─► one HTTP request
                 ▲                                                                   │
                 └── again, later ◄── passing error of this request alone ◄──────────┤
                                                                     a score ─► out ◄┘

A request ends in exactly one way: a response, a failure, its total timeout, or its caller's
cancellation. What happens to a batch as a whole (retries, breaker, limits) is the endpoint's.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from adjudge.client.exchange import (
    PreparedRequest,
    ReplyItem,
    ServiceReply,
    ServiceWire,
    add_advice,
    read_response,
    to_failure,
)
from adjudge.client.metrics import ClientCounts, collect_metrics
from adjudge.client.settings import ClientSettings
from adjudge.engine.clock import PeriodicTimer
from adjudge.errors import ErrorKind, GradingFailure, is_passing
from adjudge.judges.base import Reply
from adjudge.judges.endpoint.connections import Connection, EndpointKey, aclose_one, connect
from adjudge.judges.endpoint.endpoint import Endpoint
from adjudge.judges.endpoint.limits import full_jitter
from adjudge.wire import JudgeResponse

MAX_BATCH_BYTES = 8 << 20
"""Beyond this a batch is closed before it is full."""

_MAX_CONCURRENT_ASKS = 5_000
"""Requests of one call that are under way at once: each has its ``timeout`` from then on."""

_RETRY_BASE_S, _RETRY_CAP_S = 0.5, 10.0
_SPLIT_STATUSES = (400, 413, 422)
_client_numbers = itertools.count()


class ServiceClient:
    """Asks one judge service; every object has limits, breaker and cache of its own.

    Configuration only, for any thread, loop and process: what belongs to an event loop is opened by
    the first request on it, and closes with :meth:`aclose` or with the loop. A pickled client, and
    one in a forked child, starts anew. ``breaker_waits``: requests wait for the end of an outage.
    """

    def __init__(self, settings: ClientSettings, *, breaker_waits: bool = False) -> None:
        self.settings = settings
        self._breaker_waits = breaker_waits
        self._closed = False
        self._connections: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[Connection, RequestBatcher]
        ] = WeakKeyDictionary()
        self._endpoint_key = EndpointKey(
            provider=f"judge-service-{next(_client_numbers)}",
            base_urls=(settings.judge_url,),
            key_env=settings.api_key_env,
            settings=settings.endpoint(),
            policy=settings.call_policy(breaker_waits=breaker_waits),
        )

    def __getstate__(self) -> tuple[ClientSettings, bool]:
        return self.settings, self._breaker_waits

    def __setstate__(self, state: tuple[ClientSettings, bool]) -> None:
        ServiceClient.__init__(self, state[0], breaker_waits=state[1])

    async def ask(self, prepared: Sequence[PreparedRequest]) -> list[RequestOutcome]:
        """One outcome per request, in order; runs on the running loop, whichever it is."""
        batcher = await self.batcher()
        outcomes: list[RequestOutcome] = []
        for start in range(0, len(prepared), _MAX_CONCURRENT_ASKS):
            outcomes += await batcher.ask(prepared[start : start + _MAX_CONCURRENT_ASKS])
        return outcomes

    async def batcher(self) -> RequestBatcher:
        """The running loop's, opened if need be; ``RuntimeError`` after :meth:`aclose`."""
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if not self._closed and (found is None or found[0].closed):
            connection = await connect(self._endpoint_key, None)
            found = self._connections.get(loop)
            if found is None or found[0] is not connection:
                connection.models.add("judge service")
                found = connection, RequestBatcher(self.settings, connection.endpoint)
                self._connections[loop] = found
        if self._closed or found is None:
            raise RuntimeError("this client of a judge service is closed")
        return found[1]

    async def metrics(self) -> dict[str, Any]:
        """The running loop's counts, also after :meth:`aclose`."""
        found = self._connections.get(asyncio.get_running_loop())
        batcher = await self.batcher() if found is None else found[1]
        return batcher.metrics()

    async def aclose(self) -> None:
        """End what is under way on the running loop and close its connections, for good."""
        self._closed = True
        found = self._connections.get(asyncio.get_running_loop())
        if found is not None:
            await found[1].aclose()
            await aclose_one(found[0])


class RequestOutcome(msgspec.Struct, gc=False):
    """What became of one request: ``response`` or ``failure``, and how long it took in seconds.

    ``cached``: an earlier request's score; ``shared``: that of an equal one in flight.
    """

    response: JudgeResponse | None = None
    failure: Exception | None = None
    cached: bool = False
    shared: bool = False
    latency: float = 0.0


class _Call:
    """The requests of one caller: what became of each, and how many are still under way."""

    __slots__ = ("done", "left", "outcomes", "started")

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.outcomes = [RequestOutcome()] * size
        self.left = size
        self.started = loop.time()
        self.done: asyncio.Future[None] = loop.create_future()


class _Item(msgspec.Struct, eq=False):
    """One request on its way, and the calls that wait for it, each with its place there."""

    name: str
    prepared: PreparedRequest
    started: float
    """On the sweeper's clock."""
    callers: list[tuple[_Call, int, str | None]] = []
    queued: float = 0.0
    answers: int = 0
    """How often the service answered it with an error."""
    batch: asyncio.Task[None] | None = None
    failure: GradingFailure | None = None
    done: bool = False


class RequestBatcher:
    """Asks the service through ``endpoint``, from the running loop only."""

    def __init__(
        self, settings: ClientSettings, endpoint: Endpoint, rng: random.Random | None = None
    ) -> None:
        self.settings = settings
        self.endpoint = endpoint
        self.counts = ClientCounts()
        self._rng = rng or random.Random()  # noqa: S311  (jitter)
        self._loop = asyncio.get_running_loop()
        self._sweeper = PeriodicTimer(self._loop, self._sweep)
        self._cache: OrderedDict[bytes, tuple[float, JudgeResponse]] = OrderedDict()
        self._version: str | None = None
        self._open: dict[_Item, None] = {}  # in the order of their deadlines
        self._shared: dict[bytes, _Item] = {}
        self._waiting: dict[_Item, None] = {}
        self._batches: dict[asyncio.Task[None], Sequence[_Item]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._names = itertools.count(1)
        self._closed = False

    async def ask(self, prepared: Sequence[PreparedRequest]) -> list[RequestOutcome]:
        """What becomes of each request, in order. Cancelling takes the questions back.

        Failures say what to change; they are never cached.
        """
        if self._closed:
            raise RuntimeError("this client of a judge service is closed")
        call = _Call(len(prepared), self._loop)
        started = self._sweeper.now()
        for place, one in enumerate(prepared):
            self._admit(call, place, one, started)
        self._sweeper.wake()
        self._pump()
        try:
            if call.left:
                await call.done
        except asyncio.CancelledError:
            self._leave(call)
            raise
        return call.outcomes

    async def aclose(self) -> None:
        """End everything as ``cancelled``; the endpoint is its opener's to close."""
        self._closed = True
        self._sweeper.stop()
        if self._timer is not None:
            self._timer.cancel()
        for item in list(self._open):
            self._end(item, GradingFailure(ErrorKind.CANCELLED, "the client was closed"))
        tasks = list(self._batches)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def metrics(self) -> dict[str, Any]:
        """See :func:`adjudge.client.metrics.collect_metrics`."""
        queue = {
            "current_queue_size": len(self._waiting),
            "in_flight_requests": len(self._open) - len(self._waiting),
            "model_version": self._version,
        }
        return collect_metrics(self.counts, self.endpoint, queue)

    # ── asked ────────────────────────────────────────────────────────────────────────────────

    def _admit(self, call: _Call, place: int, prepared: PreparedRequest, started: float) -> None:
        self.counts.requests += 1
        caller = (call, place, prepared.request.request_id)
        key = prepared.key
        if self.settings.use_cache:
            if (kept := self._cache.get(key)) is not None and kept[0] > call.started:
                self._cache.move_to_end(key)
                self.counts.cache_hits += 1
                self._settle(caller, RequestOutcome(kept[1], cached=True), call.started)
                return
            if (item := self._shared.get(key)) is not None:
                self.counts.shared += 1
                item.callers.append(caller)
                return
        item = _Item(f"r{next(self._names)}", prepared, started, [caller], call.started)
        if self.settings.use_cache:
            self._shared[key] = item
        self._open[item] = self._waiting[item] = None

    def _leave(self, call: _Call) -> None:
        """Nobody waits for a call any more; nor for a batch where nobody waits for its items."""
        for item in list(self._open):
            left = [caller for caller in item.callers if caller[0] is not call]
            if gone := len(item.callers) - len(left):
                self.counts.failures[str(ErrorKind.CANCELLED)] += gone
            item.callers = left
            if not left:
                self._forget(item)
                batch = item.batch
                if batch is not None and all(one.done for one in self._batches.get(batch, ())):
                    batch.cancel()

    # ── waiting → sent ───────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Send what is due, as long as there is room; else see to it that it happens later."""
        s = self.settings
        while self._waiting and len(self._batches) < s.max_concurrent_requests:
            due = next(iter(self._waiting)).queued + s.batch_timeout
            if len(self._waiting) < s.max_batch_size and self._loop.time() < due:
                if self._timer is None:
                    self._timer = self._loop.call_at(due, self._on_timer)
                return
            items = self._next_batch()
            task = self._loop.create_task(self._run(items))
            for item in items:
                item.batch = task
            self._batches[task] = items
            # Not in the task: one that is cancelled before it begins never runs a line of its own.
            task.add_done_callback(self._on_complete)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _next_batch(self) -> list[_Item]:
        items: list[_Item] = []
        size = 0
        for item in itertools.islice(self._waiting, self.settings.max_batch_size):
            size += len(item.prepared.body)
            if items and size > MAX_BATCH_BYTES:
                break
            items.append(item)
        for item in items:
            del self._waiting[item]
        return items

    async def _run(self, items: Sequence[_Item]) -> None:
        try:
            await self._exchange(items)
        except Exception as bug:  # noqa: BLE001  (no judge's failure: the caller gets it as it is)
            for item in items:
                self._end(item, bug)

    def _on_complete(self, task: asyncio.Task[None]) -> None:
        for item in self._batches.pop(task):
            if (
                item.batch is task and not item.done
            ):  # cancelled by whoever left, or because the loop shuts down
                self._end(item, GradingFailure(ErrorKind.CANCELLED, "the request was cancelled"))
        if not self._closed:
            self._pump()

    async def _exchange(self, items: Sequence[_Item]) -> None:
        """One HTTP request, or two halves of it when the service refuses what is in it."""
        items = [item for item in items if not item.done]
        if not items:
            return
        wire = ServiceWire(self.settings, [(item.name, item.prepared.body) for item in items])
        self.counts.posts += 1
        self.counts.travelled += len(items)
        self.counts.batched += len(items) if len(items) > 1 else 0
        try:
            reply = await self.endpoint.ask(wire.call, wire)
        except GradingFailure as failure:
            if len(items) > 1 and failure.metadata.get("status") in _SPLIT_STATUSES:
                middle = len(items) // 2
                await self._exchange(items[:middle])
                await self._exchange(items[middle:])
                return
            for item in items:
                self._end(item, failure)
        else:
            self._match(items, reply)

    # ── answered ─────────────────────────────────────────────────────────────────────────────

    def _match(self, items: Sequence[_Item], reply: Reply) -> None:
        """Give each item the one response that names it."""
        came = reply.items if isinstance(reply, ServiceReply) else []
        read = [one for one in came if isinstance(one, ReplyItem)]
        if len(items) == len(came) == len(read) == 1 and read[0].request_id is None:
            read[0].request_id = items[0].name  # there is nothing else that it could be about
        named = [(one.request_id, one) for one in read if isinstance(one.request_id, str)]
        times, found = Counter([name for name, _ in named]), dict(named)
        for item in items:
            if times[item.name] == 1:
                response = read_response(found[item.name])
                failure = to_failure(response.error) if response.error is not None else None
            else:
                problem = f"has {times[item.name] or 'no'} responses with this request's request_id"
                failure = GradingFailure(
                    ErrorKind.SERVER_ERROR,
                    f"the service's reply {problem} ({len(came)} responses to {len(items)} "
                    "requests)",
                )
            if failure is not None:
                self._retry(item, failure)
            else:
                self._end(item, response)
        self.counts.strays += len(came) - sum(times[item.name] for item in items)

    def _retry(self, item: _Item, failure: GradingFailure) -> None:
        """The service answered, and this request has no score: ask again if it may pass."""
        if item.done:
            return
        item.answers += 1
        item.failure = failure
        delay = full_jitter(item.answers, self._rng, _RETRY_BASE_S, _RETRY_CAP_S)
        left = item.started + self.settings.timeout - self._sweeper.now()
        passes = is_passing(failure.kind, failure.metadata)
        if not passes or item.answers > self.settings.max_retries or delay >= left:
            self._end(item, failure)
        else:
            item.batch = None
            self._loop.call_later(delay, self._requeue, item)

    def _requeue(self, item: _Item) -> None:
        if not item.done:
            item.queued = self._loop.time()
            self._waiting[item] = None
            self._pump()

    # ── outcomes ─────────────────────────────────────────────────────────────────────────────

    def _end(self, item: _Item, outcome: JudgeResponse | Exception) -> None:
        if item.done:
            return
        self._forget(item)
        now = self._loop.time()
        response: JudgeResponse | None = None
        failure: Exception | None = None
        if isinstance(outcome, JudgeResponse):
            response = outcome
            response.request_id = None  # on the wire the request went by another name
            self._keep(item.prepared.key, response, now)
        elif isinstance(outcome, GradingFailure):
            failure = add_advice(outcome, self.settings)
        else:
            failure = outcome
        for n, caller in enumerate(item.callers):
            self._settle(caller, RequestOutcome(response, failure, shared=n > 0), now)

    def _settle(
        self, caller: tuple[_Call, int, str | None], outcome: RequestOutcome, now: float
    ) -> None:
        call, place, request_id = caller
        outcome.latency = now - call.started
        if outcome.response is not None and request_id is not None:
            outcome.response = msgspec.structs.replace(outcome.response, request_id=request_id)
        self.counts.answered(outcome.response, outcome.failure, outcome.latency, outcome.cached)
        call.outcomes[place] = outcome
        call.left -= 1
        if not call.left and not call.done.done():
            call.done.set_result(None)

    def _forget(self, item: _Item) -> None:
        item.done = True
        del self._open[item]
        self._waiting.pop(item, None)
        if self.settings.use_cache and self._shared.get(item.prepared.key) is item:
            del self._shared[item.prepared.key]

    def _keep(self, key: bytes, response: JudgeResponse, now: float) -> None:
        version = (response.metadata or {}).get("model_version")
        if isinstance(version, str) and version != self._version:
            self._cache.clear()  # another judge: its scores are on another ruler
            self._version = version
        if self.settings.use_cache:
            self._cache.pop(key, None)
            self._cache[key] = now + self.settings.cache_ttl, response
            if len(self._cache) > self.settings.cache_size:
                self._cache.popitem(last=False)

    def _sweep(self) -> bool:
        """End what has waited for too long.

        Its batch goes on to the endpoint's own deadline, or the breaker would never learn that the
        service keeps silent.
        """
        now = self._sweeper.now()
        while self._open:
            item = next(iter(self._open))
            if item.started + self.settings.timeout > now:
                break
            waits = item in self._waiting
            last = {"last_failure": str(item.failure.kind)} if item.failure else {}
            problem = "it was still waiting to be sent" if waits else "no answer came"
            self._end(item, GradingFailure(ErrorKind.TIMEOUT, problem, last))
        return bool(self._open)
