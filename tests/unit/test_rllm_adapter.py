"""rLLM's plug-in without rLLM: what graders see, and how missing is said."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.doors import SPEC, looking
from tests.unit.helpers.stand_in_modules import stand_in

import adjudge
from adjudge.rewards import RewardSpec

RIGHT: dict[str, Any] = {"graders": [{"name": "right", "type": "answer"}]}
CHAT = [{"role": "system", "content": "S"}, {"role": "user", "content": "2 + 2?"}]


@pytest.fixture(autouse=True)
def result_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """rLLM's result types."""
    names = dict.fromkeys(("EvalOutput", "Signal"), SimpleNamespace)
    stand_in(monkeypatch, {"rllm.eval.types": names})


def trajectory(text: str, reward: float | None = None, chat: Any = CHAT) -> Any:
    said = [*chat, {"role": "assistant", "content": text}] if chat else []
    output = SimpleNamespace(finish_reason="length")
    step = SimpleNamespace(chat_completions=said, model_response=text, model_output=output)
    return SimpleNamespace(steps=[step], reward=reward)


def evaluate(*trajectories: Any, **metadata: Any) -> tuple[Any, list[Any]]:
    evaluator = adjudge.make_reward(RewardSpec.from_dict(RIGHT), trainer="rllm")
    episode = SimpleNamespace(id="7:0", trajectories=list(trajectories))
    task = SimpleNamespace(instruction="2 + 2?", metadata=metadata)
    return evaluator.evaluate(task, episode), episode.trajectories


def test_the_reward_and_its_parts() -> None:
    found, left = evaluate(trajectory(r"\boxed{4}"), answer="4")
    assert (found.reward, found.is_correct, len(left)) == (1.0, True, 1)
    signals = {one.name: one.value for one in found.signals}
    assert signals == {"judge/right_score": 1.0, "judge/outcome": 1.0, "judge/missing_frac": 0.0}
    assert evaluate(trajectory(r"\boxed{5}"), answer="4")[0].is_correct is False


def test_a_missing_reward_empties_the_episode() -> None:
    found, left = evaluate(trajectory(r"\boxed{4}"))  # no reference
    assert left == []
    assert [(one.name, one.value) for one in found.signals] == [("judge/missing_frac", 1.0)]


def test_a_trajectory_with_a_reward_of_the_flow_stays() -> None:
    own = trajectory("helper", reward=0.5)
    _, left = evaluate(own, trajectory(r"\boxed{4}"))
    assert left == [own]
    assert evaluate(own)[1] == [own]  # nothing to judge
    assert evaluate()[1] == []


def test_graders_see_the_task_where_there_is_no_conversation() -> None:
    task = SimpleNamespace(instruction="from the task", metadata={"answer": "4"})
    episode = SimpleNamespace(id="7:0", trajectories=[trajectory("four", chat=None)])
    with looking() as found:
        adjudge.make_reward(SPEC, trainer="rllm").evaluate(task, episode)
    [bare] = found
    assert bare.extra == {"answer": "4", "reference": "4", "finish_reason": "length"}
    assert (bare.prompt, bare.response, bare.messages) == ("from the task", "four", None)
