"""The checks of IFEval's instructions that ask what the instruction asks.

The published checks (:mod:`.checks`) see too much, which training finds, or too little. Here are
those that differ, by their names there; ``results/ifeval.md`` has the differences. All take the
text that :func:`plain_text` makes of a response, in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from adjudge.graders.instructions import checks
from adjudge.graders.instructions.text_analysis import detect_language
from adjudge.text import SPACELESS, compose_letters, split_words

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
    return checks.holds(sum(1 for _ in _word(keyword).finditer(response)), frequency, relation)


def _forbidden_words(response: str, forbidden_words: tuple[str, ...]) -> bool:
    return not any(_word(word).search(response) for word in forbidden_words)


_JOINT = re.compile(r"(?<=\w)['-](?=\w)|(?<=\d)[.,](?=\d)")


def _number_words(response: str, num_words: int, relation: bool) -> bool:
    words = split_words(_JOINT.sub("", response))
    return checks.holds(sum(any(map(str.isalnum, word)) for word in words), num_words, relation)


# Of Chinese and Japanese, Arabic and Urdu, Hindi, Amharic, Burmese, Khmer.
_SENTENCE_END = re.compile("[。！？｡؟۔।॥።။។]+[」』）)\"']*")


def _number_sentences(response: str, num_sentences: int, relation: bool) -> bool:
    return checks.number_sentences(_SENTENCE_END.sub("! ", response), num_sentences, relation)


_DIVIDER = re.compile(r"(?<!\S)\*{3}(?!\S)")
_BLANK_LINES = re.compile(rf"\n(?:{_GAP}*\n)+")


def _number_paragraphs(response: str, num_paragraphs: int) -> bool:
    parts = checks.filled_parts(_DIVIDER.split(response))
    return parts is not None and len(parts) == num_paragraphs


def _nth_paragraph_first_word(
    response: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    paragraphs = list(filter(str.strip, _BLANK_LINES.split(response)))
    if len(paragraphs) != num_paragraphs:
        return False
    return bool(_word(first_word).match(paragraphs[nth_paragraph - 1].lstrip(_MARKS)))


_PLACEHOLDER = re.compile(r"\[(?=[^\[\]\n]*[^\W\d_])[^\[\]\n]{2,}\](?!\()")
_BULLET = re.compile(rf"^{_GAP}*[*+•-]{_GAP}+\S", re.MULTILINE)
_BESIDE_STAR = "a-zA-Z0-9\u00c0-\u052f*\\\\"
_HIGHLIGHT = re.compile(
    rf"(?<![{_BESIDE_STAR}])(\*{{1,3}})(?![\s*])[^\n*]++(?<!\s)\1(?![{_BESIDE_STAR}])"
)
_TITLE_LINE = re.compile(r"^[\s#*_>\"']*<<[^<>\n]*\w[^<>\n]*>>[\s*_\"'.]*$")
_TITLE = re.compile(r"(?<![\w<])<<(?=\S)[^<>\n]*\w[^<>\n]*(?<=\S)>>(?![\w>])")


def _placeholders(response: str, num_placeholders: int) -> bool:
    return len(_PLACEHOLDER.findall(response)) >= num_placeholders


def _bullet_lists(response: str, num_bullets: int) -> bool:
    return len(_BULLET.findall(response)) == num_bullets


def _highlighted_sections(response: str, num_highlights: int) -> bool:
    return len(_HIGHLIGHT.findall(response)) >= num_highlights


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
    return sum(answer in response for answer in checks.ANSWERS) == 1


def _json_format(response: str) -> bool:
    return checks.json_format(response) and checks.unfenced(response)[:1] in ("{", "[")


def _two_responses(response: str) -> bool:
    parts = checks.filled_parts(re.split(r"(?<!\*)\*{6}(?!\*)", response)) or []
    return len(parts) == 2 and split_words(parts[0]) != split_words(parts[1])


def _repeat_prompt(response: str, prompt_to_repeat: str) -> bool:
    wanted = split_words(plain_text(prompt_to_repeat))
    return split_words(response)[: len(wanted)] == wanted


def _end_phrase(response: str, end_phrase: str) -> bool:
    text, wanted = response.rstrip(_MARKS), end_phrase.rstrip(_MARKS)
    if not wanted:
        return checks.end_phrase(response, end_phrase)
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
    *(_two_responses, _repeat_prompt, _end_phrase, _no_comma, _response_language),
    *(_english_capital, _english_lowercase),
)
REPAIRED: Mapping[Callable[..., bool], Callable[..., bool]] = {
    getattr(checks, check.__name__[1:]): check for check in _REPAIRED
}
"""By the published check."""
