"""Which tool result answers which tool call."""

from __future__ import annotations

from typing import Any

import pytest
from tests.refusals import fails

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.rules.trajectory import (
    Trajectory,
    calls_by_turn,
    parse_trajectory,
)


def call(name: str, call_id: Any = None, arguments: Any = "{}") -> dict[str, Any]:
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if call_id is None else {**made, "id": call_id}


def turn(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(content: Any, call_id: Any = None) -> dict[str, Any]:
    message = {"role": "tool", "content": content}
    return message if call_id is None else {**message, "tool_call_id": call_id}


def pairs(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(step.call.name, step.observation) for step in trajectory.steps]


def test_a_result_without_id_prefers_calls_without_id_then_the_oldest() -> None:
    messages = [turn(call("f", "a"), call("g"), call("h", "c")), result("1"), result("2")]
    trajectory = parse_trajectory([*messages, result("3", "a"), result("4", "c")])
    assert pairs(trajectory) == [("g", "1"), ("f", "2"), ("h", "4")]
    assert trajectory.orphan_results == 1


@pytest.mark.parametrize("call_id", ["nobody", 7, "", None])
def test_results_that_answer_nothing_are_counted(call_id: Any) -> None:
    trajectory = parse_trajectory([result("late", call_id), turn(call("f", "a"))])
    assert trajectory == Trajectory([], unanswered_calls=1, orphan_results=1)


def test_wrapped_messages_and_calls_are_unwrapped() -> None:
    wrapped = [
        {"message": turn({"tool_call": call("f", "a")}, {"tool_call": call("g", "b")})},
        {"message": result("2", "b")},
        {"message": result("1", "a")},
    ]
    assert pairs(parse_trajectory(wrapped)) == [("g", "2"), ("f", "1")]


def test_arguments_and_names_may_be_missing() -> None:
    messages = [turn({"id": "a", "function": {}}, {"id": "b", "name": "flat", "arguments": {}})]
    assert [[c.name for c in calls] for calls in calls_by_turn(messages)] == [["", "flat"]]
    assert calls_by_turn(messages)[0][0].arguments is None


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [None],
        [{"role": "assistant", "tool_calls": "f()"}],
        [{"role": "assistant", "tool_calls": [{"id": "a", "function": "f"}]}],
        [{"role": "assistant", "function_call": "f"}],
    ],
)
def test_what_cannot_be_read_is_invalid_input(messages: Any) -> None:
    for read in (parse_trajectory, calls_by_turn):
        with fails(ErrorKind.INVALID_INPUT) as caught:
            read(messages)
        in_a_turn = isinstance(messages, list) and isinstance(messages[0], dict)
        assert caught.value.suspect is in_a_turn  # a policy may have written the call


def test_calls_by_turn_has_unanswered_calls_and_no_empty_turns() -> None:
    messages = [turn(call("f", "a")), {"role": "assistant", "tool_calls": []}, turn(call("g", "b"))]
    assert [[c.name for c in calls] for calls in calls_by_turn(messages)] == [["f"], ["g"]]


def test_content_that_python_will_not_print_is_invalid_input() -> None:
    with pytest.raises(GradingFailure, match="content"):
        parse_trajectory([turn(call("f", "a")), result(10**5000, "a")])


def test_a_long_backlog_of_unanswered_calls_is_walked_once() -> None:
    calls = [turn(call("f", f"c{n}")) for n in range(3000)]
    answers = [result("late") for _ in range(3000)]
    trajectory = parse_trajectory(calls + answers)
    assert len(trajectory.steps) == 3000
    assert trajectory.unanswered_calls == 0
