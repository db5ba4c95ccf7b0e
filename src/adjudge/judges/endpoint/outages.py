"""Whether one server works: the detector of outages, and which failures count as one."""

from __future__ import annotations

from adjudge.errors import ErrorKind

UNHEALTHY_KINDS = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.CONNECTION, ErrorKind.TRUNCATED})
"""Failures of the server or the line; all others, 429 included, show a server that answers."""

RETRYABLE_KINDS = UNHEALTHY_KINDS | {ErrorKind.RATE_LIMITED}
"""Kinds that the same call may survive. The others (a refused key, a bad request, no money,
a refusal) would come back the same, and cost again."""

_MAX_COOLDOWN_S = 10.0


class OutageDetector:
    """Whether one server works, from what it answered and where it failed: a circuit breaker.

    ::

               failures in a row                the cooldown is over
        up ──────────────────────────► down ──────────────────────────► one probe
         ▲                               ▲                                │  │
         │                               └── the probe failed: twice as ──┘  │
         └──────────────── the probe was answered     long, up to 10 s ──────┘

    An answer between failures starts their count again. While it is down, exactly one call at a
    time may probe. Answers to calls that were sent before teach nothing then. Times are seconds on
    the caller's clock.

    >>> server = OutageDetector(failures=2, cooldown_s=1.0)
    >>> server.failed(0.0); server.failed(0.0)
    >>> server.is_up, server.admits(0.5), server.admits(1.0)
    (False, False, True)
    >>> probe = server.begin()
    >>> probe, server.admits(1.0)
    (True, False)
    >>> server.answered(probe), server.is_up
    (True, True)
    """

    def __init__(self, failures: int, cooldown_s: float) -> None:
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

    def begin(self) -> bool:
        """Note that a call which :meth:`admits` let through is sent; whether it is the probe."""
        self._probing = not self.is_up
        return self._probing

    def answered(self, probe: bool = False) -> bool:
        """The server answered; whether that ends its outage."""
        if probe:
            self.is_up, self._probing = True, False
            self._cooldown = self._first_cooldown
        if self.is_up:
            self.failures = 0
        return probe

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

    def abandoned(self, probe: bool) -> None:
        """The call was cancelled before it had an outcome: another one may probe."""
        if probe:
            self._probing = False
