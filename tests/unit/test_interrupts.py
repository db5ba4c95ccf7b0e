"""Stopping a command: SIGTERM as Ctrl-C, a second signal, and the command that goes on."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from adjudge.cli import console
from adjudge.cli.console import (
    Terminated,
    command_line_words,
    resume_command,
    say_how_to_resume,
    stop_signals,
)
from adjudge.cli.main import app


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """A test that is started in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_somebody_elses_handler_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with stop_signals():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_the_same_stop_may_come_twice_at_once() -> None:
    """A launcher passes on the Ctrl-C that the terminal sent to all: that is no second one."""
    with stop_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (["grade", "r", "-srobot.toml"], ["grade", "r", "-srobot.toml", "-o", "a/b"]),
        (["grade", "-o", "a/b", "r"], ["grade", "-o", "a/b", "r"]),
        (["grade", "-o", "./a/b/", "r"], ["grade", "-o", "./a/b/", "r"]),
        (["grade", "--output=a/b", "r"], ["grade", "--output=a/b", "r"]),
        (["grade", "-qoa/b", "r"], ["grade", "-qoa/b", "r"]),
        (["study", "--", "-odd"], ["study", "-o", "a/b", "--", "-odd"]),
        (["grade", "it's one.jsonl"], ["grade", "it's one.jsonl", "-o", "a/b"]),
    ],
)
def test_the_command_that_goes_on(words: Sequence[str], whole: Sequence[str]) -> None:
    with command_line_words(words):
        command = resume_command(Path("a/b"))
    assert command is not None
    assert shlex.split(command) == ["adjudge", *whole]
    assert resume_command("a/b") is None


def test_how_the_program_was_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "adjudge").write_text("")
    (tmp_path / "adjudge").chmod(0o755)

    def command(program: str) -> str:
        monkeypatch.setattr(sys, "argv", [program, "grade"])
        with command_line_words(["grade"]):
            return resume_command("out") or ""

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/venv/python")
    assert command(f"{tmp_path}/adjudge") == "adjudge grade -o out"
    assert command("/other/bin/adjudge") == "/other/bin/adjudge grade -o out"
    assert command("/site/adjudge/__main__.py") == "/venv/python -m adjudge grade -o out"


def test_a_stopped_command_prints_the_whole_command(monkeypatch: pytest.MonkeyPatch) -> None:
    raises: list[BaseException] = [KeyboardInterrupt(), Terminated()]

    def work() -> None:
        with say_how_to_resume("runs/x"):
            raise raises.pop(0)

    monkeypatch.setattr("adjudge.cli.graders.graders", work)
    for code, said in ((130, "interrupted"), (143, "stopped by SIGTERM")):
        found = CliRunner().invoke(app, ["graders"])
        assert found.exit_code == code
        assert "To resume, run:\n  adjudge graders -o runs/x\n" in found.stderr
        assert said in found.stderr


def test_who_calls_a_command_without_the_program_is_told_in_words() -> None:
    program = typer.Typer()

    @program.command()
    def work() -> None:
        with say_how_to_resume("runs/x"):
            raise KeyboardInterrupt

    assert "run the same command with -o runs/x" in CliRunner().invoke(program, []).stderr


@pytest.mark.slow
def test_a_process_that_is_told_twice_ends_at_once() -> None:
    program = (
        "import sys, time\nfrom adjudge.cli.console import stop_signals\n"
        "with stop_signals():\n"
        "    try:\n        print('on', flush=True)\n        time.sleep(60)\n"
        "    finally:\n        print('stopping', flush=True)\n        time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(console.SAME_STOP_S + 0.1)
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM
