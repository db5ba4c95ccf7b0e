"""A small valid instance of a JSON Schema, as constrained decoding would force one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["minimal_instance"]

_DEPTH = 32
_NODES = 10_000


def minimal_instance(schema: Mapping[str, Any], share: float = 1.0, text: str = "mock") -> Any:
    """An instance of ``schema`` with its required properties (all, when none are required).

    ``share`` in [0, 1] places numbers between ``minimum`` and ``maximum`` and picks from ``enum``;
    ``text`` fills strings. Known: const, enum, type, properties, items, ranges, lengths, ``$ref``
    within the document, and the first branch of anyOf, oneOf and allOf. Patterns and formats are
    not; what goes beyond 32 levels or 10,000 parts is
    cut with ``null``.
    """
    return _Maker(schema, share, text).make(schema, 0)


class _Maker:
    def __init__(self, root: Mapping[str, Any], share: float, text: str) -> None:
        self._root = root
        self._share = share
        self._text = text
        self._left = _NODES

    def make(self, schema: Any, depth: int) -> Any:
        self._left -= 1  # references multiply: depth alone bounds nothing
        if not isinstance(schema, Mapping) or depth > _DEPTH or self._left < 0:
            return None
        if "const" in schema:
            return schema["const"]
        options = schema.get("enum")
        if isinstance(options, list) and options:
            return options[round(self._share * (len(options) - 1))]
        if "$ref" in schema:
            return self.make(self._resolved(schema["$ref"]), depth + 1)
        for word in ("anyOf", "oneOf", "allOf"):
            branches = schema.get(word)
            if isinstance(branches, list) and branches:
                return self.make(branches[0], depth + 1)
        return self._typed(schema, depth)

    def _resolved(self, reference: Any) -> Any:
        here: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        for part in reference[1:].strip("/").split("/") if len(reference) > 1 else ():
            name = part.replace("~1", "/").replace("~0", "~")
            here = here.get(name) if isinstance(here, Mapping) else None
        return here

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0] if kind else None
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, depth)
        if kind == "array":
            count = _whole(schema.get("minItems"), 0)
            return [self.make(schema.get("items", {}), depth + 1) for _ in range(min(count, 100))]
        if kind == "boolean":
            return self._share >= 0.5
        if kind in {"integer", "number"}:
            return self._number(schema, kind == "integer")
        return self._string(schema) if kind == "string" else None

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return {}
        required = schema.get("required")
        names = required if isinstance(required, list) else list(properties)
        return {str(name): self.make(properties.get(name, {}), depth + 1) for name in names}

    def _number(self, schema: Mapping[str, Any], whole: bool) -> float:
        low, high = _number(schema.get("minimum")), _number(schema.get("maximum"))
        step = 1.0 if whole else 1e-3
        if low is None and (above := _number(schema.get("exclusiveMinimum"))) is not None:
            low = above + step
        if high is None and (below := _number(schema.get("exclusiveMaximum"))) is not None:
            high = below - step
        if low is None:
            low = 0.0 if high is None else min(0.0, high)
        if high is None:
            high = max(1.0, low)
        value = low + self._share * (high - low)
        if not whole:
            return round(value, 3) if low <= round(value, 3) <= high else value
        return max(math.ceil(low), min(math.floor(high), round(value)))

    def _string(self, schema: Mapping[str, Any]) -> str:
        shortest = min(_whole(schema.get("minLength"), 0), 10_000)
        longest = _whole(schema.get("maxLength"), max(len(self._text), shortest))
        return self._text.ljust(shortest, ".")[: max(longest, shortest)]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any, default: int) -> int:
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
    )
