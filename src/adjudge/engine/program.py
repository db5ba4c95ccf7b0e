"""One program run to its end: killed at a deadline, its output capped, always reaped.

Built on ``pidfd`` and the loop's own readers instead of ``asyncio.create_subprocess_exec``, whose
default child watcher in Python 3.11 starts a thread per process and whose streams have no cap.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

__all__ = ["Finished", "data_fd", "run_program"]

_CHUNK = 1 << 16

Kill = Callable[["subprocess.Popen[bytes]"], None]


@dataclass(frozen=True)
class Finished:
    """How a child ended: ``exit_code`` as ``Popen.returncode`` has it (negative: the signal).

    ``timed_out``: killed at the deadline; ``truncated``: killed because one stream passed the
    output limit (the text up to it is kept). ``duration_s`` is wall-clock seconds from the start.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    duration_s: float


async def run_program(
    argv: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    deadline_s: float,
    output_limit_bytes: int,
    kill: Kill = subprocess.Popen.kill,
) -> Finished:
    """Run ``argv`` with an empty environment, in a session of its own, on the running loop.

    ``output_limit_bytes`` holds for each of stdout and stderr. ``kill(process)`` is how the child
    is ended early. Cancelling this coroutine kills and reaps the child. Raises ``OSError`` when
    ``argv`` cannot be started.
    """
    process = subprocess.Popen(  # noqa: ASYNC220, S603  (starting is a vfork; argv is ours)
        argv,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        env={},
        start_new_session=True,
        bufsize=0,
    )
    try:
        watch = _Watch(process, output_limit_bytes, kill)
    except OSError:  # out of descriptors: the child must not go unwatched
        with process:
            process.kill()
        raise
    with contextlib.closing(watch):
        return await watch.until(deadline_s)


def data_fd(data: bytes) -> int:
    """A new descriptor with ``data`` in memory, positioned at its start."""
    fd = os.memfd_create("data", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class _Watch:
    """One running child: collects its output and notices its end."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int, kill: Kill) -> None:
        self._started = time.monotonic()
        self._process, self._limit, self._kill_with = process, limit, kill
        self._pidfd = os.pidfd_open(process.pid)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timed_out = self._truncated = False
        assert process.stdout is not None  # noqa: S101  (for the type checker)
        assert process.stderr is not None  # noqa: S101
        self._pipes: tuple[IO[bytes], IO[bytes]] = (process.stdout, process.stderr)
        self._texts = (bytearray(), bytearray())
        self._reading: set[int] = set()

    async def until(self, deadline_s: float) -> Finished:
        """Wait for the end, or bring it about at the deadline."""
        for which, pipe in enumerate(self._pipes):
            os.set_blocking(pipe.fileno(), False)
            self._add_reader(pipe.fileno(), self._read, which)
        self._add_reader(self._pidfd, self._end)
        timer = self._loop.call_later(deadline_s, self._expire)
        try:
            await self._ended
        finally:
            timer.cancel()
        duration = time.monotonic() - self._started
        exit_code = self._process.wait()  # the pidfd said that it has ended
        for which in range(len(self._pipes)):
            while self._read(which):
                pass
        stdout, stderr = (bytes(text[: self._limit]) for text in self._texts)
        return Finished(exit_code, stdout, stderr, self._timed_out, self._truncated, duration)

    def close(self) -> None:
        """Kill and reap whatever still runs; let go of every descriptor."""
        for fd in tuple(self._reading):
            self._remove_reader(fd)
        if self._process.poll() is None:
            self._kill_with(self._process)
            self._process.wait()
        os.close(self._pidfd)
        for pipe in self._pipes:
            pipe.close()

    def _read(self, which: int) -> bool:
        """Take what a pipe holds now; false when there is nothing more to take."""
        fd, text = self._pipes[which].fileno(), self._texts[which]
        if len(text) > self._limit:
            return False
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        text += chunk
        if not chunk or len(text) > self._limit:
            self._remove_reader(fd)
        if len(text) > self._limit:
            self._truncated = True
            self._kill()
        return bool(chunk)

    def _end(self) -> None:
        self._remove_reader(self._pidfd)
        if not self._ended.done():
            self._ended.set_result(None)

    def _expire(self) -> None:
        # A late loop must not call a program slow that has already ended.
        if self._process.poll() is None:
            self._timed_out = True
            self._kill()

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._kill_with(self._process)

    def _add_reader(self, fd: int, callback: Callable[..., object], *args: int) -> None:
        self._loop.add_reader(fd, callback, *args)
        self._reading.add(fd)

    def _remove_reader(self, fd: int) -> None:
        if fd in self._reading:
            self._reading.discard(fd)
            self._loop.remove_reader(fd)
