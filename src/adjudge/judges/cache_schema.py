"""Opening a cassette file: creation, schema version, journal mode.

Four tables: ``meta`` (schema version, fence key), ``replies`` (key, checksum, reply, call),
``failures`` (the same for calls that failed; a reply of the same key goes before it, so a refresh
deletes the reply of a call that fails now; files of older versions lack this table) and ``judges``
(each provider, model and sampling that was recorded). The view ``recorded`` is one row a call: its
reply, else its failure. Keys are 32 bytes; texts are JSON in BLOBs, which carry what SQLite's own
text cannot (NUL, lone surrogates).
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from pathlib import Path

from adjudge.errors import ConfigError

__all__ = ["READ_WAIT_MS", "SCHEMA_VERSION", "is_busy", "open_cassette"]

SCHEMA_VERSION = 1
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
_FAILURES = _REPLIES.replace("TABLE replies", "TABLE IF NOT EXISTS failures")
_VIEW = (
    "CREATE TEMP VIEW recorded AS SELECT key, digest, sampled, reply, call, 0 AS failed,"
    " rowid AS place FROM replies"
)
_VIEW_FAILURES = (
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
        raise ConfigError(f"{path}: no such cassette; record it first (mode 'record')")
    attempts = _ATTEMPTS
    while True:
        try:
            return _opened(path, writable)
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


def _opened(path: Path, writable: bool) -> tuple[sqlite3.Connection, bytes]:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rw' if writable else 'ro'}",
        uri=True,
        timeout=READ_WAIT_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        return connection, _prepared(connection, path, writable)
    except (sqlite3.Error, ConfigError):
        connection.close()
        raise


def _prepared(connection: sqlite3.Connection, path: Path, writable: bool) -> bytes:
    connection.execute("PRAGMA trusted_schema = OFF")
    if not _is_cassette(connection, path):
        if not writable:
            raise ConfigError(f"{path}: is empty, not a cassette; record it first")
        _initialise(connection, path)
    if writable:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(_FAILURES)
    has_failures = "failures" in _tables(connection)
    connection.execute(_VIEW + _VIEW_FAILURES if has_failures else _VIEW)
    fence_key = _meta(connection, "fence_key")
    if not isinstance(fence_key, bytes):
        raise ConfigError(f"{path}: has lost its fence key; record it again")
    return fence_key


def _is_cassette(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has our tables; raises unless it has, or is empty."""
    tables = _tables(connection)
    if not tables:
        return False
    if not tables >= {"meta", "replies", "judges"}:
        raise ConfigError(f"{path}: is a SQLite database, but not a cassette")
    version = _meta(connection, "schema")
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: has schema version {version!r} and this adjudge reads version "
            f"{SCHEMA_VERSION}; record it again, or use the adjudge that wrote it"
        )
    return True


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def _meta(connection: sqlite3.Connection, name: str) -> object:
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
