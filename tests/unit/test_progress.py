"""Progress of long work: lines where there is no terminal, one reporter at a time."""

import io
import re
import sys
import time
from collections.abc import Callable

import pytest

from adjudge.cli.console import StageProgress
from adjudge.errors import ErrorKind
from adjudge.runner import progress
from adjudge.runner.progress import Progress, ProgressReading, Tally, describe_progress

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.05)
    monkeypatch.setattr(progress, "LONGEST_GAP_S", 0.05)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    def read() -> list[str]:
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err.splitlines()

    return read


@pytest.mark.usefixtures("soon")
def test_without_a_terminal_there_is_a_line_now_and_then(lines: Callable[[], list[str]]) -> None:
    tally = Tally(40)
    with Progress(tally, show=True):
        tally.done, tally.cost_usd, tally.note = 10, 0.5, "waiting for judges, 4 s of 600 s"
        tally.failures[ErrorKind.TIMEOUT] += 2
        time.sleep(0.12)
        tally.done, tally.note = 40, ""
    first, *_, last = lines()
    assert re.fullmatch(
        STAMP + r"grading 10/40 \(25%\), [\d.]+/s, \d+ s left; missing: timeout 2; 0\.5000 USD; "
        r"waiting for judges, 4 s of 600 s",
        first,
    )
    assert re.fullmatch(STAMP + r"grading 40/40 \(100%\), .*ended after 0 s; missing: .*", last)


def test_short_work_and_quiet_work_write_nothing(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Progress(Tally(4), show=True):
        pass
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.01)
    with Progress(Tally(4), show=False), StageProgress(show=False) as shown:
        shown.update("training", 1, 2)
        time.sleep(0.05)
    assert lines() == []


@pytest.mark.usefixtures("soon")
def test_stages_have_lines_and_what_runs_inside_them_has_none(
    lines: Callable[[], list[str]],
) -> None:
    with StageProgress(show=True) as shown, Progress(Tally(4), show=True):
        shown.update("training", 1, 20)
        time.sleep(0.08)
        shown.update("evaluating", 3, 4)
    found = lines()
    assert re.match(STAMP + r"training 1/20 \(5%\), ", found[0])
    assert re.match(STAMP + r"evaluating 3/4 \(75%\), .*ended", found[-1])
    with Progress(Tally(4), show=True):  # the next one may report again
        time.sleep(0.08)
    assert all("grading 0/4" in line for line in lines())


@pytest.mark.usefixtures("soon")
def test_what_was_resumed_is_no_speed(lines: Callable[[], list[str]]) -> None:
    tally = Tally(1000)
    with Progress(tally, show=True):
        tally.done = tally.resumed = 500
        time.sleep(0.08)
    assert "grading 500/1,000 (50%), 0.0/s; 500 resumed" in lines()[0]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_servers_say_brings_no_escapes_to_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    tally = Tally(2)
    tally.note = "down: \x1b]0;title\x07 \x9b31m\nnext"
    with Progress(tally, show=True):
        while "down" not in terminal.getvalue():
            time.sleep(0.01)
    shown = terminal.getvalue()
    assert not [mark for mark in ("\x1b]", "\x9b", "\x07") if mark in shown]


def test_work_is_not_all_done_before_its_last_step() -> None:
    reading = ProgressReading("grading", 999, 1000)
    assert describe_progress(reading, None) == "grading 999/1,000 (99%)"
