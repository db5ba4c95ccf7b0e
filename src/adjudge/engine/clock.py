"""Time as a parameter, so that a ten-minute outage is tested in milliseconds."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Monotonic seconds, and a way to let some pass."""

    def time(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""


class SystemClock:
    """The machine's own clock."""

    def time(self) -> float:
        """Seconds of ``time.monotonic``."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(seconds)
