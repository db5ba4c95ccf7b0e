"""Trajectories before a judge: as a whole, and step by step with the steps checked."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.helpers.shipped_judges import Judge, failure, graded, text_of

from adjudge.errors import ErrorKind
from adjudge.graders.llm.shipped_graders import ShippedGrader
from adjudge.graders.llm.trajectory import (
    DIMENSIONS,
    TrajectoryAccuracyGrader,
    TrajectoryComprehensiveGrader,
)


def acting(number: int, content: Any = None) -> list[dict[str, Any]]:
    """A turn with a call, and its result."""
    call = {"id": f"c{number}", "function": {"name": "look", "arguments": f'{{"n": {number}}}'}}
    return [
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"saw {number}"},
    ]


QUESTION = {"role": "user", "content": "What is behind the door?"}
ANSWER = {"role": "assistant", "content": "A garden."}
MESSAGES = [QUESTION, *acting(1), *acting(2), *acting(3), ANSWER]
STEPS = [1, 3, 5]
every_class = pytest.mark.parametrize(
    "cls", [TrajectoryAccuracyGrader, TrajectoryComprehensiveGrader], ids=lambda cls: cls.type_name
)
every_language = pytest.mark.parametrize("language", ["en", "zh"])
both_modes = pytest.mark.parametrize("schema", [True, False], ids=["schema", "block"])


def step(number: Any, *ratings: Any, reason: str = "why") -> dict[str, Any]:
    """A rated step; one rating stands for all four."""
    four = ratings if len(ratings) == 4 else ratings * 4
    return {"step": number, "reason": reason, **dict(zip(DIMENSIONS, four, strict=True))}


def reply(*steps: Any) -> dict[str, Any]:
    return {"reason": "A short way.", "steps": list(steps)}


RATED = {"reason": "", "score": 3}
FULL = reply(step(1, 5, 4, 5, 3), step(3, 2, 2, 4, 1, reason="slow"), step(5, 5))


def comprehensive(*replies: Any, schema: bool = True, **parameters: Any) -> Any:
    return TrajectoryComprehensiveGrader(Judge(*replies, schema=schema), **parameters)


@every_language
@both_modes
def test_the_score_is_the_mean_of_the_dimensions(language: str, schema: bool) -> None:
    grader = comprehensive(FULL, schema=schema, language=language)
    score = graded(grader, messages=MESSAGES, group="g", draw=1)
    dimensions = {
        "contribution": (4 - 1) / 4,
        "relevance": (11 / 3 - 1) / 4,
        "accuracy": (14 / 3 - 1) / 4,
        "efficiency": (3 - 1) / 4,
    }
    assert score.metadata["dimensions"] == pytest.approx(dimensions)
    assert score.score == pytest.approx(sum(dimensions.values()) / 4)
    assert (score.score_range, score.reason) == ((0.0, 1.0), "A short way.")
    assert score.metadata["is_resolved"] is False
    assert score.metadata["step_ratings"][1] == {
        "step": 3, "contribution": 2, "relevance": 2, "accuracy": 4, "efficiency": 1
    }  # fmt: skip
    assert score.metadata["step_evaluations"][1] == {
        "step": 3, "contribution": 0.25, "relevance": 0.25, "accuracy": 0.75, "efficiency": 0.0,
        "reason": "slow",
    }  # fmt: skip
    assert score.provenance is not None
    assert score.provenance.prompt_hash == grader.fingerprint
    assert (grader.model.groups, grader.model.draws) == (["g"], [1])


def test_the_threshold_is_met_exactly() -> None:
    messages = [QUESTION, *acting(1), *acting(2), *acting(3), *acting(4), *acting(5)]
    four_fifths = reply(*(step(n, 4) for n in (1, 3, 5, 7)), step(9, 5))  # a mean of 4.2
    grader = comprehensive(four_fifths)
    score = graded(grader, messages=messages)
    assert score.score == 0.8
    assert score.metadata["is_resolved"] is True


@every_class
@every_language
def test_the_prompt_shows_the_whole_transcript_last(
    cls: type[ShippedGrader], language: str
) -> None:
    judge = Judge(FULL if cls is TrajectoryComprehensiveGrader else {"reason": "", "score": 3})
    long = [QUESTION, *acting(1, "x" * 200_000), *acting(2), *acting(3), ANSWER]
    graded(cls(judge, language=language), messages=long, reference="r", tools=[{"name": "look"}])
    assert list(judge.fenced) == ["tool_definitions", "reference", "messages"]
    assert len(judge.fenced["messages"]) > 200_000
    assert judge.fenced["messages"].rstrip().endswith("[7] assistant:\nA garden.")
    before = judge.material.partition("<messages-")[0]
    assert ("0 到 7" if language == "zh" else "numbered from 0 to 7") in before
    assert ("1, 3, 5" in before) is (cls is TrajectoryComprehensiveGrader)


# The steps that the judge rated are the steps that there are


@both_modes
@pytest.mark.parametrize(
    ("steps", "low", "high", "missing"),
    [
        ([step(1, 5), step(3, 5)], 2 / 3, 1.0, [5]),
        ([step(1, 1)], 0.0, 2 / 3, [3, 5]),
        ([], 0.0, 1.0, STEPS),
        ([step(1, 5), step(3, 5), step(5, 5), step(5, 1)], 2 / 3, 1.0, [5]),
        ([step(1, 5), step(3, 5), step(5, 5), step(5, 5)], 2 / 3, 1.0, [5]),
        ([step(1, 5), step(3, 5), step(5, 5), step(7, 5)], 0.0, 1.0, STEPS),
        ([step(0, 5), step(1, 5), step(2, 5)], 0.0, 1.0, STEPS),
        ([step(1, 5), step(3, 5), {"step": 5, "reason": ""}], 2 / 3, 1.0, [5]),
        ([step(1, 5), step(3, 5), step(5, 5, 5, None, 5)], 2 / 3, 1.0, [5]),
        ([step(1, 5), step(3, 5), step(5, 5, 5, True, 5)], 2 / 3, 1.0, [5]),
        ([step(1, 5), step(3, 9), step(5, 5, 5, None, 5)], 1 / 3, 1.0, [3, 5]),
    ],
    ids=["missing", "two missing", "none", "twice", "twice alike", "extra", "renumbered",
         "no ratings", "null", "true", "mixed"],
)  # fmt: skip
def test_steps_that_do_not_fit_are_incomplete(
    schema: bool, steps: list[Any], low: float, high: float, missing: list[int]
) -> None:
    failed = failure(comprehensive(reply(*steps), schema=schema), messages=MESSAGES)
    assert failed.kind is ErrorKind.INCOMPLETE
    assert (failed.metadata["low"], failed.metadata["high"]) == pytest.approx((low, high))
    assert failed.metadata["missing"] == missing
    rated = [one["step"] for one in failed.metadata["step_ratings"]]
    assert sorted(rated + missing) == STEPS
    assert len(failed.metadata["raw"]) == 2, "asked once more, and no more than that"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("The agent did well.", ErrorKind.UNPARSABLE),
        ({"reason": "", "score": 0}, ErrorKind.UNPARSABLE),
        ({"steps": "all good"}, ErrorKind.UNPARSABLE),
        (reply(1, 2, 3), ErrorKind.UNPARSABLE),
        (reply(step("first", 5), step(3, 5), step(5, 5)), ErrorKind.UNPARSABLE),
        (reply(step(1, 7), step(3, 5), step(5, 5)), ErrorKind.OUT_OF_RANGE),
        (reply(step(1, 4.5), step(3, 5), step(5, 5)), ErrorKind.OUT_OF_RANGE),
        (ErrorKind.RATE_LIMITED, ErrorKind.RATE_LIMITED),
    ],
)
@both_modes
def test_a_judge_that_fails_has_said_nothing(given: Any, kind: ErrorKind, schema: bool) -> None:
    failed = failure(comprehensive(given, schema=schema), messages=MESSAGES)
    assert failed.kind is kind
    assert ("low" in failed.metadata) is (kind is not ErrorKind.RATE_LIMITED)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([1, 3], "these steps lack a rating: 5"),
        ([1, 3, 5, 3], "these steps are rated more than once: 3"),
        ([1, 3, 5, 7], "the steps are: 1, 3, 5"),
    ],
)
def test_the_repair_ask_says_what_is_wrong_and_may_succeed(numbers: list[int], said: str) -> None:
    grader = comprehensive(reply(*(step(number, 5) for number in numbers)), FULL)
    score = graded(grader, messages=MESSAGES)
    assert score.metadata["repaired"] is True
    assert score.metadata["step_ratings"][0]["relevance"] == 4, "of the second reply alone"
    assert said in text_of(grader.model.asked[1][-1])


def test_numbers_as_judges_write_them_and_any_order_of_steps() -> None:
    written = reply(step("5", "5"), step(3.0, "4"), step("1", 3.0))
    score = graded(comprehensive(written), messages=MESSAGES)
    assert [one["step"] for one in score.metadata["step_ratings"]] == STEPS
    assert score.score == pytest.approx((4 - 1) / 4)
    assert [one["reason"] for one in score.metadata["step_evaluations"]] == ["why"] * 3


def test_a_trajectory_without_calls_has_one_step() -> None:
    chat = [QUESTION, {"role": "assistant", "content": "Look yourself."}, QUESTION, ANSWER]
    score = graded(comprehensive(reply(step(3, 5, 4, 4, 3))), messages=chat)
    assert score.score == 0.75
    assert failure(comprehensive(reply(step(1, 5))), messages=chat).kind is ErrorKind.INCOMPLETE


def test_calls_in_the_former_form_and_wrapped_messages() -> None:
    former = {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}
    messages = [{"message": QUESTION}, {"message": former}, ANSWER]
    grader = comprehensive(reply(step(1, 5)))
    assert graded(grader, messages=messages).score == 1.0
    assert "→ f({})" in grader.model.fenced["messages"]


@every_class
@pytest.mark.parametrize(
    ("last", "why"),
    [
        ({"role": "assistant", "content": "<think>let me"}, "unclosed_think"),
        ({"role": "assistant", "content": "<think>done</think> "}, "empty"),
        ({"role": "assistant", "content": None}, "empty"),
    ],
)
def test_saying_nothing_is_the_lowest_score(cls: type[ShippedGrader], last: Any, why: str) -> None:
    judge = Judge(FULL)
    score = graded(cls(judge), messages=[QUESTION, last])
    assert score.metadata == {"cause": "candidate", why: True}
    assert score.normalized == 0.0
    assert judge.asked == []


@every_class
@every_language
def test_a_cut_trajectory_says_so_or_is_masked(cls: type[ShippedGrader], language: str) -> None:
    judge = Judge(FULL if cls is TrajectoryComprehensiveGrader else {"score": 3})
    graded(cls(judge, language=language), messages=MESSAGES, finish_reason="length")
    assert ("长度上限" if language == "zh" else "length limit") in judge.material
    masked = failure(cls(judge, truncated="mask"), messages=MESSAGES, finish_reason="length")
    assert masked.kind is ErrorKind.INVALID_INPUT


@every_class
@pytest.mark.parametrize("messages", [None, "text", [], [QUESTION], [3]])
def test_messages_without_a_trajectory_are_named(cls: type[ShippedGrader], messages: Any) -> None:
    wrong = failure(cls(Judge(FULL)), messages=messages, response="x")
    assert wrong.kind is ErrorKind.INVALID_INPUT
    assert "messages" in str(wrong)


@every_class
def test_the_task_is_the_prompt_where_the_messages_lack_it(cls: type[ShippedGrader]) -> None:
    rates_steps = cls is TrajectoryComprehensiveGrader
    judge = Judge(reply(step(0, 5)) if rates_steps else RATED)
    graded(cls(judge), messages=[ANSWER], prompt="What is behind the door?")
    assert judge.fenced["query"] == "What is behind the door?"
    whole = Judge(reply(step(1, 5)) if rates_steps else RATED)
    graded(cls(whole), messages=[QUESTION, ANSWER], prompt="What is behind the door?")
    assert whole.fenced.keys() == {"messages"}
