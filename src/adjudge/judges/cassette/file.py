"""The SQLite file behind the reply cache: schema, writing in batches, reading, forks, exit.

Four tables: ``meta`` (schema version, fence key), ``replies`` (key, checksum, reply, call),
``failures`` (the same for calls that failed; a reply of the same key goes before it, so a refresh
deletes the reply of a call that fails now) and ``judges`` (each provider, model and sampling that
was recorded). The view ``recorded`` is one row a call: its
reply, else its failure. Keys are 32 bytes; texts are JSON in BLOBs, which carry what SQLite's own
text cannot (NUL, lone surrogates).

Replies are written in batches, by one thread, on its own connection: committing and SQLite's
checkpoints wait for the disk, tens of milliseconds in a file of some size, and the event loop does
not wait with them. The thread runs as long as something is pending, so an idle cache has none. What
a crash may lose is what is pending; a batch is in the file whole or not at all. While another
process holds the write lock, batches wait in memory and grow; what is pending is read from there.

Several processes may use one file: while it is written it is in WAL mode, and the last one to
close leaves one plain file behind, fit for version control and read-only places.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.errors import ConfigError
from adjudge.judges.cassette.encoding import decode_reply
from adjudge.text import encode_exactly

SCHEMA_VERSION = 2
READ_WAIT_MS = 1_000
"""How long a statement waits for another process, in milliseconds, unless told otherwise."""

_ATTEMPTS = 500
_META = "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_JUDGES = "CREATE TABLE judges (judge BLOB PRIMARY KEY) WITHOUT ROWID"
_REPLIES = """CREATE TABLE replies (
    key BLOB PRIMARY KEY,
    digest BLOB NOT NULL,
    sampled INTEGER NOT NULL,
    reply BLOB NOT NULL,
    call BLOB
)"""
_FAILURES = _REPLIES.replace("TABLE replies", "TABLE failures")
_VIEW = (
    "CREATE TEMP VIEW recorded AS SELECT key, digest, sampled, reply, call, 0 AS failed,"
    " rowid AS place FROM replies"
    " UNION ALL SELECT key, digest, sampled, reply, call, 1, rowid FROM failures"
    " WHERE NOT EXISTS (SELECT 1 FROM replies WHERE replies.key = failures.key)"
)


def open_cassette(path: Path, *, writable: bool) -> tuple[sqlite3.Connection, bytes]:
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
    attempts = _ATTEMPTS
    while True:
        try:
            return _connect(path, writable)
        except sqlite3.Error as error:
            attempts -= 1
            if not is_busy(error) or not attempts:
                raise ConfigError(f"{path}: cannot be used as a cassette: {error}") from error
            time.sleep(0.01)  # switching the journal mode does not wait for others by itself


def is_busy(error: sqlite3.Error) -> bool:
    """Whether ``error`` says that somebody else is using the file just now."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _create(path: Path) -> None:
    if path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without O_EXCL: of two processes that both find no file, neither fails.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be created: {error.strerror}") from error


def _connect(path: Path, writable: bool) -> tuple[sqlite3.Connection, bytes]:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rw' if writable else 'ro'}",
        uri=True,
        timeout=READ_WAIT_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        return connection, _prepare(connection, path, writable)
    except (sqlite3.Error, ConfigError):
        connection.close()
        raise


def _prepare(connection: sqlite3.Connection, path: Path, writable: bool) -> bytes:
    connection.execute("PRAGMA trusted_schema = OFF")
    if not _is_cassette(connection, path):
        if not writable:
            raise ConfigError(f"{path}: is empty and not a cassette. Record it first.")
        _initialise(connection, path)
    if writable:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(_VIEW)
    fence_key = _read_meta(connection, "fence_key")
    if not isinstance(fence_key, bytes):
        raise ConfigError(f"{path}: the fence key is missing. Record the cassette again.")
    return fence_key


def _is_cassette(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has our tables; raises unless it has, or is empty."""
    tables = _table_names(connection)
    if not tables:
        return False
    if not tables >= {"meta", "replies", "failures", "judges"}:
        raise ConfigError(f"{path}: is a SQLite database, but not a cassette")
    version = _read_meta(connection, "schema")
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: has a schema version that this adjudge cannot read (found {version!r}; "
            f"allowed: {SCHEMA_VERSION}). Record it again, or use the adjudge that wrote it."
        )
    return True


def _table_names(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def _read_meta(connection: sqlite3.Connection, name: str) -> object:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


def _initialise(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if not _is_cassette(connection, path):  # or another process was faster
        for statement in (_META, _JUDGES, _REPLIES, _FAILURES):
            connection.execute(statement)
        rows = [("schema", SCHEMA_VERSION), ("fence_key", secrets.token_bytes(32))]
        connection.executemany("INSERT INTO meta (name, value) VALUES (?, ?)", rows)
    connection.execute("COMMIT")


BATCH_S = 0.05
BATCH_ROWS = 100
FLUSH_WAIT_MS = 25
"""How long a batch waits for another process's lock before it is tried again, in milliseconds."""
CLOSE_WAIT_MS = 30_000
"""The same for the last batch, and for a reply that is written at once."""
_WRITER_FORK_WAIT_S = 1.0

_SELECT_STORED = "SELECT CAST(reply AS BLOB) FROM replies WHERE key = ?"
_INSERT = "INSERT INTO {} (key, digest, sampled, reply, call) VALUES "
_KEEP_FIRST = " ON CONFLICT (key) DO NOTHING"
_REPLACE = (
    " ON CONFLICT (key) DO UPDATE SET digest = excluded.digest,"
    " sampled = excluded.sampled, reply = excluded.reply, call = excluded.call"
)
_DELETE = "DELETE FROM replies WHERE key IN ({})"
_INSERT_JUDGE = "INSERT OR IGNORE INTO judges (judge) VALUES (?)"

_log = logging.getLogger(__name__)


class CassetteRow(NamedTuple):
    """One recorded call as it is written; ``judge`` is JSON of provider, model and sampling.

    ``failed``: ``reply`` is a failure. A reply takes its place, as does a later failure. Under
    ``replace`` it takes the place of a reply, too: the last outcome of a call stands.
    """

    key: bytes
    digest: bytes
    sampled: bool
    reply: bytes
    call: bytes | None
    judge: bytes | None
    failed: bool = False


class CassetteWriter:
    """What is to be written to the cassette at ``path``, and what writes it.

    ``replace`` says what a row does to an older one of the same key: take its place (and be
    compared with it: ``compared`` and ``changed`` count) or not. Usable from several threads.
    """

    def __init__(self, path: Path, *, replace: bool) -> None:
        self.path = path
        self.compared = 0
        self.changed: list[str] = []
        self._replace = replace
        self._judges: set[bytes] = set()
        self._displaced: dict[bytes, bytes | None] = {}
        """Digests of the texts of replies that gave way to a failure; their calls may be asked
        again, and then it counts whether the text is the old one."""
        self._warned = False
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pending: dict[bytes, CassetteRow] = {}
        self._guard = threading.Lock()  # of what is pending; never held for long
        self._lock = threading.RLock()  # of the connection; held while a batch is written
        self._full = threading.Event()
        self._running = False
        self._connection: sqlite3.Connection | None = None

    def pending(self, key: bytes) -> CassetteRow | None:
        """The row of ``key`` that is not in the file yet, if any."""
        return self._pending.get(key)

    def add(self, row: CassetteRow, *, at_once: bool) -> None:
        """Write ``row`` with the next batch, within :data:`BATCH_S`, or before this returns."""
        with self._guard:
            if self._closed:
                raise ConfigError(f"{self.path}: this cache was closed")
            held = self._pending.get(row.key)
            if held is None or held.failed or self._replace:
                self._pending[row.key] = row
            full = len(self._pending) % BATCH_ROWS == 0
            start = not (self._running or at_once)
            self._running = self._running or start
        if at_once:
            self.flush(CLOSE_WAIT_MS)
        elif start:
            self._start()
        elif full:
            self._full.set()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="adjudge-cache", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the process exits, or may have no more threads
            self._running = False
            self.flush()

    def _run(self) -> None:
        while True:
            self._full.wait(BATCH_S)
            self._full.clear()
            self.flush()
            with self._guard:
                if self._closed or not self._pending:
                    self._running = False
                    return

    def flush(self, wait_ms: int = FLUSH_WAIT_MS) -> bool:
        """Commit what is pending; False when it could not be done now (it stays pending)."""
        with self._lock:
            return self._closed or self._flush(wait_ms)

    def _flush(self, wait_ms: int) -> bool:
        with self._guard:
            rows = list(self._pending.values())
        if not rows:
            return True
        try:
            self._commit(rows, wait_ms)
        except (sqlite3.Error, ConfigError) as error:
            self._report_error(error)
            return False
        with self._guard:
            for row in rows:
                if self._pending.get(row.key) is row:
                    del self._pending[row.key]
        return True

    def _commit(self, rows: list[CassetteRow], wait_ms: int) -> None:
        if self._connection is None:
            self._connection, _ = open_cassette(self.path, writable=True)
        connection = self._connection
        judges = {row.judge for row in rows if row.judge is not None} - self._judges
        connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            drift = self._drift(connection, rows) if self._replace else []
            for start in range(0, len(rows), BATCH_ROWS):
                self._insert(connection, rows[start : start + BATCH_ROWS])
            connection.executemany(_INSERT_JUDGE, [(judge,) for judge in judges])
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        self._judges |= judges
        self.compared += len(drift)
        self.changed += [key for key, same in drift if not same]

    def _insert(self, connection: sqlite3.Connection, rows: list[CassetteRow]) -> None:
        kept = [row for row in rows if not row.failed]
        failed = [row for row in rows if row.failed]
        if failed and self._replace:
            keys = [row.key for row in failed]
            connection.execute(_DELETE.format(", ".join("?" * len(keys))), keys)
        # One statement each: after it, this thread queues up for the interpreter behind a busy
        # loop.
        for table, some, replace in (("replies", kept, self._replace), ("failures", failed, True)):
            if some:
                places = ", ".join(["(?, ?, ?, ?, ?)"] * len(some))
                values = [value for row in some for value in row[:5]]
                conflict = _REPLACE if replace else _KEEP_FIRST
                connection.execute(_INSERT.format(table) + places + conflict, values)

    def _drift(
        self, connection: sqlite3.Connection, rows: list[CassetteRow]
    ) -> list[tuple[str, bool]]:
        """For each reply that stands in the file already: its key, and whether the text is equal.

        One that stood there until its call failed counts, too.
        """
        found = []
        for row in rows:
            kept = connection.execute(_SELECT_STORED, (row.key,)).fetchone()
            if kept is not None:
                old = _text_digest(kept[0])
            elif row.key in self._displaced:
                old = self._displaced[row.key]
            else:
                continue
            if row.failed:
                self._displaced[row.key] = old
            else:
                found.append((row.key.hex(), old == _text_digest(row.reply)))
        return found

    def _report_error(self, error: Exception) -> None:
        busy = isinstance(error, sqlite3.Error) and is_busy(error)
        if not self._warned and not busy:
            self._warned = True
            _log.warning(
                "%s: replies cannot be written now and are kept in memory: %s", self.path, error
            )

    def close(self) -> int:
        """Write what is pending and close; how many replies could not be written."""
        with self._lock:
            with self._guard:
                self._closed = True
            self._full.set()
            self._flush(CLOSE_WAIT_MS)
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            lost, self._pending = len(self._pending), {}
        return lost

    # -- forks -----------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Let nothing be written until :meth:`release`; False when that took too long.

        For a fork: a child must not start with locks of SQLite's that nobody in it will release.
        A batch that waits for another process holds none of these.
        """
        return self._lock.acquire(timeout=_WRITER_FORK_WAIT_S)

    def release(self) -> None:
        """Go on writing."""
        self._lock.release()

    def forked(self) -> sqlite3.Connection | None:
        """In a forked child: begin anew, and give up the parent's connection."""
        inherited = self._connection
        self._begin()
        return inherited


def _text_digest(reply: bytes) -> bytes | None:
    try:
        text = decode_reply(reply).text
    except ValueError:
        return None
    return sha256(encode_exactly(text)).digest()


_FORK_WAIT_S = 1.0
# CAST and hex: SQLite columns hold values of any type, and the file may come from anywhere.
_SELECT_REPLY = "SELECT digest, sampled, CAST(reply AS BLOB), 0 FROM replies WHERE key = ?"
_SELECT_FAILED = "SELECT digest, sampled, CAST(reply AS BLOB), failed FROM recorded WHERE key = ?"
_SELECT_CALL = "SELECT CAST(call AS BLOB) FROM recorded WHERE key = ?"
_SELECT_CALLS = (
    "SELECT lower(hex(key)), CAST(call AS BLOB) FROM recorded"
    " WHERE call IS NOT NULL ORDER BY failed, place LIMIT ?"
)
_SELECT_KEYS = "SELECT lower(hex(key)) FROM recorded ORDER BY failed, place"
_SELECT_JUDGES = "SELECT CAST(judge AS BLOB) FROM judges ORDER BY judge"


class CassetteFile:
    """One cassette file, opened once per process.

    ``writable=False`` opens an existing file and changes nothing in it. ``replace`` says what a
    row does to an older one of the same key: take its place (and be compared with it) or not.
    Raises :class:`~adjudge.errors.ConfigError` when the file is missing, is no cassette, or has
    another schema version.
    """

    def __init__(self, path: Path, *, writable: bool, replace: bool = False) -> None:
        self.path = path
        self.fence_key = b""
        self._writable = writable
        self._writer = CassetteWriter(path, replace=replace)
        self._closed = False
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._open()
        _files.add(self)

    def __del__(self) -> None:
        with contextlib.suppress(ConfigError, sqlite3.Error):
            self.close()

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise ConfigError(f"{self.path}: this cache was closed")
        self._connection, self.fence_key = open_cassette(self.path, writable=self._writable)
        return self._connection

    # -- reading ---------------------------------------------------------------------------------

    def read(self, key: str) -> tuple[bytes, bool, bytes, bool] | None:
        """Checksum, whether it was sampled, bytes of reply or failure, and whether it failed.

        A writable file need not look for failures: its calls are asked again. Raises
        ``sqlite3.Error``.
        """
        raw = bytes.fromhex(key)
        if (pending := self._writer.pending(raw)) is not None:
            return pending.digest, pending.sampled, pending.reply, pending.failed
        with self._lock:
            connection = self._connection or self._open()
            row = connection.execute(_SELECT_REPLY, (raw,)).fetchone()
            if row is None and not self._writable:
                row = connection.execute(_SELECT_FAILED, (raw,)).fetchone()
        return None if row is None else (row[0], bool(row[1]), row[2], bool(row[3]))

    def read_call(self, key: str) -> bytes | None:
        """The canonical bytes of a recorded call."""
        rows = self._rows(_SELECT_CALL, bytes.fromhex(key))
        call: bytes | None = rows[0][0] if rows else None
        return call

    def calls(self, limit: int) -> list[tuple[str, bytes]]:
        """Keys and canonical bytes of the first ``limit`` recorded calls."""
        return [(key, call) for key, call in self._rows(_SELECT_CALLS, limit)]

    def recorded(self) -> list[str]:
        """The keys of all recorded calls, in the order of recording; those that failed last."""
        return [key for (key,) in self._rows(_SELECT_KEYS)]

    def judges(self) -> list[bytes]:
        """JSON of provider, model and sampling for every combination that was recorded."""
        return [judge for (judge,) in self._rows(_SELECT_JUDGES)]

    def _rows(self, query: str, *values: bytes | int) -> list[tuple[Any, ...]]:
        with self._lock:
            connection = self._connection or self._open()
            try:
                return connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise ConfigError(
                    f"{self.path}: cannot be read to its end: {error}. Restore a copy of the "
                    "cassette, or record it again."
                ) from error

    # -- writing ---------------------------------------------------------------------------------

    @property
    def compared(self) -> int:
        """How many rows stood in the file already, under ``replace``."""
        return self._writer.compared

    @property
    def changed(self) -> list[str]:
        """The keys of those whose reply has another text now."""
        return self._writer.changed

    def write_later(self, row: CassetteRow) -> None:
        """Write ``row`` with the next batch; at once where no event loop runs."""
        self._writer.add(row, at_once=_exiting or not _on_loop())

    def flush(self, wait_ms: int = FLUSH_WAIT_MS) -> bool:
        """Commit what is pending; False when it could not be done now (it stays pending)."""
        return self._writer.flush(wait_ms)

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is pending and close; the last one to close leaves one plain file.

        Raises :class:`~adjudge.errors.ConfigError` when replies could not be written.
        """
        if self._closed:
            return
        lost = self._writer.close()
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):  # others still use it: they tidy up
                    if self._writable:
                        connection.execute("PRAGMA busy_timeout = 0")
                        connection.execute("PRAGMA journal_mode = DELETE")
                connection.close()
        if lost:
            raise ConfigError(f"{self.path}: {lost} replies could not be written")

    def hold(self) -> list[Callable[[], None]]:
        """Before a fork: keep other threads out of SQLite; what lets them in again."""
        held: list[Callable[[], None]] = []
        if self._lock.acquire(timeout=_FORK_WAIT_S):
            held.append(self._lock.release)
        if self._writer.hold():
            held.append(self._writer.release)
        return held

    def forked(self) -> None:
        """In a forked child: leave the parent's handles and its pending rows alone."""
        _inherited.extend((self._connection, self._writer.forked()))
        self._connection = None
        self._lock = threading.RLock()


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_files: weakref.WeakSet[CassetteFile] = weakref.WeakSet()
# Kept referenced for ever: SQLite forbids a child to close what its parent opened.
_inherited: list[sqlite3.Connection | None] = []
_held_at_fork: list[Callable[[], None]] = []
_exiting = False


def _before_fork() -> None:
    for file in list(_files):
        _held_at_fork.extend(file.hold())


def _after_fork_in_parent() -> None:
    while _held_at_fork:
        _held_at_fork.pop()()


def _after_fork() -> None:
    _held_at_fork.clear()
    for file in list(_files):
        file.forked()


def _at_exit() -> None:
    global _exiting  # noqa: PLW0603  (the process exits once)
    _exiting = True  # what a loop of a daemon thread still brings is written at once
    for file in list(_files):
        if not file.flush(CLOSE_WAIT_MS):
            _log.warning("%s: replies could not be written before the exit", file.path)


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork
)
atexit.register(_at_exit)
