"""The answer grader: every type, its failures, and answers that want to be misread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.answers.grader import AnswerGrader
from adjudge.graders.base import require_package
from adjudge.types import GraderScore, Role

MATHS = "MATH_EXPRESSIONS"


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One loop for the module, so that its worker processes stay warm."""
    with asyncio.Runner() as runner:
        yield runner


class Judge:
    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner

    def __call__(
        self, response: Any, reference: Any = None, row_type: Any = None, **parameters: Any
    ) -> GraderScore:
        grader = AnswerGrader(**parameters)
        return self.runner.run(grader.aevaluate(response, reference, row_type))

    def score(self, response: Any, reference: Any, row_type: Any, **parameters: Any) -> float:
        return self(response, reference, row_type, **parameters).score

    def failure(self, *sample: Any, **parameters: Any) -> GradingFailure:
        with pytest.raises(GradingFailure) as caught:
            self(*sample, **parameters)
        return caught.value


@pytest.fixture
def judge(runner: asyncio.Runner) -> Judge:
    return Judge(runner)


TABLE = Path(__file__).parents[1] / "data" / "answers.jsonl"


@pytest.mark.parametrize("line", TABLE.read_text("utf-8").splitlines())
def test_kinds_of_answers(judge: Judge, line: str) -> None:
    row = json.loads(line)
    kind = None if row["type"] == "auto" else row["type"]
    said = {rf"So it is $\boxed{{{one}}}$.": score for one, score in row.get("boxed", {}).items()}
    for response, score in {**said, **row.get("responses", {})}.items():
        try:
            found: float | None = judge.score(response, row["reference"], kind)
        except GradingFailure:
            found = None
        assert found == (score and pytest.approx(score)), (row["kind"], row["reference"], response)


def test_plain_numbers_need_no_process(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adjudge.engine.processes.get_pool", lambda: 1 / 0)
    assert judge.score(r"\boxed{1,234}", "1234.0", MATHS) == 1
    assert judge.score(r"\boxed{14}", "4", MATHS) == 0
    assert judge.score(r"\boxed{\frac{3}{4}}", "0.75", MATHS) == 1
    assert judge.score(r"\boxed{x(x+1)}", "x + x^2", MATHS) == 1
    with pytest.raises(ZeroDivisionError):
        judge(r"\boxed{\sum_{k=1}^{n} k}", "n(n+1)/2", MATHS)


def test_a_configured_pattern_needs_no_reference(judge: Judge) -> None:
    result = judge("It is PARIS.", row_type="REGEX", pattern=r"(?i)\bparis\b")
    assert result.score == 1
    assert "'PARIS'" in result.reason
    assert judge.score("It is Paris.", None, "REGEX", pattern="rome") == 0


def test_tolerances_apply_to_numbers(judge: Judge) -> None:
    assert judge.score("3.14", 3.14159, "NUMBER") == 0
    assert judge.score("3.14", 3.14159, "NUMBER", rel_tol=0.001) == 1
    assert judge.score("3.14", 3.14159, "NUMBER", abs_tol=0.01) == 1


def test_metadata_tells_what_was_read(judge: Judge) -> None:
    result = judge("so <answer>14 apples</answer>", "4", "NUMBER")
    assert result.metadata == {
        "answer": "14",
        "extracted": True,
        "decision": "differs",
        "reference": "4",
        "answer_type": "NUMBER",
    }
    assert (result.score_range, result.role) == ((0.0, 1.0), Role.SCORE)
    unmarked = judge("it must be 14", "14", "NUMBER")
    assert (unmarked.score, unmarked.metadata["extracted"]) == (1, False)
    long = judge("x" * 1000, "y" * 1000, "ANY")
    assert len(long.metadata["answer"]) == len(long.metadata["reference"]) == 201
    assert msgspec.json.encode(judge("\ud800", "x", "ANY"))


@pytest.mark.parametrize(
    ("answer_type", "reference"),
    [
        ("NUMBER", "4"),
        (MATHS, "x"),
        ("MULTIPLE_CHOICE", "B"),
        ("BOOLEAN", "yes"),
        ("BBOX", [0, 0, 1, 1]),
        ("JSON", {"a": 1}),
    ],
)
@pytest.mark.parametrize(
    "response", ["", "I would rather not say what it might be", "<answer></answer>"]
)
def test_no_answer_is_a_wrong_answer(
    judge: Judge, answer_type: str, reference: Any, response: str
) -> None:
    result = judge(response, reference, answer_type)
    assert result.score == 0
    assert result.metadata["extracted"] is False
    assert result.metadata["answer"] is None
    assert result.metadata["decision"] == "no_answer"


def test_how_far_from_the_end_an_answer_may_stand(judge: Judge) -> None:
    assert judge.score("it is 4 " + "x " * 9_000, "4", "NUMBER") == 1
    assert judge.score("it is 4 " + "x " * 11_000, "4", "NUMBER") == 0
    assert judge.score(r"\boxed{4} " + "x " * 90_000, "4", "NUMBER") == 1
    assert judge.score(r"\boxed{4} " + "x " * 110_000, "4", "NUMBER") == 0


def test_thinking_is_not_the_answer(judge: Judge) -> None:
    response = "<think>\\boxed{4}</think> It is 5."
    assert judge.score(response, "5", "NUMBER") == 1
    assert judge.score(response, "4", "NUMBER") == 0
    unclosed = judge(r"<think>so \boxed{4}", "4", "NUMBER")
    assert (unclosed.score, unclosed.metadata["unclosed_think"]) == (0, True)


@pytest.mark.parametrize(
    ("answer_type", "reference"),
    [
        *((kind, float("nan")) for kind in ("NUMBER", "ANY", "EXACT", "OCRTEXT", MATHS)),
        ("NUMBER", 10**1000),
        ("REGEX", "("),
    ],
)
def test_an_unusable_reference_is_a_failure(judge: Judge, answer_type: str, reference: Any) -> None:
    for response in ("<answer>x</answer>", ["x"]):  # which must be text, too
        assert judge.failure(response, reference, answer_type).kind is ErrorKind.INVALID_INPUT


def test_the_type_comes_from_the_parameter_then_the_row_then_the_reference(judge: Judge) -> None:
    assert judge.score("14.0", "14", "number ") == 1
    assert judge.score("14.0", "14", "EXACT") == 0
    assert judge.score("14.0", "14", float("nan")) == 1  # a gap of a table's column
    for reference in ("14", 14, "1,400.5", "-3", ".5", ["1", "2"], "7 + 7 = 14\n#### 14"):
        assert judge("14", reference).metadata["answer_type"] == "NUMBER"
    for reference in (
        "1" * 1500,
        "007",
        "5 cm",
        "1,40",
        "",
        ".",
        True,
        "x = 3",
        ["1", "two"],
        "v1.2",
    ):
        with suppress(GradingFailure):
            assert judge("14", reference).metadata["answer_type"] == "ANY"
    assert judge.score("14.0", "14", "EXACT", answer_type="NUMBER") == 1
    unknown = judge.failure("a", "a", "SVG_CODE")
    assert unknown.kind is ErrorKind.UNSUPPORTED
    assert "SVG_CODE" in str(unknown)
    assert judge.failure("a", "a", 7).kind is ErrorKind.UNSUPPORTED


def test_maths_without_the_library_stops_a_run(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require_package.cache_clear()
    with pytest.raises(ConfigError, match=r"math_verify. Run: .*\[full\]"):
        AnswerGrader(answer_type="MATH_EXPRESSIONS")
    with pytest.raises(ConfigError, match=r"math_verify. Run: .*\[full\]"):
        judge("x", "x+0", MATHS)
