"""How replies get into the file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest
from tests.unit.helpers.cassettes import (
    a_call,
    opened,
    put_many,
    record,
    stored,
    until_stored,
)

from adjudge.errors import ConfigError
from adjudge.judges import cassette_file as cassette
from adjudge.judges.cassette import ReplyCache
from adjudge.judges.cassette_file import CassetteFile, CassetteRow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "judge.sqlite"


def text_of(cache: ReplyCache, number: int) -> str | None:
    reply = cache.get(cache.key(a_call(draw=number), "openai"))
    return None if reply is None else reply.text


def test_the_loop_goes_on_and_reads_while_a_batch_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread stands in the middle of its transaction until the loop has done all this."""
    record(path, a_call(draw=999), text="old")
    monkeypatch.setattr(cassette, "BATCH_S", 0.0)
    begun, go_on = threading.Event(), threading.Event()
    commit = CassetteFile._commit

    def waits(self: CassetteFile, rows: list[CassetteRow], wait_ms: int) -> None:
        begun.set()
        assert go_on.wait(60)
        commit(self, rows, wait_ms)

    monkeypatch.setattr(CassetteFile, "_commit", waits)

    async def main(cache: ReplyCache) -> None:
        put_many(cache, range(1))
        while not begun.is_set():  # noqa: ASYNC110  (an event of threads)
            await asyncio.sleep(0.001)
        put_many(cache, range(1, 250))
        found = [text_of(cache, number) for number in (0, 1, 249, 999)]
        assert found == ["reply 0", "reply 1", "reply 249", "old"]
        assert text_of(cache, 250) is None
        assert stored(path) == 1
        go_on.set()
        await until_stored(path, 251)

    with opened(path, sampled=True) as kept:
        try:
            asyncio.run(main(kept))
        finally:
            go_on.set()


def test_where_no_thread_can_be_started_replies_are_written_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main(cache: ReplyCache) -> None:
        put_many(cache, range(2))
        assert stored(path) == 2

    with opened(path) as cache:
        monkeypatch.setattr(threading.Thread, "start", refuses)
        asyncio.run(main(cache))


def test_replies_that_cannot_be_written_are_not_lost_in_silence(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cassette, "CLOSE_WAIT_MS", 0)
    cache = ReplyCache(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("ALTER TABLE calls RENAME TO others")
        put_many(cache, range(2))
        cache._file.flush()
    assert "replies cannot be written now" in caplog.text
    with pytest.raises(ConfigError, match="2 replies could not be written"):
        cache.close()
    with pytest.raises(ConfigError, match="was closed"):
        put_many(cache, range(1))
