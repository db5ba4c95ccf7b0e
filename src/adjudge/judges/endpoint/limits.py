"""What an endpoint may send now: calls in flight, rates, money; and what is slow.

How much may be in flight and how fast calls may go out is learnt from what servers say about both.
The account's rates and the money are reserved before a send and settled after it.

A *hedge* is a second copy of a call that is slower than most; the first reply wins. It helps where
a few calls are slow by chance, and harms where all are slow because the server is busy, so it earns
its budget: by calls that complete, and by winning.

Source: Dean and Barroso, "The Tail at Scale", CACM 2013 (hedged requests).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall
from adjudge.judges.endpoint.settings import (
    BYTES_PER_TOKEN,
    EndpointSettings,
    EndpointStats,
    Price,
    SpendCeiling,
    estimate_tokens,
)
from adjudge.types import Usage

COOLDOWN_S = 15.0
"""One cut of the limit, however many refusals come within it; no growth, no hedges."""

MIN_CONCURRENCY = 4
"""Cuts of the limit stop here: refusals that have nothing to do with load would otherwise bring a
run to a standstill."""


def full_jitter(
    failures: int, rng: random.Random, base_s: float = 0.5, cap_s: float = 30.0
) -> float:
    """Seconds to wait after the ``failures``-th failure: U(0, min(cap, base · 2^(failures − 1))).

    Source: "full jitter" of the AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
    """
    return rng.uniform(0.0, min(cap_s, base_s * 2.0 ** (failures - 1)))


# ── calls in flight ──────────────────────────────────────────────────────────────────────────────


class AdaptiveLimit:
    """A limit on calls in flight that learns: slow start, slow growth, cuts after refusals.

    Starts at ``start`` and doubles per round of ``limit`` successes up to the threshold (the last
    limit that was too high, at first ``maximum``), then grows by 5 % a round; only while at least
    80 % of it is used. ``throttled`` (429, 503, 529) cuts to 80 %, once per ``COOLDOWN_S`` or what
    the server asked for, and again within it while a working server refuses more than it answers
    (a bounded queue); nothing grows meanwhile. Three refusals in a row without a success stop all
    sending for as long as the server says, else for 1 s, 2 s, … ``COOLDOWN_S``, or until a call
    that was out is answered.

    Source: additive increase, multiplicative decrease; constants as in inspect_ai's adaptive
    connections.
    """

    def __init__(self, start: int, maximum: int) -> None:
        self.maximum = maximum
        self.limit = min(start, maximum)
        """How many may be in flight now."""
        self.cuts = 0
        self.cooling_until = self.paused_until = self.asked_until = -math.inf
        """No hedges until; nothing is sent until; the server asked for that until."""
        self._start = self.limit
        self._value = float(self.limit)
        self._threshold = float(maximum)
        self._streak = self._refused = self._taken = 0
        self._pause = 0.0

    def succeeded(self, now: float, in_flight: int) -> None:
        """A call was answered, one of so many ``in_flight``."""
        self._streak = 0
        self._pause = 0.0
        self._taken += 1
        self.paused_until = min(self.paused_until, self.asked_until)
        used = in_flight >= 0.8 * self._value
        if used and now >= self.cooling_until and self.limit < self.maximum:
            self._set(self._value + (1.0 if self._value < self._threshold else 0.05))

    def throttled(self, now: float, wait_s: float | None) -> None:
        """The server refused for load; ``wait_s`` is how long it asked to wait, if it said so."""
        self._refused += 1
        if now >= self.cooling_until or self._refused > self._taken > 0:
            self._refused = self._taken = 0
            self._set(max(self._value * 0.8, MIN_CONCURRENCY))
            self._threshold = self._value
            self.cuts += 1
            self.cooling_until = now + COOLDOWN_S
        self.cooling_until = max(self.cooling_until, now + (wait_s or 0.0))
        self._streak += 1
        if self._streak < 3:
            return
        if wait_s is not None:
            self.keep_waiting(now + wait_s)
        elif now >= self.paused_until:
            self._pause = min(max(1.0, 2 * self._pause), COOLDOWN_S)
            self.paused_until = now + self._pause

    def keep_waiting(self, until: float) -> None:
        """The server asked to send nothing until then."""
        self.asked_until = max(self.asked_until, until)
        self.paused_until = max(self.paused_until, until)

    def restart(self) -> None:
        """The server is back after an outage: start slowly again, up to what it could take."""
        self._threshold = max(self._threshold if self.cuts else 0.0, self._value)
        self._set(min(self._value, float(self._start)))

    def _set(self, value: float) -> None:
        self._value = min(value, float(self.maximum))
        self.limit = max(1, int(self._value))


# ── rates and money ──────────────────────────────────────────────────────────────────────────────


BURST_S = 6.0
"""For so many seconds' worth of a rate nobody waits."""


class RateBucket:
    """So many units (requests or tokens) a minute, of which ``burst_s`` seconds' worth at once.

    In any T seconds at most ``(T + burst_s) · rate`` units go out, plus one call's excess over the
    burst: a call larger than the whole bucket goes when the bucket is full and leaves it in debt.
    """

    def __init__(self, per_minute: float, burst_s: float = BURST_S) -> None:
        self._rate = per_minute / 60.0
        self._capacity = max(self._rate * burst_s, 1.0)
        self._level = self._capacity
        self._stamp = -math.inf

    def admits(self, units: float, now: float) -> bool:
        """Whether ``units`` may go out now."""
        if now > self._stamp:
            gained = (now - self._stamp) * self._rate
            self._level = min(self._capacity, self._level + gained)
            self._stamp = now
        # A margin against rounding, which would cost a whole further wait.
        return self._level >= min(units, self._capacity) - 1e-9

    def reserve(self, units: float) -> None:
        """Note that ``units`` go out."""
        self._level = min(self._capacity, self._level - units)

    def release(self, units: float, used: float) -> None:
        """Give back what was not used."""
        self.reserve(used - units)


Reservation = tuple[float, int, int]
"""What one send may take: dollars, one request, tokens."""


class SendCost:
    """Spend ceilings, request rate and token rate of one endpoint; books into ``stats``.

    ``budget`` is a second ceiling, which several endpoints of one loop may share. Every send that
    was :meth:`taken <take>` is booked once.
    """

    def __init__(
        self, settings: EndpointSettings, stats: EndpointStats, budget: SpendCeiling | None
    ) -> None:
        own = None if settings.budget_usd is None else SpendCeiling(settings.budget_usd)
        rates = enumerate((settings.requests_per_minute, settings.tokens_per_minute), 1)
        self._gates: list[tuple[SpendCeiling | RateBucket, int]] = [
            *((ceiling, 0) for ceiling in (own, budget) if ceiling is not None),
            *((RateBucket(rate), place) for place, rate in rates if rate),
        ]
        self._needs_price = own is not None or (budget is not None and budget.ceiling is not None)
        self._stats = stats
        self._dearest = 0.0
        """The most that a reply cost which cost more than its reservation."""

    def estimate(self, call: ChatCall, price: Price | None) -> Reservation:
        """The reservation of one send: the most that it may cost.

        No tokenizer makes more tokens than a text has bytes. Raises where a ceiling is to hold
        without a price.
        """
        if price is None and self._needs_price:
            unknown = "a spend ceiling is set and the price of this model is unknown"
            raise GradingFailure(ErrorKind.BUDGET, unknown)
        if price is None and not self._gates:
            return 0.0, 1, 0
        reads, writes = estimate_tokens(call.messages, call.sampling)
        dollars = 0.0
        if price is not None:
            dollars = (reads * BYTES_PER_TOKEN * price.input + writes * price.output) / 1e6
        return max(dollars, self._dearest), 1, reads + writes

    def admits(self, reserved: Reservation, now: float) -> bool:
        """Whether one more send may go out now; raises ``GradingFailure`` where none ever may."""
        return all(gate.admits(reserved[place], now) for gate, place in self._gates)

    def take(self, reserved: Reservation) -> None:
        """A send goes out."""
        for gate, place in self._gates:
            gate.reserve(reserved[place])

    def book(self, reserved: Reservation, dollars: float | None, tokens: int | None = None) -> None:
        """A send cost so much: nothing, where the server refused it or it never left.

        ``None``: nobody can know whether the provider bills it, so it is booked as reserved.
        """
        if dollars is None:
            dollars = reserved[0]
            self._stats.cost_usd += dollars
            self._stats.assumed_usd += dollars
        used = (dollars, 1, reserved[2] if tokens is None else tokens)
        for gate, place in self._gates:
            gate.release(reserved[place], used[place])

    def book_usage(
        self, reserved: Reservation, price: Price | None, usage: Usage | None
    ) -> Usage | None:
        """A reply came: book what it used; its usage with the cost filled in."""
        if usage is None:
            self.book(reserved, None)
            return None
        cost, stats = usage.cost_usd, self._stats
        if cost is None and price is not None:
            cost = price.cost(usage)
            usage = msgspec.structs.replace(usage, cost_usd=cost)
        stats.input_tokens += usage.input_tokens
        stats.output_tokens += usage.output_tokens
        stats.cached_tokens += usage.cached_tokens
        if cost is None:
            stats.unpriced += 1
            cost = reserved[0]
        else:
            stats.cost_usd += cost
        if cost > reserved[0]:  # without a limit, or the server ignores it
            self._dearest = max(self._dearest, cost)
        self.book(reserved, cost, usage.input_tokens + usage.output_tokens)
        return usage


# ── what is slow ─────────────────────────────────────────────────────────────────────────────────


class LatencyDigest:
    """How long the last 1,000 calls took, and what follows for the next ones.

    Each first copy gives one sample, in seconds: its latency, or 1.5 times its age when a second
    copy was preferred (it would have taken longer). Hedges and silence give none. Of the first
    ``MANY`` those that are out for longer count as slower ones. Before ``FEW`` are done nothing is
    slow, and before ``ENOUGH`` are, less is given up.
    """

    WINDOW, FEW, ENOUGH, MANY = 1_000, 5, 20, 128

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=self.WINDOW)
        self._changed = True
        self.hedge_s = math.inf
        """A call that has been silent for longer is hedged where slots are free."""
        self.give_up_s = math.inf
        """A send that has been silent for longer is cancelled and sent again."""

    def add(self, seconds: float) -> None:
        """One call took ``seconds``, or at least so long."""
        self._window.append(seconds)
        self._changed = True

    def refresh(self, ages: Iterable[float], *, resends_silent: bool = True) -> None:
        """Take new samples into account; ``ages`` are those of the calls that are out."""
        n = len(self._window)
        if n < self.FEW or not (self._changed or n < self.MANY):
            return
        self._changed = False
        seen = sorted(self._window)
        # Where all calls take about the same time, one at its 95th percentile is about to end.
        least = max((1.5 if n >= self.ENOUGH else 2.0) * seen[n // 2], 0.05)
        total = n + (sum(age >= least for age in ages) if n < self.MANY else 0)
        place = int(0.75 * total)
        self.hedge_s = max(seen[place], least) if place < n else math.inf
        p98, p95 = max(seen[int(0.98 * n)], 1e-9), seen[int(0.95 * n)]
        caution = max(1.0, self.ENOUGH / n)
        if resends_silent:
            self.give_up_s = caution * max(1.3 * p98, 1.7 * p95, 2 * least, 1.0)


class HedgeBudget:
    """Hedges per call, as a bucket: ``SHARE`` of a hedge is earned per completed call.

    What is earned falls with the square of the share of hedges that won, below 0.35. Where
    latency is memoryless half of them win; where calls are slow because the server is busy the
    first copy, being ahead, wins nearly always, and hedging fades to a few probes.
    """

    START, MOST = 16.0, 64.0
    """Hedges that may go out before any is earned, and that may be saved."""
    SHARE = 0.15

    def __init__(self) -> None:
        self.credit = self.START
        """How many hedges may go out now."""
        self._win_rate = 0.5  # a moving average over about the last 30 hedges

    def earn(self) -> None:
        """A call was completed."""
        gain = self.SHARE * max(min(1.0, (self._win_rate / 0.35) ** 2), 0.05)
        self.credit = min(self.MOST, self.credit + gain)

    def learn(self, won: bool) -> None:
        """Of two copies that were out, one was answered: the hedge (``won``), or the first."""
        self._win_rate += (won - self._win_rate) / 30
