"""The backend of the judge service: its protocol, its queue, and the check of its answers.

A backend is anything that scores requests. Requests go into the queue, batches (or single requests)
out of it, answers back. Every request that is admitted is answered exactly once: judged, or with an
error when its deadline passed or the service stopped; or it is abandoned by its caller, and then
takes no more of the backend's time. Requests that came together are one entry in the queue, with
one future, however many batches they go in. How fast answers have come lately says how long a full
queue takes to empty. An answer is a score that is a number, or an error that says why not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from adjudge.config import suggest_name
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.service.settings import ServiceSettings
from adjudge.service.shares import FairQueue, Share
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse


class Backend(Protocol):
    """Scores requests, many at once or one by one.

    ``version`` changes whenever the same request may get another score; it travels as
    ``metadata.model_version`` and clears clients' caches. ``one_by_one``: each request takes its
    own time (an LLM judge far away), so none should wait for a batch's others; then ``score`` is
    called with one request at a time, many times at once. Else it is called with batches, one
    after the other. ``compares_groups`` says what needs a whole group, ``None`` when nothing does.
    """

    name: str
    version: str
    one_by_one: bool
    compares_groups: str | None

    async def start(self) -> None:
        """Load what is needed; the service is not ready before."""

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """One response per request, in order; runs on the service's event loop and never blocks it.

        A failure of one request is that response's ``error``. What is raised is taken for the
        fault of one of the requests, which is then looked for.
        """

    async def aclose(self) -> None:
        """Let go of models, connections, threads."""


_log = logging.getLogger("adjudge.service")
_MAX_LOGGED = 100
_MAX_NAMED_KEYS, _NAME_LENGTH = 10, 60


def error_response(kind: ErrorKind, message: str) -> JudgeResponse:
    """A response without a score."""
    return JudgeResponse(error=ErrorInfo(kind, message))


def find_shape_problem(responses: Any, asked: int) -> str | None:
    """Why this cannot be the answer to ``asked`` requests; ``None`` when it can."""
    if not isinstance(responses, list | tuple):
        return f"the backend returned {type(responses).__name__}, not a list of responses"
    if len(responses) != asked:
        return f"the backend returned {len(responses)} responses to {asked} requests"
    for one in responses:
        if not isinstance(one, JudgeResponse):
            return f"the backend returned {type(one).__name__} instead of a JudgeResponse"
    return None


def check_response(
    response: JudgeResponse, request: JudgeRequest, facts: dict[str, Any]
) -> JudgeResponse:
    """The response as it goes out: with the request's id and ``facts`` in its metadata.

    Always a new object, since a backend may give the same one twice. A response with an error has
    no score; one without either, with a score that is no finite number, or with metadata that is no
    dict gets an error.
    """
    score, error, metadata = response.score, response.error, response.metadata
    if metadata is not None and not isinstance(metadata, dict):
        problem = f"the metadata is no dict but {type(metadata).__name__}"
        score, error, metadata = None, ErrorInfo(ErrorKind.BUG, problem), None
    if error is not None:
        score = None
    elif type(score) is not float or not math.isfinite(score):
        score, error = _check_score(score)
    return JudgeResponse(
        score,
        request.request_id,
        response.explanation,
        response.detailed_scores,
        response.confidence,
        {**metadata, **facts} if metadata else facts,
        error,
        reward_components=None if score is None else response.reward_components,
    )


def _check_score(score: Any) -> tuple[float | None, ErrorInfo | None]:
    if score is None:
        return None, ErrorInfo(ErrorKind.BUG, "the backend gave neither a score nor an error")
    if isinstance(score, bool) or not isinstance(score, int | float):
        return None, ErrorInfo(ErrorKind.BUG, f"the score is no number but {type(score).__name__}")
    try:
        number = float(score)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        return None, ErrorInfo(ErrorKind.OUT_OF_RANGE, "the score is not a finite number")
    return number, None


class BackendErrorReporter:
    """What backends raised: as an error for the client, and once each in the log.

    Neither has the exception's own text unless it is a :class:`GradingFailure`: it may quote the
    request. The log has the place instead.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def report(self, problem: BaseException | str) -> JudgeResponse:
        """The answer to the one request that the problem was traced to."""
        if isinstance(problem, GradingFailure):
            return JudgeResponse(error=ErrorInfo.of(problem, str(problem)))
        if isinstance(problem, str):
            message = place = problem
        else:
            message = f"the backend raised {type(problem).__name__}"
            place = f"{message} in {_error_location(problem)}"
        if place not in self._seen and len(self._seen) < _MAX_LOGGED:
            self._seen.add(place)
            _log.error(
                "%s. The other requests of the batch were judged. This is logged once.", place
            )
        return error_response(ErrorKind.BUG, message)


class UnknownKeyReporter:
    """Keys of requests that nothing reads: as warnings for the client, and once each in the log.

    A misspelt ``answer`` would else be judged without a reference, and nobody would know.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def warnings(self, found: Iterable[str], known: Collection[str]) -> list[str] | None:
        """What is said of the keys ``found`` that are not ``known``; ``None`` where all are."""
        unknown = [key for key in found if key not in known]
        said = []
        for key in unknown[:_MAX_NAMED_KEYS]:
            name = repr(key[:_NAME_LENGTH])
            said.append(f"unknown key {name} was ignored{suggest_name(key[:_NAME_LENGTH], known)}")
            if name not in self._seen and len(self._seen) < _MAX_LOGGED:
                self._seen.add(name)
                _log.warning("a request: %s (logged once)", said[-1])
        if (more := len(unknown) - _MAX_NAMED_KEYS) > 0:
            said.append(f"{more} more unknown keys were ignored")
        return said or None


def _error_location(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


_MEMORY_S = 10.0
_LONGEST_S = 60


class AnswerRate:
    """Answers per second over about the last ten seconds; times are the caller's clock.

    An exponentially decaying count, divided by the time that it has had to build up. Time in which
    nobody asks is left out: it says nothing about how fast a queue moves.

    >>> seen = AnswerRate(now=0.0)
    >>> for second in range(1, 61): seen.add(50, now=float(second))
    >>> seen.retry_after(waiting=1000, now=60.0)
    20
    """

    __slots__ = ("_at", "_count", "_weight")

    def __init__(self, now: float) -> None:
        self._at = now
        self._count = 0.0
        self._weight = 0.0

    def begin(self, now: float) -> None:
        """Somebody asks again, after a time without requests."""
        self._at = now

    def add(self, answers: int, now: float) -> None:
        """So many answers were given."""
        self._decay(now)
        self._count += answers

    def per_second(self, now: float) -> float:
        """The rate; 0 before the first answer."""
        self._decay(now)
        return self._count / self._weight if self._weight > 0.0 else 0.0

    def retry_after(self, waiting: int, now: float) -> int:
        """Whole seconds, 1 to 60, until ``waiting`` requests are likely to have gone."""
        rate = self.per_second(now)
        if rate <= 0.0:
            return 1
        return max(1, min(_LONGEST_S, math.ceil(waiting / rate - 1e-9)))

    def _decay(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        if passed:
            keep = math.exp(-passed / _MEMORY_S)
            self._count *= keep
            # Seconds, weighted like the counts: what divides a count into a rate.
            self._weight = self._weight * keep + _MEMORY_S * (1.0 - keep)
            self._at = now


_TIMER_RESOLUTION_S = 1e-6
"""Seconds too short for a timer."""


class QueueFull(GradingFailure):
    """No room to wait: refused with 429, to be asked again ``retry_after`` seconds later."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(ErrorKind.RATE_LIMITED, message)
        self.retry_after = retry_after


class _Arrival:
    """Requests that came together, how many of them were handed out, and the answers so far."""

    __slots__ = (
        *("answers", "arrived", "done", "queued_at", "requests", "share", "taken", "unanswered"),
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Sequence[JudgeRequest],
        share: Share[_Arrival],
    ) -> None:
        self.requests = requests
        self.share = share
        self.taken = 0
        self.answers: list[JudgeResponse | None] = [None] * len(requests)
        self.unanswered = len(requests)
        self.done: asyncio.Future[list[JudgeResponse]] = loop.create_future()
        """Also done when nobody waits any more: a cancelled caller cancels it."""
        self.arrived = time.perf_counter()
        self.queued_at = loop.time()

    def finish(self) -> None:
        """All are answered: let the caller have them."""
        self.done.set_result([one for one in self.answers if one is not None])


_Part = tuple[_Arrival, int, int]
"""Requests of one arrival: from the first place to before the second."""


class _Lane:
    """One batch after another in the backend's hands: what is there now, and the task."""

    __slots__ = ("parts", "task")

    def __init__(self, parts: list[_Part]) -> None:
        self.parts = parts
        self.task: asyncio.Task[None] | None = None


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
        self._max_lanes = settings.concurrency if one_by_one else 1
        self._size = 1 if one_by_one else settings.max_batch_size
        self._max_wait_s = 0.0 if one_by_one else settings.batch_timeout
        self._arrivals: dict[_Arrival, None] = {}  # the oldest first
        self.queue: FairQueue[_Arrival] = FairQueue(settings.queue_size, settings.client_weights)
        """Those with requests to hand out."""
        self._lanes: set[_Lane] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rate = AnswerRate(self._loop.time())
        self._error_reporter = BackendErrorReporter()

    @property
    def waiting(self) -> int:
        """Requests that the backend has not been given yet."""
        return self.queue.waiting

    @property
    def judging(self) -> int:
        """Requests in the backend's hands that somebody still waits for."""
        parts = [part for lane in self._lanes for part in lane.parts]
        return sum(
            arrival.answers[start:stop].count(None)
            for arrival, start, stop in parts
            if not arrival.done.done()
        )

    async def score(
        self, requests: Sequence[JudgeRequest], client: str = ""
    ) -> list[JudgeResponse]:
        """One response per request of ``client``, in order; raises :class:`QueueFull`.

        Cancelling it takes the requests back, out of the queue or out of the backend's hands.
        """
        if not requests:
            return []
        share = self.queue.share(client)
        if share.waiting and not self.queue.has_room(share, len(requests)):
            ahead = min(self.waiting, math.ceil(share.waiting / self.queue.part(share)))
            seconds = self._rate.retry_after(ahead, self._loop.time())
            raise QueueFull(
                f"request queue full: {share.waiting} are waiting; retry in {seconds} s, send "
                "fewer at once, or raise the service's queue_size or concurrency",
                seconds,
            )
        if not self._arrivals:
            self._rate.begin(self._loop.time())
        arrival = _Arrival(self._loop, requests, share)
        self._arrivals[arrival] = None
        self.queue.add(share, arrival, len(requests))
        if self._alarm is None:
            self._alarm = self._loop.call_later(self._settings.deadline_s, self._check_deadlines)
        self._pump()
        try:
            return await arrival.done
        finally:
            del self._arrivals[arrival]
            if arrival.unanswered:
                self._take_back(arrival)

    def stop(self) -> None:
        """Answer all that still wait with the error ``cancelled``, and end what runs."""
        for arrival in list(self._arrivals):
            self._fail_arrival(
                arrival, ErrorKind.CANCELLED, "the service stopped before it was judged"
            )

    def _check_deadlines(self) -> None:
        """Give up what is due; one timer does for all, since all may take equally long."""
        self._alarm = None
        seconds = self._settings.deadline_s
        now = self._loop.time()
        for arrival in list(self._arrivals):
            left = arrival.queued_at + seconds - now
            if left > _TIMER_RESOLUTION_S:
                self._alarm = self._loop.call_later(left, self._check_deadlines)
                return
            message = f"not answered within deadline_s = {seconds:g} s"
            self._fail_arrival(arrival, ErrorKind.TIMEOUT, message)

    def _pump(self) -> None:
        """Give the backend what it takes now."""
        while len(self._lanes) < self._max_lanes and (parts := self._next_parts()):
            self._start(_Lane(parts))

    def _start(self, lane: _Lane) -> None:
        self._lanes.add(lane)
        lane.task = self._loop.create_task(self._work(lane))
        # Not in the task: one that is cancelled before it begins never runs a line of its own.
        lane.task.add_done_callback(lambda _: self._on_lane_end(lane))

    def _on_lane_end(self, lane: _Lane) -> None:
        self._lanes.discard(lane)
        self._pump()

    async def _work(self, lane: _Lane) -> None:
        """Judge what is in ``lane``, then what is due next; one task, as long as there is more."""
        while True:
            await self._judge(lane.parts)
            # The backend may have swallowed a cancellation; it must not hit the next batch.
            if lane.task is None or lane.task.cancelling():
                return
            if not (parts := self._next_parts()):
                return
            lane.parts = parts
            await asyncio.sleep(0)  # the rest of the loop has its turn, whatever the backend does

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
        return parts

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    async def _judge(self, parts: list[_Part]) -> None:
        """Answer ``parts``; when the backend breaks on them, find out on which request."""
        requests = [
            request for arrival, start, stop in parts for request in arrival.requests[start:stop]
        ]
        self._observe(len(requests))
        problem: BaseException | str | None
        responses: list[JudgeResponse] = []
        try:
            responses = await self._backend.score(requests)
            problem = find_shape_problem(responses, len(requests))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            problem = error  # the backend's own doing, nobody asked for it
        except (Exception, SystemExit) as error:  # noqa: BLE001  it is somebody else's code
            problem = error
        if problem is None:
            self._deliver(parts, responses)
        elif len(requests) == 1:
            self._deliver(parts, [self._error_reporter.report(problem)])
        else:
            await self._halve(parts, len(requests) // 2)

    async def _halve(self, parts: list[_Part], middle: int) -> None:
        single = [(arrival, at, at + 1) for arrival, *ends in parts for at in range(*ends)]
        for half in (single[:middle], single[middle:]):
            wanted = [part for part in half if not part[0].done.done()]
            if wanted:
                await self._judge(wanted)

    def _deliver(self, parts: list[_Part], responses: Sequence[JudgeResponse]) -> None:
        """Hand out answers to those that still wait for them."""
        now, version = time.perf_counter(), self._backend.version
        settled = end = 0
        for arrival, start, stop in parts:
            begin, end = end, end + stop - start
            if arrival.done.done():
                continue
            # Those that came together share their facts.
            facts = {"latency": round(now - arrival.arrived, 6), "model_version": version}
            arrival.answers[start:stop] = [
                check_response(response, request, facts)
                for response, request in zip(
                    responses[begin:end], arrival.requests[start:stop], strict=True
                )
            ]
            settled += stop - start
            arrival.unanswered -= stop - start
            if not arrival.unanswered:
                arrival.finish()
        self._rate.add(settled, self._loop.time())

    def _fail_arrival(self, arrival: _Arrival, kind: ErrorKind, message: str) -> None:
        """Answer what is not answered yet with an error."""
        if arrival.done.done():
            return
        latency = round(time.perf_counter() - arrival.arrived, 6)
        facts = {"latency": latency, "model_version": self._backend.version}
        failed = error_response(kind, message)
        arrival.answers = [
            check_response(failed, request, facts) if answer is None else answer
            for request, answer in zip(arrival.requests, arrival.answers, strict=True)
        ]
        arrival.unanswered = 0
        arrival.finish()
        self._take_back(arrival)

    def _take_back(self, arrival: _Arrival) -> None:
        """Nobody waits any more: leave the queue, and cancel batches that nobody else is in."""
        self.queue.drop(arrival.share, arrival, len(arrival.requests) - arrival.taken)
        if not arrival.taken:
            return
        for lane in self._lanes:
            # Not twice: a backend that cleans up after a cancellation would be cut off in it.
            if lane.task is None or lane.task.cancelling():
                continue
            if all(part[0].done.done() for part in lane.parts):
                lane.task.cancel()
