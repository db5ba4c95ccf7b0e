"""How many sentences a text has: Punkt's rules with a short list of abbreviations, no model file.

After Kiss and Strunk (2006), "Unsupervised Multilingual Sentence Boundary Detection". The trained
English model of NLTK is a download; without it the rules still decide all but a few breaks, and
the abbreviations and common words here stand in for what the model has learnt. Tokens are those
of NLTK 3.9. Linear in the length of the text.
"""

from __future__ import annotations

import re
from itertools import pairwise

__all__ = ["sentence_count"]

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
_OTHER = r"[)\";}\]*:@'({\[!?]"
_DOTS = r"(?:-{2,}|\.{2,})"
_TOKENS = re.compile(
    rf"{_DOTS}"
    rf"|(?![(\"`{{\[:;&#*@)}}\]\-,\s])\S+?(?=\s|$|{_OTHER}|{_DOTS}|,(?=$|\s|{_OTHER}|{_DOTS}))"
    r"|\S"
)
_INNER_END = re.compile(rf"[.?!](?={_OTHER})")
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
