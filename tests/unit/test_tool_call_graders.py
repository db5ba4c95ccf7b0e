"""Tool calls against references."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adjudge.errors import GradingFailure
from adjudge.graders.rules.trajectory import (
    ToolCallPrecisionRecallMatchGrader,
    ToolCallStepSequenceMatchGrader,
)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def turns(*steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "role": "assistant",
            "tool_calls": [
                {"function": {"name": c["name"], "arguments": json.dumps(c["arguments"])}}
                for c in step
            ],
        }
        for step in steps
    ]


A, B, C = call("a", x=1), call("b"), call("c")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"x": 1, "y": {"p": 1, "q": [1.0]}}, '{"y": {"q": [1], "p": 1}, "x": 1.0}', True),
        ({"e\u0301": "e\u0301"}, {"\u00e9": "\u00e9"}, True),
        ({"x": True}, {"x": 1}, False),
        ({"x": "1"}, {"x": 1}, False),
        ({"x": None}, {}, False),
        ({"x": [1, 2]}, {"x": [2, 1]}, False),
        ({}, "", True),
        ({}, None, True),
        ({}, "{", False),
        ("{", "{", True),
        ("{", '"{"', False),
        ({"x": 2**53 + 1}, {"x": 2.0**53}, False),
        ("[1]", "[1.0]", True),
    ],
)
def test_arguments_are_equal_as_json_values(one: Any, other: Any, equal: bool) -> None:
    grader = ToolCallPrecisionRecallMatchGrader(match_arguments=True)
    reference = [{"name": "f", "arguments": one}]
    made = [{"tool_call": {"function": {"name": "f", "arguments": other}}}]
    assert grader.evaluate(reference, tool_calls=made).score == float(equal)
    loose = ToolCallPrecisionRecallMatchGrader(match_arguments=False)
    assert loose.evaluate(reference, tool_calls=made).score == 1.0


def test_calls_are_taken_from_messages_answered_or_not() -> None:
    grader = ToolCallPrecisionRecallMatchGrader("recall", match_arguments=True)
    assert grader.evaluate([[A], [B, C]], messages=turns([A, B])).score == pytest.approx(2 / 3)
    assert grader.evaluate(json.dumps([A]), messages=turns([A])).score == 1.0
    assert grader.evaluate([A], tool_calls=json.dumps([A])).score == 1.0


@pytest.mark.parametrize("metric", ["precision", "recall", "f1", "jaccard", "loose"])
def test_one_side_empty_is_zero_both_empty_is_not_evaluable(metric: Any) -> None:
    def grade(reference: list[Any], made: list[Any]) -> Any:
        if metric in ("jaccard", "loose"):
            steps = ToolCallStepSequenceMatchGrader(use_jaccard_similarity=metric == "jaccard")
            return steps.evaluate(turns(made) if made else [], [reference] if reference else [])
        return ToolCallPrecisionRecallMatchGrader(metric).evaluate(reference, tool_calls=made)

    assert grade([], [A]).score == grade([A], []).score == 0.0
    assert (grade([], []).score, grade([], []).evaluable) == (1.0, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_calls": [A]},
        {"reference_tool_calls": None, "messages": []},
        {"reference_tool_calls": [A]},
        {"reference_tool_calls": "not JSON", "tool_calls": []},
        {"reference_tool_calls": [{"arguments": {}}], "tool_calls": []},
        {"reference_tool_calls": [A], "tool_calls": [[3]]},
        {"reference_tool_calls": [{"name": "f", "arguments": object()}], "tool_calls": [A]},
    ],
)
def test_missing_or_unreadable_input(fields: dict[str, Any]) -> None:
    with pytest.raises(GradingFailure):
        ToolCallPrecisionRecallMatchGrader(match_arguments=True).evaluate(**fields)


def test_jaccard_of_calls_ignores_order_and_repeats() -> None:
    strict = ToolCallStepSequenceMatchGrader()
    assert strict.evaluate(turns([B], [A], [A]), [[A], [B]]).score == 1.0
    assert strict.evaluate(turns([call("a", x=2)], [B]), [A, B]).score == pytest.approx(1 / 3)


def test_parallel_calls_of_one_tool_are_paired_each_once_equal_first() -> None:
    grader = ToolCallStepSequenceMatchGrader(use_jaccard_similarity=False)
    one, two = call("f", x=1), call("f", x=2)
    assert grader.evaluate(turns([two, one]), [[one, two]]).score == 1.0
    assert grader.evaluate(turns([one, one]), [[one, two]]).score == pytest.approx((1 + 0.5) / 2)
    # A reference tool that is called too rarely fails the step.
    assert grader.evaluate(turns([one]), [[one, two]]).score == 0.0


def test_sequences_need_a_reference() -> None:
    with pytest.raises(GradingFailure, match="missing"):
        ToolCallStepSequenceMatchGrader().evaluate(turns([A]))
