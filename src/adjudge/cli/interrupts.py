"""How a command is stopped from outside, and with which command the work goes on.

SIGTERM (Slurm before a time limit, ``docker stop``) is what Ctrl-C is: the work stops in order, and
what is done is kept. Services handle both signals themselves, for as long as they serve.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

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
    more = [] if any(_names_folder(word, Path(folder)) for word in words) else ["-o", str(folder)]
    end = words.index("--") if "--" in words else len(words)
    return shlex.join([*_program(words), *words[:end], *more, *words[end:]])


def _names_folder(word: str, folder: Path) -> bool:
    """Whether ``word`` is the folder, as in ``-o DIR``, ``--output=DIR`` or ``-oDIR``."""
    short = re.fullmatch(r"-[a-zA-Z]*?o=?(.+)", word)
    values = [word, word.partition("=")[2] if word.startswith("--") else "", short and short[1]]
    return any(value and Path(value) == folder for value in values)


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
