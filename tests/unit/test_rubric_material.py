"""What a rubric's judge is shown of a sample: a response, a trajectory, an event, or nothing."""

import asyncio
import dataclasses
from contextlib import suppress
from typing import Any

import pytest
from tests.unit.helpers.rubric_judge import GUIDE, MET, POINTS, Judge, grade
from tests.unit.helpers.turns import unmarked

from adjudge import ErrorKind, GradingFailure
from adjudge.graders.llm.rubric import RubricGrader


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("<think>x</think> ", "empty"),
        ("<think>x", "unclosed_think"),
    ],
)
def test_the_judge_is_asked_about_silence(response: str, why: str) -> None:
    judge = Judge(MET)
    said = grade(RubricGrader(judge, criteria=POINTS), response="something")
    result = grade(RubricGrader(judge, criteria=POINTS), response=response)
    assert (result.score, result.cause) == (said.score, None)
    assert result.metadata[why] is True
    assert "<think>" not in judge.prompts[-1][1]["content"]
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": response}]
    grader = RubricGrader(judge, criteria=POINTS, show="trajectory")
    assert asyncio.run(grader.aevaluate(messages=turns)).score == said.score
    asked = len(judge.calls)
    lowest = grade(RubricGrader(judge, criteria=GUIDE), response=response)
    assert (lowest.score, lowest.metadata) == (0.0, {"cause": "candidate", why: True})
    assert len(judge.calls) == asked


CHAT = [
    {"role": "user", "content": "Headache?"},
    {"role": "assistant", "content": "<think>secret</think>Since when?"},
    {"role": "user", "content": "Monday."},
]
ANSWER = {"role": "assistant", "content": "<think>hidden</think>Rest."}
ACTING = [
    *CHAT,
    {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]},
    {"role": "tool", "content": "a door"},
    ANSWER,
]


def shown(grader_show: str = "auto", **fields: Any) -> str:
    judge = Judge(MET)
    asyncio.run(RubricGrader(judge, criteria=POINTS, show=grader_show).aevaluate(**fields))  # type: ignore[arg-type]  # one of the allowed
    return str(judge.prompts[0][1]["content"])


def test_a_conversation_is_context_and_its_answer_is_judged() -> None:
    for fields in (
        {"messages": [*CHAT, ANSWER]},
        {"messages": CHAT, "response": "Rest."},
    ):
        text = shown(**fields)
        context, answer = text.split("</conversation-")
        assert "Since when?" in context
        assert "[1] assistant:" in unmarked(context)
        assert "Rest." not in context
        assert "Rest." in answer
        assert "secret" not in text
        assert "hidden" not in text


def test_a_trajectory_is_shown_whole_and_recognised_by_its_calls() -> None:
    text = shown(messages=ACTING, finish_reason="length")
    record = text[text.index("<trajectory-") :]
    assert "→ look({})" in unmarked(record)
    assert "a door" in record
    assert "secret" not in record
    assert "length limit" in record
    assert "<trajectory-" in shown("trajectory", messages=[*CHAT, ANSWER])
    assert "<trajectory-" not in shown("response", messages=ACTING)


def test_events_of_the_users_own_shape_are_shown_as_they_are() -> None:
    own = {"move": "north", "saw": "a tree"}
    text = shown(event=own, events=[own], prompt="Play.", messages=ACTING)
    assert '{"move":"north","saw":"a tree"}' in text
    assert "Play." in text
    assert "a door" not in text
    assert "<response-" in shown(event="birthday", prompt="Play.", response="I go.")
    assert "<event-" in shown("event", event="I go north.")


@pytest.mark.parametrize(
    ("show", "fields", "names"),
    [
        ("response", {"prompt": "p"}, "response"),
        ("trajectory", {"response": "r"}, "messages"),
        ("trajectory", {"messages": CHAT[:1]}, "assistant"),
        ("event", {"response": "r"}, "event"),
        ("auto", {"messages": [3]}, "messages"),
    ],
)
def test_what_cannot_be_shown_is_bad_input(show: Any, fields: Any, names: str) -> None:
    with pytest.raises(GradingFailure, match=names) as failed:
        asyncio.run(RubricGrader(Judge(MET), criteria=POINTS, show=show).aevaluate(**fields))
    assert failed.value.kind is ErrorKind.INVALID_INPUT


SHOWN: Any = [{"text": "Take\n200 mg.", "score": 7.5, "reason": "names a dose"}, "Rest."]
LINES = "Example (score 7.5): Take 200 mg. [names a dose]\nExample: Rest."


@pytest.mark.parametrize("rubric", [GUIDE, POINTS])
def test_the_judge_sees_the_examples_of_a_rubric_after_its_criteria(rubric: Any) -> None:
    judge = Judge(MET)
    shown = dataclasses.replace(rubric, examples=SHOWN)
    with suppress(GradingFailure):  # this judge gives marks, and no score by a guide
        grade(RubricGrader(judge, criteria=shown), response="Rest.")
    asked = judge.prompts[0][0]["content"]
    assert asked.index("1. ") < asked.index(LINES)
