"""What a run folder holds, followed as it is written."""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.runs.view.curves import Curves
from adjudge.runs.view.explain import Combination, combination_from, combination_of
from adjudge.runs.view.rollouts import Rollouts, plain
from adjudge.runs.view.tail import Tail

__all__ = ["Kind", "RunReading", "State"]

Kind = Literal["train", "grade"]
State = Literal["waiting", "running", "stopped", "done"]

_BUDGET = 16 * 2**20
_FIRST = 2**20
"""Bytes of samples at the first look: curves are to be seen at once."""
_LARGEST_FILE = 64 * 2**20
_MOST_ALARMS = 1000
_MOST_PID = 2**31 - 1
_LATELY_S, _PATIENCE = 30.0, 3.0
"""A run whose process is not to be seen goes on if its last row is no older than this, or than so
many of its steps."""


class _Small:
    """A file that is read whole, again only when it has changed; ``None`` while it cannot be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamp: tuple[int, int, int] | None = None
        self.data: bytes | None = None
        self._table: dict[str, Any] | None = None

    def look(self) -> None:
        try:
            found = self.path.stat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp == self.stamp:
                return
            usable = stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_FILE
            self.data = self.path.read_bytes() if usable else None
            self.stamp, self._table = stamp, None
        except OSError:
            self.data = self.stamp = self._table = None

    def table(self) -> dict[str, Any]:
        """The file's JSON object; empty for anything else."""
        if self._table is None:
            found = _decoded(self.data)
            self._table = found if isinstance(found, dict) else {}
        return self._table


@dataclass
class _Files:
    """What was read of the files that grow; thrown away when one of them was written anew."""

    metrics: Tail
    alarms_file: Tail
    rollouts_file: Tail
    journal: Tail
    curves: Curves = field(default_factory=Curves)
    rollouts: Rollouts = field(default_factory=Rollouts)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    answers: int = 0
    broken: int = 0

    @property
    def tails(self) -> tuple[Tail, ...]:
        return self.metrics, self.alarms_file, self.rollouts_file, self.journal


class RunReading:
    """A run folder, training or grading, in whatever state its files are.

    :meth:`refresh` reads what was appended since the last one, at most ``budget`` bytes of
    rollouts, so that a large finished run is shown while it is still being indexed. When a file
    was cut off or written anew (a resumed run), everything is read from the start and
    ``generation`` is one higher: rows and groups have other numbers from then on.
    """

    def __init__(self, folder: Path, *, budget: int = _BUDGET) -> None:
        self.folder = folder
        self.generation = 1
        self._budget = budget
        self._run = _Small(folder / "run.json")
        self._summary = _Small(folder / "summary.json")
        self._config = _Small(folder / "config.toml")
        self.run: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.combination: Combination | None = None
        self.kind: Kind | None = None
        self.bytes_read = 0
        self._start()

    def _start(self) -> None:
        name = "rewards.jsonl" if self.kind == "grade" else "rollouts.jsonl"
        self._files = _Files(
            metrics=Tail(self.folder / "metrics.jsonl"),
            alarms_file=Tail(self.folder / "alarms.jsonl"),
            rollouts_file=Tail(self.folder / name),
            journal=Tail(self.folder / "journal.jsonl"),
            rollouts=Rollouts(self.combination),
        )

    # --- what is known ------------------------------------------------------------------------

    @property
    def curves(self) -> Curves:
        """The rows of ``metrics.jsonl``."""
        return self._files.curves

    @property
    def rollouts(self) -> Rollouts:
        """The index of the samples."""
        return self._files.rollouts

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """The sentinel's alarms so far."""
        return self._files.alarms

    @property
    def answers(self) -> int:
        """Graders' results in the journal of a grading run."""
        return max(0, self._files.answers - 1)

    @property
    def broken(self) -> int:
        """Lines of the folder's files that could not be read."""
        return self._files.broken + self.rollouts.broken

    @property
    def behind(self) -> int:
        """Bytes of samples still to be indexed."""
        return self._files.rollouts_file.behind

    @property
    def size(self) -> int:
        """Bytes of samples there are."""
        return self._files.rollouts_file.size

    @property
    def changed_at(self) -> float | None:
        """When a row was last written, in seconds since 1970."""
        found = [tail.changed_at for tail in self._files.tails if tail.changed_at is not None]
        return max(found, default=None)

    @property
    def state(self) -> State:
        """Whether the run is over; ``stopped`` if it writes nothing and has no process here."""
        if self._summary.data is not None:
            return "done"
        if self.kind is None:
            return "waiting"
        pid = self.run.get("pid")
        gone = type(pid) is int and not _alive(pid)
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
        files = self._files
        parts = (self.generation, files.curves.rows, len(files.rollouts), len(files.alarms),
                 files.answers, self.broken, self.state, self._summary.stamp, self._run.stamp,
                 self.behind)  # fmt: skip
        return "-".join(map(str, parts))

    # --- reading ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what is new."""
        self._look()
        if any(tail.rewritten for tail in self._files.tails):
            self._restart()
        self._read()
        if any(tail.rewritten for tail in self._files.tails):
            self._restart()
            self._read()

    def _restart(self) -> None:
        self.bytes_read += sum(tail.bytes_read for tail in self._files.tails)
        self.generation += 1
        self._start()

    def _look(self) -> None:
        """The small files; another run in the folder, or a resumed one, is read from the start."""
        before, config = self._run.stamp, self._config.stamp
        for small in (self._run, self._summary, self._config):
            small.look()
        if self._run.stamp != before:
            was, self.run = self.run, self._run.table()
            if was and any(was.get(key) != self.run.get(key) for key in ("created", "pid")):
                self._restart()
        self.summary = self._summary.table()
        how = self.combination
        if (self._run.stamp, self._config.stamp) != (before, config):
            how = self._combination()
        kind = self._kind()
        if (kind, how) != (self.kind, self.combination):
            self.kind, self.combination = kind, how
            self._restart()

    def _combination(self) -> Combination | None:
        text = (self._config.data or b"").decode("utf-8", "replace")
        return combination_of(text) or combination_from(self.run.get("reward"))

    def _kind(self) -> Kind | None:
        if self.run.get("kind") == "train":
            return "train"
        if "spec_hash" in self.run:
            return "grade"
        names = ("metrics.jsonl", "rollouts.jsonl", "config.toml", "rewards.jsonl")
        there = {name for name in names if (self.folder / name).exists()}
        if there - {"rewards.jsonl"}:
            return "train"
        return "grade" if there else None

    def _read(self) -> None:
        files = self._files
        for _, line in files.metrics.lines(_BUDGET):
            if isinstance(row := _decoded(line), dict):
                files.curves.add(row)
            else:
                files.broken += 1
        for _, line in files.alarms_file.lines(_BUDGET):
            found = plain(_decoded(line))
            if isinstance(found, dict) and len(files.alarms) < _MOST_ALARMS:
                files.alarms.append(found)
        samples = self._budget if files.rollouts_file.bytes_read else min(_FIRST, self._budget)
        for offset, line in files.rollouts_file.lines(samples):
            files.rollouts.add(offset, line)
        if self.kind == "grade" and self._summary.data is None:
            files.answers += sum(1 for _ in files.journal.lines(self._budget))

    def row(self, number: int) -> dict[str, Any] | None:
        """One sample's row from the file; ``None`` where the file has changed under us."""
        rollouts = self.rollouts
        offset, size = rollouts.offsets[number], rollouts.sizes[number]
        try:
            with self._files.rollouts_file.path.open("rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError:
            return None
        found = _decoded(data)
        return plain(found) if isinstance(found, dict) else None

    @property
    def total_bytes_read(self) -> int:
        """All bytes ever read of the files that grow."""
        return self.bytes_read + sum(tail.bytes_read for tail in self._files.tails)


def _decoded(data: bytes | None) -> Any:
    """JSON, strictly, else with what Python's reader lets through; ``None`` for no JSON."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _lenient(data)


def _lenient(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _alive(pid: int) -> bool:
    if not 0 < pid <= _MOST_PID:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
