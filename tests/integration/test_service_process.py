"""The judge service as a real process: faults, deadlines, disconnects, full queues, the drain."""

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import aiohttp
import msgspec
import pytest

from adjudge.service.server import RunningService, start_service, start_service_process

pytestmark = pytest.mark.slow

BACKEND = str(Path(__file__).with_name("service_backend.py"))


@contextmanager
def service(*words: str, **settings: Any) -> Iterator[tuple[RunningService, "Popen[bytes]"]]:
    chosen = msgspec.json.encode({"port": 0, **settings}).decode()
    with start_service_process([sys.executable, BACKEND, chosen, *words]) as found:
        yield found


def item(completion: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": "What is 2 + 2?", "completion": completion, "answer": "4", **fields}


Answer = tuple[int, Any, dict[str, str]]


async def post(session: aiohttp.ClientSession, url: str, value: Any) -> Answer:
    async with session.post(url, json=value) as response:
        headers = {name.lower(): text for name, text in response.headers.items()}
        return response.status, await response.json(), headers


def posted(url: str, path: str, *values: Any) -> list[Answer]:
    """All at once, each on a connection of its own."""

    async def all_of() -> list[Answer]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as g:
            tasks = [g.create_task(post(session, url + path, one)) for one in values]
        return [task.result() for task in tasks]

    return asyncio.run(all_of())


_shared: list[RunningService] = []


@pytest.fixture(scope="module", autouse=True)
def _one_for_all() -> Iterator[None]:
    with service() as (running, _):
        _shared.append(running)
        yield
        _shared.clear()


def running_url() -> str:
    return _shared[0].url


@pytest.mark.parametrize("words", [(), ("one_by_one",)])
def test_a_client_that_leaves_takes_its_work_along(words: tuple[str, ...]) -> None:
    async def leave(url: str) -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(3):  # one in the backend's hands, the others in the queue
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await post(session, f"{url}/judge", item("hang"))

    with service(*words, concurrency=1, max_batch_size=1) as (running, _):
        asyncio.run(leave(running.url))
        [(status, body, _)] = posted(running.url, "/judge", item("4"))
        assert (status, body["metadata"]["cancelled"]) == (200, 3)
        numbers = metrics(running.url)
        assert 'judge_requests_total{outcome="disconnected",route="/judge"} 3.0' in numbers
        assert "judge_inflight 0.0" in numbers
        assert "judge_queue_size 0.0" in numbers


def metrics(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        return str(response.read().decode())


def test_the_drain_answers_what_was_accepted_and_refuses_the_rest() -> None:
    async def drained(running: RunningService) -> tuple[Answer, Answer, int]:
        async with aiohttp.ClientSession() as session:
            accepted = asyncio.create_task(
                post(session, f"{running.url}/judge", item("slow", answer="slow"))
            )
            await asyncio.sleep(0.1)
            os.kill(running.pid, signal.SIGTERM)
            await asyncio.sleep(0.1)
            refused = await post(session, f"{running.url}/judge", item("4"))
            async with session.get(f"{running.url}/ready") as response:
                ready = response.status
            return await accepted, refused, ready

    with service() as (running, process):
        accepted, refused, ready = asyncio.run(drained(running))
        assert (accepted[0], accepted[1]["score"]) == (200, 1.0)
        assert (refused[0], refused[1]["error"]["kind"]) == (503, "server_error")
        assert "retry-after" in refused[2]
        assert ready == 503
        assert process.wait(10) == 0


def test_a_drain_that_takes_too_long_ends_with_a_stated_failure() -> None:
    async def drained(running: RunningService) -> Answer:
        async with aiohttp.ClientSession() as session:
            accepted = asyncio.create_task(post(session, f"{running.url}/judge", item("hang")))
            await asyncio.sleep(0.1)
            os.kill(running.pid, signal.SIGINT)
            return await accepted

    with service("impatient") as (running, process):
        status, body, _ = asyncio.run(drained(running))
        assert (status, body["error"]["kind"]) == (503, "cancelled")
        assert process.wait(10) == 0


def test_a_port_in_use_is_a_sentence(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text('version = 1\n[[graders]]\nname = "a"\ntype = "answer"\n')
    with (
        pytest.raises(RuntimeError, match="exit code 2"),
        start_service(str(spec), port=_shared[0].port),
    ):
        pass
    assert "--port 0 for a free port" in capfd.readouterr().err
