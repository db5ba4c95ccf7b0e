"""What other processes see of a cassette, and what is left after exits and forks."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.unit.helpers.cassettes import (
    a_call,
    opened,
    record,
    stored,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "judge.sqlite"


PRELUDE = """
import asyncio, os, pickle, sys, time
from pathlib import Path
from adjudge.judges.base import ChatCall, Reply
from adjudge.judges.cassette import ReplyCache

path = Path(sys.argv[1])

def a_call(number):
    messages = [{"role": "user", "content": f"question {number}"}]
    return ChatCall(model="m", messages=messages, sampling={"temperature": 0})

def put(cache, number):
    call = a_call(number)
    cache.keep(cache.key(call, "p"), Reply(text=f"reply {number}"), call)

def has(cache, number):
    return cache.get(cache.key(a_call(number), "p")) is not None
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=180)
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


def test_what_is_pending_on_a_running_loop_at_the_exit_is_written(path: Path) -> None:
    code = """
        import threading
        from adjudge.judges import cassette_file as cassette
        cassette.BATCH_S = 3600
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


def test_forks_while_batches_are_written_wait_for_them_and_lose_nothing(path: Path) -> None:
    code = """
        from adjudge.judges import cassette_file as cassette
        cassette.BATCH_S = 0.0
        cache = ReplyCache(path)
        busy, insert = [], cassette.CassetteFile._commit

        def slow(self, *arguments):
            busy.append(1)
            insert(self, *arguments)
            time.sleep(0.002)
            busy.pop()

        cassette.CassetteFile._commit = slow

        async def main():
            children, forked_busy = [], 0
            for number in range(20):
                put(cache, number)
                await asyncio.sleep(0.001)
                child = os.fork()
                if not child:
                    forked_busy = len(busy)
                    put(cache, 100 + number)
                    cache.close()
                    os._exit(forked_busy)
                children.append(child)
            assert {os.waitpid(child, 0)[1] for child in children} == {0}

        asyncio.run(main())
        cache.close()
    """
    finish(start(code, path))
    assert stored(path) == 40


def test_a_killed_process_loses_what_was_pending_and_leaves_a_whole_file(path: Path) -> None:
    code = """
        from adjudge.judges import cassette_file as cassette
        cache = ReplyCache(path)

        async def main():
            for number in range(500):
                put(cache, number)
                await asyncio.sleep(0)
            while cache._file._pending:
                await asyncio.sleep(0.001)
            cassette.BATCH_S = 3600
            for number in range(500, 510):
                put(cache, number)
            print("ready", flush=True)
            time.sleep(3600)

        asyncio.run(main())
    """
    process = start(code, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert 500 <= stored(path) <= 510
    assert finish(start("c = ReplyCache(path); assert has(c, 0) and has(c, 499)", path)) == ""


def test_pickling_carries_path_and_settings(path: Path) -> None:
    (key,) = record(path, a_call(sampling={}))
    with opened(path, sampled=True) as cache:
        copy = pickle.loads(pickle.dumps(cache))
        assert (copy.path, copy.mode, copy.sampled) == (path, "record", True)
        assert copy.get(key) == cache.get(key)
        copy.close()
        assert cache.get(key) is not None
