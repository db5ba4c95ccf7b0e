"""What a sandboxed program cannot do: each way out is tried for real."""

import errno
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers.sandboxed import printed, run

from adjudge.graders.code.sandbox import Sandbox

ATTEMPT = """
def attempt(what):
    try:
        return f"did it: {what()}"
    except (OSError, MemoryError) as error:
        return f"refused: {type(error).__name__}"
"""


def attempted(sandbox: Sandbox, expression: str, **settings: Any) -> str:
    source = f"import ctypes, os, signal, socket, subprocess, sys\n{ATTEMPT}"
    return printed(sandbox, f"{source}\nprint(attempt(lambda: {expression}))", **settings).strip()


# Bounds


def test_sleeping_for_ever_ends_at_the_deadline(sandbox: Sandbox) -> None:
    result = run(sandbox, "print(1, flush=True)\nimport time; time.sleep(600)", deadline_s=1.0)
    assert result.timed_out
    assert result.exit_code == 137
    assert result.stdout == b"1\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_is_cut_and_ended(sandbox: Sandbox, stream: str) -> None:
    program = f"import sys\nwhile True: sys.{stream}.write('x' * 100000)"
    result = run(sandbox, program, output_bytes=300_000, deadline_s=60)
    assert result.truncated
    assert not result.timed_out
    assert getattr(result, stream) == b"x" * 300_000


def test_memory_bomb_is_a_memory_error(sandbox: Sandbox) -> None:
    assert attempted(sandbox, "len(bytearray(10 ** 9))", memory_mb=256) == "refused: MemoryError"


@pytest.mark.parametrize(
    "expression",
    [
        "os.memfd_create('x')",
        "ctypes.CDLL(None, use_errno=True).shmget(0, 4096, 0o1600) < 0 and os.memfd_create('x')",
        "open('/dev/shm/x', 'wb').write(b'x')",
        "open('/usr/lib/x', 'wb').write(b'x')",
        # Opened only: should the walls fail, the host's settings must stay what they are.
        "os.open('/proc/self/oom_score_adj', os.O_WRONLY)",
        "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)",
    ],
)
def test_there_is_no_memory_or_disk_beside_the_bounded_one(
    sandbox: Sandbox, expression: str
) -> None:
    assert attempted(sandbox, expression).startswith("refused")


def test_huge_file_is_stopped(sandbox: Sandbox) -> None:
    program = """
import os
written = 0
with open("huge", "wb", buffering=0) as file:
    try:
        while written < 100 << 20: written += file.write(bytes(1 << 20))
    except OSError as error: print(error.errno)
print(written <= 4 << 20)
"""
    result = run(sandbox, program, disk_mb=4)
    # Python ignores SIGXFSZ, so the limit is an error; a full disk is another.
    assert result.stdout in (b"%d\nTrue\n" % errno.EFBIG, b"%d\nTrue\n" % errno.ENOSPC)


@pytest.mark.parametrize(
    "expression",
    [
        "os.fork()",
        "subprocess.run(['/bin/true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.forkpty()",
    ],
)
def test_no_process_can_be_started(sandbox: Sandbox, expression: str) -> None:
    assert attempted(sandbox, expression) == "refused: PermissionError"


def test_thread_bomb_ends(sandbox: Sandbox) -> None:
    program = """
import threading, time
try:
    while True: threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
except (RuntimeError, MemoryError): print("enough")
"""
    assert printed(sandbox, program, memory_mb=256, deadline_s=60) == "enough\n"


# Escapes


def test_only_the_interpreter_is_visible(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    paths = [
        *("/etc/passwd", "/etc/shadow", "/home", "/var", "/sys", "/tmp"),
        str(tmp_path / "secret"),
        __file__,
        str(Path.home() / ".bashrc"),
        str(Path(__file__).parents[2]),
    ]
    program = f"import os; print([os.path.lexists(path) for path in {paths!r}])"
    assert printed(sandbox, program) == f"{[False] * 10}\n"
    listed = printed(sandbox, "import os; print(sorted(os.listdir('/etc')))")
    assert listed in ("[]\n", "['ld.so.cache']\n")


def test_installed_packages_are_not_importable_and_not_visible(sandbox: Sandbox) -> None:
    program = """
import glob, sys
try: import msgspec
except ImportError: print("no msgspec")
print([glob.glob(path + "/site-packages/*") for path in sys.path if not path.endswith("zip")])
"""
    said = printed(sandbox, program)
    assert said.startswith("no msgspec\n")
    assert "/" not in said


def test_roots_of_other_processes_lead_nowhere(sandbox: Sandbox) -> None:
    program = """
import os
print(sorted(name for name in os.listdir("/proc") if name.isdigit()) == ["1"] == [str(os.getpid())])
for path in ("/proc/1/root/etc", "/proc/1/cwd/etc"):
    try: print([n for n in os.listdir(path) if n != "ld.so.cache"])
    except OSError: print([])
"""
    assert printed(sandbox, program) == "True\n[]\n[]\n"


def test_network_of_the_host_is_out_of_reach(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        said = attempted(sandbox, f"socket.create_connection({address!r}, timeout=3)")
        server.settimeout(0.2)
        assert said.startswith("refused")
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_NETLINK", "AF_PACKET", "AF_ALG"])
def test_socket_families_beside_the_internet_are_refused(sandbox: Sandbox, family: str) -> None:
    expression = f"socket.socket(socket.{family}, socket.SOCK_RAW)"
    assert attempted(sandbox, expression).startswith("refused")


def test_environment_of_the_caller_is_not_visible(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = uuid.uuid4().hex
    monkeypatch.setenv("JUDGE_API_KEY", secret)
    program = """
import glob, os
print(dict(os.environ))
for path in glob.glob("/proc/*/environ"):
    try: print(path, open(path).read())
    except OSError as error: print(path, "refused")
"""
    said = printed(sandbox, program)
    assert secret not in said
    assert "JUDGE_API_KEY" not in said


def test_no_descriptor_is_inherited(sandbox: Sandbox) -> None:
    program = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    with Path(__file__).open():
        assert printed(sandbox, program, stdin=b"x") == "[0, 1, 2]\n"


@pytest.mark.parametrize(
    "call",
    [
        "unshare(0x10000000)",
        "mount(0, b'/sandbox', b'tmpfs', 0, 0)",
        "ptrace(16, 1, 0, 0)",
        "prctl(1, 0)",
    ],
)
def test_namespaces_mounts_and_tracing_are_refused(sandbox: Sandbox, call: str) -> None:
    program = (
        f"import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.{call}, ctypes.get_errno())"
    )
    assert printed(sandbox, program) == f"-1 {errno.EPERM}\n"


def test_program_has_no_capabilities_no_terminal_and_is_not_root(sandbox: Sandbox) -> None:
    program = """
import os
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")])
print(os.getuid(), os.uname().nodename)
try: os.open("/dev/tty", os.O_RDWR)
except OSError: print("no terminal")
"""
    assert printed(sandbox, program) == f"{['0' * 16] * 5}\n65534 sandbox\nno terminal\n"


def test_program_cannot_lift_its_limits(sandbox: Sandbox) -> None:
    program = """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
print(soft == hard == 200 << 20)
try: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
except ValueError as error: print("refused")
"""
    assert printed(sandbox, program, memory_mb=200) == "True\nrefused\n"
