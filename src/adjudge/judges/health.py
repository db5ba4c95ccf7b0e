"""What an endpoint has learnt about its servers: how many calls they take, how long, who is up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adjudge.errors import GradingFailure
from adjudge.judges.breaker import Breaker
from adjudge.judges.endpoint_settings import EndpointSettings
from adjudge.judges.flight import Send
from adjudge.judges.hedging import HedgeBudget, LatencyDigest
from adjudge.judges.limits import AdaptiveLimit
from adjudge.judges.replicas import Replica, pick
from adjudge.judges.stats import Stats

__all__ = ["Health"]

STALL_S = 5.0
"""A stream that has begun is not slow before this, nor given up before twice this."""


class Health:
    """Limit, replicas with their breakers, latencies per kind of call, and the hedge budget."""

    def __init__(self, base_urls: Sequence[str], settings: EndpointSettings) -> None:
        s = self._settings = settings
        cooldowns = (s.breaker_cooldown_s, s.breaker_max_cooldown_s)
        self.replicas = [Replica(url, Breaker(s.breaker_failures, *cooldowns)) for url in base_urls]
        self.limit = AdaptiveLimit(
            s.start_concurrency, s.max_concurrency, s.min_concurrency, s.cooldown_s
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
                quantile=s.hedge_quantile,
                factor=s.timeout_factor,
                floor_s=s.timeout_floor_s,
                hedge_floor_s=s.hedge_floor_s,
                cold_hedge_s=s.deadline_s / 4,
            )
        return found

    def silent(self, live: Iterable[Send], now: float) -> tuple[list[Send], list[Send]]:
        """Sends that are silent for too long, and those that are slow; ``live`` in sending order.

        While half of the slots are free, a hedge keeps nobody waiting, and a send is slow sooner.
        """
        idle = self.limit.in_flight <= self.limit.limit // 2
        for digest in self._digests.values():
            digest.refresh()
        young = min((digest.soonest(idle) for digest in self._digests.values()), default=0.0)
        late, slow = [], []
        for send in live:
            if now - send.sent < young:
                break  # the rest is younger still
            if send.why is not None:
                continue
            silence, digest = now - send.heard, send.flight.digest
            if silence >= _patience(send) * 2.0**send.flight.late:
                late.append(send)
            elif silence >= max(digest.soonest(idle), STALL_S * send.streaming):
                slow.append(send)
        return late, slow

    def pick_second(self, first: Replica) -> Replica | None:
        """A working replica for a hedge, another than the first copy's if there is one."""
        closed = [replica for replica in self.replicas if replica.breaker.closed]
        return pick(closed, 0.0, None, first)

    def answered(self, send: Send) -> None:
        """The server of ``send`` said something, if only "no"."""
        self.reached = True
        self.last_failure = None  # what is said after it has another cause
        if send.replica.breaker.succeeded(send.probe) and self.up() == 1:
            self.limit.restart()

    def failed(self, send: Send, now: float, failure: GradingFailure | None = None) -> None:
        """The server of ``send`` failed, was not reached, or kept silent (no ``failure``)."""
        if failure is None or failure.metadata.get("sent", True):
            self.reached = True
        self.last_failure = failure or self.last_failure
        self.limit.faltered()
        send.replica.breaker.failed(now, send.probe)

    def up(self) -> int:
        """How many replicas are not ejected."""
        return sum(replica.breaker.closed for replica in self.replicas)

    def gauge(self, stats: Stats) -> None:
        """Write the current readings."""
        stats.limit = self.limit.limit
        stats.peak_in_flight = self.limit.peak
        stats.limit_cuts = self.limit.cuts
        stats.circuit_opened = sum(replica.breaker.opened for replica in self.replicas)


def _patience(send: Send) -> float:
    digest = send.flight.digest
    if send.probe:  # nothing else goes out until it has an outcome
        return min(digest.give_up_s, digest.cold_hedge_s)
    return max(digest.give_up_s, 2 * STALL_S) if send.streaming else digest.give_up_s
