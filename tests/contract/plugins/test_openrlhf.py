"""OpenRLHF's own code with adjudge as its agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")
from tests.contract.plugins.scripted import (
    WAY,
    check_failures,
    find_source,
    make_spec,
    write_response,
)

from adjudge.rewards import RewardSpec
from adjudge.trainers import openrlhf
from adjudge_lab.conformance.checks import TrainerVerdict
from adjudge_lab.conformance.driver import Batch, Way
from adjudge_lab.conformance.drivers.openrlhf import OpenRLHFDriver
from adjudge_lab.conformance.source import stand_in

_PROMPT = [1, 2]
SOURCE = "openrlhf-0.11.2"


class PluggedAgent(OpenRLHFDriver):
    """The driver, whose groups our executor makes, all answers of a group at once as OpenRLHF."""

    ways: tuple[Way, ...] = WAY

    def __init__(self, checkout: Path, spec: RewardSpec, *settings: str) -> None:
        super().__init__(checkout)
        self.settings, self._spec = settings, spec
        base = self._scope["SingleTurnAgentExecutor"]
        stand_in("openrlhf.utils.agent", SingleTurnAgentExecutor=base)

    def run_step(self, batch: Batch, way: str, setting: str) -> Any:
        estimator = setting.partition(", ")[0]
        self._executor = openrlhf.make_reward(self._spec, estimator=estimator)()
        return super().run_step(batch, way, setting)

    async def _judge(self, batch: Batch, way: str) -> list[list[dict[str, Any]]]:
        groups = zip(batch.groups, batch.lengths, strict=True)
        return [
            await self._execute_group(f"prompt {number}", *one) for number, one in enumerate(groups)
        ]

    async def _execute_group(
        self, prompt: str, rewards: tuple[float | None, ...], lengths: tuple[int, ...]
    ) -> list[dict[str, Any]]:
        """What ``RolloutRayActor.generate_responses`` does; ``n`` answers with one object."""
        params = SimpleNamespace(max_tokens=16, logprobs=None)
        answers = iter(zip(rewards, lengths, strict=True))
        texts: dict[int, str] = {}

        async def generate(*_: Any, **__: Any) -> Any:
            reward, length = next(answers)
            await asyncio.sleep(0.001 * length)
            token = 10 + len(texts)
            texts[token] = write_response(reward)
            answer = SimpleNamespace(
                token_ids=[token] * length, finish_reason="stop", logprobs=None, reward=reward
            )
            return SimpleNamespace(outputs=[answer])

        class Tokenizer:
            def __call__(self, **_: Any) -> Any:
                return {"input_ids": torch.tensor([_PROMPT])}

            def decode(self, tokens: list[int], **_: Any) -> str:
                return texts[tokens[-1]]

        torch = self._torch
        tasks = [
            self._executor.execute(
                prompt=prompt,
                label=None,
                sampling_params=params,
                max_length=64,
                hf_tokenizer=Tokenizer(),
                llm_engine=SimpleNamespace(generate=generate),
                images=None,
            )
            for _ in rewards
        ]
        return list(await asyncio.gather(*tasks))  # noqa: TID251  (what OpenRLHF does)


@pytest.mark.parametrize("step", ["none", "z_score"])
def test_a_failed_judge_changes_nothing_as_an_agent(step: str) -> None:
    settings = ("dr_grpo", "rloo", "rloo, sequence")
    driver = PluggedAgent(
        find_source(SOURCE),
        make_spec(reward={"group": step}),
        *(settings if step == "none" else settings[:1]),
    )
    found, failing = check_failures(driver)
    assert found.verdict is TrainerVerdict.UNBIASED
    assert failing <= {"normaliser", "divergence", "logged mean"}
