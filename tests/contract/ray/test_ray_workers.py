"""One runner object inside Ray workers: run by `make test-ray`, in an environment that has Ray."""

from collections.abc import Iterator
from typing import Any

import pytest

from adjudge import BaseGrader, GraderScore, GradingRunner

ray = pytest.importorskip("ray", reason="ray is not installed here; run `make test-ray`")

ITEMS = [{"x": i} for i in range(300)]
EXPECTED = [(i % 7) / 10 for i in range(300)]


class Modulo(BaseGrader):
    score_range = (0.0, 1.0)

    async def aevaluate(self, x: int) -> float:
        return (x % 7) / 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def scores(results: dict[str, list[Any]]) -> list[float]:
    assert all(isinstance(r, GraderScore) for r in results["g"])
    return [r.score for r in results["g"]]


def test_a_task_gets_the_same_results(cluster: None) -> None:
    runner = GradingRunner({"g": Modulo()}, show_progress=False)
    assert scores(runner.run(ITEMS)) == EXPECTED

    @ray.remote
    def step(shipped: GradingRunner) -> list[float]:
        return scores(shipped.run(ITEMS))

    assert ray.get([step.remote(runner) for _ in range(4)]) == [EXPECTED] * 4


def test_an_actor_keeps_one_runner_over_steps_and_loops(cluster: None) -> None:
    class Worker:
        def __init__(self, shipped: GradingRunner) -> None:
            self.runner = shipped

        def blocking(self) -> list[float]:
            return scores(self.runner.run(ITEMS))

        async def on_rays_own_loop(self) -> list[float]:
            return scores(await self.runner.arun(ITEMS))

    worker = ray.remote(Worker).remote(GradingRunner({"g": Modulo()}, show_progress=False))
    for _ in range(3):
        assert ray.get(worker.on_rays_own_loop.remote()) == EXPECTED
        assert ray.get(worker.blocking.remote()) == EXPECTED
