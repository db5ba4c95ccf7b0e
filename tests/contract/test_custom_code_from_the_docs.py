"""Code in the shape that OpenJudge's verl guide teaches, with only the import lines changed."""

import asyncio
from typing import Any

import pytest

from adjudge import BaseGrader, GraderMode, GraderScore
from adjudge.graders import ActionLoopDetectionGrader, ObservationInformationGainGrader
from adjudge.rewards import RewardFunction, RewardResult, RewardSample, check_results
from adjudge.runner import GraderConfig, GradingRunner


class BrevityGrader(BaseGrader):
    """A custom rule grader: overrides aevaluate, reads the last message, returns a GraderScore."""

    def __init__(self, shortest: int = 20, longest: int = 60) -> None:
        super().__init__(
            name="brevity", mode=GraderMode.POINTWISE, description="Neither curt nor long-winded"
        )
        self.shortest = shortest
        self.longest = longest

    async def aevaluate(self, messages: list[dict[str, Any]]) -> GraderScore:
        text = messages[-1].get("content", "")
        size = len(text)
        if size < self.shortest:
            score = size / self.shortest
        elif size > self.longest:
            score = max(0.0, 1.0 - (size - self.longest) / self.longest)
        else:
            score = 1.0
        return GraderScore(
            name=self.name, score=score, reason=f"{size} characters", metadata={"size": size}
        )


class GuideRewardFunction(RewardFunction):
    """A reward function: grader configs with mappers, one dataset per prompt, a weighted mean."""

    def __init__(self, max_concurrency: int = 32) -> None:
        self.weights = {"brevity": 0.4, "action_loop": 0.3, "info_gain": 0.3}
        self.runner = GradingRunner(
            grader_configs={
                "brevity": GraderConfig(
                    grader=BrevityGrader(), mapper=lambda data: {"messages": data["messages"]}
                ),
                "action_loop": GraderConfig(
                    grader=ActionLoopDetectionGrader(similarity_threshold=1.0),
                    mapper=lambda data: {"messages": data["messages"]},
                ),
                "info_gain": GraderConfig(
                    grader=ObservationInformationGainGrader(similarity_threshold=0.5),
                    mapper=lambda data: {"messages": data["messages"]},
                ),
            },
            max_concurrency=max_concurrency,
            show_progress=True,
        )

    async def compute_batch_scores(self, prompt_to_samples: Any) -> list[RewardResult]:
        datasets = [
            [{"messages": s.messages} for s in group] for group in prompt_to_samples.values()
        ]
        graded = await self.runner.arun_multiple_datasets(datasets)
        results = []
        for group, found in zip(prompt_to_samples.values(), graded, strict=True):
            for place, sample in enumerate(group):
                scores = {n: getattr(found[n][place], "score", None) for n in self.weights}
                total = None
                if None not in scores.values():
                    total = sum(self.weights[n] * (scores[n] or 0.0) for n in self.weights)
                results.append(
                    RewardResult(
                        original_index=sample.original_index,
                        group_index=sample.group_index,
                        score=total,
                        reward_info={f"{n}_score": s for n, s in scores.items()},
                    )
                )
        return results


def sample(index: int, text: Any) -> RewardSample:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]
    return RewardSample(
        original_index=index, group_index=index % 2, prompt="q", response="", messages=messages,

    )  # fmt: skip


def test_the_custom_grader() -> None:
    grader = BrevityGrader()
    for text, expected in (("x" * 10, 0.5), ("x" * 30, 1.0), ("x" * 90, 0.5), ("x" * 500, 0.0)):
        result = asyncio.run(grader.aevaluate(messages=[{"role": "assistant", "content": text}]))
        assert result.score == pytest.approx(expected)
    runner = GradingRunner(grader_configs={"b": GraderConfig(grader=grader)}, max_concurrency=32)
    [graded] = runner.run([{"messages": [{"content": "x" * 30}], "other": 1}])["b"]
    assert isinstance(graded, GraderScore)
    assert graded.metadata == {"size": 30}


def test_the_reward_function_over_several_steps() -> None:
    function = GuideRewardFunction()
    batch = {
        "p0": [sample(2, "x" * 30), sample(3, "x" * 10)],
        "p1": [sample(0, "x" * 90), sample(1, None)],
    }
    for _ in range(3):
        results = check_results(asyncio.run(function.compute_batch_scores(batch)), batch)
        assert results[2].score == pytest.approx(0.4 * 1.0 + 0.3 * 1.0 + 0.3 * 0.0)
        assert results[3].score == pytest.approx(0.4 * 0.5 + 0.3)
        # Null content breaks this custom grader: missing, where the guide would have scored 0.
        assert results[1].score is None
        assert results[1].reward_info["action_loop_score"] == 1.0
