"""Whose input a worker process is busy with, and the processor time that this may take.

A function that runs in a :class:`~adjudge.engine.processes.WorkerPool` says by :func:`enter_phase`
what it does next, so that a reference that takes for ever is not held against the answer. Each
phase has processor time of its own, counted by the kernel, which ends the process with ``SIGPROF``
when it is used up: a process that is stopped or waits for a processor uses none, and a single long
operation of the interpreter is ended as well.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from enum import StrEnum

_LEAST_CPU_S = 0.001  # a timer of 0 would never ring


class WorkerPhase(StrEnum):
    """Whose input a worker is busy with; only :attr:`CANDIDATE` is ever held against it."""

    REFERENCE = "reference"
    CANDIDATE = "candidate"
    COMPARISON = "comparison"


class InputTooLarge(MemoryError):
    """An input that is refused before it is tried, so nothing of it is left in memory."""


class _PhaseTimer:
    """Processor time left to each phase of one call; ``announce`` is told of each new phase."""

    def __init__(
        self, announce: Callable[[WorkerPhase], None], phase: WorkerPhase, cpu_s: float
    ) -> None:
        self._announce = announce
        self._phase = phase
        self._left = dict.fromkeys(WorkerPhase, cpu_s)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)

    def enter(self, phase: WorkerPhase) -> None:
        if phase is self._phase:
            return
        self._left[self._phase], _ = signal.setitimer(signal.ITIMER_PROF, 0)
        # Told before the time runs: a dead process cannot say what it was doing.
        self._announce(phase)
        self._phase = phase
        signal.setitimer(signal.ITIMER_PROF, max(self._left[phase], _LEAST_CPU_S))

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


_timer: _PhaseTimer | None = None


def enter_phase(phase: WorkerPhase) -> None:
    """What follows in this call is ``phase``; it goes on where it was left. No worker: no effect.

    A phase that uses up the call's processor time ends the process.
    """
    if _timer is not None:
        _timer.enter(phase)


@contextlib.contextmanager
def limited_call(
    announce: Callable[[WorkerPhase], None], phase: WorkerPhase, cpu_s: float
) -> Iterator[None]:
    """One call that begins with ``phase``, each phase of which has ``cpu_s`` of processor time.

    ``announce`` is called before another phase begins. For a worker process alone: the timer is
    the process's only one, and it ends the process.
    """
    global _timer  # noqa: PLW0603  one call at a time
    _timer = _PhaseTimer(announce, phase, cpu_s)
    try:
        yield
    finally:
        _timer.stop()
        _timer = None
