"""What a run folder holds, followed as it is written.

A growing file of JSON lines is read once: whole lines as they come, and when to start over.
"""

from __future__ import annotations

import math
import os
import stat
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal

from adjudge.report.page import to_browser_json
from adjudge.runs.sample_index import RolloutIndex, drawable_number
from adjudge.runs.samples import RunKind, RunSamples, decode_json

_FINGERPRINT_BYTES = 256
"""Bytes before the place of reading that must still be what they were."""


class JsonlTail:
    """Reads what was appended to a file since the last look.

    A last line without its newline waits for the rest. A file that has shrunk, was
    replaced, or whose last read bytes are others now was written anew: :attr:`rewritten` says so,
    and the reader makes a new ``JsonlTail``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.rewritten = False
        self.changed_at: float | None = None
        self._at = self._torn = 0
        self._known = b""
        self._inode: int | None = None

    @property
    def unread_bytes(self) -> int:
        """Bytes of the file that are still to be read, a line that does not end yet left out."""
        return max(0, self.size - self._at - self._torn)

    def lines(self, budget: int) -> Iterator[tuple[int, bytes]]:
        """New whole lines and where each starts, until ``budget`` bytes are read.

        Nothing where the file is not there, is no plain file, or was written anew.
        """
        try:
            # A FIFO would hold the reader until somebody writes.
            file = self.path.open("rb") if self.path.is_file() else None
        except OSError:
            file = None
        if file is None:
            self.rewritten = self.rewritten or self._inode is not None
            return
        with file:
            if not self._is_same(file.fileno()):
                return
            file.seek(self._at)
            end = self._at + budget
            for line in file:
                at = self._at
                self._torn = 0 if line.endswith(b"\n") else len(line)
                if at >= end or self._torn:
                    return
                self._at += len(line)
                self._known = (self._known + line[-_FINGERPRINT_BYTES:])[-_FINGERPRINT_BYTES:]
                yield at, line[:-1]

    def _is_same(self, handle: int) -> bool:
        """Whether what was read is still there."""
        found = os.fstat(handle)
        if self._inode not in (None, found.st_ino) or found.st_size < self._at:
            self.rewritten = True
            return False
        self._inode, self.size, self.changed_at = found.st_ino, found.st_size, found.st_mtime
        self.rewritten = self._known != os.pread(
            handle, len(self._known), self._at - len(self._known)
        )
        return not self.rewritten


MISSING_METRIC = "judge/missing_frac"
_SUMS = ("samples", "judge/cost_usd")
"""What a step has the sum of, where its rows are of several processes."""


class MetricSteps:
    """The rows of ``metrics.jsonl`` as steps, which may have rows of several processes.

    A step is over once there is a row of a later step or of a later start of the run; where steps
    have several rows, only with the step after that, for one process may be a step behind. A row
    that comes later still is left out.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._open: dict[tuple[float, float], list[Mapping[str, float]]] = {}
        self._lag = 0
        self._last = (-math.inf, -math.inf)

    def add(self, row: Mapping[str, float]) -> list[dict[str, float]]:
        """Take in a row; the steps that are over now."""
        self.rows += 1
        key = row.get("start", 1.0), row.get("step", float(self.rows))
        if key <= self._last:
            return []
        found = self._open.setdefault(key, [])
        found.append({**row, "step": key[1]})
        if len(found) > 1:
            self._lag = 1
        start, step = max(self._open)
        return self._close([one for one in self._open if one < (start, step - self._lag)])

    def close(self) -> list[dict[str, float]]:
        """The steps that were not over: nothing more comes of them."""
        return self._close(self._open)

    def peek(self) -> list[dict[str, float]]:
        """The steps that are not over yet, by the rows that they have."""
        return [merge_metric_rows(self._open[key]) for key in sorted(self._open)]

    def _close(self, keys: Iterable[tuple[float, float]]) -> list[dict[str, float]]:
        closed = sorted(keys)
        self._last = max([self._last, *closed])
        return [merge_metric_rows(self._open.pop(key)) for key in closed]


def merge_metric_rows(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of one step's rows: means over the rows that have them, weighted by ``samples``.

    Samples and costs are sums. A share of missing rewards by kind is written for the kinds that
    occurred, and 0 in the other rows.

    >>> merge_metric_rows([{"samples": 1, "reward": 0.0}, {"samples": 3, "reward": 1.0}])["reward"]
    0.75
    """
    if len(rows) == 1:
        return dict(rows[0])
    found: dict[str, float] = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        among = MISSING_METRIC if name.startswith(f"{MISSING_METRIC}/") else name
        pairs = [(row.get("samples", 1.0), row.get(name, 0.0)) for row in rows if among in row]
        if name in _SUMS:
            found[name] = math.fsum(value for _, value in pairs)
        elif weight := math.fsum(samples for samples, _ in pairs):
            found[name] = math.fsum(samples * value for samples, value in pairs) / weight
    return found


MAX_CURVE_POINTS = 600
MAX_CURVES = 256
"""Metrics that are followed; a step with more has its further ones left out."""


class Curves:
    """Mean values over runs of ``width`` steps; ``width`` doubles when there are too many runs.

    So a point is one step while there are at most ``2 * MOST_POINTS``, and adding a step costs the
    same however many came before. A value that is absent counts in no mean.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.width = 1
        self.last: dict[str, float] = {}
        self._sums: dict[str, list[float]] = {}
        self._counts: dict[str, list[int]] = {}

    def add(self, values: dict[str, float]) -> None:
        """Take in the metrics of one step."""
        place = self.rows // self.width
        if place >= 2 * MAX_CURVE_POINTS:
            self._halve()
            place = self.rows // self.width
        for key, value in values.items():
            if key not in self._sums and len(self._sums) >= MAX_CURVES:
                continue
            sums, counts = self._sums.setdefault(key, []), self._counts.setdefault(key, [])
            missing = place + 1 - len(sums)
            sums.extend([0.0] * missing)
            counts.extend([0] * missing)
            sums[place] += value
            counts[place] += 1
        self.rows += 1
        self.last = values

    def followed_by(self, steps: Iterable[dict[str, float]]) -> Curves:
        """These curves and more steps, which are not taken in."""
        found = Curves()
        found.rows, found.width, found.last = self.rows, self.width, self.last
        found._sums = {key: sums[:] for key, sums in self._sums.items()}
        found._counts = {key: counts[:] for key, counts in self._counts.items()}
        for values in steps:
            found.add(values)
        return found

    def _halve(self) -> None:
        self.width *= 2
        for key, sums in self._sums.items():
            counts = self._counts[key]
            self._sums[key] = [sum(sums[i : i + 2]) for i in range(0, len(sums), 2)]
            self._counts[key] = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]

    def points(self, key: str, among: str | None = None) -> list[float | None]:
        """The values of one metric, one a point; ``None`` where none of the point's steps has it.

        ``among``: of the steps that have that other metric, those without ``key`` count as 0: a
        share by kind is written for the kinds that occurred.
        """
        every = math.ceil(self.rows / self.width)
        columns = self._sums.get(key, []), self._counts.get(among or key, [])
        sums, counts = (chain(column, repeat(0)) for column in columns)
        return [
            total / n if n else None
            for total, n, _ in zip(sums, counts, range(every), strict=False)
        ]

    def total(self, key: str) -> float | None:
        """The sum of one metric over all steps that have it; ``None`` where none has."""
        return math.fsum(self._sums[key]) if key in self._sums else None

    @property
    def keys(self) -> list[str]:
        """The metrics seen so far."""
        return list(self._sums)


RunState = Literal["waiting", "running", "stopped", "done"]

_BUDGET = 16 * 2**20
_FIRST = 2**20
"""Bytes of samples at the first look: curves are to be seen at once."""
_LARGEST_FILE = 64 * 2**20
_MOST_ALARMS = 1000
_LATELY_S, _PATIENCE = 30.0, 3.0
"""A run whose process is not to be seen goes on if its last row is no older than this, or than so
many of its steps."""


_SMALL_FILES = ("run.json", "summary.json", "config.toml")
_Stamp = tuple[int, int, int]


def _stamp_of(path: Path) -> _Stamp | None:
    """What is another one when a file is; ``None`` for none, no plain one, or a very large one."""
    try:
        found = path.stat()
    except OSError:
        return None
    usable = stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_FILE
    return (found.st_ino, found.st_size, found.st_mtime_ns) if usable else None


def _read_small(path: Path) -> bytes | None:
    """A file as a whole, if it can be read."""
    try:
        return path.read_bytes() if _stamp_of(path) else None
    except OSError:
        return None


def _read_table(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty for anything else."""
    found = decode_json(_read_small(path))
    return found if isinstance(found, dict) else {}


class RunReader(RunSamples):
    """A run folder, training or grading, in whatever state its files are.

    :meth:`refresh` reads what was appended since the last one, at most ``budget`` bytes of
    rollouts, so that a large finished run is shown while it is still being indexed. When a file
    was cut off or written anew (a resumed run), everything is read from the start and
    ``generation`` is one higher: rows and groups have other numbers from then on.
    ``samples_file`` says how far the file of the samples is read.
    """

    def __init__(self, folder: Path, *, budget: int = _BUDGET) -> None:
        super().__init__(folder)
        self._budget = budget
        self._stamps: dict[str, _Stamp | None] = dict.fromkeys(_SMALL_FILES)
        self.summary: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        """Nothing is read of the files that grow: when one of them was written anew, too."""
        self._metrics = JsonlTail(self.folder / "metrics.jsonl")
        self._alarms = JsonlTail(self.folder / "alarms.jsonl")
        self.samples_file = JsonlTail(self.path)
        self._journal = JsonlTail(self.folder / "journal.jsonl")
        self._tails = (self._metrics, self._alarms, self.samples_file, self._journal)
        self._steps = MetricSteps()
        self._closed = self.curves = Curves()
        self.rollouts = RolloutIndex(stepped=self.is_stepped)
        self.alarms: list[dict[str, Any]] = []
        self._journal_lines = self._broken_lines = 0

    # --- what is known ------------------------------------------------------------------------

    @property
    def answers(self) -> int:
        """Graders' results in the journal of a grading run."""
        return max(0, self._journal_lines - 1)

    @property
    def broken(self) -> int:
        """Lines of the folder's files that could not be read."""
        return self._broken_lines + self.rollouts.broken

    @property
    def changed_at(self) -> float | None:
        """When a row was last written, in seconds since 1970."""
        found = [tail.changed_at for tail in self._tails if tail.changed_at is not None]
        return max(found, default=None)

    @property
    def _is_over(self) -> bool:
        return self._stamps["summary.json"] is not None

    @property
    def state(self) -> RunState:
        """Whether the run is over; ``stopped`` if it writes nothing and has no process here."""
        if self._is_over:
            return "done"
        if self.kind is None:
            return "waiting"
        pid = self.run.get("pid")
        gone = type(pid) is int and not _is_alive(pid)
        return "stopped" if gone and not self._writes else "running"

    @property
    def _writes(self) -> bool:
        """Whether rows came lately: a resumed run has another process than it began with."""
        if self.changed_at is None:
            return False
        patience = _PATIENCE * (self.curves.last.get("step_s") or 0.0)
        return time.time() - self.changed_at < max(_LATELY_S, patience)

    @property
    def version(self) -> str:
        """Another text whenever there is something new to show."""
        parts = (self.generation, self._steps.rows, len(self.rollouts), len(self.alarms),
                 self._journal_lines, self.broken, self.state, *self._stamps.values(),
                 self.samples_file.unread_bytes)  # fmt: skip
        return "-".join(map(str, parts))

    # --- reading ------------------------------------------------------------------------------

    def refresh(self) -> list[dict[str, float]]:
        """Read what is new; the metrics of each step that is over now."""
        self._look()
        if any(tail.rewritten for tail in self._tails):
            self._restart()
        steps = self._read()
        if any(tail.rewritten for tail in self._tails):
            self._restart()
            steps = self._read()
        return steps

    def close_steps(self) -> list[dict[str, float]]:
        """The metrics of the steps that were not over, where the run is."""
        return self._steps.close()

    def _restart(self) -> None:
        self.generation += 1
        self._start()

    def _look(self) -> None:
        """The small files; another run in the folder, or a resumed one, is read from the start."""
        stamps = {name: _stamp_of(self.folder / name) for name in _SMALL_FILES}
        reward = self.reward
        if stamps != self._stamps:
            self._stamps = stamps
            was, self.run = self.run, _read_table(self.folder / "run.json")
            self.summary = _read_table(self.folder / "summary.json")
            config = _read_small(self.folder / "config.toml") or b""
            reward = read_reward_settings(self.run, config.decode("utf-8", "replace"))
            if was and any(was.get(key) != self.run.get(key) for key in ("created", "pid")):
                self._restart()
        kind = self._kind()
        if (kind, reward) != (self.kind, self.reward):
            self.kind, self.reward = kind, reward
            self._restart()

    def _kind(self) -> RunKind | None:
        if self.run.get("kind") == "train":
            return "train"
        if "spec_hash" in self.run:
            return "grade"
        names = ("metrics.jsonl", "rollouts.jsonl", "config.toml", "rewards.jsonl")
        there = {name for name in names if (self.folder / name).exists()}
        if there - {"rewards.jsonl"}:
            return "train"
        return "grade" if there else None

    def _read(self) -> list[dict[str, float]]:
        steps: list[dict[str, float]] = []
        for _, line in self._metrics.lines(_BUDGET):
            if isinstance(row := decode_json(line), dict):
                numbers = ((key, drawable_number(value)) for key, value in row.items())
                row = {key: value for key, value in numbers if value is not None}
                steps += self._steps.add(row)
            else:
                self._broken_lines += 1
        for step in steps:
            self._closed.add(step)
        self.curves = self._closed.followed_by(self._steps.peek())
        for _, line in self._alarms.lines(_BUDGET):
            found = to_browser_json(decode_json(line))
            if isinstance(found, dict) and len(self.alarms) < _MOST_ALARMS:
                self.alarms.append(found)
        budget = self._budget if len(self.rollouts) else min(_FIRST, self._budget)
        for offset, line in self.samples_file.lines(budget):
            self.rollouts.add(offset, line)
        if self.kind == "grade" and not self._is_over:
            self._journal_lines += sum(1 for _ in self._journal.lines(self._budget))
        return steps

    @property
    def has_report(self) -> bool:
        """Whether the folder has a report of its own."""
        path = self.folder / "report.html"
        return path.is_file() and not path.is_symlink()

    def read_report(self) -> bytes | None:
        """The folder's ``report.html``; ``None`` where there is none, or not a plain file."""
        if not self.has_report:
            return None
        return _read_small(self.folder / "report.html")


def read_reward_settings(run: Mapping[str, Any], config: str) -> dict[str, Any]:
    """How rewards come from their parts: of ``run.json``, or ``config.toml`` of a training run."""
    tables = [run.get("reward")]
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        found = tomllib.loads(config)
        tables += [found.get("judge"), found.get("reward")]
    return next((one for one in tables if isinstance(one, dict) and "combine_mode" in one), {})


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return pid > 0  # others are groups of processes
