"""Replies on their way into a cassette file: in batches, by one thread, on its own connection.

Committing and SQLite's checkpoints wait for the disk, tens of milliseconds in a file of some size;
the event loop does not wait with them. The thread runs as long as something is pending, so an idle
cache has none. What a crash may lose is what is pending; a batch is in the file whole or not at
all. While another process holds the write lock, batches wait in memory and grow.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from adjudge.errors import ConfigError
from adjudge.judges.cache_key import decode_reply
from adjudge.judges.cache_schema import is_busy, open_cassette

__all__ = ["CLOSE_WAIT_MS", "FLUSH_WAIT_MS", "CacheWriter", "Row"]

BATCH_S = 0.05
BATCH_ROWS = 100
FLUSH_WAIT_MS = 25
"""How long a batch waits for another process's lock before it is tried again, in milliseconds."""
CLOSE_WAIT_MS = 30_000
"""The same for the last batch, and for a reply that is written at once."""
_FORK_WAIT_S = 1.0

_SELECT = "SELECT CAST(reply AS BLOB) FROM replies WHERE key = ?"
_INSERT = "INSERT INTO {} (key, digest, sampled, reply, call) VALUES "
_KEEP = " ON CONFLICT (key) DO NOTHING"
_REPLACE = (
    " ON CONFLICT (key) DO UPDATE SET digest = excluded.digest,"
    " sampled = excluded.sampled, reply = excluded.reply, call = excluded.call"
)
_DELETE = "DELETE FROM replies WHERE key IN ({})"
_INSERT_JUDGE = "INSERT OR IGNORE INTO judges (judge) VALUES (?)"

_log = logging.getLogger(__name__)


class Row(NamedTuple):
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


class CacheWriter:
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
        self._pending: dict[bytes, Row] = {}
        self._guard = threading.Lock()  # of what is pending; never held for long
        self._lock = threading.RLock()  # of the connection; held while a batch is written
        self._full = threading.Event()
        self._running = False
        self._connection: sqlite3.Connection | None = None

    def pending(self, key: bytes) -> Row | None:
        """The row of ``key`` that is not in the file yet, if any."""
        return self._pending.get(key)

    def add(self, row: Row, *, at_once: bool) -> None:
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
            self._complain(error)
            return False
        with self._guard:
            for row in rows:
                if self._pending.get(row.key) is row:
                    del self._pending[row.key]
        return True

    def _commit(self, rows: list[Row], wait_ms: int) -> None:
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

    def _insert(self, connection: sqlite3.Connection, rows: list[Row]) -> None:
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
                conflict = _REPLACE if replace else _KEEP
                connection.execute(_INSERT.format(table) + places + conflict, values)

    def _drift(self, connection: sqlite3.Connection, rows: list[Row]) -> list[tuple[str, bool]]:
        """For each reply that stands in the file already: its key, and whether the text is equal.

        One that stood there until its call failed counts, too.
        """
        found = []
        for row in rows:
            kept = connection.execute(_SELECT, (row.key,)).fetchone()
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

    def _complain(self, error: Exception) -> None:
        busy = isinstance(error, sqlite3.Error) and is_busy(error)
        if not self._warned and not busy:
            self._warned = True
            _log.warning(
                "%s: replies cannot be written now and wait in memory: %s", self.path, error
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
        return self._lock.acquire(timeout=_FORK_WAIT_S)

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
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
