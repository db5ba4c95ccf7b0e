"""A progress bar that costs nothing per item: it reads the runner's counts ten times a second."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import TracebackType

from adjudge.types import GraderError

__all__ = ["Progress", "Tally"]


class Tally:
    """How far a run is: results so far, those resumed, failures by kind, and a note to show.

    ``cost_usd`` is what the results so far cost, as far as judges have a price.
    """

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.done = 0
        self.resumed = 0
        self.note = ""
        self.cost_usd = 0.0
        self.failures: Counter[str] = Counter()

    def withdraw(self, failed: GraderError) -> None:
        """Take back a failure that is about to be asked again."""
        self.done -= 1
        self.failures[failed.kind] -= 1


class Progress:
    """A terminal bar for one :class:`Tally`; silent where standard error is no terminal.

    A terminal has room for one bar: a run that starts while another shows stays silent.
    """

    _showing = threading.Lock()

    def __init__(self, tally: Tally, *, show: bool, title: str = "grading") -> None:
        self._tally = tally
        self._title = title
        self._show = show and sys.stderr.isatty()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if self._show and Progress._showing.acquire(blocking=False):
            self._thread = threading.Thread(target=self._draw, name="adjudge-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join(timeout=1.0)
            Progress._showing.release()

    def _draw(self) -> None:
        from rich.console import Console  # noqa: PLC0415  (only where a bar is shown)
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar  # noqa: PLC0415

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failures]}", style="yellow"),
        )
        with Bar(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
            task = bar.add_task(self._title, total=self._tally.total, failures="")
            while True:
                last = self._stop.wait(0.1)
                bar.update(task, completed=self._tally.done, failures=_shown(self._tally))
                bar.refresh()
                if last:
                    return


def _shown(tally: Tally) -> str:
    counts = dict(tally.failures)  # a copy: the engine goes on counting
    listed = [f"{kind} {count}" for kind, count in sorted(counts.items()) if count]
    cost = [f"{tally.cost_usd:.4f} USD"] if tally.cost_usd else []
    return " ".join([*cost, *listed, tally.note])
