"""Where the command line prints, how it is stopped, and with which command the work goes on.

Consoles, JSON, progress; other people's text made safe. SIGTERM (Slurm before a time limit,
``docker stop``) is what Ctrl-C is: the work stops in order, and what is done is kept. Services
handle both signals themselves, for as long as they serve.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec
import typer

from adjudge.errors import JudgeAuthError, JudgeUnavailable
from adjudge.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from adjudge.rollouts.input_report import InputReport
    from adjudge.runner.progress import ProgressReading

import os
import re
import shutil
import signal
import threading
import time
from contextvars import ContextVar
from types import FrameType

# What prints imports rich, and progress the runner: `adjudge` starts without them.

_MAX_PROBLEMS = 5


def output() -> Console:
    """Standard output; numbers uncoloured, no ``:100:`` turned into an emoji."""
    from rich.console import Console  # noqa: PLC0415

    return Console(highlight=False, emoji=False)


def errors() -> Console:
    """Standard error; lines are never broken, so that paths can be copied."""
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def print_json(value: object) -> None:
    """``value`` on standard output as indented JSON, and nothing else: programs read it."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def print_problems(lines: Sequence[str], count: int) -> None:
    """The first of ``count`` problems on standard error, and where the others are."""
    for line in lines[:_MAX_PROBLEMS]:
        errors().print(line)
    if count > _MAX_PROBLEMS:
        errors().print(f"[yellow]… and {count - _MAX_PROBLEMS} more[/] (summary.json)")


def clean(text: object) -> str:
    """``text`` without control characters or markup of its own."""
    from rich.markup import escape  # noqa: PLC0415

    return escape(printable(text))


def print_input(console: Console, report: InputReport, part: str = "") -> None:
    """What the files of a command were read as: the same lines in every command."""
    console.print(f"[dim]read as {clean(report.title)}{part}[/]")
    for label, text in report.lines():
        console.print(f"[dim]  {label:<13} {clean(text)}[/]")
    for note in report.notes:
        console.print(f"[yellow]note:[/] {clean(note)}")


@contextmanager
def say_how_to_resume(folder: str | Path) -> Iterator[None]:
    """Where this is stopped, or a judge is gone: the whole command that goes on."""
    try:
        yield
    except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
        print_resume_command(folder)
        raise


def print_resume_command(folder: str | Path, run: str = "To resume, run", budget: str = "") -> None:
    """The whole command that goes on with the work in ``folder``; ``run``: the words before it.

    ``budget``: the larger budget that it is to have.
    """
    command = resume_command(folder, budget)
    if command is None:
        errors().print(f"{run} the same command with -o {clean(folder)}")
        return
    piped = " with the same standard input" if "-" in shlex.split(command) else ""
    errors().print(f"What is done is kept. {run}{piped}:")
    errors().print(f"  {clean(command)}")


class StageProgress:
    """How far a command is that works in stages: the progress of the last one that it named.

    See :class:`~adjudge.runner.progress.ProgressLines`.
    """

    def __init__(self, *, show: bool) -> None:
        from adjudge.runner.progress import show_progress  # noqa: PLC0415

        self.show = show
        self.reading: ProgressReading | None = None
        self._resumed: dict[str, int] = {}
        self._shown = show_progress(lambda: self.reading, show=show)

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.__exit__(None, None, None)

    def update(self, stage: str, done: int, total: int | None) -> None:
        """``done`` of ``total`` steps of a stage; ``None`` where the number is unknown."""
        from adjudge.runner.progress import ProgressReading  # noqa: PLC0415

        # What was done when it began is an earlier run's.
        resumed = self._resumed.setdefault(stage, max(0, done - 1))
        self.reading = ProgressReading(stage, done, total, resumed)

    def line(self, markup: str) -> None:
        """A line of its own, also where no progress is shown."""
        if self.show and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K")  # the line about progress is written again
        errors().print(markup)


@contextmanager
def resumable_work(folder: str | Path) -> Iterator[None]:
    """What a command does in ``folder``.

    Standard output is the command's: what a user's own code prints goes to standard error.
    """
    with say_how_to_resume(folder), redirect_stdout(sys.stderr):
        yield


SAME_STOP_S = 0.5
"""Two signals within this time are one: a launcher passes on what the terminal sent to all."""

_words: ContextVar[tuple[str, ...] | None] = ContextVar("words", default=None)


class Terminated(KeyboardInterrupt):
    """SIGTERM asked the process to end."""


@contextmanager
def stop_signals() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated` while this lasts; a second signal ends the process.

    Nothing changes outside the main thread, or where other code handles a signal already.
    """
    numbers = []
    if threading.current_thread() is threading.main_thread():
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        numbers = [one for one, handler in usual.items() if signal.getsignal(one) == handler]
    stopped_at: float | None = None
    pid = os.getpid()

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal stopped_at
        now = time.monotonic()
        if os.getpid() != pid or (stopped_at is not None and now - stopped_at >= SAME_STOP_S):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if stopped_at is None:
            stopped_at = now
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def command_line_words(words: Sequence[str]) -> Iterator[None]:
    """The words after the program's name, for :func:`resume_command`, while this lasts."""
    token = _words.set(tuple(words))
    try:
        yield
    finally:
        _words.reset(token)


def resume_command(folder: str | Path, budget: str = "") -> str | None:
    """The user's own command, for a shell, with ``-o folder`` where it does not name the folder.

    ``budget``: what it is to say after ``--budget-usd``. ``None`` where the command line is not
    known (a program that calls the function).
    """
    words = _words.get()
    if words is None:
        return None
    if budget:
        given = shlex.join(words)
        words = tuple(shlex.split(re.sub(r"--budget-usd[ =]\S+", f"--budget-usd {budget}", given)))
    end = words.index("--") if "--" in words else len(words)
    is_named = any(re.match("-q*o|--output", word) for word in words[:end])  # -q has no value
    more = [] if is_named else ["-o", str(folder)]
    return shlex.join([*_program(words), *words[:end], *more, *words[end:]])


def _program(words: Sequence[str]) -> list[str]:
    """How this program was called."""
    if tuple(sys.argv[1:]) != tuple(words):
        return ["adjudge"]
    path = Path(sys.argv[0])
    if path.name == "__main__.py":  # python -m PACKAGE
        return [_shortest(Path(sys.executable)), "-m", path.parent.name]
    return [_shortest(path)]


def _shortest(path: Path) -> str:
    """The bare name of a program where the shell finds the same one by it."""
    return path.name if shutil.which(path.name) == str(path) else str(path)
