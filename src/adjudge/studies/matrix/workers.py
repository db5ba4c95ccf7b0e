"""Processes that do a study's heavy work beside each other, and say how far they are."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, NamedTuple

from adjudge.errors import (
    AdjudgeError,
    ConfigError,
    JudgeAuthError,
    JudgeUnavailable,
    RunFolderError,
)

__all__ = ["Heard", "Outcome", "Workers", "workers"]

Heard = Callable[[str, str, int, int], None]
"""``(task, stage, done, total)``: how far a task is."""

_ORPHANED_S = 2.0
_tell: Any = None  # this worker's way to its parent
_RAISED = (JudgeUnavailable, JudgeAuthError, RunFolderError)


class Outcome(NamedTuple):
    """What a task came to: its ``value``, or the ``error`` that it ended with, as words.

    ``kind``: the error's class.
    """

    name: str
    value: Any = None
    error: str | None = None
    kind: str = ""

    def check(self) -> None:
        """Raise the error, if there is one, with the task's name."""
        if self.error is not None:
            known = {one.__name__: one for one in _RAISED}
            raise known.get(self.kind, ConfigError)(f"{self.name}: {self.error}")


class Workers:
    """A pool of processes; each runs one task after the other, so that libraries load once."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(
        self,
        task: Callable[..., Any],
        arguments: Mapping[str, Sequence[Any]],
        on_done: Callable[[Outcome], None],
    ) -> dict[str, Outcome]:
        """Call ``task(name, *arguments[name])`` for each name, as many at a time as there are.

        ``task`` is a function of a module. ``on_done`` hears of each as it ends, in the caller's
        thread. What it raises as an :class:`~adjudge.errors.AdjudgeError` is its outcome, and
        anything else is a fault and comes through. Raises :class:`~adjudge.errors.RunFolderError`
        where a process was killed.
        """
        waiting: dict[Future[Outcome], str] = {
            self._pool.submit(_guarded, task, name, given): name
            for name, given in arguments.items()
        }
        found = {}
        for future in as_completed(waiting):
            try:
                outcome = future.result()
            except BrokenProcessPool:
                raise RunFolderError(
                    "a process of the study was killed, maybe for want of memory: try fewer beside "
                    "each other (--jobs 1); the same command goes on"
                ) from None
            found[outcome.name] = outcome
            on_done(outcome)
        return {name: found[name] for name in arguments}


@contextmanager
def workers(count: int, heard: Heard) -> Iterator[Workers]:
    """``count`` fresh processes; they are killed where the caller is interrupted or fails.

    ``heard`` is told of progress by a thread of its own.
    """
    # A second thread costs more than it computes where several processes share the cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    told = context.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(told, heard), daemon=True)
    listener.start()
    pool = ProcessPoolExecutor(
        count, mp_context=context, initializer=_begin, initargs=(told, os.getpid())
    )
    try:
        yield Workers(pool)
        pool.shutdown()
    except BaseException:
        # Nobody waits for the listener: one that is killed while it tells keeps the queue's lock.
        _kill(pool)
        raise
    told.put(None)
    listener.join()


def progress(name: str) -> Callable[[str, int, int], None]:
    """In a worker: what a job's ``on_progress`` may call so that the parent hears of it."""

    def tell(stage: str, done: int, total: int) -> None:
        if _tell is not None:
            _tell.put((name, stage, done, total))

    return tell


def _begin(told: Any, parent: int) -> None:
    global _tell  # noqa: PLW0603  (one a process, set once)
    _tell = told
    os.dup2(2, 1)  # what libraries and graders print is no part of the parent's answer
    # Ctrl-C goes to all processes of the terminal; the parent decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process once its parent is gone: nobody would hear of what it does."""
    while os.getppid() == parent:
        time.sleep(_ORPHANED_S)
    os._exit(1)


def _guarded(task: Callable[..., Any], name: str, given: Sequence[Any]) -> Outcome:
    try:
        return Outcome(name, task(name, *given))
    except AdjudgeError as error:
        return Outcome(name, error=str(error), kind=type(error).__name__)


def _listen(told: Any, heard: Heard) -> None:
    try:
        while (said := told.get()) is not None:
            heard(*said)
    except BaseException:
        while told.get() is not None:
            pass  # who tells would wait for room
        raise


def _kill(pool: ProcessPoolExecutor) -> None:
    """End the processes at once: what they write is written so that a kill does no harm."""
    for process in list((pool._processes or {}).values()):  # noqa: SLF001  (no public way before 3.14)
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)
