"""tinker-cookbook's own rollouts and advantages with our environment: a failed judge leaves."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-plugins`")
from tests.contract.plugins.scripted import (
    WAY,
    check_failures,
    find_source,
    make_spec,
    write_response,
)

from adjudge.trainers.tinker_cookbook import JudgedEnv, TinkerReward
from adjudge_lab.conformance.checks import TrainerVerdict
from adjudge_lab.conformance.driver import Batch, Way
from adjudge_lab.conformance.drivers.tinker_cookbook import TinkerCookbookDriver

SOURCE = find_source("tinker-cookbook-0.6.1")
sys.path.append(str(SOURCE))
pytest.importorskip("httpx", reason="tinker needs httpx; run `make test-plugins`")


class PluggedTinker(TinkerCookbookDriver):
    """The cookbook's driver, whose steps are :class:`JudgedEnv`'s, under our strategy."""

    ways: tuple[Way, ...] = WAY

    def __init__(self) -> None:
        super().__init__(SOURCE)
        self.reward = TinkerReward(make_spec())

    async def _roll_out(self, group: Any, way: str, *, drop: bool) -> Any:
        return await self._rollouts.do_group_rollout_and_filter_constant_reward(
            None, self._build_group(group, way), 8, 1.0, drop, False,
            strategy=self.reward.rollout_strategy(),
        )  # fmt: skip

    def _build_group(self, group: Any, way: str) -> Any:
        tinker, reward = self._tinker, self.reward
        builder = super()._build_group(group, way)

        class Renderer:
            """Tokens and texts; which answer it is stands in the environment's columns."""

            tokenizer = SimpleNamespace(decode=str)

            def __init__(self, text: str) -> None:
                self.text = text

            def build_generation_prompt(self, _: Any) -> Any:
                return tinker.ModelInput.from_ints([1, 2])

            def get_stop_sequences(self) -> list[str]:
                return []

            def parse_response(self, _: Any) -> Any:
                return {"role": "assistant", "content": self.text}, None

            def to_openai_message(self, message: Any) -> Any:
                return message

        class PlacedEnv(JudgedEnv):
            async def step(self, action: Any, *, extra: Any = None) -> Any:
                result = await super().step(action, extra=extra)
                result.metrics["place"] = self.columns["place"]
                return result

        async def make_envs() -> list[Any]:
            made = []
            for place, value in enumerate(group):
                env = reward.make_env(Renderer(write_response(value)), "p", place=place)
                made.append(PlacedEnv(env.reward, env.renderer, env.messages, env.columns))
            return made

        async def compute_group_rewards(trajectories: Any, _: Any) -> list[Any]:
            return [(0.0, {}) for _ in trajectories]

        builder.make_envs, builder.compute_group_rewards = make_envs, compute_group_rewards
        return builder


@pytest.fixture(scope="module")
def driver() -> PluggedTinker:
    return PluggedTinker()


def test_a_failed_judge_changes_nothing_for_the_others(driver: PluggedTinker) -> None:
    found, failing = check_failures(driver)
    assert found.verdict is TrainerVerdict.EXACT
    assert failing == {"normaliser", "divergence"}  # on Tinker's servers: not seen


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("missing", [1, 2])
def test_the_others_are_centred_without_the_missing(
    driver: PluggedTinker, size: int, missing: int
) -> None:
    scores = [1.0, 0.0, 0.5, 0.25, 1.0, 0.75, 0.0, 0.0][:size]
    given = [*scores[: size - missing], *[None] * missing]
    batch = Batch(groups=(tuple(given),), lengths=((3,) * size,))
    [found] = driver.run_step(batch, WAY[0].name, "mean").advantages
    present = scores[: size - missing]
    middle = sum(present) / len(present)
    assert found[: size - missing] == pytest.approx([one - middle for one in present], abs=1e-6)
    assert found[size - missing :] == [None] * missing
