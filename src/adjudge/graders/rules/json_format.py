"""Is a response JSON, does it fit a schema, does it equal a reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from adjudge.engine.processes import CandidateLimitExceeded, get_pool
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.json_check import (
    MAX_CHARS,
    REFERENCES,
    NotJson,
    SchemaFault,
    TooLong,
    compiled,
    decode,
    first_fault,
    too_deep,
)
from adjudge.graders.rules.params import chosen, flag, needs, number
from adjudge.graders.rules.text import NO_FINAL_TEXT, seen_text, shown
from adjudge.graders.view import View
from adjudge.types import GraderScore

__all__ = ["JsonSchemaGrader", "JsonValidatorGrader", "response_value"]

_FENCE = "```"


class JsonValidatorGrader(RuleGrader):
    """1 when the response is JSON, else 0.

    Range [0, 1]. Field: ``response`` (text). An empty response is not JSON: 0. Source: RFC 8259;
    py-openjudge 0.2.4 (``JsonValidatorGrader``) also lets ``NaN`` and ``Infinity`` pass. Nesting
    deeper than 64 levels and integers of more than 4,300 digits score 0, limits that the RFC
    (section 9) leaves to the reader; more than 200,000 characters are 0 with ``cause =
    "candidate"``. Time is linear in the length of the response.

    ``view``: ``final`` (default) reads what stands after the thinking, and an unclosed ``<think>``
    scores 0; ``full`` reads the whole response.
    ``strict`` (default true): the text is one JSON value and nothing else. Otherwise the value
    that starts at the first ``{`` or ``[`` counts, and text around it is ignored.
    ``allow_fence`` (default false): the value may stand in a Markdown code fence, marked ``json``
    or not at all; without ``strict`` the last closed such fence is read when there is one.

    Raises ``GradingFailure(invalid_input)`` for a response that is not text.

    >>> JsonValidatorGrader().evaluate('{"a": 1}').score
    1.0
    >>> JsonValidatorGrader().evaluate("[NaN]").reason
    'NaN is not JSON'
    """

    type_name = "json_valid"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        view: View = "final",
        allow_fence: bool = False,
        strict: bool = True,
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        check_reading(self.type_name, view, allow_fence, strict)
        self.view: View = view
        self.allow_fence = allow_fence
        self.strict = strict

    def evaluate(self, response: str) -> GraderScore:
        """Judge one response."""
        try:
            response_value(response, self.view, self.allow_fence, self.strict)
        except TooLong as excess:
            return self._candidate_fault(str(excess))
        except NotJson as fault:
            return self._score(0.0, str(fault))
        return self._score(1.0, "valid JSON")


class JsonSchemaGrader(RuleGrader):
    """1 when the response is JSON that satisfies a JSON Schema, else 0.

    Range [0, 1]. Fields: ``response`` (text) and, where no schema is configured, ``schema`` (an
    object, a boolean, or either as JSON text). Source: JSON Schema, by the ``jsonschema`` library;
    the dialect is the one that ``$schema`` names, Draft 2020-12 by default. References resolve
    inside the schema only and nothing is ever fetched; ``format`` asserts nothing. What is not
    JSON scores 0, as in :class:`JsonValidatorGrader`, and so does an empty response.

    ``schema``: the schema as a table; ``schema_file``: a JSON file that holds it. A configured
    schema wins over the row's.
    ``view``, ``allow_fence``, ``strict``: as in :class:`JsonValidatorGrader`.
    ``deadline_s`` (default 5): processor seconds for one check in a worker process. That is where
    schemas from rows go, schemas with references, ``pattern`` or ``patternProperties`` (their time
    and depth grow with hostile text), and texts of more than 5,000 characters; the rest runs in
    place. A response scores 0 with ``cause = "candidate"`` that holds more than 1,000 values and
    takes longer, has more than 200,000 characters, more than 10,000 for one ``pattern`` (of several
    strings, the root of the sum of their squares), or more than 5,000 members in an array or object
    where the schema says ``unevaluatedItems`` or ``unevaluatedProperties``.

    Raises ``ConfigError`` for a configured schema that cannot be used;
    ``GradingFailure(invalid_input)`` for a row without a usable schema and for a response that is
    not text; ``GradingFailure(timeout)`` beyond the deadline. Needs ``adjudge[rules]``.
    """

    type_name = "json_schema"
    score_range = (0.0, 1.0)

    _INLINE_CHARS = 5_000
    _EXPLOSIVE = REFERENCES | {"pattern", "patternProperties"}

    def __init__(
        self,
        schema: dict[str, Any] | None = None,
        schema_file: Path | None = None,
        view: View = "final",
        allow_fence: bool = False,
        strict: bool = True,
        deadline_s: float = 5.0,
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        needs(self.type_name, "jsonschema")
        check_reading(self.type_name, view, allow_fence, strict)
        number(self.type_name, "deadline_s", deadline_s, 0.01, 600)
        self.view: View = view
        self.allow_fence = allow_fence
        self.strict = strict
        self.deadline_s = deadline_s
        self.schema_text = self._configured(schema, schema_file)
        self.fingerprint = sha256(self.schema_text.encode("utf-8", "surrogatepass")).hexdigest()
        self._inline = bool(self.schema_text) and not self._explosive(self.schema_text)

    async def aevaluate(self, response: str, schema: Any = None) -> GraderScore:
        """Judge one response."""
        schema_text = self.schema_text or _schema_text(schema)
        try:
            value = response_value(response, self.view, self.allow_fence, self.strict)
        except TooLong as excess:
            return self._candidate_fault(str(excess))
        except NotJson as fault:
            return self._judged(f"not JSON: {fault}")
        if self._inline and len(response) <= self._INLINE_CHARS:
            return self._judged(self._check_here(value))
        payload = {"schema": schema_text, "instance": json.dumps(value)}
        try:
            answer = await get_pool().call(
                "adjudge.graders.rules.json_check:validate", payload, deadline_s=self.deadline_s
            )
        except CandidateLimitExceeded as excess:
            return self._candidate_fault(str(excess))
        if "schema_fault" in answer:
            raise GradingFailure(ErrorKind.INVALID_INPUT, answer["schema_fault"])
        return self._judged(answer["fault"])

    def _check_here(self, value: Any) -> str:
        try:
            return first_fault(compiled(self.schema_text), value)
        except SchemaFault as fault:
            raise GradingFailure(ErrorKind.INVALID_INPUT, str(fault)) from None

    def _judged(self, fault: str) -> GraderScore:
        reason = fault or "satisfies the schema"
        score = 0.0 if fault else 1.0
        return self._score(score, reason)

    def _configured(self, schema: Any, schema_file: Path | None) -> str:
        """The configured schema as JSON text, '' for none; raises ``ConfigError`` if unusable."""
        if schema is not None and schema_file is not None:
            raise ConfigError(f"{self.type_name}: give schema or schema_file, not both")
        try:
            if schema_file is not None:
                text = _schema_text(schema_file.read_text(encoding="utf-8"))
            elif schema is not None:
                text = _schema_text(schema)
            else:
                return ""
            compiled(text)
        except (OSError, ValueError, GradingFailure) as fault:
            what = "schema" if schema_file is None else f"schema_file {str(schema_file)!r}"
            raise ConfigError(f"{self.type_name}: {what} cannot be used: {fault}") from None
        return text

    def _explosive(self, schema_text: str) -> bool:
        return any(key in self._EXPLOSIVE for key in _keys(decode(schema_text)))


def response_value(response: Any, view: View, allow_fence: bool, strict: bool) -> Any:
    """The JSON value that a response holds.

    Raises :class:`NotJson` when it holds none, :class:`TooLong` for a text beyond the limit.
    """
    text = seen_text(response, view)
    if text is None:
        raise NotJson(NO_FINAL_TEXT)
    if len(text) > MAX_CHARS:
        raise TooLong
    if strict:
        return decode(_unfenced(text) if allow_fence else text)
    fenced = _last_fence(text) if allow_fence else None
    if fenced is not None:
        return decode(fenced)
    starts = [start for start in (text.find("{"), text.find("[")) if start >= 0]
    if not starts:
        raise NotJson("no object or array")
    return decode(text[min(starts) :], prefix=True)


def check_reading(owner: str, view: Any, allow_fence: Any, strict: Any) -> None:
    """The three parameters that every JSON grader has."""
    chosen(owner, "view", view, View)
    flag(owner, "allow_fence", allow_fence)
    flag(owner, "strict", strict)


def _unfenced(text: str) -> str:
    """What stands inside the one fence that ``text`` is, or ``text`` itself."""
    head, newline, body = text.strip().partition("\n")
    if newline and _opens(head) and body.endswith(_FENCE):
        return body[: -len(_FENCE)]
    return text


def _last_fence(text: str) -> str | None:
    """The content of the last closed fence that is marked ``json`` or not at all."""
    found: str | None = None
    mark = ""
    lines: list[str] = []
    for line in text.split("\n"):
        if not mark:
            mark, lines = (line, []) if line.lstrip().startswith(_FENCE) else ("", lines)
        elif line.strip() == _FENCE:
            found = "\n".join(lines) if _opens(mark) else found
            mark = ""
        else:
            lines.append(line)
    return found


def _opens(line: str) -> bool:
    line = line.strip().lower()
    return line in (_FENCE, _FENCE + "json")


def _schema_text(schema: Any) -> str:
    """A row's schema as JSON text; ``GradingFailure(invalid_input)`` when it cannot be one."""
    if schema is None:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, "no schema, neither configured nor in the row"
        )
    try:
        value = decode(schema) if isinstance(schema, str) else schema
        if not isinstance(value, dict | bool) or too_deep(value):
            raise NotJson("it must be an object or a boolean, at most 64 levels deep")
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as fault:
        message = f"the schema cannot be used: {shown(fault)}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, message) from None


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for child in value:
            yield from _keys(child)
