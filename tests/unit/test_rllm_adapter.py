"""rLLM's plug-in without rLLM: what graders see, and how missing is said."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.helpers.stand_in_modules import stand_in

import adjudge
from adjudge.rewards import RewardSpec
from adjudge.trainers.rllm import AdjudgeEvaluator

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


def spy(grade: Any, seen: list[Any]) -> Any:
    async def graded(samples: Any, *given: Any, **options: Any) -> Any:
        seen.extend(samples)
        return await grade(samples, *given, **options)

    return graded


def test_graders_see_the_conversation_or_the_task() -> None:
    evaluator, seen = AdjudgeEvaluator(RewardSpec.from_dict(RIGHT)), list[Any]()
    task = SimpleNamespace(instruction="from the task", metadata={"answer": "4"})
    evaluator.scorer.grade = spy(evaluator.scorer.grade, seen)  # type: ignore[method-assign]
    for given in (trajectory("four"), trajectory("four", chat=None)):
        asyncio.run(evaluator._ascore(task, given.steps, "g"))
    sample, bare = seen
    assert (sample.prompt, sample.response) == ("2 + 2?", "four")
    assert [one["role"] for one in sample.messages] == ["system", "user", "assistant"]
    assert sample.extra == {"answer": "4", "reference": "4", "finish_reason": "length"}
    assert (bare.prompt, bare.response, bare.messages) == ("from the task", "four", None)
