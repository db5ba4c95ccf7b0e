"""What a run's judges were shown and said, kept by content in the run folder.

``transcripts.sqlite`` has the rollouts themselves and every judge call: the exact prompt, the
schema, the raw replies with those that could not be read, tokens, seconds, cost. Headers and keys
are never in it. What is added is written by a thread within half a second, in compressed blocks;
what a process that is killed had not written yet is lost, and nothing else.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import msgspec

from adjudge.errors import RunFolderError
from adjudge.files import UNENCODABLE
from adjudge.judges.call_log import JudgeCall
from adjudge.runs.prefixes import PromptTree
from adjudge.runs.summary import RewardedSample
from adjudge.text import encode_exactly, has_surrogates
from adjudge.types import Sample

FILE = "transcripts.sqlite"
MAX_BYTES = 2**30
"""Bytes of compressed texts after which nothing more is kept."""
DEFAULT_SAMPLES, DEFAULT_WITHOUT_JUDGE = 20_000, 2_000
"""Samples whose transcripts are kept, unless the user says otherwise. Where no judge is asked these
are rollouts that the input has too, and keeping many would take longer than grading them."""
_FAILURE_SHARE = 0.1
"""Of the samples that may be kept, those for failures outside the chosen groups."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS texts (hash BLOB PRIMARY KEY, data BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (id INTEGER PRIMARY KEY, data BLOB);
CREATE TABLE IF NOT EXISTS samples
    (position INTEGER PRIMARY KEY, block INTEGER, start INTEGER, size INTEGER);
CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, position INTEGER, grader TEXT,
    digest BLOB, block INTEGER, start INTEGER, size INTEGER, UNIQUE (position, digest));
"""
_TABLES = ("facts", "texts", "blocks", "samples", "calls")
_LEVEL = 1
_BLOCK_BYTES = 2**18
_LONG_CHARS = 4096
"""A text that is longer is kept once by its content; shorter ones repeat within a block."""
_MARK, _ESCAPE = "\x00#", "\x00="
_MOST_BYTES = 64 * 2**20
"""Of a sample or a call with more nothing is kept."""
_EVERY_S = 0.4
_MAX_WAITING = 20_000
_BUSY_S = 30.0

_encoder = msgspec.json.Encoder(enc_hook=str)
_log = logging.getLogger("adjudge")
_GOLDEN = 0x9E3779B97F4A7C15
_LOW_BITS = (1 << 64) - 1


class TranscriptStore:
    """The transcripts of the run in ``folder``, or of one in memory; a context manager.

    One process writes, others may read meanwhile. ``run`` says which run writes; what the file has
    of another one is removed. With ``read_only`` nothing is written, and a file that is not there
    is an empty store. Raises :class:`~adjudge.errors.RunFolderError` for a file that is no store.
    """

    def __init__(
        self, folder: Path | None, *, run: str | None = None, read_only: bool = False
    ) -> None:
        self.path = Path(":memory:") if folder is None else folder / FILE
        self._lock = threading.RLock()
        self._waiting: deque[_Waiting] = deque()
        self._wake, self._over = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._known: set[int] = set()
        self._texts: set[bytes] = set()
        self._block: tuple[int, bytes] | None = None
        absent = read_only and folder is not None and not self.path.exists()
        try:
            self._database = self._connect(read_only=read_only, absent=absent)
            if not read_only or absent:
                self._prepare(run)
                database = self._database
                self._known = {one for (one,) in database.execute("SELECT position FROM samples")}
                self._texts = {one for (one,) in database.execute("SELECT hash FROM texts")}
            self.bytes = self._count_bytes()
        except (sqlite3.Error, OSError) as error:
            raise RunFolderError(
                f"{self.path}: cannot be used: {error}. Move it away and run the command again."
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many samples are kept."""
        return int(self._select("SELECT COUNT(*) FROM samples")[0][0])

    def close(self) -> None:
        """Write what is left."""
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock, suppress(sqlite3.Error):
            self._write_waiting()
            with suppress(sqlite3.Error):  # one file is left, unless somebody reads
                self._database.execute("PRAGMA busy_timeout=0")
                self._database.execute("PRAGMA journal_mode=DELETE")
            self._database.close()

    # --- writing ----------------------------------------------------------------------------------

    def add_sample(self, index: int, sample: Sample) -> None:
        """Keep the rollout of the sample at ``index``, unless it is kept already."""
        self._add((index,), "", sample)

    def add_calls(
        self, index: int | Sequence[int], grader: str, calls: Sequence[JudgeCall]
    ) -> None:
        """Keep the calls that ``grader`` made about the sample at ``index``, or several at once.

        Equal calls about a sample are kept once.
        """
        places = (index,) if isinstance(index, int) else tuple(index)
        for call in calls:
            self._add(places, grader, call)

    def flush(self) -> None:
        """Write what waits."""
        with self._lock:
            self._write_waiting()

    def _add(self, places: tuple[int, ...], grader: str, what: Sample | JudgeCall) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="adjudge-transcripts")
            self._thread.daemon = True
            self._thread.start()
        self._waiting.append((places, grader, what))
        if len(self._waiting) >= _MAX_WAITING:
            self.flush()

    def _work(self) -> None:
        while not self._over:
            self._wake.wait(_EVERY_S)
            if self._waiting:
                with self._lock:
                    self._write_waiting()

    def _write_waiting(self) -> None:
        """In one transaction. A disk that is full ends the keeping, never the grading."""
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not waiting or self._error is not None or self.bytes >= MAX_BYTES:
            return
        try:
            self._write(waiting)
            self._database.commit()
        except Exception as error:  # noqa: BLE001  (rewards do not depend on it)
            self._error = error
            _log.warning("%s: %s. No more transcripts are kept.", self.path, error)
            with suppress(sqlite3.Error):
                self._database.rollback()

    def _write(self, waiting: Sequence[_Waiting]) -> None:
        block = _Block(self._database, self._texts)
        for places, grader, what in waiting:
            if isinstance(what, Sample):
                [position] = places
                if position not in self._known and (row := block.add(what)) is not None:
                    self._known.add(position)
                    block.samples.append((position, *row))
            elif (row := block.add(what)) is not None:
                digest = _digest_call(grader, what)
                block.calls += [(position, grader, digest, *row) for position in places]
        block.write()
        self.bytes += block.bytes

    # --- reading ----------------------------------------------------------------------------------

    def read_sample(self, index: int) -> Sample | None:
        """The rollout of a sample; ``None`` where it is not kept."""
        rows = self._select("SELECT block, start, size FROM samples WHERE position = ?", index)
        found = [self._read(*row) for row in rows]
        return None if not found else msgspec.convert(found[0], Sample)

    def read_calls(self, index: int) -> dict[str, list[JudgeCall]]:
        """The calls about a sample by grader, in the order in which they ended."""
        query = "SELECT grader, block, start, size FROM calls WHERE position = ? ORDER BY id"
        found: dict[str, list[JudgeCall]] = {}
        for grader, *place in self._select(query, index):
            call = msgspec.convert(self._read(*place), JudgeCall)
            found.setdefault(grader, []).append(call)
        return found

    def iter_samples(self, most: int) -> Iterator[tuple[int, Sample]]:
        """At most ``most`` of the rollouts with their positions, as they lie in the file."""
        query = "SELECT position, block, start, size FROM samples ORDER BY block, start LIMIT ?"
        for position, *place in self._select(query, most):
            yield position, msgspec.convert(self._read(*place), Sample)

    def iter_calls(self, most: int) -> Iterator[tuple[int, str, JudgeCall]]:
        """At most ``most`` of the calls with position and grader, as they lie in the file."""
        query = (
            "SELECT position, grader, block, start, size FROM calls ORDER BY block, start LIMIT ?"
        )
        for position, grader, *place in self._select(query, most):
            yield position, grader, msgspec.convert(self._read(*place), JudgeCall)

    def read_fact(self, name: str) -> str:
        """What was noted of the whole; empty where nothing was."""
        rows = self._select("SELECT value FROM facts WHERE name = ?", name)
        return str(rows[0][0]) if rows else ""

    def note_fact(self, name: str, value: str) -> None:
        """Note something of the whole."""
        with self._lock, suppress(sqlite3.Error):
            self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))
            self._database.commit()

    def _select(self, query: str, *values: int | str) -> list[tuple[Any, ...]]:
        with self._lock:
            self._write_waiting()
            rows = self._guard(lambda: self._database.execute(query, values).fetchall())
            return list(rows)

    def _read(self, block: int, start: int, size: int) -> Any:
        with self._lock:
            return self._guard(lambda: self._unpack(block, start, size))

    def _unpack(self, block: int, start: int, size: int) -> Any:
        if self._block is None or self._block[0] != block:
            query = "SELECT data FROM blocks WHERE id = ?"
            [(data,)] = self._database.execute(query, (block,))
            self._block = block, zlib.decompress(data)
        return _decode(self._block[1][start : start + size], self._read_text)

    def _read_text(self, digest: str) -> str:
        query = "SELECT data FROM texts WHERE hash = ?"
        [(data,)] = self._database.execute(query, (bytes.fromhex(digest),))
        return zlib.decompress(data).decode("utf-8", "surrogatepass")

    def _guard(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (sqlite3.Error, zlib.error, ValueError, TypeError, msgspec.MsgspecError) as error:
            raise RunFolderError(f"{self.path}: is damaged: {error}") from None

    # --- the file ---------------------------------------------------------------------------------

    def _connect(self, *, read_only: bool, absent: bool) -> sqlite3.Connection:
        name = ":memory:" if absent else str(self.path)
        if read_only and not absent:
            name = self.path.absolute().as_uri() + "?mode=ro"
        return sqlite3.connect(
            name, timeout=_BUSY_S, check_same_thread=False, uri=name.startswith("file:")
        )

    def _prepare(self, run: str | None) -> None:
        database = self._database
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.executescript(_SCHEMA)
        if run is not None and self.read_fact("run") != run:
            for table in _TABLES:
                database.execute(f"DELETE FROM {table}")  # noqa: S608  (a name of ours)
            database.execute("INSERT INTO facts VALUES ('run', ?)", (run,))
        database.commit()

    def _count_bytes(self) -> int:
        total = 0
        for table in ("blocks", "texts"):
            query = f"SELECT COALESCE(SUM(LENGTH(data)), 0) FROM {table}"  # noqa: S608  (as above)
            total += self._database.execute(query).fetchone()[0]
        return total


_Waiting = tuple[tuple[int, ...], str, Sample | JudgeCall]


class _Block:
    """What is written together: JSON texts one after the other, compressed as a whole."""

    def __init__(self, database: sqlite3.Connection, texts: set[bytes]) -> None:
        self._database, self._known_texts = database, texts
        self._parts: list[bytes] = []
        self._size = self.bytes = 0
        last = database.execute("SELECT MAX(id) FROM blocks").fetchone()[0]
        self._number = (last or 0) + 1
        self.samples: list[tuple[Any, ...]] = []
        self.calls: list[tuple[Any, ...]] = []

    def add(self, value: Sample | JudgeCall) -> tuple[int, int, int] | None:
        """Where ``value`` will stand; ``None`` for what has no JSON form or is too large."""
        try:
            data = _encode(value, self._keep_text)
        except UNENCODABLE:
            return None
        if self._size and self._size + len(data) > _BLOCK_BYTES:
            self._end()
        place = self._number, self._size, len(data)
        self._parts.append(data)
        self._size += len(data)
        return place

    def write(self) -> None:
        """Into the database, in the running transaction."""
        if self._parts:
            self._end()
        insert = self._database.executemany
        insert("INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?)", self.samples)
        columns = "position, grader, digest, block, start, size"
        insert(
            f"INSERT OR IGNORE INTO calls ({columns}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
            self.calls,
        )

    def _end(self) -> None:
        data = zlib.compress(b"".join(self._parts), _LEVEL)
        self._database.execute("INSERT INTO blocks VALUES (?, ?)", (self._number, data))
        self.bytes += len(data)
        self._parts, self._size, self._number = [], 0, self._number + 1

    def _keep_text(self, text: str) -> str:
        data = encode_exactly(text)
        digest = blake2b(data, digest_size=16).digest()
        if digest not in self._known_texts:
            self._known_texts.add(digest)
            packed = zlib.compress(data, _LEVEL)
            self.bytes += len(packed)
            self._database.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (digest, packed))
        return digest.hex()


def _encode(value: Sample | JudgeCall, keep_text: Callable[[str], str]) -> bytes:
    """``value`` as JSON; a text that is long, or that UTF-8 cannot hold, by its hash."""
    data = b""
    with suppress(UnicodeEncodeError, OverflowError):
        data = _encoder.encode(value)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{len(data):,} bytes")
    if 0 < len(data) < _LONG_CHARS and b"\\u0000" not in data:
        return data
    plain = _map_texts(msgspec.to_builtins(value, enc_hook=str), lambda t: _shorten(t, keep_text))
    try:
        return _encoder.encode(plain)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(plain).encode()


def _decode(data: bytes, read_text: Callable[[str], str]) -> Any:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError):
        found = json.loads(data)
    return _map_texts(found, lambda t: _restore(t, read_text)) if b"\\u0000" in data else found


def _shorten(text: str, keep_text: Callable[[str], str]) -> str:
    if len(text) > _LONG_CHARS or has_surrogates(text):
        return _MARK + keep_text(text)
    return _ESCAPE + text if text.startswith("\x00") else text


def _restore(text: str, read_text: Callable[[str], str]) -> str:
    if text.startswith(_MARK):
        return read_text(text[len(_MARK) :])
    return text.removeprefix(_ESCAPE)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with every text in it changed, keys excepted."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(inner, change) for inner in value]
    return value


def _digest_call(grader: str, call: JudgeCall) -> bytes:
    """What tells calls about one sample apart: the question, and what came of it."""
    facts = (grader, call.part, call.draw, call.why, call.kind, call.error, call.unread)
    digest = blake2b(repr(facts).encode("utf-8", "backslashreplace"), digest_size=8)
    for message in call.messages:  # a user's grader may ask several things in one place
        content = message.get("content")
        digest.update(encode_exactly(content if isinstance(content, str) else repr(content)))
    digest.update(b"\x00" if call.reply is None else encode_exactly(call.reply))
    return digest.digest()


# --- which samples ------------------------------------------------------------------------------


class TranscriptKeeper:
    """Keeps the transcripts of the samples of a run that were chosen.

    ``sizes``: how many samples each group has; ``most``: how many samples are kept. Of
    more, whole groups are that are spread evenly over the input, and failures besides. It is told
    of each window of samples before it is graded, and then of the calls. ``has_judge``: whether
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
        self._prompts = PromptTree()
        self.prompts = Counter[str]()
        """Input tokens of the prompts that servers read, and how many of them were known before."""
        store.note_fact("rule", self.rule)

    @property
    def rule(self) -> str:
        """Which samples are kept, as a sentence."""
        bound = f"up to {MAX_BYTES // 2**30} GiB of compressed texts{self._notes}"
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
        self._prompts.clear()
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
        for call in calls:
            if call.source == "live" and call.usage is not None:
                read = call.usage.input_tokens
                self.prompts["input_tokens"] += read
                self.prompts["cached_tokens"] += call.usage.cached_tokens
                self.prompts["new_input_tokens"] += round(read * self._prompts.add(call.messages))
        if failed:
            self._keep_failures(samples)
        if kept := [index for index in samples if index in self._kept]:
            self.store.add_calls(kept, grader, calls)

    def _keep_failures(self, samples: Sequence[int]) -> None:
        for index in samples:
            if self._failures_left > 0 and (sample := self._window.pop(index, None)) is not None:
                self._failures_left -= 1
                self._kept.add(index)
                self.store.add_sample(index, sample)

    def on_sample(self, one: RewardedSample) -> None:
        """Nothing: a sample and its calls are kept before it has a reward."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """``transcripts``, which is null where the file is damaged, and ``prompts``."""
        summary["prompts"] = dict(self.prompts) or None
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
