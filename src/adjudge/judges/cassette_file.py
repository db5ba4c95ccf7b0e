"""The SQLite file behind the reply cache: one table, written in batches, shared by processes.

The table ``calls`` has one row a call: key, whether it failed and whether chance had a
say, its judge, the checksum and the JSON of its outcome, the JSON of the call. The row with the
empty key holds the fence key. Texts are JSON in BLOBs, which carry what SQLite's own text cannot
(NUL, lone surrogates).

Rows are written in batches, by one thread, on its own connection: committing and SQLite's
checkpoints wait for the disk, tens of milliseconds in a file of some size, and the event loop does
not wait with them. The thread runs as long as something is pending, so an idle cache has none. What
a crash may lose is what is pending; a batch is in the file whole or not at all. While another
process holds the write lock, batches wait in memory and grow; what is pending is read from there.

Several processes may use one file: while it is written it is in WAL mode, and the last one to
close leaves one plain file behind, fit for version control and read-only places.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
import threading
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.errors import ConfigError

FORMAT = 0x61646A02
"""What a cassette says of itself, in SQLite's ``user_version``; another number a new format."""
BATCH_S = 0.05
FLUSH_WAIT_MS = 25
"""How long a batch waits for another process's lock before it is tried again, in milliseconds."""
CLOSE_WAIT_MS = 30_000
"""The same for the last batch."""

_WAIT_S = 1.0
"""How long a reader waits for another process, and a fork for a batch."""
_ATTEMPTS = 500
_ROWS_A_STATEMENT = 500
_CREATE = """BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY, failed INTEGER NOT NULL, sampled INTEGER NOT NULL, judge BLOB,
    digest BLOB NOT NULL, outcome BLOB NOT NULL, call BLOB
);
INSERT OR IGNORE INTO calls VALUES ('', 0, 0, NULL, x'', x'{}', NULL);
PRAGMA user_version = {};
COMMIT"""
_INSERT = """INSERT INTO calls (key, failed, sampled, judge, digest, outcome, call) VALUES {}
ON CONFLICT (key) DO UPDATE SET
    failed = excluded.failed, sampled = excluded.sampled, judge = coalesce(excluded.judge, judge),
    digest = excluded.digest, outcome = excluded.outcome, call = coalesce(excluded.call, call)
WHERE calls.failed"""
_PLACES = "(?, ?, ?, ?, ?, ?, ?)"
# CAST: SQLite columns hold values of any type, and the file may come from anywhere.
_SELECT_ROW = """SELECT key, failed, sampled, judge, digest, CAST(outcome AS BLOB),
CAST(call AS BLOB) FROM calls WHERE key = ?"""
_SELECT_CALLS = "SELECT key, CAST(call AS BLOB) FROM calls WHERE call IS NOT NULL LIMIT ?"
_SELECT_JUDGES = "SELECT DISTINCT CAST(judge AS BLOB) FROM calls WHERE judge IS NOT NULL"

_log = logging.getLogger(__name__)


class CassetteRow(NamedTuple):
    """One recorded call; ``judge`` is JSON of provider, model and sampling.

    ``failed``: ``outcome`` is a failure. A later outcome takes its place.
    """

    key: str
    failed: bool
    sampled: bool
    judge: bytes | None
    digest: bytes
    outcome: bytes
    call: bytes | None


def _open_cassette(path: Path, *, writable: bool) -> tuple[sqlite3.Connection, bytes]:
    """A connection to the cassette at ``path``, and its fence key.

    ``writable`` creates the file, readable by its owner only, unless there is one, and puts it in
    WAL mode; otherwise it must exist and nothing in it is changed. The connection commits by
    itself and may be used from any thread, one at a time. Raises
    :class:`~adjudge.errors.ConfigError` for a file that is missing, is no cassette, has another
    schema version, or cannot be used for another reason.
    """
    if writable:
        _create(path)
    elif not path.is_file():
        raise ConfigError(f"{path}: the cassette does not exist. Record it first (mode 'record').")
    for left in reversed(range(_ATTEMPTS)):
        try:
            return _connect(path, writable)
        except sqlite3.Error as error:
            if not _is_busy(error) or not left:
                problem = f"cannot be used as a cassette: {error}. Record it again."
                raise ConfigError(f"{path}: {problem}") from error
            time.sleep(0.01)  # switching the journal mode does not wait for others by itself
    raise RuntimeError("unreachable: the last attempt raises")


def _is_busy(error: Exception) -> bool:
    """Whether somebody else is using the file just now."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _create(path: Path) -> None:
    if path.is_file():  # closing another handle of it would end SQLite's locks
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without O_EXCL: of two processes that both find no file, neither fails.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be created or written: {error.strerror}") from error


def _connect(path: Path, writable: bool) -> tuple[sqlite3.Connection, bytes]:
    place = f"{path.absolute().as_uri()}?mode={'rw' if writable else 'ro'}"
    connection = sqlite3.connect(
        place, uri=True, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if writable and not tables:
            connection.executescript(_CREATE.format(secrets.token_hex(32), FORMAT))
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        rows = connection.execute(_SELECT_ROW, ("",)).fetchall() if found == FORMAT else []
        if not rows:
            raise sqlite3.DatabaseError(f"its format is not known (found {found}, not {FORMAT})")
        if writable:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection, rows[0][5]


class CassetteFile:
    """One cassette file, opened once per process.

    ``writable=False`` opens an existing file and changes nothing in it. A row takes the place of
    a failure of the same key only. Usable from several threads. Raises
    :class:`~adjudge.errors.ConfigError` when the file is missing or is no cassette.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self._writable = writable
        self._closed = self._warned = False
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self.begin()
        self._reader, self.fence_key = _open_cassette(path, writable=writable)
        _files.add(self)

    def begin(self) -> None:
        """Begin anew, as a forked child: without the parent's handles and its pending rows."""
        _inherited.extend((self._reader, self._writer))
        self._reader = self._writer = None
        self._pending: dict[str, CassetteRow] = {}
        self._guard = threading.Lock()  # of what is pending; never held for long
        self._writing, self._reading = self.locks = threading.RLock(), threading.RLock()
        self._stop = threading.Event()
        self._running = False

    # -- reading ---------------------------------------------------------------------------------

    def read(self, key: str) -> CassetteRow | None:
        """The row of a call, written or pending."""
        if (pending := self._pending.get(key)) is not None:
            return pending
        rows = self._rows(_SELECT_ROW, key)
        return CassetteRow(*rows[0]) if rows else None

    def calls(self, limit: int) -> list[tuple[str, bytes]]:
        """Keys and canonical bytes of the first ``limit`` recorded calls."""
        return [(key, call) for key, call in self._rows(_SELECT_CALLS, limit)]

    def count(self) -> int:
        """How many calls were recorded."""
        return int(self._rows("SELECT count(*) - 1 FROM calls")[0][0])

    def judges(self) -> list[bytes]:
        """JSON of provider, model and sampling for every combination that was recorded."""
        return [judge for (judge,) in self._rows(_SELECT_JUDGES)]

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError(f"{self.path}: this cache was closed")

    def _rows(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        with self._reading:
            self._check_open()
            if self._reader is None:  # in a forked child
                self._reader, _ = _open_cassette(self.path, writable=self._writable)
            try:
                return self._reader.execute(query, values).fetchall()
            except sqlite3.Error as error:
                problem = f"cannot be read to its end: {error}. Restore a copy, or record it again."
                raise ConfigError(f"{self.path}: {problem}") from error

    # -- writing ---------------------------------------------------------------------------------

    def add(self, row: CassetteRow) -> None:
        """Write ``row`` with the next batch, within :data:`BATCH_S`."""
        with self._guard:
            self._check_open()
            held = self._pending.get(row.key)
            if held is None or held.failed:
                self._pending[row.key] = row
            start, self._running = not self._running, True
        if start:
            try:
                threading.Thread(target=self._run, name="adjudge-cache", daemon=True).start()
            except RuntimeError:  # the process exits, or may have no more threads
                self._running = False
                self.flush()

    def _run(self) -> None:
        while not self._stop.wait(BATCH_S):
            self.flush()
            with self._guard:
                if not self._pending:
                    self._running = False
                    return

    def flush(self, wait_ms: int = FLUSH_WAIT_MS) -> None:
        """Commit what is pending; what cannot be written now stays pending."""
        with self._writing:
            with self._guard:
                rows = list(self._pending.values())
            if not rows:
                return
            try:
                self._commit(rows, wait_ms)
            except (sqlite3.Error, ConfigError) as error:
                if not self._warned and not _is_busy(error):
                    self._warned = True
                    problem = "replies cannot be written now and are kept in memory"
                    _log.warning("%s: %s: %s", self.path, problem, error)
                return
            with self._guard:
                for row in rows:
                    if self._pending.get(row.key) is row:
                        del self._pending[row.key]

    def _commit(self, rows: list[CassetteRow], wait_ms: int) -> None:
        if self._writer is None:
            self._writer, _ = _open_cassette(self.path, writable=True)
        self._writer.execute(f"PRAGMA busy_timeout = {wait_ms}")
        with self._writer:  # which commits, or rolls back
            self._writer.execute("BEGIN IMMEDIATE")
            # Few statements: after each, this thread queues up for the interpreter behind a loop.
            for start in range(0, len(rows), _ROWS_A_STATEMENT):
                some = rows[start : start + _ROWS_A_STATEMENT]
                query = _INSERT.format(", ".join([_PLACES] * len(some)))
                self._writer.execute(query, [value for row in some for value in row])

    def close(self) -> None:
        """Write what is pending and close; the last one to close leaves one plain file.

        Raises :class:`~adjudge.errors.ConfigError` when replies could not be written.
        """
        with self._writing, self._reading:
            with self._guard:
                if self._closed:
                    return
                self._closed = True
            self._stop.set()
            self.flush(CLOSE_WAIT_MS)
            lost = len(self._pending)
            if self._writer is not None:
                self._writer.close()
            if self._reader is not None:
                with contextlib.suppress(sqlite3.Error):  # others still use it: they tidy up
                    if self._writable:
                        self._reader.execute("PRAGMA busy_timeout = 0")
                        self._reader.execute("PRAGMA journal_mode = DELETE")
                self._reader.close()
            self._reader = self._writer = None
        if lost:
            raise ConfigError(f"{self.path}: {lost} replies could not be written")


_files: weakref.WeakSet[CassetteFile] = weakref.WeakSet()
# Kept referenced for ever: SQLite forbids a child to close what its parent opened.
_inherited: list[sqlite3.Connection | None] = []
_held: list[Any] = []


def _hold_locks() -> None:
    """Let nobody be inside SQLite: in a child nobody would release what it holds."""
    locks = [lock for file in list(_files) for lock in file.locks]
    _held.extend(lock for lock in locks if lock.acquire(timeout=_WAIT_S))


def _release_locks() -> None:
    while _held:
        _held.pop().release()


def _begin_anew() -> None:
    _held.clear()
    for file in list(_files):
        file.begin()


os.register_at_fork(before=_hold_locks, after_in_parent=_release_locks, after_in_child=_begin_anew)
