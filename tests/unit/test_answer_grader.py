"""The answer grader: every type, its failures, and answers that want to be misread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.answers.grader import AnswerGrader
from adjudge.graders.base import require_package
from adjudge.graders.registry import build_grader
from adjudge.runner import GradingRunner
from adjudge.types import GraderScore, Role, decode_result, encode_result

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


@pytest.mark.parametrize(
    ("answer_type", "response", "reference", "score"),
    [
        ("NUMBER", "<answer>14</answer>", "4", 0),
        ("NUMBER", "The total is 1,234.", 1234, 1),
        ("NUMBER", r"\boxed{0.5}", "1/2", 1),
        ("NUMBER", "4", [3, 4], 1),
        ("NUMBER", "4", r"because … \boxed{4}", 1),
        ("NUMBER", "4", "2 + 2 = 4\n#### 4", 1),
        ("NUMBER", "4", 4.0, 1),
        ("NUMBER", "0.00001", 1e-05, 1),
        ("MULTIPLE_CHOICE", "<answer>(b)</answer>", "B", 1),
        ("MULTIPLE_CHOICE", "The answer is C.", "B. Paris", 0),
        ("MULTIPLE_CHOICE", "D", ["C", "D"], 1),
        ("BOOLEAN", "That is not true.", True, 0),
        ("BOOLEAN", "That is not true.", "no", 1),
        ("BOOLEAN", "<answer>Yes</answer>", "true", 1),
        ("OCRTEXT", "<answer>Hall0 World</answer>", "Hello World", 9 / 11),
        ("OCRTEXT", "abcd", "abzz", 0.5),
        ("OCRTEXT", "abcd", "azzz", 0),
        ("OCRTEXT", "abc", ["xyz", "abc"], 1),
        ("BBOX", "<answer>[0, 0, 2, 2]</answer>", [1, 0, 3, 2], 1 / 3),
        ("BBOX", "[0, 0, 2, 2]", "[0, 0, 2, 2]", 1),
        ("BBOX", "[0, 0, 2, 2]", [[5, 5, 6, 6], [0, 0, 2, 1]], 0.5),
        ("BBOX", "[2, 2, 0, 0]", [0, 0, 2, 2], 0),
        ("ANY", " paris\n", "Paris", 1),
        ("ANY", "14", "4", 0),
        ("ANY", r"\boxed{\text{Paris}}", "paris", 1),
        ("ANY", "5", 5, 1),
        ("ANY", "b", ["a", "B"], 1),
        ("EXACT", "Paris ", "Paris", 1),
        ("EXACT", "paris", "Paris", 0),
        ("EXACT", "<answer>{x}</answer>", "{x}", 1),
        ("JSON", '<answer>{"b": [1, null], "a": 1.0}</answer>', {"a": 1, "b": [1, None]}, 1),
        ("JSON", 'Here: {"a": 1}.', '{"a": 1}', 1),
        ("JSON", '{"a": true}', {"a": 1}, 0),
        ("JSON", "[1, 2]", [2, 1], 0),
        ("REGEX", "in 1984", r"\b19\d\d\b", 1),
        ("REGEX", "in 1884", r"\b19\d\d\b", 0),
        ("REGEX", "in 1884", [r"19\d\d", r"18\d\d"], 1),
        ("REGEX", "<answer>b</answer> or a", "a", 0),
    ],
)
def test_scores_by_type(
    judge: Judge, answer_type: str, response: str, reference: Any, score: float
) -> None:
    assert judge.score(response, reference, answer_type) == pytest.approx(score)


@pytest.mark.parametrize(
    ("response", "reference", "score"),
    [
        (r"\boxed{(x+1)^2}", "x^2+2x+1", 1),
        (r"\boxed{(x+1)^2}", "x^2+x+1", 0),
        (r"\boxed{0.333333}", r"\frac{1}{3}", 0),
        (r"\boxed{\frac{1}{3}}", "0.333333", 1),
        (r"\boxed{0.33}", r"\frac{1}{3}", 0),
        (r"<answer>$\frac{\sqrt{2}}{2}$</answer>", r"\frac{1}{\sqrt{2}}", 1),
        (r"\boxed{x = 5}", "5", 1),
        (r"\boxed{2\pi}", "2", 0),
        (r"\boxed{2\pi}", r"$\pi \cdot 2$", 1),
        (r"\boxed{\{2, 1\}}", r"\{1, 2\}", 1),
        (r"\boxed{(1, 2)}", "(1, 2)", 1),
        (r"\boxed{(2, 1)}", "(1, 2)", 0),
        (r"\boxed{12}", ["7", r"\sqrt{144}"], 1),
        (r"\boxed{\text{Friday}}", "friday", 1),
        (r"\boxed{listen}", "silent", 0),
        ("x + 3", "3 + x", 1),
        ("so $x=3$ and that is all", "3", 1),
        ("the value is 7 as shown", "7", 1),
        ("the value is 7 as shown", r"\frac{14}{2}", 1),
        (r"\boxed{(((x}", "x", 0),
        ("\\boxed{\ud800}", "x", 0),
    ],
)
def test_maths(judge: Judge, response: str, reference: Any, score: float) -> None:
    assert judge.score(response, reference, MATHS) == score


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
        assert found == score, (row["kind"], row["reference"], response)


def test_plain_numbers_need_no_process(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adjudge.engine.processes.get_pool", lambda: 1 / 0)
    assert judge.score(r"\boxed{1,234}", "1234.0", MATHS) == 1
    assert judge.score(r"\boxed{14}", "4", MATHS) == 0
    assert judge.score(r"\boxed{\frac{3}{4}}", "0.75", MATHS) == 1
    assert judge.score(r"\boxed{x(x+1)}", "x + x^2", MATHS) == 1
    with pytest.raises(ZeroDivisionError):
        judge(r"\boxed{\sum_{k=1}^{n} k}", "n(n+1)/2", MATHS)


def test_one_endless_sample_costs_no_other_its_score() -> None:
    rows = [{"response": rf"\boxed{{{n}x}}", "reference": f"x \\cdot {n}"} for n in range(2, 6)]
    rows[2]["reference"] = r"\sum_{k=1}^{10^9} \frac{1}{k^2+x}"
    grader = AnswerGrader(answer_type="MATH_EXPRESSIONS", deadline_s=0.7)
    results = GradingRunner({"answer": grader}, show_progress=False).run(rows)["answer"]
    kinds = [getattr(result, "kind", None) or getattr(result, "score", None) for result in results]
    assert kinds == [1, 1, ErrorKind.TIMEOUT, 1]


def test_a_catastrophic_pattern_is_a_timeout(judge: Judge) -> None:
    error = judge.failure("a" * 60 + "b", "(a+)+$", "REGEX", deadline_s=0.2)
    assert error.kind is ErrorKind.TIMEOUT


def test_a_configured_pattern_needs_no_reference(judge: Judge) -> None:
    result = judge("It is PARIS.", row_type="REGEX", pattern=r"(?i)\bparis\b")
    assert result.score == 1
    assert "'PARIS'" in result.reason
    assert judge.score("It is Paris.", None, "REGEX", pattern="rome") == 0


RIGHT = [
    ("NUMBER", "1.5 million", 1_500_000),
    ("NUMBER", "12k", 12_000),
    ("NUMBER", "2 dozen eggs", 24),
    ("NUMBER", "forty-two", 42),
    ("NUMBER", "7!", 5040),
    ("NUMBER", "sqrt(144)", 12),
    ("NUMBER", "√2", r"\sqrt{2}"),
    ("NUMBER", "3 + 4 = 7", 7),
    ("NUMBER", "3 + 4 = 8", 8),
    ("NUMBER", "8, not 9", 8),
    ("NUMBER", "8 (eight)", 8),
    ("NUMBER", "the total is $1,200.50", 1200.5),
    ("NUMBER", "3.14 (rounded to two decimal places)", 3.14),
    ("NUMBER", "16/3 ≈ 5.33", "16/3"),
    ("NUMBER", "16/3 ≈ 5.33", 5.33),
    ("NUMBER", "9 km/h", 9),
    ("NUMBER", "4 boxes of 3, so the answer is 12", 12),
    ("NUMBER", "1" * 900, "1" * 900),
    (MATHS, "7 cm", "7 centimeters"),
    (MATHS, "7 cm", "7"),
    (MATHS, "x = 7", "7"),
    (MATHS, "x = 7", "x=7"),
    (MATHS, "g(x) = x + 1", "1 + x"),
    (MATHS, r"\frac{x}{2} = 0.5x", r"x/2"),
    (MATHS, "sin(x) + 1", r"1 + \sin x"),
    (MATHS, "√x", r"\sqrt{x}"),
    (MATHS, "x³ · y", "y x^3"),
    (MATHS, r"\begin{pmatrix} 4 \\ 5 \end{pmatrix}", "(4, 5)"),
    (MATHS, r"3\sqrt{2} \text{ cm}", r"\sqrt{18}"),
    (MATHS, "40%", "0.4"),
    (MATHS, "about 7", "7"),
    (MATHS, "7 or -7", r"\{7, -7\}"),
    (MATHS, r"\boxed{\frac{1}{2}} and \boxed{3}", r"\{3, 0.5\}"),
    ("MULTIPLE_CHOICE", "not A, but C", "C"),
    ("MULTIPLE_CHOICE", "C) vitamin D", "C"),
    ("BOOLEAN", "no way this is true", False),
]
WRONG = [
    ("NUMBER", "1.5 million", 1.5),
    ("NUMBER", "12M", 12),
    ("NUMBER", "7!", 7),
    ("NUMBER", "sqrt(144)", 144),
    ("NUMBER", "8 or 9", [8, 9]),
    ("NUMBER", "8 to 9", 9),
    ("NUMBER", "8–9", 9),
    ("NUMBER", "8 / 9 / 10", 10),
    ("NUMBER", "8, not 9", 9),
    ("NUMBER", "8 is not the answer", 8),
    ("NUMBER", "at least 8", 8),
    ("NUMBER", "half of 8", 8),
    ("NUMBER", "x^2 = 9", 9),
    ("NUMBER", "1 = 2 = 3", 3),
    ("NUMBER", "5²", 52),
    ("NUMBER", "8 cm", "8 m"),
    ("NUMBER", "The answer is 8. The answer is 9.", 9),
    ("NUMBER", "10^{10^{10}}", 10),
    ("NUMBER", r"\boxed{8} or \boxed{9}", 9),
    (MATHS, r"\boxed{8} or \boxed{9}", "9"),
    (MATHS, r"\boxed{x}, \boxed{x+1}", "x"),
    (MATHS, r"8 \text{ (or 9)}", "8"),
    (MATHS, r"8 \approx 9", "8"),
    ("MULTIPLE_CHOICE", r"\boxed{A} or \boxed{B}", "B"),
    (MATHS, "7 cm", "7 m"),
    (MATHS, "7%", "0.7"),
    (MATHS, "1=2=3", "3"),
    (MATHS, "x+1=3", "3"),
    (MATHS, r"\sin^2 x = 3", "3"),
    (MATHS, "y = 7", "x = 7"),
    (MATHS, "7 or 8", "8"),
    (MATHS, "nan", "nan"),
    ("MULTIPLE_CHOICE", "A or B", ["A", "B"]),
    ("MULTIPLE_CHOICE", "A/B/C", "C"),
    ("MULTIPLE_CHOICE", "40% A, 60% B", "B"),
    ("MULTIPLE_CHOICE", "A. Wait, no, B.", "A"),
    ("BOOLEAN", "true false", False),
    ("BOOLEAN", "partly true", True),
    ("BOOLEAN", "Yes, if the set is finite", True),
    ("BOOLEAN", "I am not sure, perhaps no", False),
    ("BOOLEAN", "Unsure. Maybe true", True),
]


@pytest.mark.parametrize(("answer_type", "answer", "reference"), RIGHT)
def test_a_marked_answer_is_one_value(
    judge: Judge, answer_type: str, answer: str, reference: Any
) -> None:
    assert judge.score(f"<answer>{answer}</answer>", reference, answer_type) == 1
    assert judge.score(rf"so \boxed{{{answer}}}.", reference, answer_type) == 1


@pytest.mark.parametrize(("answer_type", "answer", "reference"), WRONG)
def test_a_hedge_or_another_value_is_wrong(
    judge: Judge, answer_type: str, answer: str, reference: Any
) -> None:
    result = judge(f"<answer>{answer}</answer>", reference, answer_type)
    assert (result.score, result.metadata["answer_type"]) == (0, answer_type)


@pytest.mark.parametrize(
    ("response", "right", "wrong"),
    [
        ("The answer is 8, not 9", 8, 9),
        ("The answer is not 9 but 8.", 8, 9),
        ("I used 3 steps. The answer is 8. That took 9 seconds.", 8, 9),
        ("So 4 and 4 make 8", 8, 4),
    ],
)
def test_what_a_text_without_marker_says(
    judge: Judge, response: str, right: int, wrong: int
) -> None:
    assert judge.score(response, right, "NUMBER") == 1
    assert judge.score(response, wrong, "NUMBER") == 0


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
    assert decode_result(encode_result(judge("\ud800", "x", "ANY"))).name == "answer"


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
    assert judge.score(response, "4", "NUMBER", view="full") == 1
    unclosed = judge(r"<think>so \boxed{4}", "4", "NUMBER")
    assert (unclosed.score, unclosed.metadata["unclosed_think"]) == (0, True)


@pytest.mark.parametrize(
    ("answer_type", "reference"),
    [
        ("NUMBER", "many"),
        ("NUMBER", True),
        ("NUMBER", float("nan")),
        ("NUMBER", []),
        ("NUMBER", 10**1000),
        (MATHS, "(((("),
        (MATHS, ""),
        (MATHS, {"a": 1}),
        ("MULTIPLE_CHOICE", "Paris"),
        ("BOOLEAN", "maybe"),
        ("BOOLEAN", 1),
        ("OCRTEXT", ""),
        ("BBOX", [0, 0, 1]),
        ("BBOX", [1, 1, 0, 0]),
        ("BBOX", [[0, 0, 1, 1], "x"]),
        ("ANY", {"a": 1}),
        ("ANY", None),
        *((kind, float("nan")) for kind in ("ANY", "EXACT", "OCRTEXT", MATHS)),
        ("REGEX", " "),
        ("EXACT", []),
        ("JSON", "{"),
        ("REGEX", "("),
        ("REGEX", 5),
        ("REGEX", ""),
    ],
)
def test_an_unusable_reference_is_a_failure(judge: Judge, answer_type: str, reference: Any) -> None:
    response = "<answer>x</answer>"
    assert judge.failure(response, reference, answer_type).kind is ErrorKind.INVALID_INPUT


def test_a_response_must_be_text(judge: Judge) -> None:
    assert judge.failure(["4"], "4", "NUMBER").kind is ErrorKind.INVALID_INPUT


def test_the_type_comes_from_the_parameter_then_the_row_then_the_reference(judge: Judge) -> None:
    assert judge.score("14.0", "14", "number ") == 1
    assert judge.score("14.0", "14", "EXACT") == 0
    assert judge.score("14.0", "14", float("nan")) == 1  # a gap of a table's column
    for reference in ("14", 14, "1,400.5", "-3", ".5", ["1", "2"], "7 + 7 = 14\n#### 14"):
        assert judge("14", reference).metadata["answer_type"] == "NUMBER"
    for reference in ("007", "5 cm", "1,40", "", ".", True, "x = 3", ["1", "two"], "v1.2"):
        with suppress(GradingFailure):
            assert judge("14", reference).metadata["answer_type"] == "ANY"
    assert judge.score("14.0", "14", "EXACT", answer_type="NUMBER") == 1
    unknown = judge.failure("a", "a", "SVG_CODE")
    assert unknown.kind is ErrorKind.UNSUPPORTED
    assert "SVG_CODE" in str(unknown)
    assert judge.failure("a", "a", 7).kind is ErrorKind.UNSUPPORTED


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("6 * 7 = 42\n#### 42", 1),
        ("#### $1,042.\n", 0),
        ("\\boxed{41}\n#### 42", 1),
        ("#### 42\nNo: \\boxed{41}", 0),
        ("It is 42.\n#### References", 1),
        ("<s>old</s>\n#### 42", 1),
    ],
)
def test_a_last_line_after_four_hashes_is_the_answer(
    judge: Judge, response: str, score: float
) -> None:
    assert judge.score(response, "Six times seven.\n#### 42", None) == score


def test_maths_without_the_library_stops_a_run(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require_package.cache_clear()
    with pytest.raises(ConfigError, match=r"math_verify. Run: .*\[full\]"):
        AnswerGrader(answer_type="MATH_EXPRESSIONS")
    with pytest.raises(ConfigError, match=r"math_verify. Run: .*\[full\]"):
        judge("x", "x+0", MATHS)


def test_the_library_is_looked_for_once(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge.score("x + 3", "3 + x", MATHS) == 1
    monkeypatch.setattr("importlib.util.find_spec", None)
    assert judge.score("x + 5", "5 + x", MATHS) == 1


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("answer_type", "WORD"),
        ("view", "half"),
        ("rel_tol", -0.1),
        ("abs_tol", float("inf")),
        ("deadline_s", 0),
        ("deadline_s", "2"),
        ("pattern", "("),
        ("pattern", 5),
    ],
)
def test_a_wrong_parameter_is_named(parameter: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=parameter):
        AnswerGrader(**{parameter: value})


def test_a_spec_builds_it() -> None:
    given = {"answer_type": "NUMBER", "rel_tol": 0.01, "deadline_s": 1.0}
    grader = build_grader("answer", "exact", given, where="reward.toml: graders[0]")
    assert (grader.name, grader.rel_tol) == ("exact", 0.01)


def test_hashes_are_a_heading_where_a_text_is_wanted(judge: Judge) -> None:
    assert judge.score("Chapter\n#### 3", "Chapter\n#### 3", "EXACT") == 1
    assert judge.score("Chapter\n#### 3", "Chapter\n#### 3", "OCRTEXT") == 1


def test_a_reference_of_very_many_digits_is_a_text(judge: Judge) -> None:
    assert judge("1" * 1500, "1" * 1500).metadata["answer_type"] == "ANY"
