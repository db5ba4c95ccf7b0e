"""Reward functions as people wrote them for OpenJudge, here with only their import lines changed.

Three steps in a row, each with a loop of its own as a trainer's manager does it, against a provider
whose judge fails never, on a tenth of its calls, always.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from tests.unit.helpers.mock_provider import start_mock_here

from adjudge import GraderError, GraderMode, GraderScore
from adjudge.graders import (
    ActionLoopDetectionGrader,
    LLMGrader,
    ObservationInformationGainGrader,
    TrajectoryComprehensiveGrader,
)
from adjudge.judges import OpenAIChatModel
from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate
from adjudge.rewards import RewardFunction, RewardResult, RewardSample
from adjudge.runner import GraderConfig, GradingRunner

STEP = {"step": 1, "reason": "", "contribution": 5, "relevance": 5, "accuracy": 5, "efficiency": 5}
RATED = json.dumps({"reason": "fine", "steps": [STEP]})


class MeanReward(RewardFunction):
    """Three graders, equal weights; whatever has no score counts 0.0."""

    def __init__(self, model_name: str = "qwen3-max", max_concurrency: int = 32) -> None:
        self.model = OpenAIChatModel(model=model_name, temperature=0.0)
        self.grader_configs = {
            "trajectory": GraderConfig(
                grader=TrajectoryComprehensiveGrader(model=self.model, language=LanguageEnum.EN),
                mapper=lambda data: {"messages": data["messages"]},
            ),
            "action_loop": GraderConfig(
                grader=ActionLoopDetectionGrader(similarity_threshold=1.0),
                mapper=lambda data: {"messages": data["messages"]},
            ),
            "info_gain": GraderConfig(
                grader=ObservationInformationGainGrader(similarity_threshold=0.5),
                mapper=lambda data: {"messages": data["messages"]},
            ),
        }
        self.max_concurrency = max_concurrency

    async def compute_batch_scores(self, prompt_to_samples: Any) -> list[RewardResult]:
        datasets = [
            [{"messages": s.messages} for s in group] for group in prompt_to_samples.values()
        ]
        runner = GradingRunner(
            grader_configs=self.grader_configs,
            max_concurrency=self.max_concurrency,
            show_progress=False,
        )
        graded = await runner.arun_multiple_datasets(datasets)
        results = []
        for group, found in zip(prompt_to_samples.values(), graded, strict=True):
            for place, sample in enumerate(group):
                scores = {
                    f"{name}_score": self.score_of(found[name][place])
                    for name in self.grader_configs
                }
                results.append(self.result(sample, scores))
        return results

    def score_of(self, result: Any) -> Any:
        return result.score if hasattr(result, "score") else 0.0

    def result(self, sample: RewardSample, scores: dict[str, Any]) -> RewardResult:
        total = sum(scores.values()) / len(scores)
        return RewardResult(sample.original_index, sample.group_index, total, scores)


class WeightedReward(MeanReward):
    """The same with weights, and details that read every result's score."""

    weights: ClassVar = {"trajectory": 0.4, "action_loop": 0.3, "info_gain": 0.3}

    def score_of(self, result: Any) -> Any:
        details = {"score": result.score, "reason": getattr(result, "reason", "")}
        return details["score"]

    def result(self, sample: RewardSample, scores: dict[str, Any]) -> RewardResult:
        total = sum(scores[f"{name}_score"] * weight for name, weight in self.weights.items())
        total /= sum(self.weights.values())
        return RewardResult(sample.original_index, sample.group_index, total, scores)


class HonestReward(MeanReward):
    """The first one with the two lines changed."""

    def score_of(self, result: Any) -> Any:
        return None if isinstance(result, GraderError) else result.score

    def result(self, sample: RewardSample, scores: dict[str, Any]) -> RewardResult:
        total = None if None in scores.values() else sum(scores.values()) / len(scores)
        return RewardResult(sample.original_index, sample.group_index, total, scores)


PROMPT = """
Evaluate the following response: accuracy (0-10), completeness (0-10), clarity (0-10).

Query: {query}
Response: {response}

Output JSON:
{{"accuracy": <int>, "completeness": <int>, "clarity": <int>}}
"""


class ThreeMarks(LLMGrader):
    """A judge with its own prompt, and three numbers instead of a score."""

    def __init__(self, model: Any, **more: Any) -> None:
        template = PromptTemplate(
            messages={LanguageEnum.EN: [ChatMessage(role="user", content=PROMPT)]}
        )
        super().__init__(
            name="three_marks",
            mode=GraderMode.POINTWISE,
            description="Custom LLM evaluation",
            model=model,
            template=template,
            **more,
        )


def batch() -> dict[str, list[RewardSample]]:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    samples = [
        RewardSample(
            index,
            index % 4,
            f"p{index // 4}",
            "done",
            [
                {"role": "user", "content": f"task {index}"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "all that there is to see"},
                {"role": "assistant", "content": "done"},
            ],
            {},
        )
        for index in range(40)
    ]
    return {f"p{group}": samples[4 * group : 4 * group + 4] for group in range(10)}


@contextmanager
def judge(monkeypatch: pytest.MonkeyPatch, share: float, reply: str = RATED) -> Iterator[None]:
    """A provider that refuses this share of all calls; it says so, so nothing is asked again."""
    fail = (f"refusal:{share}",) if share else ()
    with start_mock_here(reply=reply, fail=fail, seed=3) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield


def three_steps(function: RewardFunction) -> list[list[Any]]:
    steps = []
    for _ in range(3):
        results = asyncio.run(function.compute_batch_scores(batch()))
        assert [result.original_index for result in results] == list(range(40))
        steps.append([result.score for result in results])
    return steps


@pytest.mark.parametrize("kind", [MeanReward, WeightedReward, HonestReward])
def test_without_failures_all_three_are_right(
    kind: type[MeanReward], monkeypatch: pytest.MonkeyPatch
) -> None:
    with judge(monkeypatch, 0.0):
        assert three_steps(kind()) == [[pytest.approx(1.0)] * 40] * 3


@pytest.mark.parametrize(
    ("kind", "failed"), [(MeanReward, pytest.approx(2 / 3)), (HonestReward, None)]
)
def test_half_failing_is_a_low_reward_as_migrated_and_missing_with_two_lines_changed(
    kind: type[MeanReward], failed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with judge(monkeypatch, 0.5):  # of three replies to a question
        scores = [score for step in three_steps(kind()) for score in step]
    others = [score for score in scores if score != pytest.approx(1.0)]
    assert 3 <= len(others) <= 30
    assert others == [failed] * len(others)


def test_reading_the_score_of_a_failure_stops_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with judge(monkeypatch, 0.5), pytest.raises(AttributeError, match="score"):
        three_steps(WeightedReward())


def test_all_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    with judge(monkeypatch, 1.0):
        assert three_steps(MeanReward()) == [[pytest.approx(2 / 3)] * 40] * 3
        assert three_steps(HonestReward()) == [[None] * 40] * 3


def marks(grader: Any) -> list[Any]:
    runner = GradingRunner({"marks": grader}, show_progress=False)
    items = [{"query": f"q{i}", "response": f"r{i}"} for i in range(40)]
    return [result for _ in range(3) for result in asyncio.run(runner.arun(items))["marks"]]


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_three_marks_are_no_score_until_it_is_said_how(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = '{"accuracy": 9, "completeness": 6, "clarity": 6}'
    said = {"score_from": ["accuracy", "completeness", "clarity"], "score_range": (0, 10)}
    with judge(monkeypatch, share, reply):
        model = OpenAIChatModel("m", temperature=0.0)
        unsaid, scored = marks(ThreeMarks(model)), marks(ThreeMarks(model, **said))
    assert all(isinstance(result, GraderError) for result in unsaid)
    if share < 1:
        hint = next(r for r in unsaid if r.kind == "unparsable")
        assert "no 'score' but accuracy, clarity, completeness; name the keys" in hint.error
    failed = [result for result in scored if isinstance(result, GraderError)]
    assert {result.score for result in scored if isinstance(result, GraderScore)} <= {7.0}
    assert len(failed) == {0.0: 0, 1.0: 120}.get(share, len(failed))
    assert {str(result.kind) for result in failed} <= {"refused"}
