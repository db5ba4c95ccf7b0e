"""The queue before a backend: fair shares of it, batches out of it, answers back.

Every request that is admitted is answered exactly once: judged, or with an error when its deadline
passed or the service stopped; or it is abandoned by its caller, and then takes no more of the
backend's time. Requests that came together are one entry in the queue, with one future, however
many batches they go in.

A client is who shows a key of its own, else a run (``metadata.run_id``). Each has a queue of its
own, and they are emptied by weighted round-robin: a turn costs a client ``1 / weight`` of virtual
time, and the client that has used the least is next (start-time fair queueing, Goyal, Vin and
Cheng 1996), so that a client that floods waits for itself alone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isfinite
from operator import attrgetter
from typing import Any, Generic, TypeVar

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.service import ServiceSettings
from adjudge.service.backend import Backend, problem_response
from adjudge.service.requests import RequestRefused
from adjudge.types import finite_number
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse

_T = TypeVar("_T")

OTHER = "other"
"""The client of requests without a key or run of their own, and of runs beyond the limit."""
_MAX_CLIENTS = 64
"""Clients at a time; more would let whoever invents runs grow the queue without end."""


@dataclass(slots=True, eq=False)
class Share(Generic[_T]):
    """One client's queue: what waits, oldest first, and how long it waited.

    ``waiting``, ``begun``: judgements that wait, that were begun; ``wait_s``: how long those waited
    in all.
    """

    name: str
    weight: float
    items: OrderedDict[_T, None] = field(default_factory=OrderedDict)
    waiting: int = 0
    begun: int = 0
    wait_s: float = 0.0
    used: float = 0.0


_get_used = attrgetter("used")


class FairQueue(Generic[_T]):
    """The queues of all clients; ``places`` is for all together, ``weights`` by client (else 1)."""

    def __init__(self, places: int, weights: Mapping[str, float] | None = None) -> None:
        self._places = places
        self._weights = weights or {}
        self._clock = 0.0
        self.waiting = 0
        """Judgements that wait, of all clients."""
        self.busy: dict[Share[_T], None] = {}
        """The clients that wait."""
        self.shares: dict[str, Share[_T]] = {}
        for name in self._weights:
            self.share(name)

    def share(self, name: str) -> Share[_T]:
        """The queue of a client; idle runs make room for others."""
        name = name or OTHER
        if (found := self.shares.get(name)) is not None:
            return found
        if len(self.shares) >= _MAX_CLIENTS + len(self._weights) and name != OTHER:
            idle = (s for s in self.shares.values() if not s.items and s.name not in self._weights)
            if (gone := next(idle, None)) is None:
                return self.share(OTHER)
            del self.shares[gone.name]
        found = self.shares[name] = Share(name, self._weights.get(name, 1.0))
        return found

    def part(self, share: Share[_T]) -> float:
        """The part of all work that the client has now, beside those that wait."""
        others = sum(one.weight for one in self.busy if one is not share)
        return share.weight / (share.weight + others)

    def places(self, share: Share[_T]) -> int:
        """The places that are the client's, beside the clients that wait now."""
        return max(1, int(self._places * self.part(share)))

    def has_room(self, share: Share[_T], count: int) -> bool:
        """Whether ``count`` more of the client may wait: free places, or within its own.

        Not asked of a client of which nothing waits: a batch may be longer than the queue.
        """
        return self.waiting + count <= self._places or share.waiting + count <= self.places(share)

    def add(self, share: Share[_T], item: _T, count: int) -> None:
        """Queue an item of ``count`` judgements."""
        if not share.items:
            share.used = max(share.used, self._clock)
            self.busy[share] = None
        share.items[item] = None
        share.waiting += count
        self.waiting += count

    def next(self) -> Share[_T] | None:
        """The client whose turn it is; ``None`` where nothing waits."""
        return min(self.busy, key=_get_used) if len(self.busy) > 1 else next(iter(self.busy), None)

    def take(self, share: Share[_T], item: _T, count: int, waited_s: float, whole: bool) -> None:
        """``count`` judgements of an item were begun; ``whole``: these were its last."""
        self._clock = share.used
        share.used += count / share.weight
        share.begun += count
        share.wait_s += count * waited_s
        share.waiting -= count
        self.waiting -= count
        if whole:
            self._remove(share, item)

    def drop(self, share: Share[_T], item: _T, count: int) -> None:
        """Nobody waits for an item any more, of which ``count`` judgements were left."""
        if item in share.items:
            share.waiting -= count
            self.waiting -= count
            self._remove(share, item)

    def _remove(self, share: Share[_T], item: _T) -> None:
        del share.items[item]
        if not share.items:
            del self.busy[share]


class FairSlots:
    """So many at once; those that wait for a slot get one by turns of their clients."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(slots)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait for a slot of the client ``name``, and hold it."""
        share, turn = self._queue.share(name), asyncio.get_running_loop().create_future()
        self._queue.add(share, turn, 1)
        self._hand_out()
        try:
            await turn
            yield
        finally:
            if turn.cancelled():  # whoever waited has left
                self._queue.drop(share, turn, 1)
            else:
                self._free += 1
                self._hand_out()

    def _hand_out(self) -> None:
        while self._free and (share := self._queue.next()) is not None:
            turn = next(iter(share.items))
            self._queue.take(share, turn, 1, 0.0, whole=True)
            if not turn.done():
                turn.set_result(None)
                self._free -= 1


_TIMER_RESOLUTION_S = 1e-6
"""Seconds too short for a timer."""
_LANE_TURN_S = 0.001
"""Seconds of judging without a pause, where the backend itself makes none."""


def queue_full(message: str, retry_after: float) -> RequestRefused:
    """No room to wait: 429, to be asked again ``retry_after`` seconds later."""
    return RequestRefused(429, ErrorKind.RATE_LIMITED, message, retry_after)


@dataclass(slots=True, eq=False)
class _Arrival:
    """Requests that came together, how many of them were handed out, and the answers so far.

    ``done`` is also done when nobody waits any more: a cancelled caller cancels it.
    """

    requests: Sequence[JudgeRequest]
    share: Share[_Arrival]
    done: asyncio.Future[list[JudgeResponse]]
    queued_at: float
    answers: list[JudgeResponse]
    unanswered: int
    taken: int = 0
    arrived: float = field(default_factory=time.perf_counter)  # finer than the loop's own clock


def check_responses(
    responses: Sequence[JudgeResponse], requests: Sequence[JudgeRequest], facts: dict[str, Any]
) -> None:
    """Make responses as they go out: with the requests' ids and ``facts`` in their metadata.

    A response with an error has no score; one without either, or with a score that is no finite
    number, gets an error.
    """
    for checked, request in zip(responses, requests, strict=True):
        checked.request_id = request.request_id
        metadata, score = checked.metadata, checked.score
        checked.metadata = facts if metadata is None else {**metadata, **facts}
        if checked.error is None:
            if score.__class__ is float and isfinite(score):
                continue
            kind, said = ErrorKind.BUG, "the backend gave neither a score nor an error"
            if score is not None:
                if (number := finite_number(score)) is not None:
                    checked.score = number
                    continue
                kind, said = ErrorKind.OUT_OF_RANGE, "the score is not a finite number"
            checked.error = ErrorInfo(kind, said)
        checked.score = checked.reward_components = checked.failures = None


_copy: Callable[[JudgeResponse], JudgeResponse] = JudgeResponse.__copy__  # type: ignore[attr-defined]
_UNANSWERED = JudgeResponse()
"""In the place of an answer that is not there yet."""
_Part = tuple[_Arrival, int, int]
"""Requests of one arrival: from the first place to before the second."""


class BackendQueue:
    """Gives a backend its requests, as many at once as it takes.

    A backend that takes batches gets one after the other: a batch is closed when it has
    ``max_batch_size`` requests or when its oldest has waited ``batch_timeout``. One that takes
    requests one by one gets up to ``concurrency`` at the same time, without waiting.
    ``observe`` gets the size of each batch. Belongs to the running loop.
    """

    def __init__(
        self,
        backend: Backend,
        settings: ServiceSettings,
        observe: Callable[[int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._backend = backend
        self._settings = settings
        self._observe = observe
        one_by_one = backend.one_by_one
        most = min(settings.concurrency, backend.max_concurrency or settings.concurrency)
        self._max_lanes = most if one_by_one else 1
        self._size = 1 if one_by_one else settings.max_batch_size
        self._max_wait_s = 0.0 if one_by_one else settings.batch_timeout
        self._arrivals: dict[_Arrival, None] = {}  # the oldest first
        self.queue: FairQueue[_Arrival] = FairQueue(settings.queue_size, settings.client_weights)
        """Those with requests to hand out."""
        self._lanes: dict[asyncio.Task[None], list[_Part]] = {}
        """Tasks that judge one batch after another, and what each has in hand."""
        self._alarm: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._busy_since = self._loop.time()
        self._answered = 0

    @property
    def judging(self) -> int:
        """Requests in the backend's hands that somebody still waits for."""
        parts = [part for lane in self._lanes.values() for part in lane]
        return sum(stop - start for arrival, start, stop in parts if not arrival.done.done())

    async def score(
        self, requests: Sequence[JudgeRequest], client: str = ""
    ) -> list[JudgeResponse]:
        """One response per request of ``client``, in order; raises :class:`.RequestRefused`.

        Cancelling it takes the requests back, out of the queue or out of the backend's hands.
        """
        if not requests:
            return []
        share = self.queue.share(client)
        if share.waiting and not self.queue.has_room(share, len(requests)):
            ahead = min(self.queue.waiting, math.ceil(share.waiting / self.queue.part(share)))
            seconds = self._retry_after(ahead)
            raise queue_full(
                f"request queue full: {share.waiting} are waiting; retry in {seconds} s, send "
                "fewer at once, or raise the service's queue_size or concurrency",
                seconds,
            )
        now, count = self._loop.time(), len(requests)
        if not self._arrivals:
            self._busy_since, self._answered = now, 0
        done: asyncio.Future[list[JudgeResponse]] = self._loop.create_future()
        arrival = _Arrival(requests, share, done, now, [_UNANSWERED] * count, count)
        self._arrivals[arrival] = None
        self.queue.add(share, arrival, count)
        if self._alarm is None:
            self._alarm = self._loop.call_later(self._settings.deadline_s, self._check_deadlines)
        if self._timer is None or self.queue.waiting >= self._size:
            self._pump()
        try:
            return await done
        finally:
            del self._arrivals[arrival]
            if arrival.unanswered:
                self._take_back(arrival)

    def _retry_after(self, ahead: int) -> int:
        """Whole seconds, 1 to 60, until so many have gone, as fast as since the queue was empty."""
        if not self._answered:
            return 1
        seconds = ahead * (self._loop.time() - self._busy_since) / self._answered
        return max(1, min(60, math.ceil(seconds)))

    def stop(self) -> None:
        """Answer all that still wait with the error ``cancelled``, and end what runs."""
        for arrival in list(self._arrivals):
            self._fail(arrival, ErrorKind.CANCELLED, "the service stopped before it was judged")

    def _check_deadlines(self) -> None:
        """Give up what is due; one timer does for all, since all may take equally long."""
        self._alarm = None
        seconds = self._settings.deadline_s
        for arrival in list(self._arrivals):
            left = arrival.queued_at + seconds - self._loop.time()
            if left > _TIMER_RESOLUTION_S:
                self._alarm = self._loop.call_later(left, self._check_deadlines)
                return
            message = f"not answered within deadline_s = {seconds:g} s"
            self._fail(arrival, ErrorKind.TIMEOUT, message)

    def _pump(self) -> None:
        """Give the backend what it takes now."""
        while len(self._lanes) < self._max_lanes and (parts := self._next_parts()):
            task = self._loop.create_task(self._work(parts))
            self._lanes[task] = parts
            # Not in the task: one that is cancelled before it begins never runs a line of its own.
            task.add_done_callback(self._on_lane_end)

    def _on_lane_end(self, task: asyncio.Task[None]) -> None:
        del self._lanes[task]
        self._pump()

    async def _work(self, parts: list[_Part]) -> None:
        """Judge ``parts``, then what is due next; one task, as long as there is more."""
        task: Any = asyncio.current_task()
        began = time.perf_counter()
        while parts:
            await self._judge(parts)
            # The backend may have swallowed a cancellation; it must not hit the next batch.
            if task.cancelling():
                return
            if parts := self._next_parts():
                self._lanes[task] = parts
                if time.perf_counter() - began > _LANE_TURN_S:
                    await asyncio.sleep(0)  # the rest of the loop has its turn
                    began = time.perf_counter()

    def _next_parts(self) -> list[_Part]:
        """The next batch, by turns of the clients; none while it should wait for more."""
        queue = self.queue
        if not queue.waiting:
            return []
        now = self._loop.time()
        if queue.waiting < self._size:
            oldest = min(next(iter(share.items)).queued_at for share in queue.busy)
            left = oldest + self._max_wait_s - now
            if left > _TIMER_RESOLUTION_S:
                if self._timer is None:
                    self._timer = self._loop.call_later(left, self._on_timer)
                return []
        parts: list[_Part] = []
        room = self._size
        while room and (share := queue.next()) is not None:
            arrival = next(iter(share.items))
            start, most = arrival.taken, len(arrival.requests)
            arrival.taken = stop = min(start + room, most)
            waited_s = now - arrival.queued_at
            queue.take(share, arrival, stop - start, waited_s, whole=stop == most)
            parts.append((arrival, start, stop))
            room -= stop - start
        self._observe(self._size - room)
        return parts

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    async def _judge(self, parts: list[_Part]) -> None:
        """Answer ``parts``; when the backend breaks on them, find out on which request."""
        requests: list[JudgeRequest] = []
        for arrival, start, stop in parts:
            requests += arrival.requests[start:stop]
        try:
            # Copies, since a backend may give the same response twice.
            responses = [*map(_copy, await self._backend.score([*requests]))]
            if len(responses) != len(requests):
                said = f"the backend gave {len(responses)} answers to {len(requests)} requests"
                raise GradingFailure(ErrorKind.BUG, said)  # noqa: TRY301
        except BaseException as error:  # somebody else's code
            task = asyncio.current_task(self._loop)
            cancelled = isinstance(error, asyncio.CancelledError)
            # Closed with its loop, or nobody waits any more.
            if task is None or (cancelled and task.cancelling()):
                raise
            responses = [problem_response(error)] if len(requests) == 1 else []
        if responses:
            if (damping := self._backend.damping) is not None:
                for one in responses:
                    damping.apply(one)
            self._deliver(parts, responses)
        else:
            single = [(arrival, at, at + 1) for arrival, *ends in parts for at in range(*ends)]
            middle = len(requests) // 2
            for half in (single[:middle], single[middle:]):
                if wanted := [part for part in half if not part[0].done.done()]:
                    await self._judge(wanted)

    def _deliver(self, parts: list[_Part], responses: Sequence[JudgeResponse]) -> None:
        """Hand out answers to those that still wait for them."""
        end = 0
        for arrival, start, stop in parts:
            begin, end = end, end + stop - start
            if arrival.done.done():
                continue
            said = responses[begin:end]
            check_responses(said, arrival.requests[start:stop], self.facts(arrival.arrived))
            arrival.answers[start:stop] = said
            self._answered += stop - start
            arrival.unanswered -= stop - start
            if not arrival.unanswered:
                arrival.done.set_result(arrival.answers)

    def facts(self, arrived: float) -> dict[str, Any]:
        """What responses say of all that came at ``arrived`` and were judged together."""
        latency = round(time.perf_counter() - arrived, 6)
        return {"latency": latency, "model_version": self._backend.version}

    def _fail(self, arrival: _Arrival, kind: ErrorKind, message: str) -> None:
        """Answer what is not answered yet with an error."""
        if arrival.done.done():
            return
        said = [JudgeResponse(error=ErrorInfo(kind, message)) for _ in arrival.requests]
        check_responses(said, arrival.requests, self.facts(arrival.arrived))
        arrival.answers = [
            error if answer is _UNANSWERED else answer
            for error, answer in zip(said, arrival.answers, strict=True)
        ]
        arrival.unanswered = 0
        arrival.done.set_result(arrival.answers)
        self._take_back(arrival)

    def _take_back(self, arrival: _Arrival) -> None:
        """Nobody waits any more: leave the queue, and cancel batches that nobody else is in."""
        self.queue.drop(arrival.share, arrival, len(arrival.requests) - arrival.taken)
        if not arrival.taken:
            return
        for task, parts in self._lanes.items():
            # Not twice: a backend that cleans up after a cancellation would be cut off in it.
            if not task.cancelling() and all(part[0].done.done() for part in parts):
                task.cancel()
