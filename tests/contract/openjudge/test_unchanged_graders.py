"""Graders of the real py-openjudge, used unchanged: run by `make test-openjudge`."""

import asyncio
import json
from typing import Any

import pytest

from adjudge import GraderConfig, GraderError, GraderScore, GradingRunner
from adjudge.graders import ActionLoopDetectionGrader, ObservationInformationGainGrader

pytest.importorskip(
    "openjudge", reason="py-openjudge is not installed here; run `make test-openjudge`"
)

from openjudge.graders.agent import (
    ActionLoopDetectionGrader as TheirLoop,
    ObservationInformationGainGrader as TheirGain,
)
from openjudge.graders.base_grader import BaseGrader as TheirBase
from openjudge.graders.schema import GraderError as TheirError, GraderScore as TheirScore


def trajectory(*steps: tuple[str, dict[str, Any], str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for i, (name, arguments, observation) in enumerate(steps):
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"c{i}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{i}", "content": observation})
    return messages


ITEMS = [
    {"messages": trajectory()},
    {"messages": trajectory(("f", {"a": 1}, "one two three four"))},
    {"messages": trajectory(*[("f", {"a": 1}, "one two three four")] * 3)},
    {
        "messages": trajectory(
            ("f", {"q": "a"}, "one two three four"), ("g", {"q": "b"}, "one two three five")
        )
    },
    {
        "messages": trajectory(
            ("f", {"q": "a b"}, "short"), ("f", {"q": "b a"}, "one two three five")
        )
    },
]


def test_their_graders_in_our_runner_score_as_ours() -> None:
    runner = GradingRunner(
        {
            "their_loop": TheirLoop(similarity_threshold=0.5),
            "our_loop": ActionLoopDetectionGrader(similarity_threshold=0.5),
            "their_gain": GraderConfig(TheirGain(), lambda item: {"messages": item["messages"]}),
            "our_gain": ObservationInformationGainGrader(),
        },
        show_progress=False,
    )
    for _ in range(2):  # the second step is where a loop-bound object would break
        results = asyncio.run(runner.arun(ITEMS))
        for ours, theirs in (("our_loop", "their_loop"), ("our_gain", "their_gain")):
            for mine, other in zip(results[ours], results[theirs], strict=True):
                assert isinstance(mine, GraderScore)
                assert isinstance(other, GraderScore)
                assert mine.score == pytest.approx(other.score, abs=1e-12)
                assert other.reason


def test_their_scores_and_errors_are_translated() -> None:
    class Theirs(TheirBase):  # type: ignore[misc]  # untyped here: the package is not installed
        async def _aevaluate(self, n: int, **kwargs: Any) -> Any:
            if n == 0:
                return TheirError(name="t", error="judge said nothing")
            if n == 1:
                return TheirScore(name="t", score=float("nan"), reason="?")
            return TheirScore(name="t", score=float(n), reason="fine", metadata={"n": n})

    runner = GradingRunner({"t": Theirs(name="t")}, show_progress=False)
    error, nan, good, lacking = runner.run([{"n": 0}, {"n": 1}, {"n": 2, "other": 3}, {"m": 1}])[
        "t"
    ]
    assert isinstance(error, GraderError)
    assert "judge said nothing" in error.error
    assert isinstance(nan, GraderError)
    assert nan.kind == "out_of_range"
    assert good == GraderScore("t", 2.0, "fine", {"n": 2})
    assert isinstance(lacking, GraderError)
    assert lacking.kind == "invalid_input"
