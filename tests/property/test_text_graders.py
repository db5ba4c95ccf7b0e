"""Format and text graders on arbitrary text: ranges, symmetries, oracles, linear time."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings, strategies as st

from adjudge.errors import GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.json_graders import JsonMatchGrader, JsonValidatorGrader
from adjudge.graders.rules.json_validation import (
    MAX_JSON_DEPTH,
    InvalidJson,
    UnusableSchema,
    compile_schema,
    decode_strict_json,
    find_first_fault,
    validate_json,
)
from adjudge.graders.rules.response_form import (
    LanguageGrader,
    LengthPenaltyGrader,
    NgramRepetitionPenaltyGrader,
    ReasoningFormatGrader,
    ReasoningToolCallFormatGrader,
    SoftOverlongPunishmentGrader,
)
from adjudge.graders.rules.similarity import SimilarityGrader, StringMatchGrader
from adjudge.types import GraderScore, Role

METRICS: tuple[Any, ...] = ("bleu", "chrf", "rouge_l", "edit", "f1", "jaccard")
SIGNS = """<think> </think> <answer> </answer> <tool_call> </tool_call> ``` [1,2] NaN \\ " 今天 カナ
हिन्दी 😀 👩‍👩‍👧 . 1.5"""
FRAGMENTS = [*SIGNS.split(), "```json\n", "the cat", " a ", "\x00", "\ud800", "\n"]
FRAGMENTS.append('{"name": "f", "arguments": {}}')
anything = st.characters(exclude_categories=())  # surrogates too
texts = st.lists(
    st.one_of(st.sampled_from(FRAGMENTS), st.text(anything, max_size=6)), max_size=12
).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=15,
)

OF_RESPONSE: list[RuleGrader] = [
    ReasoningFormatGrader(),
    ReasoningToolCallFormatGrader(),
    JsonValidatorGrader(),
    JsonValidatorGrader(strict=False),
    LengthPenaltyGrader(),
    LengthPenaltyGrader(unit="words"),
    SoftOverlongPunishmentGrader(max_length=20, cache_length=10, unit="chars"),
    NgramRepetitionPenaltyGrader(),
    NgramRepetitionPenaltyGrader(n=1),
    LanguageGrader("en"),
]
OF_REFERENCE: list[RuleGrader] = [
    *(SimilarityGrader(metric) for metric in METRICS),
    *(StringMatchGrader(m) for m in ("exact", "prefix", "suffix", "contains", "overlap")),
    JsonMatchGrader(),
    JsonMatchGrader(strict=False),
]


def check(grader: RuleGrader, result: GraderScore) -> None:
    assert grader.score_range is not None
    low, high = grader.score_range
    assert low is None or low <= result.score
    assert high is not None
    assert result.score <= high
    if grader.role is Role.PENALTY:
        assert result.score <= 0
        assert str(result.score) != "-0.0"
    assert msgspec.json.decode(msgspec.json.encode(result), type=GraderScore) == result


def label(grader: RuleGrader) -> str:
    return grader.name


@pytest.mark.parametrize("grader", OF_RESPONSE, ids=label)
@given(response=texts)
@settings(max_examples=40)
def test_ranges_hold_for_any_response(grader: RuleGrader, response: str) -> None:
    check(grader, grader.evaluate(response))


@pytest.mark.parametrize("grader", OF_REFERENCE, ids=label)
@given(response=texts, reference=texts | st.lists(texts, max_size=3))
@settings(max_examples=40)
def test_ranges_hold_for_any_pair(grader: RuleGrader, response: str, reference: Any) -> None:
    try:
        result = grader.evaluate(response, reference)
    except GradingFailure:
        assume(False)
    check(grader, result)


def same(one: Any, other: Any) -> bool:
    """JSON equality by recursion, the plain way."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(type(one) is type(other) or {type(one), type(other)} == {int, float}) and bool(
        one == other
    )


small_values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, "", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)


@given(one=small_values, other=small_values)
def test_json_comparison_against_recursion(one: Any, other: Any) -> None:
    ours, theirs = json.dumps(one), json.dumps(other)
    assert JsonMatchGrader().evaluate(ours, theirs).score == float(same(one, other))


@given(text=texts | json_values.map(json.dumps))
def test_json_validity_against_the_standard_library(text: str) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        expected = json.loads(text, parse_constant=refuse)
    except ValueError:
        with pytest.raises(InvalidJson):
            decode_strict_json(text)
    else:
        assert decode_strict_json(text) == expected


@given(depth=st.integers(1, 3 * MAX_JSON_DEPTH), objects=st.booleans())
def test_nesting_has_one_limit(depth: int, objects: bool) -> None:
    text = (
        '{"[":' * (depth - 1) + "{}" + "}" * (depth - 1) if objects else "[" * depth + "]" * depth
    )
    assert JsonValidatorGrader().evaluate(text).score == float(depth <= MAX_JSON_DEPTH)


KEYWORDS = [
    *("$ref", "$id", "$defs", "$schema", "$dynamicRef", "type", "properties", "items", "allOf"),
    *("not", "pattern", "patternProperties", "enum", "multipleOf", "required", "dependencies"),
]
schema_texts = st.sampled_from(
    ["#", "#/a", "#/items", "string", "object", "(", "a{9999999999}", "http://[", "urn:x", "x#y"]
    + [f"http://json-schema.org/draft-0{n}/schema#" for n in (3, 4, 6, 7)]
)
schema_values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | schema_texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    schema=st.dictionaries(st.sampled_from(KEYWORDS), schema_values, min_size=1, max_size=3),
    instance=json_values,
)
def test_any_schema_gets_a_verdict_or_is_a_fault(schema: dict[str, Any], instance: Any) -> None:
    with suppress(UnusableSchema):
        fault = validate_json({"schema": json.dumps(schema), "instance": json.dumps(instance)})
        json.dumps(fault).encode()


_LEAF_SCHEMAS: Any = st.sampled_from(
    [{"type": "integer"}, {"type": "array"}, {"const": 1}, {"maxItems": 1}, {"uniqueItems": True}]
)
_LINKS: Any = st.sampled_from(
    [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"$ref": "#"}, {"$dynamicRef": "#here"}]
)


def _combined(inner: Any) -> Any:
    kinds = ("anyOf", "oneOf", "allOf")
    several = st.lists(inner, min_size=1, max_size=3)
    lists = st.fixed_dictionaries({}, optional=dict.fromkeys(kinds, several))
    single = ("not", "if", "then", "else", "items", "contains")
    return st.tuples(lists, st.dictionaries(st.sampled_from(single), inner, max_size=3)).map(
        lambda parts: parts[0] | parts[1]
    )


_SCHEMAS: Any = st.recursive(_LEAF_SCHEMAS | _LINKS, _combined, max_leaves=6)
_LISTS: Any = st.recursive(st.sampled_from([0, 1, 1.0, "x"]), lambda x: st.lists(x, max_size=3))


@given(root=_SCHEMAS, a=_SCHEMAS, b=_SCHEMAS, value=_LISTS)
def test_schemas_that_refer_to_themselves_say_what_the_library_says(
    root: Any, a: Any, b: Any, value: Any
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    inner = {"$id": "urn:inner", "$dynamicAnchor": "here", "anyOf": [b]}
    schema = root | {"$dynamicAnchor": "here", "$defs": {"a": a, "b": b, "c": inner}}
    try:
        fault = find_first_fault(compile_schema(json.dumps(schema)), value)
    except UnusableSchema:  # it refers to itself without end
        assume(False)
    try:
        valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    except RecursionError:  # the library says nothing of this one
        assume(False)
    assert (fault == "") is valid
