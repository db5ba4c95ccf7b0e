r"""Where the answer stands in a response: the last ``<answer>`` or ``\boxed{}``, else a candidate.

Pure functions in linear time: no pattern here can backtrack over more than it has just matched.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = [
    "CANDIDATE_CHARS",
    "SEARCHED_CHARS",
    "Marked",
    "last_json",
    "last_marked",
    "last_math",
    "plain",
]

SEARCHED_CHARS = 200_000
"""A final answer stands at the end: markers are looked for in this many characters before it,"""

CANDIDATE_CHARS = 20_000
"""and an answer without a marker in this many."""

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE | re.ASCII)
_TEX = re.compile(r"(\\(?:boxed|fbox)\s*+\{)|\\.|([{}])", re.DOTALL)
_JOINED_BOXES = re.compile(r"[\s$]*+(?:[,;/]|(?:\\text\{\s?)?(?:or|and)\b\s?\}?)[\s$]*+")
_MATH = re.compile(r"\$\$?|\\[\[\]()]|\\.", re.DOTALL)
_JSON = re.compile(r'"(?:[^"\\\n]|\\.)*+"|\\.|([\[\]{}])', re.DOTALL)
_WRAPPED = re.compile(
    r"(?:\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\*\*(.*)\*\*|`(.*)`"
    r"|\\(?:text|textbf|mathrm|mathbf|textit|mbox|boxed|fbox)\s*\{(.*)\}|\{(.*)\})",
    re.DOTALL,
)
_MAX_WRAPPERS = 5
_MATH_CLOSE = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}


class Marked(NamedTuple):
    """A stretch of a response: its text and where it begins."""

    start: int
    text: str


def last_marked(text: str) -> str | None:
    r"""What the last ``<answer>…</answer>`` or ``\boxed{…}`` holds, whichever begins later.

    ``None`` without a closed marker. Tag names are read in any case; braces of a box balance, and
    ``\fbox`` counts as a box.

    >>> last_marked(r"<answer>1</answer> or rather <answer>so \boxed{\frac{3}{4}}</answer>")
    '\\frac{3}{4}'
    """
    found = [mark for mark in (_last_tag(text), _last_box(text)) if mark is not None]
    return max(found).text.strip() if found else None


def _last_tag(text: str) -> Marked | None:
    best, opened = None, -1
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened >= 0:
            best, opened = Marked(opened, text[opened : tag.start()]), -1
    return best


def _last_box(text: str) -> Marked | None:
    r"""The box that begins last among those that close; boxes left open do not hide others.

    Boxes that are joined ("\boxed{5} or \boxed{6}") are one answer, from the first to the last.
    """
    first = min((at for at in (text.find(r"\boxed"), text.find(r"\fbox")) if at >= 0), default=-1)
    if first < 0:
        return None
    opened: list[tuple[int, int]] = []  # where a group and its content begin; 0 for no box
    begun = start = end = 0
    joined = -1  # where the first of the boxes joined to the last one begins
    for token in _TEX.finditer(text, first):
        if token[1]:
            opened.append((token.start(), token.end()))
        elif token[2] == "{":
            opened.append((0, 0))
        elif token[2] and opened and (group := opened.pop())[1] > start:
            together = end and _JOINED_BOXES.fullmatch(text, end + 1, group[0])
            joined = (begun if joined < 0 else joined) if together else -1
            (begun, start), end = group, token.start()
    if joined >= 0:
        return Marked(start, text[joined : end + 1])
    return Marked(start, text[start:end]) if start else None


def last_math(text: str) -> Marked | None:
    r"""The last formula between ``$ $``, ``$$ $$``, ``\( \)`` or ``\[ \]``; ``None`` without one.

    >>> last_math(r"from \(x = 2\) follows $x^2 = 4$.")
    Marked(start=24, text='x^2 = 4')
    """
    best, closing, start = None, None, 0
    for token in _MATH.finditer(text):
        if closing is None:
            closing, start = _MATH_CLOSE.get(token[0]), token.end()
        elif token[0] == closing:
            content = text[start : token.start()].strip()
            best = Marked(start, content) if content else best
            closing = None
    return best


def last_json(text: str) -> str | None:
    """The last balanced ``{…}`` or ``[…]`` that lies in no other; ``None`` without one.

    >>> last_json('first {"a": 1}, then {"b": ["}"]} it is')
    '{"b": ["}"]}'
    """
    opened: list[tuple[str, int]] = []
    best = None
    for token in _JSON.finditer(text):
        bracket = token[1]
        if not bracket:
            continue
        if bracket in "[{":
            opened.append(("]" if bracket == "[" else "}", token.start()))
        elif opened and opened[-1][0] == bracket:
            best = (opened.pop()[1], token.end())
    return text[best[0] : best[1]] if best else None


def plain(text: str) -> str:
    r"""``text`` without the wrappers that enclose all of it: ``$…$``, ``\text{…}``, ``**…**``, ….

    >>> plain(r"$\text{(B)}$ ")
    '(B)'
    """
    text = text.strip()
    for _ in range(_MAX_WRAPPERS):
        match = _WRAPPED.fullmatch(text)
        inner = next((group for group in match.groups() if group is not None), "") if match else ""
        if not match or not _balanced(inner):
            break
        text = inner.strip()
    return text


def _balanced(inner: str) -> bool:
    """False when a wrapper's ends belong to two different groups, as in ``{a} and {b}``."""
    if "$" in inner.replace(r"\$", "") or "**" in inner or "`" in inner:
        return False
    depth = 0
    for token in _TEX.finditer(inner):
        if token[1] or token[2] == "{":
            depth += 1
        elif token[2]:
            depth -= 1
            if depth < 0:
                return False
    return depth == 0
