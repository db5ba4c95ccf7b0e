"""The line to one provider: a call from its question to its one outcome.

::

    ask ──► kept in the cache? ──► an equal call in flight? ──► a new call waits for a slot
              yes: the reply         yes: waits with it            │
                                                                   ▼
        a reply ◄──────────────────────────────────────────────── sent ◄──┐
                                     slower than most: sent twice │       │ again, first in line
        a failure ◄── no retry helps, or attempts, deadline used up       │
                                     it failed, and may pass: waits ──────┤
                                     silent for too long ─────────────────┘

A call ends in exactly one way: a reply, a failure that no retry cures, its attempts used up, its
deadline, or its caller's cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import msgspec

from adjudge.engine.clock import PeriodicTimer
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.asking import find_error_kind
from adjudge.judges.base import ChatCall, HttpRequest, Reply, Wire
from adjudge.judges.endpoint.calls import (
    RETRYABLE_KINDS,
    UNHEALTHY_KINDS,
    Call,
    JoinKey,
    Send,
    Servers,
)
from adjudge.judges.endpoint.limits import (
    AdaptiveLimit,
    HedgeBudget,
    LatencyDigest,
    SendCost,
    full_jitter,
)
from adjudge.judges.endpoint.settings import (
    CallPolicy,
    EndpointKey,
    EndpointSettings,
    EndpointStats,
    Price,
)
from adjudge.judges.wire import hide_key, hide_key_in_failure, parse_retry_after
from adjudge.types import Provenance

if TYPE_CHECKING:
    from adjudge.judges.cassette import ReplyCache

_MAX_HEDGES = 2
_BUSY = 0.9
"""While more of the slots are in use, no call gets a second copy."""


class Endpoint:
    """The line to one provider (one key, one or more base URLs), shared by all who ask it.

    Belongs to the event loop that runs when it is made; ``rng`` is the source of jitter. See
    :class:`EndpointKey`, :class:`EndpointSettings` and :class:`CallPolicy` for what it does and by
    how much.
    """

    def __init__(
        self, endpoint_key: EndpointKey, key: str | None = None, *, rng: random.Random | None = None
    ) -> None:
        self.endpoint_key, self.key = endpoint_key, key
        self.closed = False
        self.models: defaultdict[str, set[str]] = defaultdict(set)
        """Those that are asked here, each with what it turned out to be: ``stream_only`` where it
        answered only streams, ``no_temperature`` where it refused temperature 0."""
        self.classifiers: dict[str, dict[str, str]] = {}
        """What was found out about a classifier's server, by model."""
        s = self._settings = endpoint_key.settings or EndpointSettings()
        policy = self._policy = endpoint_key.policy or CallPolicy()
        self._transport, self._cache = endpoint_key.open_transport(), endpoint_key.open_cache()
        self._provider = endpoint_key.cache_name or endpoint_key.base_urls[0]
        self._rng = rng or random.Random()  # noqa: S311  (jitter)
        self.servers = Servers(endpoint_key.base_urls, policy)
        """Its base URLs, and whether they work."""
        self._latencies: defaultdict[str, LatencyDigest] = defaultdict(LatencyDigest)
        self._stats = EndpointStats()
        self._cost = SendCost(s, self._stats, endpoint_key.budget)
        self._limit = AdaptiveLimit(policy.start_concurrency, s.max_concurrency)
        self._hedges = HedgeBudget()
        self._joinable: dict[JoinKey, Call] = {}
        self._open: dict[Call, None] = {}  # that have not ended, in the order of their deadlines
        self._live: dict[Send, None] = {}  # that are out, in the order of sending
        self._first: deque[Call] = deque()  # that are sent again
        self._new: deque[Call] = deque()
        self.loop = asyncio.get_running_loop()
        self._time = self.loop.time
        self._timer = PeriodicTimer(self.loop, self._sweep)
        self._timer_time = self._timer.without_lag

    def serves(self, key: str | None) -> bool:
        """Whether it is open on the running loop, with this key."""
        here = self.loop is asyncio.get_running_loop()
        return here and not self.closed and key == self.key

    @property
    def stats(self) -> EndpointStats:
        """Counters so far."""
        stats = self._stats
        stats.limit, stats.limit_cuts = self._limit.limit, self._limit.cuts
        stats.circuit_opened = sum(server.outages for server in self.servers.all)
        stats.loop_lag_max_s = self._timer.lag_max_s
        return stats

    async def ask(
        self, chat_call: ChatCall, wire: Wire, *, price: Price | None = None, keep: bool = True
    ) -> Reply:
        """One complete reply, with its provenance and, given a ``price``, its cost.

        An equal call in flight (same request, same ``draw``, same wishes for the reply's form,
        temperature 0) is joined and shares its outcome. ``keep=False``: the cache is neither asked
        nor told (what finds out about a server).

        Raises ``GradingFailure``: ``timeout`` (the deadline passed), ``circuit_open`` (it passed
        while the server was down), ``budget`` (the spend ceiling, or no price under one), or the
        kind of the last send's failure. ``metadata["attempts"]`` counts sends.
        """
        self._stats.calls += 1
        try:
            reply = await self._ask(chat_call, wire, price, self._cache if keep else None)
        except BaseException as error:
            self._stats.failures[find_error_kind(error)] += 1
            raise
        self._stats.answered += 1
        return reply

    async def _ask(
        self, chat_call: ChatCall, wire: Wire, price: Price | None, cache: ReplyCache | None
    ) -> Reply:
        loop, key = self.loop, ""
        if self.closed or loop is not asyncio.get_running_loop():
            problem = "is closed" if self.closed else "belongs to another event loop"
            raise RuntimeError(f"this endpoint {problem}")
        if cache is not None:
            key = cache.key(chat_call, self._provider)
            if (kept := cache.get(key)) is not None:
                self._stats.cache_hits += 1
                return kept
        join: JoinKey = None
        try:
            reserved = self._cost.estimate(chat_call, price)
            request = wire.request(chat_call)
            if not isinstance(request, HttpRequest):  # where the wire must find out something first
                request = await request
            if chat_call.sampling.get("temperature") == 0 or (cache is not None and cache.sampled):
                form = repr((chat_call.schema, chat_call.choices, chat_call.logprobs))
                join = chat_call.draw, chat_call.attempt, request.path, request.body, form
        except GradingFailure as failure:
            if cache is not None:
                cache.keep(key, failure, chat_call)
            raise
        call, deadline_s = self._joinable.get(join), self._settings.deadline_s
        now = self._timer.now()
        if call is not None and call.deadline - now > deadline_s / 2:  # else it may end too soon
            self._stats.deduplicated += 1
        else:
            latencies, end = self._latencies[chat_call.model], now + deadline_s
            call = Call(
                chat_call, wire, request, price, cache, key, join, reserved, latencies, now, end
            )
            if join is not None:
                self._joinable[join] = call
            self._open[call] = None
            self._new.append(call)
            self._timer.wake()
        waiter: asyncio.Future[Reply] = loop.create_future()
        call.waiters.append(waiter)
        self._pump()
        try:
            return await waiter
        finally:
            call.waiters.remove(waiter)
            if not call.waiters and call in self._open:
                self._end(call, None)

    async def wait_for_cancelled(self, timeout_s: float | None = 1.0) -> None:
        """Wait until what was cancelled is counted in :attr:`stats`."""
        tasks = [send.task for send in self._live if send.dropped and send.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def aclose(self) -> None:
        """End what is under way as ``cancelled``, close the connections and the cache's file.

        Replies that have come are in the cache afterwards; one that was open is its opener's.
        """
        self.closed = True
        for call in list(self._open):
            self._fail(call, GradingFailure(ErrorKind.CANCELLED, "the endpoint was closed"))
        self._timer.stop()
        await self.wait_for_cancelled(None)
        try:
            await self._transport.aclose()
        finally:
            if self._cache is not None and self._cache is not self.endpoint_key.cache:
                self._cache.close()

    # ── there is room: a call is sent ────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Send what waits, as long as there is room."""
        while len(self._live) < self._limit.limit and (lane := self._first or self._new):
            call = lane[0]
            try:
                if call in self._open and not self._launch(call, call.why):
                    return
            except (GradingFailure, OSError) as error:
                self._fail(call, error)
            lane.popleft()

    def _launch(self, call: Call, why: str) -> bool:
        """Send a call, if it may be sent now.

        Raises ``GradingFailure`` where it never may be, and ``OSError`` where its reservation
        cannot be kept.
        """
        limit, now = self._limit, self._time()
        if now < limit.paused_until:
            if call.deadline > self._timer_time(limit.asked_until):
                return False
            asked = f"the server asked to wait for {limit.asked_until - now:.0f} s more"
            raise GradingFailure(ErrorKind.RATE_LIMITED, asked)
        server = self.servers.pick(now, call.chat_call.group, call.avoid)
        if server is None and (end := self.servers.lasting_outage) is not None:
            raise end
        if server is None or not self._cost.admits(call.reserved, now):
            return False
        self._cost.take(call.reserved)
        if why == "hedges":
            call.hedges += 1
        else:
            call.first_sends += 1
        send = Send(call, server, why, server.take(), self._timer_time(now))
        call.sends.append(send)
        self._live[send] = None
        self._stats.peak_in_flight = max(self._stats.peak_in_flight, len(self._live))
        send.task = self.loop.create_task(self._post(send))
        return True

    async def _post(self, send: Send) -> None:
        """Send it, unless it was dropped by then, and book what became of it."""
        call, stats = send.call, self._stats
        outcome: Reply | Exception | None = None
        if not send.dropped:
            send.begun = True
            stats.sends += 1
            if send.why != "sends":
                setattr(stats, send.why, getattr(stats, send.why) + 1)
            try:
                send.response = await self._transport.post(send.server.url, call.request)
                outcome = hide_key(call.wire.reply(call.chat_call, send.response), call.request)
                self._limit.succeeded(self._time(), len(self._live))
            except GradingFailure as failure:
                outcome = hide_key_in_failure(failure, call.request)
            except Exception as error:  # noqa: BLE001  (the caller gets it as it is)
                outcome = error
            except asyncio.CancelledError:
                pass  # by us, or where the loop ends
        send.server.release(send.probe)
        call.sends.remove(send)
        del self._live[send]
        if isinstance(outcome, Reply):
            self._on_reply(send, outcome)
        elif isinstance(outcome, GradingFailure):
            self._on_failure(send, outcome)
        else:
            if outcome is not None:
                self._fail(call, outcome)
            self._on_cancelled(send)
        self._pump()

    def _on_reply(self, send: Send, reply: Reply) -> None:
        """The first complete reply: it wins."""
        call, now, is_hedge = send.call, self._timer_time(self._time()), send.why == "hedges"
        self._on_answer(send, accepted=True)
        if not is_hedge:
            call.latencies.add(now - send.at)
        usage = self._cost.book_usage(call.reserved, call.price, reply.usage)
        if call not in self._open:
            return
        if call.hedges:
            self._hedges.learn(is_hedge)
        self._hedges.earn()
        self._stats.hedge_wins += is_hedge
        self._stats.latencies.add(now - call.asked_at)
        provenance = Provenance(
            source="live",
            model=reply.model,
            prompt_hash=call.cache_key or reply.provenance.prompt_hash,
            usage=usage,
            latency_s=now - call.asked_at,
            attempts=call.attempts,
            hedged=is_hedge,
        )
        self._end(call, msgspec.structs.replace(reply, usage=usage, provenance=provenance))

    def _on_answer(self, send: Send, *, accepted: bool = False) -> None:
        """A server said something, if only "no"."""
        if send.probe and self.servers.outage is not None:
            self._limit.restart()
        self.servers.answered(send.server, send.probe, accepted=accepted)

    def _on_failure(self, send: Send, failure: GradingFailure) -> None:
        """A send failed; the call may go on by its other send or a retry."""
        call, now, kind = send.call, self._time(), failure.kind
        if kind is ErrorKind.AUTH and failure.metadata.get("status") == 403:
            oldest = min((other.at for other in self._live), default=math.inf)
            worked = bool(self._stats.latencies)
            who = call.chat_call.group or call.request.body
            failure = self.servers.classify_forbidden(
                failure, who, self._timer.now(), oldest, worked
            )
            kind = failure.kind
        response = send.response
        status, headers = (response.status, response.headers) if response else (0, {})
        unbilled = status >= 300 or failure.metadata.get("sent") is False
        self._cost.book(call.reserved, 0.0 if unbilled else None)
        self._stats.send_failures[kind] += 1
        if kind in UNHEALTHY_KINDS:
            self.servers.failed(send.server, send.probe, now, failure)
        else:
            self._on_answer(send)
        wait = parse_retry_after(headers)
        if kind is ErrorKind.RATE_LIMITED or status in (503, 529):
            self._limit.throttled(now, wait)
        if kind is ErrorKind.RATE_LIMITED and (wait or 0.0) >= self._settings.deadline_s:
            self._limit.keep_waiting(now + (wait or 0.0))  # else who asks again would come early
        call.failure, call.avoid = failure, send.server
        passes = kind in RETRYABLE_KINDS and headers.get("x-should-retry") != "false"
        if call not in self._open or (call.sends and passes):
            return
        delay = full_jitter(call.first_sends, self._rng)
        if wait is not None:
            delay = wait + min(delay, 0.5)
        tries = call.first_sends < self._settings.max_attempts
        in_time = self._timer_time(now) + delay < call.deadline
        if passes and tries and in_time and self.servers.lasting_outage is None:
            self.loop.call_later(delay, self._again, call, "retries")
        else:
            self._fail(call, failure)

    def _on_cancelled(self, send: Send) -> None:
        """A send was cancelled: by us for a reason, or from outside where the loop ends."""
        call, now = send.call, self._time()
        self._cost.book(call.reserved, None if send.begun else 0.0)
        if send.dropped == "lost" and send.why != "hedges":  # it would have taken longer
            call.latencies.add(1.5 * (self._timer_time(now) - send.at))
        if send.dropped == "late":
            self._stats.send_failures[ErrorKind.TIMEOUT] += 1
            self.servers.failed(send.server, send.probe, now)
        if call not in self._open:
            return
        if not send.dropped:
            self._end(call, None)
        elif not call.sends:
            call.timeouts += 1
            self._again(call, "timeouts")

    def _again(self, call: Call, why: str) -> None:
        """A call is to be sent again, before those that were not sent yet."""
        call.why = why
        self._first.append(call)
        self._pump()

    def _fail(self, call: Call, error: Exception) -> None:
        """End a call without a reply."""
        if isinstance(error, GradingFailure):
            metadata = {**error.metadata, "attempts": call.attempts}
            error = GradingFailure(error.kind, str(error), metadata)
        if call in self._open:
            self._end(call, error)

    def _end(self, call: Call, outcome: Reply | Exception | None) -> None:
        """Keep the outcome before anybody can ask the same again; cancel what is still out."""
        del self._open[call]
        if self._joinable.get(call.join_key) is call:
            del self._joinable[call.join_key]
        try:
            if call.cache is not None:
                call.cache.keep(call.cache_key, outcome, call.chat_call)
        except Exception as error:  # noqa: BLE001  (who asked must know that it cannot be kept)
            outcome = error
        call.end(outcome)

    # ── time passes ──────────────────────────────────────────────────────────────────────────────

    def _sweep(self) -> bool:
        now = self._timer_time(self._time())
        for call in list(itertools.takewhile(lambda call: call.deadline <= now, self._open)):
            self._expire(call, now)
        cold_s = self._settings.deadline_s / 4
        known = self._latencies.values()
        for digest in known:
            ages = (now - send.at for send in self._live if send.call.latencies is digest)
            digest.refresh(ages, resends_silent=self._policy.resends_silent)
        soonest = min(cold_s, *(min(one.hedge_s, one.give_up_s) for one in known))
        for send in list(self._live):
            call, age = send.call, now - send.at
            digest = call.latencies
            if age < soonest:
                break  # the rest is younger still
            late_s = digest.give_up_s * 2.0**call.timeouts
            if send.probe:  # nothing else goes out until it has an outcome
                late_s = min(late_s, cold_s)
            if age >= late_s:
                self._give_up(send)
            elif age >= min(digest.hedge_s, cold_s) and not send.dropped and self._settings.hedge:
                self._hedge(send)
        self._pump()
        return bool(self._open)

    def _expire(self, call: Call, now: float) -> None:
        """The deadline of a call has passed."""
        deadline_s = self._settings.deadline_s
        for send in call.sends:
            if now - send.at >= min(call.latencies.give_up_s, deadline_s / 4):
                send.cancel("late")
        kind, said, failure = ErrorKind.TIMEOUT, "no complete reply within", call.failure
        if not call.sends and self.servers.outage is not None:
            kind, said = ErrorKind.CIRCUIT_OPEN, "the server did not recover within"
            failure = failure or self.servers.last_failure
        said += f" {deadline_s:g} s ({call.attempts} sends)"
        last = {} if failure is None else {"last_failure": str(failure.kind)}
        cause = "" if failure is None else f"; last: {failure}"
        self._fail(call, GradingFailure(kind, said + cause, last))

    def _give_up(self, send: Send) -> None:
        """Cancel a silent send, unless the call would be left without any."""
        call = send.call
        others = any(not other.dropped for other in call.sends if other is not send)
        if others or call.first_sends < self._settings.max_attempts:
            call.avoid = send.server
            send.cancel("late")
        elif send.probe:  # it may go on, but others need not wait for it
            self.servers.failed(send.server, True, self._time())
            send.probe = False

    def _hedge(self, send: Send) -> None:
        """Send a slow call a second time, where slots are free and that keeps nobody waiting."""
        call, limit = send.call, self._limit
        if send.probe or len(self._live) > _BUSY * limit.limit or self._hedges.credit < 1.0:
            return
        is_latest = send is call.sends[-1]
        if not is_latest or call.hedges >= _MAX_HEDGES or self._time() < limit.cooling_until:
            return
        call.avoid = send.server
        with contextlib.suppress(GradingFailure, OSError):  # the first copy may still be answered
            if self._launch(call, "hedges"):
                self._hedges.credit -= 1.0
