"""Child processes: a pool of killable workers for heavy pure functions, and servers of ours.

Symbolic maths and patterns that come with the data can run for ever on hostile input, and a
thread that runs for ever cannot be ended. A process can::

    pool = get_pool()
    function = "adjudge.graders.answers.comparison:verify"
    verdict = await pool.call(function, payload, deadline_s=2.0)

Parent and child exchange JSON, never pickle: a child that read hostile text cannot send code. The
parent's side (start, ask, kill) is here; the child's side is :mod:`adjudge.engine.worker`.

A server as a child says with one line that it serves, and does so until the end of its standard
input, so it ends when its parent dies, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from adjudge.engine.loop import ProcessLocal
from adjudge.engine.worker import WorkerPhase
from adjudge.errors import CandidateLimitExceeded, ErrorKind, GradingFailure

if TYPE_CHECKING:
    from pydantic import BaseModel

START_DEADLINE_S = 60.0
"""Longest wait for a child to start and import a function; it is not part of a call's deadline."""

_WALL_FACTOR = 10.0
_WALL_EXTRA_S = 30.0
"""How far wall time may exceed a call's processor time, on a machine that is busy with others."""

_CHUNK = 1 << 16
MAX_REPLY_BYTES = 1 << 20
# What a process brings upon itself; anything else may have been sent to it.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
_INHERITED_VARIABLES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

# The path comes as arguments because ``-I`` ignores PYTHONPATH and leaves out the user's packages.
_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from adjudge.engine.worker import main; main()"


class _Reply(msgspec.Struct):
    """The only thing that a child can say; anything else that it sends is a failure.

    With ``phase`` it is no reply yet, but says what comes next.
    """

    ok: bool = False
    value: Any = None
    kind: ErrorKind = ErrorKind.BUG
    message: str = ""
    exhausted: bool = False
    foreseen: bool = False
    phase: WorkerPhase | None = None


_OUT_OF_CPU = GradingFailure(ErrorKind.TIMEOUT, "out of processor time")
_OUT_OF_TIME = GradingFailure(ErrorKind.TIMEOUT, "out of wall time, and nobody knows why")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Reply)


class WorkerProcess:
    """One process, its end of the socket, and what has arrived from it so far.

    Belongs to no event loop while no call is in flight. In a forked copy of the process that
    started it, a child is only forgotten, never touched.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self.functions: set[str] = set()  # that it has imported
        self._buffer = bytearray()
        self._broken = self.killed = False
        self._phase: WorkerPhase | None = None  # of no input: it loads a function
        self.calls = 0
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        try:
            self._process = _start_process(theirs)
        except OSError as error:
            self._socket.close()
            message = f"cannot start a worker process: {error}"
            raise GradingFailure(ErrorKind.UNSUPPORTED, message) from error
        finally:
            theirs.close()

    @property
    def usable(self) -> bool:
        """False once the process has ended or may be in the middle of something."""
        return not self._broken and self._process.poll() is None

    async def ask(self, function: str, value: Any, deadline_s: float, phase: WorkerPhase) -> Any:
        """``function(value)``; the clock starts once the function has been imported.

        Raises :class:`~adjudge.GradingFailure` as :meth:`WorkerPool.call` says. After it, and
        after a cancellation, :attr:`usable` tells whether the child may be asked again.
        """
        call = {"call": function, "value": value, "phase": phase, "cpu_s": deadline_s}
        request = _encode_request(call)
        if function not in self.functions:
            load = _encode_request({"load": function})
            self._phase = None
            await self._answer(load, START_DEADLINE_S, function)
            self.functions.add(function)
        self.calls += 1
        self._phase = phase
        wall_s = min(_WALL_FACTOR * deadline_s, deadline_s + _WALL_EXTRA_S)
        return await self._answer(request, wall_s, function, deadline_s)

    async def _answer(
        self, request: bytes, wall_s: float, function: str, cpu_s: float = 0.0
    ) -> Any:
        """The value in the reply, else a failure in words that name the function and its limit."""
        reply = await self._exchange(request, wall_s)
        if reply in (_OUT_OF_CPU, _OUT_OF_TIME):
            measured = reply is _OUT_OF_CPU
            limit = f"{cpu_s:g} s of processor time" if measured else f"{wall_s:g} s"
            message = f"{function} ran past its deadline of {limit}"
            if measured and self._phase is WorkerPhase.CANDIDATE:
                message = f"the answer alone took more than {limit} to check"
                raise CandidateLimitExceeded(ErrorKind.TIMEOUT, message)
            facts = {"local": True} if self._phase else {"local": True, "suspect": False}
            message = f"{message} ({self._phase or 'import'})"
            raise GradingFailure(ErrorKind.TIMEOUT, message, facts)
        if isinstance(reply, GradingFailure):
            raise reply
        if reply.ok:
            return reply.value
        # Nobody knows what an input did that broke the function, but a reference is not its doing.
        unclear = self._phase not in (None, WorkerPhase.REFERENCE)
        if not reply.exhausted:
            facts = {"suspect": True} if unclear and reply.kind is ErrorKind.BUG else {}
            source = f"{function}: " if reply.kind is ErrorKind.BUG else ""
            raise GradingFailure(reply.kind, source + reply.message, facts)
        # What is left of it in memory would count against the next input.
        self._broken = not reply.foreseen
        if self._phase is WorkerPhase.CANDIDATE:
            message = f"the answer alone is too much to check: {reply.message}"
            raise CandidateLimitExceeded(reply.kind, message)
        message = f"{function}: the {self._phase or 'import'} is too much for it: {reply.message}"
        raise GradingFailure(reply.kind, message, {"suspect": True} if self._phase else {})

    async def _exchange(self, request: bytes, deadline_s: float) -> _Reply | GradingFailure:
        """Send, and wait for the reply or the deadline, whichever comes first."""
        loop = asyncio.get_running_loop()
        self._broken = True  # until a whole reply is here, so a cancellation leaves it broken
        try:
            async with asyncio.timeout(deadline_s):
                # Where the child has gone, the end of what it sent says why.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    await loop.sock_sendall(self._socket, request)
                while (arrived := self._receive()) is None:
                    await self._wait_readable(loop)
        except TimeoutError:
            # A reply that came in time but waited for a busy loop is not held against the child.
            arrived = self._receive() or _OUT_OF_TIME
        self._broken = isinstance(arrived, GradingFailure)
        return arrived

    async def _wait_readable(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for bytes without taking them, so that a cancellation loses none."""
        readable = asyncio.Event()
        loop.add_reader(self._socket, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._socket)

    def _receive(self) -> _Reply | GradingFailure | None:
        """What has arrived, when it is a whole reply or the end; else ``None``."""
        try:
            while (reply := self._take_reply()) is None:
                data = self._socket.recv(_CHUNK)
                if not data:
                    return self._death()
                self._buffer += data
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return self._death()
        return reply

    def _take_reply(self) -> _Reply | GradingFailure | None:
        while (size := self._buffer.find(b"\n")) >= 0:
            frame = bytes(self._buffer[:size])
            del self._buffer[: size + 1]
            try:
                reply = _decoder.decode(frame)
            except (msgspec.DecodeError, RecursionError) as error:
                message = f"a worker's reply is not what it must be: {error}"
                return GradingFailure(ErrorKind.BUG, message)
            if reply.phase is None:
                if self._buffer:  # was never asked for, and spoils what came before
                    return GradingFailure(ErrorKind.BUG, "a worker said more than its reply")
                return reply
            self._phase = reply.phase
        if len(self._buffer) > MAX_REPLY_BYTES:
            message = f"a worker's reply is longer than {MAX_REPLY_BYTES} bytes"
            return GradingFailure(ErrorKind.UNSUPPORTED, message)
        return None

    def _death(self) -> GradingFailure:
        """Why a child that closed its end is gone.

        By a signal is the input's doing, unless it was loading a function; else a bug.
        """
        try:
            code = self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return GradingFailure(ErrorKind.BUG, "a worker process closed its channel")
        if code == -signal.SIGPROF:
            return _OUT_OF_CPU
        if code >= 0:
            message = f"the worker process ended with exit code {code}"
            return GradingFailure(ErrorKind.BUG, message, {"exit_code": code})
        message = f"the worker process was ended by signal {-code}"
        if -code in _OWN_SIGNALS and self._phase is WorkerPhase.CANDIDATE:
            return CandidateLimitExceeded(ErrorKind.UNSUPPORTED, message)
        facts = {"exit_code": code, **({"suspect": True} if self._phase else {})}
        return GradingFailure(ErrorKind.UNSUPPORTED, message, facts)

    def stop(self) -> None:
        """End the process; a call in flight sees that and closes up after itself."""
        if os.getpid() != self._owner:
            # After a fork it is our parent's child and the descriptor a copy: leave both.
            self._socket.detach()
            self._process.returncode = 0
        elif self._process.poll() is None:
            # The child leads its own group, so what it may have started goes with it. It is ours
            # and not yet collected, so the number cannot have been given to another group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process and close our end; :meth:`reap` collects it. Safe to repeat."""
        self.killed = True
        self.stop()
        self._socket.close()

    def reap(self, wait_s: float = 0.0) -> bool:
        """Collect a stopped process; True when nothing is left of it."""
        try:
            self._process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def _start_process(channel: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  our own interpreter running our own code
        [sys.executable, "-I", "-c", _BOOT, *_import_path()],
        stdin=channel.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ},
        start_new_session=True,
    )


def _import_path() -> list[str]:
    """Where the child may import from: our own path without entries relative to a directory."""
    here = str(Path(__file__).resolve().parents[2])
    path = [entry for entry in sys.path if Path(entry).is_absolute()]
    return path if here in path else [*path, here]


def _encode_request(message: dict[str, Any]) -> bytes:
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, f"text that is not Unicode: {error}"
        ) from None
    return body + b"\n"


MAX_CALLS = 10_000
"""Calls after which a child is replaced: parser libraries keep caches that only grow."""


def usable_cpus() -> int:
    """The CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class WorkerPool:
    """At most ``size`` child processes that run named functions on JSON values.

    ``size`` is the usable CPUs by default, at most 4.

    Children start with the first call that needs one, stay warm, and end with this process. A
    pool serves one event loop at a time; :func:`get_pool` keeps one per loop.
    """

    def __init__(self, size: int | None = None) -> None:
        self._slots = asyncio.Semaphore(size or min(4, usable_cpus()))
        self._idle: list[WorkerProcess] = []
        self._children: set[WorkerProcess] = set()
        self._closed = False
        self._finalizer = weakref.finalize(self, _kill_processes, self._children)

    async def call(
        self,
        function: str,
        value: Any,
        *,
        deadline_s: float,
        phase: WorkerPhase = WorkerPhase.COMPARISON,
    ) -> Any:
        """``function(value)`` in a child: a JSON value in, a JSON value out.

        ``function`` is ``"module:function"``, importable in a fresh interpreter; a ``warm_up()``
        in its module runs once beforehand. ``phase`` is what it begins with; it may enter others
        (:func:`~adjudge.engine.worker.enter_phase`). ``deadline_s`` is processor time, for each
        phase. Wall time is bounded too, at ten times that or 30 s more, whichever is less: on a
        busy machine a check takes longer and has the same result. Neither waiting for a free
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
        async with self._slots:
            child = self._take_child(function)
            try:
                return await child.ask(function, value, deadline_s, phase)
            except GradingFailure as failure:
                if self._closed:
                    message = "the worker pool was closed"
                    raise GradingFailure(ErrorKind.CANCELLED, message) from failure
                raise
            finally:
                self._put_back(child)

    def close(self) -> None:
        """End all children; calls in flight raise ``GradingFailure(cancelled)``."""
        self._closed = True
        while self._idle:
            self._discard(self._idle.pop())
        for child in self._children:
            child.stop()

    def _take_child(self, function: str) -> WorkerProcess:
        """An idle child, preferably one that has ``function`` already, else a new one."""
        self._reap()
        for child in [child for child in self._idle if not child.usable]:
            self._idle.remove(child)
            self._discard(child)
        if not self._idle:
            child = WorkerProcess()
            self._children.add(child)
            return child
        ready = (child for child in reversed(self._idle) if function in child.functions)
        child = next(ready, self._idle[-1])
        self._idle.remove(child)
        return child

    def _put_back(self, child: WorkerProcess) -> None:
        if child.usable and not self._closed and child.calls < MAX_CALLS:
            self._idle.append(child)
        else:
            self._discard(child)

    def _discard(self, child: WorkerProcess) -> None:
        child.kill()
        self._reap()

    def _reap(self) -> None:
        """Collect what has ended; the rest waits for the next call, or for the end of the pool."""
        gone = [child for child in self._children if child.killed and child.reap()]
        self._children.difference_update(gone)


def _kill_processes(children: set[WorkerProcess]) -> None:
    for child in children:
        child.kill()
    for child in children:
        child.reap(wait_s=1.0)
    children.clear()


_Pools = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, WorkerPool]
# Cleared in a forked child: its copies of the sockets would keep the parent's children alive.
_pools: ProcessLocal[_Pools] = ProcessLocal(weakref.WeakKeyDictionary, lambda pools: pools.clear())


def get_pool() -> WorkerPool:
    """The pool of the running event loop, made at its first use.

    It is closed when the loop is gone; one in which calls have waited, when another loop asks.

    A forked process starts with no pools and leaves its parent's alone.
    """
    loop = asyncio.get_running_loop()
    with _pools.lock:
        pools = _pools.value
        pool = pools.get(loop)
        if pool is None:
            for other in [other for other in pools if other.is_closed()]:
                pools.pop(other).close()
            pool = pools[loop] = WorkerPool()
    return pool


_STOP_S = 10.0


@contextlib.contextmanager
def start_child_server(command: list[str]) -> Iterator[tuple[bytes, subprocess.Popen[bytes]]]:
    """Run a command that serves, until the block ends; gives the line that it prints when ready.

    Raises ``RuntimeError`` when it ends without one.
    """
    with subprocess.Popen(  # noqa: S603  (this very program)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else b""
            if not line:
                said = " ".join(command[1:5])
                raise RuntimeError(f"{said} did not start (exit code {process.wait()})")
            yield line, process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def settings_arguments(settings: BaseModel, names: Mapping[str, str] | None = None) -> list[str]:
    """Settings as options of their command: the port, and what differs from its default.

    ``names``: options that are not called as their fields are.
    """
    arguments: list[str] = []
    for key, field in type(settings).model_fields.items():
        value = getattr(settings, key)
        if value == field.default and key != "port":
            continue
        name = "--" + (names or {}).get(key, key).replace("_", "-")
        if isinstance(value, bool):
            arguments.append(name)
        else:
            several = value if isinstance(value, list | tuple) else [value]
            arguments += [f"{name}={one}" for one in several]
    return arguments


def stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call ``stop`` when standard input ends; what comes before its end is dropped."""
    number = sys.stdin.fileno()

    def read() -> None:
        if not os.read(number, 65536):
            loop.remove_reader(number)
            stop()

    loop.add_reader(number, read)
