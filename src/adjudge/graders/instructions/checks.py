"""The checks of IFEval's instructions: keywords, counts, layout, language; their arguments.

Every check takes the response and the instruction's arguments and says whether the response
follows. Time is linear in the length of the response (times the number of keywords); where a
pattern would not be, the lines are walked instead. A text in which no language can be seen at all
(no letters, addresses only) follows, as it does in the reference.

Arguments are read by their types, as :data:`ARGUMENTS` has them.

The published checks see too much, which training finds, or too little. Those that are repaired
follow, by their names with an underscore; ``results/ifeval.md`` has the differences. They take the
text that :func:`plain_text` makes of a response.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from itertools import takewhile
from numbers import Integral
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, TypeAdapter

from adjudge.graders.instructions.text_analysis import (
    LANGUAGES,
    capital_words,
    detect_language,
    sentence_count,
)
from adjudge.text import SPACELESS, compose_letters, split_words

MAX_WORD = 200
"""Longest keyword in characters: a search costs up to that much per character of a response."""


def _read_whole_number(value: Any) -> Any:
    """A whole number; tables store them as floats where a column has gaps."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    whole |= isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


_Number = Annotated[int, Field(strict=True), BeforeValidator(_read_whole_number)]
_Count = Annotated[_Number, Field(ge=0)]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Word = Annotated[_Text, Field(max_length=MAX_WORD)]
_Words = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=MAX_WORD)], ...],
    Field(min_length=1, max_length=1000),
]
_Relation = Annotated[Literal["less than", "at least"], AfterValidator("at least".__eq__)]
_Lower = StringConstraints(to_lower=True)

_COUNTS = (
    *("frequency", "let_frequency", "num_words", "num_sentences", "num_paragraphs", "num_sections"),
    *("num_placeholders", "num_bullets", "num_highlights"),
)
ARGUMENTS: Mapping[str, Any] = {
    **dict.fromkeys(_COUNTS, _Count),
    **dict.fromkeys(("relation", "let_relation", "capital_relation"), _Relation),
    **dict.fromkeys(("keyword", "postscript_marker", "section_spliter"), _Word),
    **dict.fromkeys(("keywords", "forbidden_words"), _Words),
    **dict.fromkeys(("prompt_to_repeat", "end_phrase"), _Text),
    "capital_frequency": _Number,
    "first_word": Annotated[_Text, _Lower],
    "language": Literal[tuple(sorted(LANGUAGES))],
    "letter": Annotated[str, Field(min_length=1, max_length=1), _Lower],
    "nth_paragraph": Annotated[_Number, Field(ge=1)],
}
"""The type of each argument. Checks have the names that the dataset gives to their arguments."""


@cache
def argument_adapter(key: str) -> TypeAdapter[Any]:
    """What reads the argument ``key``; raises ``ValidationError``."""
    return TypeAdapter(ARGUMENTS[key])


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


def number_paragraphs(response: str, num_paragraphs: int) -> bool:
    """So many paragraphs between dividers ``***``, none of them blank but before and behind."""
    parts = filled_parts(response.split("***"))
    return parts is not None and len(parts) == num_paragraphs


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


def sections(response: str, section_spliter: str, num_sections: int) -> bool:
    """At least so many marks such as "Section 1"."""
    marks = _section(section_spliter).finditer(response)
    return sum(1 for _ in marks) >= num_sections


def bullet_lists(response: str, num_bullets: int) -> bool:
    """Exactly so many lines that begin with ``*`` (and not with two) or with ``-``."""
    stars = sum(1 for _ in _STAR_BULLET.finditer(response)) if "*" in response else 0
    dashes = sum(1 for _ in _DASH_BULLET.finditer(response)) if "-" in response else 0
    return stars + dashes == num_bullets


def highlighted_sections(response: str, num_highlights: int) -> bool:
    """At least so many ``*texts*`` or ``**texts**`` within a line."""
    singles = _HIGHLIGHT.findall(response)
    doubles = _DOUBLE_HIGHLIGHT.findall(response)
    found = sum(1 for mark in singles if mark[1:-1].strip())
    return found + sum(1 for mark in doubles if mark[2:-2].strip()) >= num_highlights


def placeholders(response: str, num_placeholders: int) -> bool:
    """At least so many ``[texts]`` within a line."""
    return _PLACEHOLDER.findall(response).count("]") >= num_placeholders


def title(response: str) -> bool:
    """A line with ``<<text>>``."""
    if "<<" not in response:
        return False
    return any(_has_title(line) for line in response.split("\n"))


def _has_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    inside = line[start : end + 2].lstrip("<").rstrip(">").strip()
    return 0 <= start < end - 2 and bool(inside)


def postscript(response: str, postscript_marker: str) -> bool:
    """The response has the marker of a postscript, in any case."""
    lowered = response.lower()
    pattern = _POSTSCRIPTS.get(postscript_marker)
    return bool(pattern.search(lowered)) if pattern else postscript_marker.lower() in lowered


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


def repeat_prompt(response: str, prompt_to_repeat: str) -> bool:
    """The request comes first, word for word but for case."""
    return response.strip().lower().startswith(prompt_to_repeat.lower())


def ending(response: str, end_phrase: str) -> bool:
    """The phrase comes last, but for case and closing quotation marks."""
    return response.strip().strip('"').lower().endswith(end_phrase.lower())


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


def forbidden_words(response: str, forbidden_words: tuple[str, ...]) -> bool:
    """None of the words occurs as a word of its own, in any case."""
    if response.isascii():
        lowered = response.lower()
        forbidden_words = tuple(word for word in forbidden_words if word.lower() in lowered)
    return not any(_as_word(word).search(response) for word in forbidden_words)


def letter_frequency(response: str, letter: str, let_frequency: int, let_relation: bool) -> bool:
    """How often a character occurs, in any case."""
    return holds(response.lower().count(letter), let_frequency, let_relation)


def number_words(response: str, num_words: int, relation: bool) -> bool:
    """How many runs of letters, digits and underscores there are."""
    if response.isascii():  # the same, five times as fast
        found = len(response.translate(_ASCII_GAPS).split())
    else:
        found = len(_WORD.findall(response))
    return holds(found, num_words, relation)


def number_sentences(response: str, num_sentences: int, relation: bool) -> bool:
    """How many sentences there are (:func:`~.sentences.sentence_count`)."""
    return holds(sentence_count(response), num_sentences, relation)


def capital_word_frequency(response: str, capital_frequency: int, capital_relation: bool) -> bool:
    """How many words are in capitals (:func:`~.capitals.capital_words`)."""
    return holds(capital_words(response), capital_frequency, capital_relation)


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


# The checks that ask what the instruction asks.

_PLAIN_QUOTES = str.maketrans("‘’“”„‟", '\'\'""""')
_LETTER = f"[^\\W_{SPACELESS}]"
_GAP = r"[^\S\n]"
_MARKS = " \t\n#*_>~`\"'()[]-+•"
"""Of Markdown, quotation marks and brackets: what may stand around words at an edge."""


def plain_text(response: str) -> str:
    """``response`` with composed letters, plain line ends and plain quotation marks."""
    return compose_letters(response).replace("\r\n", "\n").translate(_PLAIN_QUOTES)


@lru_cache(maxsize=4096)
def _word(text: str) -> re.Pattern[str]:
    """``text`` as words of their own, in any case; white space in it may be a line's end."""
    text = plain_text(text)
    words = r"\s++".join(map(re.escape, text.split()))
    before = f"(?<!{_LETTER})" if re.match(rf"\s*{_LETTER}", text) else ""
    behind = f"(?!{_LETTER})" if re.search(rf"{_LETTER}\s*$", text) else ""
    return re.compile(f"{before}{words}{behind}", re.IGNORECASE)


def _keyword_existence(response: str, keywords: tuple[str, ...]) -> bool:
    return all(_word(keyword).search(response) for keyword in keywords)


def _keyword_frequency(response: str, keyword: str, frequency: int, relation: bool) -> bool:
    return holds(sum(1 for _ in _word(keyword).finditer(response)), frequency, relation)


def _forbidden_words(response: str, forbidden_words: tuple[str, ...]) -> bool:
    return not any(_word(word).search(response) for word in forbidden_words)


_JOINT = re.compile(r"(?<=\w)['-](?=\w)|(?<=\d)[.,](?=\d)")


def _number_words(response: str, num_words: int, relation: bool) -> bool:
    words = split_words(_JOINT.sub("", response))
    return holds(sum(any(map(str.isalnum, word)) for word in words), num_words, relation)


# Of Chinese and Japanese, Arabic and Urdu, Hindi, Amharic, Burmese, Khmer.
_SENTENCE_END = re.compile("[。！？｡؟۔।॥።။។]+[」』）)\"']*")


def _number_sentences(response: str, num_sentences: int, relation: bool) -> bool:
    return number_sentences(_SENTENCE_END.sub("! ", response), num_sentences, relation)


_DIVIDER = re.compile(r"(?<!\S)\*{3}(?!\S)")
_BLANK_LINES = re.compile(rf"\n(?:{_GAP}*\n)+")


def _number_paragraphs(response: str, num_paragraphs: int) -> bool:
    parts = filled_parts(_DIVIDER.split(response))
    return parts is not None and len(parts) == num_paragraphs


def _nth_paragraph_first_word(
    response: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    paragraphs = list(filter(str.strip, _BLANK_LINES.split(response)))
    if len(paragraphs) != num_paragraphs:
        return False
    return bool(_word(first_word).match(paragraphs[nth_paragraph - 1].lstrip(_MARKS)))


_FILLED_PLACEHOLDER = re.compile(r"\[(?=[^\[\]\n]*[^\W\d_])[^\[\]\n]{2,}\](?!\()")
_BULLET = re.compile(rf"^{_GAP}*[*+•-]{_GAP}+\S", re.MULTILINE)
_BESIDE_STAR = "a-zA-Z0-9\u00c0-\u052f*\\\\"
_MARKED_HIGHLIGHT = re.compile(
    rf"(?<![{_BESIDE_STAR}])(\*{{1,3}})(?![\s*])[^\n*]++(?<!\s)\1(?![{_BESIDE_STAR}])"
)
_TITLE_LINE = re.compile(r"^[\s#*_>\"']*<<[^<>\n]*\w[^<>\n]*>>[\s*_\"'.]*$")
_TITLE = re.compile(r"(?<![\w<])<<(?=\S)[^<>\n]*\w[^<>\n]*(?<=\S)>>(?![\w>])")


def _placeholders(response: str, num_placeholders: int) -> bool:
    return len(_FILLED_PLACEHOLDER.findall(response)) >= num_placeholders


def _bullet_lists(response: str, num_bullets: int) -> bool:
    return len(_BULLET.findall(response)) == num_bullets


def _highlighted_sections(response: str, num_highlights: int) -> bool:
    return len(_MARKED_HIGHLIGHT.findall(response)) >= num_highlights


def _title(response: str) -> bool:
    lines = (line for line in response.split("\n") if "<<" in line)
    return any(_TITLE_LINE.search(line) or _TITLE.search(line) for line in lines)


def _sections(response: str, section_spliter: str, num_sections: int) -> bool:
    mark = rf"^[^\w\n]*{re.escape(section_spliter)}{_GAP}*(\d+)"
    return len(set(re.findall(mark, response, re.MULTILINE | re.IGNORECASE))) >= num_sections


def _postscript(response: str, postscript_marker: str) -> bool:
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    mark = known.get(postscript_marker, re.escape(postscript_marker))
    return bool(re.search(rf"^[^\w\n]*{mark}[\W_]*\w", response, re.MULTILINE | re.IGNORECASE))


def _constrained_response(response: str) -> bool:
    return sum(answer in response for answer in ANSWERS) == 1


def _json_format(response: str) -> bool:
    return json_format(response) and unfenced(response)[:1] in ("{", "[")


def _two_responses(response: str) -> bool:
    parts = filled_parts(re.split(r"(?<!\*)\*{6}(?!\*)", response)) or []
    return len(parts) == 2 and split_words(parts[0]) != split_words(parts[1])


def _repeat_prompt(response: str, prompt_to_repeat: str) -> bool:
    wanted = split_words(plain_text(prompt_to_repeat))
    return split_words(response)[: len(wanted)] == wanted


def _ending(response: str, end_phrase: str) -> bool:
    text, wanted = response.rstrip(_MARKS), end_phrase.rstrip(_MARKS)
    if not wanted:
        return ending(response, end_phrase)
    return any(found.end() == len(text) for found in _word(wanted).finditer(text))


def _no_comma(response: str) -> bool:
    return not any(sign in response for sign in ",，、،﹐︐")


_SHORT = 50
"""Characters in which the detection takes much English for other languages."""
_SCRIPTS = {"ja": "[\u3040-\u30ff]", "ko": "[\uac00-\ud7a3]", "zh": "[\u4e00-\u9fff]"}


def _detect_language(response: str) -> str | None:
    """The language, by its script where that is one language's own; capitals as small letters."""
    signs = {code: len(re.findall(script, response)) for code, script in _SCRIPTS.items()}
    if sum(signs.values()) * 2 <= sum(map(str.isalpha, response)):
        return detect_language(response.lower() if response.isupper() else response)
    return "ja" if signs["ja"] * 10 > signs["zh"] else max(signs, key=signs.__getitem__)


def _response_language(response: str, language: str) -> bool:
    found = _detect_language(response)
    return found is None or found.partition("-")[0] == language.partition("-")[0]


def _is_english(response: str) -> bool:
    short = response.isascii() and len(response) < _SHORT
    return short or _detect_language(response) in ("en", None)


def _english_capital(response: str) -> bool:
    return response.isupper() and _is_english(response)


def _english_lowercase(response: str) -> bool:
    return response.islower() and _is_english(response)


_REPAIRED: tuple[Callable[..., bool], ...] = (
    *(_keyword_existence, _keyword_frequency, _forbidden_words, _number_words, _number_sentences),
    *(_number_paragraphs, _nth_paragraph_first_word, _placeholders, _bullet_lists, _title),
    *(_highlighted_sections, _sections, _postscript, _constrained_response, _json_format),
    *(_two_responses, _repeat_prompt, _ending, _no_comma, _response_language),
    *(_english_capital, _english_lowercase),
)
REPAIRED: Mapping[Callable[..., bool], Callable[..., bool]] = {
    globals()[check.__name__[1:]]: check for check in _REPAIRED
}
"""By the published check."""
