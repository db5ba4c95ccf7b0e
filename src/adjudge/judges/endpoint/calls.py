"""Calls of an endpoint, their sends, and the servers that they go to."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply, Wire
from adjudge.judges.endpoint.limits import LatencyDigest, Reservation
from adjudge.judges.endpoint.settings import CallPolicy, Price
from adjudge.text import encode_exactly

if TYPE_CHECKING:
    from adjudge.judges.cassette import ReplyCache

UNHEALTHY_KINDS = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.CONNECTION, ErrorKind.TRUNCATED})
"""Failures of the server or the line; all others, 429 included, show a server that answers."""

RETRYABLE_KINDS = UNHEALTHY_KINDS | {ErrorKind.RATE_LIMITED}
"""Kinds that the same call may survive. The others (a refused key, a bad request, no money,
a refusal) would come back the same, and cost again."""

_MAX_COOLDOWN_S = 10.0
_MAX_FORBIDDEN_IN_ROW = 8
"""So many different requests are not all ones that a firewall objects to."""


class Replica:
    """One base URL: what is in flight there, and whether it works, by a circuit breaker.

    ::

               failures in a row                the cooldown is over
        up ──────────────────────────► down ──────────────────────────► one probe
         ▲                               ▲                                │  │
         │                               └── the probe failed: twice as ──┘  │
         └──────────────── the probe was answered     long, up to 10 s ──────┘

    An answer between failures starts their count again. While it is down, exactly one call at a
    time may probe. Answers to calls that were sent before teach nothing then. Times are seconds on
    the caller's clock.

    >>> server = Replica("http://a", failures=2, cooldown_s=1.0)
    >>> server.failed(0.0); server.failed(0.0)
    >>> server.is_up, server.admits(0.5), server.admits(1.0)
    (False, False, True)
    >>> probe = server.take()
    >>> probe, server.admits(1.0)
    (True, False)
    >>> server.answered(probe); server.is_up
    True
    """

    def __init__(self, url: str, failures: int, cooldown_s: float) -> None:
        self.url = url
        self.in_flight = self.sends = 0
        self.is_up = True
        self.outages = 0
        """How often it went down."""
        self.failures = 0
        """Failures in a row; while it is down, those that showed it."""
        self.failed_at: float | None = None
        """When the server failed last."""
        self._threshold = failures
        self._first_cooldown = self._cooldown = cooldown_s
        self._probe_at = 0.0
        self._probing = False

    def state(self, now: float) -> str:
        """``closed`` (up), ``open``, or ``half_open``: a call may probe, or does."""
        if self.is_up:
            return "closed"
        return "half_open" if self._probing or now >= self._probe_at else "open"

    def admits(self, now: float) -> bool:
        """Whether a call may be sent now (as the probe, if the server is down)."""
        return self.is_up or (not self._probing and now >= self._probe_at)

    def take(self) -> bool:
        """A call that :meth:`admits` let through is sent; whether it is the probe."""
        self.in_flight += 1
        self.sends += 1
        self._probing = not self.is_up
        return self._probing

    def release(self, probe: bool) -> None:
        """A send has ended, if only because it was cancelled: another one may probe."""
        self.in_flight -= 1
        self._probing &= not probe

    def answered(self, probe: bool) -> None:
        """The server answered, which ends its outage where it was asked as a probe."""
        if probe:
            self.is_up = True
            self._cooldown = self._first_cooldown
        if self.is_up:
            self.failures = 0

    def failed(self, now: float, probe: bool = False) -> None:
        """The server failed, could not be reached or did not answer in time."""
        self.failed_at = now
        if probe:
            self._probing = False
            longest = max(self._first_cooldown, _MAX_COOLDOWN_S)
            self._cooldown = min(2 * self._cooldown, longest)
            self._probe_at = now + self._cooldown
        elif self.is_up:
            self.failures += 1
            if self.failures >= self._threshold:
                self.is_up = False
                self.outages += 1
                self._probe_at = now + self._cooldown


class Servers:
    """The servers of one endpoint: which of them a send goes to, and whether they work."""

    def __init__(self, urls: Sequence[str], policy: CallPolicy) -> None:
        how = policy.breaker_failures, policy.breaker_cooldown_s
        self.all = [Replica(url, *how) for url in urls]
        self._waits = policy.breaker_waits
        self._reached = False  # until a server was reached, no call waits for one
        self.last_failure: GradingFailure | None = None
        """Of any call, since a server answered."""
        self._forbidden: dict[str | bytes, float] = {}  # in a row, and when each was first

    @property
    def outage(self) -> GradingFailure | None:
        """Why nothing is sent while calls wait: all servers are down; else ``None``.

        Of a server that has never been reached what went wrong is the whole cause.
        """
        if any(server.is_up for server in self.all):
            return None
        if self.last_failure is not None and not self._reached:
            return self.last_failure
        cause = "" if self.last_failure is None else f"; last: {self.last_failure}"
        return GradingFailure(ErrorKind.CIRCUIT_OPEN, f"the circuit breaker is open{cause}")

    @property
    def lasting_outage(self) -> GradingFailure | None:
        """An outage that no call waits for: of servers that have never been reached."""
        return None if self._waits and self._reached else self.outage

    def answered(self, server: Replica, probe: bool, *, accepted: bool) -> None:
        """A server said something, if only "no"; ``accepted``: a reply, so the key is good."""
        if accepted:
            self._forbidden.clear()
        self._reached = True
        self.last_failure = None  # what is said after it has another cause
        server.answered(probe)

    def failed(
        self, server: Replica, probe: bool, now: float, failure: GradingFailure | None = None
    ) -> None:
        """A server failed, was not reached, or kept silent (no ``failure``)."""
        self._reached |= failure is None or failure.metadata.get("sent", True)
        self.last_failure = failure or self.last_failure
        server.failed(now, probe)

    def classify_forbidden(
        self, failure: GradingFailure, who: str | bytes, now: float, oldest: float, worked: bool
    ) -> GradingFailure:
        """Whether a 403 is about the key (``auth``, which stops a run) or about one request.

        Firewalls and filters of content answer 403 as well, so that a policy could stop a run by
        what it writes. A 403 is about the key once nothing that was sent before the first 403 in a
        row is still out (it may yet be answered), and, where the key has worked, 8 different
        requests are in that row. ``who``: the request, or its group, whose requests count as one:
        they share what may be objected to. ``now``, and the ``oldest`` time of those that are out:
        on the timer's clock.
        """
        self._forbidden.setdefault(who, now)
        settled = oldest > next(iter(self._forbidden.values()))
        if settled and (not worked or len(self._forbidden) >= _MAX_FORBIDDEN_IN_ROW):
            return failure
        return GradingFailure(ErrorKind.REFUSED, str(failure), failure.metadata)

    def pick(self, now: float, group: str | None, avoid: Replica | None) -> Replica | None:
        """The server for a call that is sent now; ``None`` while all are down.

        One that is due for its probe goes first: otherwise it would never come back. ``avoid`` is
        where this call failed or hangs, taken only when there is nothing else. Calls of a ``group``
        go to one server (rendezvous hashing, so that a lost server moves only its own groups),
        unless it has more than twice the least busy one's calls, and 8. The rest goes to the least
        busy.
        """
        able = [server for server in self.all if server.admits(now)]
        if len(able) < 2:
            return able[0] if able else None
        able = [server for server in able if server is not avoid]
        due = [server for server in able if not server.is_up]
        idlest = min(due or able, key=lambda server: (server.in_flight, server.sends))
        if due or group is None:
            return idlest
        home = max(able, key=lambda server: _rendezvous_weight(group, server.url))
        return idlest if home.in_flight > 2 * idlest.in_flight + 8 else home


@functools.lru_cache(maxsize=16_384)
def _rendezvous_weight(group: str, url: str) -> bytes:
    """Python's own hash differs between processes; the ranks of one run should agree."""
    return hashlib.blake2b(encode_exactly(f"{url}\n{group}"), digest_size=8).digest()


JoinKey = tuple[int, int, str, bytes, str] | None
"""What equal calls share a reply by: draw, attempt, path and body of the request, and the form of
the reply, which a wire may leave out of the body. ``None``: a call that shares none."""


class Call(msgspec.Struct, eq=False):
    """One call; ``waiters`` are all who get its outcome. Times are those of the timer's clock."""

    chat_call: ChatCall
    wire: Wire
    request: HttpRequest
    price: Price | None
    cache: ReplyCache | None
    cache_key: str
    join_key: JoinKey
    reserved: Reservation
    latencies: LatencyDigest
    asked_at: float
    deadline: float
    waiters: list[asyncio.Future[Reply]] = []
    why: str = "sends"
    """Why it is sent next: ``sends`` (for the first time), ``retries`` or ``timeouts``."""
    sends: list[Send] = []
    """Those that are out."""
    first_sends: int = 0
    """How often it was sent, hedges apart."""
    hedges: int = 0
    timeouts: int = 0
    """How often it was sent again for silence."""
    failure: GradingFailure | None = None
    avoid: Replica | None = None

    @property
    def attempts(self) -> int:
        """How often it was sent."""
        return self.first_sends + self.hedges

    def end(self, outcome: Reply | Exception | None) -> None:
        """Tell who waits, or that there will be no outcome; cancel what is still out."""
        for send in self.sends:
            send.cancel("lost" if isinstance(outcome, Reply) else "left")
        for waiter in self.waiters:
            if outcome is None:
                waiter.cancel()
            elif waiter.done():
                continue
            elif isinstance(outcome, Exception):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)
                if len(self.waiters) > 1:  # what is paid once is not each one's expense
                    shared = msgspec.structs.replace(outcome.provenance, source="shared")
                    outcome = msgspec.structs.replace(outcome, provenance=shared)


class Send(msgspec.Struct, eq=False):
    """One HTTP request of a call; ``dropped`` says why it was cancelled.

    ``late``; ``lost`` to another one; ``left`` by all.
    """

    call: Call
    server: Replica
    why: str
    probe: bool
    at: float
    task: asyncio.Task[None] | None = None
    begun: bool = False
    response: HttpResponse | None = None
    dropped: str = ""

    def cancel(self, reason: str) -> None:
        """Cancel it, if it has not been; what has not begun will not."""
        if not self.dropped:
            self.dropped = reason
            if self.begun and self.task is not None:
                self.task.cancel()
