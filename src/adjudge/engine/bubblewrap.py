"""The command line that puts a program into bubblewrap: what it sees, what it may use up.

Needs bubblewrap with ``--size`` (tested with 0.8.0) and ``prlimit`` from util-linux.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from adjudge.engine.program import data_fd
from adjudge.engine.seccomp import seccomp_filter

__all__ = ["SANDBOX_DIR", "Limits", "confined", "descriptor", "interpreter"]

SANDBOX_DIR = "/sandbox"
"""The program's working directory, home and only writable place."""


@dataclass(frozen=True)
class Limits:
    """What a program may use up: CPU seconds, address space and disk in MB."""

    cpu_s: int
    memory_mb: int
    disk_mb: int


def confined(
    stack: contextlib.ExitStack, files: Mapping[str, bytes], limits: Limits, status: int
) -> tuple[list[int], list[str]]:
    """The descriptors to pass on, and bubblewrap's arguments up to the program's own.

    ``files`` appear in the working directory; bubblewrap reports on descriptor ``status``. The
    descriptors close with ``stack``.
    """
    seccomp = stack.enter_context(descriptor(seccomp_filter() or b""))
    fds, options = [status, seccomp], [*_fixed()]
    options += ["--size", str(limits.disk_mb << 20), "--tmpfs", SANDBOX_DIR]
    for name, content in files.items():
        fds.append(stack.enter_context(descriptor(content)))
        options += ["--file", str(fds[-1]), f"{SANDBOX_DIR}/{name}"]
    # Everything that is still writable but the working directory. /proc too: to a sandbox that
    # root started, the host's root-owned settings there would answer as to root.
    options += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"]
    options += ["--chdir", SANDBOX_DIR]
    options += ["--json-status-fd", str(status), "--seccomp", str(seccomp), "--"]
    return fds, options + _limited(limits)


@contextlib.contextmanager
def descriptor(data: bytes) -> Iterator[int]:
    """A memory file holding ``data``, closed on leaving."""
    fd = data_fd(data)
    try:
        yield fd
    finally:
        os.close(fd)


@functools.cache
def interpreter() -> tuple[str, ...]:
    """The running interpreter outside any virtual environment, isolated, without ``site``."""
    executable = getattr(sys, "_base_executable", None) or sys.executable
    return (os.path.realpath(executable), "-I", "-S", "-B", "-X", "utf8")


def _limited(limits: Limits) -> list[str]:
    """``prlimit`` and its arguments; never above what this process itself may have."""
    import resource  # noqa: PLC0415  (does not exist on Windows, where sandboxes are refused)

    wanted = {
        "cpu": (resource.RLIMIT_CPU, limits.cpu_s),
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
def _fixed() -> tuple[str, ...]:
    # As process 1 the program is bubblewrap's only child, which it reaps; with an init of its own
    # between the two it exits first and leaves that one to the host's process 1.
    options = ["--unshare-all", "--unshare-user", "--as-pid-1"]
    options += ["--die-with-parent", "--new-session"]
    options += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--cap-drop", "ALL"]
    options += ["--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", SANDBOX_DIR]
    options += ["--setenv", "TMPDIR", SANDBOX_DIR, "--setenv", "LANG", "C.UTF-8"]
    for path in _visible():
        options += ["--ro-bind", path, path]
    for path in ("/bin", "/lib", "/lib64"):
        if Path(path).is_symlink():
            options += ["--symlink", str(Path(path).readlink()), path]
    options += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for path in _hidden():
        options += ["--size", "4096", "--tmpfs", path, "--remount-ro", path]
    return (*options, "--proc", "/proc", "--dev", "/dev")


def _visible() -> list[str]:
    """The host folders that a program sees: system libraries and tools, and the interpreter."""
    roots = [Path("/usr"), Path("/"), Path(sys.base_prefix)]
    wanted = [root / part for root in roots for part in ("bin", "lib", "lib64")]
    wanted += [Path(interpreter()[0]).parent, *map(Path, _stdlib())]
    found: list[Path] = []
    for path in wanted:
        merged = path.is_symlink() and path.parent == Path("/")  # /lib -> usr/lib
        if path.is_dir() and not merged and not any(map(path.is_relative_to, found)):
            found.append(path)
    return [str(path) for path in found]


def _hidden() -> list[str]:
    """Folders below the visible ones that are nobody's business: installed packages."""
    folders = {Path(path) / "site-packages" for path in _stdlib()}
    return sorted(str(folder) for folder in folders if folder.is_dir())


def _stdlib() -> set[str]:
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    base |= {"installed_base": sys.base_prefix, "installed_platbase": sys.base_exec_prefix}
    return {sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")}
