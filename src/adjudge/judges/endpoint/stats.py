"""Counters and latencies of one endpoint, and what follows from them for hedging.

The counters are the numbers behind a run's table of calls; the latencies say when a call is late
and whether asking twice pays.

A *hedge* is a second copy of a call that is slower than most; the first reply wins. It helps where
a few calls are slow by chance, and harms where all are slow because the server is busy, so it earns
its budget: by calls that complete, and by winning.

Source: Dean and Barroso, "The Tail at Scale", CACM 2013 (hedged requests).
"""

from __future__ import annotations

import math
from collections import deque
from math import log
from typing import Any

import msgspec

from adjudge.types import Usage

_PER_E_FOLD = 1 / math.log(1.02)
_SHIFT = 2_000
"""Makes bucket numbers positive down to a femtosecond, so that truncating rounds down."""
_GAUGES = {"limit", "peak_in_flight", "loop_lag_max_s"}
"""What has a state, or a maximum over the endpoint's life, instead of a count."""


class LatencyHistogram:
    """A distribution of seconds in buckets 2 % wide: any quantile, constant memory.

    >>> seen = LatencyHistogram()
    >>> for tenths in range(1, 101): seen.add(tenths / 10)
    >>> round(seen.quantile(0.5), 1), round(seen.quantile(0.99), 1)
    (5.0, 9.8)
    """

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0

    def add(self, seconds: float) -> None:
        """One call took ``seconds``."""
        bucket = int(log(seconds) * _PER_E_FOLD + _SHIFT) if seconds > 0.0 else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """What was added after ``earlier``, a copy of this one then."""
        later = LatencyHistogram()
        later.count = self.count - earlier.count
        before = earlier._buckets
        later._buckets = {
            bucket: count - before.get(bucket, 0)
            for bucket, count in self._buckets.items()
            if count > before.get(bucket, 0)
        }
        return later

    def plus(self, other: LatencyHistogram) -> LatencyHistogram:
        """Both together."""
        both = LatencyHistogram()
        both.count = self.count + other.count
        both._buckets = dict(self._buckets)
        for bucket, count in other._buckets.items():
            both._buckets[bucket] = both._buckets.get(bucket, 0) + count
        return both

    def quantile(self, share: float) -> float | None:
        """Seconds within which ``share`` of the calls were answered, to 1 %; ``None`` if none."""
        left = share * self.count
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return math.exp((bucket - _SHIFT + 0.5) / _PER_E_FOLD) if bucket else 0.0
        return None


class EndpointStats(msgspec.Struct, kw_only=True):
    """What an endpoint did so far.

    Once nothing is out, ``calls == answered + sum(failures.values())``, and ``sends`` is the calls
    that were sent at all plus ``retries``, ``timeouts`` and ``hedges``. Money and tokens are of
    replies that reported them; ``assumed_usd`` is the part of ``cost_usd`` that no reply confirmed
    (cancelled, timed-out and broken sends, at their reservation).
    """

    calls: int = 0
    """Questions asked, whatever became of them."""
    answered: int = 0
    cache_hits: int = 0
    deduplicated: int = 0
    """Calls that shared the reply of an equal one in flight."""
    failures: dict[str, int] = {}
    """Calls that ended without a reply, by kind; ``cancelled`` by their callers."""
    sends: int = 0
    retries: int = 0
    """Sent again after a failure."""
    timeouts: int = 0
    """Sent again because nothing came back for too long."""
    hedges: int = 0
    hedge_wins: int = 0
    send_failures: dict[str, int] = {}
    """Sends that failed, by kind; most of them were sent again."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    assumed_usd: float = 0.0
    unpriced: int = 0
    """Replies of models without a price."""
    latencies: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    """From asking to the reply, waiting for a slot included."""
    limit: int = 0
    """How many may be in flight now."""
    peak_in_flight: int = 0
    limit_cuts: int = 0
    circuit_opened: int = 0
    loop_lag_max_s: float = 0.0
    """The longest that the event loop was busy elsewhere; such time counts towards no timeout."""

    def count_failure(self, kind: str, calls: int = 1) -> None:
        """So many calls ended without a reply."""
        self.failures[kind] = self.failures.get(kind, 0) + calls

    def count_send_failure(self, kind: str) -> None:
        """One send failed."""
        self.send_failures[kind] = self.send_failures.get(kind, 0) + 1

    def spent(self, usage: Usage, cost: float | None) -> None:
        """A reply reported ``usage``, worth ``cost`` dollars."""
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cached_tokens += usage.cached_tokens
        if cost is None:
            self.unpriced += 1
        else:
            self.cost_usd += cost

    def since(self, earlier: EndpointStats | None) -> EndpointStats:
        """What was counted after ``earlier``, these stats then (``None``: from the beginning).

        A copy, detached from what goes on; gauges are as they are now.
        """
        earlier = earlier or EndpointStats()
        changes: dict[str, Any] = {}
        for name in self.__struct_fields__:
            now, then = getattr(self, name), getattr(earlier, name)
            if isinstance(now, LatencyHistogram):
                changes[name] = now.since(then)
            elif isinstance(now, dict):
                rest = {kind: count - then.get(kind, 0) for kind, count in now.items()}
                changes[name] = {kind: count for kind, count in rest.items() if count}
            elif name not in _GAUGES:
                changes[name] = now - then
        return msgspec.structs.replace(self, **changes)

    def plus(self, other: EndpointStats) -> EndpointStats:
        """What two endpoints (of two processes, say) did together; of gauges the larger one."""
        together: dict[str, Any] = {}
        for name in self.__struct_fields__:
            ours, theirs = getattr(self, name), getattr(other, name)
            if isinstance(ours, LatencyHistogram):
                together[name] = ours.plus(theirs)
            elif isinstance(ours, dict):
                kinds = dict.fromkeys([*ours, *theirs])
                together[name] = {k: ours.get(k, 0) + theirs.get(k, 0) for k in kinds}
            else:
                together[name] = max(ours, theirs) if name in _GAUGES else ours + theirs
        return EndpointStats(**together)

    def summary(self) -> dict[str, Any]:
        """All counters as plain data, latencies as ``p50_s``, ``p95_s`` and ``p99_s``."""
        plain = {
            name: getattr(self, name) for name in self.__struct_fields__ if name != "latencies"
        }
        for share in (50, 95, 99):
            plain[f"p{share}_s"] = self.latencies.quantile(share / 100)
        return plain


COUNTERS = tuple(
    name for name in EndpointStats.__struct_fields__ if name not in {*_GAUGES, "latencies"}
)
"""What may be added up over processes: numbers, and numbers by kind."""


LATENCY_WINDOW = 1_000
REFRESH_EVERY = 16
HEDGE_QUANTILE = 0.95
HEDGE_FLOOR_S = 0.05


class LatencyDigest:
    """How long the last 1,000 calls took, and what follows for the next ones.

    Each first copy gives exactly one sample, in seconds: its latency, or its age when it was given
    up (it would have taken at least that). Hedges give none. Quantiles up to the one at which
    hedges go out are therefore not biased by hedging.

    With fewer than ``min_samples`` it is cold: nothing is given up, and a hedge waits for
    ``cold_hedge_s``.
    """

    def __init__(
        self,
        *,
        factor: float = 1.3,
        floor_s: float = 1.0,
        cold_hedge_s: float = 30.0,
        min_samples: int = 20,
    ) -> None:
        self._factor = factor
        self._floor = floor_s
        self.cold_hedge_s = cold_hedge_s
        self._min = min_samples
        self._samples: deque[float] = deque(maxlen=LATENCY_WINDOW)
        self._since = 0
        self.hedge_s = cold_hedge_s
        """A call that has been silent for longer is hedged."""
        self.idle_hedge_s = cold_hedge_s
        """The same while half of the slots are free, when a hedge keeps nobody waiting."""
        self.give_up_s = float("inf")
        """A first copy that has been silent for longer is cancelled and sent again."""

    def add(self, seconds: float) -> None:
        """One call took ``seconds``, or at least so long."""
        self._samples.append(seconds)
        self._since += 1

    def soonest(self, idle: bool) -> float:
        """The silence after which anything is to be done about a call."""
        return self.idle_hedge_s if idle else self.hedge_s

    def refresh(self) -> None:
        """Take new samples into account; called now and then, since it sorts."""
        if len(self._samples) < self._min or self._since < REFRESH_EVERY:
            return
        self._since = 0
        ordered = sorted(self._samples)
        n = len(ordered)
        # Where all calls take about the same time, one at its 95th percentile is about to end.
        least = max(1.5 * ordered[n // 2], HEDGE_FLOOR_S)
        self.hedge_s = max(ordered[int(n * HEDGE_QUANTILE)], least)
        self.idle_hedge_s = max(ordered[int(n * 0.75)], least)
        p99 = ordered[int(n * 0.99)]
        self.give_up_s = max(self._factor * p99, 2 * self.hedge_s, self._floor)


class HedgeBudget:
    """Hedges per call, as a bucket: ``share`` of a hedge is earned per completed call.

    What is earned falls with the square of the share of hedges that won, below ``FAIR``. Where
    latency is memoryless half of them win; where calls are slow because the server is busy the
    first copy, being ahead, wins nearly always, and hedging fades to a few probes.
    """

    FAIR = 0.35
    LEAST = 0.05

    def __init__(self, share: float, burst: float = 32.0) -> None:
        self._share = share
        self._burst = burst
        self._tokens = burst / 4 if share > 0 else 0.0
        self._gain = share
        self.win_rate = 0.5
        """Moving average over about the last 30 hedges."""

    def earn(self) -> None:
        """A call was completed."""
        self._tokens = min(self._burst, self._tokens + self._gain)

    def spend(self) -> bool:
        """Whether a hedge may go out; it is paid for."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    @property
    def available(self) -> bool:
        """Whether :meth:`spend` would succeed."""
        return self._tokens >= 1.0

    def learn(self, won: bool) -> None:
        """A hedged call was answered: by its hedge, or by the first copy."""
        self.win_rate += (won - self.win_rate) / 30.0
        worth = min(1.0, (self.win_rate / self.FAIR) ** 2)
        self._gain = self._share * max(worth, self.LEAST)
