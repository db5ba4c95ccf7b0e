"""Running untrusted code: a bubblewrap sandbox with limits, or a refusal.

A program sees the interpreter's own files (read-only), an empty ``/proc`` and ``/dev`` of its own,
and one small writable folder that vanishes with it. It has no network, no environment, no
capabilities, no other processes to look at and no way to start one; its CPU seconds, memory, disk,
open files, output and wall-clock time are bounded. Where bubblewrap cannot give that, nothing
runs: :meth:`Sandbox.run` raises ``GradingFailure(unsupported)`` with the reason.

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
from collections.abc import Mapping, Sequence
from dataclasses import replace

from adjudge.engine.processes import usable_cpus
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.code.bubblewrap import (
    SandboxLimits,
    SandboxResult,
    bubblewrap_command,
    interpreter_command,
    open_memory_file,
    run_program,
    seccomp_filter,
)
from adjudge.text import encode_exactly

_SOURCE = "main.py"
_USUAL_LIMITS = SandboxLimits()
_REMEDY = "Install bubblewrap (apt install bubblewrap) and allow it to create user namespaces."
_SETUP_S = 2.0
"""How long bubblewrap may take to its first process; a few milliseconds do."""
_GRACE_S = 0.2
"""How long a helper may take to end by itself; a few milliseconds do."""

_PROBE = """
import os
try:
    os.fork()
except PermissionError:
    print("contained")
"""


class Sandbox:
    """Runs programs in bubblewrap, at most ``max_parallel`` at a time on one event loop.

    ``max_parallel`` defaults to the number of usable CPUs; waiting programs queue, and their
    deadline starts when they do.
    """

    def __init__(self, *, max_parallel: int | None = None) -> None:
        self.max_parallel = max_parallel
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._slots = weakref.WeakKeyDictionary()

    async def run(
        self,
        program: str | Sequence[str],
        limits: SandboxLimits = _USUAL_LIMITS,
        *,
        stdin: bytes = b"",
        files: Mapping[str, str | bytes] | None = None,
    ) -> SandboxResult:
        """Run ``program`` to its end and return what it did, however badly that went.

        ``program`` is Python source, run as ``main.py`` by this interpreter with ``-I -S``, or an
        argument list; without ``site`` there are no ``exit`` and ``quit``. ``files`` (relative
        name: content) lie in the working directory. Raises ``GradingFailure(unsupported)`` where
        there is no sandbox. Cancelling kills the program.
        """
        argv, contents = _prepare_program(program, files or {})
        async with self._slot():
            await _require_sandbox()
            with contextlib.ExitStack() as stack:
                source = (
                    stack.enter_context(open_memory_file(stdin)) if stdin else subprocess.DEVNULL
                )
                return await _run(argv, contents, source, (), limits)

    async def run_pair(
        self,
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
        ``duration_s`` is the pair's, the wait for the helper's end included. Raises as :meth:`run`
        does.
        """
        first = _prepare_program(leader, leader_files)
        second = _prepare_program(helper, helper_files)
        async with self._slot():
            await _require_sandbox()
            started = time.monotonic()
            with contextlib.ExitStack() as leaders, contextlib.ExitStack() as helpers:
                # Pipes and no socket pair, which would carry descriptors and lead back to this
                # process. Our copies of a program's ends close when it has ended: so the other one
                # sees the end.
                helper_in, leader_out = _pipe(helpers, leaders)
                leader_in, helper_out = _pipe(leaders, helpers)
                task = asyncio.create_task(_run(*second, helper_in, (helper_out,), limits))
                task.add_done_callback(lambda _: helpers.close())
                try:
                    result = await _run(*first, leader_in, (leader_out,), limits)
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

    def _slot(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        slots = self._slots.get(loop)
        if slots is None:
            slots = self._slots[loop] = asyncio.Semaphore(self.max_parallel or usable_cpus())
        return slots


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
def _probe(bwrap: str) -> str | None:
    with contextlib.ExitStack() as stack:
        status = stack.enter_context(open_memory_file(b""))
        fds, options = bubblewrap_command(
            stack, {_SOURCE: _PROBE.encode()}, SandboxLimits(30, disk_mb=1), status
        )
        done = subprocess.run(  # noqa: S603  (the path that PATH names, our own arguments)
            [bwrap, *options, *interpreter_command(), _SOURCE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=fds,
            env={},
            timeout=30,
            check=False,
        )
    if done.stdout == b"contained\n":
        return None
    said = _tail(done.stderr) or f"exit code {done.returncode}, output {done.stdout[:100]!r}"
    return f"bubblewrap cannot sandbox a program here ({said}). {_REMEDY}"


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


async def _run(
    argv: list[str],
    files: Mapping[str, bytes],
    stdin: int,
    channels: tuple[int, ...],
    limits: SandboxLimits,
) -> SandboxResult:
    with contextlib.ExitStack() as stack:
        status = stack.enter_context(open_memory_file(b""))
        fds, options = bubblewrap_command(stack, files, limits, status)
        try:
            done = await run_program(
                [shutil.which("bwrap") or "bwrap", *options, *argv, *map(str, channels)],
                limits,
                stdin=stdin,
                pass_fds=[*fds, *channels],
                kill=functools.partial(_kill, status),
            )
        except OSError as error:
            raise GradingFailure(ErrorKind.UNSUPPORTED, f"no sandbox: {error}") from error
        return _result(done, status)


def _result(done: SandboxResult, status: int) -> SandboxResult:
    """The program's end; a sandbox that ended before its program began is not one."""
    exit_code = _read_status(status, "exit-code")
    if exit_code is None and not (done.timed_out or done.truncated):
        raise GradingFailure(
            ErrorKind.UNSUPPORTED, f"the sandbox could not be set up: {_tail(done.stderr)}"
        )
    code = 128 + signal.SIGKILL if exit_code is None else exit_code
    return replace(done, exit_code=code)


def _kill(status: int, process: subprocess.Popen[bytes]) -> None:
    """End the program; bubblewrap then collects it and ends itself.

    Killing bubblewrap instead would leave its child to whatever the host's process 1 is, which in
    a container often reaps nobody; and in the first milliseconds the child would live on, since
    bubblewrap has cloned it but it has not yet asked to die with its parent. So a program that is
    cancelled that early is waited for until bubblewrap has named the child.
    """
    patience = time.monotonic() + _SETUP_S
    while (inside := _read_status(status, "child-pid")) is None and process.poll() is None:
        if time.monotonic() > patience:
            process.kill()
            return
        time.sleep(0.0005)
    if inside is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(inside, signal.SIGKILL)


def _read_status(status: int, key: str) -> int | None:
    """What bubblewrap has written to its status file so far: ``child-pid``, later ``exit-code``."""
    found = re.search(rf'"{key}": (\d+)'.encode(), os.pread(status, 4096, 0))
    return int(found[1]) if found else None


def _prepare_program(
    program: str | Sequence[str], files: Mapping[str, str | bytes]
) -> tuple[list[str], dict[str, bytes]]:
    """The command and the files of a program."""
    argv = list(program)
    if isinstance(program, str):
        argv, files = [*interpreter_command(), _SOURCE], {**files, _SOURCE: program}
    # Lone surrogates become bytes that the program fails on, not an exception out here.
    return argv, {
        name: encode_exactly(content) if isinstance(content, str) else content
        for name, content in files.items()
    }


def _tail(text: bytes) -> str:
    return text[-300:].decode("utf-8", "replace").strip()
