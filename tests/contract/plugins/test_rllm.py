"""rLLM's own engine, groups, filter and advantages with our evaluator: a failed judge leaves."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tests.contract.plugins.scripted import (
    WAY,
    check_failures,
    check_own_advantages,
    find_source,
    make_spec,
    write_response,
)

from adjudge.trainers.rllm import AdjudgeEvaluator
from adjudge_lab.conformance.checks import TrainerVerdict
from adjudge_lab.conformance.driver import Batch, StepResult, Way
from adjudge_lab.conformance.drivers.rllm import RLLMDriver
from adjudge_lab.conformance.source import stand_in

SOURCE = find_source("rllm-9beb6e0")
for needed in ("numpy", "pydantic"):
    pytest.importorskip(needed, reason=f"rLLM needs {needed}; run `make test-plugins`")


def load_result_types() -> Any:
    """rLLM's ``eval/types.py``, which needs nothing of the rest."""
    found = importlib.util.spec_from_file_location("rllm_types", SOURCE / "rllm/eval/types.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["rllm_types"] = module
    found.loader.exec_module(module)
    return module


class PluggedRLLM(RLLMDriver):
    """rLLM's driver, whose flow engine asks our evaluator."""

    ways: tuple[Way, ...] = WAY

    def __init__(self, *, raise_on_error: bool) -> None:
        super().__init__(SOURCE)
        types = load_result_types()
        stand_in("rllm.eval.types", EvalOutput=types.EvalOutput, Signal=types.Signal)
        self.evaluator = AdjudgeEvaluator(make_spec())
        self.raise_on_error, self.metrics = raise_on_error, list[Any]()

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        return super().run_step(batch, "evaluator empties the episode", setting)

    async def _roll_out(self, batch: Batch, telling: Any) -> list[Any]:
        episodes = []
        for number, group in enumerate(batch.groups):
            for place, reward in enumerate(group):
                engine = self._make_judged_engine(reward)
                engine.raise_on_error, engine.retry_limit = self.raise_on_error, 1
                task = SimpleNamespace(metadata={"level": 3}, instruction="p")
                made = await self._process_flow(engine, task, f"t{number}", place, place)
                episodes.append(made[-1])
        self.metrics = [one.metrics for one in episodes]
        return episodes

    def _make_judged_engine(self, reward: float | None) -> Any:
        """An ``AgentFlowEngine``, and a flow that says what the judge will give."""

        async def run_single(task: Any, uid: str, **_: Any) -> Any:
            played = self._play()
            said = {"role": "assistant", "content": write_response(reward)}
            played.steps[0].chat_completions = [{"role": "user", "content": "p"}, said]
            episode = self._scope["Episode"](id=uid, trajectories=[played])
            context = SimpleNamespace(evaluator=self.evaluator)
            return await self._finish(
                SimpleNamespace(executor=None), episode, [], uid, task, context
            )

        return SimpleNamespace(_semaphore=asyncio.Semaphore(1), _run_single=run_single)


@pytest.fixture(params=[False, True], ids=["raise_on_error=false", "raise_on_error"])
def driver(request: pytest.FixtureRequest) -> PluggedRLLM:
    return PluggedRLLM(raise_on_error=request.param)


def test_a_failed_judge_changes_nothing_for_the_others(driver: PluggedRLLM) -> None:
    found, failing = check_failures(driver)
    assert found.verdict is TrainerVerdict.EXACT, found
    assert "missing answer" not in failing


@pytest.mark.parametrize("size", [4, 8])
def test_the_others_are_compared_without_the_missing(driver: PluggedRLLM, size: int) -> None:
    scores = (1.0, 0.0, 0.5, 0.25, 1.0, 0.75, 0.0, 0.0)[:size]
    given = (*scores[: size - 2], None, None)
    batch = Batch(groups=(given,), lengths=((3,) * size,))
    [found] = driver.run_step(batch, WAY[0].name, "grpo, no std").advantages
    middle = sum(scores[: size - 2]) / (size - 2)
    assert found == pytest.approx([*[one - middle for one in scores[: size - 2]], None, None])
    missing = [one["judge/missing_frac"] for one in driver.metrics]
    assert missing == [0.0] * (size - 2) + [1.0] * 2


@pytest.mark.parametrize("size", [4, 8])
def test_rllms_own_advantages_where_nothing_is_missing(driver: PluggedRLLM, size: int) -> None:
    base = RLLMDriver(SOURCE)
    check_own_advantages(driver, base, "None", size)
