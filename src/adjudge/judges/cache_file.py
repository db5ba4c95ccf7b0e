"""The SQLite file behind the reply cache: reading, forks, exit.

Several processes may use one file: while it is written it is in WAL mode, and the last one to
close leaves one plain file behind, fit for version control and read-only places. Writing is the
business of ``cache_writer``; what is on its way there is read from it.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.judges.cache_schema import open_cassette
from adjudge.judges.cache_writer import CLOSE_WAIT_MS, FLUSH_WAIT_MS, CacheWriter, Row

__all__ = ["CacheFile", "Row"]

_FORK_WAIT_S = 1.0
# CAST and hex: SQLite columns hold values of any type, and the file may come from anywhere.
_SELECT = "SELECT digest, sampled, CAST(reply AS BLOB), 0 FROM replies WHERE key = ?"
_SELECT_FAILED = "SELECT digest, sampled, CAST(reply AS BLOB), failed FROM recorded WHERE key = ?"
_SELECT_CALL = "SELECT CAST(call AS BLOB) FROM recorded WHERE key = ?"
_SELECT_CALLS = (
    "SELECT lower(hex(key)), CAST(call AS BLOB) FROM recorded"
    " WHERE call IS NOT NULL ORDER BY failed, place LIMIT ?"
)
_SELECT_KEYS = "SELECT lower(hex(key)) FROM recorded ORDER BY failed, place"
_SELECT_JUDGES = "SELECT CAST(judge AS BLOB) FROM judges ORDER BY judge"

_log = logging.getLogger(__name__)


class CacheFile:
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
        self._writer = CacheWriter(path, replace=replace)
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
            row = connection.execute(_SELECT, (raw,)).fetchone()
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
            return connection.execute(query, values).fetchall()

    # -- writing ---------------------------------------------------------------------------------

    @property
    def compared(self) -> int:
        """How many rows stood in the file already, under ``replace``."""
        return self._writer.compared

    @property
    def changed(self) -> list[str]:
        """The keys of those whose reply has another text now."""
        return self._writer.changed

    def write_later(self, row: Row) -> None:
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


_files: weakref.WeakSet[CacheFile] = weakref.WeakSet()
# Kept referenced for ever: SQLite forbids a child to close what its parent opened.
_inherited: list[sqlite3.Connection | None] = []
_held: list[Callable[[], None]] = []
_exiting = False


def _before_fork() -> None:
    for file in list(_files):
        _held.extend(file.hold())


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop()()


def _after_fork() -> None:
    _held.clear()
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
