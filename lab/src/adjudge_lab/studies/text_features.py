"""What an answer looks like, whatever it says: counts of its length and its format."""

from __future__ import annotations

from typing import NamedTuple

_BULLETS = ("- ", "* ", "+ ", "• ")
_DIGITS = "0123456789"
_MOST_DIGITS = 3


class TextFeatures(NamedTuple):
    """Counts of one answer.

    ``length``: characters. ``markdown``: headings, table rows and pairs of bold marks. ``lists``:
    lines that are items of a list. ``code``: pairs of fences and of single backticks.
    """

    length: int
    markdown: int
    lists: int
    code: int


def compute_features(text: str) -> TextFeatures:
    r"""The counts of ``text``; linear in its length.

    >>> compute_features("# Plan\n- **one**\n2. `two`")
    TextFeatures(length=25, markdown=2, lists=2, code=1)
    """
    headings = items = 0
    for line in text.splitlines():
        begin = line.lstrip()
        headings += begin.startswith("|") or begin.lstrip("#")[:1] == " " != begin[:1]
        items += begin.startswith(_BULLETS) or _is_numbered(begin)
    fences = text.count("```") // 2
    ticks = (text.count("`") - 3 * text.count("```")) // 2
    return TextFeatures(len(text), headings + text.count("**") // 2, items, fences + ticks)


def _is_numbered(line: str) -> bool:
    """Whether a line begins with a number of up to three digits, a dot or bracket, a space."""
    rest = line[: _MOST_DIGITS + 2].lstrip(_DIGITS)
    return line[:1] in _DIGITS and line[:1] != "" and rest[:2] in (". ", ") ")
