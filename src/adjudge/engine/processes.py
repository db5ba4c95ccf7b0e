"""Killable processes for heavy pure functions: a small pool with a deadline for every call.

Symbolic maths and patterns that come with the data can run for ever on hostile input, and a
thread that runs for ever cannot be ended. A process can::

    pool = get_pool()
    verdict = await pool.call("adjudge.graders.rules.math_check:verify", payload, deadline_s=2.0)

Parent and child exchange JSON, never pickle: a child that read hostile text cannot send code.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from typing import Any

from adjudge.engine.child import CandidateLimitExceeded, Child
from adjudge.engine.phases import Phase
from adjudge.errors import ErrorKind, GradingFailure

__all__ = ["CandidateLimitExceeded", "Phase", "WorkerPool", "default_size", "get_pool"]

MAX_REPLY_BYTES = 1 << 20
MAX_CALLS = 10_000
"""Calls after which a child is replaced: parser libraries keep caches that only grow."""


def default_size() -> int:
    """Children per pool unless told otherwise: the usable CPUs, at most 4."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(4, len(affinity(0)) if affinity else os.cpu_count() or 1)


class WorkerPool:
    """At most ``size`` child processes that run named functions on JSON values.

    Children start with the first call that needs one, stay warm, and end with this process. A
    pool serves one event loop at a time; :func:`get_pool` keeps one per loop. ``max_reply_bytes``
    bounds what a child may answer.
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self.size = default_size() if size is None else size
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self._max_reply_bytes = max_reply_bytes
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self._dying: list[Child] = []
        self._busy = 0
        # Futures know their loop, so they live here only while somebody waits: a pool must not
        # keep its loop alive, because the registry below forgets the pool when the loop goes.
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._finalizer = weakref.finalize(self, _end, self._children)

    async def call(
        self, function: str, value: Any, *, deadline_s: float, phase: Phase = Phase.COMPARISON
    ) -> Any:
        """``function(value)`` in a child: a JSON value in, a JSON value out.

        ``function`` is ``"module:function"``, importable in a fresh interpreter; a ``warm_up()``
        in its module runs once beforehand. ``phase`` is what it begins with; it may enter others
        (:func:`~adjudge.engine.phases.enter_phase`). ``deadline_s`` is processor time, for each
        phase. Wall time is bounded too, at ten times that or 30 s more, whichever is less: on a
        busy machine a check takes longer and comes to the same end. Neither waiting for a free
        child nor its start counts.

        Raises :class:`~adjudge.GradingFailure`: ``timeout`` when the deadline passes (the child is
        killed); the kind that the function stated by raising one itself; ``bug`` for any other
        exception in it (``suspect`` outside the phase ``reference``) or a child that exits;
        ``unsupported`` when the input exhausts the child's memory or stack.
        :class:`CandidateLimitExceeded` where processor time, memory or stack were used up in the
        phase ``candidate``. A failure to load ``function`` is never the input's. Cancelling a call
        kills its child. A closed pool raises ``RuntimeError``.
        """
        if self._closed:
            raise RuntimeError("this worker pool is closed")
        await self._take_slot()
        try:
            return await self._call_in_child(function, value, deadline_s, phase)
        finally:
            self._give_slot()

    def close(self) -> None:
        """End all children; calls in flight raise ``GradingFailure(cancelled)``."""
        self._closed = True
        while self._idle:
            self._discard(self._idle.pop())
        for child in self._children:
            child.stop()

    async def _call_in_child(
        self, function: str, value: Any, deadline_s: float, phase: Phase
    ) -> Any:
        child = self._take_child(function)
        try:
            return await child.ask(function, value, deadline_s, self._max_reply_bytes, phase)
        except GradingFailure as failure:
            if self._closed:
                message = "the worker pool was closed"
                raise GradingFailure(ErrorKind.CANCELLED, message) from failure
            raise
        finally:
            self._put_back(child)

    def _take_child(self, function: str) -> Child:
        """An idle child, preferably one that has ``function`` already, else a new one."""
        self._reap()
        for child in [child for child in self._idle if not child.usable]:
            self._idle.remove(child)
            self._discard(child)
        if not self._idle:
            child = Child()
            self._children.add(child)
            return child
        ready = (child for child in reversed(self._idle) if child.knows(function))
        child = next(ready, self._idle[-1])
        self._idle.remove(child)
        return child

    def _put_back(self, child: Child) -> None:
        if child.usable and not self._closed and child.calls < MAX_CALLS:
            self._idle.append(child)
        else:
            self._discard(child)

    def _discard(self, child: Child) -> None:
        child.kill()
        self._dying.append(child)
        self._reap()

    def _reap(self) -> None:
        """Collect what has ended; the rest waits for the next call, or for the end of the pool."""
        if self._dying:
            gone = [child for child in self._dying if child.reap()]
            self._children.difference_update(gone)
            self._dying = [child for child in self._dying if child not in gone]

    async def _take_slot(self) -> None:
        if self._busy < self.size:
            self._busy += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # The slot may have been handed over just before the cancellation arrived.
            if turn.done() and not turn.cancelled():
                self._give_slot()
            else:
                self._waiting.remove(turn)
            raise

    def _give_slot(self) -> None:
        """Hand the slot to whoever waits longest, else free it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy -= 1


def _end(children: set[Child]) -> None:
    for child in children:
        child.kill()
    for child in children:
        child.reap(wait_s=1.0)
    children.clear()


_pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, WorkerPool]
_lock: threading.Lock


def get_pool() -> WorkerPool:
    """The pool of the running event loop, made at its first use, closed when the loop is gone.

    A forked process starts with no pools and leaves its parent's alone.
    """
    loop = asyncio.get_running_loop()
    with _lock:
        pool = _pools.get(loop)
        if pool is None:
            for other in [other for other in _pools if other.is_closed()]:
                _pools.pop(other).close()
            pool = _pools[loop] = WorkerPool()
    return pool


def _start_afresh() -> None:
    global _pools, _lock  # noqa: PLW0603  module state is what a fork copies
    _pools = weakref.WeakKeyDictionary()
    _lock = threading.Lock()


_start_afresh()
os.register_at_fork(after_in_child=_start_afresh)
