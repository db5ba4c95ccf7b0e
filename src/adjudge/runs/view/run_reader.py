"""What a run folder holds, followed as it is written.

A growing file of JSON lines is read once: whole lines as they come, and when to start over.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.errors import RolloutError, RunFolderError
from adjudge.report.page import to_browser_json
from adjudge.rollouts.samples import sample_from_row
from adjudge.runs.story import GraderFacts, StoryTeller, read_grader_facts
from adjudge.runs.transcripts import TranscriptStore
from adjudge.runs.view.index import (
    Curves,
    RolloutIndex,
    read_reward_settings,
)
from adjudge.types import Sample

_CHUNK = 4 * 2**20
_FINGERPRINT_BYTES = 256
"""Bytes before the place of reading that must still be what they were."""


class JsonlTail:
    """Reads what was appended to a file since the last look.

    A last line without its newline is kept until the rest comes. A file that has shrunk, was
    replaced, or whose last read bytes are others now was written anew: :attr:`rewritten` says so,
    and the reader makes a new ``JsonlTail``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.rewritten = False
        self.changed_at: float | None = None
        self._at = self._line_at = 0
        self._held = self._known = b""
        self._inode: int | None = None

    @property
    def unread_bytes(self) -> int:
        """Bytes of the file that are still to be read."""
        return max(0, self.size - self._at)

    def lines(self, budget: int) -> Iterator[tuple[int, bytes]]:
        """New whole lines and where each starts, from at most ``budget`` bytes.

        Nothing where the file is not there, is no plain file, or was written anew.
        """
        try:
            # A FIFO would hold the reader until somebody writes.
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self.rewritten = self.rewritten or self._inode is not None
            return
        try:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode) and self._same(handle, found):
                self.size, self.changed_at = found.st_size, found.st_mtime
                yield from self._more(handle, min(self.size, self._at + budget))
        finally:
            os.close(handle)

    def _more(self, handle: int, end: int) -> Iterator[tuple[int, bytes]]:
        while self._at < end and (data := os.pread(handle, min(_CHUNK, end - self._at), self._at)):
            self._at += len(data)
            self._known = (self._known + data[-_FINGERPRINT_BYTES:])[-_FINGERPRINT_BYTES:]
            *lines, self._held = (self._held + data).split(b"\n")
            for line in lines:
                at = self._line_at
                self._line_at += len(line) + 1
                yield at, line

    def _same(self, handle: int, found: os.stat_result) -> bool:
        """Whether what was read is still there."""
        is_other = found.st_ino != self._inode or found.st_size < self._at
        if self._inode is not None and is_other:
            self.rewritten = True
            return False
        self._inode = found.st_ino
        known = os.pread(handle, len(self._known), self._at - len(self._known))
        self.rewritten = known != self._known
        return not self.rewritten


RunKind = Literal["train", "grade"]
RunState = Literal["waiting", "running", "stopped", "done"]

_BUDGET = 16 * 2**20
_FIRST = 2**20
"""Bytes of samples at the first look: curves are to be seen at once."""
_LARGEST_FILE = 64 * 2**20
_MOST_ALARMS = 1000
_MOST_PID = 2**31 - 1
_LATELY_S, _PATIENCE = 30.0, 3.0
"""A run whose process is not to be seen goes on if its last row is no older than this, or than so
many of its steps."""


class _SmallFile:
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
            found = _decode_json(self.data)
            self._table = found if isinstance(found, dict) else {}
        return self._table


class RunReader:
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
        self._run = _SmallFile(folder / "run.json")
        self._summary = _SmallFile(folder / "summary.json")
        self._config = _SmallFile(folder / "config.toml")
        self.run: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.reward: dict[str, Any] = {}
        """The settings of the reward, where the folder has them."""
        self.kind: RunKind | None = None
        self._start()

    def _start(self) -> None:
        """Nothing is read of the files that grow: when one of them was written anew, too."""
        name = "rewards.jsonl" if self.kind == "grade" else "rollouts.jsonl"
        self._metrics = JsonlTail(self.folder / "metrics.jsonl")
        self._alarms = JsonlTail(self.folder / "alarms.jsonl")
        self._samples = JsonlTail(self.folder / name)
        self._journal = JsonlTail(self.folder / "journal.jsonl")
        self._tails = (self._metrics, self._alarms, self._samples, self._journal)
        self.curves = Curves()
        self.rollouts = RolloutIndex(stepped=self.reward.get("group", "none") != "none")
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
    def unindexed_bytes(self) -> int:
        """Bytes of samples still to be indexed."""
        return self._samples.unread_bytes

    @property
    def size(self) -> int:
        """Bytes of samples there are."""
        return self._samples.size

    @property
    def changed_at(self) -> float | None:
        """When a row was last written, in seconds since 1970."""
        found = [tail.changed_at for tail in self._tails if tail.changed_at is not None]
        return max(found, default=None)

    @property
    def state(self) -> RunState:
        """Whether the run is over; ``stopped`` if it writes nothing and has no process here."""
        if self._summary.data is not None:
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
        parts = (self.generation, self.curves.rows, len(self.rollouts), len(self.alarms),
                 self._journal_lines, self.broken, self.state, self._summary.stamp, self._run.stamp,
                 self.unindexed_bytes)  # fmt: skip
        return "-".join(map(str, parts))

    # --- reading ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what is new."""
        self._look()
        if any(tail.rewritten for tail in self._tails):
            self._restart()
        self._read()
        if any(tail.rewritten for tail in self._tails):
            self._restart()
            self._read()

    def _restart(self) -> None:
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
        reward = self.reward
        if (self._run.stamp, self._config.stamp) != (before, config):
            text = (self._config.data or b"").decode("utf-8", "replace")
            reward = read_reward_settings(self.run, text)
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

    def _read(self) -> None:
        for _, line in self._metrics.lines(_BUDGET):
            if isinstance(row := _decode_json(line), dict):
                self.curves.add(row)
            else:
                self._broken_lines += 1
        for _, line in self._alarms.lines(_BUDGET):
            found = to_browser_json(_decode_json(line))
            if isinstance(found, dict) and len(self.alarms) < _MOST_ALARMS:
                self.alarms.append(found)
        budget = self._budget if len(self.rollouts) else min(_FIRST, self._budget)
        for offset, line in self._samples.lines(budget):
            self.rollouts.add(offset, line)
        if self.kind == "grade" and self._summary.data is None:
            self._journal_lines += sum(1 for _ in self._journal.lines(self._budget))

    def row(self, number: int) -> dict[str, Any] | None:
        """One sample's row from the file; ``None`` where the file has changed under us."""
        rollouts = self.rollouts
        offset, size = rollouts.offsets[number], rollouts.sizes[number]
        try:
            with self._samples.path.open("rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError:
            return None
        found = _decode_json(data)
        return to_browser_json(found) if isinstance(found, dict) else None

    def tell(self, row: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The story of a sample: its row with what the folder keeps of it."""
        teller = StoryTeller(self.graders)
        index = row.get("index")
        if self.kind != "grade" or type(index) is not int:
            return teller.tell(row, sample=_recorded_sample(row), members=members)
        try:
            with TranscriptStore(self.folder, read_only=True) as store:
                sample, calls = store.read_sample(index), store.read_calls(index)
                why = "" if sample else store.read_fact("rule") or ""
        except RunFolderError as error:
            sample, calls, why = None, {}, str(error)
        return teller.tell(row, sample=sample, calls=calls, members=members, unkept=why)

    @property
    def graders(self) -> dict[str, GraderFacts]:
        """What the folder says of the run's graders."""
        return read_grader_facts(self.run)

    @property
    def has_report(self) -> bool:
        """Whether the folder has a report of its own."""
        path = self.folder / "report.html"
        return path.is_file() and not path.is_symlink()

    def read_report(self) -> bytes | None:
        """The folder's ``report.html``; ``None`` where there is none, or not a plain file."""
        if not self.has_report:
            return None
        report = _SmallFile(self.folder / "report.html")
        report.look()
        return report.data


def _recorded_sample(row: Mapping[str, Any]) -> Sample | None:
    """The rollout of a row that has a response and no conversation, as a recorder writes it."""
    if isinstance(row.get("messages"), list) or "response" not in row:
        return None
    with contextlib.suppress(RolloutError):
        return sample_from_row(row, 0)
    return None


def _decode_json(data: bytes | None) -> Any:
    """``None`` for no JSON."""
    try:
        return None if data is None else msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _is_alive(pid: int) -> bool:
    if not 0 < pid <= _MOST_PID:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
