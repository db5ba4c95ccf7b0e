"""After a failure: does the same call stand a chance and when, and do the others."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.endpoint_settings import EndpointSettings
from adjudge.judges.flight import Flight, Send

__all__ = ["RETRYABLE", "UNHEALTHY", "ForbiddenRequests", "Retries", "full_jitter"]

FORBIDDEN_ALIKE = 8
"""So many different requests are not all ones that a firewall objects to."""

UNHEALTHY = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.CONNECTION, ErrorKind.TRUNCATED})
"""Failures of the server or the line; all others, 429 included, show a server that answers."""

RETRYABLE = UNHEALTHY | {ErrorKind.RATE_LIMITED}
"""Kinds that the same call may survive. The others (a refused key, a bad request, no money,
a refusal) would come back the same, and cost again."""


def full_jitter(failures: int, base_s: float, cap_s: float, rng: random.Random) -> float:
    """Seconds to wait after the ``failures``-th failure: U(0, min(cap, base · 2^(failures − 1))).

    Source: "full jitter" of the AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
    """
    return rng.uniform(0.0, min(cap_s, base_s * 2.0 ** (failures - 1)))


class Retries:
    """Flights that wait until their retry is due."""

    def __init__(self, settings: EndpointSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._waiting: list[tuple[float, int, Flight]] = []
        self._ticket = itertools.count()  # of equal times the first to come goes first

    def add(self, flight: Flight, wait: float | None, now: float) -> bool:
        """Whether ``flight`` has an attempt and the time for one left; then it waits here.

        ``wait``: seconds that the server asked for.
        """
        s = self._settings
        delay = full_jitter(flight.first_sends, s.retry_base_s, s.retry_cap_s, self._rng)
        if wait is not None:
            delay = wait + min(delay, s.retry_base_s)
        due = now + delay
        if flight.first_sends >= s.max_attempts or due >= flight.deadline:
            return False
        heapq.heappush(self._waiting, (due, next(self._ticket), flight))
        return True

    def due(self, now: float) -> Iterator[Flight]:
        """Take out the flights whose time has come, unless they ended meanwhile."""
        while self._waiting and self._waiting[0][0] <= now:
            flight = heapq.heappop(self._waiting)[2]
            if not flight.done:
                yield flight


class ForbiddenRequests:
    """Whether a 403 is about the key (``auth``, which stops a run) or about one request.

    Firewalls and filters of content answer 403 as well, so that a policy could stop a run by what
    it writes. A 403 is about the key once nothing that was sent before the first 403 in a row is
    still out (it may yet be answered), and, where the key has worked, 8 different requests are in
    that row. A group's requests count as one: they share what may be objected to.
    """

    def __init__(self) -> None:
        self._worked = False
        self._row: list[object] = []
        self._since = 0.0

    def answered(self) -> None:
        """A reply came: the key works."""
        self._worked = True
        if self._row:
            self._row.clear()

    def failed(
        self, flight: Flight, failure: GradingFailure, oldest: Send | None, now: float
    ) -> GradingFailure:
        """``failure`` of kind ``auth`` as what it is; ``oldest``: the first sent that is out."""
        if failure.metadata.get("status") != 403:
            return failure
        if not self._row:
            self._since = now
        asked = flight.group or flight.call.messages or flight.request.body
        if len(self._row) < FORBIDDEN_ALIKE and asked not in self._row:
            self._row.append(asked)
        settled = oldest is None or oldest.sent > self._since
        if settled and (not self._worked or len(self._row) >= FORBIDDEN_ALIKE):
            return failure
        return GradingFailure(ErrorKind.REFUSED, str(failure), failure.metadata)
