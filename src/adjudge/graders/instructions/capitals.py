"""How many words of a text are in capitals, where words are those of the Penn Treebank.

Signs stand alone, clitics are cut off ("NASA's" is two words, "CAN'T" is "CA" and "N'T"), and a
hyphen joins: "COVID-19" is one word. After ``word_tokenize`` of NLTK 3.9, as far as it decides
which words are in capitals. Linear in the length of the text.
"""

from __future__ import annotations

import re

__all__ = ["capital_words"]

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
