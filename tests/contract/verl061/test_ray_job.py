"""``ray job submit`` with a runtime environment, as the documentation has it, on a real head."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

HERE = Path(__file__).parent
RAY = str(Path(sys.executable).with_name("ray"))
TOKEN = secrets.token_hex(32)
HEAD_S, JOB_S = 120.0, 300.0


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """What head and client share: the sources, and a token, since a head runs what it is sent."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    root = HERE.parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root / "lab" / "src"), str(HERE)])
    programs = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    return {**kept, **auth, "PATH": programs, "PYTHONPATH": paths}


@pytest.fixture(scope="module")
def head(environment: dict[str, str]) -> Iterator[str]:
    """The address of the job server of a head with nothing but its own ports and folder."""
    pytest.importorskip("ray.dashboard.optional_deps", reason="ray[default] is not installed here")
    folder = tempfile.mkdtemp(prefix="ray")  # a short path: Ray puts Unix sockets below it
    dashboard, agent, clients = free_ports(3)
    command = [
        RAY, "start", "--head", "--block", "--disable-usage-stats", f"--temp-dir={folder}",
        "--node-ip-address=127.0.0.1", "--port=0", "--min-worker-port=0", "--max-worker-port=0",
        "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={clients}",
        "--num-cpus=1", f"--object-store-memory={2**27}",
    ]  # fmt: skip
    log = Path(folder) / "head.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{dashboard}"
        until_up(url, process, log)
        yield url
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the job server; fail with what the head said."""
    request = Request(f"{url}/api/version", headers={"Authorization": f"Bearer {TOKEN}"})
    why = "no answer"
    end = time.monotonic() + HEAD_S
    while process.poll() is None and time.monotonic() < end:
        try:
            with urlopen(request, timeout=5):
                return
        except HTTPError as error:
            why = f"{error.code} {error.read()[:200]!r}"
        except URLError as error:
            why = str(error.reason)
        time.sleep(0.2)
    pytest.fail(f"the head's job server: {why}\n{log.read_text()[-2000:]}")


def test_a_judges_training_is_a_job_with_the_variables_that_change_it(
    head: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """The trainer itself needs TRL, which needs newer libraries than verl 0.6.1: it says so."""
    (tmp_path / "judge.toml").write_text(
        'kind = "judge"\nmethod = "bradley_terry"\n[data.synthetic]\nn = 40\n'
        "[data]\ntrain_batch_size = 8\n"
    )
    command = [sys.executable, "-m", "adjudge_lab", "train", "judge.toml", "--ray", head, "--poll"]
    variables = {"MODEL_PATH": "tiny", "LR": "0.125", "NO_COLOR": "1"}
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out"), "--seed", "3"],
        env={**environment, **variables}, cwd=tmp_path, capture_output=True, text=True,
        timeout=JOB_S, check=False,
    )  # fmt: skip
    said = " ".join((done.stdout + done.stderr).split())
    assert "to follow it: ray job logs" in said
    assert "model.path is tiny, set by the environment variable MODEL_PATH" in said
    assert "optim.lr is 0.125, set by the environment variable LR" in said
    assert "grpo.ray_address" not in said
    if find_spec("trl") is None:
        assert "trl is not installed" in said
        assert done.returncode == 2, said
    else:
        assert done.returncode == 0, said
        assert (tmp_path / "out" / "judge.json").is_file()
