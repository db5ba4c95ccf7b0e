"""Processes that work beside each other: what they found, how far they are, how they end."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from adjudge.errors import RunFolderError
from adjudge_lab.studies.tasks import TaskOutcome, start_workers

pytestmark = pytest.mark.slow

# Tasks are functions of a module that fresh processes can import.
TASKS = """
import os, time
from adjudge.errors import JudgeUnavailable
from adjudge_lab.studies import tasks as workers
from adjudge_lab.studies.tasks import progress

def square(name, number):
    progress(name)("squaring", 1, 1)
    if number == 3:
        raise JudgeUnavailable("nobody there")
    return number * number

def fault(name):
    raise ZeroDivisionError("a fault")

def killed(name):
    os.kill(os.getpid(), 9)

def say(name):
    print("said by a library", flush=True)

def talk(name):
    for number in range(4000):  # more than a pipe holds
        progress(name)("talking", number, 4000)

def stuck(name):
    workers._tell._wlock.acquire()  # killed while it tells
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
    done: list[TaskOutcome] = []
    wanted = {f"n{number}": (number,) for number in range(5)}
    with start_workers(2, lambda *said: heard.append(said)) as pool:
        found = pool.run(study_tasks.square, wanted, done.append)
    assert [found[name].value for name in wanted] == [0, 1, 4, None, 16]
    assert (found["n3"].error, found["n3"].kind) == ("nobody there", "JudgeUnavailable")
    assert {outcome.name for outcome in done} == set(wanted)
    assert sorted(heard) == [(name, "squaring", 1, 1) for name in wanted]


def test_a_fault_comes_through(tasks: None) -> None:
    import study_tasks

    with pytest.raises(ZeroDivisionError), start_workers(1, lambda *_: None) as pool:
        pool.run(study_tasks.fault, {"a": ()}, lambda _: None)


def test_a_process_that_is_killed_is_a_message_with_a_remedy(tasks: None) -> None:
    import study_tasks

    with (
        pytest.raises(RunFolderError, match="was killed, .*--jobs 1"),
        start_workers(1, lambda *_: None) as pool,
    ):
        pool.run(study_tasks.killed, {"a": ()}, lambda _: None)


def test_what_they_print_is_no_part_of_the_answer(tasks: None, tmp_path: Path) -> None:
    script = """
        import study_tasks
        from adjudge_lab.studies.tasks import start_workers
        if __name__ == "__main__":
            with start_workers(1, lambda *_: None) as pool:
                pool.run(study_tasks.say, {"a": ()}, lambda _: None)
            print("{}")
    """
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    found = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    assert found.stdout == "{}\n"
    assert "said by a library" in found.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_hears_may_fail_and_holds_nobody_up(tasks: None) -> None:
    import study_tasks

    def heard(*_: object) -> None:
        raise ZeroDivisionError("a bar that broke")

    with start_workers(1, heard) as pool:
        found = pool.run(study_tasks.talk, {"a": ()}, lambda _: None)
    assert found["a"].error is None


def test_one_that_is_killed_while_it_tells_holds_nobody_up(tasks: None) -> None:
    import study_tasks

    ended: list[type[BaseException]] = []

    def caller() -> None:
        try:
            with start_workers(1, lambda *_: None) as pool:
                pool.run(study_tasks.stuck, {"a": ()}, lambda _: None)
        except ZeroDivisionError as error:
            ended.append(type(error))

    thread = threading.Thread(target=caller, daemon=True)
    thread.start()
    thread.join(30)
    assert ended == [ZeroDivisionError]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nobody_is_left_behind(tasks: None, tmp_path: Path, how: signal.Signals) -> None:
    script = f"""
        from pathlib import Path
        import study_tasks
        from adjudge_lab.studies.tasks import start_workers
        if __name__ == "__main__":
            with start_workers(2, lambda *_: None) as pool:
                folder = Path({str(tmp_path)!r})
                pool.run(study_tasks.wait, {{"a": (folder,), "b": (folder,)}}, lambda _: None)
    """
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    process = subprocess.Popen([sys.executable, file], stderr=subprocess.DEVNULL)
    places = [tmp_path / "a.pid", tmp_path / "b.pid"]
    until(lambda: all(place.exists() and place.read_text() for place in places))
    process.send_signal(how)
    process.wait(timeout=120)
    pids = [int(place.read_text()) for place in places]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def until(there) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 120
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)
