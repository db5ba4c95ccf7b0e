"""The checks of IFEval's instructions: keywords, counts, layout, language; readers of arguments.

Every check takes the response and the instruction's arguments and says whether the response
follows. Time is linear in the length of the response (times the number of keywords); where a
pattern would not be, the lines are walked instead. A text in which no language can be seen at all
(no letters, addresses only) follows, as it does in the reference.

A reader returns the value of a keyword argument as checks take it, and raises ``ValueError`` with
what it wants; :mod:`~adjudge.graders.instructions.grader` adds the instruction and the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile
from numbers import Integral
from typing import Any

from adjudge.graders.instructions.text_analysis import (
    LANGUAGES,
    capital_words,
    detect_language,
    sentence_count,
)

ArgumentReader = Callable[[Any], Any]

MAX_WORD = 200
"""Longest keyword in characters: a search costs up to that much per character of a response."""

_MAX_WORDS = 1000
_RELATIONS = ("less than", "at least")


def read_whole_number(value: Any) -> int:
    """A whole number; tables store them as floats where a column has gaps."""
    fits = isinstance(value, int | Integral) and not isinstance(value, bool)
    if fits or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise ValueError("a whole number")


def read_count(value: Any) -> int:
    """A whole number that is not negative."""
    number = read_whole_number(value)
    if number < 0:
        raise ValueError("a whole number from 0")
    return number


def read_position(value: Any) -> int:
    """A whole number from 1."""
    number = read_whole_number(value)
    if number < 1:
        raise ValueError("a whole number from 1")
    return number


def read_text(value: Any) -> str:
    """Text with something in it, without the white space around it."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("text that is not blank")
    return value.strip()


def read_lowercase(value: Any) -> str:
    """Text in lower case."""
    return read_text(value).lower()


def read_word(value: Any) -> str:
    """Text of at most :data:`MAX_WORD` characters."""
    found = read_text(value)
    if len(found) > MAX_WORD:
        raise ValueError(f"text of at most {MAX_WORD} characters")
    return found


def read_word_list(value: Any) -> tuple[str, ...]:
    """A list of at least one word, kept as written (white space included)."""
    wanted = f"a list of 1 to {_MAX_WORDS} texts of at most {MAX_WORD} characters"
    if not isinstance(value, list | tuple) or not 0 < len(value) <= _MAX_WORDS:
        raise ValueError(wanted)
    for item in value:
        if not isinstance(item, str) or not item or len(item) > MAX_WORD:
            raise ValueError(wanted)
    return tuple(value)


def read_character(value: Any) -> str:
    """One character, in lower case."""
    if not isinstance(value, str) or len(value) != 1:
        raise ValueError("one character")
    return value.lower()


def read_relation(value: Any) -> bool:
    """``at least`` as true, ``less than`` as false."""
    if not isinstance(value, str) or value not in _RELATIONS:
        raise ValueError(" or ".join(map(repr, _RELATIONS)))
    return bool(value == "at least")


def read_language(value: Any) -> str:
    """A code that the language detection can answer."""
    if not isinstance(value, str) or value not in LANGUAGES:
        raise ValueError(f"one of {', '.join(sorted(LANGUAGES))}")
    return value


ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
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
    parts = filled_parts(response.split("***"))
    return parts is not None and len(parts) == number


def filled_parts(parts: list[str]) -> list[str] | None:
    """The parts that are not blank; ``None`` where one between others is."""
    found = [part.strip() for part in parts]
    return list(filter(None, found)) if all(found[1:-1]) else None


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
    """The response has the marker of a postscript, in any case."""
    lowered = response.lower()
    pattern = _POSTSCRIPTS.get(marker)
    return bool(pattern.search(lowered)) if pattern else marker.lower() in lowered


def constrained_response(response: str) -> bool:
    """The response has one of the three answers that the benchmark allows."""
    return any(answer in response for answer in ANSWERS)


def json_format(response: str) -> bool:
    """JSON, with or without a code fence around it.

    Python's reading of it: ``NaN`` counts, nesting beyond the interpreter's limit does not.
    """
    try:
        json.loads(unfenced(response))
    except (ValueError, RecursionError):
        return False
    return True


def unfenced(response: str) -> str:
    """The content of a code fence of JSON, or all."""
    text = response.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    return text.removesuffix("```").strip()


def two_responses(response: str) -> bool:
    """Two different texts with ``******`` between them."""
    parts = filled_parts(response.split("******")) or []
    return len(parts) == 2 and parts[0] != parts[1]


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


_WORD = re.compile(r"\w+")
_ASCII_GAPS = {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) == "_")}


def keyword_existence(response: str, keywords: tuple[str, ...]) -> bool:
    """The response has each keyword, in any case, also inside a word."""
    if not response.isascii():
        return all(_anywhere(keyword).search(response) for keyword in keywords)
    lowered = response.lower()
    return all(keyword.lower() in lowered for keyword in keywords)


def keyword_frequency(response: str, keyword: str, frequency: int, relation: bool) -> bool:
    """How often the keyword occurs, in any case, also inside words."""
    if response.isascii():
        found = response.lower().count(keyword.lower())
    else:
        found = sum(1 for _ in _anywhere(keyword).finditer(response))
    return holds(found, frequency, relation)


def forbidden_words(response: str, words: tuple[str, ...]) -> bool:
    """None of the words occurs as a word of its own, in any case."""
    if response.isascii():
        lowered = response.lower()
        words = tuple(word for word in words if word.lower() in lowered)
    return not any(_as_word(word).search(response) for word in words)


def letter_frequency(response: str, letter: str, frequency: int, relation: bool) -> bool:
    """How often a character occurs, in any case."""
    return holds(response.lower().count(letter), frequency, relation)


def number_words(response: str, number: int, relation: bool) -> bool:
    """How many runs of letters, digits and underscores there are."""
    if response.isascii():  # the same, five times as fast
        found = len(response.translate(_ASCII_GAPS).split())
    else:
        found = len(_WORD.findall(response))
    return holds(found, number, relation)


def number_sentences(response: str, number: int, relation: bool) -> bool:
    """How many sentences there are (:func:`~.sentences.sentence_count`)."""
    return holds(sentence_count(response), number, relation)


def capital_word_frequency(response: str, frequency: int, relation: bool) -> bool:
    """How many words are in capitals (:func:`~.capitals.capital_words`)."""
    return holds(capital_words(response), frequency, relation)


def holds(found: int, threshold: int, at_least: bool) -> bool:
    """Whether there are at least so many, or fewer."""
    return (found >= threshold) is at_least


@lru_cache(maxsize=4096)
def _anywhere(keyword: str) -> re.Pattern[str]:
    return re.compile(re.escape(keyword), re.IGNORECASE)


@lru_cache(maxsize=4096)
def _as_word(word: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)


def response_language(response: str, language: str) -> bool:
    """The whole response is in that language."""
    return detect_language(response) in (language, None)


def english_capital(response: str) -> bool:
    """English without a small letter, and with a capital."""
    return response.isupper() and detect_language(response) in ("en", None)


def english_lowercase(response: str) -> bool:
    """English without a capital, and with a small letter."""
    return response.islower() and detect_language(response) in ("en", None)
