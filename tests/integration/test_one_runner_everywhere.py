"""One runner object gives the same results from any thread, any loop and any process."""

import asyncio
import os
import pickle
import threading
import time
from typing import Any

import pytest

from adjudge import BaseGrader, FunctionGrader, GraderScore, GradingRunner
from adjudge.engine.loop import on_engine, run_blocking, run_on_engine

ITEMS = [{"x": i} for i in range(200)]


class Waits(BaseGrader):
    """Holds a lock that binds to the loop which first waits on it: the peers' trap."""

    score_range = (0.0, 1.0)

    def __init__(self) -> None:
        super().__init__("waits")
        self.gate: asyncio.Semaphore | None = None

    async def aevaluate(self, x: int) -> float:
        if self.gate is None:
            self.gate = asyncio.Semaphore(2)
        async with self.gate:
            await asyncio.sleep(0)
        return (x % 7) / 10


EXPECTED = [(x % 7) / 10 for x in range(200)]


def scores(result: dict[str, Any]) -> list[float]:
    return [r.score for r in result["g"]]


def test_across_asyncio_runs_and_outside_any_loop() -> None:
    runner = GradingRunner({"g": Waits()}, show_progress=False)
    for _ in range(6):
        assert scores(asyncio.run(runner.arun(ITEMS))) == EXPECTED
    assert scores(runner.run(ITEMS)) == EXPECTED


def test_from_several_threads_at_once() -> None:
    runner = GradingRunner({"g": Waits()}, show_progress=False)
    found: list[list[float]] = []

    def work(blocking: bool) -> None:
        result = runner.run(ITEMS) if blocking else asyncio.run(runner.arun(ITEMS))
        found.append(scores(result))

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [EXPECTED] * 8


def test_inside_a_running_loop_the_blocking_twin_blocks_that_loop_only() -> None:
    runner = GradingRunner({"g": Waits()}, show_progress=False)

    async def step() -> list[float]:
        return scores(runner.run(ITEMS))

    assert asyncio.run(step()) == EXPECTED


def test_on_the_engine_itself() -> None:
    runner = GradingRunner({"g": Waits()}, show_progress=False)

    async def nested() -> list[float]:
        assert on_engine()
        with pytest.raises(RuntimeError, match="wait for itself"):
            runner.run(ITEMS)
        return scores(await runner.arun(ITEMS))

    assert run_blocking(nested()) == EXPECTED


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork() -> None:
    grader = FunctionGrader(lambda x: (x % 7) / 10)
    runner = GradingRunner({"g": grader}, show_progress=False)
    assert scores(runner.run(ITEMS)) == EXPECTED
    child = os.fork()
    if child == 0:
        ok = scores(runner.run(ITEMS)) == EXPECTED
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert scores(runner.run(ITEMS)) == EXPECTED


def test_pickled_into_another_process_it_carries_configuration_only() -> None:
    runner = GradingRunner({"g": Waits()}, max_concurrency=3, show_progress=False)
    assert scores(pickle.loads(pickle.dumps(runner)).run(ITEMS)) == EXPECTED


def test_cancelling_the_caller_cancels_the_work() -> None:
    stopped = threading.Event()

    async def forever() -> float:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return 1.0

    runner = GradingRunner({"g": FunctionGrader(forever)}, show_progress=False)

    async def main() -> None:
        task = asyncio.create_task(runner.arun([{}] * 3))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert stopped.wait(2)


def test_an_exception_on_the_engine_reaches_the_caller() -> None:
    async def fails() -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        run_blocking(fails())
    with pytest.raises(LookupError, match="here"):
        asyncio.run(run_on_engine(fails()))


def test_other_work_on_the_loop_is_not_starved() -> None:
    def burn(x: int) -> float:
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        return 1.0

    ticks = 0

    async def ticker() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    runner = GradingRunner({"g": FunctionGrader(burn)}, show_progress=False)

    async def main() -> None:
        task = asyncio.create_task(ticker())
        result = await runner.arun(ITEMS[:50])
        task.cancel()
        assert all(isinstance(r, GraderScore) for r in result["g"])

    run_blocking(main())
    assert ticks > 10
