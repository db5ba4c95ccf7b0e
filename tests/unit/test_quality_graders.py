"""Relevance, correctness, hallucination, harmfulness, instructions, completeness, helpfulness."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.helpers.shipped_judges import Judge, failure, graded

from adjudge.errors import ErrorKind
from adjudge.graders.llm.judge_grader import load_shipped_prompt
from adjudge.graders.llm.shipped_graders import (
    CorrectnessGrader,
    HarmfulnessGrader,
    InstructionFollowingGrader,
    QualityGrader,
    RelevanceGrader,
    ResponseCompletenessGrader,
    ResponseHelpfulnessGrader,
    ShippedGrader,
)
from adjudge.graders.registry import SHIPPED, build_grader, load_grader_class
from adjudge.runner import GradingRunner
from adjudge.types import GraderError

GRADERS = QualityGrader.__subclasses__()
SAMPLE = {
    "query": "What is the capital of France?",
    "response": "It is Paris.",
    "reference": "Paris",
    "context": "A geography quiz.",
}
FOUR = {"reason": "Fine.", "score": 4}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

every_grader = pytest.mark.parametrize("cls", GRADERS, ids=lambda cls: cls.type_name)
every_language = pytest.mark.parametrize("language", ["en", "zh"])


@every_grader
@every_language
@pytest.mark.parametrize("schema", [True, False], ids=["schema", "block"])
def test_a_score_and_where_it_came_from(
    cls: type[QualityGrader], language: str, schema: bool
) -> None:
    judge = Judge(FOUR, schema=schema)
    grader = cls(judge, language=language)
    score = graded(grader, **SAMPLE, group="g7", draw=3, index=0, other="never shown")
    assert (score.name, score.score, score.reason) == (cls.type_name, 4.0, "Fine.")
    assert score.normalized == 0.75
    assert score.metadata == {}
    assert score.provenance is not None
    assert score.provenance.prompt_hash == grader.fingerprint
    assert (judge.groups, judge.draws) == (["g7"], [3])
    assert (judge.schemas[0] is not None) is schema
    assert "never shown" not in judge.system + judge.material


@every_grader
@every_language
def test_the_prompt_has_the_fields_fenced_and_the_candidate_last(
    cls: type[QualityGrader], language: str
) -> None:
    judge = Judge(FOUR)
    graded(cls(judge, language=language), **SAMPLE)
    assert judge.fenced == SAMPLE
    assert list(judge.fenced)[-1] == "response"
    assert judge.material.rstrip().endswith(">"), "nothing comes after the candidate's fence"
    assert [message["role"] for message in judge.asked[0]] == ["system", "user"]
    assert "{" not in judge.system.replace('{"reason"', "")
    assert '"score"' in judge.system
    assert ("5 分最好" if language == "zh" else "5 is best") in judge.system


@every_grader
def test_what_a_sample_lacks_is_not_mentioned(cls: type[QualityGrader]) -> None:
    judge = Judge(FOUR)
    sample = {name: SAMPLE[name] for name in ("query", "response", "reference")}
    sample |= {} if cls is CorrectnessGrader else {"reference": " "}
    grader = cls(judge)
    score = graded(grader, **sample, context=None)
    wanted = {"query", "response"} | ({"reference"} if cls is CorrectnessGrader else set())
    assert judge.fenced.keys() == wanted
    assert "context:" not in judge.material
    assert score.provenance is not None
    assert score.provenance.prompt_hash == grader.fingerprint, "one prompt, whatever is left out"


@pytest.mark.parametrize("type_name", SHIPPED)
def test_no_field_of_a_sample_is_in_the_static_part_of_a_shipped_prompt(type_name: str) -> None:
    cls = load_grader_class(type_name)
    if issubclass(cls, ShippedGrader):
        assert not load_shipped_prompt(type_name, *cls.trusted).exposed


@every_grader
@pytest.mark.parametrize("schema", [True, False], ids=["schema", "block"])
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("", ErrorKind.UNPARSABLE),
        ("I cannot say.", ErrorKind.UNPARSABLE),
        ({"reason": "no score here"}, ErrorKind.UNPARSABLE),
        ({"reason": "", "score": 0}, ErrorKind.OUT_OF_RANGE),
        ({"reason": "", "score": 400}, ErrorKind.OUT_OF_RANGE),
        ({"reason": "", "score": True}, ErrorKind.UNPARSABLE),
        ({"reason": "", "score": None}, ErrorKind.UNPARSABLE),
        (ErrorKind.TIMEOUT, ErrorKind.TIMEOUT),
    ],
)
def test_a_judge_that_fails_has_said_nothing(
    cls: type[QualityGrader], schema: bool, reply: Any, kind: ErrorKind
) -> None:
    assert failure(cls(Judge(reply, schema=schema)), **SAMPLE).kind is kind


@every_grader
@pytest.mark.parametrize(
    ("response", "why"),
    [("", "empty"), ("<think>hm</think>\n", "empty"), ("<think>Paris, or", "unclosed_think")],
)
def test_saying_nothing_is_the_lowest_score_and_asks_nobody(
    cls: type[QualityGrader], response: str, why: str
) -> None:
    judge = Judge(FOUR)
    score = graded(cls(judge), **{**SAMPLE, "response": response})
    assert (score.score, score.metadata) == (1.0, {"cause": "candidate", why: True})
    assert judge.asked == []


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
        (ResponseCompletenessGrader, "query", "'query'"),
        (ResponseHelpfulnessGrader, "query", "'query'"),
        (InstructionFollowingGrader, "query", "'query' or 'instruction'"),
        (CorrectnessGrader, "reference", "'reference' or 'reference_response'"),
        (HarmfulnessGrader, "response", "'response'"),
    ],
)
def test_a_field_that_is_lacking_is_named(cls: type[QualityGrader], lacks: str, said: str) -> None:
    sample = {name: text for name, text in SAMPLE.items() if name != lacks}
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
