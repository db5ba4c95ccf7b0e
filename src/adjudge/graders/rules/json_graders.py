"""Graders of a response that must be JSON.

Is it JSON, does it fit a schema, does it equal a reference in whole or in part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from adjudge.engine.processes import get_pool
from adjudge.errors import LACKED, CandidateLimitExceeded, ConfigError, GradingFailure, InvalidInput
from adjudge.graders.base import NO_FINAL_TEXT, ParametricRule, final_response, require_package
from adjudge.graders.rules.json_validation import (
    MAX_CHARS,
    REFERENCE_KEYWORDS,
    InvalidJson,
    canonical_json,
    compile_schema,
    decode_strict_json,
    find_first_fault,
    find_json_text,
)
from adjudge.text import encode_exactly, shorten_text
from adjudge.types import GraderScore

_NONE = "no object or array"


class _JsonGrader(ParametricRule):
    """What all graders of this module share: how a response is read."""

    strict: bool

    def _read(self, text: str | None, said: str = "not JSON: ") -> tuple[Any, GraderScore | None]:
        """The JSON value of a response's text; beside it the score of one that holds none."""
        if text is not None and len(text) > MAX_CHARS:
            return None, self._candidate_fault(f"more than {MAX_CHARS} characters")
        found = text if text is None or self.strict else find_json_text(text)
        if found is None:
            return None, self._score(0.0, f"{said}{NO_FINAL_TEXT if text is None else _NONE}")
        try:
            return decode_strict_json(found), None
        except InvalidJson as fault:
            return None, self._score(0.0, f"{said}{fault}")


@dataclass(eq=False, repr=False)
class JsonValidatorGrader(_JsonGrader):
    """1 when the response is JSON, else 0.

    Field: ``response``. Source: RFC 8259; ``JsonValidatorGrader`` of py-openjudge 0.2.4 also
    accepts ``NaN`` and ``Infinity``. 0 for more than 64 levels and for integers of more than 4,300
    digits; more than 200,000 characters are 0 with ``cause = "candidate"``.

    Args:
        strict: The text is one JSON value and nothing else; false: else it is the last ``{…}`` or
            ``[…]`` of the text.

    >>> JsonValidatorGrader().evaluate('{"a": 1}').score
    1.0
    >>> JsonValidatorGrader().evaluate("[NaN]").reason
    'NaN is not JSON'
    """

    type_name = "json_valid"
    score_range = (0.0, 1.0)

    strict: bool = True

    def evaluate(self, response: str) -> GraderScore:
        """Judge one response."""
        _, fault = self._read(final_response(response), "")
        return fault or self._score(1.0, "valid JSON")


@dataclass(eq=False, repr=False)
class JsonSchemaGrader(_JsonGrader):
    """1 when the response is JSON that satisfies a JSON Schema, else 0.

    Fields: ``response`` and, where no schema is configured, ``schema`` (an object, a boolean, or
    JSON text). The ``jsonschema`` library checks, in the dialect that ``$schema`` names (default:
    Draft 2020-12). References resolve inside the schema only; ``format`` asserts nothing. What is
    not JSON scores 0. Needs the extra ``full``.

    These score 0 with ``cause = "candidate"``: more than 200,000 characters; more than 10,000 for
    one ``pattern``; more than 5,000 members beside ``unevaluatedItems`` or
    ``unevaluatedProperties``; more than 1,000 values that take longer than 5 processor seconds.
    Other checks that take longer are ``timeout``.

    Args:
        schema: The schema as a table; it wins over the row's.
        strict: As in ``json_valid``.
    """

    type_name = "json_schema"
    score_range = (0.0, 1.0)

    _INLINE_CHARS = 5_000
    _DEADLINE_S = 5.0
    _EXPLOSIVE = REFERENCE_KEYWORDS | {"pattern", "patternProperties"}

    schema: dict[str, Any] | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        require_package(self.type_name, "jsonschema")
        super().__post_init__()
        self.schema_text, self._inline = "", False
        if self.schema is not None:
            try:
                self.schema_text = json.dumps(_read_field(self.schema, "schema"))
                compile_schema(self.schema_text)
            except GradingFailure as fault:
                message = f"{self.type_name}: schema cannot be used: {fault}"
                raise ConfigError(message) from None
            self._inline = self._EXPLOSIVE.isdisjoint(_keys(self.schema))
        self.fingerprint = sha256(encode_exactly(self.schema_text)).hexdigest()

    async def aevaluate(self, response: str, schema: Any = None) -> GraderScore:
        """Judge one response."""
        schema_text = self.schema_text or json.dumps(_read_field(schema, "schema"))
        value, invalid = self._read(final_response(response))
        if invalid is not None:
            return invalid
        if self._inline and len(response) <= self._INLINE_CHARS:
            return self._judged(find_first_fault(compile_schema(schema_text), value))
        payload = {"schema": schema_text, "instance": json.dumps(value)}
        try:
            fault = await get_pool().call(
                "adjudge.graders.rules.json_validation:validate_json",
                payload,
                deadline_s=self._DEADLINE_S,
            )
        except CandidateLimitExceeded as excess:
            return self._candidate_fault(str(excess))
        return self._judged(fault)

    def _judged(self, fault: str) -> GraderScore:
        return self._score(float(not fault), fault or "satisfies the schema")


def _read_field(value: Any, name: str) -> Any:
    """A row's JSON value, or JSON text; ``GradingFailure(invalid_input)`` when it is neither.

    A null is a gap of the table; the text ``null`` is the value.
    """
    if value is None:
        raise InvalidInput(f"the sample has no {name}", {LACKED: [name]})
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        return decode_strict_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} is not JSON: {shorten_text(error)}") from None


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for child in value:
            yield from _keys(child)


@dataclass(eq=False, repr=False)
class JsonMatchGrader(_JsonGrader):
    """1 when the JSON of the response equals the reference, else 0.

    Fields: ``response`` and ``reference`` (JSON text or the value; ``null`` as text). What is not
    JSON scores 0; more than 200,000 characters are 0 with ``cause = "candidate"``. The order
    of members is ignored, 1 equals 1.0, true differs from 1, a missing member differs from
    ``null``, and letters are composed (Unicode's form C). Source: ``JsonMatchGrader`` of
    py-openjudge 0.2.4, where a missing member equals ``null`` and true equals 1.

    Args:
        strict: As in ``json_valid``.

    >>> JsonMatchGrader().evaluate('{"b": 2, "a": 1.0}', '{"a": 1, "b": 2}').score
    1.0
    """

    type_name = "json_match"
    score_range = (0.0, 1.0)

    strict: bool = True

    def evaluate(self, response: str, reference: Any) -> GraderScore:
        """Judge one response against its reference."""
        return self.match(final_response(response), reference)

    def match(self, text: str | None, reference: Any) -> GraderScore:
        """Judge the final text of one response."""
        wanted = _read_field(reference, "reference")
        value, invalid = self._read(text)
        if invalid is not None:
            return invalid
        if canonical_json(value) == canonical_json(wanted):
            return self._score(1.0, "equal")
        return self._score(0.0, shorten_text(f"differs at {_first_difference(value, wanted)}"))


def _first_difference(value: Any, wanted: Any, path: str = "$") -> str:
    """Where two JSON values that differ first do."""
    has, wants = (dict(enumerate(one)) if isinstance(one, list) else one for one in (value, wanted))
    if type(value) is type(wanted) and isinstance(has, dict):
        for key in (*wants, *has):
            here = f"{path}.{key}"
            if key not in has or key not in wants:
                return here
            if canonical_json(has[key]) != canonical_json(wants[key]):
                return _first_difference(has[key], wants[key], here)
    return path
