"""What a reply's sentences say about the things that it compares, and how firmly.

A sentence says something for a mention, against it, or that there is a tie. What is asked,
supposed, denied or reported of somebody else says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from adjudge.verdicts import wording
from adjudge.verdicts.base import TooManyError

__all__ = ["FIRST_SENTENCE", "LINE", "Firmness", "Kind", "Statement", "labelled", "statements"]

FIRST_SENTENCE, NO_SENTENCE, LINE = 0, -1, -2
_LOOK = 240
_LONGEST = 4_000
_MOST = 4_000
_NO_WORDS = " \n\t\x00\x01>`#*|_-=.:\"'()[]"
_SIGN = re.compile("[\ue000-\ue0ff]")


class Firmness(IntEnum):
    """How firmly something is said; more outweighs less."""

    HINT = 1
    """A conclusion in part ("therefore it is better in detail"); a plain tie."""
    SAID = 2
    """A plain sentence: "Output (b) is better"."""
    CONCLUDED = 3
    """After "therefore", "overall", "in conclusion", or alone on a line."""
    FINAL = 4
    """Behind a label: "Verdict: B", "final answer: B"."""


class Kind(IntEnum):
    """What a statement says of its mention."""

    FOR = 1
    AGAINST = 2
    TIE = 3


class Statement(NamedTuple):
    """``text[start:end]`` says ``kind`` of the mention ``sign``, which is "" for a tie.

    ``sentence``: the number of its sentence from 0; ``LINE`` for a line of its own, -1 behind a
    label. ``words``: the judge's own words for it, which are the sentence of a conclusion.
    """

    start: int
    end: int
    kind: Kind
    sign: str
    firmness: Firmness
    sentence: int
    words: tuple[int, int] | None = None


_PATTERNS = (
    (Kind.FOR, (*wording.FOR, *wording.CHOOSING)),
    (Kind.AGAINST, tuple(wording.AGAINST)),
)


def statements(text: str) -> Iterator[Statement]:
    """All that the sentences of ``text`` say about its mentions, in no particular order.

    Raises :class:`TooManyError` when there are more than 4,000.
    """
    for number, found in enumerate(wording.SENTENCE.finditer(text)):
        sentence = found[0]
        if not sentence.strip(_NO_WORDS):
            continue
        if number > _MOST:
            raise TooManyError
        if len(sentence) > _LONGEST or sentence.rstrip().endswith(("?", "？")):
            continue
        said = list(_chosen(sentence)) if _SIGN.search(sentence) else []
        whole = (found.end() - len(sentence.lstrip()), found.start() + len(sentence.rstrip()))
        for one in said or _ties(sentence):
            span = one.start + found.start(), one.end + found.start()
            words = span if one.firmness is Firmness.SAID else whole
            yield one._replace(start=span[0], end=span[1], sentence=number, words=words)


def labelled(text: str, *, headings: bool) -> Iterator[Statement]:
    """Verdicts behind a label, and mentions that have a line to themselves.

    ``headings``: such lines may be headings, so that different ones say nothing.
    """
    for found in wording.LABEL.finditer(text):
        yield _statement(found, Firmness.FINAL, NO_SENTENCE, start=found.start("word"))
    lines = list(wording.LINE.finditer(text))
    if not headings or len({found["x"] for found in lines}) == 1:
        yield from (_statement(found, Firmness.CONCLUDED, LINE) for found in lines)


def _statement(
    found: re.Match[str], firmness: Firmness, sentence: int, start: int | None = None
) -> Statement:
    kind = Kind.TIE if found["tie"] else Kind.FOR
    begin = found.start() if start is None else start
    return Statement(begin, found.end(), kind, found["x"] or "", firmness, sentence)


def _concluded(sentence: str) -> int:
    """From where on ``sentence`` concludes; its end for one that does not."""
    marker = wording.CONCLUDING.search(sentence)
    return len(sentence) if marker is None else marker.start()


def _chosen(sentence: str) -> Iterator[Statement]:
    """What ``sentence`` says for or against one mention."""
    if wording.TELLING.search(sentence) is None:
        return
    concluded = _concluded(sentence)
    for kind, patterns in _PATTERNS:
        for pattern in patterns:
            for found in pattern.finditer(sentence):
                if _stands(sentence, found, chosen=pattern in wording.CHOOSING):
                    firmness = _firmness(sentence, found, concluded)
                    if firmness is not None:
                        yield Statement(*found.span(), kind, found["x"], firmness, 0)


def _firmness(sentence: str, found: re.Match[str], concluded: int) -> Firmness | None:
    before = sentence[max(0, found.start() - _LOOK) : found.start()]
    partly = wording.IN_PART.match(sentence, found.end()) or wording.IN_PART_BEFORE.search(before)
    if found.end() > concluded:
        return Firmness.HINT if partly else Firmness.CONCLUDED
    return None if partly else Firmness.SAID


def _ties(sentence: str) -> Iterator[Statement]:
    """What a sentence that chooses nothing says of a tie."""
    concluded = _concluded(sentence)
    for found in wording.TIES.finditer(sentence):
        firmness = Firmness.CONCLUDED if found.end() > concluded else Firmness.HINT
        yield Statement(*found.span(), Kind.TIE, "", firmness, 0)


def _stands(sentence: str, found: re.Match[str], *, chosen: bool = False) -> bool:
    """Whether the match is the judge's own, unconditional and affirmative statement."""
    if (
        wording.DENIED.search(found[0])
        or wording.IRREAL.search(found[0])
        or wording.CONDITION.match(sentence, found.end())
    ):
        return False
    before = sentence[max(0, found.start() - _LOOK) : found.start()]
    if wording.SUPPOSING.match(before) or wording.LISTED.search(before):
        return False
    if _SIGN.match(found[0]) and wording.COMPARED.search(before[-16:]):
        return False
    clause = before[_last_end(wording.CLAUSE, before) :]
    if wording.SUPPOSED.search(clause) or wording.DENIED.search(clause):
        return False
    report = wording.REPORTED.search(clause)
    if report is not None and not wording.OWN.search(clause, 0, report.start()):
        return False
    return not chosen or wording.SUBJECT.search(clause) is not None


def _last_end(pattern: re.Pattern[str], text: str) -> int:
    end = 0
    for found in pattern.finditer(text):
        end = found.end()
    return end
