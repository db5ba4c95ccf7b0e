"""What a run's judges were shown and said, kept in the run folder.

``transcripts.sqlite`` has the rollouts themselves and every judge call: the exact prompt, the
schema, the raw replies with those that could not be read, tokens, seconds, cost. Headers and keys
are never in it. Each is one JSON text, compressed where it is long; a call about several samples is
there once. What is added is written by a thread within half a second; what a process that is killed
had not written yet is lost, and nothing else.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from adjudge.errors import RunFolderError
from adjudge.files import UNENCODABLE
from adjudge.judges.asking import JudgeCall
from adjudge.runs.rows import RunObserver
from adjudge.stats import collect
from adjudge.text import encode_exactly
from adjudge.types import Sample

FILE = "transcripts.sqlite"
MAX_BYTES = 2**30
"""Bytes of texts, compressed where they are long, after which nothing more is kept."""
_FAILURE_SHARE = 0.1
"""Of the samples that may be kept, those for failures outside the chosen groups."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS kept (id INTEGER PRIMARY KEY, position INTEGER, grader TEXT,
    digest BLOB, data INTEGER, UNIQUE (position, grader, digest));
CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, data BLOB);
"""
_READ = (
    "SELECT position, grader, texts.data FROM kept JOIN texts ON kept.data = texts.id "
    "WHERE {} ORDER BY kept.id LIMIT ?"
)
_ROLLOUT = ""
"""In the place of a grader's name: the rollout itself."""
_MOST_BYTES = 64 * 2**20
"""Of a sample or a call with more nothing is kept."""
_SHORT = 2048
"""Bytes of a text that is not compressed: that would take longer than writing it."""
_EVERY_S = 0.4
_MAX_WAITING = 20_000
_BUSY_S = 30.0

_T = TypeVar("_T")
_encoder = msgspec.json.Encoder(enc_hook=str)
_log = logging.getLogger("adjudge")
_GOLDEN = 0x9E3779B97F4A7C15
_LOW_BITS = (1 << 64) - 1


class TranscriptStore:
    """The transcripts of the run in ``folder``; a context manager.

    One process writes, others may read meanwhile. ``run`` says which run writes; what the file has
    of another one is removed. With ``read_only`` nothing is written, and a file that is not there
    is an empty store. Raises :class:`~adjudge.errors.RunFolderError` for a file that is no store.
    """

    def __init__(self, folder: Path, *, run: str | None = None, read_only: bool = False) -> None:
        self.path = folder / FILE
        self._lock = threading.RLock()
        self._waiting: deque[tuple[tuple[int, ...], str, Sample | JudgeCall]] = deque()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        name = self.path.absolute().as_uri() + "?mode=ro" if read_only else str(self.path)
        if read_only and not self.path.exists():
            name, read_only = ":memory:", False
        try:
            self._database = sqlite3.connect(
                name, timeout=_BUSY_S, check_same_thread=False, uri=name.startswith("file:")
            )
            if not read_only:
                self._prepare(run)
            self.bytes = int(self._select("SELECT COALESCE(SUM(LENGTH(data)), 0) FROM texts")[0][0])
        except (sqlite3.Error, OSError, RunFolderError) as error:
            raise RunFolderError(
                f"{self.path}: cannot be used: {error}. Move it away and run the command again."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many samples are kept."""
        return int(self._select("SELECT COUNT(*) FROM kept WHERE grader = ?", _ROLLOUT)[0][0])

    def close(self) -> None:
        """Write what is left."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock, closing(self._database), suppress(sqlite3.Error):
            self.flush()
            self._database.execute("PRAGMA busy_timeout=0")
            self._database.execute("PRAGMA journal_mode=DELETE")  # one file, unless somebody reads

    # --- writing ----------------------------------------------------------------------------------

    def add_sample(self, index: int, sample: Sample) -> None:
        """Keep the rollout of the sample at ``index``, unless it is kept already."""
        self.add_calls(index, _ROLLOUT, [sample])

    def add_calls(
        self, index: int | Sequence[int], grader: str, calls: Sequence[JudgeCall | Sample]
    ) -> None:
        """Keep the calls that ``grader`` made about the sample at ``index``, or several at once.

        Equal calls about a sample are kept once.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="adjudge-transcripts", daemon=True
            )
            self._thread.start()
        places = (index,) if isinstance(index, int) else tuple(index)
        self._waiting.extend((places, grader, call) for call in calls)
        if len(self._waiting) >= _MAX_WAITING:
            self.flush()

    def _work(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.flush()

    def flush(self) -> None:
        """Write what waits, in one transaction; a full disk ends the keeping, not the grading."""
        with self._lock:
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if not waiting or self._error is not None or self.bytes >= MAX_BYTES:
                return
            try:
                for one in waiting:
                    self._write(*one)
                self._database.commit()
            except Exception as error:  # noqa: BLE001  (rewards do not depend on it)
                self._error = error
                _log.warning("%s: %s. No more transcripts are kept.", self.path, error)
                with suppress(sqlite3.Error):
                    self._database.rollback()

    def _write(self, places: tuple[int, ...], grader: str, what: Sample | JudgeCall) -> None:
        digest = _digest_call(what) if isinstance(what, JudgeCall) else b""
        known = "SELECT 1 FROM kept WHERE position = ? AND grader = ? AND digest = ?"
        execute = self._database.execute
        new = [one for one in places if not execute(known, (one, grader, digest)).fetchone()]
        if not new or (data := _encode(what)) is None:
            return
        packed = data if len(data) < _SHORT else zlib.compress(data, 1)
        self.bytes += len(packed)
        text = execute("INSERT INTO texts (data) VALUES (?)", (packed,)).lastrowid
        self._database.executemany(
            "INSERT INTO kept (position, grader, digest, data) VALUES (?, ?, ?, ?)",
            [(one, grader, digest, text) for one in new],
        )

    # --- reading ----------------------------------------------------------------------------------

    def read_sample(self, index: int) -> Sample | None:
        """The rollout of a sample; ``None`` where it is not kept."""
        found = self._read("position = ? AND grader = ?", Sample, index, _ROLLOUT)
        return next((sample for *_, sample in found), None)

    def read_calls(self, index: int) -> dict[str, list[JudgeCall]]:
        """The calls about a sample by grader, in the order in which they ended."""
        found = self._read("position = ? AND grader <> ?", JudgeCall, index, _ROLLOUT)
        return collect((grader, call) for _, grader, call in found)

    def iter_samples(self, most: int) -> Iterator[tuple[int, Sample]]:
        """At most ``most`` of the rollouts with their positions, as they lie in the file."""
        for position, _, sample in self._read("grader = ?", Sample, _ROLLOUT, most=most):
            yield position, sample

    def iter_calls(self, most: int) -> Iterator[tuple[int, str, JudgeCall]]:
        """At most ``most`` of the calls with position and grader, as they lie in the file."""
        return self._read("grader <> ?", JudgeCall, _ROLLOUT, most=most)

    def read_fact(self, name: str) -> str:
        """What was noted of the whole; empty where nothing was."""
        rows = self._select("SELECT value FROM facts WHERE name = ?", name)
        return str(rows[0][0]) if rows else ""

    def note_fact(self, name: str, value: str) -> None:
        """Note something of the whole."""
        with self._lock, suppress(sqlite3.Error):
            self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))
            self._database.commit()

    def _read(
        self, where: str, kind: type[_T], *values: int | str, most: int = -1
    ) -> Iterator[tuple[int, str, _T]]:
        """Position, grader and text of what is kept, as it lies in the file; -1 is all of it."""
        for position, grader, data in self._select(_READ.format(where), *values, most):
            yield position, grader, self._decode(data, kind)

    def _select(self, query: str, *values: int | str) -> list[tuple[Any, ...]]:
        with self._lock:
            self.flush()
            try:
                return self._database.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise RunFolderError(f"{self.path}: is damaged: {error}") from None

    def _decode(self, data: bytes, kind: type[_T]) -> _T:
        try:
            text = data if data.startswith(b"{") else zlib.decompress(data)
            with suppress(msgspec.DecodeError, UnicodeError):
                return msgspec.json.decode(text, type=kind)
            plain = text.decode("utf-8", "surrogatepass")  # halves of surrogate pairs
            return msgspec.convert(json.loads(plain), kind)
        except (zlib.error, ValueError, TypeError) as error:
            raise RunFolderError(f"{self.path}: is damaged: {error}") from None

    def _prepare(self, run: str | None) -> None:
        database = self._database
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.executescript(_SCHEMA)
        if run is not None and self.read_fact("run") != run:
            for table in ("facts", "kept", "texts"):
                database.execute(f"DELETE FROM {table}")  # noqa: S608  (a name of ours)
            database.execute("INSERT INTO facts VALUES ('run', ?)", (run,))
        database.commit()


def _encode(value: Sample | JudgeCall) -> bytes | None:
    """``value`` as JSON; ``None`` for what has no JSON form or is too large."""
    try:
        data = _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError):
        try:
            plain = json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False)
            data = encode_exactly(plain)
        except UNENCODABLE:
            return None
    except UNENCODABLE:
        return None
    return data if len(data) <= _MOST_BYTES else None


def _digest_call(call: JudgeCall) -> bytes:
    """What tells calls about one sample apart: the question, and what came of it."""
    facts = (call.part, call.draw, call.why, call.kind, call.error, call.unread)
    digest = blake2b(repr(facts).encode("utf-8", "backslashreplace"), digest_size=8)
    for message in call.messages:  # a user's grader may ask several things in one place
        content = message.get("content")
        digest.update(encode_exactly(content if isinstance(content, str) else repr(content)))
    digest.update(b"\x00" if call.reply is None else encode_exactly(call.reply))
    return digest.digest()


# --- which samples ------------------------------------------------------------------------------


class TranscriptKeeper(RunObserver):
    """Keeps the transcripts of the samples of a run that were chosen.

    ``sizes``: how many samples each group has; ``most``: how many samples are kept. Of
    more, whole groups are that are spread evenly over the input, and failures besides. It is told
    of each window of samples before it is graded, and then of the calls: all is kept by the time
    that a sample has its reward. ``has_judge``: whether
    there can be such failures.
    """

    def __init__(
        self,
        store: TranscriptStore,
        sizes: Mapping[str, int],
        most: int,
        *,
        has_judge: bool = True,
        notes: str = "",
    ) -> None:
        self.store = store
        self._notes = notes
        self.samples = sum(sizes.values())
        self._most = most
        self._most_failures = round(_FAILURE_SHARE * most) if has_judge else 0
        self._groups = choose_groups(sizes, most, most - self._most_failures)
        self._failures_left = 0 if self._groups is None else self._most_failures
        self._window: dict[int, Sample] = {}
        self._kept: set[int] = set()
        store.note_fact("rule", self.rule)

    @property
    def rule(self) -> str:
        """Which samples are kept, as a sentence."""
        bound = f"up to {MAX_BYTES // 2**30} GiB of texts{self._notes}"
        if self._groups is None:
            return f"all samples, {bound}"
        failures = (
            f", and of the others the first {self._most_failures:,} in which a judge failed"
            if self._most_failures
            else ""
        )
        return (
            f"at most {self._most:,} samples (--keep-transcripts): whole groups spread evenly over "
            f"the input{failures}; {bound}"
        )

    def begin_window(self, samples: Iterable[Sample], groups: Iterable[str]) -> None:
        """These samples are graded next."""
        self._window, self._kept = {}, set()
        for sample, group in zip(samples, groups, strict=True):
            if self._groups is None or group in self._groups:
                self._kept.add(sample.original_index)
                self.store.add_sample(sample.original_index, sample)
            else:
                self._window[sample.original_index] = sample

    def add_calls(
        self, samples: Sequence[int], grader: str, calls: list[JudgeCall], *, failed: bool
    ) -> None:
        """See :class:`~adjudge.rewards.batch_grader.TranscriptListener`."""
        for index in samples if failed else ():
            if self._failures_left > 0 and (sample := self._window.pop(index, None)) is not None:
                self._failures_left -= 1
                self._kept.add(index)
                self.store.add_sample(index, sample)
        if kept := [index for index in samples if index in self._kept]:
            self.store.add_calls(kept, grader, calls)

    def on_end(self, summary: dict[str, Any]) -> None:
        """``transcripts``, which is null where the file is damaged."""
        try:
            kept = len(self.store)
        except RunFolderError as error:
            _log.warning("%s", error)
            return
        summary["transcripts"] = {
            "kept": kept,
            "of": self.samples,
            "bytes": self.store.bytes,
            "rule": self.rule,
        }


def choose_groups(sizes: Mapping[str, int], most: int, room: int) -> set[str] | None:
    """Whole groups of together ``room`` samples, spread evenly; ``None`` for ``most`` in all.

    >>> sorted(choose_groups({"a": 2, "b": 2, "c": 2, "d": 2}, 6, 5))
    ['a', 'c']
    """
    if sum(sizes.values()) <= most:
        return None
    left, chosen = room, set()
    order = sorted(enumerate(sizes), key=lambda one: one[0] * _GOLDEN & _LOW_BITS)
    for _, group in order:
        if 0 < sizes[group] <= left:
            chosen.add(group)
            left -= sizes[group]
        if left <= 0:
            break
    return chosen
