"""Requests in batches: several batches in flight, each response matched by its request's id.

::

    submit ─► waits until its batch is full, or its oldest is batch_timeout old ─► one HTTP request
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
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from adjudge.client.exchange import ServiceReply, ServiceWire, read_response
from adjudge.client.settings import ClientSettings
from adjudge.engine.clock import PeriodicTimer
from adjudge.errors import ErrorKind, GradingFailure, is_passing
from adjudge.judges.base import ChatCall, Reply, Wire
from adjudge.judges.endpoint.limits import full_jitter
from adjudge.wire import JudgeResponse

MAX_WAITING = 10_000
"""Requests that may wait for their batch; more are refused."""

MAX_BATCH_BYTES = 8 << 20
"""Beyond this a batch is closed before it is full."""

_RETRY_BASE_S, _RETRY_CAP_S = 0.5, 10.0
_SPLIT_STATUSES = (400, 413, 422)


class AskingEndpoint(Protocol):
    """The part of an endpoint that is needed here."""

    async def ask(self, call: ChatCall, wire: Wire) -> Reply:
        """One complete reply."""


class QueuedRequest(msgspec.Struct, eq=False):
    """One request on its way; ``ended`` is called once with its outcome."""

    name: str
    body: bytes
    ended: Callable[[QueuedRequest, JudgeResponse | Exception], None]
    started: float
    """On the sweeper's clock."""
    queued: float = 0.0
    answers: int = 0
    """How often the service answered it with an error."""
    post: _BatchCall | None = None
    failure: GradingFailure | None = None
    done: bool = False


class _BatchCall(msgspec.Struct, eq=False):
    """One batch in flight."""

    items: Sequence[QueuedRequest]
    task: asyncio.Task[None] | None = None


class RequestBatcher:
    """All requests of one client on one event loop.

    ``posts`` counts batches sent, ``batched`` and ``sent`` requests in batches of two or more and
    all, ``strays`` responses that belong to no request.
    """

    def __init__(
        self, endpoint: AskingEndpoint, settings: ClientSettings, rng: random.Random | None = None
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._rng = rng or random.Random()  # noqa: S311  (jitter)
        self._loop = asyncio.get_running_loop()
        self._sweeper = PeriodicTimer(self._loop, self._sweep)
        self._open: OrderedDict[QueuedRequest, None] = (
            OrderedDict()
        )  # in the order of their deadlines
        self._waiting: OrderedDict[QueuedRequest, None] = OrderedDict()
        self._posts: set[_BatchCall] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._names = itertools.count(1)
        self._closed = False
        self.posts = self.sent = self.batched = self.strays = 0

    @property
    def waiting(self) -> int:
        """Requests that wait for their batch to leave."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """Requests that are at the service, or wait to be asked again."""
        return len(self._open) - len(self._waiting)

    def submit(
        self, body: bytes, ended: Callable[[QueuedRequest, JudgeResponse | Exception], None]
    ) -> QueuedRequest:
        """Take over one encoded request.

        Raises ``GradingFailure(rate_limited)`` when :data:`MAX_WAITING` wait already.
        """
        if self._closed:
            raise RuntimeError("this client of a judge service is closed")
        if len(self._waiting) >= MAX_WAITING:
            raise GradingFailure(
                ErrorKind.RATE_LIMITED,
                f"request queue full: {MAX_WAITING} requests wait to be sent; raise "
                "max_concurrent_requests or max_batch_size, or ask for fewer at once",
                {"local": True},
            )
        item = QueuedRequest(f"r{next(self._names)}", body, ended, self._sweeper.now())
        self._open[item] = None
        self._sweeper.wake()
        self._queue(item)
        return item

    def cancel(self, item: QueuedRequest) -> None:
        """Nobody waits for ``item`` any more; a batch that nobody waits for is cancelled."""
        if item.done:
            return
        self._forget(item)
        post = item.post
        if post is not None and post.task is not None and all(one.done for one in post.items):
            post.task.cancel()

    async def aclose(self) -> None:
        """End everything as ``cancelled``."""
        self._closed = True
        self._sweeper.stop()
        if self._timer is not None:
            self._timer.cancel()
        for item in list(self._open):
            self._end(item, GradingFailure(ErrorKind.CANCELLED, "the client was closed"))
        tasks = [post.task for post in self._posts if post.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ── waiting → sent ───────────────────────────────────────────────────────────────────────

    def _queue(self, item: QueuedRequest) -> None:
        item.post = None
        item.queued = self._loop.time()
        self._waiting[item] = None
        self._pump()

    def _pump(self) -> None:
        """Send what is due, as long as there is room; else see to it that it happens later."""
        s = self._settings
        while self._waiting and len(self._posts) < s.max_concurrent_requests:
            due = next(iter(self._waiting)).queued + s.batch_timeout
            if len(self._waiting) < s.max_batch_size and self._loop.time() < due:
                if self._timer is None:
                    self._timer = self._loop.call_at(due, self._on_timer)
                return
            self._send(self._next_batch())

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _next_batch(self) -> list[QueuedRequest]:
        items: list[QueuedRequest] = []
        size = 0
        while self._waiting and len(items) < self._settings.max_batch_size:
            item = next(iter(self._waiting))
            size += len(item.body)
            if items and size > MAX_BATCH_BYTES:
                break
            del self._waiting[item]
            items.append(item)
        return items

    def _send(self, items: Sequence[QueuedRequest]) -> None:
        post = _BatchCall(items)
        for item in items:
            item.post = post
        self._posts.add(post)
        post.task = self._loop.create_task(self._run(post))
        # Not in the task: one that is cancelled before it begins never runs a line of its own.
        post.task.add_done_callback(lambda _: self._on_complete(post))

    async def _run(self, post: _BatchCall) -> None:
        try:
            await self._exchange(post.items)
        except Exception as bug:  # noqa: BLE001  (no judge's failure: the caller gets it as it is)
            for item in post.items:
                self._end(item, bug)

    def _on_complete(self, post: _BatchCall) -> None:
        self._posts.discard(post)
        for item in post.items:
            if item.post is post:  # cancelled by whoever left, or because the loop shuts down
                self._end(item, GradingFailure(ErrorKind.CANCELLED, "the request was cancelled"))
        if not self._closed:
            self._pump()

    async def _exchange(self, items: Sequence[QueuedRequest]) -> None:
        """One HTTP request, or two halves of it when the service refuses what is in it."""
        items = [item for item in items if not item.done]
        if not items:
            return
        wire = ServiceWire(self._settings, [(item.name, item.body) for item in items])
        self.posts += 1
        self.sent += len(items)
        self.batched += len(items) if len(items) > 1 else 0
        try:
            reply = await self._endpoint.ask(wire.call, wire)
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

    def _match(self, items: Sequence[QueuedRequest], reply: Reply) -> None:
        """Give each item the one response that names it."""
        raw = reply.responses if isinstance(reply, ServiceReply) else []
        read = [response for one in raw if (response := read_response(one)) is not None]
        if len(items) == len(raw) == len(read) == 1 and read[0].request_id is None:
            read[0].request_id = items[0].name  # there is nothing else that it could be about
        found = {response.request_id: response for response in read}
        times = Counter(response.request_id for response in read)
        for item in items:
            response = found.pop(item.name, None)
            if response is None or times[item.name] > 1:
                self._retry(item, _unmatched_failure(times[item.name], len(items), len(raw)))
            elif response.error is not None:
                error = response.error
                marks = {"judge": True, **error.failure_metadata}
                self._retry(item, GradingFailure(error.kind, error.message, marks))
            else:
                self._end(item, response)
        self.strays += len(raw) - len(read) + sum(times[name] for name in found)

    def _retry(self, item: QueuedRequest, failure: GradingFailure) -> None:
        """The service answered, and this request has no score: ask again if it may pass."""
        if item.done:
            return
        item.answers += 1
        item.failure = failure
        delay = full_jitter(item.answers, self._rng, _RETRY_BASE_S, _RETRY_CAP_S)
        left = item.started + self._settings.timeout - self._sweeper.now()
        passes = is_passing(failure.kind, failure.metadata)
        if not passes or item.answers > self._settings.max_retries or delay >= left:
            self._end(item, failure)
        else:
            item.post = None
            self._loop.call_later(delay, self._requeue, item)

    def _requeue(self, item: QueuedRequest) -> None:
        if not item.done:
            self._queue(item)

    # ── outcomes ─────────────────────────────────────────────────────────────────────────────

    def _end(self, item: QueuedRequest, outcome: JudgeResponse | Exception) -> None:
        if item.done:
            return
        self._forget(item)
        item.ended(item, outcome)

    def _forget(self, item: QueuedRequest) -> None:
        item.done = True
        self._open.pop(item, None)
        self._waiting.pop(item, None)

    def _sweep(self) -> bool:
        """End what has waited for too long.

        Its batch goes on to the endpoint's own deadline, or the breaker would never learn that the
        service keeps silent.
        """
        now = self._sweeper.now()
        while self._open:
            item = next(iter(self._open))
            if item.started + self._settings.timeout > now:
                break
            waits = item in self._waiting
            last = {"last_failure": str(item.failure.kind)} if item.failure else {}
            problem = "it was still waiting to be sent" if waits else "no answer came"
            self._end(item, GradingFailure(ErrorKind.TIMEOUT, problem, last))
        return bool(self._open)


def _unmatched_failure(times: int, asked: int, answered: int) -> GradingFailure:
    """``server_error``: which response is this request's cannot be told."""
    problem = f"has {times} responses" if times else "has no response"
    return GradingFailure(
        ErrorKind.SERVER_ERROR,
        f"the service's reply {problem} with this request's request_id ({answered} responses to "
        f"{asked} requests)",
    )
