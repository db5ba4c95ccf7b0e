"""The parent's side of one killable worker process: start it, ask it, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from adjudge.engine.phases import Phase
from adjudge.errors import ErrorKind, GradingFailure

__all__ = ["START_DEADLINE_S", "CandidateLimitExceeded", "Child"]

START_DEADLINE_S = 60.0
"""Longest wait for a child to start and import a function; it is not part of a call's deadline."""

_WALL_FACTOR = 10.0
_WALL_EXTRA_S = 30.0
"""How far wall time may exceed a call's processor time, on a machine that is busy with others."""

_CHUNK = 1 << 16
# What a process brings upon itself; anything else may have been sent to it.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

# The path comes as arguments because ``-I`` ignores PYTHONPATH and leaves out the user's packages.
_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from adjudge.engine.worker import main; main()"


class CandidateLimitExceeded(GradingFailure):
    """The candidate's text alone used up a worker's processor time, memory or stack.

    Graders answer it with their minimum. Elsewhere it is a failure of this machine's own.
    """

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(kind, message, {"local": True, "suspect": True})


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
    phase: Phase | None = None


class _OutOfTime(GradingFailure):
    """``measured``: of processor time; else wall time passed, and nobody knows why."""

    def __init__(self, *, measured: bool) -> None:
        super().__init__(ErrorKind.TIMEOUT, "out of time")
        self.measured = measured


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Reply)


class Child:
    """One process, its end of the socket, and what has arrived from it so far.

    Belongs to no event loop while no call is in flight. In a forked copy of the process that
    started it, a child is only forgotten, never touched.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._functions: set[str] = set()
        self._buffer = bytearray()
        self._broken = False
        self._phase: Phase | None = None  # of no input: it loads a function
        self.calls = 0
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        try:
            self._process = _start(theirs)
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

    def knows(self, function: str) -> bool:
        """True when ``function`` has been imported there already."""
        return function in self._functions

    async def ask(
        self, function: str, value: Any, deadline_s: float, max_bytes: int, phase: Phase
    ) -> Any:
        """``function(value)``; the clock starts once the function has been imported.

        Raises :class:`~adjudge.GradingFailure` as :meth:`WorkerPool.call` says. After it, and
        after a cancellation, :attr:`usable` tells whether the child may be asked again.
        """
        call = {"call": function, "value": value, "phase": phase, "cpu_s": deadline_s}
        request = _request(call)
        if function not in self._functions:
            load = _request({"load": function})
            self._phase = None
            await self._answer(load, START_DEADLINE_S, max_bytes, function)
            self._functions.add(function)
        self.calls += 1
        self._phase = phase
        wall_s = min(_WALL_FACTOR * deadline_s, deadline_s + _WALL_EXTRA_S)
        return await self._answer(request, wall_s, max_bytes, function, deadline_s)

    async def _answer(
        self, request: bytes, wall_s: float, max_bytes: int, function: str, cpu_s: float = 0.0
    ) -> Any:
        """The value in the reply, else a failure in words that name the function and its limit."""
        try:
            reply = await self._exchange(request, wall_s, max_bytes)
        except _OutOfTime as failure:
            limit = f"{cpu_s:g} s of processor time" if failure.measured else f"{wall_s:g} s"
            message = f"{function} ran past its deadline of {limit}"
            if failure.measured and self._phase is Phase.CANDIDATE:
                message = f"the answer alone took more than {limit} to check"
                raise CandidateLimitExceeded(ErrorKind.TIMEOUT, message) from None
            facts = {"local": True} if self._phase else {"local": True, "suspect": False}
            message = f"{message} ({self._phase or 'import'})"
            raise GradingFailure(ErrorKind.TIMEOUT, message, facts) from None
        if reply.ok:
            return reply.value
        # Nobody knows what an input did that broke the function, but a reference is not its doing.
        unclear = self._phase not in (None, Phase.REFERENCE)
        if not reply.exhausted:
            facts = {"suspect": True} if unclear and reply.kind is ErrorKind.BUG else {}
            raise GradingFailure(reply.kind, f"{function}: {reply.message}", facts)
        # What is left of it in memory would count against the next input.
        self._broken = not reply.foreseen
        if self._phase is Phase.CANDIDATE:
            message = f"the answer alone is too much to check: {reply.message}"
            raise CandidateLimitExceeded(reply.kind, message)
        message = f"{function}: the {self._phase or 'import'} is too much for it: {reply.message}"
        raise GradingFailure(reply.kind, message, {"suspect": True} if self._phase else {})

    async def _exchange(self, request: bytes, deadline_s: float, max_bytes: int) -> _Reply:
        """Send, and wait for the reply or the deadline, whichever comes first."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_Reply | GradingFailure] = loop.create_future()

        def on_readable() -> None:
            if not outcome.done() and (arrived := self._receive(max_bytes)) is not None:
                outcome.set_result(arrived)

        def on_deadline() -> None:
            # A reply that came in time but waited for a busy loop is not held against the child.
            on_readable()
            if not outcome.done():
                outcome.set_result(_OutOfTime(measured=False))

        self._broken = True  # until a whole reply is here: a cancellation leaves it at that
        timer = loop.call_later(deadline_s, on_deadline)
        loop.add_reader(self._socket, on_readable)
        try:
            await self._send(loop, request, outcome)
            arrived = await outcome
        finally:
            timer.cancel()
            loop.remove_reader(self._socket)
        if isinstance(arrived, GradingFailure):
            raise arrived
        self._broken = False
        return arrived

    async def _send(
        self,
        loop: asyncio.AbstractEventLoop,
        request: bytes,
        outcome: asyncio.Future[_Reply | GradingFailure],
    ) -> None:
        """Write what fits; the rest as the child reads it, unless the outcome is known before."""
        rest = memoryview(request)
        while rest and not outcome.done():
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                writable = loop.create_future()
                loop.add_writer(self._socket, _settle, writable)
                try:
                    await asyncio.wait((writable, outcome), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    loop.remove_writer(self._socket)
            except (BrokenPipeError, ConnectionResetError):
                return  # the reader sees the end of the stream, and why

    def _receive(self, max_bytes: int) -> _Reply | GradingFailure | None:
        """What has arrived, when it is a whole reply or the end; else ``None``."""
        try:
            while (reply := self._take_reply(max_bytes)) is None:
                data = self._socket.recv(_CHUNK)
                if not data:
                    return self._death()
                self._buffer += data
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return self._death()
        return reply

    def _take_reply(self, max_bytes: int) -> _Reply | GradingFailure | None:
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > max_bytes:
                message = f"a worker's reply of {size} bytes is longer than {max_bytes}"
                return GradingFailure(ErrorKind.UNSUPPORTED, message)
            if len(self._buffer) < 4 + size:
                return None
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
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
            return _OutOfTime(measured=True)
        if code >= 0:
            message = f"the worker process ended with exit code {code}"
            return GradingFailure(ErrorKind.BUG, message, {"exit_code": code})
        message = f"the worker process was ended by signal {-code}"
        if -code in _OWN_SIGNALS and self._phase is Phase.CANDIDATE:
            return CandidateLimitExceeded(ErrorKind.UNSUPPORTED, message)
        facts = {"exit_code": code, **({"suspect": True} if self._phase else {})}
        return GradingFailure(ErrorKind.UNSUPPORTED, message, facts)

    def stop(self) -> None:
        """End the process; a call in flight sees that and closes up after itself."""
        if os.getpid() != self._owner:
            self._forget()
        elif self._process.poll() is None:
            # The child leads its own group, so what it may have started goes with it. It is ours
            # and not yet collected, so the number cannot have been given to another group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process and close our end; :meth:`reap` collects it. Safe to repeat."""
        self.stop()
        self._socket.close()

    def reap(self, wait_s: float = 0.0) -> bool:
        """Collect a stopped process; True when nothing is left of it."""
        try:
            self._process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _forget(self) -> None:
        # After a fork the process is our parent's child and the descriptor a copy: leave both.
        self._socket.detach()
        self._process.returncode = 0


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _start(channel: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  our own interpreter running our own code
        [sys.executable, "-I", "-c", _BOOT, *_import_path()],
        stdin=channel.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        start_new_session=True,
    )


def _import_path() -> list[str]:
    """Where the child may import from: our own path without entries relative to a directory."""
    here = str(Path(__file__).resolve().parents[2])
    path = [entry for entry in sys.path if Path(entry).is_absolute()]
    return path if here in path else [*path, here]


def _request(message: dict[str, Any]) -> bytes:
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, f"text that is not Unicode: {error}"
        ) from None
    return len(body).to_bytes(4, "big") + body
