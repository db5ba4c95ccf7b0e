"""JSON objects and lists in a reply, as judges really write them.

Read are fenced and bare values, single and typographic quotation marks, trailing commas, comments,
Python's ``True`` and ``None``, names and single words without quotation marks. Everything else is
no value: nothing is guessed. The text is rewritten as JSON, token by token, for the decoder; a
budget of work that is linear in the text bounds what broken objects cost.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

__all__ = ["CLASH", "MAX_DEPTH", "Piece", "Values", "clashes", "find_values", "whole_object"]

MAX_DEPTH = 48
"""Deepest nesting that is read."""

_WORK_PER_CHARACTER = 4
_WORK_TOO_DEEP = 4_000
_MOST_DIGITS = 300
_MOST_VALUES = 400
"""More objects and lists in one text are given up on."""


class _Clash:
    """Stands for the values of a key that an object gives twice with different values."""

    def __repr__(self) -> str:
        return "CLASH"


CLASH: Any = _Clash()


class Piece(NamedTuple):
    """A JSON value in a text: ``text[start:end]``."""

    start: int
    end: int
    value: Any


class Values(NamedTuple):
    """What was found. ``unclosed``: the last never ends. ``given_up``: too many or too broken."""

    pieces: list[Piece]
    unclosed: bool = False
    given_up: bool = False


class _Broken(Exception):
    """No value here. ``at``: up to where it was one; ``at_end``: the text ended inside it."""

    def __init__(self, at: int, *, at_end: bool = False, too_deep: bool = False) -> None:
        super().__init__()
        self.at = at
        self.at_end = at_end
        self.too_deep = too_deep


_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|\#[^\n]*|/\*[^*]{0,400}\*/)
    |(?P<sign>[{}\[\]:：,，])
    |(?:"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"
       |'(?P<single>[^'\\]*(?:(?:\\.|(?<=\w)'(?=\w))[^'\\]*)*)'
       |[“”](?P<curly>[^“”"\\]*(?:\\.[^“”"\\]*)*)[”"]
       |[‘’](?P<curl>[^‘’\\]*(?:\\.[^‘’\\]*)*)’)
    |(?P<key>(?:[0-9]{1,6}|[A-Za-z_\u4e00-\u9fff][\w-]{0,60})(?=\s{0,8}[:：]))
    |(?P<number>[-+]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][-+]?[0-9]{1,6})?)
       (?=[\s,\]}，\#]|//|/\*|\Z)
    # One to three words, or a number with a unit or a denominator ("3/5").
    |(?P<words>[\w./+-]{1,40}(?:\ [\w./+-]{1,40}){0,2})(?=\s{0,8}(?:[,\]}，\n\#]|//))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\n", "b": " ", "f": " "}
_LITERALS = {
    "true": "true", "false": "false", "null": "null", "none": "null",
    "nan": "NaN", "infinity": "Infinity", "inf": "Infinity", "-infinity": "-Infinity",
    "-inf": "-Infinity",
}  # fmt: skip
_WIDE_SIGNS = {"：": ":", "，": ","}


def find_values(text: str) -> Values:
    """All outermost objects and lists in ``text``.

    Lists count only when they hold an object or begin the text or a line: prose is full of
    brackets. A key that stands twice with different values has :data:`CLASH`.

    >>> find_values("Sure: {'score': 3,}.").pieces
    [Piece(start=6, end=19, value={'score': 3})]
    """
    if (whole := whole_object(text)) is not None:
        return Values([whole])
    found: list[Piece] = []
    budget = _WORK_PER_CHARACTER * len(text) + 10_000
    unclosed = False
    at = 0
    while budget > 0 and (opening := _OPENING.search(text, at)) is not None:
        at = opening.start()
        if (simple := _SIMPLE.match(text, at)) is not None and not _begins(text, at):
            at = simple.end()
            continue
        try:
            end, value = _read(text, at)
        except _Broken as broken:
            # Reaching the end is one quick scan; all other work is counted as what it is.
            budget -= (broken.at - at) // (16 if broken.at_end else 1) + 32
            budget -= _WORK_TOO_DEEP * broken.too_deep
            unclosed = unclosed or (broken.at_end and text[at] == "{")
            at = max(at + 1, broken.at if broken.too_deep else 0)
            continue
        if isinstance(value, dict) or _listing(text, at, value):
            found.append(Piece(at, end, value))
            unclosed = False
            if len(found) > _MOST_VALUES:
                return Values([], given_up=True)
        else:
            budget -= 16
        at = end
    return Values(found, unclosed, budget <= 0)


def clashes(value: Any) -> bool:
    """Whether an object anywhere in ``value`` gives a key twice with different values."""
    return any(child is CLASH for level in _levels(value) for child in level)


def _levels(value: Any) -> Iterator[list[Any]]:
    """What stands in ``value`` at each depth, without recursion."""
    level = [value]
    while level:
        yield level
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]


_OPENING = re.compile(
    r"\[|\{(?=\s{0,80}(?:[\"'“”‘’}#/]|[A-Za-z0-9_\u4e00-\u9fff][\w-]{0,60}\s{0,8}[:：]))"
)
# A list without an object: in prose it is none, and need not be read.
_PLAIN_ITEMS = r"[^\[\]{}\"'“”‘’#/]{0,200}"
_SIMPLE = re.compile(rf"\[(?:{_PLAIN_ITEMS}|\[{_PLAIN_ITEMS}\])\]")
_FENCE = re.compile(r"```[A-Za-z0-9]{0,12}\s")


def whole_object(text: str, *, unique: bool = False) -> Piece | None:
    """The usual reply, one JSON object and nothing else, at the speed of the C decoder.

    With ``unique`` an object that has a key twice is none.
    """
    start = len(text) - len(text.lstrip())
    end = len(text.rstrip())
    if (fence := _FENCE.match(text, start)) is not None and text.endswith("```", 0, end):
        inner = text[fence.end() : end - 3]
        start = fence.end() + len(inner) - len(inner.lstrip())
        end = fence.end() + len(inner.rstrip())
    if not text.startswith("{", start) or text[end - 1] != "}":
        return None
    try:
        value = (_UNIQUE if unique else _DECODER).decode(text[start:end])
    except (ValueError, RecursionError):
        return None
    if text.count("{") + text.count("[") > MAX_DEPTH and _deep(value):
        return None
    return Piece(start, end, value if "\\u" not in text else _with_characters(value))


def _deep(value: Any) -> bool:
    """Whether ``value`` is nested deeper than :data:`MAX_DEPTH`."""
    deepest = next(islice(_levels(value), MAX_DEPTH, None), [])
    return any(isinstance(node, dict | list) for node in deepest)


_HALF = re.compile("[\ud800-\udfff]")


def _with_characters(value: Any) -> Any:
    """``value``, at most :data:`MAX_DEPTH` deep, with U+FFFD for halves of surrogate pairs."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_with_characters(item) for item in value]
    if not isinstance(value, dict):
        return value
    return _pairs([(_HALF.sub("\ufffd", key), _with_characters(v)) for key, v in value.items()])


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else math.inf


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    made = {}
    for key, value in pairs:
        _put(made, key, value)
    return made


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key twice")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_integer, strict=False)
_UNIQUE = json.JSONDecoder(object_pairs_hook=_unique_pairs, parse_int=_integer, strict=False)


def _put(target: dict[str, Any], key: str, value: Any) -> None:
    if key in target and not _same(target[key], value):
        target[key] = CLASH
    else:
        target[key] = value


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _listing(text: str, at: int, value: Any) -> bool:
    """Whether a list found in prose is meant as one."""
    if any(isinstance(item, dict) for item in value):
        return True
    return _begins(text, at)


def _begins(text: str, at: int) -> bool:
    """Whether the text, a line or what a colon announces begins at ``at``."""
    before = text[max(0, at - 12) : at].rstrip(" \t")
    return not before or before[-1] in "\n:：=`" or before.lower().endswith("json")


def _read(text: str, at: int) -> tuple[int, Any]:
    """``(end, value)`` of the object or list at ``at``; raises ``_Broken``."""
    written: list[str] = []
    open_: list[str] = []
    while not written or open_:
        token = _TOKEN.match(text, at)
        if token is None:
            in_string = text[at : at + 1] in "\"'“”‘’"  # also where the text ends
            cut = in_string or (len(text) - at < 64 and text[at:].isalnum())
            raise _Broken(len(text) if in_string else at, at_end=cut)
        if token.lastgroup == "sign":
            sign = _WIDE_SIGNS.get(token[0], token[0])
            if sign in "{[":
                if len(open_) >= MAX_DEPTH:
                    raise _Broken(at, too_deep=True)
                open_.append("}" if sign == "{" else "]")
            elif sign in "}]":
                if open_.pop() != sign:
                    raise _Broken(at)
                if written[-1] == ",":
                    written.pop()
            written.append(sign)
        elif token.lastgroup != "space":
            written.append(_rewritten(token))
        at = token.end()
    try:
        return at, _DECODER.decode("".join(written))
    except (ValueError, RecursionError):
        raise _Broken(at) from None


def _rewritten(token: re.Match[str]) -> str:
    """A key or a value as JSON has it."""
    kind, content = token.lastgroup or "", token[token.lastgroup or 0]
    if kind == "number":
        if len(content) > _MOST_DIGITS:
            return "Infinity"
        return json.dumps(int(content) if content.lstrip("+-").isdigit() else float(content))
    if kind == "words" and content.lower().lstrip("+") in _LITERALS:
        return _LITERALS[content.lower().lstrip("+")]
    return json.dumps(_ESCAPE.sub(_unescape, content) if "\\" in content else content)


def _unescape(escape: re.Match[str]) -> str:
    sign = escape[1]
    if len(sign) == 5:
        character = chr(int(sign[1:], 16))
        return "\ufffd" if "\ud800" <= character <= "\udfff" else character
    return _ESCAPED.get(sign, sign)
