"""Running untrusted code: a bubblewrap sandbox with limits, or a refusal.

A program sees the interpreter's own files (read-only), an empty ``/proc`` and ``/dev`` of its own,
and one small writable folder that vanishes with it. It has no network, no environment, no
capabilities, no other processes to look at and no way to start one; its CPU seconds, memory, disk,
open files, output and wall-clock time are bounded. Where bubblewrap cannot give that, nothing
runs: :func:`run_program` raises ``GradingFailure(unsupported)`` with the reason.

The program is process 1 of its own namespace, so signals that it sends itself do nothing unless
it handles them; a fault or ``abort`` still ends it.

What is not bounded: the host's kernel itself is shared (this is a namespace sandbox, not a virtual
machine); and the kernel memory of very many tiny files or threads is bounded by the deadline and
by the caller's own cgroup only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace

from adjudge.engine.processes import usable_cpus
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.code.bubblewrap import (
    MAIN_FILE,
    SandboxLimits,
    bubblewrap_command,
    open_memory_file,
    open_output_file,
    seccomp_filter,
)
from adjudge.text import encode_exactly

_USUAL_LIMITS = SandboxLimits()
_REMEDY = "Install bubblewrap (apt install bubblewrap) and allow it to create user namespaces."
_SETUP_S = 2.0
"""How long bubblewrap may take to its first process; a few milliseconds do."""
_GRACE_S = 0.2
"""How long a helper may take to end by itself; a few milliseconds do."""
_PROBE_S = 30.0

_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
_slots = weakref.WeakKeyDictionary()

_PROBE = """
import os
try:
    os.fork()
except PermissionError:
    print("contained")
"""


@dataclass(frozen=True)
class SandboxResult:
    """How a program ended: ``exit_code`` is its own, or 128 + signal number (137: killed).

    ``timed_out``: killed at the deadline; ``truncated``: one stream met the output limit, beyond
    which writing fails (the text up to it is kept). ``duration_s`` is wall-clock seconds from the
    start.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    duration_s: float


async def run_program(
    source: str,
    limits: SandboxLimits = _USUAL_LIMITS,
    *,
    stdin: bytes = b"",
    files: Mapping[str, str | bytes] | None = None,
) -> SandboxResult:
    """Run Python ``source`` to its end and return what it did, however badly that went.

    It is ``main.py`` of this interpreter with ``-I -S``; without ``site`` there are no ``exit`` and
    ``quit``. ``files`` (relative name: content) lie in the working directory. As many programs run
    at a time on one event loop as there are usable CPUs; the others wait, and their deadline starts
    when they do. Raises ``GradingFailure(unsupported)`` where there is no sandbox. Cancelling kills
    the program.
    """
    async with _slot():
        await _require_sandbox()
        with open_memory_file(stdin) as given:
            return await _run(source, files or {}, limits, given)


async def run_pair(
    leader: str,
    helper: str,
    limits: SandboxLimits = _USUAL_LIMITS,
    *,
    leader_files: Mapping[str, str | bytes],
    helper_files: Mapping[str, str | bytes],
) -> tuple[SandboxResult, SandboxResult | None]:
    """Run two Python programs at once, each in a sandbox of its own, until the leader ends.

    All they share is two pipes: what one writes to the descriptor that its argument names is
    the other's standard input. A helper that does not end soon after the leader is killed, and
    has no result. The limits hold for each; the pair takes one slot. The leader's
    ``duration_s`` is the pair's, the wait for the helper's end included. Raises as
    :func:`run_program` does.
    """
    async with _slot():
        await _require_sandbox()
        started = time.monotonic()
        with contextlib.ExitStack() as leaders, contextlib.ExitStack() as helpers:
            # Pipes and no socket pair, which would carry descriptors and lead back to this
            # process. Our copies of a program's ends close when it has ended: so the other one
            # sees the end.
            helper_in, leader_out = _pipe(helpers, leaders)
            leader_in, helper_out = _pipe(leaders, helpers)
            task = asyncio.create_task(_run(helper, helper_files, limits, helper_in, helper_out))
            task.add_done_callback(lambda _: helpers.close())
            try:
                result = await _run(leader, leader_files, limits, leader_in, leader_out)
                leaders.close()
                await asyncio.wait([task], timeout=_GRACE_S)
            finally:
                task.cancel()
                await asyncio.wait([task])
                failure = None if task.cancelled() else task.exception()
            if failure is not None:
                raise failure
            result = replace(result, duration_s=time.monotonic() - started)
            return result, None if task.cancelled() else task.result()


def _slot() -> asyncio.Semaphore:
    loop = asyncio.get_running_loop()
    if loop not in _slots:
        _slots[loop] = asyncio.Semaphore(usable_cpus())
    return _slots[loop]


def sandbox_available() -> str | None:
    """``None`` when programs can be sandboxed here, else the reason and the remedy in words.

    Runs a trivial program once per process (and per ``bwrap`` found on ``PATH``), a few dozen
    milliseconds; later calls only look the answer up.
    """
    if sys.platform != "linux":
        return f"code can be sandboxed on Linux only (found {sys.platform})"
    if seccomp_filter() is None:
        return "code can be sandboxed on 64-bit x86-64 and AArch64 only"
    if (bwrap := shutil.which("bwrap")) is None:
        return f"bubblewrap is not installed. {_REMEDY}"
    try:
        return _probe(bwrap)
    except subprocess.TimeoutExpired:
        return "the sandbox did not start within 30 s. Check whether the machine is overloaded."


def check_sandbox(owner: str) -> None:
    """Raise :class:`ConfigError` with reason and remedy where ``owner`` would find no sandbox."""
    if (reason := sandbox_available()) is not None:
        raise ConfigError(f"{owner}: needs a sandbox to run code: {reason}")


async def _require_sandbox() -> None:
    known = _probe.cache_info().currsize > 0
    reason = sandbox_available() if known else await asyncio.to_thread(sandbox_available)
    if reason is not None:
        raise GradingFailure(ErrorKind.UNSUPPORTED, reason)


@functools.lru_cache(maxsize=8)
def _probe(bwrap: str) -> str | None:  # noqa: ARG001  (what PATH named: another is asked anew)
    limits = SandboxLimits(_PROBE_S, disk_mb=1)
    try:
        with contextlib.ExitStack() as stack:
            program = _RunningProgram(stack, _PROBE, {}, limits, subprocess.DEVNULL)
            program.process.wait(_PROBE_S)
            done = program.collect(timed_out=False)
    except GradingFailure as failure:
        return f"bubblewrap cannot sandbox a program here ({failure}). {_REMEDY}"
    if done.stdout == b"contained\n":
        return None
    said = _tail(done.stderr) or f"exit code {done.exit_code}, output {done.stdout[:100]!r}"
    return f"bubblewrap cannot sandbox a program here ({said}). {_REMEDY}"


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


async def _run(
    source: str,
    files: Mapping[str, str | bytes],
    limits: SandboxLimits,
    stdin: int,
    *channels: int,
) -> SandboxResult:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        program = _RunningProgram(stack, source, files, limits, stdin, *channels)
        try:
            watch = os.pidfd_open(program.process.pid)
        except OSError as error:
            raise GradingFailure(ErrorKind.UNSUPPORTED, f"no sandbox: {error}") from error
        stack.callback(os.close, watch)
        loop.add_reader(watch, ended.set)
        stack.callback(loop.remove_reader, watch)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.deadline_s):
                await ended.wait()
        # A late loop must not call a program slow that has already ended.
        timed_out = program.process.poll() is None
        program.kill()
        return program.collect(timed_out=timed_out)


class _RunningProgram:
    """A program in its sandbox; it is killed and reaped when ``stack`` closes, at the latest."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        source: str,
        files: Mapping[str, str | bytes],
        limits: SandboxLimits,
        stdin: int,
        *channels: int,
    ) -> None:
        self._started, self._limit = time.monotonic(), limits.output_bytes
        try:
            self._status = stack.enter_context(open_memory_file(b""))
            self._outputs = [stack.enter_context(open_output_file(self._limit)) for _ in range(2)]
            # Lone surrogates become bytes that the program fails on, not an exception out here.
            contents = {
                name: encode_exactly(content) if isinstance(content, str) else content
                for name, content in {**files, MAIN_FILE: source}.items()
            }
            fds, options = bubblewrap_command(stack, contents, limits, self._status)
            self.process = subprocess.Popen(  # noqa: S603  (our own arguments)
                [shutil.which("bwrap") or "bwrap", *options, *map(str, channels)],
                stdin=stdin,
                stdout=self._outputs[0],
                stderr=self._outputs[1],
                pass_fds=[*fds, *channels],
                env={},
                start_new_session=True,
            )
        except OSError as error:
            raise GradingFailure(ErrorKind.UNSUPPORTED, f"no sandbox: {error}") from error
        stack.callback(self.kill)

    def kill(self) -> None:
        """End and reap the program; bubblewrap collects it and ends itself.

        Killing bubblewrap instead would leave its child to whatever the host's process 1 is, which
        in a container often reaps nobody; and in the first milliseconds the child would live on,
        since bubblewrap has cloned it but it has not yet asked to die with its parent. So a program
        that is cancelled that early is waited for until bubblewrap has named the child.
        """
        patience = time.monotonic() + _SETUP_S
        while (inside := self._read_status("child-pid")) is None and self.process.poll() is None:
            if time.monotonic() > patience:
                self.process.kill()
                break
            time.sleep(0.0005)
        if inside is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(inside, signal.SIGKILL)
        self.process.wait()

    def collect(self, *, timed_out: bool) -> SandboxResult:
        """The program's end; a sandbox that ended before its program began is not one."""
        written = [os.lseek(output, 0, os.SEEK_CUR) for output in self._outputs]
        stdout, stderr = (
            os.pread(output, min(size, self._limit), 0)
            for output, size in zip(self._outputs, written, strict=True)
        )
        code = self._read_status("exit-code")
        if code is None and not timed_out:
            message = f"the sandbox could not be set up: {_tail(stderr)}"
            raise GradingFailure(ErrorKind.UNSUPPORTED, message)
        return SandboxResult(
            128 + signal.SIGKILL if code is None else code,
            stdout,
            stderr,
            timed_out,
            truncated=max(written) > self._limit,
            duration_s=time.monotonic() - self._started,
        )

    def _read_status(self, key: str) -> int | None:
        """What bubblewrap has said so far: its ``child-pid``, later that one's ``exit-code``."""
        found = re.search(rf'"{key}": (\d+)'.encode(), os.pread(self._status, 4096, 0))
        return int(found[1]) if found else None


def _tail(text: bytes) -> str:
    return text[-300:].decode("utf-8", "replace").strip()
