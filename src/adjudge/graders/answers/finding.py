r"""The answer in a response: its text and its place.

The last ``<answer>`` or ``\boxed{}``, or a last line ``#### 42``; without them, for maths, the
formula or the bold text that a response ends on. All functions are pure and take linear time: no
pattern can backtrack over more than it has just matched.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE | re.ASCII)
_HASHES = re.compile(r"\s*####\s*([-+]?\$?[\d.,]*\d%?)\.?", re.ASCII)
_TEX = re.compile(r"(\\(?:boxed|fbox)\s*+\{)|\\.|([{}])", re.DOTALL)
_JOINED_BOXES = re.compile(r"[\s$]*+(?:[,;/]|(?:\\text\{\s?)?(?:or|and)\b\s?\}?)[\s$]*+")
_MATH = re.compile(r"\$\$?|\\[\[\]()]|\\.", re.DOTALL)
_WRAPPED = re.compile(
    r"(?:\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\*\*(.*)\*\*|`(.*)`"
    r"|\\(?:text|textbf|mathrm|mathbf|textit|mbox|boxed|fbox)\s*\{(.*)\}|\{(.*)\})",
    re.DOTALL,
)
_MAX_WRAPPERS = 5
_END_TOKEN = re.compile(r"(?:<\|[\w ]{1,30}\|>|<｜[^<>｜]{1,30}｜>|</s>|<eos>|<end_of_turn>)\Z")
_MATH_CLOSE = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}


class MarkedText(NamedTuple):
    """A stretch of a response: its text and where it begins."""

    start: int
    text: str


def find_last_marked(text: str, *, hashes: bool = False) -> str | None:
    r"""What the last ``<answer>…</answer>`` or ``\boxed{…}`` holds, whichever begins later.

    With ``hashes`` a last line ``#### 42`` marks its number, too, as in GSM8K. ``None`` without a
    closed marker. Tag names are read in any case; braces of a box balance, and ``\fbox`` counts as
    a box.

    >>> find_last_marked(r"<answer>1</answer> or rather <answer>so \boxed{\frac{3}{4}}</answer>")
    '\\frac{3}{4}'
    >>> find_last_marked("6 * 7 = 42\n#### 42", hashes=True)
    '42'
    """
    mark = find_last_mark(text, hashes)
    return mark and mark.text.strip()


def find_last_mark(text: str, hashes: bool) -> MarkedText | None:
    """As :func:`find_last_marked`, with the place."""
    marks = (_last_tag(text), _last_box(text), _last_hashes(text) if hashes else None)
    return max((mark for mark in marks if mark is not None), default=None)


def _last_hashes(text: str) -> MarkedText | None:
    line = text.rstrip().rpartition("\n")[2]
    hashes = _HASHES.fullmatch(line)
    return None if hashes is None else MarkedText(len(text.rstrip()) - len(line), hashes[1])


def _last_tag(text: str) -> MarkedText | None:
    best, opened = None, -1
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened >= 0:
            best, opened = MarkedText(opened, text[opened : tag.start()]), -1
    return best and _last_begun(text, best, opened)


def _last_begun(text: str, closed: MarkedText, begun: int) -> MarkedText:
    """The mark that is closed last, or an empty one where another answer is cut off behind it."""
    rest = text[begun:].strip(" \n.$}") if begun > closed.start else ""
    return closed if rest in ("", closed.text.strip()) else MarkedText(begun, "")


def _last_box(text: str) -> MarkedText | None:
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
    if not start:
        return None
    cut = max((content for _, content in opened), default=0)
    last = MarkedText(start, text[joined : end + 1] if joined >= 0 else text[start:end])
    return _last_begun(text, last, cut)


def without_end_tokens(text: str) -> str:
    """``text`` without the special tokens that end a reply.

    >>> without_end_tokens("It is 73.<|im_end|></s>")
    'It is 73.'
    """
    text = text.rstrip()
    while (token := _END_TOKEN.search(text, max(0, len(text) - 40))) is not None:
        text = text[: token.start()].rstrip()
    return text


def find_last_math(text: str) -> MarkedText | None:
    r"""The last formula between ``$ $``, ``$$ $$``, ``\( \)`` or ``\[ \]``; ``None`` without one.

    >>> find_last_math(r"from \(x = 2\) follows $x^2 = 4$.")
    MarkedText(start=24, text='x^2 = 4')
    """
    best, closing, start = None, None, 0
    for token in _MATH.finditer(text):
        if closing is None:
            closing, start = _MATH_CLOSE.get(token[0]), token.end()
        elif token[0] == closing:
            content = text[start : token.start()].strip()
            best = MarkedText(start, content) if content else best
            closing = None
    return best


def strip_wrappers(text: str) -> str:
    r"""``text`` without the wrappers that enclose all of it: ``$…$``, ``\text{…}``, ``**…**``, ….

    >>> strip_wrappers(r"$\text{(B)}$ ")
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
