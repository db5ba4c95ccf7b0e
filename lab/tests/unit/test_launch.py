"""Another program run line by line, and `ray job submit` as it is asked for; see also the contract
test in `tests/contract/raycluster`, which has the real Ray."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError
from adjudge_lab.rl import launch
from adjudge_lab.rl.launch import run_module, submit_job

Ran = Callable[..., tuple[int, list[str]]]

pytestmark = pytest.mark.slow  # processes, signals and pipes

KEY = "sk-0123456789"


@pytest.fixture
def ran(tmp_path: Path) -> Ran:
    def run(program: str, *arguments: str, **env: str) -> tuple[int, list[str]]:
        (tmp_path / "the_program.py").write_text(program)
        lines: list[str] = []
        code = run_module(
            ["the_program", *arguments],
            env={"PYTHONPATH": str(tmp_path), **env},
            on_line=lines.append,
        )
        return code, lines

    return run


def test_a_program_s_lines_and_code(ran: Ran) -> None:
    program = (
        "import os, sys\n"
        "print(sys.argv[1:], os.environ['GIVEN'])\n"
        "print('wrong', file=sys.stderr)\n"
        "sys.stdout.write('10%\\r20%\\r\\nü\\n')\n"
        "sys.stdout.flush()\n"
        "os.write(1, b'\\xff end')\n"
        "sys.exit(7)\n"
    )
    code, lines = ran(program, "a=$(b)", "c d", GIVEN="here")
    assert code == 7
    assert lines == ["['a=$(b)', 'c d'] here", "wrong", "10%", "20%", "ü", "\ufffd end"]


def test_a_program_that_a_signal_ended(ran: Ran) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert ran("import os; os.kill(os.getpid(), 9)") == (137, [])
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_pipe_that_is_held_by_what_was_left_behind(ran: Ran) -> None:
    program = (
        "import subprocess, sys\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(left.pid)\n"
    )
    code, (pid,) = ran(program)
    os.kill(int(pid), signal.SIGKILL)
    assert code == 0


FAMILY = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
{ignoring}
print(child.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Whether a process ends, or waits for nothing but to be collected."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    "ignoring", ["", "for n in (2, 15): signal.signal(n, signal.SIG_IGN)"], ids=["soft", "deaf"]
)
def test_what_interrupts_us_stops_the_whole_group(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignoring: str
) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.3)
    (tmp_path / "family.py").write_text(FAMILY.format(ignoring=ignoring))
    pids: list[int] = []

    def interrupted(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_module(["family"], env={"PYTHONPATH": str(tmp_path)}, on_line=interrupted)
    assert gone(pids[0])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_us(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "family.py").write_text(FAMILY.format(ignoring=""))
    program = (
        "import signal, sys\n"
        "from adjudge_lab.rl.launch import run_module\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    run_module(['family'], env={}, on_line=lambda line: print(line, flush=True))\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(launch.__file__).parents[2])])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as ours:
        assert ours.stdout is not None
        pid = int(ours.stdout.readline())
        ours.send_signal(number)
        assert ours.wait(60) == code
    assert gone(pid)


RAY = """#!{python}
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
verb, call = sys.argv[2], {{"argv": sys.argv[1:]}}
for argument in sys.argv:
    if argument.startswith("--runtime-env="):
        file = pathlib.Path(argument.partition("=")[2])
        call |= {{"file": str(file), "mode": file.stat().st_mode}}
        call |= {{"folder": file.parent.stat().st_mode}}
        call |= {{"content": json.loads(file.read_text())}}
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(call) + "\\n")
says = sorted(here.glob(f"{{verb}}.*"))
print(says[0].read_text(), end="")
code = int(says[0].suffix[1:])
if len(says) > 1:
    says[0].unlink()
sys.exit(code)
"""


class Ray:
    """A program `ray` that says what files `VERB.CODE` or `VERB.N.CODE` beside it have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "ray"
        program.write_text(RAY.format(python=sys.executable))
        program.chmod(0o755)

    def says(self, file: str, text: str) -> None:
        (self.folder / file).write_text(text)

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray(tmp_path / "bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(launch, "_POLL_S", 0.0)
    made.says("submit.0", "Job submitted\n")
    return made


def submitted(
    folder: Path, *, poll: bool, address: str = "http://head:8265"
) -> tuple[int, list[str]]:
    lines: list[str] = []
    (folder / "it").mkdir(exist_ok=True)
    code = submit_job(
        folder / "it" / "run.toml",
        address=address,
        arguments=["-o", "/shared/$(out)"],
        env={"JUDGE_KEY": KEY, "LEVEL": "1"},
        poll=poll,
        on_line=lines.append,
    )
    return code, lines


def test_a_submission(ray: Ray, tmp_path: Path) -> None:
    """Keys go by a file of our own that is gone afterwards, and are on no command line."""
    code, lines = submitted(tmp_path, poll=False)
    (call,) = ray.calls
    options, _, entry = " ".join(call["argv"]).partition(" -- ")
    assert code == 0
    assert entry == "python -m adjudge_lab train run.toml -o /shared/$(out)"
    assert "--address=http://head:8265" in call["argv"]
    assert "--no-wait" in call["argv"]
    assert KEY not in options
    assert stat.S_IMODE(call["mode"]) == 0o600
    assert stat.S_IMODE(call["folder"]) == 0o700
    assert not Path(call["file"]).parent.exists()
    assert call["content"]["env_vars"] == {"JUDGE_KEY": KEY, "LEVEL": "1"}
    assert call["content"]["working_dir"] == str(tmp_path / "it")
    assert {".env", "runs/"} <= set(call["content"]["excludes"])
    job = next(one for one in call["argv"] if one.startswith("--submission-id=")).split("=")[1]
    (line,) = lines
    assert f"ray job logs --follow --address=http://head:8265 {job};" in line


def test_a_refused_submission(ray: Ray, tmp_path: Path) -> None:
    (ray.folder / "submit.0").unlink()
    ray.says("submit.1", f"Traceback:\n  much\nConnectionError: no way with {KEY}\n\n")
    with pytest.raises(ConfigError) as failure:
        submitted(tmp_path, poll=False, address="https://me:pw@head:8265")
    assert str(failure.value) == (
        "https://head:8265: the job was not submitted: ConnectionError: no way with [JUDGE_KEY]"
    )
    assert not Path(ray.calls[0]["file"]).exists()


FAILED = "Status message: Job entrypoint command failed with exit code {}, last available logs (…):"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("Job 'x' succeeded\n", 0),
        (f"Job 'x' failed\n{FAILED.format(3)}\n{FAILED.format(4)}\n", 3),
        ("Job 'x' failed\nStatus message: the head is gone\n", 1),
        ("Job 'x' was stopped\n", 1),
    ],
)
def test_following_a_job_to_its_end(ray: Ray, tmp_path: Path, status: str, code: int) -> None:
    ray.says("logs.0", f"[ITER 1] {KEY}\nJob 'x' failed\n  {FAILED.format(3)}\n[ITER 1] again\n")
    ray.says("status.0.0", "Status for job 'x': RUNNING\n")
    ray.says("status.1.1", "ConnectionError\n")
    ray.says("status.2.0", status)
    found, lines = submitted(tmp_path, poll=True)
    assert found == code
    assert lines[1:] == [
        "[ITER 1] [JUDGE_KEY]",
        "Job 'x' failed",
        "  Status message: Job entrypoint command failed with exit code 3",
    ]
    assert [call["argv"][1] for call in ray.calls] == ["submit", "logs", *["status"] * 3]


def test_an_interrupted_following_leaves_the_job(ray: Ray, tmp_path: Path) -> None:
    ray.says("logs.0", "[ITER 1]\n")
    lines: list[str] = []

    def told(line: str) -> None:
        lines.append(line)
        if line == "[ITER 1]":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        submit_job(
            tmp_path / "run.toml",
            address="http://head:8265",
            arguments=[],
            env={},
            poll=True,
            on_line=told,
        )
    assert lines[-1].endswith("is still running")
    assert [call["argv"][1] for call in ray.calls] == ["submit", "logs"]


@pytest.mark.parametrize("address", ["", "head:8265", "ray://head:10001", "--help", "auto"])
def test_an_address_that_is_none(ray: Ray, tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="address of the Ray dashboard must begin"):
        submitted(tmp_path, poll=False, address=address)


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"is not installed. Run: .*\[ray\]"):
        submitted(tmp_path, poll=False)
