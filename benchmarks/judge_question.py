"""The question that every client of benchmarks/judge_calls.py asks, and how it is told to ask.

Standard library only: the peer's interpreter reads it too. A client is a process of its own; it
reads from standard input how many calls to make, and answers each such line with one of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Item = dict[str, str]

SYSTEM = (
    "You judge answers to questions of school physics. An answer is good when it is true, when a "
    "child of ten could follow it, and when nothing in it is beside the point. Reply with JSON "
    "only: the key score is 1 for a good answer and 0 for any other, the key reason says why."
)
USER = "Question: {query}\n\nAnswer: {response}"
QUERY = "Why is the sky blue? Explain it to a child of ten in at most five sentences."
RESPONSE = (
    "Light from the sun looks white, but all colours are mixed in it. Air scatters the short waves "
    "of blue light much more than the long waves of red light. "
) * 4
SAMPLING: dict[str, Any] = {"temperature": 0.0, "max_tokens": 256}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"score": {"type": "number"}, "reason": {"type": "string"}},
    "required": ["score", "reason"],
    "additionalProperties": False,
}

STEPS, THREADS, PER_STEP = 6, 8, 64


def dataset(n: int) -> list[Item]:
    """``n`` different items, whose prompts have about 1 KB."""
    return [{"query": QUERY, "response": f"{RESPONSE}[{i}]"} for i in range(n)]


def messages(query: str, response: str) -> list[dict[str, str]]:
    user = USER.format(query=query, response=response)
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]


async def pool(ask: Callable[[Item], Awaitable[float]], items: Sequence[Item], workers: int) -> int:
    """Ask about all items, ``workers`` at a time; how many were found good."""
    good = 0
    work = iter(items)

    async def worker() -> None:
        nonlocal good
        for item in work:
            score = await ask(item)
            good += score == 1.0

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
    return good


def peak_mb() -> float:
    """The most memory that this process ever had resident, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def serve_calls(run: Callable[[list[Item]], int]) -> None:
    """Measure ``run(items)`` as often as asked; it returns how many were found good."""
    for line in sys.stdin:
        items = dataset(int(line))
        gc.collect()
        peak, cpu, start = peak_mb(), time.process_time(), time.perf_counter()
        good = run(items)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        answer = {
            "cpu_us": cpu / len(items) * 1e6,
            "per_s": len(items) / wall,
            "peak_mb": peak_mb(),
            "grown_mb": peak_mb() - peak,
            "failed": len(items) - good,
        }
        print(json.dumps(answer), flush=True)


def serve_steps(run: Callable[[list[Item]], int]) -> None:
    """One ``run(items)`` after the other, then several at once; prints the failures of each."""
    failed = [PER_STEP - run(dataset(PER_STEP)) for _ in range(STEPS)]
    found = [0] * THREADS

    def step(place: int) -> None:
        found[place] = run(dataset(PER_STEP))

    threads = [threading.Thread(target=step, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer = {"steps": failed, "threads": [PER_STEP - good for good in found]}
    print(json.dumps(answer), flush=True)
