"""The form of a reply: a JSON Schema, or what a prompt states in words, and an instance of it.

A judge of a server that honours no schema is asked for a verdict in a block, with an example whose
holes say what goes there, or for one of a few words alone. Here both become what a request would
have said: a JSON Schema, or a list of choices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_GOOD = frozenset({"met", "yes", "true", "pass", "passed", "good", "correct"})
"""Words that schemas list first, although ``share`` goes from the worst to the best."""


class Schema(msgspec.Struct, rename="camel"):
    """The keywords of JSON Schema that an instance is made by; others are left out of account."""

    type: str | None = None
    enum: list[Any] | None = None
    properties: dict[str, Schema] | None = None
    required: list[str] | None = None
    items: Schema | None = None
    min_items: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    max_length: int | None = None


def read_schema(schema: Mapping[str, Any]) -> Schema:
    """A JSON Schema; raises ``msgspec.ValidationError`` naming the keyword that is wrong."""
    return msgspec.convert(schema, Schema)


def make_instance(schema: Schema, share: float = 1.0, text: str = "mock") -> Any:
    """An instance of ``schema`` with its required properties (all, when none are required).

    ``share`` in [0, 1] places numbers between ``minimum`` and ``maximum`` and picks from ``enum``;
    ``text`` fills strings. Raises ``msgspec.ValidationError`` for a schema without a known type.
    """
    if schema.enum:
        return pick(schema.enum, share)
    if schema.type == "object":
        return _make_object(schema, share, text)
    if schema.type == "array" and schema.items is not None:
        name, values = _find_label(schema.items)
        count = len(values) if schema.min_items is None else schema.min_items
        made = [make_instance(schema.items, share, text) for _ in range(count)]
        for one, value in zip(made, values, strict=False):
            one[name] = value
        return made
    if schema.type == "boolean":
        return pick([False, True], share)
    if schema.type in {"integer", "number"}:
        return _make_number(schema, share)
    if schema.type == "string":
        return text if schema.max_length is None else text[: schema.max_length]
    raise msgspec.ValidationError(
        f"the schema has no known type (found {schema.type!r}; allowed: array, boolean, integer, "
        "number, object, string, or a list of values as enum)"
    )


def _make_object(schema: Schema, share: float, text: str) -> dict[str, Any]:
    properties = schema.properties or {}
    names = list(properties) if schema.required is None else schema.required
    places = [*range(1, len(names) + 1)]
    if len(names) > 1 and all(properties[name].enum == places for name in names):
        return dict(zip(names, places, strict=True))
    return {name: make_instance(properties[name], share, text) for name in names}


def _make_number(schema: Schema, share: float) -> float:
    low = min(0.0, schema.maximum or 0.0) if schema.minimum is None else schema.minimum
    high = max(1.0, low) if schema.maximum is None else schema.maximum
    value = low + share * (high - low)
    if schema.type == "integer":
        return max(math.ceil(low), min(math.floor(high), round(value)))
    return round(value, 3) if low <= round(value, 3) <= high else value


def _find_label(items: Schema) -> tuple[str, list[int]]:
    """The first property with a list of integers: the integers tell a list's objects apart."""
    for name, one in (items.properties or {}).items():
        if one.enum and all(type(value) is int for value in one.enum):
            return name, one.enum
    return "", []


def pick(options: Sequence[Any], share: float) -> Any:
    """The option at ``share`` of the way from the worst to the best."""
    words = [str(one).casefold() for one in options if one != "N/A"]
    if words and words[0] in _GOOD and words[-1] not in _GOOD:
        options = [one for one in options if one != "N/A"][::-1]
    return options[round(share * (len(options) - 1))]


_BLOCK = re.compile(r"<(verdict-[0-9a-f]{16})>\n(.+)\n</\1>\s*\Z")
_ONE_OF = re.compile(r"(?:Reply with one of|只回复) (.+?)(?: and nothing else| 中的一个)")
_HOLE = re.compile(r'"[^"<>]*"(?: \| "[^"<>]*")+|"<[^"]*>"|<[^<>"]*>')
_WHOLE = re.compile("integer|place|整数|名次|编号|of the turn")
_MOST_POINTS = 1000
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_RANKING = re.compile(r"\[<[^<>]*>, …, <[^<>\d]*(\d+)[^<>]*>\]")
_STEPS = re.compile(r"(?: in all\): |个）：)([\d, ]+)[.。]")
_MORE = re.compile(r", …(?: <[^<>]*>)?")
_NUMBERED = re.compile(r"^(\d{1,4})\. (.*)$", re.MULTILINE)


def find_stated_choices(text: str) -> list[str] | None:
    """The words of which the reply must be one."""
    found = _ONE_OF.findall(text)
    return re.split(r", | or |、| 或 ", found[-1]) if found else None


def find_stated_form(user: str, system: str) -> tuple[str, Schema | None]:
    """The name of the block that ends a prompt, and the JSON Schema of the example in the block.

    What the example leaves to "…" is in the prompt: the numbers of the steps and of the criteria.
    """
    found = _BLOCK.search(user)
    if found is None:
        return "", None
    example = _RANKING.sub(lambda found: _hole(type="ranking", n=int(found[1])), found[2])
    try:
        tree = msgspec.json.decode(_HOLE.sub(_describe_hole, _MORE.sub("", example)), type=dict)
    except msgspec.DecodeError:
        return found[1], None
    if "properties" in tree:
        return found[1], read_schema(tree)
    if isinstance(tree.get("1"), dict):
        numbers = [number for number, _ in find_criteria(user, system)]
        tree = dict.fromkeys(numbers or tree, tree["1"])
    steps = [int(one) for one in _STEPS.findall(user)[-1:] for one in one.split(", ")]
    return found[1], read_schema(_as_schema(tree, steps))


def find_criteria(user: str, system: str) -> list[tuple[str, str]]:
    """The numbers and texts of a rubric's criteria. Its block is the first of the user's text."""
    tag = user.partition("<sample_criteria-")[2].partition(">")[0]
    return _NUMBERED.findall(fenced_text(user, "sample_criteria", tag) or system)


def fenced_text(text: str, name: str, tag: str) -> str:
    """The text between the fences with ``tag``; empty without them."""
    return text.partition(f"<{name}-{tag}>\n")[2].rpartition(f"\n</{name}-{tag}>")[0]


def _hole(**facts: Any) -> str:
    return msgspec.json.encode({"$hole": facts}).decode()


def _describe_hole(found: re.Match[str]) -> str:
    words = found[0]
    if words[0] == '"' and words[1] != "<":
        return _hole(enum=[one.strip('"') for one in words.split(" | ")])
    if words[0] == '"':
        return _hole(type="string")
    ends = sorted(map(float, _NUMBER.findall(words)))
    kind = "integer" if _WHOLE.search(words) else "number"
    if len(ends) != 2:
        return _hole(type=kind)
    if kind == "integer" and ends[1] - ends[0] < _MOST_POINTS:
        return _hole(enum=list(range(int(ends[0]), int(ends[1]) + 1)))
    return _hole(type=kind, minimum=ends[0], maximum=ends[1])


def _as_schema(tree: Any, steps: list[int]) -> dict[str, Any]:
    if isinstance(tree, list):
        items = _as_schema(tree[0], steps)
        items["properties"]["step"] = {"enum": steps}
        return {"type": "array", "items": items, "minItems": len(steps)}
    if (hole := tree.get("$hole")) is None:
        return {"type": "object", "properties": {k: _as_schema(v, steps) for k, v in tree.items()}}
    if hole.get("type") == "ranking":
        items = {"type": "integer", "minimum": 1}
        return {"type": "array", "items": items, "minItems": hole["n"]}
    facts: dict[str, Any] = hole
    return facts
