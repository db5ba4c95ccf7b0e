"""The reply form that a prompt states in words, for servers that honour no schema.

A judge of such a server is asked for a verdict in a block, with an example whose holes say what
goes there, or for one of a few words alone. Here both become what a request would have said: a
JSON Schema, or a list of choices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

_BLOCK = re.compile(r"<(verdict-[0-9a-f]{16})>\n(.+)\n</\1>\s*\Z")
_ONE_OF = re.compile(r"(?:Reply with one of|只回复) (.+?)(?: and nothing else| 中的一个)")
_HOLE = re.compile(r'"[^"<>]*"(?: \| "[^"<>]*")+|"<[^"]*>"|<[^<>"]*>')
_WHOLE = re.compile("integer|place|整数|名次|编号|of the turn")
_MOST_POINTS = 1000
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_RANKING = re.compile(r"\[<[^<>]*>, …, <[^<>\d]*(\d+)[^<>]*>\]")
_STEPS = re.compile(r"(?: in all\): |个）：)([\d, ]+)[.。]")
_MORE = re.compile(r", …(?: <[^<>]*>)?")


def find_stated_form(text: str) -> tuple[str, str] | None:
    """The block's name and the example in it that end a prompt."""
    found = _BLOCK.search(text)
    return (found[1], found[2]) if found else None


def find_stated_choices(text: str) -> list[str] | None:
    """The words of which the reply must be one."""
    found = _ONE_OF.findall(text)
    return re.split(r", | or |、| 或 ", found[-1]) if found else None


def read_form(example: str, text: str, criteria: Sequence[str]) -> dict[str, Any] | None:
    """The JSON Schema of an example, or ``None`` for one that is of no known kind.

    What the example leaves to "…" is in the prompt: the numbers of the steps in ``text``, and those
    of the ``criteria``.
    """
    example = _RANKING.sub(lambda found: _hole(type="ranking", n=int(found[1])), example)
    try:
        tree = msgspec.json.decode(_HOLE.sub(_describe_hole, _MORE.sub("", example)))
    except msgspec.DecodeError:
        return None
    if not isinstance(tree, dict):
        return None
    if "properties" in tree:
        return tree
    if "1" in tree and isinstance(tree["1"], dict):
        tree = dict.fromkeys(criteria or tree, tree["1"])
    steps = [int(one) for one in _STEPS.findall(text)[-1:] for one in one.split(", ")]
    return _as_schema(tree, steps)


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
