"""What an endpoint may send now: calls in flight, rates, money, and which servers are up.

How much may be in flight and how fast calls may go out is learnt from what servers say about both.
The account's rates and the money are reserved before a send and settled after it. What an endpoint
has learnt about its servers: how many calls they take, how long those take, who is up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.endpoint.calls import Attempt, Call, CircuitBreaker, Replica, pick_replica
from adjudge.judges.endpoint.settings import (
    BudgetDecision,
    EndpointSettings,
    SpendCeiling,
    estimate_tokens,
)
from adjudge.judges.endpoint.stats import EndpointStats, HedgeBudget, LatencyDigest
from adjudge.types import Usage

LIMIT_CUT = 0.8
LIMIT_GROWTH = 0.05
SATURATED_SHARE = 0.8
PAUSE_STREAK = 3
MAX_RETRY_AFTER_S = 3600.0


class AdaptiveLimit:
    """A limit on calls in flight that learns: slow start, slow growth, cuts when told to.

    Starts at ``start`` and doubles per round of ``limit`` successes up to the threshold (the last
    limit that was too high, at first ``maximum``), then grows by 5 % a round; only while at least
    80 % of it is used. ``throttled`` (429, 503, 529) cuts to 80 %, once per ``cooldown_s`` or what
    the server asked for, and again within it while a working server refuses more than it answers
    (a bounded queue); nothing grows meanwhile. ``faltered`` (other 5xx, timeouts, lost
    connections) stops growth for a round. Three refusals in a row without a success stop all
    sending for as long as the server says, else for 1 s, 2 s, … ``cooldown_s``, or until a call
    that was out is answered.

    Source: additive increase, multiplicative decrease; constants as in inspect_ai's adaptive
    connections.
    """

    def __init__(
        self, start: int, maximum: int, minimum: int = 1, cooldown_s: float = 15.0
    ) -> None:
        self.maximum = maximum
        self.limit = min(start, maximum)
        """How many may be in flight now."""
        self.in_flight = 0
        """Slots taken; whoever took one counts it down again."""
        self.peak = 0
        self.cuts = 0
        self.cooling_until = float("-inf")
        self.paused_until = float("-inf")
        self._start = self.limit
        self._minimum = min(minimum, maximum)
        self._cooldown = cooldown_s
        self._value = float(self.limit)
        self._threshold = float(maximum)
        self._skip = 0
        self._streak = 0
        self._pause = 0.0
        self._told_until = float("-inf")
        self._refused = self._taken = 0

    def take(self) -> None:
        """Occupy a slot; the caller has checked that ``in_flight < limit``."""
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

    def succeeded(self, now: float) -> None:
        """A call was answered; called while it still holds its slot."""
        self._streak = 0
        self._pause = 0.0
        self._taken += 1
        self.paused_until = min(self.paused_until, self._told_until)
        if self.limit >= self.maximum:
            return
        if self._skip > 0:
            self._skip -= 1
        elif now >= self.cooling_until and self.in_flight >= SATURATED_SHARE * self._value:
            self._set(self._value + (1.0 if self._value < self._threshold else LIMIT_GROWTH))

    def faltered(self) -> None:
        """A call failed for a reason that says nothing about load: no growth for a round."""
        self._skip = self.limit

    def throttled(self, now: float, wait_s: float | None) -> None:
        """The server refused for load; ``wait_s`` is how long it asked to wait, if it said so."""
        self._refused += 1
        if now >= self.cooling_until or self._refused > self._taken > 0:
            self._refused = self._taken = 0
            self._set(max(self._value * LIMIT_CUT, float(self._minimum)))
            self._threshold = self._value
            self.cuts += 1
            self.cooling_until = now + self._cooldown
        self.cooling_until = max(self.cooling_until, now + (wait_s or 0.0))
        self._streak += 1
        if self._streak >= PAUSE_STREAK:
            self._stop(now, wait_s)

    def restart(self) -> None:
        """The server is back after an outage: start slowly again, up to what it could take."""
        self._threshold = max(self._threshold if self.cuts else 0.0, self._value)
        self._set(min(self._value, float(self._start)))

    def _stop(self, now: float, wait_s: float | None) -> None:
        if wait_s is not None:
            self._told_until = max(self._told_until, now + wait_s)
            self.paused_until = max(self.paused_until, self._told_until)
        elif now >= self.paused_until:
            self._pause = min(max(1.0, 2 * self._pause), self._cooldown)
            self.paused_until = now + self._pause

    def _set(self, value: float) -> None:
        self._value = min(value, float(self.maximum))
        self.limit = max(1, int(self._value))


class RateBucket:
    """So many units (requests or tokens) a minute, of which ``burst_s`` seconds' worth at once.

    In any T seconds at most ``(T + burst_s) · rate`` units go out, plus one call's excess over the
    burst: a call larger than the whole bucket goes when the bucket is full and leaves it in debt.
    """

    def __init__(self, per_minute: float, burst_s: float = 6.0) -> None:
        self._rate = per_minute / 60.0
        self._capacity = max(self._rate * burst_s, 1.0)
        self._level = self._capacity
        self._stamp = float("-inf")

    def admits(self, units: float, now: float) -> bool:
        """Whether ``units`` may go out now."""
        if now > self._stamp:
            gained = (now - self._stamp) * self._rate
            self._level = min(self._capacity, self._level + gained)
            self._stamp = now
        # A margin against rounding, which would cost a whole further wait.
        return self._level >= min(units, self._capacity) - 1e-9

    def take(self, units: float) -> None:
        """Note that ``units`` went out; negative ``units`` give back what was not used."""
        self._level = min(self._capacity, self._level - units)


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait, or ``None`` when it does not say; at most an hour.

    Reads, in this order, ``retry-after-ms``, ``retry-after`` (seconds or a date), and the latest
    reset among exhausted limits in OpenAI's ``x-ratelimit-*`` and Anthropic's
    ``anthropic-ratelimit-*`` headers. Header names are in lower case; values that make no sense
    are as good as absent.

    >>> parse_retry_after({"retry-after-ms": "250"})
    0.25
    >>> exhausted = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0.5s"}
    >>> parse_retry_after(exhausted)
    360.5
    """
    found = _parse_number(headers.get("retry-after-ms"))
    wait = None if found is None else found / 1000
    if wait is None and (value := headers.get("retry-after")) is not None:
        wait = _parse_number(value)
        if wait is None:
            wait = _seconds_until(value, headers)
    if wait is None:
        wait = _exhausted_rate_wait(headers)
    return None if wait is None else min(max(wait, 0.0), MAX_RETRY_AFTER_S)


def _exhausted_rate_wait(headers: Mapping[str, str]) -> float | None:
    openai = [
        _parse_duration(headers.get(f"x-ratelimit-reset-{name}", ""))
        for name in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{name}") == "0"
    ]
    anthropic = [
        _seconds_until(headers.get(f"anthropic-ratelimit-{name}-reset", ""), headers)
        for name in ("requests", "tokens", "input-tokens", "output-tokens")
        if headers.get(f"anthropic-ratelimit-{name}-remaining") == "0"
    ]
    return max((wait for wait in openai + anthropic if wait is not None), default=None)


def _parse_number(text: str | None) -> float | None:
    """A finite number ≥ 0."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value < float("inf") else None


_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def _parse_duration(text: str) -> float | None:
    """``6m0s``, ``1.5s``, ``17ms`` or plain seconds."""
    total, number, unit = 0.0, "", ""
    for char in text[:40].strip() + "0":
        if unit and not char.isalpha():
            value = _parse_number(number)
            if value is None or unit not in _UNITS:
                return None
            total += value * _UNITS[unit]
            number = unit = ""
        if char.isalpha():
            unit += char
        else:
            number += char
    rest = number[:-1]
    return total if not rest else _parse_number(text) if not total else None


def _seconds_until(text: str, headers: Mapping[str, str]) -> float | None:
    """Seconds from the response's own date (else from this machine's) until a date."""
    end = _parse_date(text)
    if end is None:
        return None
    start = _parse_date(headers.get("date", ""))
    return end - (time.time() if start is None else start)


def _parse_date(text: str) -> float | None:
    """An HTTP or RFC 3339 date as POSIX seconds."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(text)
        except (ValueError, TypeError):
            continue
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


class UsageMeter:
    """Request rate, token rate and spend ceiling of one endpoint; books into ``stats``.

    ``budget`` is a second ceiling, which several endpoints of one loop may share.
    Every send that was :meth:`taken <take>` is settled once: by a reply, as free, or, when nobody
    can know whether the provider bills it, at its reservation.
    """

    def __init__(
        self, settings: EndpointSettings, stats: EndpointStats, budget: SpendCeiling | None = None
    ) -> None:
        rpm, tpm = settings.requests_per_minute, settings.tokens_per_minute
        self._requests = RateBucket(rpm) if rpm else None
        self._tokens = RateBucket(tpm) if tpm else None
        own = settings.budget_usd
        ceilings = (None if own is None else SpendCeiling(own), budget)
        self._ceilings = [ceiling for ceiling in ceilings if ceiling is not None]
        self.idle = not (rpm or tpm or self._ceilings)
        """There is nothing to limit: everything is admitted, nothing reserved."""
        self._stats = stats

    def admits(self, call: Call, now: float) -> BudgetDecision:
        """Whether one more attempt of ``call`` may go out now, later or never."""
        if self.idle:
            return BudgetDecision.YES
        dollars, tokens = self._estimate(call)
        for ceiling in self._ceilings:
            if (afford := ceiling.decide(dollars)) is not BudgetDecision.YES:
                return afford
        if self._requests is not None and not self._requests.admits(1, now):
            return BudgetDecision.WAIT
        if self._tokens is not None and not self._tokens.admits(tokens, now):
            return BudgetDecision.WAIT
        return BudgetDecision.YES

    def take(self, call: Call) -> None:
        """A send goes out."""
        if self.idle:
            return
        dollars, tokens = self._estimate(call)
        for ceiling in self._ceilings:
            ceiling.reserve(dollars)
        if self._requests is not None:
            self._requests.take(1)
        if self._tokens is not None:
            self._tokens.take(tokens)

    def settle_usage(self, call: Call, usage: Usage | None) -> Usage | None:
        """A reply came: book what it used; its usage with the cost filled in."""
        if usage is None:
            self.settle_unknown(call)
            return None
        cost = usage.cost_usd
        if cost is None and call.price is not None:
            cost = call.price.cost(usage)
            usage = msgspec.structs.replace(usage, cost_usd=cost)
        self._stats.spent(usage, cost)
        if not self.idle:
            dollars, tokens = self._estimate(call)
            self._settle(dollars, cost or 0.0)
            if self._tokens is not None:
                self._tokens.take(usage.input_tokens + usage.output_tokens - tokens)
        return usage

    def settle_unknown(self, call: Call) -> None:
        """A send was cancelled or broke off, or its reply named no usage: book the reservation."""
        if call.price is None:
            return
        dollars, _ = self._estimate(call)
        self._settle(dollars, dollars)
        self._stats.cost_usd += dollars
        self._stats.assumed_usd += dollars

    def settle_free(self, call: Call) -> None:
        """The server answered with an error status or a redirect, or nothing was sent: no bill."""
        if not self.idle:
            self._settle(self._estimate(call)[0], 0.0)

    def _settle(self, estimate: float, cost: float) -> None:
        for ceiling in self._ceilings:
            ceiling.release(estimate, cost)

    def _estimate(self, call: Call) -> tuple[float, int]:
        if call.estimate is None:
            chat_call = call.chat_call
            reads, writes = estimate_tokens(chat_call.messages, chat_call.sampling)
            price = call.price
            dollars = 0.0 if price is None else (reads * price.input + writes * price.output) / 1e6
            call.estimate = (dollars, reads + writes)
        return call.estimate


MIN_CONCURRENCY = 4
"""Cuts of the limit stop here: refusals that have nothing to do with load would otherwise bring a
run to a standstill."""

STALL_S = 5.0
"""A stream that has begun is not slow before this, nor given up before twice this."""


class EndpointHealth:
    """Limit, replicas with their breakers, latencies per kind of call, and the hedge budget."""

    def __init__(self, base_urls: Sequence[str], settings: EndpointSettings) -> None:
        s = self._settings = settings
        cooldowns = (s.breaker_cooldown_s, s.breaker_max_cooldown_s)
        self.replicas = [
            Replica(url, CircuitBreaker(s.breaker_failures, *cooldowns)) for url in base_urls
        ]
        self.limit = AdaptiveLimit(
            s.start_concurrency, s.max_concurrency, MIN_CONCURRENCY, s.cooldown_s
        )
        self.hedges = HedgeBudget(s.hedge_budget if s.hedge else 0.0)
        self._digests: dict[tuple[str, bool], LatencyDigest] = {}
        self.reached = False
        """Whether any server was ever connected to; until then no call waits for one."""
        self.last_failure: GradingFailure | None = None
        """The last one since a server answered, of whatever call."""

    def digest(self, model: str, stream: bool) -> LatencyDigest:
        """How long ``model`` takes (to its first chunk, for streams).

        Short and long judges of one provider must not pass for each other's tail.
        """
        found = self._digests.get((model, stream))
        if found is None:
            s = self._settings
            found = self._digests[model, stream] = LatencyDigest(
                factor=s.timeout_factor,
                floor_s=s.timeout_floor_s,
                cold_hedge_s=s.deadline_s / 4,
            )
        return found

    def find_silent(
        self, live: Iterable[Attempt], now: float
    ) -> tuple[list[Attempt], list[Attempt]]:
        """Sends that are silent for too long, and those that are slow; ``live`` in sending order.

        While half of the slots are free, a hedge keeps nobody waiting, and a send is slow sooner.
        """
        idle = self.limit.in_flight <= self.limit.limit // 2
        for digest in self._digests.values():
            digest.refresh()
        young = min((digest.soonest(idle) for digest in self._digests.values()), default=0.0)
        late, slow = [], []
        for attempt in live:
            if now - attempt.sent_at < young:
                break  # the rest is younger still
            if attempt.cancel_reason is not None:
                continue
            silence, digest = now - attempt.last_activity, attempt.call.latencies
            if silence >= _max_silence_s(attempt) * 2.0**attempt.call.timeouts:
                late.append(attempt)
            elif silence >= max(digest.soonest(idle), STALL_S * attempt.streaming):
                slow.append(attempt)
        return late, slow

    def pick_second(self, first: Replica) -> Replica | None:
        """A working replica for a hedge, another than the first copy's if there is one."""
        closed = [replica for replica in self.replicas if replica.breaker.closed]
        return pick_replica(closed, 0.0, None, first)

    def answered(self, attempt: Attempt) -> None:
        """The server of ``attempt`` said something, if only "no"."""
        self.reached = True
        self.last_failure = None  # what is said after it has another cause
        if attempt.replica.breaker.succeeded(attempt.probe) and self.up() == 1:
            self.limit.restart()

    def failed(self, attempt: Attempt, now: float, failure: GradingFailure | None = None) -> None:
        """The server of ``attempt`` failed, was not reached, or kept silent (no ``failure``)."""
        if failure is None or failure.metadata.get("sent", True):
            self.reached = True
        self.last_failure = failure or self.last_failure
        self.limit.faltered()
        attempt.replica.breaker.failed(now, attempt.probe)

    @property
    def may_recover(self) -> bool:
        """Whether calls wait while all servers are ejected: for one that has been there before."""
        return self._settings.breaker_waits and self.reached

    def ejected_failure(self) -> GradingFailure:
        """Why a call is not sent while all servers are ejected: what ejected them, if it is known.

        Of a server that has never been reached that is the whole cause.
        """
        last = self.last_failure
        if last is None:
            return GradingFailure(ErrorKind.CIRCUIT_OPEN, "the circuit breaker is open")
        if not self.reached:
            return GradingFailure(last.kind, str(last), dict(last.metadata))
        return GradingFailure(ErrorKind.CIRCUIT_OPEN, f"the circuit breaker is open; last: {last}")

    def up(self) -> int:
        """How many replicas are not ejected."""
        return sum(replica.breaker.closed for replica in self.replicas)

    def gauge(self, stats: EndpointStats) -> None:
        """Write the current readings."""
        stats.limit = self.limit.limit
        stats.peak_in_flight = self.limit.peak
        stats.limit_cuts = self.limit.cuts
        stats.circuit_opened = sum(replica.breaker.opened for replica in self.replicas)


def _max_silence_s(attempt: Attempt) -> float:
    digest = attempt.call.latencies
    if attempt.probe:  # nothing else goes out until it has an outcome
        return min(digest.give_up_s, digest.cold_hedge_s)
    return max(digest.give_up_s, 2 * STALL_S) if attempt.streaming else digest.give_up_s
