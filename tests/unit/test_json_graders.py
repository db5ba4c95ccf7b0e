"""JSON validity, schemas and comparison: judgements, failures, and limits."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import pytest
from tests.refusals import fails, refuses

from adjudge.errors import Cause, ErrorKind, GradingFailure
from adjudge.graders.rules import json_validation
from adjudge.graders.rules.json_graders import (
    JsonMatchGrader,
    JsonSchemaGrader,
    JsonValidatorGrader,
)
from adjudge.types import GraderScore

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0}},
    "required": ["age"],
}


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ('{"a": [1, 2.5e3, true, null, "x"]}', 1.0),
        ("", 0.0),
        ("<think>{}</think>[1]", 1.0),
        ("<think>[1]", 0.0),
        ("\ufeff[1]", 0.0),
        ("[" * 10**6 + "]" * 10**6, 0.0),
        ("9" * 4300, 1.0),
        ("9" * 4301, 0.0),
        ('"\ud800"', 1.0),
    ],
)
def test_validity(response: str, score: float) -> None:
    assert JsonValidatorGrader().evaluate(response).score == score


@pytest.mark.parametrize(
    ("response", "strict", "score"),
    [
        ("```json\n[1]\n```", True, 0.0),
        ("```json\n[1]\n```", False, 1.0),
        ("Here:\n```json\n[1]\n```\nDone.", False, 1.0),
        ("```json\n[1]\n```\nrather\n```json\n[no]\n```", False, 0.0),
        ("```python\nx = [\n```\nso [1]", False, 1.0),
        ("so [1] it is", False, 1.0),
        ("no brackets", False, 0.0),
    ],
)
def test_fences_and_surrounding_text(response: str, strict: bool, score: float) -> None:
    grader = JsonValidatorGrader(strict=strict)
    assert grader.evaluate(response).score == score


def ask(grader: JsonSchemaGrader, response: Any, **fields: Any) -> GraderScore:
    return asyncio.run(grader.aevaluate(response, **fields))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The worker pool replaced by a direct call; the list fills with what was sent to it."""
    sent: list[str] = []

    class Pool:
        async def call(self, function: str, value: Any, *, deadline_s: float) -> Any:
            assert function == "adjudge.graders.rules.json_validation:validate_json"
            sent.append(json.dumps(value).encode().decode("ascii"))
            return json_validation.validate_json(json.loads(sent[-1]))

    monkeypatch.setattr("adjudge.graders.rules.json_graders.get_pool", Pool)
    return sent


def test_a_configured_schema_is_checked_in_place(in_process: list[str]) -> None:
    grader = JsonSchemaGrader(SCHEMA)
    assert ask(grader, '{"age": 3}').score == 1.0
    assert ask(grader, '{"age": -1}').reason == "$.age: -1 is less than the minimum of 0"
    assert ask(grader, "no JSON").reason.startswith("not JSON: ")
    assert in_process == []


def test_a_row_schema_goes_to_a_worker(in_process: list[str]) -> None:
    grader = JsonSchemaGrader()
    assert ask(grader, '{"age": 3}', schema=SCHEMA).score == 1.0
    assert ask(grader, '{"age": 3}', schema=json.dumps(SCHEMA)).score == 1.0
    assert ask(grader, "[1]", schema=False).score == 0.0
    assert len(in_process) == 3


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a+)+$"},
        {"properties": {"a": {"patternProperties": {"x": True}}}},
    ],
)
def test_explosive_keywords_and_long_texts_go_to_a_worker(
    in_process: list[str], schema: dict[str, Any]
) -> None:
    ask(JsonSchemaGrader(schema), '"aaa"')
    assert len(in_process) == 1
    ask(JsonSchemaGrader(SCHEMA), json.dumps(["x" * 30_000]))
    assert len(in_process) == 2


def test_a_pattern_that_explodes_is_a_timeout_not_a_hang() -> None:
    grader = JsonSchemaGrader({"pattern": "^(a+)+$"})
    grader._DEADLINE_S = 0.2
    with fails(ErrorKind.TIMEOUT) as caught:
        ask(grader, json.dumps("a" * 60 + "!"))
    assert caught.value.metadata["local"]  # the schema's pattern is not the candidate's doing


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([{"a": n} for n in range(20_000)], True),
        ([{"a": n} for n in range(20_000)] + [{"a": 7.0}], False),
        ([n * (2**61 - 1) for n in range(20_000)], True),  # all of one hash
        ([1, True, "1", None, [1], {"1": 1}, 1.5, 0, False], True),
        ([{"a": [1]}, {"a": [1.0]}], False),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        ([0, -0.0], False),
        ([{"a": 1}, {"a": True}], True),
    ],
)
def test_unique_items_take_linear_time(items: list[Any], unique: bool) -> None:
    began = time.process_time()
    validator = json_validation.compile_schema('{"uniqueItems": true}')
    assert bool(json_validation.find_first_fault(validator, items)) is not unique
    assert time.process_time() - began < 3


def test_too_many_members_for_a_slow_keyword_are_the_candidates_doing() -> None:
    grader = JsonSchemaGrader({"unevaluatedItems": {"type": "integer"}})
    assert ask(grader, json.dumps(list(range(5_000)))).score == 1.0
    result = ask(grader, json.dumps(list(range(5_001))))
    assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)
    assert "5000 members" in result.reason


@pytest.mark.parametrize(
    "schema",
    [
        None,
        "no JSON",
        3,
        [],
        {"pattern": "a{99999999999999}"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"$schema": "http://example.com/dialect"},
        {"a": {1, 2}},
        {"a": float("nan")},
        json.loads('{"not":' * 80 + "{}" + "}" * 80),
    ],
)
def test_an_unusable_row_schema_is_no_judgement(schema: Any, in_process: list[str]) -> None:
    with fails(ErrorKind.INVALID_INPUT):
        ask(JsonSchemaGrader(), '{"a": 1}', schema=schema)


def test_nothing_is_ever_fetched(monkeypatch: pytest.MonkeyPatch, in_process: list[str]) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(GradingFailure, match="Unresolvable"):
        ask(JsonSchemaGrader(), "1", schema={"$ref": "https://json.example/schema"})


def test_references_inside_the_schema_and_recursion_work(in_process: list[str]) -> None:
    tree = {
        "$defs": {"node": {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}}},
        "anyOf": [{"type": "integer"}, {"$ref": "#/$defs/node"}],
    }
    grader = JsonSchemaGrader(tree)
    assert ask(grader, '{"a":' * 63 + "{}" + "}" * 63).score == 1.0
    assert ask(grader, '{"a":' * 63 + "[]" + "}" * 63).score == 0.0
    assert ask(grader, '{"a":' * 64 + "{}" + "}" * 64).score == 0.0


def test_the_dialect_is_honoured() -> None:
    # "items" as a list checks positions in draft 7, and is not allowed in 2020-12.
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}
    grader = JsonSchemaGrader(schema)
    assert [ask(grader, "[1]").score, ask(grader, '["a", 1]').score] == [0.0, 1.0]
    with refuses("json_schema"):
        JsonSchemaGrader({"items": [{"type": "string"}]})


@pytest.mark.parametrize(
    ("divisor", "instance", "fits"),
    [
        *((0.01, one, True) for one in ("19.99", "4.35", "-0.07", "1e2", "0", "123456789.12")),
        *((0.01, one, False) for one in ("19.995", "0.001", "1e-3", "0.015")),
        *((0.1, one, True) for one in ("0.3", "1.1", "0.7", "9" * 4000)),
        *((0.5, one, one != "0.3") for one in ("2.5", "9" * 4000, "0.3")),
        (1e-7, "0.0000003", True),
        (3, "9007199254740993", True),
        (2, "9007199254740993", False),
        (0.5, "1e999", False),
    ],
)
def test_multiples_of_decimals(divisor: float, instance: str, fits: bool) -> None:
    assert ask(JsonSchemaGrader({"multipleOf": divisor}), instance).score == float(fits)


@pytest.mark.parametrize(
    ("response", "reference", "score"),
    [
        ('{"a": 1, "b": [1, 2]}', '{"b": [1, 2], "a": 1.0}', 1.0),
        ('{"a": 1}', {"a": 1}, 1.0),
        ('"x"', '"x"', 1.0),
        ("", {}, 0.0),
        ("not json", {}, 0.0),
        ("null", "null", 1.0),
        ("[2, 1]", [1, 2], 0.0),
        ('{"a": 1, "b": 2}', {"a": 1}, 0.0),
        ('{"a": []}', {"a": {}}, 0.0),
        ('{"cafe\\u0301": ["e\u0301"]}', {"caf\u00e9": ["\u00e9"]}, 1.0),
        ('{"a": 1}<|im_end|>', {"a": 1}, 1.0),
    ],
)
def test_exact_comparison(response: str, reference: Any, score: float) -> None:
    assert JsonMatchGrader().evaluate(response, reference).score == score


def test_the_place_of_a_difference_is_named() -> None:
    assert JsonMatchGrader().evaluate('{"a": [1, 2]}', {"a": [1, 3]}).reason.endswith("$.a.1")


@pytest.mark.parametrize(
    "reference",
    [None, "", "{'a': 1}", {1, 2}, {"a": float("nan")}, json.loads("[" * 80 + "]" * 80)],
)
def test_a_reference_that_is_not_json_is_no_judgement(reference: Any) -> None:
    with fails(ErrorKind.INVALID_INPUT):
        JsonMatchGrader().evaluate("{}", reference)
