"""The state machine of an endpoint: who is sent when, and what each outcome leads to.

The states of a call (:class:`~adjudge.judges.endpoint.calls.CallState`)::

                  a slot is free           slower than most
    submit ──► WAITING ──────────► SENT ─────────────────────► HEDGED
                ▲   ▲             │ │ │ ▲                       │  │
                │   │             │ │ │ └── one attempt ended ──┘  │
                │   │             │ │ │                            │
                │   │  silent for │ │ │ a complete reply           │ the first complete reply
                │   └── too long ─┘ │ └──────────────► DONE ◄──────┘
      its time  │                   │
      has come  │                   │ it failed, and may pass
             RETRY_WAIT ◄───────────┘

    from all of these ──► FAILED      no retry helps, or attempts or deadline are used up
                      ──► CANCELLED   nobody waits for it any more

=====================  ============================================================================
:meth:`submit`         takes over a call: WAITING
``_pump``              sends while there are slots, rates and money: WAITING → SENT → HEDGED
``_run``               is one attempt from start to outcome, and the only asyncio task
``_on_reply``          → DONE; the other attempt loses
``_on_failure``        → RETRY_WAIT or FAILED, unless the other attempt goes on
``_on_cancelled``      → WAITING for silence, → CANCELLED where the loop shuts down
``_sweep``             whatever time brings: RETRY_WAIT → WAITING, hedges, silence, the deadline
=====================  ============================================================================

A server whose attempts fail in a row is left alone by its breaker (``CircuitBreaker`` in
:mod:`adjudge.judges.endpoint.calls` draws its states).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from adjudge.engine.clock import PeriodicTimer
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpResponse, Reply, Transport
from adjudge.judges.endpoint.calls import (
    RETRYABLE_KINDS,
    UNHEALTHY_KINDS,
    Attempt,
    Call,
    CallState,
    CancelReason,
    ForbiddenClassifier,
    Replica,
    RetryQueue,
    as_shared_reply,
    pick_replica,
)
from adjudge.judges.endpoint.capacity import EndpointHealth, UsageMeter, parse_retry_after
from adjudge.judges.endpoint.settings import BudgetDecision, EndpointSettings, SpendCeiling
from adjudge.judges.endpoint.stats import EndpointStats
from adjudge.types import Provenance

MAX_HEDGES = 2
OVERLOADED_STATUSES = (503, 529)


class Dispatcher:
    """All calls of one endpoint on one event loop.

    ``on_complete`` is told of each call's end and outcome: ``None`` where all who asked have left.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        transport: Transport,
        settings: EndpointSettings,
        stats: EndpointStats,
        rng: random.Random,
        on_complete: Callable[[Call, Reply | Exception | None], None],
        budget: SpendCeiling | None = None,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._on_complete = on_complete
        self._stats = stats
        self._meter = UsageMeter(settings, stats, budget)
        self.health = EndpointHealth(base_urls, settings)
        self._limit = self.health.limit
        self._hedge_budget = self.health.hedges
        self._replicas = self.health.replicas
        self._open: dict[Call, None] = {}  # that have not ended, in the order of their deadlines
        self._live: dict[Attempt, None] = {}  # in the order of sending
        # The lanes of WAITING calls, the first one first; and those that are to be hedged.
        self._resend_lane: deque[Call] = deque()
        self._hedge_lane: deque[Call] = deque()
        self._new_lane: deque[Call] = deque()
        self._lanes = (self._resend_lane, self._hedge_lane, self._new_lane)
        self._retries = RetryQueue(settings, rng)
        self._forbidden = ForbiddenClassifier()
        self.loop = asyncio.get_running_loop()
        self._sweeper = PeriodicTimer(self.loop, self._sweep)

    @property
    def lag_max_s(self) -> float:
        """The longest that the loop was busy elsewhere."""
        return self._sweeper.lag_max_s

    # ── asked: → WAITING ─────────────────────────────────────────────────────────────────────

    def submit(self, call: Call) -> None:
        """Take over a new call; its waiters get the outcome."""
        call.asked_at = now = self._sweeper.now()
        call.deadline = now + self._settings.deadline_s
        self._open[call] = None
        self._new_lane.append(call)
        self._sweeper.wake()
        self._pump()

    def cancel_waiter(self, call: Call, waiter: asyncio.Future[Reply]) -> None:
        """A waiter was cancelled; with the last one, the call's attempts are."""
        if call.ended:
            return
        call.waiters.remove(waiter)
        self._stats.count_failure(ErrorKind.CANCELLED)
        if not call.waiters:
            self._end(call, CallState.CANCELLED)

    async def wait_for_cancelled(self, timeout_s: float) -> None:
        """Wait until attempts that were cancelled have ended and are booked."""
        live = [attempt for attempt in self._live if attempt.cancel_reason is not None]
        if tasks := [attempt.task for attempt in live if attempt.task is not None]:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def aclose(self) -> None:
        """End all calls as ``cancelled`` and wait until their attempts are."""
        for call in list(self._open):
            self._fail(call, GradingFailure(ErrorKind.CANCELLED, "the endpoint was closed"))
        self._sweeper.stop()
        tasks = [attempt.task for attempt in self._live if attempt.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    # ── there is room: WAITING → SENT → HEDGED ───────────────────────────────────────────────

    def _pump(self) -> None:
        """Send what waits, as long as there is room."""
        limit = self._limit
        while limit.in_flight < limit.limit and (lane := self._next_lane()) is not None:
            now = self.loop.time()
            if now < limit.paused_until:
                return
            call = lane[0]
            if lane is self._hedge_lane:
                lane.popleft()
                self._send_hedge(call, now)
                continue
            replica = pick_replica(self._replicas, now, call.chat_call.group, call.avoid)
            if replica is None:
                if self.health.may_recover:
                    return
                self._fail(lane.popleft(), self.health.ejected_failure())
                continue
            decision = self._meter.admits(call, now)
            if decision is BudgetDecision.WAIT:
                return
            lane.popleft()
            if decision is BudgetDecision.NEVER:
                self._fail(call, GradingFailure(ErrorKind.BUDGET, "the spend ceiling is reached"))
                continue
            call.first_sends += 1
            if lane is self._resend_lane:
                self._stats.timeouts += call.was_silent
                self._stats.retries += not call.was_silent
            self._launch(call, replica, False, now)

    def _next_lane(self) -> deque[Call] | None:
        for lane in self._lanes:
            while lane:
                if not lane[0].ended:
                    return lane
                lane.popleft()
        return None

    def _send_hedge(self, call: Call, now: float) -> None:
        """The second attempt, unless its time has passed while it waited for a slot."""
        call.hedge_queued = False
        if len(call.attempts) != 1 or call.attempts[0].cancel_reason is not None:
            return
        if now < self._limit.cooling_until:
            return
        replica = self.health.pick_second(call.attempts[0].replica)
        affordable = self._meter.admits(call, now) is BudgetDecision.YES
        if replica is not None and affordable and self._hedge_budget.spend():
            call.hedges += 1
            self._stats.hedges += 1
            self._launch(call, replica, True, now)

    def _launch(self, call: Call, replica: Replica, hedge: bool, now: float) -> None:
        self._limit.take()
        self._meter.take(call)
        replica.in_flight += 1
        replica.sends += 1
        now = self._sweeper.without_lag(now)
        attempt = Attempt(call, replica, hedge, replica.breaker.begin(), now, now)
        call.attempts.append(attempt)
        call.state = CallState.HEDGED if hedge else CallState.SENT
        self._live[attempt] = None
        attempt.task = self.loop.create_task(self._run(attempt))

    # ── one attempt, from start to outcome ───────────────────────────────────────────────────

    async def _run(self, attempt: Attempt) -> None:
        attempt.running = True
        self._stats.sends += 1
        call = attempt.call
        request = call.request
        on_chunk = partial(self._on_chunk, attempt) if request.stream else None
        response: HttpResponse | None = None
        try:
            response = await self._transport.post(attempt.replica.url, request, on_chunk)
            reply = _check_reply(call.wire.reply(call.chat_call, response))
        except GradingFailure as failure:
            self._release(attempt)
            self._on_failure(attempt, failure, response)
        except asyncio.CancelledError:
            self._release(attempt)
            self._on_cancelled(attempt)
            raise
        except Exception as bug:  # noqa: BLE001  (no judge's failure: the caller gets it as it is)
            self._release(attempt)
            self._meter.settle_unknown(call)
            attempt.replica.breaker.abandoned(attempt.probe)
            self._fail(call, bug)
        else:
            self._on_reply(attempt, reply)
        if self._new_lane or self._resend_lane or self._hedge_lane:
            self._pump()

    def _on_chunk(self, attempt: Attempt) -> None:
        attempt.last_activity = self._sweeper.now()
        if not attempt.streaming:
            attempt.streaming = True
            if not attempt.hedge:
                attempt.call.latencies.add(attempt.last_activity - attempt.sent_at)

    def _release(self, attempt: Attempt) -> None:
        """An attempt is out no more; of two, the other goes on: HEDGED → SENT."""
        call = attempt.call
        self._limit.in_flight -= 1
        attempt.replica.in_flight -= 1
        call.attempts.remove(attempt)
        if call.state is CallState.HEDGED:
            call.state = CallState.SENT
        del self._live[attempt]

    # ── a reply: → DONE ──────────────────────────────────────────────────────────────────────

    def _on_reply(self, attempt: Attempt, reply: Reply) -> None:
        """The first complete reply: it wins."""
        call = attempt.call
        now = self.loop.time()
        self._limit.succeeded(now)
        now = self._sweeper.without_lag(now)
        self._release(attempt)
        self.health.answered(attempt)
        self._forbidden.record_reply()
        if not attempt.hedge and not attempt.streaming:
            call.latencies.add(now - attempt.sent_at)
        if call.hedges and not call.given_up:  # then no attempt was beaten
            self._hedge_budget.learn(attempt.hedge)
        self._stats.hedge_wins += attempt.hedge
        self._hedge_budget.earn()
        usage = self._meter.settle_usage(call, reply.usage)
        latency = now - call.asked_at
        self._stats.latencies.add(latency)
        self._stats.answered += len(call.waiters)
        provenance = Provenance(
            source="live",
            model=reply.model,
            prompt_hash=call.cache_key or reply.provenance.prompt_hash,
            usage=usage,
            latency_s=latency,
            attempts=call.sends,
            hedged=attempt.hedge,
        )
        reply = msgspec.structs.replace(reply, usage=usage, provenance=provenance)
        self._end(call, CallState.DONE, reply)
        for waiter in call.waiters:
            if not waiter.done():
                waiter.set_result(reply)
                # What is paid once is not each one's expense.
                reply = reply if len(call.waiters) == 1 else as_shared_reply(reply)

    # ── a failure: → RETRY_WAIT, or FAILED ───────────────────────────────────────────────────

    def _on_failure(
        self, attempt: Attempt, failure: GradingFailure, response: HttpResponse | None
    ) -> None:
        """An attempt failed; the call may go on by its other attempt or a retry."""
        call = attempt.call
        if failure.kind is ErrorKind.AUTH:
            oldest = next(iter(self._live), None)
            failure = self._forbidden.classify(call, failure, oldest, self._sweeper.now())
        kind = failure.kind
        status = failure.metadata.get("status", response.status if response else None)
        wait = parse_retry_after(response.headers) if response else None
        declined = isinstance(status, int) and status >= 300
        if declined or failure.metadata.get("sent") is False:
            self._meter.settle_free(call)
        else:
            self._meter.settle_unknown(call)
        self._stats.count_send_failure(kind)
        if kind in UNHEALTHY_KINDS:
            self.health.failed(attempt, self.loop.time(), failure)
        else:
            self.health.answered(attempt)
        if kind is ErrorKind.RATE_LIMITED or status in OVERLOADED_STATUSES:
            self._limit.throttled(self.loop.time(), wait)
        call.failure = failure
        call.avoid = attempt.replica
        said_no = response is not None and response.headers.get("x-should-retry") == "false"
        if kind not in RETRYABLE_KINDS or said_no:
            self._fail(call, failure)
        elif not call.attempts:
            hopeless = not (self.health.may_recover or self.health.up())
            if hopeless or not self._retries.add(call, wait, self._sweeper.now()):
                self._fail(call, failure)
            elif not call.ended:
                call.state = CallState.RETRY_WAIT
                call.was_silent = False

    # ── a cancelled attempt: → WAITING for silence; → CANCELLED from outside ─────────────────

    def _on_cancelled(self, attempt: Attempt) -> None:
        """An attempt was cancelled: by us for a reason, or from outside where the loop ends."""
        call, reason = attempt.call, attempt.cancel_reason
        self._meter.settle_unknown(call)
        silent = self._sweeper.now() - attempt.last_activity
        compared = reason in (CancelReason.LATE, CancelReason.LOST)
        if compared and not attempt.hedge and not attempt.streaming:
            call.latencies.add(silent)
        if reason is CancelReason.LATE:
            self._stats.count_send_failure(ErrorKind.TIMEOUT)
            self.health.failed(attempt, self.loop.time())
            if not call.ended and not call.attempts:
                call.state = CallState.WAITING
                call.was_silent = True
                call.timeouts += 1
                self._resend_lane.append(call)
        else:
            attempt.replica.breaker.abandoned(attempt.probe)
        if reason is None:
            for waiter in call.waiters:
                waiter.cancel()
            self._stats.count_failure(ErrorKind.CANCELLED, len(call.waiters))
            self._end(call, CallState.CANCELLED)
        else:
            self._pump()

    def _cancel(self, attempt: Attempt, reason: CancelReason) -> None:
        if attempt.cancel_reason is not None or attempt.task is None:
            return
        attempt.cancel_reason = reason
        attempt.task.cancel()
        if not attempt.running:  # its coroutine will never run, so nothing else would clean up
            self._release(attempt)
            if attempt.hedge:  # it never left
                self._stats.hedges -= 1
                attempt.call.hedges -= 1
            self._meter.settle_free(attempt.call)
            attempt.replica.breaker.abandoned(attempt.probe)

    # ── the end: → FAILED, and what all ends have in common ──────────────────────────────────

    def _fail(self, call: Call, error: Exception) -> None:
        """End a call without a reply."""
        if call.ended:
            return
        kind = ErrorKind.BUG
        if isinstance(error, GradingFailure):
            kind = error.kind
            error = GradingFailure(kind, str(error), {**error.metadata, "attempts": call.sends})
        self._stats.count_failure(kind, len(call.waiters))
        self._end(call, CallState.FAILED, error)
        for waiter in call.waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _end(self, call: Call, state: CallState, outcome: Reply | Exception | None = None) -> None:
        """Close the books on a call and cancel what is still out."""
        call.state = state
        del self._open[call]
        try:
            self._on_complete(call, outcome)
        except Exception as error:  # noqa: BLE001  (who asked must know that it cannot be kept)
            for waiter in call.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        reason = CancelReason.LOST if state is CallState.DONE else CancelReason.LEFT
        for attempt in call.attempts[:]:
            self._cancel(attempt, reason)

    # ── time passes: RETRY_WAIT → WAITING, silence, hedges, the deadline ─────────────────────

    def _sweep(self) -> bool:
        now = self._sweeper.now()
        for call in self._retries.due(now):
            call.state = CallState.WAITING
            self._resend_lane.append(call)
        for call in list(itertools.takewhile(lambda call: call.deadline <= now, self._open)):
            self._expire(call, now)
        late, slow = self.health.find_silent(self._live, now)
        for attempt in late:
            self._give_up(attempt)
        for attempt in slow:
            self._queue_hedge(attempt.call)
        self._pump()
        return bool(self._open)

    def _expire(self, call: Call, now: float) -> None:
        """The deadline of a call has passed."""
        digest = call.latencies
        for attempt in call.attempts[:]:
            if now - attempt.last_activity >= min(digest.give_up_s, digest.cold_hedge_s):
                self._cancel(attempt, CancelReason.LATE)
        within = f"within {self._settings.deadline_s:g} s"
        kind, message = ErrorKind.TIMEOUT, f"no complete reply {within}"
        failure = call.failure
        if not call.attempts and not self.health.up():
            kind, message = ErrorKind.CIRCUIT_OPEN, f"the server did not recover {within}"
            failure = failure or self.health.last_failure
        cause = f"; last: {failure}" if failure else ""
        last = {"last_failure": str(failure.kind)} if failure else {}
        self._fail(call, GradingFailure(kind, f"{message} ({call.sends} sends){cause}", last))

    def _give_up(self, attempt: Attempt) -> None:
        """Cancel a silent attempt, unless the call would be left without any."""
        call = attempt.call
        others = any(other.cancel_reason is None for other in call.attempts if other is not attempt)
        if others or call.first_sends < self._settings.max_attempts:
            call.given_up = True
            call.avoid = attempt.replica
            self._cancel(attempt, CancelReason.LATE)
        elif attempt.probe:  # it may go on, but others need not wait for it
            self.health.failed(attempt, self.loop.time())
            attempt.probe = False

    def _queue_hedge(self, call: Call) -> None:
        if (
            self._hedge_budget.available
            and not call.hedge_queued
            and call.hedges < MAX_HEDGES
            and call.state is CallState.SENT
        ):
            call.hedge_queued = True
            self._hedge_lane.append(call)


def _check_reply(reply: object) -> Reply:
    """The user's own wires are programs like others; what is no reply must not win."""
    if isinstance(reply, Reply):
        return reply
    raise TypeError(f"the wire's reply must be a Reply (found {type(reply).__name__})")
