"""The state machine behind an endpoint: who is sent when, and what each outcome leads to.

A :class:`Flight` waits in one of three lanes (to be sent again, hedges, new ones), is out as one or
two sends, or waits for a retry. :meth:`Dispatcher._pump` moves flights from lanes to the wire while
there are slots; :meth:`Dispatcher._run` is one send from start to outcome; the sweep looks after
everything that happens because time has passed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpResponse, Reply, Transport
from adjudge.judges.budget import Afford, SpendCeiling
from adjudge.judges.endpoint_settings import EndpointSettings
from adjudge.judges.flight import Flight, Send, Why, shared
from adjudge.judges.health import Health
from adjudge.judges.limits import retry_after
from adjudge.judges.metering import Meter
from adjudge.judges.replicas import Replica, pick
from adjudge.judges.retry import RETRYABLE, UNHEALTHY, ForbiddenRequests, Retries
from adjudge.judges.stats import Stats
from adjudge.judges.sweeper import Sweeper
from adjudge.types import Provenance

__all__ = ["Dispatcher"]

MAX_HEDGES = 2
OVERLOADED = (503, 529)


class Dispatcher:
    """All calls of one endpoint on one event loop.

    ``landed`` is told of each flight's end and outcome: ``None`` where all who asked have left.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        transport: Transport,
        settings: EndpointSettings,
        stats: Stats,
        rng: random.Random,
        landed: Callable[[Flight, Reply | Exception | None], None],
        budget: SpendCeiling | None = None,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._landed = landed
        self._stats = stats
        self._meter = Meter(settings, stats, budget)
        self.health = Health(base_urls, settings)
        self._limit = self.health.limit
        self._budget = self.health.hedges
        self._replicas = self.health.replicas
        self._open: dict[Flight, None] = {}  # in the order of their deadlines
        self._live: dict[Send, None] = {}  # in the order of sending
        self._again: deque[Flight] = deque()
        self._hedges: deque[Flight] = deque()
        self._fresh: deque[Flight] = deque()
        self._retries = Retries(settings, rng)
        self._forbidden = ForbiddenRequests()
        self.loop = asyncio.get_running_loop()
        self._sweeper = Sweeper(self.loop, self._sweep)

    @property
    def lag_max_s(self) -> float:
        """The longest that the loop was busy elsewhere."""
        return self._sweeper.lag_max_s

    def submit(self, flight: Flight) -> None:
        """Take over a new flight; its waiters get the outcome."""
        flight.asked = now = self._sweeper.now()
        flight.deadline = now + self._settings.deadline_s
        self._open[flight] = None
        self._fresh.append(flight)
        self._sweeper.wake()
        self._pump()

    def leave(self, flight: Flight, waiter: asyncio.Future[Reply]) -> None:
        """A waiter was cancelled; with the last one, the flight's sends are."""
        if flight.done:
            return
        flight.waiters.remove(waiter)
        self._stats.count_failure(ErrorKind.CANCELLED)
        if not flight.waiters:
            self._end(flight, Why.LEFT)

    async def aclose(self) -> None:
        """End all flights as ``cancelled`` and wait until their sends are."""
        for flight in list(self._open):
            self._fail(flight, GradingFailure(ErrorKind.CANCELLED, "the endpoint was closed"))
        self._sweeper.stop()
        tasks = [send.task for send in self._live if send.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    # ── lanes → wire ─────────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Send what waits, as long as there is room."""
        limit = self._limit
        while limit.in_flight < limit.limit and (lane := self._lane()):
            now = self.loop.time()
            if now < limit.paused_until:
                return
            flight = lane[0]
            if lane is self._hedges:
                lane.popleft()
                self._send_hedge(flight, now)
                continue
            replica = pick(self._replicas, now, flight.group, flight.avoid)
            if replica is None:
                if self._waits:
                    return
                self._fail(lane.popleft(), self._not_sent())
                continue
            afford = Afford.YES if self._meter.idle else self._meter.admits(flight, now)
            if afford is Afford.WAIT:
                return
            lane.popleft()
            if afford is Afford.YES:
                flight.first_sends += 1
                if lane is self._again:
                    self._stats.timeouts += flight.was_silent
                    self._stats.retries += not flight.was_silent
                self._launch(flight, replica, False, now)
            else:
                self._fail(flight, GradingFailure(ErrorKind.BUDGET, "the spend ceiling is reached"))

    def _lane(self) -> deque[Flight] | None:
        for lane in (self._again, self._hedges, self._fresh):
            while lane:
                if not lane[0].done:
                    return lane
                lane.popleft()
        return None

    def _send_hedge(self, flight: Flight, now: float) -> None:
        """The second copy, unless its time has passed while it waited for a slot."""
        flight.hedge_queued = False
        if len(flight.sends) != 1 or flight.sends[0].why is not None:
            return
        if now < self._limit.cooling_until:
            return
        replica = self.health.pick_second(flight.sends[0].replica)
        idle = self._meter.idle
        affordable = idle or self._meter.admits(flight, now) is Afford.YES
        if replica is not None and affordable and self._budget.spend():
            flight.hedges += 1
            self._stats.hedges += 1
            self._launch(flight, replica, True, now)

    def _launch(self, flight: Flight, replica: Replica, hedge: bool, now: float) -> None:
        self._limit.take()
        if not self._meter.idle:
            self._meter.take(flight)
        replica.in_flight += 1
        replica.sends += 1
        now = self._sweeper.fair(now)
        send = Send(flight, replica, hedge, replica.breaker.begin(), now, now)
        flight.sends.append(send)
        self._live[send] = None
        send.task = self.loop.create_task(self._run(send))

    # ── one send ─────────────────────────────────────────────────────────────────────────────

    async def _run(self, send: Send) -> None:
        send.running = True
        self._stats.sends += 1
        flight = send.flight
        request = flight.request
        on_chunk = partial(self._heard, send) if request.stream else None
        response: HttpResponse | None = None
        try:
            response = await self._transport.post(send.replica.url, request, on_chunk)
            reply = flight.wire.reply(flight.call, response)
        except GradingFailure as failure:
            self._release(send)
            self._failed(send, failure, response)
        except asyncio.CancelledError:
            self._release(send)
            self._cancelled(send)
            raise
        except Exception as bug:  # noqa: BLE001  (no judge's failure: the caller gets it as it is)
            self._release(send)
            self._meter.settle_unknown(flight)
            send.replica.breaker.abandoned(send.probe)
            self._fail(flight, bug)
        else:
            self._answered(send, reply)
        if self._fresh or self._again or self._hedges:
            self._pump()

    def _heard(self, send: Send) -> None:
        send.heard = self._sweeper.now()
        if not send.streaming:
            send.streaming = True
            if not send.hedge:
                send.flight.digest.add(send.heard - send.sent)

    def _release(self, send: Send) -> None:
        self._limit.in_flight -= 1
        send.replica.in_flight -= 1
        send.flight.sends.remove(send)
        del self._live[send]

    def _answered(self, send: Send, reply: Reply) -> None:
        """The first complete reply: it wins."""
        flight = send.flight
        now = self.loop.time()
        self._limit.succeeded(now)
        now = self._sweeper.fair(now)
        self._release(send)
        self.health.answered(send)
        self._forbidden.answered()
        if not send.hedge and not send.streaming:
            flight.digest.add(now - send.sent)
        if flight.hedges and not flight.given_up:  # then no copy was beaten
            self._budget.learn(send.hedge)
        self._stats.hedge_wins += send.hedge
        self._budget.earn()
        usage = self._meter.settle(flight, reply.usage)
        latency = now - flight.asked
        self._stats.latencies.add(latency)
        self._stats.answered += len(flight.waiters)
        provenance = Provenance(
            source="live",
            model=reply.model,
            prompt_hash=flight.cache_key or reply.provenance.prompt_hash,
            usage=usage,
            latency_s=latency,
            attempts=flight.first_sends + flight.hedges,
            hedged=send.hedge,
        )
        reply = msgspec.structs.replace(reply, usage=usage, provenance=provenance)
        self._end(flight, Why.LOST, reply)
        for waiter in flight.waiters:
            if not waiter.done():
                waiter.set_result(reply)
                # What is paid once is not each one's expense.
                reply = reply if len(flight.waiters) == 1 else shared(reply)

    def _failed(self, send: Send, failure: GradingFailure, response: HttpResponse | None) -> None:
        """A send failed; the call may go on by another send or a retry."""
        flight = send.flight
        if failure.kind is ErrorKind.AUTH:
            oldest = next(iter(self._live), None)
            failure = self._forbidden.failed(flight, failure, oldest, self._sweeper.now())
        kind = failure.kind
        status = failure.metadata.get("status", response.status if response else None)
        wait = retry_after(response.headers) if response else None
        declined = isinstance(status, int) and status >= 300
        if declined or failure.metadata.get("sent") is False:
            self._meter.settle_free(flight)
        else:
            self._meter.settle_unknown(flight)
        self._stats.count_send_failure(kind)
        if kind in UNHEALTHY:
            self.health.failed(send, self.loop.time(), failure)
        else:
            self.health.answered(send)
        if kind is ErrorKind.RATE_LIMITED or status in OVERLOADED:
            self._limit.throttled(self.loop.time(), wait)
        flight.failure = failure
        flight.avoid = send.replica
        said_no = response is not None and response.headers.get("x-should-retry") == "false"
        if kind not in RETRYABLE or said_no:
            self._fail(flight, failure)
        elif not flight.sends:
            given_up = not (self._waits or self.health.up())
            if not given_up and self._retries.add(flight, wait, self._sweeper.now()):
                flight.was_silent = False
            else:
                self._fail(flight, failure)

    def _cancelled(self, send: Send) -> None:
        """A send was cancelled: by us for a reason, or from outside, when the loop shuts down."""
        flight = send.flight
        self._meter.settle_unknown(flight)
        silent = self._sweeper.now() - send.heard
        if send.why in (Why.LATE, Why.LOST) and not send.hedge and not send.streaming:
            flight.digest.add(silent)
        if send.why is Why.LATE:
            self._stats.count_send_failure(ErrorKind.TIMEOUT)
            self.health.failed(send, self.loop.time())
            if not flight.done and not flight.sends:
                flight.was_silent = True
                flight.late += 1
                self._again.append(flight)
        else:
            send.replica.breaker.abandoned(send.probe)
        if send.why is None:
            for waiter in flight.waiters:
                waiter.cancel()
            self._stats.count_failure(ErrorKind.CANCELLED, len(flight.waiters))
            self._end(flight, Why.LEFT)
        else:
            self._pump()

    # ── outcomes ─────────────────────────────────────────────────────────────────────────────

    def _fail(self, flight: Flight, error: Exception) -> None:
        """End a flight without a reply."""
        if flight.done:
            return
        kind = ErrorKind.BUG
        if isinstance(error, GradingFailure):
            kind = error.kind
            attempts = flight.first_sends + flight.hedges
            metadata = {**error.metadata, "attempts": attempts}
            error = GradingFailure(kind, str(error), metadata)
        self._stats.count_failure(kind, len(flight.waiters))
        self._end(flight, Why.LEFT, error)
        for waiter in flight.waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _end(self, flight: Flight, why: Why, outcome: Reply | Exception | None = None) -> None:
        """Close the books on a flight and cancel what is still out."""
        flight.done = True
        del self._open[flight]
        try:
            self._landed(flight, outcome)
        except Exception as error:  # noqa: BLE001  (who asked must know that it cannot be kept)
            for waiter in flight.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        if flight.sends:
            for send in list(flight.sends):
                self._cancel(send, why)

    def _cancel(self, send: Send, why: Why) -> None:
        if send.why is not None or send.task is None:
            return
        send.why = why
        send.task.cancel()
        if not send.running:  # its coroutine will never run, so nothing else would clean up
            self._release(send)
            if send.hedge:  # it never left
                self._stats.hedges -= 1
                send.flight.hedges -= 1
            self._meter.settle_free(send.flight)
            send.replica.breaker.abandoned(send.probe)

    # ── time passes ──────────────────────────────────────────────────────────────────────────

    def _sweep(self) -> bool:
        now = self._sweeper.now()
        self._again.extend(self._retries.due(now))
        for flight in self._overdue(now):
            self._expire(flight, now)
        late, slow = self.health.silent(self._live, now)
        for send in late:
            self._give_up(send)
        for send in slow:
            self._want_hedge(send.flight)
        self._pump()
        return bool(self._open)

    def _overdue(self, now: float) -> list[Flight]:
        return list(itertools.takewhile(lambda flight: flight.deadline <= now, self._open))

    def _expire(self, flight: Flight, now: float) -> None:
        attempts = flight.first_sends + flight.hedges
        digest = flight.digest
        for send in list(flight.sends):
            if now - send.heard >= min(digest.give_up_s, digest.cold_hedge_s):
                self._cancel(send, Why.LATE)
        within = f"within {self._settings.deadline_s:g} s"
        kind, message = ErrorKind.TIMEOUT, f"no complete reply {within}"
        failure = flight.failure
        if not flight.sends and not self.health.up():
            kind, message = ErrorKind.CIRCUIT_OPEN, f"the server did not recover {within}"
            failure = failure or self.health.last_failure
        cause = f"; last: {failure}" if failure else ""
        last = {"last_failure": str(failure.kind)} if failure else {}
        self._fail(flight, GradingFailure(kind, f"{message} ({attempts} sends){cause}", last))

    def _give_up(self, send: Send) -> None:
        """Cancel a silent send, unless the call would be left without any."""
        flight = send.flight
        others = any(other.why is None for other in flight.sends if other is not send)
        if others or flight.first_sends < self._settings.max_attempts:
            flight.given_up = True
            flight.avoid = send.replica
            self._cancel(send, Why.LATE)
        elif send.probe:  # it may go on, but others need not wait for it
            self.health.failed(send, self.loop.time())
            send.probe = False

    @property
    def _waits(self) -> bool:
        """Whether calls wait while all servers are ejected: for one that has been there before."""
        return self._settings.breaker_waits and self.health.reached

    def _not_sent(self) -> GradingFailure:
        """Why a call is not sent while all servers are ejected: what ejected them, if it is known.

        Of a server that has never been reached that is the whole cause.
        """
        last = self.health.last_failure
        if last is None:
            return GradingFailure(ErrorKind.CIRCUIT_OPEN, "the circuit breaker is open")
        if not self.health.reached:
            return GradingFailure(last.kind, str(last), dict(last.metadata))
        return GradingFailure(ErrorKind.CIRCUIT_OPEN, f"the circuit breaker is open; last: {last}")

    def _want_hedge(self, flight: Flight) -> None:
        if (
            self._budget.available
            and not flight.hedge_queued
            and flight.hedges < MAX_HEDGES
            and len(flight.sends) == 1
        ):
            flight.hedge_queued = True
            self._hedges.append(flight)
