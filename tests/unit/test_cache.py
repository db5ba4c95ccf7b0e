"""The reply cache: its four modes, its file, and what other processes see of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges import cache_file
from adjudge.judges.base import ChatCall, Reply
from adjudge.judges.cache import CacheMode, ReplyCache
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "judge.sqlite"


def record(path: Path, *calls: ChatCall, text: str = "", mode: CacheMode = "record") -> list[str]:
    cache = ReplyCache(path, mode, sampled=True)
    keys = [cache.key(call, "openai") for call in calls]
    for number, (key, call) in enumerate(zip(keys, calls, strict=True)):
        cache.put(key, a_reply(text or f"reply {number}"), call)
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
        return int(connection.execute("SELECT count(*) FROM replies").fetchone()[0])


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


async def until_stored(path: Path, count: int) -> None:
    for _ in range(20_000):
        if stored(path) == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{stored(path)} of {count} replies were written")


def failure_of(cache: ReplyCache, call: ChatCall, provider: str = "openai") -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        cache.get(cache.key(call, provider))
    return caught.value


# -- modes ---------------------------------------------------------------------------------------


def test_record_answers_what_it_stored_in_memory_and_from_the_file(path: Path) -> None:
    call, reply = a_call(), a_reply()
    with opened(path) as cache:
        key = cache.key(call, "openai")
        assert cache.get(key) is None
        cache.put(key, reply, call)
        from_memory = cache.get(key)
    with opened(path) as cache:
        assert cache.get(key) == from_memory
        assert cache.get(key) == from_memory  # from memory now
        assert cache.report().hits == 2
    assert from_memory is not None
    assert (from_memory.text, from_memory.usage) == (reply.text, reply.usage)
    assert from_memory.provenance == Provenance(source="cache", model="gpt-4o-mini-1", attempts=0)


def test_draws_share_no_reply(path: Path) -> None:
    calls = [a_call(draw=draw) for draw in range(3)]
    keys = record(path, *calls)
    with opened(path, "replay") as cache:
        texts = [reply.text for key in keys if (reply := cache.get(key)) is not None]
    assert texts == ["reply 0", "reply 1", "reply 2"]


def test_replay_answers_from_the_cassette_only_and_changes_nothing(path: Path) -> None:
    (key,) = record(path, a_call())
    before = path.read_bytes()
    with opened(path, "replay") as cache:
        reply = cache.get(key)
        failure = failure_of(cache, a_call(draw=1))
        with pytest.raises(RuntimeError, match="stores nothing"):
            cache.put(key, a_reply())
    assert reply is not None
    assert reply.provenance.source == "cassette"
    assert failure.kind is ErrorKind.UNSUPPORTED
    assert "not in the cassette" in str(failure)
    assert path.read_bytes() == before
    assert files(path) == [path.name]


def test_refresh_never_answers_and_counts_what_changed(path: Path) -> None:
    calls = [a_call(draw=draw) for draw in range(3)]
    keys = record(path, *calls)
    with opened(path, "refresh") as cache:
        for key, call, text in zip(keys, calls, ["reply 0", "other", "reply 2"], strict=True):
            assert cache.get(key) is None
            cache.put(key, a_reply(text), call)
            assert cache.get(key) is None
        new = a_call(draw=9)
        cache.put(cache.key(new, "openai"), a_reply(), new)
        report = cache.report()
    assert (report.compared, report.changed) == (3, (keys[1],))
    assert (report.hits, report.stored) == (0, 4)
    with opened(path, "replay") as cache:
        again = cache.get(keys[1])
    assert again is not None
    assert again.text == "other"


def test_record_does_not_replace_what_another_process_stored_first(path: Path) -> None:
    call = a_call()
    with opened(path) as slow:
        key = slow.key(call, "openai")
        record(path, call, text="first")
        slow.put(key, a_reply("second"), call)
    with opened(path, "replay") as cache:
        reply = cache.get(key)
    assert reply is not None
    assert reply.text == "first"


def test_an_unknown_mode_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="'repaly'.*record, replay, strict, refresh"):
        ReplyCache(path, "repaly")  # type: ignore[arg-type]  # what a spec may say
    assert not path.exists()


# -- sampling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"temperature": 1, "seed": 3}])
def test_sampled_replies_are_stored_only_when_asked_for(
    path: Path, sampling: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    call = a_call(sampling=sampling)
    with opened(path) as cache:
        key = cache.key(call, "openai")
        cache.put(key, a_reply(), call)
        assert cache.get(key) is None
        assert (cache.report().stored, cache.report().not_stored) == (0, 1)
    assert "none of 1 replies was stored" in caplog.text
    record(path, call)
    with opened(path) as cache:
        assert cache.get(key) is None
    with opened(path, sampled=True) as cache:
        assert cache.get(key) is not None
    with opened(path, "replay") as cache:
        assert cache.get(key) is not None


# -- strict --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "gpt-5"}, {"model": "gpt-4o-mini → gpt-5"}),
        ({"draw": 1}, {"draw": "0 → 1"}),
        ({"logprobs": True}, {"logprobs": "False → True"}),
        ({"sampling": {"temperature": 0.0}}, {"sampling.temperature": "0 → 0.0"}),
        ({"sampling": {"temperature": 0, "seed": 1}}, {"sampling.seed": "absent → 1"}),
        ({"messages": MESSAGES[:1]}, {"messages": "2 → 1 messages"}),
        ({"choices": ["A", "B"]}, {"choices": "None → list of 2"}),
        ({"schema": SCHEMA}, {"schema": "None → dict of 2"}),
        (
            {"messages": [MESSAGES[0], {"role": "user", "content": SECRET + " END"}]},
            {"messages[1].content": "25 characters"},
        ),
        (
            {"messages": [MESSAGES[0], MESSAGES[1] | {"name": "x"}]},
            {"messages[1].name": "absent → 1 characters"},
        ),
    ],
)
def test_a_strict_miss_names_what_changed(
    path: Path, changes: dict[str, Any], named: dict[str, str]
) -> None:
    other = [{"role": "user", "content": "another thing altogether"}]
    keys = record(path, a_call(messages=other, draw=5), a_call(), a_call(messages=other, draw=6))
    with opened(path, "strict") as cache:
        failure = failure_of(cache, a_call(**changes))
    assert failure.kind is ErrorKind.UNSUPPORTED
    assert failure.metadata["nearest"] == keys[1]
    changed = failure.metadata["changed"]
    assert changed.keys() == named.keys()
    for name, how in named.items():
        assert changed[name].startswith(how)
        assert name in str(failure)
    assert SECRET not in str(failure) + json.dumps(failure.metadata)


def test_a_strict_miss_says_where_a_text_differs_first(path: Path) -> None:
    record(path, a_call())
    changed = [MESSAGES[0], {"role": "user", "content": SECRET + " End"}]
    with opened(path, "strict") as cache:
        failure = failure_of(cache, a_call(messages=changed))
    assert f"first difference at {len(SECRET) + 1}" in str(failure)


def test_a_strict_miss_by_another_provider_shows_no_address(path: Path) -> None:
    record(path, a_call())
    with opened(path, "strict") as cache:
        failure = failure_of(cache, a_call(), "https://user:key@host/v1")
    assert list(failure.metadata["changed"]) == ["provider"]
    assert "key@host" not in str(failure) + json.dumps(failure.metadata)


def test_strict_on_an_empty_cassette_and_on_odd_text(path: Path) -> None:
    record(path)
    with opened(path, "strict") as cache:
        assert "no call to compare with" in str(failure_of(cache, a_call()))
    odd = [{"role": "user", "content": "\ud800 a\x00b"}]
    (key,) = record(path, a_call(messages=odd))
    with opened(path, "strict") as cache:
        assert cache.get(key) is not None
        failure = failure_of(cache, a_call(messages=[odd[0] | {"content": "\udfff"}]))
        assert list(failure.metadata["changed"]) == ["messages[0].content"]


def test_strict_lists_recorded_calls_that_were_never_asked(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = record(path, *(a_call(draw=draw) for draw in range(30)))
    cache = ReplyCache(path, "strict")
    assert cache.get(keys[3]) is not None
    report = cache.close()
    assert report.never_asked == 29
    assert len(report.never_asked_calls) == 20
    assert report.never_asked_calls[0].startswith(f"{keys[0][:12]} (model gpt-4o-mini, 2 messages")
    assert "29 recorded calls were never asked" in caplog.text
    assert SECRET not in caplog.text
    assert cache.close() == report


# -- a file that was altered ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "reply = replace(reply, 'reply 0', 'reply 1')",
        "reply = CAST(replace(reply, 'reply 0', 'reply 1') AS BLOB)",
        "reply = 7",
        "digest = zeroblob(16)",
        "digest = 1.5",
    ],
)
@pytest.mark.parametrize("mode", ["record", "replay", "strict"])
def test_an_altered_reply_is_never_served(path: Path, change: str, mode: CacheMode) -> None:
    (key,) = record(path, a_call())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE replies SET {change}")
    with opened(path, mode, sampled=True) as cache:
        failure = failure_of(cache, a_call())
    assert failure.kind is ErrorKind.INVALID_INPUT
    assert key in str(failure)
    assert "checksum" in str(failure)
    record(path, a_call(), mode="refresh")
    with opened(path, "replay") as cache:
        assert cache.get(key) is not None


def test_a_reply_moved_to_another_row_is_never_served(path: Path) -> None:
    keys = record(path, a_call(), a_call(draw=1))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM replies WHERE key = ?", (bytes.fromhex(keys[0]),))
        connection.execute("UPDATE replies SET key = ?", (bytes.fromhex(keys[0]),))
    with opened(path, "replay") as cache:
        assert "checksum" in str(failure_of(cache, a_call()))


def test_an_altered_call_is_not_compared_with(path: Path) -> None:
    record(path, a_call())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE replies SET call = replace(call, 'judge', 'fudge')")
    with opened(path, "strict") as cache:
        assert "was altered" in str(failure_of(cache, a_call(draw=1)))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE replies SET call = 5")
    with opened(path, "strict") as cache:
        assert "not in the cassette" in str(failure_of(cache, a_call(draw=1)))


# -- files ---------------------------------------------------------------------------------------


def test_files_are_for_their_owner_only_and_one_at_rest(path: Path) -> None:
    cache = ReplyCache(path)
    cache.put(cache.key(a_call(), "p"), a_reply(), a_call())
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert (modes, len(files(path)) > 1) == ({0o600}, True)
    cache.close()
    assert files(path) == [path.name]


@pytest.mark.parametrize("mode", ["record", "replay", "strict", "refresh"])
def test_a_file_that_is_no_cassette_is_refused_and_left_alone(path: Path, mode: CacheMode) -> None:
    path.write_text('{"not": "a database"}' * 100)
    with pytest.raises(ConfigError, match="not a database"):
        ReplyCache(path, mode)
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE meta (mine)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="but not a cassette"):
        ReplyCache(path, mode)
    assert path.read_bytes() == before
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match=str(path)):
        ReplyCache(path, mode)


def test_another_schema_version_is_refused(path: Path) -> None:
    record(path, a_call())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
    modes: list[CacheMode] = ["record", "strict"]
    for mode in modes:
        with pytest.raises(ConfigError, match="schema version 99 and this adjudge reads version 1"):
            ReplyCache(path, mode)


@pytest.mark.parametrize("mode", ["replay", "strict"])
def test_a_cassette_to_replay_must_exist(path: Path, mode: CacheMode) -> None:
    with pytest.raises(ConfigError, match="no such cassette"):
        ReplyCache(path, mode)
    path.touch()
    with pytest.raises(ConfigError, match="empty"):
        ReplyCache(path, mode)


def test_a_folder_is_made_for_it_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    record(tmp_path / "a" / "b" / "c.sqlite", a_call())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be created"):
        ReplyCache(tmp_path / "file" / "c.sqlite")


def test_odd_file_names_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "what? 100%#.sqlite"
    (key,) = record(path, a_call())
    assert files(path) == [path.name]
    with opened(path, "replay") as cache:
        assert cache.get(key) is not None


def test_the_fence_key_is_drawn_once(path: Path, tmp_path: Path) -> None:
    with opened(path) as cache:
        key = cache.fence_key
    assert len(key) == 32
    modes: list[CacheMode] = ["record", "replay", "strict", "refresh"]
    for mode in modes:
        with opened(path, mode) as cache:
            assert cache.fence_key == key
    with opened(tmp_path / "other.sqlite") as cache:
        assert cache.fence_key != key


def blank(text: str) -> str:
    head, _, tail = text.partition("TAG:")
    return head + tail[2:]


def test_blanked_text_does_not_count_and_is_not_stored(path: Path) -> None:
    def call(tag: str, rest: str = "x") -> ChatCall:
        part = {"type": "text", "text": f"TAG:{tag}{rest}"}
        return a_call(messages=[{"role": "user", "content": [part, {"type": "image_url"}]}])

    with opened(path, blank=blank) as cache:
        key = cache.key(call("11"), "p")
        assert cache.key(call("22"), "p") == key
        assert cache.key(call("11", "y"), "p") != key
        cache.put(key, a_reply(), call("33"))
        copy = pickle.loads(pickle.dumps(cache))
        assert copy.key(call("44"), "p") == key
        assert copy.close() is not None
    with opened(path, "strict", blank=blank) as cache:
        assert cache.get(cache.key(call("55"), "p")) is not None
        changed = failure_of(cache, call("55", "y"), "p").metadata["changed"]
        assert list(changed) == ["messages[0].content"]


# -- writing -------------------------------------------------------------------------------------


def put_many(cache: ReplyCache, numbers: range) -> None:
    for number in numbers:
        call = a_call(draw=number)
        cache.put(cache.key(call, "openai"), a_reply(f"reply {number}"), call)


def test_writes_wait_for_their_batch_and_are_answered_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_file, "BATCH_S", 0.0)

    async def main(cache: ReplyCache) -> None:
        put_many(cache, range(3))
        assert stored(path) == 0
        assert cache.get(cache.key(a_call(draw=2), "openai")) is not None
        await until_stored(path, 3)
        put_many(cache, range(3, 3 + cache_file.BATCH_ROWS))
        assert stored(path) == 3 + cache_file.BATCH_ROWS

    with opened(path) as cache:
        asyncio.run(main(cache))


def test_a_batch_survives_its_loop(path: Path) -> None:
    async def main(cache: ReplyCache, numbers: range) -> None:
        put_many(cache, numbers)

    with opened(path) as cache:
        for step in range(3):
            asyncio.run(main(cache, range(step, step + 1)))
        assert stored(path) < 3
    assert stored(path) == 3


def test_a_timer_that_died_with_its_loop_holds_nothing_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(cache: ReplyCache, number: int) -> None:
        put_many(cache, range(number, number + 1))
        if number:
            await until_stored(path, 2)

    with opened(path) as cache:
        asyncio.run(main(cache, 0))
        monkeypatch.setattr(cache_file, "BATCH_S", 0.0)
        asyncio.run(main(cache, 1))


def test_without_a_loop_each_reply_is_written_at_once(path: Path) -> None:
    with opened(path) as cache:
        put_many(cache, range(2))
        assert stored(path) == 2


def test_while_another_process_writes_replies_wait_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_file, "_LOOP_WAIT_MS", 0)
    monkeypatch.setattr(cache_file, "BATCH_S", 0.0)

    async def main(cache: ReplyCache, other: sqlite3.Connection) -> None:
        other.execute("BEGIN IMMEDIATE")
        put_many(cache, range(250))
        await asyncio.sleep(0.01)
        assert cache.get(cache.key(a_call(draw=1), "openai")) is not None
        other.execute("ROLLBACK")
        await until_stored(path, 250)

    with opened(path) as cache, contextlib.closing(sqlite3.connect(path)) as other:
        asyncio.run(main(cache, other))


def test_replies_that_cannot_be_written_are_not_lost_in_silence(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_file, "_CLOSE_WAIT_MS", 0)
    cache = ReplyCache(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE judges")
        put_many(cache, range(2))
    assert "no such table" in caplog.text
    with pytest.raises(ConfigError, match="2 replies could not be written"):
        cache.close()
    with pytest.raises(ConfigError, match="was closed"):
        put_many(cache, range(1))


def test_a_call_whose_messages_grew_meanwhile_is_stored_under_its_key(path: Path) -> None:
    messages = [dict(message) for message in MESSAGES]
    call = a_call(messages=messages)
    with opened(path) as cache:
        key = cache.key(call, "openai")
        messages.append({"role": "assistant", "content": "more"})
        cache.put(key, a_reply(), call)
    with opened(path, "strict") as cache:
        assert cache.get(cache.key(a_call(), "openai")) is not None
        assert "no call to compare with" in str(failure_of(cache, a_call(draw=1)))


def test_memory_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adjudge.judges import cache as module

    monkeypatch.setattr(module, "_MEMORY", 4)
    with opened(path) as cache:
        put_many(cache, range(20))
        assert len(cache._memory) == 4
        for number in range(20):
            reply = cache.get(cache.key(a_call(draw=number), "openai"))
            assert reply is not None
            assert reply.text == f"reply {number}"
            assert len(cache._memory) <= 4


# -- processes -----------------------------------------------------------------------------------

PRELUDE = """
import asyncio, os, pickle, sys, time
from pathlib import Path
from adjudge.judges.base import ChatCall, Reply
from adjudge.judges.cache import ReplyCache

path = Path(sys.argv[1])

def a_call(number):
    messages = [{"role": "user", "content": f"question {number}"}]
    return ChatCall(model="m", messages=messages, sampling={"temperature": 0})

def put(cache, number):
    call = a_call(number)
    cache.put(cache.key(call, "p"), Reply(text=f"reply {number}"), call)

def has(cache, number):
    return cache.get(cache.key(a_call(number), "p")) is not None
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


def test_processes_that_share_a_file_lose_nothing(path: Path) -> None:
    """Four processes open, write, close and reopen one file at once, with overlapping calls."""
    code = """
        first, go = int(sys.argv[2]), Path(sys.argv[3])
        print("ready", flush=True)
        while not go.exists():
            time.sleep(0.001)
        fences = set()

        async def main(numbers):
            cache = ReplyCache(path)
            fences.add(cache.fence_key.hex())
            for number in numbers:
                put(cache, number)
                if number % 7 == 0:
                    await asyncio.sleep(0)
            cache.close()

        for start in range(first, first + 300, 30):
            asyncio.run(main(range(start, start + 30)))
        print(*fences)
    """
    go = path.with_suffix(".go")
    processes = [start(code, path, first, go) for first in (0, 200, 400, 600)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    go.touch()
    fences = {finish(process).strip() for process in processes}
    assert len(fences) == 1
    assert stored(path) == 900
    assert (
        finish(start("c = ReplyCache(path, 'replay'); assert has(c, 0) and has(c, 899)", path))
        == ""
    )


def test_what_is_pending_at_the_exit_is_written(path: Path) -> None:
    code = """
        cache = ReplyCache(path)

        async def main():
            for number in range(5):
                put(cache, number)

        asyncio.run(main())
    """
    finish(start(code, path))
    assert stored(path) == 5


def test_what_is_pending_on_a_running_loop_at_the_exit_is_written(path: Path) -> None:
    code = """
        import threading
        from adjudge.judges import cache_file
        cache_file.BATCH_S = 3600
        cache, done = ReplyCache(path), threading.Event()

        async def main():
            put(cache, 0)
            done.set()
            await asyncio.sleep(3600)

        threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
        done.wait()
    """
    finish(start(code, path))
    assert stored(path) == 1


def test_a_forked_child_opens_its_own_handle_and_leaves_the_parents_rows(path: Path) -> None:
    code = """
        import gc
        from adjudge.judges import cache_file
        cache = ReplyCache(path)

        async def main():
            put(cache, 1)  # pending in the parent when the child starts
            inherited = cache._file._connection
            child = os.fork()
            if not child:
                assert cache._file._connection is None and not cache._file._pending
                cache._file.flush()
                put(cache, 2)
                assert cache._file.flush()
                assert cache._file._connection is not inherited
                assert inherited in cache_file._inherited
                cache.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            put(cache, 3)

        asyncio.run(main())
        assert has(cache, 2)
        report = cache.close()
        assert report.stored == 2
    """
    finish(start(code, path))
    assert stored(path) == 3


def test_pickling_carries_path_and_settings(path: Path) -> None:
    (key,) = record(path, a_call(sampling={}))
    with opened(path, sampled=True) as cache:
        copy = pickle.loads(pickle.dumps(cache))
        assert (copy.path, copy.mode, copy.sampled) == (path, "record", True)
        assert copy.get(key) == cache.get(key)
        copy.close()
        assert cache.get(key) is not None
