"""An event loop in virtual time: a ten-minute outage is tested in milliseconds.

Whatever keeps to the loop's own clock (``loop.time()``, ``call_later``, ``asyncio.sleep``,
timeouts) runs on it unchanged: when nothing is left to do now, the clock jumps to the next timer.
Not for work that waits for the outside world (sockets, threads, processes), since no real time
passes.

>>> async def wait() -> float:
...     await asyncio.sleep(600)
...     return asyncio.get_running_loop().time()
>>> run_virtual(wait())
600.0
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time; its clock starts at 0.

    Raises ``RuntimeError`` out of ``run_…`` when everything waits and no timer is set: on a real
    loop that is a hang.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass without running anything: what code that blocks the loop does."""
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    """Where the loop would sleep until its next timer, the clock jumps there instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits and no timer is set: this would hang")
            self._loop.advance(max(timeout, 0.0))
        return ready


def run_virtual(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """``asyncio.run`` in virtual time: the coroutine's result, or whatever it raises."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
