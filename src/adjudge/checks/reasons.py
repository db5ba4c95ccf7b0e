"""What a judge's reason says of the answer: the score that it states, or right or wrong.

Precise rather than complete: a reason counts only where it has a number or a plain
statement about the answer, once and without a condition.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from adjudge.verdicts import Verdict, read_score

_NUMBER = r"[0-9]{1,4}(?:\.[0-9]{1,4})?"
_OUT_OF = r"\s?(?:/|\bout\sof)\s?"
_MAXIMUM = re.compile(rf"[0-9](?:\.[0-9]+)?{_OUT_OF}([0-9]{{1,3}})\b(?!/|%|\.[0-9])", re.IGNORECASE)
_STATED = re.compile(
    # "Final score: 2/10", "the rating is 4", "I give it 4 out of 5", "[[3]] …", "评分：4分"
    r"(?:(?:^|(?<=[.!?,\n。]))(?<!max\.)(?<!min\.)[\s#*>-]{0,8}"
    r"(?:(?:so|thus|therefore|my|the|final|overall|total)\s){0,3}"
    r"(?:score|rating|grade|评分|得分|总分|评级)[*_]{0,3}\s?(?:[:=：]|is\b|为|是)"
    r"|\b(?:i|we)(?:'d|\s(?:would|will))?\s(?:give|rate|score|grade|award|assign)\b[^.\n!?0-9]{0,40}?"
    r"|^\[\[|我[^。\n0-9]{0,16}?[给打评][^。\n0-9]{0,6}?"
    r")"
    rf"[\s*_`\"'(\[]{{0,6}}(?<![0-9.,-])(?P<score>{_NUMBER})(?:\s?(?:points?|stars?|分))?"
    rf"(?:[*_]{{0,3}}{_OUT_OF}(?P<high>{_NUMBER}))?"
    r"(?=[\s*_`\"')\]]{0,6}(?:$|[.!](?:\s|$)|[;,，；:。<}](?=\s?[^\s0-9]|$)|\n|[(–—-]\s?[a-z]|"
    r"(?:because|since|as|for\sits)\b))(?![,;]?\s?(?:if|or|when|unless)\b)",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\b(?:not|never|if|unless|would\sneed|cannot|had|ends|contains)\b|n't\b|如果", re.IGNORECASE
)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|hmm|sorry|edit|correction|actually|reflection|disregard|lower|raise|meant|"
    r"so\s[0-9])",
    re.IGNORECASE,
)
_LONGEST_REASON = 4_000
_DIGIT = re.compile(r"[0-9\uff10-\uff19]")
_LAST = re.compile(r"[\]}>]$|[0-9]\s?(?:points?|pts|stars?)?$", re.IGNORECASE)
_CLOSING = " \t\n*_`#|$.。!\"')\\"


class StatedScore(NamedTuple):
    """A score that a reason states, and the maximum that it states, if any."""

    score: float
    maximum: float | None = None


def read_stated_score(reason: str) -> StatedScore | None:
    """The score that a reason states; ``None`` where there is no one clear score.

    >>> read_stated_score("Mostly wrong. Score: 2/10")
    StatedScore(score=2.0, maximum=10.0)
    >>> read_stated_score("Rating: 4")
    StatedScore(score=4.0, maximum=None)
    >>> read_stated_score("It lists 3 of 5 rivers."), read_stated_score("The answer is 42.")
    (None, None)
    """
    text = reason[-_LONGEST_REASON:]
    if _DIGIT.search(text) is None:
        return None
    spelled = "/" in text or "out" in text.lower()
    maxima = {int(found) for found in _MAXIMUM.findall(text)} - {0} if spelled else set()
    if len(maxima) > 1:
        return None
    high = float(maxima.pop()) if maxima else None
    stated, ends = set[float](), False
    for found in _STATED.finditer(text):
        if _TAKEN_BACK.search(text, found.end()):
            return None
        end = found.end("score")
        sentence = text[max(text.rfind(mark, 0, end) for mark in ".!?\n。") + 1 : end]
        if not _SUPPOSED.search(sentence) and (not found["high"] or float(found["high"]) == high):
            stated.add(float(found["score"]))
            ends = not text[found.end() :].strip(_CLOSING)
    # The reader takes most of the time: it is asked only where it may find another score.
    ending = text.rstrip(_CLOSING)[-20:]
    if not ends and (high == 1 or not ending.isascii() or _LAST.search(ending)):
        read = read_score(text, low=0.0 if high else None, high=high)
        stated |= {float(read.value)} if isinstance(read, Verdict) else set()
    score = stated.pop() if len(stated) == 1 else None
    return None if score is None or (high and score > high) else StatedScore(score, high)


ANSWER_NOUN = (
    r"(?:answer|response|solution|output|submission|completion|reply|assistant|model|candidate)"
)
"""What a text about an answer calls it, as a pattern."""
_THE_ANSWER = (
    r"\b(?:the|this|its|their)\s(?:(?:final|model's|assistant's|candidate's|student's|provided|given|"
    rf"submitted|proposed)\s)?{ANSWER_NOUN}(?:'s\s(?:final\s)?{ANSWER_NOUN})?"
)
_VERY = r"(?:(?:clearly|completely|entirely|totally|simply|factually|fully|also|therefore|thus)\s)?"
_NEGATIVE = re.compile(
    rf"{_THE_ANSWER}\s(?:is|was)\s{_VERY}(?:incorrect|wrong|not\s(?:\w+ly\s)?(?:correct|right|accurate|"
    r"acceptable|valid)|inaccurate|unacceptable|irrelevant|off-topic|nonsens\w+|useless)\b"
    rf"|{_THE_ANSWER}\s(?:(?:does\snot|doesn't|did\snot|didn't)\s(?:\w+ly\s)?(?:answer|address|satisfy|"
    r"meet|match|follow|solve|fulfil\w*|comply|pass)\b|(?:completely\s|entirely\s)?"
    r"(?:fails|failed)\sto\s)"
    r"|(?:^|[\n.]\s?)(?:(?:final\s)?(?:verdict|judge?ment|grade|result)\s?[:=]\s?)?"
    r"(?:incorrect|wrong|fail(?:ed|s)?)\s?(?:[.!:;,\n]|$)",
    re.IGNORECASE,
)
_POSITIVE = re.compile(
    rf"{_THE_ANSWER}\s(?:is|was)\s{_VERY}(?:correct|right|accurate|excellent|perfect|flawless)\b"
    rf"|{_THE_ANSWER}\s(?:fully|correctly|successfully|perfectly|completely)\s(?:answers|addresses|"
    r"satisfies|meets|matches|follows|solves|fulfil\w*|complies|answered|solved)\b"
    rf"|{_THE_ANSWER}\s(?:meets|satisfies|follows|fulfil\w+)\s(?:all|every|each)\b"
    r"|(?:^|[\n.]\s?)(?:(?:final\s)?(?:verdict|judge?ment|grade|result)\s?[:=]\s?)?"
    r"(?:correct|pass(?:ed|es)?)\s?(?:[.!:;,\n]|$)",
    re.IGNORECASE,
)
# A text without any of these needs no search, which takes twenty times as long.
_NEGATIVE_PARTS = (
    *("incorrect", "wrong", "not", "n't", "accura", "accepta", "irreleva", "off-topic", "nonsens"),
    *("useless", "fail"),
)
_POSITIVE_PARTS = (
    *("correct", "right", "accura", "excellent", "perfect", "flawless", "full", "success"),
    *("complete", "meets", "satisf", "follows", "fulfil", "pass"),
)
# What turns or weakens a statement: then the reason is left alone.
_HEDGED = re.compile(
    r"\b(?:but|however|although|though|while|whereas|except|despite|nevertheless|yet|if|unless|would|"
    r"could|might|should|seems?|partly|partially|mostly|almost|nearly|some(?:what)?|minor|slight\w*|"
    r"not\s(?:\w+\s)?(?:incorrect|wrong|inaccurate|irrelevant)|nothing|says?|said|claims?|claimed|"
    r"according|argues?|user|reference|expected|only|otherwise|initially|first)\b|\?|n't\s(?:in|wr)",
    re.IGNORECASE,
)


def read_polarity(reason: str) -> int:
    """1 where a reason says plainly that the answer is right, −1 that it is wrong, else 0.

    Where both are said, or the statement is hedged, conditional or another person's, it is 0.

    >>> read_polarity("The answer is incorrect: Lima is not in Chile.")
    -1
    >>> read_polarity("The response fully answers the question.")
    1
    >>> read_polarity("The answer is not incorrect."), read_polarity("Nothing is wrong here.")
    (0, 0)
    """
    text = reason if len(reason) <= _LONGEST_REASON else f"{reason[:500]}\n{reason[-1500:]}"
    text = " ".join(text.replace("\n", " . ").split())
    plain = text.lower()
    negative = any(map(plain.__contains__, _NEGATIVE_PARTS)) and _NEGATIVE.search(text)
    positive = any(map(plain.__contains__, _POSITIVE_PARTS)) and _POSITIVE.search(text)
    if bool(negative) == bool(positive):
        return 0
    found = negative or positive
    if not found or _HEDGED.search(_sentence_around(text, *found.span())):
        return 0
    return -1 if negative else 1


END_OF_SCALE = 0.1
"""How near to an end of the scale a score must be to contradict a plain statement."""

READING_ERRORS = 0.02
"""Reasons that the rules may misread: fewer contradictions than this share are no finding."""


def _sentence_around(text: str, start: int, end: int) -> str:
    left = max(text.rfind(mark, 0, start + 1) for mark in (". ", "! ", "? ", "\n"))
    rights = [at for mark in (". ", "! ", "? ") if (at := text.find(mark, end - 1)) >= 0]
    return text[left + 1 : (min(rights) + 1 if rights else len(text))]
