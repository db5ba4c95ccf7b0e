"""Choice of tools, plans, reflections and memories before a judge."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.helpers.shipped_judges import Judge, failure, graded

from adjudge.errors import ErrorKind
from adjudge.graders.llm.shipped_graders import (
    MemoryGrader,
    PlanFeasibilityGrader,
    ReflectionAccuracyGrader,
    ShippedGrader,
    ToolSelectionGrader,
)

TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {}}},
    {"type": "function", "function": {"name": "book", "parameters": {}}},
]
CALL = {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}
MESSAGES = [
    {"role": "user", "content": "Find a flight."},
    {"role": "assistant", "content": "<think>how?</think>I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "Flight 7"},
    {"role": "assistant", "content": "There is flight 7."},
]
SELECTION = {"query": "Find a flight.", "tool_definitions": TOOLS, "tool_calls": [CALL]}
BINARY: dict[type[ShippedGrader], dict[str, str]] = {
    PlanFeasibilityGrader: {"query": "Open the chest.", "plan": "1. Take the key. 2. Open it."},
    ReflectionAccuracyGrader: {"observation": "The door is locked.", "reflection": "I failed."},
    MemoryGrader: {"observation": "Room 7 is empty.", "memory": "Room 7: empty"},
}
ONE = {"reason": "Holds.", "score": 1}

every_binary = pytest.mark.parametrize("cls", BINARY, ids=lambda cls: cls.type_name)
every_language = pytest.mark.parametrize("language", ["en", "zh"])


@every_binary
@every_language
@pytest.mark.parametrize("schema", [True, False], ids=["schema", "block"])
@pytest.mark.parametrize("value", [0, 1])
def test_a_part_holds_or_does_not(
    cls: type[ShippedGrader], language: str, schema: bool, value: int
) -> None:
    judge = Judge({"reason": "Because.", "score": value}, schema=schema)
    grader = cls(judge, language=language)
    score = graded(grader, **BINARY[cls], group="g", draw=2)
    assert (score.score, score.normalized, score.reason) == (value, value, "Because.")
    assert score.provenance is not None
    assert score.provenance.prompt_hash == grader.fingerprint
    assert (judge.groups, judge.draws) == (["g"], [2])
    assert judge.fenced == BINARY[cls]
    assert list(judge.fenced)[-1] == cls.candidate


@every_binary
@pytest.mark.parametrize(
    ("said", "why"), [(" ", "empty"), ([], "empty"), ("<think>and then", "unclosed_think")]
)
def test_a_part_that_says_nothing_does_not_hold(
    cls: type[ShippedGrader], said: Any, why: str
) -> None:
    judge = Judge(ONE)
    score = graded(cls(judge), **{**BINARY[cls], cls.candidate: said})
    assert (score.score, score.metadata) == (0.0, {"cause": "candidate", why: True})
    assert judge.asked == []


@every_binary
def test_thinking_is_stripped_and_a_cut_rollout_may_be_masked(cls: type[ShippedGrader]) -> None:
    judge = Judge(ONE)
    graded(cls(judge), **{**BINARY[cls], cls.candidate: "<think>a</think>b"})
    assert judge.fenced[cls.candidate] == "b"
    cut = {**BINARY[cls], "finish_reason": "length"}
    assert failure(cls(judge, truncated="mask"), **cut).kind is ErrorKind.INVALID_INPUT


@every_binary
def test_the_part_itself_is_never_taken_from_the_messages(cls: type[ShippedGrader]) -> None:
    lacking = failure(cls(Judge(ONE)), messages=MESSAGES, response="There is flight 7.")
    assert lacking.kind is ErrorKind.INVALID_INPUT
    assert repr(cls.candidate) in str(lacking)


@pytest.mark.parametrize("cls", [ReflectionAccuracyGrader, MemoryGrader])
def test_the_messages_are_the_record(cls: type[ShippedGrader]) -> None:
    judge = Judge(ONE)
    graded(cls(judge), messages=MESSAGES, **{cls.candidate: "There is flight 7."})
    assert "[1] assistant:\nI look.\n→ search" in judge.fenced["history"]
    alone = failure(cls(Judge(ONE)), **{cls.candidate: "x"})
    assert "'observation' or 'history'" in str(alone)


def test_a_record_whose_last_turn_still_thinks_ends_before_it() -> None:
    judge = Judge(ONE)
    messages = [*MESSAGES, {"role": "assistant", "content": "<think>hm"}]
    graded(MemoryGrader(judge), messages=messages, memory="Flight 7")
    assert "[3] assistant" in judge.fenced["history"]
    assert "[4]" not in judge.fenced["history"]


def test_a_plan_sees_its_tools_and_memory() -> None:
    judge = Judge(ONE)
    fields = {"tools": TOOLS, "memory": "m", "observation": "o", "history": MESSAGES, "plan": ["a"]}
    graded(PlanFeasibilityGrader(judge), **fields)
    assert list(judge.fenced) == ["tool_definitions", "history", "observation", "memory", "plan"]
    assert judge.fenced["tool_definitions"].count("\n") == 1, "one tool per line"
    assert judge.fenced["plan"] == '["a"]'


# The choice of tools


@every_language
@pytest.mark.parametrize("schema", [True, False], ids=["schema", "block"])
def test_a_choice_of_tools(language: str, schema: bool) -> None:
    judge = Judge({"reason": "Right.", "score": 5}, schema=schema)
    score = graded(ToolSelectionGrader(judge, language=language), **SELECTION)
    assert (score.score, score.score_range, score.reason) == (5.0, (1.0, 5.0), "Right.")
    assert list(judge.fenced) == ["query", "tool_definitions", "tool_calls"]
    assert '"name":"search"' in judge.fenced["tool_calls"]
    assert judge.fenced["tool_definitions"].count("\n") == 1


def test_calls_and_request_out_of_the_messages() -> None:
    judge = Judge(ONE)
    graded(ToolSelectionGrader(judge), messages=MESSAGES, tools=TOOLS, prompt="Find a flight.")
    assert judge.fenced["query"] == "Find a flight."
    assert '→ search({"q": 1})' in judge.fenced["tool_calls"]
    assert "Flight 7" in judge.fenced["tool_calls"]
    assert "how?" not in judge.fenced["tool_calls"]


@every_language
def test_no_call_is_a_choice(language: str) -> None:
    judge = Judge(ONE)
    assert graded(
        ToolSelectionGrader(judge, language=language), **{**SELECTION, "tool_calls": []}
    ).evaluable
    assert judge.fenced["tool_calls"] in ("(no tool was called)", "（没有调用任何工具）")


@pytest.mark.parametrize("name", ["query", "tool_definitions", "tool_calls"])
def test_a_field_that_is_lacking_is_named(name: str) -> None:
    lacking = failure(
        ToolSelectionGrader(Judge(ONE)), **{n: v for n, v in SELECTION.items() if n != name}
    )
    assert lacking.kind is ErrorKind.INVALID_INPUT
    assert repr(name) in str(lacking)


def test_a_trajectory_that_only_thinks_chose_nothing() -> None:
    judge = Judge(ONE)
    messages = [MESSAGES[0], {"role": "assistant", "content": "<think>which one"}]
    score = graded(ToolSelectionGrader(judge), messages=messages, tools=TOOLS)
    assert (score.score, score.metadata) == (1.0, {"cause": "candidate", "unclosed_think": True})
    assert judge.asked == []
