"""JSON text read under stated limits, and checked against a schema.

:func:`validate_json` is what a worker process runs for :class:`JsonSchemaGrader`: JSON value in,
JSON value out. Nothing here fetches anything.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

from adjudge.engine.worker import InputTooLarge, WorkerPhase, enter_phase
from adjudge.errors import InvalidInput
from adjudge.text import compose_letters, shorten_text

MAX_JSON_DEPTH = 64
"""Deepest nesting that is read; it keeps every walk far from the interpreter's own limit."""

MAX_MEMBERS = 5_000
"""Most members of an array or object under a keyword whose time grows with their square."""

MANY_VALUES = 1_000
"""Time is linear in the values of an instance; what more of them take is the instance's fault."""

MAX_CHARS = 200_000
"""Longest text of a response that is read: some 50,000 tokens, compared in well under a second."""

REFERENCE_KEYWORDS = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
"""The keywords that lead to another place of the schema."""

_SEARCHED_CHARS = 10_000
_FRAMES = 5_000


class InvalidJson(ValueError):
    """The text is not JSON, or goes beyond the stated limits; the message says which."""


class UnusableSchema(InvalidInput):
    """The schema itself cannot be used; the message says why."""


def _refuse(literal: str) -> Any:
    raise InvalidJson(f"{literal} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def decode_strict_json(text: str) -> Any:
    """The value of a JSON text (RFC 8259).

    Raises :class:`InvalidJson` for any other text, for ``NaN`` and ``Infinity``, and beyond two
    limits of the kind that the RFC leaves to the reader: nesting deeper than
    :data:`MAX_JSON_DEPTH` and integers of more than 4,300 digits (Python's own limit). Of equal
    keys the last one counts.

    >>> decode_strict_json('{"a": [1, true]}')
    {'a': [1, True]}
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidJson(f"{error.msg.removesuffix(' at')} at character {error.pos}") from None
    except RecursionError:
        raise InvalidJson(f"nested deeper than {MAX_JSON_DEPTH} levels") from None
    except InvalidJson:
        raise
    except ValueError:
        raise InvalidJson("an integer with more than 4,300 digits") from None
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH and is_too_deep(value):
        raise InvalidJson(f"nested deeper than {MAX_JSON_DEPTH} levels")
    return value


_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*+"|\\.|([\[\]{}])', re.DOTALL)


def find_json_text(text: str) -> str | None:
    """All of ``text`` when it is JSON, else its last balanced ``{…}`` or ``[…]`` in no other one.

    ``None`` without one.

    >>> find_json_text("17"), find_json_text('It is {"a": 1}.'), find_json_text("seventeen")
    ('17', '{"a": 1}', None)
    """
    text = text.strip()
    try:
        decode_strict_json(text)
    except InvalidJson:
        pass
    else:
        return text
    opened: list[tuple[str, int]] = []
    best = None
    for token in _BRACKETS.finditer(text):
        bracket = token[1]
        if not bracket:
            continue
        if bracket in "[{":
            opened.append(("]" if bracket == "[" else "}", token.start()))
        elif opened and opened[-1][0] == bracket:
            best = (opened.pop()[1], token.end())
    return text[best[0] : best[1]] if best else None


def is_too_deep(value: Any) -> bool:
    """Whether ``value`` nests deeper than :data:`MAX_JSON_DEPTH`; ends on cyclic values too."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        level = [node for node in level if isinstance(node, dict | list)]
        if not level:
            return False
        level = [c for node in level for c in (node.values() if isinstance(node, dict) else node)]
    return True


def warm_up() -> None:
    """Import the library before a worker's first deadline starts."""
    compile_schema("true")


def validate_json(payload: dict[str, str]) -> str:
    """``{schema, instance}`` as JSON texts to the fault, '' when the instance is valid."""
    enter_phase(WorkerPhase.REFERENCE)
    limit = sys.getrecursionlimit()
    try:
        validator = compile_schema(payload["schema"])
        enter_phase(WorkerPhase.CANDIDATE)
        instance = json.loads(payload["instance"])
        count = _count(instance, MAX_MEMBERS if "unevaluated" in payload["schema"] else sys.maxsize)
        # Honest documents of 64 levels need more frames than Python allows by default.
        sys.setrecursionlimit(max(limit, _FRAMES))
        if count <= MANY_VALUES:
            enter_phase(WorkerPhase.COMPARISON)
        return find_first_fault(validator, instance)
    except (MemoryError, RecursionError):
        enter_phase(WorkerPhase.CANDIDATE)  # raised for the size or depth of the instance
        raise
    finally:
        sys.setrecursionlimit(limit)


def _count(value: Any, most: int) -> int:
    """How many values ``value`` has; ``InputTooLarge`` where one has more than ``most`` members."""
    count = 0
    stack = [value]
    while stack:
        node = stack.pop()
        count += 1
        if isinstance(node, list | dict):
            if len(node) > most:
                raise InputTooLarge(f"more than {most} members under unevaluated…")
            stack += node.values() if isinstance(node, dict) else node
    return count


@lru_cache(maxsize=64)
def compile_schema(schema_text: str) -> Any:
    """A validator for a schema given as JSON text; raises :class:`UnusableSchema`.

    The dialect is the one that ``$schema`` names, Draft 2020-12 when it names none; a dialect that
    is not known is a fault. References resolve inside the schema only: the registry is empty and
    has no way to retrieve. ``format`` is an annotation and asserts nothing.
    """
    import jsonschema  # noqa: PLC0415  (optional, and 150 ms to import)
    from referencing import Registry  # noqa: PLC0415

    try:
        schema = decode_strict_json(schema_text)
    except InvalidJson as fault:
        raise UnusableSchema(f"the schema is not JSON: {fault}") from None
    if not isinstance(schema, dict | bool):
        raise UnusableSchema("a schema is an object, true or false")
    kind = _dialect(schema)
    try:
        kind.check_schema(schema)
        if isinstance(schema, dict):  # else a reference to the root leads back to the library's own
            schema.pop("$schema", None)
        return _bounded(kind)(schema, registry=Registry())
    except jsonschema.SchemaError as error:
        raise UnusableSchema(f"the schema is invalid: {shorten_text(error.message)}") from None
    except _library_faults() as error:
        raise UnusableSchema(f"the schema cannot be used: {shorten_text(error)}") from None


@dataclass(slots=True)
class _Work:
    """What one validation has found and used up."""

    found: dict[Any, tuple[str, tuple[str | int, ...]] | None] = field(default_factory=dict)
    begun: set[Any] = field(default_factory=set)
    searched: Counter[str] = field(default_factory=Counter)


_WORK: ContextVar[_Work] = ContextVar("_WORK")


@lru_cache
def _bounded(kind: Any) -> Any:
    """A dialect of which an instance cannot make more than its size explains.

    In the library ``uniqueItems`` compares every pair, a schema that refers to itself in two
    branches of ``anyOf`` doubles the time with every level, and patterns search texts of any size.
    """
    validators: Any = importlib.import_module("jsonschema.validators")  # untyped
    known = kind.VALIDATORS
    own = {key: _once(known[key]) for key in REFERENCE_KEYWORDS & known.keys()}
    own |= {"uniqueItems": _unique_items, "pattern": _measured(known["pattern"], _itself)}
    own |= dict.fromkeys({"multipleOf", "divisibleBy"} & known.keys(), _multiple_of)
    if "patternProperties" in known:
        own["patternProperties"] = _measured(known["patternProperties"], _names)
    return validators.extend(kind, own)


_Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


def _once(follow: _Keyword) -> _Keyword:
    """A reference that is followed once for each part of the instance, to its first fault."""
    from jsonschema import ValidationError  # noqa: PLC0415

    def reference(validator: Any, target: Any, instance: Any, schema: Any) -> Iterator[Any]:
        work = _WORK.get()
        # What a dynamic reference means depends on the outermost places it was reached through.
        scope = [uri for uri, _ in validator._resolver.dynamic_scope()]  # noqa: SLF001
        key = (target, id(schema), id(instance), tuple(dict.fromkeys(reversed(scope))))
        if key not in work.found:
            if key in work.begun:
                raise UnusableSchema(f"{shorten_text(target)} refers to itself without end")
            work.begun.add(key)
            error = next(iter(follow(validator, target, instance, schema) or ()), None)
            work.found[key] = error and (shorten_text(error.message), tuple(error.relative_path))
        if (fault := work.found[key]) is not None:
            yield ValidationError(fault[0], path=fault[1])

    return reference


def _measured(search: _Keyword, texts: Callable[[Any, Any], Iterator[tuple[str, str]]]) -> _Keyword:
    """A keyword with patterns, most of which take time with the square of a text's length."""

    def searched(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
        work = _WORK.get()
        for pattern, text in texts(wanted, instance):
            work.searched[pattern] += len(text) ** 2
            if work.searched[pattern] > _SEARCHED_CHARS**2:
                raise InputTooLarge(f"texts too long for a pattern ({_SEARCHED_CHARS} characters)")
        yield from search(validator, wanted, instance, schema) or ()

    return searched


def _itself(pattern: Any, instance: Any) -> Iterator[tuple[str, str]]:
    if isinstance(instance, str):
        yield pattern, instance


def _names(patterns: Any, instance: Any) -> Iterator[tuple[str, str]]:
    if isinstance(instance, dict):
        yield from ((pattern, name) for pattern in patterns for name in instance)


def _unique_items(_: Any, wanted: Any, instance: Any, __: Any) -> Iterator[Any]:
    from jsonschema import ValidationError  # noqa: PLC0415

    if wanted and isinstance(instance, list):
        # Texts, since numbers can be chosen such that their hashes collide.
        forms = {json.dumps(_whole_numbers(item), sort_keys=True) for item in instance}
        if len(forms) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _multiple_of(validator: Any, divisor: Any, instance: Any, _: Any) -> Iterator[Any]:
    """A multiple by decimal arithmetic, where the library divides the nearest doubles."""
    from jsonschema import ValidationError  # noqa: PLC0415

    if validator.is_type(instance, "number"):
        if isinstance(instance, float) and math.isinf(instance):
            raise OverflowError
        if Fraction(repr(instance)) % Fraction(repr(divisor)):
            yield ValidationError(f"{instance!r} is not a multiple of {divisor!r}")


def canonical_json(value: Any) -> str:
    """A JSON value as text, the same for equal values: 1.0 is 1, and letters are composed.

    >>> canonical_json({"b": 1.0, "a": [True]})
    '{"a": [true], "b": 1}'
    """
    text = json.dumps(_whole_numbers(value), sort_keys=True, ensure_ascii=False)
    return compose_letters(text)


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    return list(map(_whole_numbers, value)) if isinstance(value, list | tuple) else value


def _dialect(schema: dict[str, Any] | bool) -> Any:
    from jsonschema import Draft202012Validator  # noqa: PLC0415
    from jsonschema.validators import validator_for  # noqa: PLC0415

    if isinstance(schema, bool) or "$schema" not in schema:
        return Draft202012Validator
    named = schema["$schema"]
    kind = validator_for(schema, default=cast("Any", None)) if isinstance(named, str) else None
    if kind is None:
        raise UnusableSchema(f"unknown dialect {shorten_text(named)}")
    return kind


def find_first_fault(validator: Any, instance: Any) -> str:
    """The first way in which ``instance`` breaks the schema, '' when it is valid.

    Raises :class:`UnusableSchema` when the schema points nowhere or recurses without end,
    ``InputTooLarge`` when texts are too long for its patterns, ``RecursionError`` for an instance
    too deep for the stack. A number too large for the library's arithmetic does not satisfy the
    schema.
    """
    token = _WORK.set(_Work())
    try:
        error = next(validator.iter_errors(instance), None)
    except RecursionError:  # not the schema's: a reference without end has been found before
        raise
    except ArithmeticError:
        return "a number beyond the range of a double"
    except _library_faults() as fault:
        raise UnusableSchema(f"the schema cannot be used: {shorten_text(fault)}") from None
    finally:
        _WORK.reset(token)
    if error is None:
        return ""
    return f"{shorten_text(error.json_path)}: {shorten_text(error.message)}"


def _library_faults() -> tuple[type[Exception], ...]:
    """What jsonschema raises on schemas that pass its own check but cannot be followed."""
    from referencing.exceptions import NoSuchResource, Unresolvable  # noqa: PLC0415

    wrong_types = (AttributeError, LookupError, TypeError, ValueError)
    return Unresolvable, NoSuchResource, RecursionError, ArithmeticError, re.error, *wrong_types
