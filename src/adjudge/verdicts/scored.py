"""The better of two things that a judge gave one score each ("Assistant 1: 8, Assistant 2: 6")."""

from __future__ import annotations

import re
from itertools import islice

__all__ = ["better_scored"]

_SIGN = "(?P<{0}>[\ue000-\ue0ff])\x01*"
_NUMBER = r"(?P<number>[0-9]{1,4}(?:\.[0-9]{1,4})?)(?![0-9A-Za-z%]|\.[0-9]|\s?-\s?[0-9])"
_SCORE = r"(?:score|rating|grade|评分|得分|分数|打分)"
_SCORED = re.compile(
    # The score of Assistant 1: 8; Output (a): 7/10; Response B's score is 6
    rf"(?:{_SCORE}\s(?:of|for)\s(?:the\s)?{_SIGN.format('before')}\s{{0,3}}(?:[:=]|is)"
    rf"|{_SIGN.format('after')}(?:'s|的)?\s{{0,3}}(?:(?:final|overall)\s)?{_SCORE}?\s{{0,3}}(?:[:=]|is|为|是))"
    rf"\s{{0,3}}{_NUMBER}",
)
_MOST = 200


def better_scored(text: str) -> tuple[int, int, str] | None:
    """``(start, end, sign)`` of the mention with the higher score; the sign is "" for a tie.

    ``None`` unless exactly two mentions have a score, and each only one.
    """
    scores: dict[str, float] = {}
    start = end = -1
    for found in islice(_SCORED.finditer(text), _MOST):
        sign, score = found["before"] or found["after"], float(found["number"])
        if scores.setdefault(sign, score) != score:
            return None
        start, end = found.start() if start < 0 else start, found.end()
    if len(scores) != 2:
        return None
    (one, first), (two, second) = scores.items()
    return start, end, "" if first == second else one if first > second else two
