"""Time as a parameter: a clock, and a timer that knows how late it is.

The timer (one for all deadlines) goes by a clock that stops while the event loop is busy.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol


class Clock(Protocol):
    """Monotonic seconds, and a way to let some pass."""

    def time(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""


class SystemClock:
    """The machine's own clock."""

    time = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(seconds)


class LogLimiter:
    """Lets a message out at once, and again at most every ``period_s``; counts the others.

    >>> limiter = LogLimiter()
    >>> limiter.count("timeout"), limiter.count("timeout"), limiter.count("auth", 3)
    (1, 0, 3)
    """

    def __init__(self, period_s: float = 10.0, clock: Clock | None = None) -> None:
        self._period_s = period_s
        self._clock = clock or SystemClock()
        self._logged: dict[Hashable, float] = {}
        self._counts: Counter[Hashable] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:  # another process has another clock
        return type(self), (self._period_s,)

    def count(self, key: Hashable = None, times: int = 1) -> int:
        """How often ``key`` was counted since its last message, if one is due; else 0."""
        self._counts[key] += times
        now = self._clock.time()
        if now - self._logged.get(key, -math.inf) < self._period_s:
            return 0
        self._logged[key] = now
        return self._counts.pop(key)


class PeriodicTimer:
    """Calls ``action`` every ``period_s`` until it returns False; :meth:`wake` starts it again.

    How much later than planned it runs is the loop's *lag*: something held the loop, so replies
    that had come could not be read. :meth:`now` is the loop's clock without all lag so far:
    timeouts measured on it never blame a judge for this process being busy. Half a period of lag
    is ordinary scheduling and not taken off.
    """

    __slots__ = ("_action", "_due", "_handle", "_latest", "_loop", "_period", "lag_max_s", "lag_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, action: Callable[[], bool], period_s: float = 0.02
    ) -> None:
        self._loop = loop
        self._action = action
        self._period = period_s
        self._due = self._latest = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self.lag_s = 0.0
        self.lag_max_s = 0.0

    def wake(self) -> None:
        """See to it that the timer runs."""
        if self._handle is None:
            self._due = self._loop.time() + self._period
            self._latest = self._due + self._period / 2
            self._handle = self._loop.call_later(self._period, self._tick)

    def stop(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def now(self) -> float:
        """Seconds on the loop's clock, less the lag measured so far and the one under way."""
        return self.without_lag(self._loop.time())

    def without_lag(self, now: float) -> float:
        """The same for a time of the loop's clock, which must be the present."""
        if now > self._latest and self._handle is not None:
            now = self._latest
        return now - self.lag_s

    def _tick(self) -> None:
        late = self._loop.time() - self._due
        self.lag_max_s = max(self.lag_max_s, late)
        self.lag_s += max(0.0, late - self._period / 2)
        self._handle = None
        if self._action():
            self.wake()
