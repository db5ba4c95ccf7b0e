"""Code in the shape that OpenJudge's verl guide teaches, with only the import lines changed."""

import asyncio
from typing import Any

import pytest

from adjudge import BaseGrader, GraderMode, GraderScore
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


def test_the_custom_grader() -> None:
    grader = BrevityGrader()
    for text, expected in (("x" * 10, 0.5), ("x" * 30, 1.0), ("x" * 90, 0.5), ("x" * 500, 0.0)):
        result = asyncio.run(grader.aevaluate(messages=[{"role": "assistant", "content": text}]))
        assert result.score == pytest.approx(expected)
    runner = GradingRunner(grader_configs={"b": GraderConfig(grader=grader)}, max_concurrency=32)
    [graded] = runner.run([{"messages": [{"content": "x" * 30}], "other": 1}])["b"]
    assert isinstance(graded, GraderScore)
    assert graded.metadata == {"size": 30}
