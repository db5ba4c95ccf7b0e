"""Comparing two responses: both orders, what survives the swap, what a failed order means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses
from tests.unit.helpers import compared
from tests.unit.helpers.compared import Messages, shown
from tests.unit.helpers.shipped_judges import Judge

from adjudge.errors import Cause, ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.comparison import PairwiseGrader
from adjudge.graders.llm.question import is_blank
from adjudge.judges import ScriptedModel
from adjudge.prompts import ChatMessage, PromptTemplate
from adjudge.types import GraderScore


def judging(choose: Callable[[str, str], Any]) -> ScriptedModel:
    """A judge that answers by what it sees as A and B."""

    def reply(messages: Messages) -> Any:
        found = choose(*shown(messages).values())
        return found if isinstance(found, ErrorKind) else {"reason": "so", "better": found}

    return ScriptedModel(reply)


LONGER = judging(lambda a, b: "A" if len(a) > len(b) else "B")
FIRST = judging(lambda _a, _b: "A")


def grade(grader: PairwiseGrader, response: str, other: str, **fields: Any) -> GraderScore:
    found: GraderScore = compared.grade(
        grader, **{"response": response, "reference": other, **fields}
    )
    return found


def failed(grader: PairwiseGrader, response: str, other: str, **fields: Any) -> GradingFailure:
    return compared.failed(grader, **{"response": response, "reference": other, **fields})


@pytest.mark.parametrize(
    ("judge", "score", "outcome"),
    [
        (LONGER, 1.0, "win"),
        (judging(lambda a, b: "B" if len(a) > len(b) else "A"), 0.0, "loss"),
        (FIRST, 0.5, "inconsistent"),
        (judging(lambda _a, _b: "tie"), 0.5, "tie"),
        (judging(lambda a, b: "A" if len(a) > len(b) else "tie"), 0.5, "inconsistent"),
    ],
)
def test_only_a_preference_that_survives_the_swap_counts(
    judge: ScriptedModel, score: float, outcome: str
) -> None:
    found = grade(PairwiseGrader(judge, ties=True), "longer", "short")
    assert found.score == score
    assert found.metadata["outcome"] == outcome
    assert found.metadata["consistent"] is (outcome != "inconsistent")
    verdicts = found.metadata["verdicts"]
    assert verdicts.keys() == {"as_given", "swapped"}
    if judge is FIRST:
        assert verdicts == {"as_given": "win", "swapped": "loss"}
    assert found.provenance is not None
    assert found.provenance.attempts == 2
    assert found.reason == "[as_given] so\n\n[swapped] so"


def test_a_tie_that_was_not_offered_is_no_verdict() -> None:
    failure = failed(PairwiseGrader(judging(lambda _a, _b: "tie")), "x", "y")
    assert failure.kind is ErrorKind.UNPARSABLE
    assert (failure.metadata["low"], failure.metadata["high"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ErrorKind.TIMEOUT, ErrorKind.TIMEOUT),
        (ErrorKind.UNPARSABLE, ErrorKind.INCOMPLETE),
        (ErrorKind.REFUSED, ErrorKind.INCOMPLETE),
        (ErrorKind.AUTH, ErrorKind.AUTH),
    ],
)
def test_one_failed_order_is_a_failure_and_never_the_other_orders_verdict(
    kind: ErrorKind, expected: ErrorKind
) -> None:
    judge = judging(lambda a, _b: "A" if a == "mine" else kind)
    failure = failed(PairwiseGrader(judge), "mine", "theirs")
    assert failure.kind is expected
    if kind is not ErrorKind.AUTH:
        assert failure.metadata["verdicts"] == {"as_given": "win"}
        assert (failure.metadata["low"], failure.metadata["high"]) == (0.5, 1.0)
        assert failure.metadata["failures"]["swapped"]["kind"] == kind
        assert failure.provenance is not None


def test_both_orders_failed_in_different_ways_are_incomplete() -> None:
    judge = judging(lambda a, _b: ErrorKind.TIMEOUT if a == "mine" else ErrorKind.REFUSED)
    assert failed(PairwiseGrader(judge), "mine", "theirs").kind is ErrorKind.INCOMPLETE


SAID = st.text(min_size=1).filter(lambda text: not is_blank(text))


@given(SAID, SAID, st.integers(0, 3))
def test_one_order_does_not_depend_on_who_is_called_the_response(
    one: str, other: str, draw: int
) -> None:
    grader = PairwiseGrader(FIRST, orders="one", view="full")
    here = grade(grader, one, other, draw=draw)
    there = grade(grader, other, one, draw=draw)
    assert here.score + there.score == 1.0
    if "verdicts" in here.metadata:
        assert here.metadata["consistent"] is None
        assert grade(grader, one, other, draw=draw + 1).score == there.score


@pytest.mark.parametrize(
    ("response", "other", "score"),
    [
        ("", "said", 0.0),
        ("<think>on and on", "said", 0.0),
        ("said", "<think>on and on", 1.0),
        ("<think>hm</think>", "<think>on", 0.5),
        ("<think>hm</think>same", "same", 0.5),
    ],
)
def test_nobody_is_asked_where_there_is_nothing_to_compare(
    response: str, other: str, score: float
) -> None:
    found = grade(PairwiseGrader(ScriptedModel({"never": ""})), response, other)
    assert found.score == score
    assert found.cause is (Cause.CANDIDATE if score == 0 else None)


def test_the_judge_sees_the_question_first_and_fenced_responses_last() -> None:
    judge = Judge({"better": "B"})
    grader = PairwiseGrader(judge, against="other", orders="one")
    sample: dict[str, Any] = {
        "prompt": "What is 2 + 2?",
        "other": "5",
        "response": "<think>4?</think>4 {query}",
    }
    asyncio.run(grader.aevaluate(**sample))
    assert "A and B are equally likely" in judge.system
    assert "2 + 2" not in judge.system
    assert next(iter(judge.fenced)) == "query"
    assert set(shown(judge.asked[0]).values()) == {"4 {query}", "5"}


def test_the_conversation_before_the_response_is_the_question() -> None:
    judge = Judge({"better": "A"})
    messages = [
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "<think>aside</think>One."},
        {"role": "user", "content": "Second?"},
        {"role": "assistant", "content": "Two."},
    ]
    grade(PairwiseGrader(judge), "Two.", "Zwei.", query=None, messages=messages)
    assert "[2] user:\nSecond?" in judge.fenced["query"]
    assert "aside" not in judge.material
    assert judge.material.count("Two.") == 1


def test_an_own_template_may_word_the_reply_itself() -> None:
    template = PromptTemplate(
        [ChatMessage("user", "{query}\n# Output (a):\n{response_a}\n# Output (b):\n{response_b}")]
    )
    judge = ScriptedModel(
        lambda messages: (
            "Output (a) is too short.\n\n**Verdict:** Output (b)"
            if shown(messages)["a"] == "x"
            else "Output (a)"
        )
    )
    found = grade(PairwiseGrader(judge, template=template), "x", "longer")
    assert found.metadata["outcome"] == "loss"


def test_an_own_template_must_show_both() -> None:
    with refuses("template"):
        PairwiseGrader(FIRST, template="{query} {response_a}")


@pytest.mark.parametrize(
    "arguments",
    [{"orders": "three"}, {"ties": 1}, {"against": "response"}, {"view": "none"}],
)
def test_wrong_parameters(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PairwiseGrader(FIRST, **arguments)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reference": ["a", "b"]}, "'reference' is a list"),
        ({"reference": None}, "'reference' is absent"),
        ({"query": None}, "no field 'query' or 'messages' or 'prompt'"),
    ],
)
def test_what_cannot_be_compared_is_named(fields: dict[str, Any], message: str) -> None:
    failure = failed(PairwiseGrader(FIRST), "x", "y", **fields)
    assert failure.kind is ErrorKind.INVALID_INPUT
    assert message in str(failure)
