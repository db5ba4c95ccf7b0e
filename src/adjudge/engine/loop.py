"""The one event loop that all asynchronous work of this process runs on, and the threads beside it.

Judges keep connections, limits and breakers; those belong to a loop. Trainers, notebooks and Ray
give every step (or thread) a loop of its own, so objects bound to *their* loops break on the next
step. Here everything asynchronous lives on one background loop per process, and callers cross over
once per call: :func:`run_on_engine` from a coroutine on any loop, :func:`run_blocking` from
ordinary code. On the engine's own loop the first runs inline and the second refuses, since it
would wait for itself.

Cancellation and Ctrl-C cross the bridge: the work is cancelled, gets :data:`FLUSH_S` seconds to
flush, and the exception goes on. A forked child starts with a new loop and touches nothing that it
inherited.

Code that blocks and must not run side by side goes to a daemon thread that does jobs in order:
``asyncio.to_thread`` has many threads, and the interpreter waits for them at its end; a model on a
GPU wants its one thread always, and a job that never ends must not keep a process from ending.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar


async def run_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all; the first exception cancels the others and is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


_T = TypeVar("_T")

FLUSH_S = 5.0
"""How long cancelled work may take to put its affairs in order."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where that is installed."""
    try:
        import uvloop  # noqa: PLC0415  (optional: not every platform has it)
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _Engine:
    """A running loop and the daemon thread that runs it."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.thread = threading.Thread(target=self._run, name="adjudge-engine", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                return self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                pass  # of one task, whose caller gets it: the others go on

    def stop(self) -> None:
        """Cancel what still runs, let it finish for a moment, and close the loop."""
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(_cancel_others(), self.loop)
        self.thread.join(timeout=1.0)  # a grader that blocks the loop cannot be waited for
        if not self.thread.is_alive():
            self.loop.close()


async def _cancel_others() -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=FLUSH_S / 2)
    await loop.shutdown_asyncgens()
    loop.call_soon(loop.stop)


class ProcessLocal(Generic[_T]):
    """A value that a process has once, and its lock; a forked child makes both anew.

    ``leave`` is told there of the parent's value, which stays referenced: dropping it would run its
    finalisers in the child.
    """

    value: _T
    lock: threading.Lock

    def __init__(self, make: Callable[[], _T], leave: Callable[[_T], None] | None = None) -> None:
        self._make, self._leave = make, leave
        self._inherited: list[_T] = []
        self._begin()
        os.register_at_fork(after_in_child=self._after_fork)

    def _begin(self) -> None:
        self.value, self.lock = self._make(), threading.Lock()

    def _after_fork(self) -> None:
        if self._leave is not None:
            self._leave(self.value)
        self._inherited.append(self.value)
        self._begin()


_current: ProcessLocal[_Engine | None] = ProcessLocal(lambda: None)


def _engine() -> _Engine:
    with _current.lock:
        if _current.value is None or not _current.value.thread.is_alive():
            _current.value = _Engine()
        return _current.value


@atexit.register
def _stop_at_exit() -> None:
    if _current.value is not None:
        _current.value.stop()


class Job:
    """One coroutine that starts on the engine, watched from elsewhere: ``done`` is its future."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._loop = _engine().loop
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if self._cancelled:
            self._coroutine.close()
            self.done.cancel()
            return
        try:
            self._task = self._loop.create_task(self._coroutine)
        except TypeError as error:  # not a coroutine: say so to the caller, who is waiting
            self.done.set_exception(error)
            return
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.done.cancel()
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())

    def cancel(self) -> None:
        """Ask the work to stop; ``done`` follows when it has flushed."""
        self._cancelled = True
        self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())


def on_engine() -> bool:
    """Whether the caller runs on the engine's own loop."""
    engine = _current.value
    if engine is None:
        return False
    try:
        return asyncio.get_running_loop() is engine.loop
    except RuntimeError:
        return False


async def run_on_engine(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Await ``coroutine`` on the engine from any running loop; one thread hop, inline when there.

    Raises what the coroutine raises. Cancelling the caller cancels the work and waits up to
    :data:`FLUSH_S` for it.
    """
    if on_engine():
        return await coroutine
    job = Job(coroutine)
    waiter = asyncio.wrap_future(job.done)
    try:
        result: _T = await asyncio.shield(waiter)
    except asyncio.CancelledError:
        if not waiter.done():
            job.cancel()
            await asyncio.wait({waiter}, timeout=FLUSH_S)
        raise
    return result


@contextlib.contextmanager
def _raising_on_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends a call that blocks a running loop.

    asyncio and a notebook's kernel answer it by cancelling the loop's task, which happens when the
    loop goes on: after the call.
    """
    handler = signal.getsignal(signal.SIGINT)
    owner = getattr(getattr(handler, "func", handler), "__module__", None) or ""
    waits_for_loop = owner.partition(".")[0] in ("asyncio", "ipykernel")
    if not waits_for_loop or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def run_blocking(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run ``coroutine`` on the engine and wait for it, from ordinary code in any thread.

    On a foreign running loop this blocks that loop (only). On the engine's loop it raises
    ``RuntimeError``: await the asynchronous twin there. Ctrl-C cancels the work, waits up to
    :data:`FLUSH_S` for it and is raised again; a second one does not wait.
    """
    if on_engine():
        coroutine.close()
        raise RuntimeError(
            "a blocking call on adjudge's own event loop would wait for itself; "
            "await the asynchronous twin (arun, aevaluate, …) instead"
        )
    job = Job(coroutine)
    try:
        with _raising_on_ctrl_c():
            result: _T = job.done.result()
    except KeyboardInterrupt:
        job.cancel()
        with contextlib.suppress(concurrent.futures.CancelledError, TimeoutError):
            job.done.result(timeout=FLUSH_S)
        raise
    return result


_Job = tuple["concurrent.futures.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class SerialThread:
    """A thread that starts with its first job and ends by :meth:`close`.

    A job is left out if no caller waits for it when its turn comes; a job that runs cannot be
    stopped. Serves any thread and loop of the process that made it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, function: Callable[..., _T], *args: Any) -> concurrent.futures.Future[_T]:
        """Do ``function(*args)`` after the jobs before it; its result or exception is the future's.

        Raises ``RuntimeError`` when the thread was closed.
        """
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            self._jobs.put((future, function, args))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return future

    async def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """:meth:`submit`, awaited; cancelling it takes the job back if it has not begun."""
        future = self.submit(function, *args)
        try:
            return await asyncio.wrap_future(future)
        except TimeoutError:  # asyncio's copy, without the place
            return future.result()

    def close(self) -> None:
        """Take no more jobs; the one that runs goes on, those that wait are cancelled."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(queue.Empty):
                while (job := self._jobs.get_nowait()) is not None:
                    job[0].cancel()
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            do_job(*job)
            del job  # or the last job's arguments would live until the next one


def do_job(
    future: concurrent.futures.Future[Any], function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Do ``function(*args)`` here; ``future`` gets an outcome that a loop may wait for."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args)
    except (StopIteration, KeyboardInterrupt, GeneratorExit) as error:
        # An asyncio future cannot hold the one, and the other would end the loop that waits: it is
        # nobody's Ctrl-C, which the main thread gets.
        replaced = RuntimeError(f"{type(error).__name__}: {error}")
        replaced.__cause__ = error
        future.set_exception(replaced)
    except BaseException as error:  # noqa: BLE001  (also SystemExit: it is the caller's to judge)
        future.set_exception(error)
    else:
        future.set_result(result)


def find_raised(error: BaseException) -> BaseException:
    """What was raised, also where :func:`do_job` or Python made it the cause of another."""
    cause = error.__cause__
    if type(error) is RuntimeError and isinstance(
        cause, StopIteration | KeyboardInterrupt | GeneratorExit
    ):
        return cause
    return error
