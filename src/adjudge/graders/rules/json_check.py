"""JSON text read under stated limits, and checked against a schema.

:func:`validate` is what a worker process runs for :class:`JsonSchemaGrader`: JSON value in, JSON
value out. Nothing here fetches anything.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

from adjudge.engine.phases import InputTooLarge, Phase, enter_phase
from adjudge.graders.rules.text import shown

__all__ = [
    "MAX_DEPTH",
    "NotJson",
    "SchemaFault",
    "compiled",
    "decode",
    "first_fault",
    "too_deep",
    "validate",
    "warm_up",
]

MAX_DEPTH = 64
"""Deepest nesting that is read; it keeps every walk far from the interpreter's own limit."""

MAX_MEMBERS = 5_000
"""Most members of an array or object under a keyword whose time grows with their square."""


class NotJson(ValueError):
    """The text is not JSON, or goes beyond the stated limits; the message says which."""


class SchemaFault(ValueError):
    """The schema itself cannot be used; the message says why."""


def _refuse(literal: str) -> Any:
    raise NotJson(f"{literal} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def decode(text: str, *, prefix: bool = False) -> Any:
    """The value of a JSON text (RFC 8259); with ``prefix`` what stands behind it is ignored.

    Raises :class:`NotJson` for any other text, for ``NaN`` and ``Infinity``, and beyond two limits
    of the kind that the RFC leaves to the reader: nesting deeper than :data:`MAX_DEPTH` and
    integers of more than 4,300 digits (Python's own limit). Of equal keys the last one counts.

    >>> decode('{"a": [1, true]}')
    {'a': [1, True]}
    """
    try:
        value = _DECODER.raw_decode(text)[0] if prefix else _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg.removesuffix(' at')} at character {error.pos}") from None
    except RecursionError:
        raise NotJson(f"nested deeper than {MAX_DEPTH} levels") from None
    except NotJson:
        raise
    except ValueError:
        raise NotJson("an integer with more than 4,300 digits") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and too_deep(value):
        raise NotJson(f"nested deeper than {MAX_DEPTH} levels")
    return value


def too_deep(value: Any) -> bool:
    """Whether ``value`` nests deeper than :data:`MAX_DEPTH`; ends on cyclic values too."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [node for node in level if isinstance(node, dict | list)]
        if not level:
            return False
        level = [c for node in level for c in (node.values() if isinstance(node, dict) else node)]
    return True


def warm_up() -> None:
    """Import the library before a worker's first deadline starts."""
    compiled("true")


def validate(payload: dict[str, str]) -> dict[str, str]:
    """``{schema, instance}`` as JSON texts to ``{fault}`` ('' when valid) or ``{schema_fault}``."""
    enter_phase(Phase.REFERENCE)
    try:
        validator = compiled(payload["schema"])
        enter_phase(Phase.CANDIDATE)
        instance = json.loads(payload["instance"])
        if "unevaluated" in payload["schema"] and _widest(instance) > MAX_MEMBERS:
            raise InputTooLarge(f"more than {MAX_MEMBERS} members under unevaluated…")
        enter_phase(Phase.COMPARISON)
        return {"fault": first_fault(validator, instance)}
    except SchemaFault as fault:
        return {"schema_fault": str(fault)}


def _widest(value: Any) -> int:
    """The most members of an array or object in ``value``."""
    if not isinstance(value, list | dict):
        return 0
    members = value.values() if isinstance(value, dict) else value
    return max(len(value), max(map(_widest, members), default=0))


@lru_cache(maxsize=64)
def compiled(schema_text: str) -> Any:
    """A validator for a schema given as JSON text; raises :class:`SchemaFault`.

    The dialect is the one that ``$schema`` names, Draft 2020-12 when it names none; a dialect that
    is not known is a fault. References resolve inside the schema only: the registry is empty and
    has no way to retrieve. ``format`` is an annotation and asserts nothing.
    """
    import jsonschema  # noqa: PLC0415  (optional, and 150 ms to import)
    from referencing import Registry  # noqa: PLC0415

    try:
        schema = decode(schema_text)
    except NotJson as fault:
        raise SchemaFault(f"the schema is not JSON: {fault}") from None
    if not isinstance(schema, dict | bool):
        raise SchemaFault("a schema is an object, true or false")
    kind = _dialect(schema)
    try:
        kind.check_schema(schema)
        return _linear(kind)(schema, registry=Registry())
    except jsonschema.SchemaError as error:
        raise SchemaFault(f"the schema is invalid: {shown(error.message)}") from None
    except _library_faults() as error:
        raise SchemaFault(f"the schema cannot be used: {shown(error)}") from None


@lru_cache
def _linear(kind: Any) -> Any:
    """A dialect whose ``uniqueItems`` takes linear time; the library compares every pair."""
    validators: Any = importlib.import_module("jsonschema.validators")  # untyped
    return validators.extend(kind, {"uniqueItems": _unique_items})


def _unique_items(_: Any, wanted: Any, instance: Any, __: Any) -> Iterator[Any]:
    from jsonschema import ValidationError  # noqa: PLC0415

    if wanted and isinstance(instance, list):
        # Texts, since numbers can be chosen such that their hashes collide.
        forms = {json.dumps(_one_form(item), sort_keys=True) for item in instance}
        if len(forms) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _one_form(value: Any) -> Any:
    """``value`` such that equal ones are written alike: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_one_form(item) for item in value]
    if isinstance(value, dict):
        return {key: _one_form(item) for key, item in value.items()}
    return value


def _dialect(schema: dict[str, Any] | bool) -> Any:
    from jsonschema import Draft202012Validator  # noqa: PLC0415
    from jsonschema.validators import validator_for  # noqa: PLC0415

    if isinstance(schema, bool) or "$schema" not in schema:
        return Draft202012Validator
    named = schema["$schema"]
    kind = validator_for(schema, default=cast("Any", None)) if isinstance(named, str) else None
    if kind is None:
        raise SchemaFault(f"unknown dialect {shown(named)}")
    return kind


def first_fault(validator: Any, instance: Any) -> str:
    """The first way in which ``instance`` breaks the schema, '' when it is valid.

    Raises :class:`SchemaFault` when the schema points nowhere or recurses without end. A number
    too large for the library's arithmetic does not satisfy the schema.
    """
    try:
        error = next(validator.iter_errors(instance), None)
    except ArithmeticError:
        return "a number beyond the range of a double"
    except _library_faults() as fault:
        raise SchemaFault(f"the schema cannot be used: {shown(fault)}") from None
    if error is None:
        return ""
    return f"{shown(error.json_path)}: {shown(error.message)}"


def _library_faults() -> tuple[type[Exception], ...]:
    """What jsonschema raises on schemas that pass its own check but cannot be followed."""
    from referencing.exceptions import NoSuchResource, Unresolvable  # noqa: PLC0415

    wrong_types = (AttributeError, LookupError, TypeError, ValueError)
    return Unresolvable, NoSuchResource, RecursionError, ArithmeticError, re.error, *wrong_types
