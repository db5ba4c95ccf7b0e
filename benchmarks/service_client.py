"""What the client of a judge service costs per request, beside plain HTTP to the same service.

    python benchmarks/service_client.py [--rounds N] [--quick] [--json FILE]

A real ``adjudge serve`` whose judge does as good as nothing, in a process of its own. Each row asks
it about texts that never repeat; "CPU" is this process's own time, all threads, "wall" the time
from the first request to the last answer, both per item. The plain ways encode, send, decode and
check the score; the client also batches, keeps a cache, limits, times out, retries and counts.
``batch_timeout`` is how long a lone request waits for company: 0.05 s by default, in one row 0.
Rows take turns; medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from adjudge.client import JudgeRewardSystem
from adjudge.service.server import RunningService, start_service_process

HERE = Path(__file__).parent
JUDGE = "benchmarks.service_client:Judge"
WIDE, BATCH = 64, 16
PROMPT = "What is 2 + 2? Explain each step.\n" * 10
MODES = (
    "http.client, one by one",
    "reward, batch_timeout 0",
    "reward",
    "aiohttp, 64 at once",
    "areward, 64 at once",
    "aiohttp, batches of 16",
    "reward_batch of 64",
)

_numbers = itertools.count(1)
_encode = msgspec.json.encode
_decode = msgspec.json.decode


def texts(n: int) -> list[str]:
    return [str(next(_numbers)) for _ in range(n)]


def checked(completions: Sequence[str], scores: Sequence[Any]) -> None:
    if [float(one) for one in completions] != list(scores):
        raise SystemExit("a score is missing or another request's")


def item(completion: str) -> dict[str, str]:
    return {"prompt": PROMPT, "completion": completion, "answer": "4", "request_id": completion}


async def all_of(asks: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask) for ask in asks]
    return [task.result() for task in tasks]


class Judge:
    """What the server loads: the score is the completion, which is a number."""

    async def score_batch(self, requests: list[dict[str, Any]]) -> list[float]:
        return [float(one["completion"]) for one in requests]


class Asking:
    """Every way to ask; each asks about ``n`` items and checks the scores."""

    def __init__(self, running: RunningService) -> None:
        self.url = running.url
        self.line = http.client.HTTPConnection("127.0.0.1", running.port)
        self.runner = asyncio.Runner()
        self.session = self.runner.run(self._session())
        self.default = JudgeRewardSystem({"judge_url": running.url})
        self.at_once = JudgeRewardSystem({"judge_url": running.url, "batch_timeout": 0.0})
        self.ways: dict[str, Callable[[int], None]] = dict(
            zip(
                MODES,
                (
                    self.by_http_client,
                    lambda n: self.by_reward(self.at_once, n),
                    lambda n: self.by_reward(self.default, n),
                    lambda n: self._runs(self.by_aiohttp, n),
                    lambda n: self._runs(self.by_areward, n),
                    lambda n: self._runs(self.by_aiohttp_batches, n),
                    self.by_reward_batch,
                ),
                strict=True,
            )
        )

    async def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=WIDE))

    def _runs(self, way: Callable[[], Awaitable[None]], n: int) -> None:
        async def rounds() -> None:
            for _ in range(n // WIDE):
                await way()

        self.runner.run(rounds())

    def by_http_client(self, n: int) -> None:
        for text in texts(n):
            body = _encode(item(text))
            self.line.request("POST", "/judge", body, {"content-type": "application/json"})
            checked([text], [_decode(self.line.getresponse().read())["score"]])

    def by_reward(self, rewards: JudgeRewardSystem, n: int) -> None:
        for text in texts(n):
            checked([text], [rewards.reward(PROMPT, text, "4")["reward"]])

    def by_reward_batch(self, n: int) -> None:
        for _ in range(n // WIDE):
            said = texts(WIDE)
            found = self.default.reward_batch([PROMPT] * WIDE, said, ["4"] * WIDE)
            checked(said, [one["reward"] for one in found])

    async def by_areward(self) -> None:
        said = texts(WIDE)
        found = await all_of([self.default.areward(PROMPT, text, "4") for text in said])
        checked(said, [one["reward"] for one in found])

    async def by_aiohttp(self) -> None:
        said = texts(WIDE)
        found = await all_of([self._post("/judge", item(text)) for text in said])
        checked(said, [one["score"] for one in found])

    async def by_aiohttp_batches(self) -> None:
        said = texts(WIDE)
        bodies = [
            {"requests": [item(text) for text in said[at : at + BATCH]]}
            for at in range(0, WIDE, BATCH)
        ]
        found = await all_of([self._post("/batch_judge", body) for body in bodies])
        checked(said, [one["score"] for body in found for one in body["responses"]])

    async def _post(self, path: str, value: Any) -> Any:
        headers = {"content-type": "application/json"}
        url = self.url + path
        async with self.session.post(url, data=_encode(value), headers=headers) as response:
            return _decode(await response.read())

    def close(self) -> None:
        self.runner.run(self.session.close())
        self.runner.close()
        self.line.close()
        self.default.close()
        self.at_once.close()


def compared(running: RunningService, rounds: int, blocks: int) -> dict[str, dict[str, float]]:
    asking = Asking(running)
    found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for turn in range(rounds + 1):  # the first warms up
        for mode, way in asking.ways.items():
            n = WIDE * blocks if mode != "reward" else WIDE // 2
            cpu, wall = time.process_time(), time.perf_counter()
            way(n)
            spent = (time.process_time() - cpu) / n * 1e6, (time.perf_counter() - wall) / n * 1e6
            if turn:
                found[mode].append(spent)
    asking.close()
    return {
        mode: {
            "cpu_us": statistics.median(one[0] for one in all_),
            "wall_us": statistics.median(one[1] for one in all_),
        }
        for mode, all_ in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    target = arguments.json and arguments.json.resolve()
    rounds, blocks = (3, 4) if arguments.quick else (arguments.rounds, 20)
    os.chdir(HERE.parent)  # where the judge's module is found
    words = ["--port=0", "--json", "--until-eof", "--batch-timeout=0"]
    command = [sys.executable, "-m", "adjudge", "serve", JUDGE, *words]
    with start_service_process(command) as (running, _):
        rows = compared(running, rounds, blocks)
    print(f"{'':24} {'CPU µs':>7} {'wall µs':>8}   per item, machine load {os.getloadavg()[0]:.1f}")
    for mode, row in rows.items():
        print(f"{mode:24} {row['cpu_us']:7,.0f} {row['wall_us']:8,.0f}")
    if target is not None:
        target.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
