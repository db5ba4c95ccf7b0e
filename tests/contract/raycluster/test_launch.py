"""A run as a job of a real Ray cluster: run by `make test-ray-cluster`."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from adjudge.errors import ConfigError
from adjudge_lab.rl.launch import submit_job

KEY = "sk-" + secrets.token_hex(8)

# Stands for adjudge on the cluster: a job's folder comes first on its path.
ADJUDGE = """
import hashlib, os, sys
print("arguments", sys.argv[1:])
print("files", sorted(os.listdir()))
print("key", hashlib.sha256(os.environ["JUDGE_KEY"].encode()).hexdigest(), os.environ["JUDGE_KEY"])
print("[ITER 1] mean_return=0.5", flush=True)
sys.exit(3)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def started_with(folder: Path, dashboard: int) -> list[str]:
    small = ("--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats")
    ports = (
        f"--port={free_port()}",
        f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={free_port()}",
        "--dashboard-agent-listen-port=0",
        "--min-worker-port=0",
        "--max-worker-port=0",
    )
    return ["start", "--head", "--block", f"--temp-dir={folder}", *small, *ports]


def processes_of(folder: Path) -> list[int]:
    """Those that have the session's folder on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def end_what_is_left(folder: Path) -> None:
    """Let the head's processes end, and end those that do not."""
    for _ in range(100):
        if not processes_of(folder):
            return
        time.sleep(0.2)
    for pid in processes_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for(address: str, head: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{address}/api/version")
        except urllib.error.HTTPError:
            return  # it is there, and asks who we are
        except OSError:
            assert head.poll() is None, log.read_text()
            time.sleep(0.5)
        else:
            return
    pytest.fail(f"no dashboard at {address}:\n{log.read_text()}")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A head of its own with a dashboard, which wants a token, in a folder that goes away."""
    ray = Path(sys.executable).with_name("ray")
    assert ray.exists(), f"there is no {ray}"
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # short: sockets are in it
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PATH", f"{ray.parent}{os.pathsep}{os.environ['PATH']}")
        patch.delenv("RAY_ADDRESS", raising=False)
        with (folder / "log").open("wb") as log:
            head = subprocess.Popen(
                [ray, *started_with(folder, port)],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        try:
            wait_for(f"http://127.0.0.1:{port}", head, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            head.terminate()
            try:
                head.wait(45)
            except subprocess.TimeoutExpired:
                head.kill()
            end_what_is_left(folder)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    for name, text in {
        "run.toml": "",
        "rubric.json": "{}",
        ".env": f"JUDGE_KEY={KEY}",
        "prod.env": f"JUDGE_KEY={KEY}",
        "runs/first/metrics.jsonl": "{}",
        ".gitignore": "big/\n",
        "big/data.bin": "0",
        "adjudge_lab/__init__.py": "",  # a whole package: it comes before the real one
        "adjudge_lab/__main__.py": ADJUDGE,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "run.toml"


def test_a_job_is_followed_to_its_exit_code(address: str, run_file: Path) -> None:
    lines: list[str] = []
    code = submit_job(
        run_file,
        address=address,
        arguments=["-o", "/shared/a b", "$(touch pwned)"],
        env={"JUDGE_KEY": KEY},
        poll=True,
        on_line=lines.append,
    )
    assert code == 3, lines
    assert "arguments ['train', 'run.toml', '-o', '/shared/a b', '$(touch pwned)']" in lines
    files = next(line for line in lines if line.startswith("files "))
    assert "'rubric.json'" in files
    for kept in ("'.env'", "prod.env", "'runs'", "'big'", "pwned"):
        assert kept not in files
    assert any(line.startswith("key ") and line.endswith(" [JUDGE_KEY]") for line in lines)
    assert KEY not in "\n".join(lines)
    assert lines.count("[ITER 1] mean_return=0.5") == 1
    assert lines[-1].strip().endswith("failed with exit code 3")


def test_a_submitted_job_goes_on_by_itself(address: str, run_file: Path) -> None:
    lines: list[str] = []
    done = run_file.parent / "done"
    program = f"import pathlib; pathlib.Path({str(done)!r}).write_text('yes')"
    (run_file.parent / "adjudge_lab" / "__main__.py").write_text(program)
    assert (
        submit_job(
            run_file, address=address, arguments=[], env={}, poll=False, on_line=lines.append
        )
        == 0
    )
    (line,) = lines
    follow = line.partition("to follow it: ")[2].partition(";")[0].split()
    assert follow[:3] == ["ray", "job", "logs"]
    subprocess.run(follow, check=True, capture_output=True, timeout=240)
    assert done.read_text() == "yes"


def test_adjudge_itself_refuses_a_file(address: str, run_file: Path) -> None:
    """The exit code of a run file that is wrong, and its message, come from the cluster."""
    shutil.rmtree(run_file.parent / "adjudge_lab")
    run_file.write_text("[training\n")
    lines: list[str] = []
    code = submit_job(
        run_file,
        address=address,
        arguments=[],
        env={"PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in ("src", "lab/src"))},
        poll=True,
        on_line=lines.append,
    )
    assert code == 2, lines
    assert any("run.toml: is not valid TOML" in line for line in lines)


def test_a_cluster_that_is_not_there(run_file: Path) -> None:
    with pytest.raises(ConfigError, match="the job was not submitted: .*Failed to connect"):
        submit_job(
            run_file,
            address=f"http://127.0.0.1:{free_port()}",
            arguments=[],
            env={},
            poll=True,
            on_line=print,
        )
