"""How far long work is: a line on a terminal, a bar in a notebook, else a line every so often.

Without either (a batch job's log, a container) the first line comes after ten seconds, so that
somebody who watches knows that all is well; later ones are up to a minute apart. Short work writes
nothing. All are drawn by a thread that reads counts: they cost nothing per item.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from importlib import import_module
from typing import Self
from uuid import uuid4

from adjudge.judges.endpoint.connections import describe_outages
from adjudge.text import printable
from adjudge.types import GraderError

FIRST_LINE_S = 10.0
"""From here on work is long enough for a line."""
LONGEST_GAP_S = 60.0
_GAP_SHARE = 0.25
_LONGEST_ESTIMATE_S = 30 * 86_400.0
"""A longer one is no estimate: the work stands still."""

_DETAIL_CHARS = 300


@dataclass(eq=False)
class Tally:
    """How far a run is: results so far, those resumed, failures by kind, and a note to show.

    ``cost_usd`` is what the results so far cost, as far as judges have a price. ``asks``: calls of
    judges by why they were made (:data:`~adjudge.judges.asking.AskReason`).
    """

    total: int | None = None
    done: int = 0
    resumed: int = 0
    note: str = ""
    cost_usd: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    asks: Counter[str] = field(default_factory=Counter)

    def replace(self, before: Tally, now: Tally) -> None:
        """Count what another process has counted by ``now``, of which ``before`` is in here."""
        self.done += now.done - before.done
        self.cost_usd += now.cost_usd - before.cost_usd
        self.note = now.note
        self.failures.update(now.failures)  # adds, negative numbers included
        self.failures.subtract(before.failures)
        self.asks.update(now.asks)
        self.asks.subtract(before.asks)

    def withdraw(self, failed: GraderError) -> None:
        """Take back a failure that is about to be asked again."""
        self.done -= 1
        self.failures[failed.kind] -= 1

    def describe_state(self) -> str:
        """What work waits for, or is at; empty where it simply goes on."""
        return self.note or describe_outages()

    def describe_failures(self) -> str:
        """Missing results by kind, as words; empty without any."""
        counts = dict(self.failures)  # a copy: the engine goes on counting
        return ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()) if count)


@dataclass(frozen=True)
class ProgressReading:
    """How far work is at one moment; ``resumed`` of ``done`` took no time of this run."""

    title: str
    done: int
    total: int | None
    resumed: int = 0
    details: str = ""


class ProgressLines:
    """Writes what ``read`` gives to standard error, a line now and then, while it is entered.

    Nothing for work that ends before the first line is due, else a last line when it ends. The rate
    is that of the last lines, without what was resumed.
    """

    _rate_lines = 8

    def __init__(self, read: Callable[[], ProgressReading | None]) -> None:
        self._read = read
        self._stop = threading.Event()
        # A notebook knows by the context to which cell an output belongs.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="adjudge-progress", daemon=True
        )
        self._past: deque[tuple[float, int]] = deque(maxlen=self._rate_lines)
        self._last: ProgressReading | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        written = False
        while not self._stop.wait(self._gap_s()):
            self._report(is_last=False)
            written = True
        if written:
            self._report(is_last=True)

    def _gap_s(self) -> float:
        elapsed = time.monotonic() - self._started
        return min(LONGEST_GAP_S, max(FIRST_LINE_S, _GAP_SHARE * elapsed))

    def _report(self, *, is_last: bool) -> None:
        reading = self._read()
        if reading is None:
            return
        now = time.monotonic()
        if self._last is None:
            self._past.append((self._started, 0))
        elif reading.title != self._last.title:  # another stage has a rate of its own
            self._past.clear()
        self._last = reading
        self._past.append((now, reading.done - reading.resumed))
        elapsed = now - self._started if is_last else None
        line = describe_progress(reading, self._rate(), elapsed)
        # A log that is gone (a closed pipe, a full disk) must not stop the work.
        with contextlib.suppress(OSError, ValueError):
            self._write(line)

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S} {line}\n")
        sys.stderr.flush()

    def _rate(self) -> float | None:
        """Fresh results a second since the first of the last lines; ``None``: not known yet."""
        (then, before), (now, done) = self._past[0], self._past[-1]
        return max(0.0, done - before) / (now - then) if now > then else None


def describe_progress(
    reading: ProgressReading, rate: float | None, elapsed_s: float | None = None
) -> str:
    """A line about work: how much is done, how fast, what else is known, and when it will end.

    ``elapsed_s``: the work is over, after so long.

    >>> reading = ProgressReading("grading", 1200, 4000, details="missing: timeout 3")
    >>> describe_progress(reading, 12.5)
    'grading 1,200/4,000 (30%), 12.5/s, 3 min 44 s left; missing: timeout 3'
    >>> describe_progress(ProgressReading("grading", 4000, 4000), 12.5, elapsed_s=320.0)
    'grading 4,000/4,000 (100%), 12.5/s, ended after 5 min 20 s'
    """
    parts = [f"{reading.title} {reading.done:,}"]
    if reading.total:
        parts = [f"{parts[0]}/{reading.total:,} ({100 * reading.done // reading.total}%)"]
    if rate is not None:
        parts.append(f"{rate:.1f}/s" if rate >= 1 or not rate else f"{60 * rate:.1f}/min")
    if elapsed_s is not None:
        parts.append(f"ended after {format_duration(elapsed_s)}")
    elif rate and reading.total and reading.done < reading.total:
        left = (reading.total - reading.done) / rate
        if left < _LONGEST_ESTIMATE_S:
            parts.append(f"{format_duration(left)} left")
    line = ", ".join(parts)
    if reading.details:
        line += f"; {reading.details[:_DETAIL_CHARS]}"
    return printable(line)  # without terminal escapes: reasons come from other people's servers


def format_duration(seconds: float) -> str:
    """A length of time in words.

    >>> [format_duration(seconds) for seconds in (7.4, 190.0, 7500.0)]
    ['7 s', '3 min 10 s', '2 h 05 min']
    """
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60:02} min"


_reporting = threading.Lock()


@contextlib.contextmanager
def show_progress(read: Callable[[], ProgressReading | None], *, show: bool) -> Iterator[None]:
    """Let somebody see what ``read`` gives, while this lasts; one at a time in a process."""
    if not show or not _reporting.acquire(blocking=False):
        yield
        return
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    lines = _TerminalLine if is_terminal else ProgressLines
    try:
        with (_NotebookBar if in_notebook() else lines)(read):
            yield
    finally:
        _reporting.release()


class Progress:
    """One :class:`Tally` as progress that somebody sees; one at a time in a process."""

    def __init__(self, tally: Tally, *, show: bool, title: str = "grading") -> None:
        self._tally = tally
        self._title = title
        self._shown = show_progress(self._read, show=show)

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.__exit__(None, None, None)

    def _read(self) -> ProgressReading:
        tally = self._tally
        missing = tally.describe_failures()
        details = [
            f"missing: {missing}" if missing else "",
            f"{tally.cost_usd:.4f} USD" if tally.cost_usd else "",
            f"{tally.resumed:,} resumed" if tally.resumed else "",
            tally.describe_state(),
        ]
        return ProgressReading(
            self._title, tally.done, tally.total, tally.resumed, "; ".join(filter(None, details))
        )


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this process. IPython is never imported for it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None  # in a terminal IPython has none


class _NotebookBar(ProgressLines):
    """One output of a notebook's cell: the line and a bar, written anew twice a second.

    rich would need ipywidgets for it.
    """

    _rate_lines = 120

    def __init__(self, read: Callable[[], ProgressReading | None]) -> None:
        super().__init__(read)
        self._output = uuid4().hex
        self._is_shown = False

    def _gap_s(self) -> float:
        return 0.5

    def _write(self, line: str) -> None:
        at = self._last
        bar = f'<progress value="{at.done}" max="{at.total}"></progress>' if at and at.total else ""
        shown = {"text/plain": line, "text/html": f"{bar} {escape(line)}"}
        import_module("IPython.display").display(
            shown, raw=True, display_id=self._output, update=self._is_shown
        )
        self._is_shown = True


class _TerminalLine(ProgressLines):
    """The line on a terminal, written anew five times a second."""

    _rate_lines = 300

    def _gap_s(self) -> float:
        return 0.2

    def _write(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\x1b[2K{line[:width]}" + "\n" * self._stop.is_set())
        sys.stderr.flush()
