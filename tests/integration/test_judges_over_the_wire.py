"""A chat model against a real provider process: any thread, any loop, through faults."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.helpers.mock_provider import start_mock_here

from adjudge import FunctionGrader, GraderError, GraderScore, GradingRunner
from adjudge.judges import EndpointSettings, OpenAIChatModel
from adjudge.mock import start_mock


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with start_mock(latency=("fixed:0.005",)) as base_url:
        yield base_url


def judged(model: Any) -> GradingRunner:
    async def ask(n: int) -> GraderScore:
        reply = await model.achat([{"role": "user", "content": f"Is {n} good?"}])
        return GraderScore("judge", float('"score": 1' in reply.text), reply.text)

    return GradingRunner({"judge": FunctionGrader(ask)}, max_concurrency=64, show_progress=False)


def failures(results: dict[str, list[Any]]) -> int:
    return sum(isinstance(result, GraderError) for result in results["judge"])


def test_six_steps_of_asyncio_run_and_eight_threads(provider: str) -> None:
    runner = judged(OpenAIChatModel("mock", base_url=provider))
    items = [{"n": n} for n in range(64)]
    for _ in range(6):
        results = asyncio.run(runner.arun(items))
        assert failures(results) == 0
        assert {getattr(result, "score", None) for result in results["judge"]} == {1.0}
    failed: list[int] = []
    threads = [
        threading.Thread(target=lambda: failed.append(failures(runner.run(items))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [0] * 8


def test_passing_faults_are_survived_and_none_becomes_a_number() -> None:
    faults = ("429-retry=0.05:0.05", "500:0.05", "reset:0.05", "html-502:0.02", "truncated:0.03")
    with start_mock_here(fail=faults, seed=7) as base_url:
        settings = EndpointSettings(deadline_s=30.0)
        runner = judged(OpenAIChatModel("mock", base_url=base_url, settings=settings))
        results = runner.run([{"n": n} for n in range(300)])
    for result in results["judge"]:
        assert isinstance(result, GraderError) or getattr(result, "score", None) == 1.0
    assert failures(results) <= 3
