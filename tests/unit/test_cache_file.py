"""The cassette file: altered, foreign, odd, and what is in it."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
from pathlib import Path

import pytest
from tests.unit.helpers.cassettes import (
    a_call,
    a_reply,
    failure_of,
    files,
    opened,
    record,
    refuses_file,
)

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.cassette import CacheMode, ReplyCache


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "judge.sqlite"


def alter(path: Path, statement: str, *values: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


# -- a file that was altered ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "outcome = replace(outcome, 'reply 0', 'reply 1')",
        "outcome = CAST(replace(outcome, 'reply 0', 'reply 1') AS BLOB)",
        "outcome = 7",
        "digest = zeroblob(16)",
        "digest = 1.5",
    ],
)
@pytest.mark.parametrize("mode", ["record", "replay"])
def test_an_altered_reply_is_never_served(path: Path, change: str, mode: CacheMode) -> None:
    (key,) = record(path, a_call())
    alter(path, f"UPDATE calls SET {change} WHERE key != ''")
    with opened(path, mode, sampled=True) as cache:
        failure = failure_of(cache, a_call())
    assert failure.kind is ErrorKind.INVALID_INPUT
    assert key in str(failure)
    assert "checksum" in str(failure)


@pytest.mark.parametrize("mode", ["record", "replay"])
def test_a_file_with_a_damaged_page_is_one_message(path: Path, mode: CacheMode) -> None:
    calls = [a_call(model=f"model {number}") for number in range(60)]
    record(path, *calls)
    whole, refused = path.read_bytes(), set()
    for offset in range(100, len(whole), 1024):
        path.write_bytes(whole[:offset] + bytes(64) + whole[offset + 64 :])
        try:
            with opened(path, mode, sampled=True) as cache:
                for call in (*calls, a_call(model="another")):
                    with contextlib.suppress(GradingFailure):
                        cache.get(cache.key(call, "openai"))
        except ConfigError as error:
            refused.add(error.where)
    assert refused == {str(path)}


def test_a_reply_moved_to_another_row_is_never_served(path: Path) -> None:
    keys = record(path, a_call(), a_call(draw=1))
    alter(path, "DELETE FROM calls WHERE key = ?", keys[0])
    alter(path, "UPDATE calls SET key = ? WHERE key != ''", keys[0])
    with opened(path, "replay") as cache:
        assert "checksum" in str(failure_of(cache, a_call()))


def test_an_altered_call_is_not_compared_with(path: Path) -> None:
    record(path, a_call())
    alter(path, "UPDATE calls SET call = replace(call, 'judge', 'fudge')")
    with opened(path, "replay") as cache:
        assert "no call to compare with" in str(failure_of(cache, a_call(draw=1)))


# -- files ---------------------------------------------------------------------------------------


def test_files_are_for_their_owner_only_and_one_at_rest(path: Path) -> None:
    cache = ReplyCache(path)
    cache.keep(cache.key(a_call(), "p"), a_reply(), a_call())
    cache._file.flush()
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert (modes, len(files(path)) > 1) == ({0o600}, True)
    cache.close()
    assert files(path) == [path.name]


@pytest.mark.parametrize("mode", ["record", "replay"])
def test_a_file_that_is_no_cassette_is_refused_and_left_alone(path: Path, mode: CacheMode) -> None:
    path.write_text('{"not": "a database"}' * 100)
    with refuses_file(path):
        ReplyCache(path, mode)
    path.unlink()
    alter(path, "CREATE TABLE meta (mine)")
    before = path.read_bytes()
    with refuses_file(path):
        ReplyCache(path, mode)
    assert path.read_bytes() == before
    path.unlink()
    path.mkdir()
    with refuses_file(path):
        ReplyCache(path, mode)


@pytest.mark.parametrize("change", ["PRAGMA user_version = 99", "DELETE FROM calls"])
@pytest.mark.parametrize("mode", ["record", "replay"])
def test_another_format_is_refused(path: Path, mode: CacheMode, change: str) -> None:
    record(path, a_call())
    alter(path, change)
    with refuses_file(path):
        ReplyCache(path, mode)


def test_a_folder_is_made_for_it_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    record(tmp_path / "a" / "b" / "c.sqlite", a_call())
    (tmp_path / "file").touch()
    with refuses_file(tmp_path / "file" / "c.sqlite"):
        ReplyCache(tmp_path / "file" / "c.sqlite")


def test_the_fence_key_is_drawn_once(path: Path, tmp_path: Path) -> None:
    with opened(path) as cache:
        key = cache.fence_key
    assert len(key) == 32
    modes: list[CacheMode] = ["record", "replay"]
    for mode in modes:
        with opened(path, mode) as cache:
            assert cache.fence_key == key
    with opened(tmp_path / "other.sqlite") as cache:
        assert cache.fence_key != key
