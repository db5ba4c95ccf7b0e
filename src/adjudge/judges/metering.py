"""What sends use up: the account's rates and the money, reserved before and settled after."""

from __future__ import annotations

import msgspec

from adjudge.judges.budget import Afford, SpendCeiling, estimate_tokens
from adjudge.judges.endpoint_settings import EndpointSettings
from adjudge.judges.flight import Flight
from adjudge.judges.limits import RateBucket
from adjudge.judges.stats import Stats
from adjudge.types import Usage

__all__ = ["Meter"]


class Meter:
    """Request rate, token rate and spend ceiling of one endpoint; books into ``stats``.

    ``budget`` is a second ceiling, which several endpoints of one loop may share.
    Every send that was :meth:`taken <take>` is settled once: by a reply, as free, or, when nobody
    can know whether the provider bills it, at its reservation.
    """

    def __init__(
        self, settings: EndpointSettings, stats: Stats, budget: SpendCeiling | None = None
    ) -> None:
        rpm, tpm = settings.requests_per_minute, settings.tokens_per_minute
        self._requests = RateBucket(rpm) if rpm else None
        self._tokens = RateBucket(tpm) if tpm else None
        own = settings.spend_ceiling_usd
        ceilings = (None if own is None else SpendCeiling(own), budget)
        self._ceilings = [ceiling for ceiling in ceilings if ceiling is not None]
        self._assumed_output = settings.assumed_output_tokens
        self.idle = not (rpm or tpm or self._ceilings)
        """There is nothing to measure: everything is admitted, nothing reserved."""
        self._stats = stats

    def admits(self, flight: Flight, now: float) -> Afford:
        """Whether one more send of ``flight`` may go out now, later or never (unless idle)."""
        dollars, tokens = self._estimate(flight)
        for ceiling in self._ceilings:
            if (afford := ceiling.afford(dollars)) is not Afford.YES:
                return afford
        if self._requests is not None and not self._requests.admits(1, now):
            return Afford.WAIT
        if self._tokens is not None and not self._tokens.admits(tokens, now):
            return Afford.WAIT
        return Afford.YES

    def take(self, flight: Flight) -> None:
        """A send goes out (unless idle)."""
        dollars, tokens = self._estimate(flight)
        for ceiling in self._ceilings:
            ceiling.reserve(dollars)
        if self._requests is not None:
            self._requests.take(1)
        if self._tokens is not None:
            self._tokens.take(tokens)

    def settle(self, flight: Flight, usage: Usage | None) -> Usage | None:
        """A reply came: book what it used; its usage with the cost filled in."""
        if usage is None:
            self.settle_unknown(flight)
            return None
        cost = usage.cost_usd
        if cost is None and flight.price is not None:
            cost = flight.price.cost(usage)
            usage = msgspec.structs.replace(usage, cost_usd=cost)
        self._stats.spent(usage, cost)
        if not self.idle:
            dollars, tokens = self._estimate(flight)
            self._settle(dollars, cost or 0.0)
            if self._tokens is not None:
                self._tokens.take(usage.input_tokens + usage.output_tokens - tokens)
        return usage

    def settle_unknown(self, flight: Flight) -> None:
        """A send was cancelled or broke off, or its reply named no usage: book the reservation."""
        if flight.price is None:
            return
        dollars, _ = self._estimate(flight)
        self._settle(dollars, dollars)
        self._stats.cost_usd += dollars
        self._stats.assumed_usd += dollars

    def settle_free(self, flight: Flight) -> None:
        """The server answered with an error status or a redirect, or nothing was sent: no bill."""
        if not self.idle:
            self._settle(self._estimate(flight)[0], 0.0)

    def _settle(self, estimate: float, cost: float) -> None:
        for ceiling in self._ceilings:
            ceiling.settle(estimate, cost)

    def _estimate(self, flight: Flight) -> tuple[float, int]:
        if flight.estimate is None:
            call = flight.call
            reads, writes = estimate_tokens(call.messages, call.sampling, self._assumed_output)
            price = flight.price
            dollars = 0.0 if price is None else (reads * price.input + writes * price.output) / 1e6
            flight.estimate = (dollars, reads + writes)
        return flight.estimate
