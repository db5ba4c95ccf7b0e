"""What an answer alone uses up is held against it; what reference or machine do, never."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.refusals import fails

from adjudge import RewardSpec, SpecRewardFunction
from adjudge.errors import Cause, ErrorKind, GradingFailure
from adjudge.graders.answers.grader import AnswerGrader, AnswerType
from adjudge.graders.code.blocks import SyntaxCheckGrader
from adjudge.graders.code.grader import CodeExecutionGrader
from adjudge.graders.ifeval import IFEvalGrader
from adjudge.graders.rules.json_graders import (
    JsonMatchGrader,
    JsonSchemaGrader,
    JsonValidatorGrader,
)
from adjudge.rewards import RewardSample
from adjudge.types import GraderScore

BOMBS = {
    "tower": "10^{10^{10}}",
    "tower in a sum": "9^{9^{9}}+x",
    "tower in an exponent": "x^{10^{10^{10}}}",
    "factorial": "99999999!",
    "binomial": r"\binom{10^{9}}{5\cdot 10^{8}}",
    "sum": r"\sum_{k=1}^{10^{9}} \frac{1}{k^2+x}",
    "integral": r"\int_0^{1000} \sin(x^x) e^{x^2} dx",
    "expansion": "(a+b+c+d+e+f)^{60}",
    "parentheses": "(" * 3000 + "x" + ")" * 3000,
    "long sum": "x+" * 50_000 + "1",
    "many digits": "7" * 1_000_000 + "x",
    "many elements": r"\{" + ",".join(f"x^{{{n}}}" for n in range(2000)) + r"\}",
    "tower in a matrix": r"\begin{pmatrix} 1 & 10^{10^{10}} \\ x & 2 \end{pmatrix}",
    "tower in an equation": "y = 10^{10^{10}}",
}
TOWER = r"\sum_{k=1}^{n} 10^{10^{10}}k"
REFERENCE = r"\frac{x}{2}"
DEADLINE_S = 0.3

_runner = asyncio.Runner()
run = _runner.run
"""In one loop, whose worker processes stay warm from test to test."""


@pytest.fixture(autouse=True, scope="module")
def _one_loop() -> Iterator[None]:
    yield
    _runner.close()


def impatient(answer_type: AnswerType, deadline_s: float) -> AnswerGrader:
    grader = AnswerGrader(answer_type)
    grader._DEADLINE_S = deadline_s
    return grader


def graded(
    candidate: str, reference: Any = REFERENCE, deadline_s: float = DEADLINE_S
) -> GraderScore:
    grader = impatient("MATH_EXPRESSIONS", deadline_s)
    return run(grader.aevaluate(rf"\boxed{{{candidate}}}", reference))


def failure(candidate: str, reference: Any, deadline_s: float = DEADLINE_S) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        graded(candidate, reference, deadline_s)
    return caught.value


@pytest.mark.slow
def test_bombs_in_a_group_are_rewarded_with_zero_and_leave_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AnswerGrader, "_DEADLINE_S", DEADLINE_S)
    grader = {"name": "maths", "type": "answer", "answer_type": "MATH_EXPRESSIONS"}
    spec = RewardSpec.from_dict({"graders": [grader]})
    rows = [f"\\boxed{{{bomb}}}" for bomb in BOMBS.values()]
    rows += [r"\boxed{x/2}", r"\boxed{x}", r"\boxed{0.5x}", "I do not know."]
    group = [
        RewardSample(place, place, "q", row, None, {"reference": REFERENCE})
        for place, row in enumerate(rows)
    ]
    results = SpecRewardFunction(spec).compute({"q": group})
    assert [one.missing for one in results] == [None] * (len(BOMBS) + 4)
    assert [one.score for one in results] == [0.0] * len(BOMBS) + [1.0, 0.0, 1.0, 0.0]


def test_the_same_tower_as_the_reference_is_right() -> None:
    assert graded("10^{10^{10}}", "10^{10^{10}}").score == 1.0


LONELY = "\ud800"


@pytest.mark.parametrize(
    "grade",
    [
        lambda text: graded(f"x{text}"),
        lambda text: run(AnswerGrader("REGEX").aevaluate(text, "z")),
        lambda text: run(SyntaxCheckGrader().aevaluate(f"```python\n'{text}'\n```")),
        lambda text: run(IFEvalGrader().aevaluate(text * 30_000, ["punctuation:no_comma"], [{}])),
    ],
)
def test_half_of_a_surrogate_pair_is_no_failure(grade: Callable[[str], GraderScore]) -> None:
    assert isinstance(grade(LONELY), GraderScore)


def test_a_tower_in_a_sum_is_recognised_before_it_is_computed() -> None:
    result = graded(TOWER, deadline_s=100.0)
    assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)
    assert "more than 1000000 digits" in result.reason


@pytest.mark.parametrize(
    ("candidate", "reference", "kind"),
    [
        pytest.param("x+1", TOWER, ErrorKind.UNSUPPORTED, marks=pytest.mark.slow),
        pytest.param("x+1", BOMBS["sum"], ErrorKind.TIMEOUT, marks=pytest.mark.slow),
        # Of two bombs the reference is the first.
        (BOMBS["sum"], TOWER, ErrorKind.UNSUPPORTED),
        pytest.param(BOMBS["tower"], BOMBS["sum"], ErrorKind.TIMEOUT, marks=pytest.mark.slow),
    ],
)
def test_a_reference_without_end_is_missing(
    candidate: str, reference: str, kind: ErrorKind
) -> None:
    error = failure(candidate, reference)
    assert error.kind is kind
    assert error.metadata.get("local") or error.metadata.get("suspect")


def test_a_slow_comparison_is_missing() -> None:
    # Each is simple alone.
    pattern, text = "(a+)+$", "a" * 60 + "b"
    with pytest.raises(GradingFailure) as caught:
        run(impatient("REGEX", 0.2).aevaluate(text, pattern))
    assert (caught.value.kind, caught.value.metadata) == (ErrorKind.TIMEOUT, {"local": True})


def _operation(name: str) -> dict[str, Any]:
    properties = {"op": {"const": name}, "arg": {"$ref": "#"}}
    return {"type": "object", "properties": properties, "required": ["op", "arg"]}


@pytest.mark.parametrize("kind", ["anyOf", "oneOf"])
@pytest.mark.parametrize("dialect", ["https://json-schema.org/draft/2020-12/schema", None])
@pytest.mark.parametrize("configured", [True, False])
def test_recursive_schemas_take_linear_time(
    kind: str, dialect: str | None, configured: bool
) -> None:
    schema: dict[str, Any] = {kind: [{"type": "number"}, _operation("add"), _operation("neg")]}
    if dialect:
        schema["$schema"] = dialect
    deep = '{"op":"neg","arg":{"op":"add","arg":' * 30 + "%s" + "}}" * 30
    grader = JsonSchemaGrader(schema if configured else None)
    fields = {} if configured else {"schema": schema}
    assert run(grader.aevaluate(deep % "1", **fields)).score == 1.0
    result = run(grader.aevaluate(deep % '"x"', **fields))
    assert (result.score, result.cause) == (0.0, None)


def test_deep_documents_need_no_more_stack_than_there_is() -> None:
    step: dict[str, Any] = {"$ref": "#"}
    for _ in range(5):
        step = {"allOf": [{"anyOf": [step]}]}
    schema = {"type": "array", "items": step}
    assert run(JsonSchemaGrader(schema).aevaluate("[" * 60 + "]" * 60)).score == 1.0
    for _ in range(8):
        step = {"allOf": [{"anyOf": [step]}]}
    result = run(JsonSchemaGrader({**schema, "items": step}).aevaluate("[" * 60 + "]" * 60))
    assert (result.score, result.cause) in [(1.0, None), (0.0, Cause.CANDIDATE)]


def test_a_schema_that_refers_to_itself_without_end_is_missing() -> None:
    with fails(ErrorKind.INVALID_INPUT, "without end"):
        run(JsonSchemaGrader().aevaluate("1", schema={"anyOf": [{"$ref": "#"}]}))


def test_a_deadline_passed_by_many_values_is_the_answers_fault() -> None:
    branches = [{"properties": {"a": {"const": n}}} for n in range(200)]
    schema = {"items": {"anyOf": branches}}
    grader = JsonSchemaGrader(schema)
    grader._DEADLINE_S = 0.3
    result = run(grader.aevaluate(json.dumps([{"a": 199}] * 9000)))
    assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": r"\d+ apples"}, "1" * 20_000),
        ({"items": {"pattern": r"\d+ apples"}}, ["1" * 5000 + " apples"] * 5),
        ({"patternProperties": {r"\d+ apples": True}}, {"1" * 20_000: 1}),
        ({"propertyNames": {"pattern": r"\d+ apples"}}, {"1" * 20_000: 1}),
    ],
)
def test_texts_too_long_for_a_pattern_are_the_answers_fault(schema: Any, value: Any) -> None:
    result = run(JsonSchemaGrader(schema).aevaluate(json.dumps(value)))
    assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)
    assert "too long for a pattern" in result.reason


def test_long_texts_that_no_pattern_reads_are_valid() -> None:
    schema = {"properties": {"pattern": {"type": "string"}, "id": {"pattern": "^a$"}}}
    value = {"pattern": "1" * 100_000, "id": "a"}
    assert run(JsonSchemaGrader(schema).aevaluate(json.dumps(value))).score == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [r"\d+ apples", r"\w+@\w+\.com", r"(?i)\d+ (apples|pears)"])
def test_ordinary_patterns_end_in_long_answers(pattern: str) -> None:
    grader = AnswerGrader("REGEX")
    for unit in "1a":
        assert run(grader.aevaluate(unit * 300_000, pattern)).score == 0.0
    result = run(grader.aevaluate(f"<answer>{'1' * 20_000}</answer>", pattern))
    assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)


def test_a_pattern_is_found_at_the_end_of_a_long_text() -> None:
    grader = AnswerGrader("REGEX")
    thought = "So it goes. " * 2000
    assert run(grader.aevaluate(thought + "It is 42 apples.", r"\d+ apples")).score == 1.0
    # Where the search begins is not where the text begins.
    assert run(grader.aevaluate(thought + "a" * 10_000, "^a+$")).score == 0.0


@pytest.mark.parametrize(
    ("grader", "fields"),
    [
        (JsonValidatorGrader(), {}),
        (JsonSchemaGrader({"uniqueItems": True}), {}),
        (JsonMatchGrader(), {"reference": "[1]"}),
    ],
)
def test_a_json_text_without_end_is_the_answers_fault(grader: Any, fields: Any) -> None:
    result = run(grader.aevaluate("[" + "[]," * 100_000 + "1]", **fields))
    assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)
    assert "200000 characters" in result.reason


def test_code_without_end_is_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adjudge.graders.code.blocks._PARSE_DEADLINE_S", 0.05)
    response = "```python\n" + "x = [1, 2, 3]\n" * 60_000 + "```"
    for grader in (SyntaxCheckGrader(), CodeExecutionGrader()):
        fields = {} if isinstance(grader, SyntaxCheckGrader) else {"test_cases": [{"test": "f()"}]}
        result = run(grader.aevaluate(response, **fields))
        assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)
        assert result.evaluable
        assert re.search("processor time", result.reason)


def test_a_response_too_long_for_its_instructions_is_the_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grader = IFEvalGrader()
    monkeypatch.setattr(grader, "_DEADLINE_S", 0.2)  # ten times that by the clock
    response = "Never. " * 2_000_000
    kwargs = [{"relation": "at least", "num_words": 3}] * 2
    ids = ["length_constraints:number_words"] * 2
    result = run(grader.aevaluate(response, ids, kwargs))
    assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)
