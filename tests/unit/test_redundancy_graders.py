"""Loops of calls, gains of observations, efficiencies: published values and what surrounds them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adjudge.errors import GradingFailure
from adjudge.graders.rules.redundancy import (
    ActionLoopDetectionGrader,
    ObservationInformationGainGrader,
    ToolUsageEfficiencyGrader,
    TrajectoryStepEfficiencyGrader,
)


def trajectory(*steps: Any) -> list[dict[str, Any]]:
    """Answered calls: name, arguments, and what was observed."""
    messages: list[dict[str, Any]] = []
    for number, (name, arguments, *seen) in enumerate(steps):
        made = {"id": f"c{number}", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        content = seen[0] if seen else "seen"
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": content})
    return messages


def observed(*observations: Any) -> list[dict[str, Any]]:
    return trajectory(*(("look", "{}", one) for one in observations))


PUBLISHED = [
    # calls, score at threshold 1.0, score at threshold 0.5
    ([], 1.0, 1.0),
    ([("search", '{"q":"a b"}')], 1.0, 1.0),
    ([("search", '{"q":"a b"}'), ("search", '{"q":"b a"}')], 0.0, 0.0),
    ([("search", '{"q":"a"}'), ("search", '{"q":"b"}')], 1.0, 0.0),
    ([("f", '{"x":1,"y":2}'), ("f", {"y": 2, "x": 1})], 0.0, 0.0),
    ([("f", '{"a":{"b":[1,2]}}'), ("f", '{"a":{"b":[2,1]}}')], 1.0, 1.0),
]


@pytest.mark.parametrize(("calls", "exact", "half"), PUBLISHED)
def test_published_scores(calls: list[tuple[str, str]], exact: float, half: float) -> None:
    messages = trajectory(*calls)
    assert ActionLoopDetectionGrader().evaluate(messages).score == exact
    assert ActionLoopDetectionGrader(similarity_threshold=0.5).evaluate(messages).score == half


@pytest.mark.parametrize("arguments", [None, "", [], 3, 2.5, False, "[1]", '"text"', "{"])
def test_other_arguments_are_compared_as_written(arguments: Any) -> None:
    grader = ActionLoopDetectionGrader()
    assert grader.evaluate(trajectory(("f", arguments), ("f", arguments))).score == 0.0
    assert grader.evaluate(trajectory(("f", arguments), ("f", '{"a": 1}'))).score == 1.0


def test_unanswered_calls_and_orphans_are_counted_not_compared() -> None:
    messages = trajectory(("f", "{}"), ("g", "{}"))
    messages.append({"role": "tool", "tool_call_id": "nobody", "content": "?"})
    messages.append({"role": "assistant", "tool_calls": [{"id": "z", "function": {"name": "f"}}]})
    score = ActionLoopDetectionGrader().evaluate(messages)
    counted = [score.metadata[key] for key in ("calls", "unanswered_calls", "orphan_results")]
    assert counted == [2, 1, 1]


def test_calls_without_any_word_are_similar_to_nothing() -> None:
    messages = trajectory(("", None), ("", None))
    assert ActionLoopDetectionGrader().evaluate(messages).score == 1.0
    assert ActionLoopDetectionGrader(similarity_threshold=0.0).evaluate(messages).score == 0.0


def test_metadata_is_bounded_and_names_what_repeats() -> None:
    calls = [(f"tool{number % 15}", json.dumps({"text": "x" * 1000})) for number in range(40)]
    metadata = ActionLoopDetectionGrader().evaluate(trajectory(*calls)).metadata
    assert len(metadata["repeated"]) == 10
    assert metadata["repeated"][0]["count"] == 3
    assert all(len(entry["action"]) <= 200 for entry in metadata["repeated"])
    assert metadata["similar_pairs"] == 10 * 3 + 5 * 1
    assert metadata["pairs"] == 40 * 39 // 2


def test_arguments_that_python_will_not_print_are_alike_or_as_written() -> None:
    nested: Any = {}
    for _ in range(100_000):
        nested = {"a": nested}
    found = ActionLoopDetectionGrader().evaluate(trajectory(("f", nested), ("f", nested)))
    assert found.score == 0.0
    long_number = '{"a": ' + "1" * 5000 + "}"
    ActionLoopDetectionGrader().evaluate(trajectory(("f", {"a": 10**5000}), ("g", {})))
    messages = trajectory(("f", long_number), ("f", long_number))
    assert ActionLoopDetectionGrader().evaluate(messages).score == 0.0


# Gains


FOUR = "one two three four"

PUBLISHED_GAINS = [
    # observations, score at threshold 0.5, score at threshold 0.8
    (["Alpha BETA gamma delta", "alpha beta gamma delta"], 0.5, 0.5),
    ([FOUR, "one two three five"], 0.663746, 0.7),
    (["short", FOUR], 1.0, 1.0),
    ([FOUR] * 3, 0.333333, 0.333333),
]


@pytest.mark.parametrize(("observations", "half", "high"), PUBLISHED_GAINS)
def test_published_gains(observations: list[str], half: float, high: float) -> None:
    messages = observed(*observations)
    for threshold, score in ((0.5, half), (0.8, high)):
        grader = ObservationInformationGainGrader(similarity_threshold=threshold)
        assert grader.evaluate(messages).score == pytest.approx(score, abs=5e-7)


def test_content_parts_are_read() -> None:
    parts = [{"type": "text", "text": "alpha beta "}, {"type": "text", "text": "gamma delta"}]
    score = ObservationInformationGainGrader().evaluate(observed(parts, "alpha beta gamma delta"))
    assert score.score == 0.5
    assert score.metadata["repeats"] == 1


# Efficiencies


LOOK = ("look", '{"at": "door"}', "a wooden door")
OPEN = ("open", '{"what": "door"}', "it is locked")


@pytest.mark.parametrize(
    ("steps", "score"),
    [
        ([LOOK, OPEN, LOOK, ("look", '{"at": "door"}', "it stands open now")], 0.75),
        ([("f", "{}", "a b c d"), ("f", "{}", "a b c d e")], 0.5),  # similar by four fifths
        ([("f", "{}", "a b c d"), ("f", "{}", "a b c e f")], 1.0),
    ],
)
def test_a_step_is_redundant_when_call_and_observation_repeat(steps: Any, score: float) -> None:
    assert TrajectoryStepEfficiencyGrader().evaluate(trajectory(*steps)).score == score


@pytest.mark.parametrize(
    ("cls", "messages", "score"),
    [
        (ActionLoopDetectionGrader, [], 1.0),
        (ActionLoopDetectionGrader, trajectory(LOOK), 1.0),
        (ObservationInformationGainGrader, [], 0.0),
        (ObservationInformationGainGrader, observed("short", "", None, "  tiny      "), 0.0),
        (TrajectoryStepEfficiencyGrader, [{"role": "assistant", "content": "done"}], 0.0),
        (ToolUsageEfficiencyGrader, [{"role": "assistant", "content": "done"}], 0.0),
    ],
)
def test_nothing_to_judge_is_not_evaluable(cls: Any, messages: Any, score: float) -> None:
    result = cls().evaluate(messages)
    assert (result.score, result.evaluable) == (score, False)


def test_a_reference_count_is_weighed_in() -> None:
    messages = trajectory(LOOK, OPEN, LOOK, LOOK)
    grader = TrajectoryStepEfficiencyGrader()
    for count, share in ((2, 0.5), (10, 1), (0, 0), (1.0, 0.25), (10**400, 1)):
        assert grader.evaluate(messages, count).score == pytest.approx(0.6 * 0.5 + 0.4 * share)


@pytest.mark.parametrize("count", [-1, 1.5, "2", True, [3]])
def test_a_reference_count_that_is_none(count: Any) -> None:
    with pytest.raises(GradingFailure, match="reference_step_count"):
        TrajectoryStepEfficiencyGrader().evaluate(trajectory(LOOK), count)


def test_tool_usage_by_hand() -> None:
    score = ToolUsageEfficiencyGrader().evaluate(trajectory(LOOK, OPEN, LOOK))
    gain = (1 + 1 + 0) / 3
    assert score.score == pytest.approx(0.4 * gain + 0.4 * (2 / 3) + 0.2 * (2 / 3 + 0.3))
    counted = [score.metadata[key] for key in ("repeated_calls", "low_gain_calls", "tools")]
    assert counted == [1, 1, 2]
