"""Step efficiency and tool-usage efficiency."""

from __future__ import annotations

from typing import Any

import pytest

from adjudge.errors import GradingFailure
from adjudge.graders.rules.redundancy import (
    ToolUsageEfficiencyGrader,
    TrajectoryStepEfficiencyGrader,
)


def trajectory(*steps: tuple[str, Any, str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for number, (name, arguments, observation) in enumerate(steps):
        made = {"id": f"c{number}", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": observation})
    return messages


LOOK = ("look", '{"at": "door"}', "a wooden door")
OPEN = ("open", '{"what": "door"}', "it is locked")


def test_a_step_is_redundant_when_call_and_observation_repeat() -> None:
    messages = trajectory(LOOK, OPEN, LOOK, ("look", '{"at": "door"}', "it stands open now"))
    score = TrajectoryStepEfficiencyGrader().evaluate(messages)
    assert score.score == 0.75
    assert score.metadata["redundant_steps"] == 1


def test_a_new_call_with_an_old_observation_is_not_redundant() -> None:
    messages = trajectory(OPEN, ("push", "{}", "it is locked"))
    assert TrajectoryStepEfficiencyGrader().evaluate(messages).score == 1.0


@pytest.mark.parametrize(("seen", "score"), [("a b c d e", 0.5), ("a b c e f", 1.0)])
def test_a_similarity_of_four_fifths_is_redundant(seen: str, score: float) -> None:
    messages = trajectory(("f", "{}", "a b c d"), ("f", "{}", seen))
    assert TrajectoryStepEfficiencyGrader().evaluate(messages).score == score


def test_a_reference_count_is_weighed_in() -> None:
    messages = trajectory(LOOK, OPEN, LOOK, LOOK)
    grader = TrajectoryStepEfficiencyGrader()
    assert grader.evaluate(messages, 2).score == pytest.approx(0.6 * 0.5 + 0.4 * 0.5)
    assert grader.evaluate(messages, 10).score == pytest.approx(0.6 * 0.5 + 0.4)
    assert grader.evaluate(messages, 0).score == pytest.approx(0.6 * 0.5)
    assert grader.evaluate(messages, 1.0).score == pytest.approx(0.6 * 0.5 + 0.4 * 0.25)
    assert grader.evaluate(messages, 10**400).score == pytest.approx(0.6 * 0.5 + 0.4)


@pytest.mark.parametrize("count", [-1, 1.5, "2", True, [3]])
def test_a_reference_count_that_is_none(count: Any) -> None:
    with pytest.raises(GradingFailure, match="reference_step_count"):
        TrajectoryStepEfficiencyGrader().evaluate(trajectory(LOOK), count)


def test_arguments_as_object_string_or_broken_string() -> None:
    grader = TrajectoryStepEfficiencyGrader()
    same = trajectory(("f", '{"b": 1, "a": 2}', "seen"), ("f", {"a": 2, "b": 1}, "seen"))
    assert grader.evaluate(same).score == 0.5
    assert grader.evaluate(trajectory(("f", "{x", "seen"), ("f", "{y", "seen"))).score == 1.0
    assert grader.evaluate(trajectory(("f", "{x", "seen"), ("f", "{x", "seen"))).score == 0.5
    assert grader.evaluate(trajectory(("f", None, "seen"), ("f", "{}", "seen"))).score == 0.5


def test_tool_usage_by_hand() -> None:
    score = ToolUsageEfficiencyGrader().evaluate(trajectory(LOOK, OPEN, LOOK))
    gain = (1 + 1 + 0) / 3
    assert score.score == pytest.approx(0.4 * gain + 0.4 * (2 / 3) + 0.2 * (2 / 3 + 0.3))
    assert score.metadata["repeated_calls"] == 1
    assert score.metadata["low_gain_calls"] == 1
    assert score.metadata["tools"] == 2


@pytest.mark.parametrize("cls", [TrajectoryStepEfficiencyGrader, ToolUsageEfficiencyGrader])
def test_no_call_is_not_evaluable(cls: Any) -> None:
    score = cls().evaluate([{"role": "assistant", "content": "done"}])
    assert score.score == 0.0
    assert not score.evaluable
