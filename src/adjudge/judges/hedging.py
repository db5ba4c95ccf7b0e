"""When a call is late: how long calls take here, and whether asking twice pays.

A *hedge* is a second copy of a call that is slower than most; the first reply wins. It helps where
a few calls are slow by chance, and harms where all are slow because the server is busy, so it earns
its budget: by calls that complete, and by winning.

Source: Dean and Barroso, "The Tail at Scale", CACM 2013 (hedged requests).
"""

from __future__ import annotations

from collections import deque

__all__ = ["HedgeBudget", "LatencyDigest"]

WINDOW = 1_000
REFRESH = 16


class LatencyDigest:
    """How long the last 1,000 calls took, and what follows for the next ones.

    Each first copy gives exactly one sample, in seconds: its latency, or its age when it was given
    up (it would have taken at least that). Hedges give none. Quantiles up to the one at which
    hedges go out are therefore not biased by hedging.

    With fewer than ``min_samples`` it is cold: nothing is given up, and a hedge waits for
    ``cold_hedge_s``.
    """

    __slots__ = (
        "_factor",
        "_floor",
        "_hedge_floor",
        "_min",
        "_quantile",
        "_samples",
        "_since",
        "cold_hedge_s",
        "give_up_s",
        "hedge_s",
        "idle_hedge_s",
    )

    def __init__(
        self,
        *,
        quantile: float = 0.95,
        factor: float = 1.3,
        floor_s: float = 1.0,
        hedge_floor_s: float = 0.05,
        cold_hedge_s: float = 30.0,
        min_samples: int = 20,
    ) -> None:
        self._quantile = quantile
        self._factor = factor
        self._floor = floor_s
        self._hedge_floor = hedge_floor_s
        self.cold_hedge_s = cold_hedge_s
        self._min = min_samples
        self._samples: deque[float] = deque(maxlen=WINDOW)
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
        if len(self._samples) < self._min or self._since < REFRESH:
            return
        self._since = 0
        ordered = sorted(self._samples)
        n = len(ordered)
        # Where all calls take about the same time, one at its 95th percentile is about to end.
        least = max(1.5 * ordered[n // 2], self._hedge_floor)
        self.hedge_s = max(ordered[int(n * self._quantile)], least)
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

    __slots__ = ("_burst", "_gain", "_share", "_tokens", "win_rate")

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
