"""Sentences, words in capitals and the language of a text, as the reference's tools count them.

Words in capitals: after ``word_tokenize`` of NLTK 3.9 (Penn Treebank), as far as it decides which
words are in capitals. Signs are separate, clitics are cut off ("NASA's" is two words, "CAN'T" is
"CA" and "N'T"), and a hyphen joins: "COVID-19" is one word.

Sentences: Punkt's rules with a short list of abbreviations, no model file. After Kiss and Strunk
(2006), "Unsupervised Multilingual Sentence Boundary Detection". The trained English model of NLTK
is a download; without it the rules still decide all but a few breaks, and the abbreviations and
common words here replace what the model has learnt. Tokens are those of NLTK 3.9. Both take
time linear in the length of the text.

Language: as ``langdetect`` with seed 0 says, so that it is the same on every run.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from typing import Any

from adjudge.graders.base import require_package

_EDGE = '.,;:!?()[]{}<>"*#`“”«»‘’'
_FUSED = frozenset({"CANNOT", "GIMME", "GONNA", "GOTTA", "LEMME", "WANNA"})

_ALONE = re.compile(r"[«“‘„`»”’\"\[\](){}<>;@#$%&?!*]|\.{2,}|--|''")
_QUOTED_SIGN = re.compile(r"'(?!re|ve|ll|[mtsdn])(?=\w\b)", re.IGNORECASE)
_SEPARATOR = re.compile(r"[:,](?!\d)")
_LAST_POINT = re.compile(r"(?<=[^.])\.(?=[\])}>\"'»”’ ]*$)")
_SHORT_CLITIC = re.compile(r"([^' ])('[sSmMdD]|') ")
_LONG_CLITIC = re.compile(r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ")
_TWO_WORDS = re.compile(
    r"\b(?:(can)(not)|(d)('ye)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(more)('n))\b"
    r"|\b(wan)(na)(?=\s)|(?<= )('t)(is|was)\b",
    re.IGNORECASE,
)


def capital_words(text: str) -> int:
    """The number of words without a small letter and with a capital.

    >>> capital_words("NASA's COVID-19 report: I CAN'T, U.S. or not.")
    6
    """
    return sum(_in_chunk(chunk) for chunk in text.split() if not chunk.islower())


def _in_chunk(chunk: str) -> int:
    """The words in capitals of a chunk between white space."""
    core = chunk.strip(_EDGE)
    if core.isalnum():
        if core.upper() not in _FUSED:
            return int(core.isupper())
    elif not core:
        return 0
    return sum(map(str.isupper, _words(chunk)))


def _words(chunk: str) -> list[str]:
    """The words of a chunk, without white space around it."""
    chunk = _QUOTED_SIGN.sub("' ", chunk)
    chunk = _LAST_POINT.sub(" . ", chunk)
    chunk = _SEPARATOR.sub(r" \g<0> ", chunk)
    chunk = _ALONE.sub(r" \g<0> ", chunk)
    chunk = _SHORT_CLITIC.sub(r"\1 \2 ", f" {chunk} ")
    chunk = _LONG_CLITIC.sub(r"\1 \2 ", chunk)
    return _TWO_WORDS.sub(_halves, chunk).split()


def _halves(match: re.Match[str]) -> str:
    return f" {' '.join(filter(None, match.groups()))} "


_ABBREVIATED = (
    "a.m adm bros calif co col conn corp cos d.c dr fla gen inc jan feb aug sept oct nov dec jr "
    "lt ltd messrs mich minn mr mrs ms n.c n.h n.j n.m n.y okla p.m ph.d prof r.i rep s.c sen sr "
    "st tenn tues u.k u.n u.s u.s.a vs vt wis"
)
_OFTEN_SMALL = (
    "a about after all also although always an and any are as ask at avoid be because before both "
    "but by can choose consider could create do does each even every find first follow for from "
    "get give go had has have he her here his how however i if in instead is it its keep last "
    "let look make many may more most my never new no not now of on once one only or our out over "
    "remember she should since so some start such take than that the their them then there these "
    "they this those to try under until up us use very was we were what when where which while "
    "who why will with would write you your"
)
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_COMMON = frozenset(_OFTEN_SMALL.split())
"""Words often written in lower case: capitalised behind "B." they open a sentence."""

# What ends a word and cannot be part of one.
_AFTER_INNER_END = r"[)\";}\]*:@'({\[!?]"
_DOTS = r"(?:-{2,}|\.{2,})"
_TOKENS = re.compile(
    rf"{_DOTS}"
    rf"|(?![(\"`{{\[:;&#*@)}}\]\-,\s])\S+?(?=\s|$|{_AFTER_INNER_END}|{_DOTS}|,(?=$|\s|{_AFTER_INNER_END}|{_DOTS}))"
    r"|\S"
)
_INNER_END = re.compile(rf"[.?!](?={_AFTER_INNER_END})")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.\-]*\.?")
_CLOSING = "\"')]}"
_PUNCTUATION = ";:,.!?"


def sentence_count(text: str) -> int:
    """The number of sentences of ``text``; 0 for blank text.

    >>> sentence_count("Dr. Smith left the U.S. in May. Why? Nobody knows...")
    3
    """
    chunks = text.split()
    breaks, last, rest = 0, -1, ""
    marked = [i for i, chunk in enumerate(chunks) if "." in chunk or "?" in chunk or "!" in chunk]
    for index in marked:
        chunk = chunks[index]
        following = chunks[index + 1] if index + 1 < len(chunks) else None
        end = _last_end(chunk, following)
        if end is not None and _breaks(chunk, end, following):
            breaks, last, rest = breaks + 1, index, chunk[end + 1 :]
    behind = ([rest] if rest else []) + chunks[last + 1 : last + 3]
    # Quotes and brackets that close the last sentence are no sentence of their own.
    closed = breaks > 0 and len(behind) == 1 and not behind[0].strip(_CLOSING)
    return breaks + bool(behind and not closed)


def _last_end(chunk: str, following: str | None) -> int | None:
    """Where a sentence may end in a chunk between white space: its last mark before no word."""
    if chunk[-1] in ".?!" and following is not None:
        return len(chunk) - 1
    end = None
    for match in _INNER_END.finditer(chunk):
        end = match.start()
    return end


def _breaks(chunk: str, end: int, following: str | None) -> bool:
    """Whether a sentence ends at that mark, or at one before it in the same chunk."""
    if chunk[end] != ".":
        return True
    stem = chunk[:end]
    if len(stem) > 1 and stem.isalpha():  # most words: not an initial, not a number
        return stem.lower() not in _ABBREVIATIONS
    behind = chunk[end + 1] if end + 1 < len(chunk) else f" {following}"
    tokens = _TOKENS.findall(stem + "." + behind)
    return any(_ends_sentence(token, after) for token, after in pairwise(tokens))


def _ends_sentence(token: str, after: str) -> bool:
    if token in {".", "?", "!"}:
        return True
    if not token.endswith(".") or token.endswith(".."):
        return False
    stem = token[:-1].lower()
    if stem in _ABBREVIATIONS or stem.rpartition("-")[2] in _ABBREVIATIONS:
        return False
    initial = len(stem) == 1 and (stem.isalpha() or stem == "_")
    if not initial and not _NUMBER.fullmatch(token):
        return True
    if after in _PUNCTUATION or after[0].islower():
        return False
    return not (initial and after[0].isupper() and after.lower().rstrip(".") not in _COMMON)


_CODES = (
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr "
    "ne nl no pa pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh-cn zh-tw"
)
LANGUAGES = frozenset(_CODES.split())
"""The codes that :func:`detect_language` can answer: the 55 profiles of langdetect 1.0.9."""

_MAX_READ = 100_000  # addresses are looked for no further; the library reads everything


@lru_cache(maxsize=64)  # looser readings often have the same text
def detect_language(text: str) -> str | None:
    """The code of the likeliest language, ``unknown`` without one, ``None`` for no letters at all.

    Looks at the first 10,000 characters, addresses left out. Needs the extra ``full``; without
    it ``ConfigError``.
    """
    require_package("language detection", "langdetect")
    from langdetect import LangDetectException  # noqa: PLC0415  (an extra)

    detector = _load_detectors().create()
    detector.append(text[:_MAX_READ])
    try:
        return str(detector.detect())
    except LangDetectException:  # no features in the text
        return None


@lru_cache(maxsize=1)
def _load_detectors() -> Any:
    """The library's detectors, whose seed makes the answer the same on every run."""
    from langdetect.detector_factory import DetectorFactory  # noqa: PLC0415  (an extra)

    folder = resources.files("langdetect").joinpath("profiles")
    factory = DetectorFactory()
    factory.seed = 0
    files = (folder.joinpath(name) for name in sorted(LANGUAGES))
    factory.load_json_profile([file.read_text(encoding="utf-8") for file in files])
    return factory
