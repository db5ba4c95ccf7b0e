"""JSON objects and lists in a reply, as judges really write them, and the keys of a verdict.

Read are fenced and bare values, single and typographic quotation marks, trailing commas, comments,
Python's ``True`` and ``None``, names and single words without quotation marks. Everything else is
no value: nothing is guessed. The text is rewritten as JSON, token by token, for the decoder; a
budget of work that is linear in the text bounds what broken objects cost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from adjudge.verdicts.strict import (
    DUPLICATE_KEY,
    MAX_REPLY_DEPTH,
    MAX_REPLY_DIGITS,
    REPLY_DECODER,
    JsonPiece,
    iter_levels,
    read_single_object,
)

_WORK_PER_CHARACTER = 4
_WORK_TOO_DEEP = 4_000
_MOST_VALUES = 400
"""More objects and lists in one text are given up on."""


class JsonValues(NamedTuple):
    """What was found. ``unclosed``: the last never ends. ``given_up``: too many or too broken."""

    pieces: list[JsonPiece]
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


def find_json_values(text: str) -> JsonValues:
    """All outermost objects and lists in ``text``.

    Lists count only when they hold an object or begin the text or a line: prose is full of
    brackets. A key that stands twice with different values has :data:`DUPLICATE_KEY`.

    >>> find_json_values("Sure: {'score': 3,}.").pieces
    [JsonPiece(start=6, end=19, value={'score': 3})]
    """
    if (whole := read_single_object(text)) is not None:
        return JsonValues([whole])
    found: list[JsonPiece] = []
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
            found.append(JsonPiece(at, end, value))
            unclosed = False
            if len(found) > _MOST_VALUES:
                return JsonValues([], given_up=True)
        else:
            budget -= 16
        at = end
    return JsonValues(found, unclosed, budget <= 0)


def has_duplicate_keys(value: Any) -> bool:
    """Whether an object anywhere in ``value`` gives a key twice with different values."""
    return any(child is DUPLICATE_KEY for level in iter_levels(value) for child in level)


_OPENING = re.compile(
    r"\[|\{(?=\s{0,80}(?:[\"'“”‘’}#/]|[A-Za-z0-9_\u4e00-\u9fff][\w-]{0,60}\s{0,8}[:：]))"
)
# A list without an object: in prose it is none, and need not be read.
_PLAIN_ITEMS = r"[^\[\]{}\"'“”‘’#/]{0,200}"
_SIMPLE = re.compile(rf"\[(?:{_PLAIN_ITEMS}|\[{_PLAIN_ITEMS}\])\]")


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
                if len(open_) >= MAX_REPLY_DEPTH:
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
        return at, REPLY_DECODER.decode("".join(written))
    except (ValueError, RecursionError):
        raise _Broken(at) from None


def _rewritten(token: re.Match[str]) -> str:
    """A key or a value as JSON has it."""
    kind, content = token.lastgroup or "", token[token.lastgroup or 0]
    if kind == "number":
        if len(content) > MAX_REPLY_DIGITS:
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


WRAPPER_KEYS = frozenset({
    "verdict", "verdicts", "result", "results", "evaluation", "evaluations", "judgment",
    "judgments", "judgement", "judgements", "assessment", "output", "final", "finalverdict",
    "grading", "grades", "value", "label", "score", "scores", "rating", "choice", "marks",
    "criteria", "rubrics", "answers", "items", "评估", "结果", "评价", "裁决",
})  # fmt: skip
"""Names under which a judge puts its verdict; what "example" or "candidate" holds is another's."""
_DEEPEST = 4
_LONGEST_KEY = 100


@lru_cache(maxsize=1024)
def _normalize(key: str) -> str:
    return re.sub(r"[\s_*`:：-]+", "", key).casefold()


def normalize_key(key: str) -> str:
    """``key`` without what judges vary: case, spaces, ``_``, ``-`` and emphasis.

    >>> normalize_key("**Final Score**") == normalize_key("final_score")
    True
    """
    return _normalize(key) if len(key) <= _LONGEST_KEY else key


def find_under_keys(
    value: Any, keys: tuple[str, ...], depth: int = 0
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """``(value, object)`` for each of ``keys`` in an object; in its wrapper where it has none.

    A wrapper is the only entry of a list, or stands under one of :data:`WRAPPER_KEYS`. A key given
    twice with different values yields :data:`DUPLICATE_KEY`, which is no verdict.
    """
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        if len(value) == 1:
            yield from find_under_keys(value[0], keys, depth + 1)
        return
    if not isinstance(value, dict):
        return
    wanted = _normalized_keys(keys)
    direct = [(key, inner) for key, inner in value.items() if normalize_key(key) in wanted]
    for _, inner in direct:
        if isinstance(inner, dict):
            yield from _inner(inner, keys, depth)
        else:
            yield inner, without_duplicate_keys(value)
    if not direct:
        for key, inner in value.items():
            if normalize_key(key) in WRAPPER_KEYS:
                yield from find_under_keys(inner, keys, depth + 1)


def _inner(value: dict[str, Any], keys: tuple[str, ...], depth: int) -> Iterator[Any]:
    """``{"score": {"value": 3}}`` and the like; an object without a verdict is no verdict."""
    found = list(find_under_keys(value, (*keys, "value", "label"), depth + 1))
    yield from found or [(None, value)]


def without_duplicate_keys(value: Any) -> Any:
    """``value`` without the keys, at any depth, that are given twice with different values."""
    if isinstance(value, dict):
        return {
            k: without_duplicate_keys(inner)
            for k, inner in value.items()
            if inner is not DUPLICATE_KEY
        }
    return [without_duplicate_keys(item) for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=256)
def _normalized_keys(keys: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(normalize_key, keys))


@lru_cache(maxsize=256)
def tag_pattern(names: str) -> re.Pattern[str]:
    """``<name …>content</name>`` for names parted by ``|``; group 2 is the content."""
    named = "|".join(re.escape(name) for name in names.split("|"))
    return re.compile(
        rf"<\s?({named})(?:\s[^<>\n]{{0,60}})?>\s{{0,20}}([^<>]{{0,80}}?)\s{{0,20}}<\s?/\s?(?:\1)\s?>",
        re.IGNORECASE,
    )
