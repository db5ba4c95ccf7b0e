"""IFEval: each of its 25 instruction types case by case, their arguments, and the graders."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import fails

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.ifeval import (
    INSTRUCTIONS,
    IFEvalGrader,
    RepairedIFEvalGrader,
    follows,
    list_arguments,
    parse_instructions,
)
from adjudge.graders.ifeval_checks import (
    LANGUAGES,
    detect_language,
)

AT_LEAST, LESS = {"relation": "at least"}, {"relation": "less than"}
ENGLISH = "the river was calm in the morning and nobody was on the bridge"
GERMAN = "Der Fluss war am Morgen ruhig, und niemand stand auf der Brücke."

TABLE = json.loads((Path(__file__).parents[1] / "data" / "ifeval_cases.json").read_text("utf-8"))
CASES = TABLE["published"]


def test_every_type_is_here() -> None:
    assert {case["name"] for case in CASES} == set(INSTRUCTIONS)
    assert len(INSTRUCTIONS) == 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_cases(case: dict[str, Any]) -> None:
    [(_, check)] = parse_instructions([case["name"]], [case["kwargs"]])
    assert [text for text in case["followed"] if not check(text)] == []
    assert [text for text in case["missed"] if check(text)] == []


@pytest.mark.parametrize("case", TABLE["repaired"], ids=lambda case: case["name"])
def test_published_and_repaired(case: dict[str, Any]) -> None:
    """Each response follows (1) or not (0), as published and as repaired."""
    for response, expected in case["responses"].items():
        graders = IFEvalGrader(), RepairedIFEvalGrader()
        found = [one.evaluate(response, [case["name"]], [case["kwargs"]]).score for one in graders]
        assert found == [*map(float, expected)], response


def test_repaired_languages() -> None:
    grader = RepairedIFEvalGrader()
    for text, code in (("他昨天去了上海。", "zh-tw"), ("東京は晴れ", "ja"), ("오늘은 비", "ko")):
        found = {
            wanted: grader.evaluate(text, ["language:response_language"], [{"language": wanted}])
            for wanted in ("zh-tw", "ja", "ko")
        }
        assert [wanted for wanted, result in found.items() if result.score] == [code]
    capitals = "YES, I AGREE WITH YOU."
    assert grader.evaluate(capitals, ["change_case:english_capital"], [{}]).score == 1


def test_languages() -> None:
    assert detect_language(ENGLISH) == "en"
    assert detect_language(GERMAN) == "de"
    assert detect_language(f"{ENGLISH} https://beispiel.de/der-weg-nach-hause der@weg.de") == "en"
    assert detect_language("https://a.b/c 12") is None
    assert len(LANGUAGES) == 55


@pytest.mark.parametrize(
    ("ids", "kwargs", "message"),
    [
        (["punctuation:no_comma"], None, "kwargs must be a list of at most 1000, got NoneType"),
        (["punctuation:commas"], [{}], "unknown instruction 'punctuation:commas' (known: "),
        (["keywords:existence"], [{"keywords": None}], "keywords:existence: keywords is missing"),
        (["keywords:frequency"], [{"keyword": "a", "frequency": 1, "relation": "x"}], "relation: "),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}],
            "nth_paragraph must be at most num_paragraphs",
        ),
        (["language:response_language"], [{"language": "zh"}], "language: "),
        (["keywords:existence"], [{"keywords": []}], "keywords: "),
    ],
)
def test_refused_arguments(ids: Any, kwargs: Any, message: str) -> None:
    with fails(ErrorKind.INVALID_INPUT) as caught:
        parse_instructions(ids, kwargs)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", [name for name in INSTRUCTIONS if list_arguments(name)])
def test_every_argument_is_required(name: str) -> None:
    with pytest.raises(GradingFailure) as caught:
        parse_instructions([name], [{}])
    assert str(caught.value).startswith(f"{name}: ")
    assert "is missing" in str(caught.value)


# The graders


NO_COMMA = "punctuation:no_comma"


@pytest.mark.parametrize("response", ["", " \n\t", "\u3000"])
def test_a_blank_response_follows_nothing(response: str) -> None:
    [(_, check)] = parse_instructions([NO_COMMA], [{}])
    assert follows(response, [check], "strict") == follows(response, [check], "loose") == [False]


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
