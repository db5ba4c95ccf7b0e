"""The loose readings, and the grader."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.refusals import fails

from adjudge.errors import ErrorKind
from adjudge.graders.ifeval import (
    IFEvalGrader,
    follows,
    parse_instructions,
)

NO_COMMA, QUOTATION, TITLE = "punctuation:no_comma", "startend:quotation", "detectable_format:title"


def only(*names: str) -> list[Any]:
    return [check for _, check in parse_instructions(list(names), [{} for _ in names])]


@pytest.mark.parametrize("response", ["", " \n\t", "\u3000"])
def test_a_blank_response_follows_nothing(response: str) -> None:
    assert follows(response, only(NO_COMMA), "strict") == [False]
    assert follows(response, only(NO_COMMA), "loose") == [False]


def test_grader_views() -> None:
    thinking = "<think>well, well</think>\n\nSo be it."
    assert IFEvalGrader().evaluate(thinking, [NO_COMMA], [{}]).score == 1.0
    first = "length_constraints:nth_paragraph_first_word"
    arguments = {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "so"}
    assert IFEvalGrader().evaluate(thinking, [first], [arguments]).score == 1.0
    unclosed = IFEvalGrader().evaluate("<think>so be it", [NO_COMMA], [{}])
    assert (unclosed.score, unclosed.metadata["followed"]) == (0.0, [False])


def test_no_instructions_are_nothing_to_judge() -> None:
    result = IFEvalGrader().evaluate("So be it.", [], [])
    assert (result.score, result.evaluable) == (1.0, False)


def test_grader_refusals() -> None:
    for response, ids in ((None, [NO_COMMA]), ("x", ["punctuation:dots"])):
        with fails(ErrorKind.INVALID_INPUT):
            IFEvalGrader().evaluate(response, ids, [{}])  # type: ignore[arg-type]  # hostile


def test_long_responses_are_judged_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    grader = IFEvalGrader(reading="loose")
    ids = ["keywords:existence", "length_constraints:number_words", NO_COMMA]
    arguments = {"keywords": ["river"], "letter": object()}
    kwargs = [arguments, {"num_words": 7000.0, "relation": "at least"}, {}]
    response = "a river \ud800 so, " * 2000
    here = grader.evaluate(response, ids, kwargs)
    assert here.metadata["followed"] == [True, False, False]

    def judged_here(*_: Any) -> Any:
        raise AssertionError("judged on the loop")

    monkeypatch.setattr("adjudge.graders.ifeval.follows", judged_here)
    assert asyncio.run(grader.aevaluate(response, ids, kwargs)) == here
