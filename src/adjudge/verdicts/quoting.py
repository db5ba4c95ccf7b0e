"""Which of the verdicts in a reply are only quoted from the text that is being judged."""

from __future__ import annotations

import re
from collections.abc import Sequence

from adjudge.verdicts.base import TooManyError
from adjudge.verdicts.plain import folded

__all__ = ["Quotes"]

_SHORT = 40
"""Longest verdict, folded, that a judge and a candidate write alike by chance."""
_REACH = 12
"""Characters beside a verdict that show a quotation going on; fewer than 8 show nothing."""
_LOOK = 400
_PER_PLACE = 20_000
_WORK = 40_000_000
_MOST_SEARCHES = 100
"""Work in characters searched: what a place costs, how much is done, searches always granted."""

_MARKS = " \t\n*_`#\"'~-"
_WITHOUT_MARKS = str.maketrans("", "", _MARKS)
_ENDS = ".!?。！？)）"
_FENCE = re.compile(r"```[A-Za-z0-9]{0,12}\s*\Z")
# How a judge leads over to its verdict.
_OWN_WORD = re.compile(
    r"(?:(?:\b(?:verdict|score|rating|grade|result|judge?ment|decision|choice|winner|conclusion|json|"
    r"evaluation|preference|overall|final|(?:final|my)\sanswer|therefore|thus|hence|so|finally)\b|结论|"
    r"评分|得分|分数|判断|裁决|选择|结果|评价|最终|因此|所以|综上)[^\w\n]*)+\Z",
    re.IGNORECASE,
)
_STOPS = re.compile(r"[*_`\"' \t]{0,8}(?:[\n.,;:!。，；！]|\Z|because\b|since\b|as\b)")


class Quotes:
    """The candidate's texts, for telling a judge's own verdict from one that it repeats.

    A verdict that stands in none of ``quoted`` (white space, case and typographic signs aside) is
    the judge's. One that does is the judge's only when all of this holds:

    * it is short (at most 40 characters): ``<score>3</score>`` or ``Output (b) is better`` may well
      stand in both; an object with a sentence in it was copied;
    * it is the first or the last thing in the reply, on a line of its own or beside the end of a
      sentence: there a judge puts its verdict, whereas a quotation is spoken of;
    * what precedes it does not announce a quotation: no colon, unless a word for the verdict itself
      stands before it ("Final verdict:"), and no opening quotation mark;
    * it does not go on in the candidate's words: the 12 characters beside it, words such as
      "therefore" left out, do not stand beside it in the candidate's text as well.

    So an echo that the judge writes beside its own verdict does not count, an echo without one
    leaves nothing, and an honest verdict after the reasoning counts although the candidate has
    written every possible verdict into its answer.

    Each different verdict is looked for once. When a reply has so many that looking would take more
    than a small part of a second, :class:`TooManyError` is raised, since passing over the rest
    could leave the wrong one.
    """

    def __init__(self, quoted: Sequence[str]) -> None:
        self._texts = [folded(text) for text in quoted if text]
        self._size = sum(map(len, self._texts))
        self._work = _WORK + _MOST_SEARCHES * self._size
        self._stands: dict[str, bool] = {}
        self._unmarked: list[str] | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def own(self, text: str, start: int, end: int) -> bool:
        """Whether ``text[start:end]`` is the judge's own, by the rule above."""
        self._spend(_PER_PLACE)
        verdict = folded(text[start:end])
        if not self._quoted(verdict):
            return True
        if len(verdict) > _SHORT:
            return False
        near = text[max(0, start - _LOOK) : start]
        before = _FENCE.sub("", near).rstrip(_MARKS) or text[: start - len(near)].rstrip(_MARKS)
        after = text[end:].strip(_MARKS + ".。")
        if not before:
            return _STOPS.match(text, end) is not None and not self._goes_on(verdict, after=after)
        if after or not _begins_anew(near, before):
            return False
        return not self._goes_on(verdict, before=_OWN_WORD.sub("", before[-_LOOK:]))

    def _quoted(self, verdict: str) -> bool:
        if (known := self._stands.get(verdict)) is None:
            self._spend(self._size)
            known = any(verdict in candidate for candidate in self._texts)
            self._stands[verdict] = known
        return known

    def _spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise TooManyError

    def _goes_on(self, verdict: str, *, before: str = "", after: str = "") -> bool:
        before = folded(before).translate(_WITHOUT_MARKS)[-_REACH:]
        after = folded(after[:_LOOK]).translate(_WITHOUT_MARKS)[:_REACH]
        if len(before + after) < _REACH * 2 // 3:
            return False
        # The marks between a verdict and its neighbour are the judge's to choose: look without.
        words = before + verdict.translate(_WITHOUT_MARKS) + after
        if self._unmarked is None:
            self._unmarked = [candidate.translate(_WITHOUT_MARKS) for candidate in self._texts]
        self._spend(self._size)
        return any(words in candidate for candidate in self._unmarked)


def _begins_anew(near: str, before: str) -> bool:
    """Whether a verdict begins on a line of its own, or after a sentence or a word for it."""
    named = _OWN_WORD.search(before[-_LOOK:]) is not None
    if before[-1] == ":":  # a quotation that was opened on this line is nobody's verdict
        line = before[-_LOOK:].rpartition("\n")[2]
        return named and not line.count('"') % 2 and line.count("“") <= line.count("”")
    between = near[len(near.rstrip(_MARKS)) :]
    return not between.count('"') % 2 and ("\n" in between or before[-1] in _ENDS or named)
