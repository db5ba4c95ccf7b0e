"""Calls, replies and cassettes for tests of the cache."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError, GradingFailure
from adjudge.judges.base import ChatCall, Reply
from adjudge.judges.cassette import CacheMode, ReplyCache
from adjudge.types import Provenance, Usage

SECRET = "the candidate's words"
MESSAGES = [
    {"role": "system", "content": "You are a judge."},
    {"role": "user", "content": SECRET + " end"},
]
SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}}


def a_call(**changes: Any) -> ChatCall:
    given: dict[str, Any] = {
        "model": "gpt-4o-mini",
        "messages": MESSAGES,
        "sampling": {"temperature": 0},
    }
    return ChatCall(**(given | changes))


def a_reply(text: str = '{"score": 4}') -> Reply:
    live = Provenance(source="live", model="gpt-4o-mini-1", latency_s=0.3, attempts=2)
    return Reply(
        text=text,
        finish_reason="stop",
        usage=Usage(input_tokens=9, cost_usd=0.1),
        model="gpt-4o-mini-1",
        provenance=live,
    )


def record(path: Path, *calls: ChatCall, text: str = "") -> list[str]:
    cache = ReplyCache(path, sampled=True)
    keys = [cache.key(call, "openai") for call in calls]
    for number, (key, call) in enumerate(zip(keys, calls, strict=True)):
        cache.keep(key, a_reply(text or f"reply {number}"), call)
    cache.close()
    return keys


@contextlib.contextmanager
def opened(path: Path, mode: CacheMode = "record", **options: Any) -> Iterator[ReplyCache]:
    cache = ReplyCache(path, mode, **options)
    try:
        yield cache
    finally:
        cache.close()


def stored(path: Path) -> int:
    """How many replies another process would find."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(
            connection.execute(
                "SELECT count(*) FROM calls WHERE NOT failed AND key != ''"
            ).fetchone()[0]
        )


def refuses_file(path: Path) -> pytest.RaisesExc[ConfigError]:
    """The block raises a `ConfigError` about this file."""
    return pytest.raises(ConfigError, check=lambda error: error.where == str(path))


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


async def until_stored(path: Path, count: int) -> None:
    for _ in range(20_000):
        if stored(path) == count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{stored(path)} of {count} replies were written")


def failure_of(cache: ReplyCache, call: ChatCall, provider: str = "openai") -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        cache.get(cache.key(call, provider))
    return caught.value


def put_many(cache: ReplyCache, numbers: range) -> None:
    for number in numbers:
        call = a_call(draw=number)
        cache.keep(cache.key(call, "openai"), a_reply(f"reply {number}"), call)
