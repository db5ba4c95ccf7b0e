"""Graders that ship with their prompts: what is asked of each, and what its replies come to."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.helpers.shipped_judges import Judge, failure, graded

from adjudge.errors import ErrorKind
from adjudge.graders.llm.question import load_shipped_prompt
from adjudge.graders.llm.shipped_graders import (
    CorrectnessGrader,
    HarmfulnessGrader,
    InstructionFollowingGrader,
    MemoryGrader,
    PlanFeasibilityGrader,
    QualityGrader,
    ReflectionAccuracyGrader,
    RelevanceGrader,
    ShippedGrader,
    ToolSelectionGrader,
)
from adjudge.graders.llm.trajectory import TrajectoryAccuracyGrader
from adjudge.graders.registry import SHIPPED, build_grader, load_grader_class
from adjudge.runner import GradingRunner
from adjudge.types import GraderError

SAMPLE = {
    "query": "What is the capital of France?",
    "context": "A geography quiz.",
    "reference": "Paris",
    "response": "It is Paris.",
}
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
PARTS: dict[type[ShippedGrader], dict[str, Any]] = {
    PlanFeasibilityGrader: {"query": "Open the chest.", "plan": "1. Take the key. 2. Open it."},
    ReflectionAccuracyGrader: {"observation": "The door is locked.", "reflection": "I failed."},
    MemoryGrader: {"observation": "Room 7 is empty.", "memory": "Room 7: empty"},
}
QUALITIES = QualityGrader.__subclasses__()
TEXTS: dict[type[ShippedGrader], dict[str, Any]] = {**dict.fromkeys(QUALITIES, SAMPLE), **PARTS}
"""A sample for each that judges a text."""
SAMPLES = {
    **TEXTS,
    ToolSelectionGrader: {"query": "Find a flight.", "tool_definitions": TOOLS,
                          "tool_calls": [CALL]},
    TrajectoryAccuracyGrader: {"messages": MESSAGES},
}  # fmt: skip
FOUR = {"reason": "Fine.", "score": 4}
ONE = {"reason": "Holds.", "score": 1}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def named(cls: Any) -> str:
    return str(getattr(cls, "type_name", cls))


every_grader = pytest.mark.parametrize("cls", SAMPLES, ids=named)
every_text_grader = pytest.mark.parametrize("cls", TEXTS, ids=named)
every_part = pytest.mark.parametrize("cls", PARTS, ids=named)
every_language = pytest.mark.parametrize("language", ["en", "zh"])
both_modes = pytest.mark.parametrize("schema", [True, False], ids=["schema", "block"])


@every_grader
@every_language
@both_modes
def test_a_score_and_what_it_was_asked_for(
    cls: type[ShippedGrader], language: str, schema: bool
) -> None:
    for value in map(int, cls.score_range or ()):
        judge = Judge({"reason": "Fine.", "score": value}, schema=schema)
        grader = cls(judge, language=language)
        score = graded(grader, **SAMPLES[cls], group="g7", draw=3, index=0, other="never shown")
        assert (score.name, score.score, score.reason) == (cls.type_name, value, "Fine.")
        assert (score.metadata, score.score_range) == ({}, cls.score_range)
        assert score.provenance is not None
        assert score.provenance.prompt_hash == grader.fingerprint
        assert (judge.groups, judge.draws) == (["g7"], [3])
        assert (judge.schemas[0] is not None) is schema
    assert "never shown" not in judge.system + judge.material
    assert [message["role"] for message in judge.asked[0]] == ["system", "user"]
    assert '"score"' in judge.system
    assert "{" not in judge.system.replace('{"reason"', "")
    assert judge.fenced.keys() == SAMPLES[cls].keys()
    assert list(judge.fenced)[-1] == cls.candidate
    if cls in TEXTS:
        assert judge.fenced == SAMPLES[cls]


@pytest.mark.parametrize("cls", QUALITIES, ids=named)
def test_what_a_sample_lacks_is_not_mentioned(cls: type[QualityGrader]) -> None:
    judge = Judge(FOUR)
    sample = {name: SAMPLE[name] for name in ("query", "response", "reference")}
    sample |= {} if cls is CorrectnessGrader else {"reference": " "}
    grader = cls(judge)
    score = graded(grader, **sample, context=None)
    wanted = {"query", "response"} | ({"reference"} if cls is CorrectnessGrader else set())
    assert judge.fenced.keys() == wanted
    assert "context:" not in judge.material
    assert judge.material.rstrip().endswith(">"), "nothing comes after the candidate's fence"
    assert score.provenance is not None
    assert score.provenance.prompt_hash == grader.fingerprint, "one prompt, whatever is left out"


@pytest.mark.parametrize("type_name", SHIPPED)
def test_no_field_of_a_sample_is_in_the_static_part_of_a_shipped_prompt(type_name: str) -> None:
    cls = load_grader_class(type_name)
    if issubclass(cls, ShippedGrader):
        assert not load_shipped_prompt(type_name, *cls.trusted).exposed


@every_grader
@both_modes
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("", ErrorKind.UNPARSABLE),
        ("I cannot say.", ErrorKind.UNPARSABLE),
        ({"reason": "no score here"}, ErrorKind.UNPARSABLE),
        ({"reason": "", "score": -1}, ErrorKind.OUT_OF_RANGE),
        ({"reason": "", "score": 400}, ErrorKind.OUT_OF_RANGE),
        ({"reason": "", "score": True}, ErrorKind.UNPARSABLE),
        ({"reason": "", "score": None}, ErrorKind.UNPARSABLE),
        (ErrorKind.TIMEOUT, ErrorKind.TIMEOUT),
    ],
)
def test_a_judge_that_fails_has_said_nothing(
    cls: type[ShippedGrader], schema: bool, reply: Any, kind: ErrorKind
) -> None:
    assert failure(cls(Judge(reply, schema=schema)), **SAMPLES[cls]).kind is kind


@every_text_grader
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "empty"),
        ([], "empty"),
        ("<think>hm</think>\n", "empty"),
        ("<think>Paris, or", "unclosed_think"),
    ],
)
def test_saying_nothing_is_the_lowest_score_and_asks_nobody(
    cls: type[ShippedGrader], said: Any, why: str
) -> None:
    judge = Judge(FOUR)
    score = graded(cls(judge), **{**TEXTS[cls], cls.candidate: said})
    assert (score.normalized, score.metadata) == (0.0, {"cause": "candidate", why: True})
    assert judge.asked == []


@every_text_grader
def test_thinking_is_stripped_and_a_cut_rollout_may_be_masked(cls: type[ShippedGrader]) -> None:
    judge = Judge(ONE)
    graded(cls(judge), **{**TEXTS[cls], cls.candidate: "<think>a</think>b"})
    assert judge.fenced[cls.candidate] == "b"
    cut = {**TEXTS[cls], "finish_reason": "length"}
    for said in (cut, {**cut, cls.candidate: "<think>a"}, {**cut, cls.candidate: ""}):
        assert failure(cls(judge, truncated="mask"), **said).kind is ErrorKind.INVALID_INPUT


def test_a_cut_response_says_so() -> None:
    judge = Judge(FOUR)
    cut = {**SAMPLE, "finish_reason": "length"}
    graded(RelevanceGrader(judge), **cut)
    assert "reached its length limit" in judge.fenced["response"]
    empty = graded(RelevanceGrader(Judge(FOUR)), **{**cut, "response": ""})
    assert empty.metadata["empty"] is True, "a note of ours is nothing that the policy said"


@pytest.mark.parametrize(
    ("cls", "lacks", "said"),
    [
        (RelevanceGrader, "query", "'query'"),
        (InstructionFollowingGrader, "query", "'query' or 'instruction'"),
        (CorrectnessGrader, "reference", "'reference' or 'reference_response'"),
        (HarmfulnessGrader, "response", "'response'"),
        *((ToolSelectionGrader, name, repr(name)) for name in SAMPLES[ToolSelectionGrader]),
        *((cls, cls.candidate, repr(cls.candidate)) for cls in PARTS),
        *((cls, "observation", "'history'") for cls in (ReflectionAccuracyGrader, MemoryGrader)),
    ],
)
def test_a_field_that_is_lacking_is_named(cls: type[ShippedGrader], lacks: str, said: str) -> None:
    sample = {name: value for name, value in SAMPLES[cls].items() if name != lacks}
    lacking = failure(cls(Judge(FOUR)), **sample)
    assert lacking.kind is ErrorKind.INVALID_INPUT
    assert said in str(lacking)
    assert "Paris" not in str(lacking)


# Messages


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Capital of France?"},
    {"role": "assistant", "content": "<think>of course</think>Paris."},
    {"role": "user", "content": "And of Spain?"},
    {"role": "assistant", "content": "<think>well</think>Madrid."},
]
THANKS = {"role": "user", "content": "Thanks."}


def test_a_conversation_is_the_query_and_its_last_answer_the_response() -> None:
    judge = Judge(FOUR)
    graded(RelevanceGrader(judge), messages=CHAT)
    assert judge.fenced["response"] == "Madrid."
    turns = ["[0] system:\nBe brief.", "[2] assistant:\nParis.", "[3] user:\nAnd of Spain?"]
    assert all(turn in judge.fenced["query"] for turn in turns)
    assert "Madrid" not in judge.fenced["query"]
    assert "of course" not in judge.fenced["query"], "earlier thinking is stripped as well"


@pytest.mark.parametrize(
    ("fields", "last"),
    [
        ({"messages": CHAT, "response": "<think>well</think>Madrid."}, "Spain?"),
        ({"messages": CHAT, "response": "another one"}, "Spain?"),
        ({"messages": CHAT[:4], "response": "Madrid."}, "Spain?"),
        ({"messages": [*CHAT, THANKS], "response": CHAT[4]["content"]}, "Spain?"),
        ({"messages": CHAT, "response": "x", "history": CHAT[:2]}, "France?"),
        ({"messages": CHAT[4:], "response": "x", "prompt": "From the prompt?"}, "From the prompt?"),
        ({"messages": CHAT, "query": "The sample's own?"}, "The sample's own?"),
    ],
    ids=["same", "replaced", "prompt only", "user ends", "event", "completion", "own"],
)  # fmt: skip
def test_where_the_conversation_ends(fields: dict[str, Any], last: str) -> None:
    judge = Judge(FOUR)
    graded(RelevanceGrader(judge), **fields)
    assert judge.fenced["query"].rstrip().endswith(last)


def test_an_assistant_that_only_acts_says_nothing() -> None:
    call = {"function": {"name": "look", "arguments": "{}"}}
    acting = [CHAT[1], {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert graded(RelevanceGrader(Judge(FOUR)), messages=acting).metadata["empty"] is True
    nobody = failure(RelevanceGrader(Judge(FOUR)), messages=CHAT[:2])
    assert nobody.kind is ErrorKind.INVALID_INPUT


def test_images_reach_the_judge() -> None:
    judge = Judge(FOUR)
    asked = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]}
    graded(RelevanceGrader(judge), messages=[asked, {"role": "assistant", "content": "A cat."}])
    parts = judge.asked[0][-1]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text"]
    assert parts[1] == PICTURE
    assert judge.fenced["query"] == "What is this?"
    assert "A cat." in parts[2]["text"]


# Parts of an agent's work


@every_part
def test_the_part_itself_is_never_taken_from_the_messages(cls: type[ShippedGrader]) -> None:
    lacking = failure(cls(Judge(ONE)), messages=MESSAGES, response="There is flight 7.")
    assert lacking.kind is ErrorKind.INVALID_INPUT
    assert repr(cls.candidate) in str(lacking)


@pytest.mark.parametrize("cls", [ReflectionAccuracyGrader, MemoryGrader])
def test_the_messages_are_the_record(cls: type[ShippedGrader]) -> None:
    judge = Judge(ONE)
    thinking = [*MESSAGES, {"role": "assistant", "content": "<think>hm"}]
    graded(cls(judge), messages=thinking, **{cls.candidate: "There is flight 7."})
    assert "[1] assistant:\nI look.\n→ search" in judge.fenced["history"]
    assert "[3] assistant" in judge.fenced["history"]
    assert "[4]" not in judge.fenced["history"], "a last turn that still thinks"


def test_a_plan_sees_its_tools_and_memory() -> None:
    judge = Judge(ONE)
    fields = {"tools": TOOLS, "memory": "m", "observation": "o", "history": MESSAGES, "plan": ["a"]}
    graded(PlanFeasibilityGrader(judge), **fields)
    assert list(judge.fenced) == ["tool_definitions", "history", "observation", "memory", "plan"]
    assert judge.fenced["tool_definitions"].count("\n") == 1, "one tool per line"
    assert judge.fenced["plan"] == '["a"]'


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
    none = {**SAMPLES[ToolSelectionGrader], "tool_calls": []}
    assert graded(ToolSelectionGrader(judge, language=language), **none).evaluable
    assert judge.fenced["tool_calls"] in ("(no tool was called)", "（没有调用任何工具）")


def test_a_trajectory_that_only_thinks_chose_nothing() -> None:
    judge = Judge(ONE)
    messages = [MESSAGES[0], {"role": "assistant", "content": "<think>which one"}]
    score = graded(ToolSelectionGrader(judge), messages=messages, tools=TOOLS)
    assert (score.score, score.metadata) == (1.0, {"cause": "candidate", "unclosed_think": True})
    assert judge.asked == []


# In use


NAN = float("nan")


@pytest.mark.parametrize("nothing", [NAN, [None], [""], [NAN], [[]]], ids=repr)
@pytest.mark.parametrize(
    ("type_name", "given", "field"),
    [
        ("correctness", {}, "reference"),
        ("relevance", {}, "query"),
        ("llm", {"template": "{response} or {reference}? {reply_form}"}, "reference"),
        ("plan_feasibility", {}, "plan"),
        ("rubric", {"criteria": ["Names the capital"]}, "response"),
        ("pairwise", {}, "reference"),
    ],
)
def test_a_gap_of_a_table_is_never_shown_to_a_judge(
    type_name: str, given: dict[str, Any], field: str, nothing: Any
) -> None:
    """pandas fills gaps with NaN, and JSON would write it as ``null``, for a judge to score."""
    if type_name in ("llm", "plan_feasibility", "rubric") and isinstance(nothing, list):
        return  # lists are shown as they are, or have a score for saying nothing
    grader = build_grader(type_name, "g", given, where="", judges={"j": Judge([FOUR])})
    runner = GradingRunner({"g": grader})
    [result] = runner.run([{"plan": "Go.", **SAMPLE, field: nothing}])["g"]
    assert isinstance(result, GraderError)
    assert result.kind is ErrorKind.INVALID_INPUT
