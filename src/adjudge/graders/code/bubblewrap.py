"""One program in bubblewrap: its seccomp filter, its command line, and its run to the end.

Namespaces hide the host; they do not bound what a program takes from the kernel. The filter
closes what the resource limits cannot count: new processes (``RLIMIT_NPROC`` does not bind root),
memory outside the address space (memfd, System V shared memory), nested namespaces and mounts,
socket families that a network namespace does not separate (vsock), and outliving its parent.
Threads stay allowed. It is classic BPF as seccomp(2) takes it, for x86-64 and AArch64. A refused
call fails with ``EPERM``, so the program sees an ordinary exception; a call through a foreign
calling convention kills it.

The command line says what the program sees and what it may use up. It needs bubblewrap with
``--size`` (tested with 0.8.0) and ``prlimit`` from util-linux.

The program is killed at a deadline, its output capped, and it is always reaped: by ``pidfd`` and
the loop's own readers. The streams of ``asyncio.create_subprocess_exec`` have no cap, and its
default child watcher in Python 3.11 starts a thread per process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import platform
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Numbers from the kernel's syscall tables; those above 423 are the same on both machines.
_COMMON = {
    "pidfd_getfd": 438,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "memfd_secret": 447,
}
_REFUSED: Mapping[str, tuple[int, int | None]] = {
    "shmget": (29, 194),
    "fork": (57, None),
    "vfork": (58, None),
    "semget": (64, 190),
    "msgget": (68, 186),
    "ptrace": (101, 117),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "init_module": (175, 105),
    "mq_open": (240, 180),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "finit_module": (313, 273),
    "memfd_create": (319, 279),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
}
"""Numbers on x86-64 and on AArch64, which has neither fork nor vfork."""
# machine: (AUDIT_ARCH, refused calls, clone, socket, prctl)
_MACHINES = {
    "x86_64": (0xC000003E, [one for one, _ in _REFUSED.values()], 56, 41, 157),
    "aarch64": (0xC00000B7, [one for _, one in _REFUSED.values() if one], 220, 198, 167),
}
_CLONE3 = 435
_CLONE_THREAD = 0x00010000
_PR_SET_PDEATHSIG = 1
_X32_BIT = 0x40000000  # x86-64 only: the x32 calling convention, under the same AUDIT_ARCH
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: all bound to the (empty) network namespace

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT_0 = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _return_errno(number: int) -> bytes:
    return _step(_RETURN, 0x00050000 | number)


def _refuse_call(call: int, with_errno: int) -> bytes:
    return _step(_EQUAL, call, 0, 1) + _return_errno(with_errno)


def seccomp_filter(machine: str | None = None) -> bytes | None:
    """The filter for ``machine`` (default: this one) as an array of ``struct sock_filter``.

    ``None`` where the machine's system calls are not known here.

    >>> len(seccomp_filter("x86_64")) % 8
    0
    >>> seccomp_filter("pdp11") is None
    True
    """
    known = _MACHINES.get(machine or platform.machine())
    if known is None or sys.maxsize < 2**32:
        return None
    arch, refused, clone, socket, prctl = known
    steps = [_step(_LOAD, _ARCH), _step(_EQUAL, arch, 1, 0), _step(_RETURN, _KILL)]
    steps += [_step(_LOAD, _NUMBER), _step(_AT_LEAST, _X32_BIT, 0, 1), _step(_RETURN, _KILL)]
    steps += [_refuse_call(call, errno.EPERM) for call in (*refused, *_COMMON.values())]
    # ENOSYS sends the C library back to clone, whose flags a filter can read.
    steps.append(_refuse_call(_CLONE3, errno.ENOSYS))
    steps += [
        _step(_EQUAL, clone, 0, 4),
        _step(_LOAD, _ARGUMENT_0),
        _step(_ANY_BIT, _CLONE_THREAD, 1, 0),
        _return_errno(errno.EPERM),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, prctl, 0, 4),
        _step(_LOAD, _ARGUMENT_0),
        _step(_EQUAL, _PR_SET_PDEATHSIG, 0, 1),
        _return_errno(errno.EPERM),
        _step(_RETURN, _ALLOW),
        _step(_EQUAL, socket, 0, len(_FAMILIES) * 2 + 2),
        _step(_LOAD, _ARGUMENT_0),
    ]
    for family in _FAMILIES:
        steps += [_step(_EQUAL, family, 0, 1), _step(_RETURN, _ALLOW)]
    steps += [_return_errno(errno.EAFNOSUPPORT), _step(_RETURN, _ALLOW)]
    return b"".join(steps)


@dataclass(frozen=True)
class SandboxLimits:
    """What a program may use up.

    ``deadline_s`` is wall-clock seconds; ``memory_mb`` bounds the address space, ``disk_mb`` the
    working directory and each file, ``output_bytes`` each of stdout and stderr.
    """

    deadline_s: float = 10.0
    memory_mb: int = 512
    disk_mb: int = 16
    output_bytes: int = 1 << 20


_CHUNK = 1 << 16

KillFunction = Callable[["subprocess.Popen[bytes]"], None]


@dataclass(frozen=True)
class SandboxResult:
    """How a child ended: ``exit_code`` as ``Popen.returncode`` has it (negative: the signal).

    A sandboxed program's is its own, or 128 + signal number (137: killed, at the deadline, say).

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
    limits: SandboxLimits,
    *,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    kill: KillFunction = subprocess.Popen.kill,
) -> SandboxResult:
    """Run ``argv`` with an empty environment, in a session of its own, on the running loop.

    Of ``limits`` the deadline and the output's are kept here. ``kill(process)`` is how the child is
    ended early. Cancelling this coroutine kills and reaps the child. Raises ``OSError`` when
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
        watch = _RunningProgram(process, limits.output_bytes, kill)
    except OSError:  # out of descriptors: the child must not go unwatched
        with process:
            process.kill()
        raise
    with contextlib.closing(watch):
        return await watch.until(limits.deadline_s)


class _RunningProgram:
    """One running child: collects its output and notices its end."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int, kill: KillFunction) -> None:
        self._started = time.monotonic()
        self._process, self._limit, self._kill_with = process, limit, kill
        self._pidfd = os.pidfd_open(process.pid)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timed_out = self._truncated = False
        self._pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe]
        self._texts = (bytearray(), bytearray())

    async def until(self, deadline_s: float) -> SandboxResult:
        """Wait for the end, or bring it about at the deadline."""
        for which, pipe in enumerate(self._pipes):
            os.set_blocking(pipe.fileno(), False)
            self._loop.add_reader(pipe.fileno(), self._read, which)
        self._loop.add_reader(self._pidfd, self._end)
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
        return SandboxResult(exit_code, stdout, stderr, self._timed_out, self._truncated, duration)

    def close(self) -> None:
        """Kill and reap whatever still runs; let go of every descriptor."""
        for fd in (self._pidfd, *(pipe.fileno() for pipe in self._pipes)):
            self._loop.remove_reader(fd)
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
            self._loop.remove_reader(fd)
        if len(text) > self._limit:
            self._truncated = True
            self._kill()
        return bool(chunk)

    def _end(self) -> None:
        self._loop.remove_reader(self._pidfd)
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


SANDBOX_DIR = "/sandbox"
"""The program's working directory, home and only writable place."""


def bubblewrap_command(
    stack: contextlib.ExitStack, files: Mapping[str, bytes], limits: SandboxLimits, status: int
) -> tuple[list[int], list[str]]:
    """The descriptors to pass on, and bubblewrap's arguments up to the program's own.

    ``files`` appear in the working directory; bubblewrap reports on descriptor ``status``. The
    descriptors close with ``stack``.
    """
    seccomp = stack.enter_context(open_memory_file(seccomp_filter() or b""))
    fds, options = [status, seccomp], [*_fixed_options()]
    options += ["--size", str(limits.disk_mb << 20), "--tmpfs", SANDBOX_DIR]
    for name, content in files.items():
        fds.append(stack.enter_context(open_memory_file(content)))
        options += ["--file", str(fds[-1]), f"{SANDBOX_DIR}/{name}"]
    # Everything that is still writable but the working directory. /proc too: to a sandbox that
    # root started, the host's root-owned settings there would answer as to root.
    options += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
    options += ["--chdir", SANDBOX_DIR]
    options += ["--json-status-fd", str(status), "--seccomp", str(seccomp), "--"]
    return fds, options + _prlimit_command(limits)


@contextlib.contextmanager
def open_memory_file(data: bytes) -> Iterator[int]:
    """A memory file holding ``data``, at its start, closed on leaving."""
    with os.fdopen(os.memfd_create("data", os.MFD_CLOEXEC), "r+b", buffering=0) as file:
        file.write(data)
        file.seek(0)
        yield file.fileno()


@functools.cache
def interpreter_command() -> tuple[str, ...]:
    """The running interpreter outside any virtual environment, isolated, without ``site``."""
    executable = getattr(sys, "_base_executable", None) or sys.executable
    return (os.path.realpath(executable), "-I", "-S", "-B", "-X", "utf8")


def _prlimit_command(limits: SandboxLimits) -> list[str]:
    """``prlimit`` and its arguments; never above what this process itself may have."""
    import resource  # noqa: PLC0415  (does not exist on Windows, where sandboxes are refused)

    wanted = {
        "cpu": (resource.RLIMIT_CPU, int(limits.deadline_s) + 1),
        "as": (resource.RLIMIT_AS, limits.memory_mb << 20),
        "fsize": (resource.RLIMIT_FSIZE, limits.disk_mb << 20),
        "nofile": (resource.RLIMIT_NOFILE, 64),
        "nproc": (resource.RLIMIT_NPROC, 64),
        "core": (resource.RLIMIT_CORE, 0),
        "memlock": (resource.RLIMIT_MEMLOCK, 0),
    }
    argv = ["/usr/bin/prlimit"]
    for name, (limit, value) in wanted.items():
        _, hard = resource.getrlimit(limit)
        argv.append(f"--{name}={value if hard == resource.RLIM_INFINITY else min(value, hard)}")
    return [*argv, "--"]


@functools.cache
def _fixed_options() -> tuple[str, ...]:
    # As process 1 the program is bubblewrap's only child, which it reaps; with an init of its own
    # between the two it exits first and leaves that one to the host's process 1.
    options = (
        "--unshare-all --unshare-user --as-pid-1 --die-with-parent --new-session --uid 65534 "
        f"--gid 65534 --hostname sandbox --cap-drop ALL --clearenv --setenv HOME {SANDBOX_DIR} "
        f"--setenv PATH /usr/bin:/bin --setenv TMPDIR {SANDBOX_DIR} --setenv LANG C.UTF-8"
    ).split()
    for path in _visible_folders():
        options += ["--ro-bind", path, path]
    for path in ("/bin", "/lib", "/lib64"):
        if Path(path).is_symlink():
            options += ["--symlink", str(Path(path).readlink()), path]
    options += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for path in _hidden_folders():
        options += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    return (*options, "--proc", "/proc", "--dev", "/dev")


def _visible_folders() -> list[str]:
    """The host folders that a program sees: system libraries and tools, and the interpreter."""
    roots = [Path("/usr"), Path("/"), Path(sys.base_prefix)]
    wanted = [root / part for root in roots for part in ("bin", "lib", "lib64")]
    wanted += [Path(interpreter_command()[0]).parent, *map(Path, _stdlib_folders())]
    found: list[Path] = []
    for path in wanted:
        merged = path.is_symlink() and path.parent == Path("/")  # /lib -> usr/lib
        if path.is_dir() and not merged and not any(map(path.is_relative_to, found)):
            found.append(path)
    return [str(path) for path in found]


def _hidden_folders() -> list[str]:
    """Folders below the visible ones that are nobody's business: installed packages."""
    folders = {Path(path) / "site-packages" for path in _stdlib_folders()}
    return sorted(str(folder) for folder in folders if folder.is_dir())


def _stdlib_folders() -> set[str]:
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    base |= {"installed_base": sys.base_prefix, "installed_platbase": sys.base_exec_prefix}
    return {sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")}
