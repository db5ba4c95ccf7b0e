"""One call on its way: its state, its attempts, what a failure means for it, and where it may go.

After a failure it is told whether the same call stands a chance and when, and whether the others
do. Of several base URLs that serve the same model, one gets a call; a circuit breaker leaves a
failing one alone, and lets one call find out when it is back.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from enum import Enum, StrEnum
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, Reply, Wire
from adjudge.judges.endpoint.settings import EndpointSettings, Price
from adjudge.judges.endpoint.stats import LatencyDigest
from adjudge.text import encode_exactly


class CallState(Enum):
    """Where a call is; :mod:`adjudge.judges.endpoint.dispatcher` draws the ways between them."""

    WAITING = "in a lane, for a slot"
    SENT = "one attempt is out"
    HEDGED = "two attempts are out, and the first complete reply wins"
    RETRY_WAIT = "until its retry is due"
    DONE = "a reply came"
    FAILED = "it ended without a reply"
    CANCELLED = "nobody waits for it any more"


_ENDED = (CallState.DONE, CallState.FAILED, CallState.CANCELLED)


class CancelReason(Enum):
    """Why an attempt was cancelled."""

    LOST = "another send of the same call was first"
    LATE = "it was silent for too long"
    LEFT = "nobody waits for the call any more"


class Call(msgspec.Struct, eq=False, kw_only=True):
    """One call from being asked to its one outcome; ``waiters`` are all who get it.

    ``deadline`` and ``asked_at`` are times of the sweeper's clock. ``first_sends`` counts sends
    that are not hedges, ``timeouts`` how often it was sent again for silence.
    """

    chat_call: ChatCall
    wire: Wire
    request: HttpRequest
    price: Price | None
    cache_key: str | None
    join_key: tuple[int, str, bytes] | None
    latencies: LatencyDigest
    waiters: list[asyncio.Future[Reply]]
    state: CallState = CallState.WAITING
    asked_at: float = 0.0
    deadline: float = 0.0
    attempts: list[Attempt] = []
    first_sends: int = 0
    hedges: int = 0
    timeouts: int = 0
    hedge_queued: bool = False
    given_up: bool = False
    """A send of it was cancelled for silence."""
    was_silent: bool = False
    """Why it is sent again: nothing came (else a send failed)."""
    failure: GradingFailure | None = None
    avoid: Replica | None = None
    estimate: tuple[float, int] | None = None
    """Reservation of one send in dollars, and in tokens; worked out when needed."""

    @property
    def ended(self) -> bool:
        """Whether it has its outcome."""
        return self.state in _ENDED

    @property
    def sends(self) -> int:
        """How often it was sent, hedges included."""
        return self.first_sends + self.hedges


class Attempt(msgspec.Struct, eq=False):
    """One HTTP request of a call."""

    call: Call
    replica: Replica
    hedge: bool
    probe: bool
    sent_at: float
    last_activity: float
    """When it was sent, or last gave a sign of life."""
    running: bool = False
    streaming: bool = False
    """Its first chunk has come."""
    cancel_reason: CancelReason | None = None
    task: asyncio.Task[Any] | None = None


def as_shared_reply(reply: Reply) -> Reply:
    """``reply`` for those who asked the same at the same time."""
    provenance = msgspec.structs.replace(reply.provenance, source="shared")
    return msgspec.structs.replace(reply, provenance=provenance)


MAX_FORBIDDEN_IN_ROW = 8
"""So many different requests are not all ones that a firewall objects to."""

UNHEALTHY_KINDS = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.CONNECTION, ErrorKind.TRUNCATED})
"""Failures of the server or the line; all others, 429 included, show a server that answers."""

RETRYABLE_KINDS = UNHEALTHY_KINDS | {ErrorKind.RATE_LIMITED}
"""Kinds that the same call may survive. The others (a refused key, a bad request, no money,
a refusal) would come back the same, and cost again."""


def full_jitter(failures: int, base_s: float, cap_s: float, rng: random.Random) -> float:
    """Seconds to wait after the ``failures``-th failure: U(0, min(cap, base · 2^(failures − 1))).

    Source: "full jitter" of the AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
    """
    return rng.uniform(0.0, min(cap_s, base_s * 2.0 ** (failures - 1)))


class RetryQueue:
    """Calls that wait until their retry is due."""

    def __init__(self, settings: EndpointSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._waiting: list[tuple[float, int, Call]] = []
        self._ticket = itertools.count()  # of equal times the first to come goes first

    def add(self, call: Call, wait: float | None, now: float) -> bool:
        """Whether ``call`` has an attempt and the time for one left; then it waits here.

        ``wait``: seconds that the server asked for.
        """
        s = self._settings
        delay = full_jitter(call.first_sends, s.retry_base_s, s.retry_cap_s, self._rng)
        if wait is not None:
            delay = wait + min(delay, s.retry_base_s)
        due = now + delay
        if call.first_sends >= s.max_attempts or due >= call.deadline:
            return False
        heapq.heappush(self._waiting, (due, next(self._ticket), call))
        return True

    def due(self, now: float) -> Iterator[Call]:
        """Take out the calls whose time has come, unless they ended meanwhile."""
        while self._waiting and self._waiting[0][0] <= now:
            call = heapq.heappop(self._waiting)[2]
            if not call.ended:
                yield call


class ForbiddenClassifier:
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

    def record_reply(self) -> None:
        """A reply came: the key works."""
        self._worked = True
        if self._row:
            self._row.clear()

    def classify(
        self, call: Call, failure: GradingFailure, oldest: Attempt | None, now: float
    ) -> GradingFailure:
        """``failure`` of kind ``auth`` as what it is; ``oldest``: the first sent that is out."""
        if failure.metadata.get("status") != 403:
            return failure
        if not self._row:
            self._since = now
        asked = call.chat_call.group or call.chat_call.messages or call.request.body
        if len(self._row) < MAX_FORBIDDEN_IN_ROW and asked not in self._row:
            self._row.append(asked)
        settled = oldest is None or oldest.sent_at > self._since
        if settled and (not self._worked or len(self._row) >= MAX_FORBIDDEN_IN_ROW):
            return failure
        return GradingFailure(ErrorKind.REFUSED, str(failure), failure.metadata)


class BreakerState(StrEnum):
    """Of a :class:`CircuitBreaker`."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Whether one server gets calls; one breaker per replica.

    ::

                   failures in a row                 the cooldown is over
        CLOSED ──────────────────────────► OPEN ──────────────────────────► HALF_OPEN
           ▲                                 ▲                                  │  │
           │                                 └── the probe failed: twice as ────┘  │
           └──────────────── the probe was answered    long, up to max ────────────┘

    A success between failures starts their count again. Half open, exactly one call may probe.
    Replies to calls sent before it opened teach nothing. Times are seconds on the caller's clock.

    >>> breaker = CircuitBreaker(failures=2, cooldown_s=1.0, max_cooldown_s=8.0)
    >>> breaker.failed(0.0, probe=False); breaker.failed(0.0, probe=False)
    >>> breaker.admits(0.5), breaker.admits(1.0)
    (False, True)
    >>> probe = breaker.begin()
    >>> probe, breaker.admits(1.0)
    (True, False)
    >>> breaker.succeeded(probe), breaker.closed
    (True, True)
    """

    def __init__(self, failures: int, cooldown_s: float, max_cooldown_s: float) -> None:
        self.closed = True
        self.opened = 0
        """How often it has gone from closed to open."""
        self.failed_at: float | None = None
        """When the server failed last."""
        self._threshold = failures
        self._first_cooldown = self._cooldown = cooldown_s
        self._max_cooldown = max(cooldown_s, max_cooldown_s)
        self._count = 0
        self._retry_at = 0.0
        self._probing = False

    @property
    def failures(self) -> int:
        """Failures in a row; while it is not closed, those that opened it."""
        return self._count

    def state(self, now: float) -> BreakerState:
        """In a word; half open: a call may probe, or does."""
        if self.closed:
            return BreakerState.CLOSED
        half_open = self._probing or now >= self._retry_at
        return BreakerState.HALF_OPEN if half_open else BreakerState.OPEN

    def admits(self, now: float) -> bool:
        """Whether a call may be sent now (as the probe, if the breaker is not closed)."""
        return self.closed or (not self._probing and now >= self._retry_at)

    def begin(self) -> bool:
        """Note that a call which :meth:`admits` let through is sent; whether it is the probe."""
        if self.closed:
            return False
        self._probing = True
        return True

    def succeeded(self, probe: bool) -> bool:
        """The server answered; whether that closes the breaker."""
        if probe:
            self.closed, self._probing = True, False
            self._cooldown = self._first_cooldown
        if self.closed:
            self._count = 0
        return probe

    def failed(self, now: float, probe: bool) -> None:
        """The server failed, could not be reached or did not answer in time."""
        self.failed_at = now
        if probe:
            self._probing = False
            self._cooldown = min(2 * self._cooldown, self._max_cooldown)
            self._retry_at = now + self._cooldown
        elif self.closed:
            self._count += 1
            if self._count >= self._threshold:
                self.closed = False
                self.opened += 1
                self._retry_at = now + self._cooldown

    def abandoned(self, probe: bool) -> None:
        """The call was cancelled before it had an outcome: another one may probe."""
        if probe:
            self._probing = False


SPILL_FACTOR = 2
SPILL_SLACK = 8


class Replica:
    """One base URL: what is in flight there, and whether it works."""

    def __init__(self, url: str, breaker: CircuitBreaker) -> None:
        self.url = url
        self.breaker = breaker
        self.in_flight = 0
        self.sends = 0


def pick_replica(
    replicas: Sequence[Replica], now: float, group: str | None, avoid: Replica | None
) -> Replica | None:
    """The replica for a call that is sent now; ``None`` while all are ejected.

    One that is due for its probe goes first: otherwise it would never come back. ``avoid`` is
    where this call failed or hangs, taken only when there is nothing else. Calls of a ``group``
    go to one replica (rendezvous hashing, so that a lost replica moves only its own groups),
    unless it has more than twice the least busy one's calls, and 8. The rest goes to the least
    busy.
    """
    if len(replicas) == 1:
        return replicas[0] if replicas[0].breaker.admits(now) else None
    able = [replica for replica in replicas if replica.breaker.admits(now)]
    if len(able) > 1 and avoid in able:
        able.remove(avoid)
    for replica in able:
        if not replica.breaker.closed:
            return replica
    if not able:
        return None
    idlest = min(able, key=_replica_load)
    if group is None:
        return idlest
    home = max(able, key=lambda replica: _rendezvous_weight(group, replica.url))
    spill = home.in_flight > SPILL_FACTOR * idlest.in_flight + SPILL_SLACK
    return idlest if spill else home


def _replica_load(replica: Replica) -> tuple[int, int]:
    return replica.in_flight, replica.sends


@functools.lru_cache(maxsize=16_384)
def _rendezvous_weight(group: str, url: str) -> bytes:
    """Python's own hash differs between processes; the ranks of one run should agree."""
    return hashlib.blake2b(encode_exactly(f"{url}\n{group}"), digest_size=8).digest()
