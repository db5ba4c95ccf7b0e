"""tinker-cookbook's plug-in without the cookbook: what graders see, and what is raised."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.helpers.stand_in_modules import stand_in

import adjudge
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.intake.parts import tool_call
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
    """Tokens are characters; thinking and calls are taken out where they end."""

    tokenizer = SimpleNamespace(decode=lambda tokens: "".join(map(chr, tokens)))

    def __init__(self, opening: str = "") -> None:
        self.opening = opening

    def build_generation_prompt(self, messages: Any) -> Any:
        text = messages[-1]["content"] + self.opening
        return SimpleNamespace(chunks=[SimpleNamespace(tokens=[*map(ord, text)])])

    def get_stop_sequences(self) -> list[str]:
        return ["<end>"]

    def parse_response(self, action: list[int]) -> Any:
        said, is_call, _ = self.tokenizer.decode(action).partition("<tool_call>")
        calls = {"tool_calls": [tool_call("1", "look", "{}")]} if is_call else {}
        return {"role": "assistant", "content": said.rpartition("</think>")[2], **calls}, None

    def to_openai_message(self, message: Any) -> Any:
        return message


@pytest.fixture
def cookbook(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment takes from tinker and its cookbook."""
    modules: dict[str, dict[str, Any]] = {
        "tinker": {"ModelInput": SimpleNamespace(from_ints=lambda ints: ints)},
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
    prompt, stop = asyncio.run(env.initial_observation())
    assert (Renderer.tokenizer.decode(prompt.chunks[0].tokens), stop) == ("2 + 2?", ["<end>"])
    found = step(env, r"It is \boxed{4}.")
    assert (found.reward, found.episode_done, found.next_observation) == (1.0, True, [])
    assert found.metrics == {"judge/right_score": 1.0, "judge/outcome": 1.0}
    assert step(env, r"\boxed{5}").reward == 0.0


@pytest.mark.usefixtures("cookbook")
@pytest.mark.parametrize(
    ("opening", "text", "right"),
    [
        ("<think>\n", r"Perhaps \boxed{4}, or is that too small?", 0.0),
        ("<think>\n", r"5?</think>\boxed{4}", 1.0),
        ("<think>\n", r"</think>\boxed{4}", 1.0),  # it did not think
        ("<think></think>", r"\boxed{4}", 1.0),
        ("", r"I look. \boxed{4}<tool_call>", 0.0),
    ],
)
def test_thinking_without_an_end_and_a_turn_that_calls_have_no_answer(
    opening: str, text: str, right: float
) -> None:
    reward = TinkerReward(RewardSpec.from_dict(RIGHT))
    assert step(reward.make_env(Renderer(opening), "2 + 2?", answer="4"), text).reward == right


@pytest.mark.usefixtures("cookbook")
def test_a_missing_reward_leaves_the_step_with_its_kind() -> None:
    reward = TinkerReward(RewardSpec.from_dict(FAILING))
    with pytest.raises(GradingFailure, match="no reward: unparsable") as caught:
        step(reward.make_env(Renderer(), "2 + 2?"), "four")
    assert caught.value.kind is ErrorKind.UNPARSABLE
