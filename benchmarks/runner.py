"""What the runner costs per item, beside py-openjudge's and the floor, in one run.

    python benchmarks/runner.py [--peer-python PATH] [--quick] [--json FILE]

A grader that returns at once, no I/O, 32 in flight. CPU and wall clock agree here: nothing waits.
Rounds interleave; medians are shown. The floor is a bare worker pool over an iterator.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adjudge import BaseGrader, GradingRunner, Journal
from adjudge.engine.loop import run_blocking

SIZES = (1_000, 10_000, 100_000)
PEER_SIZES = (1_000, 10_000)


class Constant(BaseGrader):
    score_range = (0.0, 1.0)

    async def aevaluate(self, x: int) -> float:
        return 0.5


class Held(BaseGrader):
    """Takes one item per worker and never lets go: everything else waits."""

    async def aevaluate(self, x: int) -> float:
        await asyncio.sleep(3600)
        return 0.0


async def floor(items: list[dict[str, int]]) -> None:
    results: list[float | None] = [None] * len(items)

    async def grade(x: int) -> float:
        return 0.5

    async def worker(work: Iterator[tuple[int, dict[str, int]]]) -> None:
        for i, item in work:
            results[i] = await grade(**item)

    work = iter(enumerate(items))
    async with asyncio.TaskGroup() as group:
        for _ in range(32):
            group.create_task(worker(work))


def timed(action: Callable[[], Any]) -> float:
    gc.collect()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def ours(items: list[dict[str, int]], journal: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        book = Journal(Path(folder) / "journal.jsonl", "spec") if journal else None
        runner = GradingRunner({"g": Constant()}, show_progress=False, journal=book)
        return timed(lambda: runner.run(items))


def waiting_bytes(n: int) -> float:
    """Memory that one waiting item costs, the dataset itself not counted."""
    items = [{"x": i} for i in range(n)]
    runner = GradingRunner({"g": Held()}, show_progress=False)

    async def hold() -> int:
        before = tracemalloc.get_traced_memory()[0]
        task = asyncio.create_task(runner.arun(items))
        await asyncio.sleep(0.2)
        after = tracemalloc.get_traced_memory()[0]
        task.cancel()
        await asyncio.wait([task])
        return after - before

    tracemalloc.start()
    try:
        return run_blocking(hold()) / n
    finally:
        tracemalloc.stop()


class Peer:
    """py-openjudge's runner in its own interpreter, asked over a pipe."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("peer_openjudge_runner.py")
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, n: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{n}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--peer-python", help="an interpreter that has py-openjudge")
    parser.add_argument("--quick", action="store_true", help="two rounds instead of five")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else 5
    peer = Peer(arguments.peer_python) if arguments.peer_python else None
    ours([{"x": 0}] * 1000, journal=False)  # start the engine
    table: dict[str, dict[str, float]] = {}
    for n in SIZES:
        items = [{"x": i} for i in range(n)]
        seconds: dict[str, list[float]] = {}
        for _ in range(rounds):
            seconds.setdefault("adjudge", []).append(ours(items, journal=False))
            seconds.setdefault("adjudge, journal on", []).append(ours(items, journal=True))
            seconds.setdefault("floor: bare worker pool", []).append(
                timed(lambda items=items: run_blocking(floor(items)))  # type: ignore[misc]
            )
            if peer is not None and n in PEER_SIZES:
                seconds.setdefault("py-openjudge", []).append(peer.run(n))
        for name, found in seconds.items():
            table.setdefault(name, {})[f"{n}"] = statistics.median(found) / n * 1e6
    if peer is not None:
        peer.close()
    print(f"{'µs per item':28}" + "".join(f"{n:>12,}" for n in SIZES))
    for name, row in table.items():
        cells = (f"{row[str(n)]:12.2f}" if str(n) in row else f"{'-':>12}" for n in SIZES)
        print(f"{name:28}" + "".join(cells))
    if "py-openjudge" in table:
        ratio = table["py-openjudge"]["10000"] / table["adjudge"]["10000"]
        print(f"py-openjudge / adjudge at 10,000: {ratio:.0f} x")
    held = waiting_bytes(100_000)
    print(f"memory per waiting item at 100,000: {held:.0f} bytes")
    if arguments.json:
        arguments.json.write_text(json.dumps({"us_per_item": table, "waiting_bytes": held}))


if __name__ == "__main__":
    main()
