"""Processes that work beside each other: what they found, how far they are, how they end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from adjudge.studies.matrix.workers import Outcome, workers

pytestmark = pytest.mark.slow

# Tasks are functions of a module that fresh processes can import.
TASKS = """
import os, time
from adjudge.errors import JudgeUnavailable
from adjudge.studies.matrix.workers import progress

def square(name, number):
    progress(name)("squaring", 1, 1)
    if number == 3:
        raise JudgeUnavailable("nobody there")
    return number * number

def fault(name):
    raise ZeroDivisionError("a fault")

def wait(name, folder):
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    time.sleep(60)
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "study_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")


def test_outcomes_come_in_order_and_errors_are_words(tasks: None) -> None:
    import study_tasks  # type: ignore[import-not-found]

    heard: list[tuple[str, str, int, int]] = []
    done: list[Outcome] = []
    wanted = {f"n{number}": (number,) for number in range(5)}
    with workers(2, lambda *said: heard.append(said)) as pool:
        found = pool.run(study_tasks.square, wanted, done.append)
    assert [found[name].value for name in wanted] == [0, 1, 4, None, 16]
    assert (found["n3"].error, found["n3"].kind) == ("nobody there", "JudgeUnavailable")
    assert {outcome.name for outcome in done} == set(wanted)
    assert sorted(heard) == [(name, "squaring", 1, 1) for name in wanted]


def test_a_fault_comes_through(tasks: None) -> None:
    import study_tasks

    with pytest.raises(ZeroDivisionError), workers(1, lambda *_: None) as pool:
        pool.run(study_tasks.fault, {"a": ()}, lambda _: None)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nobody_is_left_behind(tasks: None, tmp_path: Path, how: signal.Signals) -> None:
    script = f"""
        from pathlib import Path
        import study_tasks
        from adjudge.studies.matrix.workers import workers
        if __name__ == "__main__":
            with workers(2, lambda *_: None) as pool:
                folder = Path({str(tmp_path)!r})
                pool.run(study_tasks.wait, {{"a": (folder,), "b": (folder,)}}, lambda _: None)
    """
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    process = subprocess.Popen([sys.executable, file], stderr=subprocess.DEVNULL)
    places = [tmp_path / "a.pid", tmp_path / "b.pid"]
    until(lambda: all(place.exists() and place.read_text() for place in places))
    process.send_signal(how)
    process.wait(timeout=20)
    pids = [int(place.read_text()) for place in places]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def until(there) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 30
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)
