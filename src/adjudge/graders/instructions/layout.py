"""The form of a response: paragraphs, sections, lists, marks, its beginning and its end.

Every check takes the response and the instruction's arguments and says whether the response
follows. Time is linear in the length of the response; where a pattern would not be, the lines are
walked instead.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import takewhile

__all__ = [
    "bullet_lists",
    "constrained_response",
    "end_phrase",
    "highlighted_sections",
    "json_format",
    "no_comma",
    "nth_paragraph_first_word",
    "number_paragraphs",
    "placeholders",
    "postscript",
    "quotation",
    "repeat_prompt",
    "sections",
    "title",
    "two_responses",
]

_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_WORD_ENDS = ".,?!'\""
_FENCES = ("```json", "```Json", "```JSON", "```")

# The white space before a bullet may span lines, but only the bullet's own line decides.
_STAR_BULLET = re.compile(r"^[^\S\n]*\*[^*].*", re.MULTILINE)
_DASH_BULLET = re.compile(r"^[^\S\n]*-.*", re.MULTILINE)
# A bracket without its partner takes the rest of its line along, so none is read twice.
_PLACEHOLDER = re.compile(r"\[[^\]\n]*(\]?)")
_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_DOUBLE_HIGHLIGHT = re.compile(r"\*\*[^\n*]*\*\*")
_POSTSCRIPTS = {
    "P.P.S": re.compile(r"p\.\s?p\.\s?s"),
    "P.S.": re.compile(r"p\.\s?s\."),
}


def number_paragraphs(response: str, number: int) -> bool:
    """So many paragraphs between dividers ``***``, none of them blank but before and behind."""
    first, *inner = response.split("***")
    last = inner.pop() if inner else None
    if not all(map(str.strip, inner)):
        return False
    edges = bool(first.strip()) + bool(last and last.strip())
    return len(inner) + edges == number


def nth_paragraph_first_word(
    response: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    """So many paragraphs between blank lines, and the n-th begins with that word.

    Blank paragraphs are not counted but keep their place.
    """
    paragraphs = response.split("\n\n")
    filled = sum(1 for paragraph in paragraphs if paragraph.strip())
    if filled != num_paragraphs or nth_paragraph > filled:
        return False
    words = paragraphs[nth_paragraph - 1].split(None, 1)
    if not words:
        return False
    letters = takewhile(lambda sign: sign not in _WORD_ENDS, words[0].lstrip("'").lstrip('"'))
    return "".join(map(str.lower, letters)) == first_word


def sections(response: str, splitter: str, number: int) -> bool:
    """At least so many marks such as "Section 1"."""
    marks = _section(splitter).finditer(response)
    return sum(1 for _ in marks) >= number


def bullet_lists(response: str, number: int) -> bool:
    """Exactly so many lines that begin with ``*`` (and not with two) or with ``-``."""
    stars = sum(1 for _ in _STAR_BULLET.finditer(response)) if "*" in response else 0
    dashes = sum(1 for _ in _DASH_BULLET.finditer(response)) if "-" in response else 0
    return stars + dashes == number


def highlighted_sections(response: str, number: int) -> bool:
    """At least so many ``*texts*`` or ``**texts**`` within a line."""
    singles = _HIGHLIGHT.findall(response)
    doubles = _DOUBLE_HIGHLIGHT.findall(response)
    found = sum(1 for mark in singles if mark[1:-1].strip())
    return found + sum(1 for mark in doubles if mark[2:-2].strip()) >= number


def placeholders(response: str, number: int) -> bool:
    """At least so many ``[texts]`` within a line."""
    return _PLACEHOLDER.findall(response).count("]") >= number


def title(response: str) -> bool:
    """A line with ``<<text>>``."""
    if "<<" not in response:
        return False
    return any(_has_title(line) for line in response.split("\n"))


def _has_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    inside = line[start : end + 2].lstrip("<").rstrip(">").strip()
    return 0 <= start < end - 2 and bool(inside)


def postscript(response: str, marker: str) -> bool:
    """The marker of a postscript stands somewhere, in any case."""
    lowered = response.lower()
    pattern = _POSTSCRIPTS.get(marker)
    return bool(pattern.search(lowered)) if pattern else marker.lower() in lowered


def constrained_response(response: str) -> bool:
    """One of the three answers that the benchmark allows stands somewhere."""
    return any(answer in response for answer in _ANSWERS)


def json_format(response: str) -> bool:
    """JSON, with or without a code fence around it.

    Python's reading of it: ``NaN`` counts, nesting beyond the interpreter's limit does not.
    """
    text = response.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def two_responses(response: str) -> bool:
    """Two different texts with ``******`` between them."""
    first, *inner = response.split("******")
    last = inner.pop() if inner else ""
    found = [part.strip() for part in (first, *inner, last)]
    if not all(found[1:-1]):
        return False
    filled = [part for part in found if part]
    return len(filled) == 2 and filled[0] != filled[1]


def repeat_prompt(response: str, prompt: str) -> bool:
    """The request comes first, word for word but for case."""
    return response.strip().lower().startswith(prompt.lower())


def end_phrase(response: str, phrase: str) -> bool:
    """The phrase comes last, but for case and closing quotation marks."""
    return response.strip().strip('"').lower().endswith(phrase.lower())


def quotation(response: str) -> bool:
    """Double quotation marks around everything."""
    text = response.strip()
    return len(text) > 1 and text.startswith('"') and text.endswith('"')


def no_comma(response: str) -> bool:
    """No comma anywhere."""
    return "," not in response


@lru_cache(maxsize=1024)
def _section(splitter: str) -> re.Pattern[str]:
    return re.compile(rf"\s?{re.escape(splitter)}\s?\d+\s?")
