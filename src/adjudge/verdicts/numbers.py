"""A number on a scale, as judges write it: ``3``, ``3.5``, ``3/5``, ``3 out of 5``, ``4 分``."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from adjudge.verdicts.plain import flat

__all__ = ["AMOUNT", "Scale", "amount", "score_of"]

_DIGITS = r"[-+]?(?:[0-9]{1,15}(?:\.[0-9]{1,15})?|\.[0-9]{1,15})"
_WORDS = {
    word: number
    for number, words in enumerate(
        ("zero 零", "one 一", "two 二 两", "three 三", "four 四", "five 五", "six 六", "seven 七",
         "eight 八", "nine 九", "ten 十")
    )
    for word in words.split()
}  # fmt: skip
_WORD = "|".join(sorted(_WORDS, key=len, reverse=True))

_GOES_ON = r"[\s-]{1,2}(?:hundred|thousand|million|and|point|to|or|half)\b"

AMOUNT = (
    rf"(?P<number>{_DIGITS}|"
    rf"(?:{_WORD})(?![A-Za-z\u4e00-\u4e02\u4e04-\u5205\u5207-\u9fff]|{_GOES_ON}))"
    r"(?P<unit>\s{0,3}(?:points?|pts|stars?|分|星)(?![A-Za-z]))?"
    rf"(?:[*_`]{{0,3}}\s{{0,3}}(?:/|out\s{{1,3}}of|of|[(,，]\s{{0,2}}(?:满分|out\s{{1,3}}of|max\.?))\s{{0,3}}"
    rf"(?P<scale>{_DIGITS}|(?:{_WORD})(?![A-Za-z]))(?:\s{{0,3}}(?:points?|分|星))?\)?)?"
)
"""The source of a pattern: number, unit, what it is out of. What may follow is its user's."""

_ALONE = re.compile(rf"[\s*_`\"'(\[$]*{AMOUNT}[\s*_`\"')\].。!$]*", re.IGNORECASE)
_YES = frozenset({"true", "yes", "是", "对"})
_NO = frozenset({"false", "no", "否", "不是"})


class Scale(NamedTuple):
    """What scores a reader takes: from ``low`` to ``high`` (``None``: open), whole ones only."""

    low: float | None = None
    high: float | None = None
    integer: bool = False

    @property
    def boolean(self) -> bool:
        """Whether it is 0 or 1, so that yes and no are scores."""
        return self.low == 0 and self.high == 1

    def holds(self, score: float) -> bool:
        """Whether ``score`` lies on the scale."""
        if self.integer and score != int(score):
            return False
        return (self.low is None or score >= self.low) and (self.high is None or score <= self.high)


def amount(found: re.Match[str], scale: Scale) -> float | None:
    """The number of an :data:`AMOUNT` match; ``None`` when it is out of another scale."""
    above = found["scale"]
    if above is not None and (scale.high is None or _value(above) != scale.high):
        return None
    return _value(found["number"])


def _value(number: str) -> float:
    return float(_WORDS.get(number.lower(), number))


def score_of(value: Any, scale: Scale) -> float | None:
    """A JSON value, or the text of a tag, as a score; ``None`` for what is no finite number.

    >>> [score_of(v, Scale(1, 5)) for v in (3, "3/5", "4/10", True, "four", float("nan"))]
    [3.0, 3.0, None, None, 4.0, None]
    """
    if isinstance(value, bool):
        return float(value) if scale.boolean else None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    if not isinstance(value, str):
        return None
    text = flat(value)
    if len(text) < 80 and (alone := _ALONE.fullmatch(text)) is not None:
        return amount(alone, scale)
    word = text.strip(" \t\n*_`\"'.。!").lower()
    if scale.boolean and word in _YES | _NO:
        return float(word in _YES)
    return None
