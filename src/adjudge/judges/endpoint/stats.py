"""Counters and latencies of one endpoint: the numbers behind a run's table of calls."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping
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

    def __init__(self, buckets: Mapping[int, int] = {}) -> None:
        self.buckets = Counter(buckets)

    def add(self, seconds: float) -> None:
        """One call took ``seconds``."""
        self.buckets[int(log(seconds) * _PER_E_FOLD + _SHIFT) if seconds > 0.0 else 0] += 1

    def quantile(self, share: float) -> float | None:
        """Seconds within which ``share`` of the calls were answered, to 1 %; ``None`` if none."""
        left = share * sum(self.buckets.values())
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
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
    failures: Counter[str] = msgspec.field(default_factory=Counter)
    """Calls that ended without a reply, by kind; ``cancelled`` by their callers."""
    sends: int = 0
    retries: int = 0
    """Sent again after a failure."""
    timeouts: int = 0
    """Sent again because nothing came back for too long."""
    hedges: int = 0
    hedge_wins: int = 0
    send_failures: Counter[str] = msgspec.field(default_factory=Counter)
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
        return self._with(EndpointStats() if earlier is None else earlier, operator.sub)

    def plus(self, other: EndpointStats) -> EndpointStats:
        """What two endpoints (of two processes, say) did together; of gauges the larger one."""
        gauges = {name: max(getattr(self, name), getattr(other, name)) for name in _GAUGES}
        return msgspec.structs.replace(self._with(other, operator.add), **gauges)

    def _with(self, other: EndpointStats, combine: Callable[[Any, Any], Any]) -> EndpointStats:
        changes = {name: combine(getattr(self, name), getattr(other, name)) for name in COUNTERS}
        buckets = combine(self.latencies.buckets, other.latencies.buckets)
        return msgspec.structs.replace(self, latencies=LatencyHistogram(buckets), **changes)

    def summary(self) -> dict[str, Any]:
        """All counters as plain data, latencies as ``p50_s``, ``p95_s`` and ``p99_s``."""
        plain = msgspec.structs.asdict(self)
        seen: LatencyHistogram = plain.pop("latencies")
        plain |= {name: dict(plain[name]) for name in ("failures", "send_failures")}
        return plain | {f"p{share}_s": seen.quantile(share / 100) for share in (50, 95, 99)}


COUNTERS = tuple(
    name for name in EndpointStats.__struct_fields__ if name not in {*_GAUGES, "latencies"}
)
"""What may be added up over processes: numbers, and numbers by kind."""
