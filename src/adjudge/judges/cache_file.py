"""The SQLite file behind the reply cache: reading, writes in batches, forks, exit.

Several processes may use one file: while it is written it is in WAL mode, and the last one to
close leaves one plain file behind, fit for version control and read-only places. Writes are
collected and committed together within :data:`BATCH_S`; while another process holds the write
lock they wait in memory, not on the loop. What a crash may lose is the last batch.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sqlite3
import threading
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.errors import ConfigError
from adjudge.judges.cache_key import decode_reply
from adjudge.judges.cache_schema import READ_WAIT_MS, is_busy, open_cassette

__all__ = ["BATCH_ROWS", "BATCH_S", "CacheFile", "Row"]

BATCH_S = 0.05
BATCH_ROWS = 100
_LOOP_WAIT_MS = 25
_CLOSE_WAIT_MS = 30_000
# CAST and hex: SQLite columns hold values of any type, and the file may come from anywhere.
_SELECT = "SELECT digest, sampled, CAST(reply AS BLOB) FROM replies WHERE key = ?"
_SELECT_CALL = "SELECT CAST(call AS BLOB) FROM replies WHERE key = ?"
_SELECT_CALLS = (
    "SELECT lower(hex(key)), CAST(call AS BLOB) FROM replies"
    " WHERE call IS NOT NULL ORDER BY rowid LIMIT ?"
)
_SELECT_KEYS = "SELECT lower(hex(key)) FROM replies ORDER BY rowid"
_SELECT_JUDGES = "SELECT CAST(judge AS BLOB) FROM judges ORDER BY judge"
_INSERT = "INSERT INTO replies (key, digest, sampled, reply, call) VALUES (?, ?, ?, ?, ?)"
_KEEP = f"{_INSERT} ON CONFLICT (key) DO NOTHING"
_REPLACE = (
    f"{_INSERT} ON CONFLICT (key) DO UPDATE SET digest = excluded.digest,"
    " sampled = excluded.sampled, reply = excluded.reply, call = excluded.call"
)

_log = logging.getLogger(__name__)


class Row(NamedTuple):
    """One recorded call as it is written; ``judge`` is JSON of provider, model and sampling."""

    key: bytes
    digest: bytes
    sampled: bool
    reply: bytes
    call: bytes | None
    judge: bytes | None


class CacheFile:
    """One cassette file, opened once per process.

    ``writable=False`` opens an existing file and changes nothing in it. ``replace`` says what a
    row does to an older one of the same key: take its place (and be compared with it) or not.
    Raises :class:`~adjudge.errors.ConfigError` when the file is missing, is no cassette, or has
    another schema version.
    """

    def __init__(self, path: Path, *, writable: bool, replace: bool = False) -> None:
        self.path = path
        self.compared = 0
        self.changed: list[str] = []
        self.fence_key = b""
        self._writable = writable
        self._replace = replace
        self._pending: list[Row] = []
        self._flush_at = BATCH_ROWS
        self._timer_loop: asyncio.AbstractEventLoop | None = None
        self._judges: set[bytes] = set()
        self._warned = False
        self._closed = False
        self._lock = threading.Lock()
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

    def read(self, key: str) -> tuple[bytes, bool, bytes] | None:
        """Checksum, whether it was sampled, and reply bytes; raises ``sqlite3.Error``."""
        with self._lock:
            connection = self._connection or self._open()
            row = connection.execute(_SELECT, (bytes.fromhex(key),)).fetchone()
        return None if row is None else (row[0], bool(row[1]), row[2])

    def read_call(self, key: str) -> bytes | None:
        """The canonical bytes of a recorded call."""
        rows = self._rows(_SELECT_CALL, bytes.fromhex(key))
        call: bytes | None = rows[0][0] if rows else None
        return call

    def calls(self, limit: int) -> list[tuple[str, bytes]]:
        """Keys and canonical bytes of the first ``limit`` recorded calls."""
        return [(key, call) for key, call in self._rows(_SELECT_CALLS, limit)]

    def recorded(self) -> list[str]:
        """The keys of all recorded calls, in the order of recording."""
        return [key for (key,) in self._rows(_SELECT_KEYS)]

    def judges(self) -> list[bytes]:
        """JSON of provider, model and sampling for every combination that was recorded."""
        return [judge for (judge,) in self._rows(_SELECT_JUDGES)]

    def _rows(self, query: str, *values: bytes | int) -> list[tuple[Any, ...]]:
        with self._lock:
            connection = self._connection or self._open()
            return connection.execute(query, values).fetchall()

    # -- writing ---------------------------------------------------------------------------------

    def write_later(self, row: Row) -> None:
        """Write ``row`` with the next batch; at once where no event loop runs."""
        if self._closed:
            raise ConfigError(f"{self.path}: this cache was closed")
        pending = self._pending
        pending.append(row)
        if len(pending) >= self._flush_at:
            self.flush()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush(_CLOSE_WAIT_MS)
            return
        if self._timer_loop is not loop and pending:
            # A timer of another loop may never fire: that loop may be closed.
            self._timer_loop = loop
            loop.call_later(BATCH_S, self._on_timer)
        if _exiting:
            self.flush()

    def _on_timer(self) -> None:
        self._timer_loop = None
        if not self._closed and not self.flush():
            self._timer_loop = asyncio.get_running_loop()
            self._timer_loop.call_later(BATCH_S, self._on_timer)

    def flush(self, wait_ms: int = _LOOP_WAIT_MS) -> bool:
        """Commit what is pending; False when it could not be done now (it stays pending)."""
        with self._lock:
            rows = self._pending[:]
            if not rows:
                return True
            connection = self._connection or self._open()
            try:
                connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
                self._commit(connection, rows)
                connection.execute(f"PRAGMA busy_timeout = {READ_WAIT_MS}")
            except sqlite3.Error as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                connection.execute(f"PRAGMA busy_timeout = {READ_WAIT_MS}")
                self._flush_at = len(rows) + BATCH_ROWS
                self._complain(error)
                return False
            del self._pending[: len(rows)]
            self._flush_at = BATCH_ROWS
            return True

    def _commit(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        drift = self._drift(connection, rows) if self._replace else []
        connection.executemany(_REPLACE if self._replace else _KEEP, [row[:5] for row in rows])
        judges = {row.judge for row in rows if row.judge is not None} - self._judges
        insert = "INSERT OR IGNORE INTO judges (judge) VALUES (?)"
        connection.executemany(insert, [(judge,) for judge in judges])
        connection.execute("COMMIT")
        self._judges |= judges
        self.compared += len(drift)
        self.changed += [key for key, same in drift if not same]

    def _drift(self, connection: sqlite3.Connection, rows: list[Row]) -> list[tuple[str, bool]]:
        """For each row that stands in the file already: its key, and whether the text is equal."""
        found = []
        for row in rows:
            old = connection.execute(_SELECT, (row.key,)).fetchone()
            if old is not None:
                found.append((row.key.hex(), _text(old[2]) == _text(row.reply)))
        return found

    def _complain(self, error: sqlite3.Error) -> None:
        if not self._warned and not is_busy(error):
            self._warned = True
            _log.warning(
                "%s: replies cannot be written now and wait in memory: %s", self.path, error
            )

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is pending and close; the last one to close leaves one plain file.

        Raises :class:`~adjudge.errors.ConfigError` when replies could not be written.
        """
        if self._closed:
            return
        written = self.flush(_CLOSE_WAIT_MS)
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):  # others still use it: they tidy up
                if self._writable:
                    connection.execute("PRAGMA busy_timeout = 0")
                    connection.execute("PRAGMA journal_mode = DELETE")
            connection.close()
        if not written:
            lost, self._pending = len(self._pending), []
            raise ConfigError(f"{self.path}: {lost} replies could not be written")

    def forked(self) -> None:
        """In a forked child: leave the parent's handle and its pending rows alone."""
        _inherited.append(self._connection)
        self._connection = None
        self._pending = []
        self._timer_loop = None
        self._lock = threading.Lock()


def _text(reply: bytes) -> str | None:
    try:
        return decode_reply(reply).text
    except ValueError:
        return None


_files: weakref.WeakSet[CacheFile] = weakref.WeakSet()
# Kept referenced for ever: SQLite forbids a child to close what its parent opened.
_inherited: list[sqlite3.Connection | None] = []
_exiting = False


def _after_fork() -> None:
    for file in list(_files):
        file.forked()


def _at_exit() -> None:
    global _exiting  # noqa: PLW0603  (the process exits once)
    _exiting = True  # what a loop of a daemon thread still brings is written at once
    for file in list(_files):
        try:
            written = file.flush(_CLOSE_WAIT_MS)
        except ConfigError:
            written = False
        if not written:
            _log.warning("%s: replies could not be written before the exit", file.path)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
