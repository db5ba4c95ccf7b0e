"""Trajectory graders against comparisons of all pairs, on ordinary and on nasty messages."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.rules.redundancy import (
    ActionLoopDetectionGrader,
    ObservationInformationGainGrader,
    ToolUsageEfficiencyGrader,
    TrajectoryStepEfficiencyGrader,
)
from adjudge.graders.rules.trajectory import (
    ToolCallPrecisionRecallMatchGrader,
    ToolCallStepSequenceMatchGrader,
)

pytestmark = pytest.mark.slow  # many examples

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text("aB1 ", max_size=4)
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "key of"]), inner, max_size=3)
    ),
    max_leaves=5,
)
argument_objects = st.dictionaries(st.sampled_from(["q", "page", "x y"]), json_values, max_size=3)
arguments = (
    argument_objects
    | argument_objects.map(json.dumps)
    | st.sampled_from(["", "{x", "[1]", "NaN", None])
)
names = st.sampled_from(["search", "open page", "F", "f", ""])
WORDS = ["alpha", "Beta", "beta", "gamma", "d", "e", "f"]
observations = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
steps = st.lists(st.tuples(names, arguments, observations), max_size=12)
thresholds = st.sampled_from([0.0, 0.2, 1 / 3, 0.5, 2 / 3, 0.8, 0.99, 1.0])


def as_messages(made: list[tuple[str, Any, str]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for number, (name, argument, observation) in enumerate(made):
        call = {"id": f"c{number % 3}", "function": {"name": name, "arguments": argument}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number % 3}", "content": observation})
    return messages


# The definitions, written without any of the package's helpers.


def jaccard(one: str, other: str) -> float:
    a, b = set(one.lower().split()), set(other.lower().split())
    return len(a & b) / len(a | b) if a and b else 0.0


def action(name: str, argument: Any) -> str:
    decoded = argument
    if isinstance(argument, str):
        try:
            decoded = json.loads(argument)
        except ValueError:
            decoded = None
    if isinstance(decoded, dict):
        return name + ": " + ", ".join(f"{key}: {value}" for key, value in sorted(decoded.items()))
    return name + (": " + str(argument) if argument else "")


def loop_score(made: list[tuple[str, Any, str]], threshold: float) -> float:
    actions = [action(name, argument) for name, argument, _ in made]
    pairs = [(a, b) for i, a in enumerate(actions) for b in actions[i + 1 :]]
    if not pairs:
        return 1.0
    return 1.0 - sum(jaccard(a, b) >= threshold for a, b in pairs) / len(pairs)


def gain_score(made: list[tuple[str, Any, str]], threshold: float) -> float:
    seen: list[str] = []
    rewards = []
    for _, _, observation in made:
        if len(observation.strip()) < 10:
            continue
        best = max((jaccard(observation, earlier) for earlier in seen), default=0.0)
        rewards.append((1.0 - best) * math.exp(-2 * max(0, best - threshold)))
        seen.append(observation)
    return sum(rewards) / len(rewards) if rewards else 0.0


@given(steps, thresholds)
def test_the_loop_score_is_its_definition(made: list[tuple[str, Any, str]], thr: float) -> None:
    score = ActionLoopDetectionGrader(similarity_threshold=thr).evaluate(as_messages(made))
    assert score.score == pytest.approx(loop_score(made, thr), abs=1e-12)
    assert score.evaluable == (len(made) > 1)


@given(steps, thresholds)
def test_the_information_gain_is_its_definition(
    made: list[tuple[str, Any, str]], thr: float
) -> None:
    score = ObservationInformationGainGrader(similarity_threshold=thr).evaluate(as_messages(made))
    assert score.score == pytest.approx(gain_score(made, thr), abs=1e-12)


# Whatever looks like JSON gives a score in range or says why not.

FIELDS = [
    *["role", "content", "tool_calls", "tool_call", "function", "function_call", "name"],
    *["arguments", "id", "tool_call_id", "message", "text", "type"],
]
WORTHY = ["assistant", "tool", "a", "b", "{}"]
nasty_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS), inner | st.sampled_from(WORTHY), max_size=5)
    ),
    max_leaves=12,
)
nasty_calls = (
    st.lists(
        nasty_values
        | st.fixed_dictionaries(
            {"function": nasty_values}, optional={"id": nasty_values, "tool_call": nasty_values}
        ),
        max_size=3,
    )
    | nasty_values
)
nasty_messages: st.SearchStrategy[Any] = (
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["assistant", "tool", "function", "user", None, 3, [], {}])},
            optional={
                "content": nasty_values,
                "tool_calls": nasty_calls,
                "tool_call_id": nasty_values,
                "function_call": nasty_values,
                "message": nasty_values,
            },
        )
        | nasty_values,
        max_size=6,
    )
    | nasty_values
)

GRADERS: list[Any] = [
    ActionLoopDetectionGrader(),
    ActionLoopDetectionGrader(0.4),
    ObservationInformationGainGrader(),
    ObservationInformationGainGrader(0.0),
    ToolUsageEfficiencyGrader(),
    TrajectoryStepEfficiencyGrader(),
]
REFERENCED: list[Any] = [
    ToolCallPrecisionRecallMatchGrader("f1", match_arguments=True),
    ToolCallStepSequenceMatchGrader(),
    ToolCallStepSequenceMatchGrader(use_jaccard_similarity=False),
]


def in_range_or_invalid(grader: Any, **fields: Any) -> None:
    kind = None
    try:
        score = grader.evaluate(**fields).score
    except GradingFailure as failure:
        score, kind = 0.0, failure.kind
    assert 0.0 <= score <= 1.0
    assert kind in (None, ErrorKind.INVALID_INPUT)


made_badly = st.lists(st.tuples(names, nasty_values, nasty_values), max_size=6).map(as_messages)


@given(nasty_messages | made_badly, nasty_calls, nasty_values)
@settings(max_examples=400)
def test_no_messages_calls_or_references_break_a_grader(
    messages: Any, calls: Any, count: Any
) -> None:
    for grader in GRADERS:
        in_range_or_invalid(grader, messages=messages)
    for grader in REFERENCED:
        in_range_or_invalid(grader, messages=messages, reference_tool_calls=[{"name": "f"}])
        in_range_or_invalid(grader, messages=messages, reference_tool_calls=calls)
    in_range_or_invalid(REFERENCED[0], tool_calls=messages, reference_tool_calls=calls)
    step = TrajectoryStepEfficiencyGrader()
    in_range_or_invalid(step, messages=messages, reference_step_count=count)
