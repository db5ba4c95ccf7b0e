"""tinker-cookbook's plug-in without the cookbook: what graders see, and what is raised."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.helpers.stand_in_modules import stand_in

import adjudge
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.rewards import RewardSpec
from adjudge.trainers.tinker_cookbook import JudgedEnv, TinkerReward

RIGHT: dict[str, Any] = {"graders": [{"name": "right", "type": "answer"}]}
FAILING: dict[str, Any] = {
    "graders": [
        {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 1.0]}
    ],
    "judges": {"main": {"type": "scripted", "script": {"": "no verdict"}}},
}


class Renderer:
    """Tokens are characters."""

    def build_generation_prompt(self, messages: Any) -> Any:
        return messages[-1]["content"]

    def get_stop_sequences(self) -> list[str]:
        return ["<end>"]

    def parse_response(self, action: list[int]) -> Any:
        return {"role": "assistant", "content": "".join(map(chr, action))}, None


@pytest.fixture
def cookbook(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment takes from tinker and its cookbook."""
    modules: dict[str, dict[str, Any]] = {
        "tinker": {"ModelInput": SimpleNamespace(from_ints=lambda ints: ints)},
        "tinker_cookbook.renderers": {"get_text_content": lambda message: message["content"]},
        "tinker_cookbook.rl.types": {"StepResult": SimpleNamespace},
        "tinker_cookbook.rl.rollout_strategy": {"MinViableGroup": SimpleNamespace},
    }
    stand_in(monkeypatch, modules)


def step(env: JudgedEnv, text: str, **extra: Any) -> Any:
    return asyncio.run(env.step([ord(one) for one in text], extra=extra))


@pytest.mark.usefixtures("cookbook")
def test_a_step_has_the_reward_and_its_parts() -> None:
    reward = adjudge.make_reward(RewardSpec.from_dict(RIGHT), trainer="tinker-cookbook")
    env = reward.make_env(Renderer(), "2 + 2?", answer="4", prompt="a column")
    assert asyncio.run(env.initial_observation()) == ("2 + 2?", ["<end>"])
    found = step(env, r"It is \boxed{4}.")
    assert (found.reward, found.episode_done, found.next_observation) == (1.0, True, [])
    assert found.metrics == {"judge/right_score": 1.0, "judge/outcome": 1.0}
    assert step(env, r"\boxed{5}").reward == 0.0


@pytest.mark.usefixtures("cookbook")
def test_a_missing_reward_leaves_the_step_with_its_kind() -> None:
    reward = TinkerReward(RewardSpec.from_dict(FAILING))
    with pytest.raises(GradingFailure, match="no reward: unparsable") as caught:
        step(reward.make_env(Renderer(), "2 + 2?"), "four")
    assert caught.value.kind is ErrorKind.UNPARSABLE
