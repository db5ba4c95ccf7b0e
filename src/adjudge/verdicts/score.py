"""Reading a score."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from adjudge.errors import ErrorKind
from adjudge.verdicts.base import Unread, Verdict
from adjudge.verdicts.keys import first_under, tag_pattern
from adjudge.verdicts.numbers import AMOUNT, Scale, amount, score_of
from adjudge.verdicts.reply import (
    MOST_FOUND,
    NO_VERDICT,
    Found,
    Reply,
    read_blocks,
    reason_in,
    settle,
    truncated,
)

__all__ = ["read_score"]

_WRAP = r"[\s*_`\"'(\[|]{0,8}"
_SCORE = (
    "scores?", "ratings?", "grades?", "verdict", "judge?ment", "evaluation", "评分", "得分", "分数",
    "打分", "总分", "评级", "裁决",
)  # fmt: skip


@lru_cache(maxsize=64)
def _label(keys: tuple[str, ...]) -> re.Pattern[str]:
    """A word for a score, or one of ``keys``, and the number behind it."""
    own = tuple(re.escape(key).replace("_", r"[\s_]") for key in keys if key)
    word = rf"(?<![A-Za-z])(?:{'|'.join((*own, *_SCORE))})(?![A-Za-z])"
    return re.compile(
        # "Final score: 4", "**Rating** (1-5): 4", "the score is 4", "a score of 4", "评分：4"
        rf"(?:{word}[*_`]{{0,4}}(?:\s{{0,2}}[(\[][^()\[\]\n]{{0,40}}[)\]])?[\x00 ]{{0,60}}"
        r"[*_`]{0,4}\s{0,3}(?:[:=|]|->|(?<=分)\s{0,2}(?=[0-9])|(?:is|of|would\sbe|should\sbe|为|是)(?![A-Za-z])|-(?=\s)|\n)"
        rf"|^[#*_\s]{{0,6}}{word}(?=\s{{1,3}}[0-9.]{{1,6}}\W*$))"
        rf"\s{{0,3}}(?:(?:a|an|只有)(?![A-Za-z])\s{{0,3}})?{_WRAP}{AMOUNT}",
        re.IGNORECASE | re.MULTILINE,
    )


# What may follow a number that is a score, so that "I gave him 3 apples" is none.
_STOP = (
    r"(?=[\s*_`\"')\]]{0,6}(?:[.,;:!。，；！)\n-]|\Z|because|since|as\s|for\s|due\s|given\s|out\sof|"
    r"on\s|based\s|overall|因为|由于))"
)
_GIVEN = re.compile(
    # "I give it a 4", "I would rate this response 4/5", "deserves a 4", "我给这个回答打4分"
    r"(?:(?<![A-Za-z])(?:i|i'd|i'll|we|we'd)\s(?:(?:would|will|can|must|am)\s)?"
    r"(?:give|gave|giving|rate|score|grade|assign|award|say)(?![A-Za-z])[^.\n!?0-9]{0,60}?"
    r"|(?<![A-Za-z])(?:deserves|earns|merits|gets|receives)\s(?:a|an)\s(?:\w{1,10}\s)?)"
    rf"(?<![A-Za-z0-9.,/-]){AMOUNT}{_STOP}",
    re.IGNORECASE,
)
_GIVEN_ZH = re.compile(rf"(?:给|打|评)[^。\n！？0-9一二三四五六七八九十]{{0,12}}?{AMOUNT}(?<=分)")
_OUT_OF = re.compile(
    r"(?:^|[.!?:。：]\s|\b(?:is|a|at|as|of|overall|rated|scored)\s|^[*_#>-]{1,4}\s?)[*_\s]{0,4}"
    rf"(?<![\w.,/-]){AMOUNT}{_STOP}",
    re.IGNORECASE | re.MULTILINE,
)
# "a 1-5 scale", "from 1 to 5", "(1-5)": what the scale is, not what the score is.
_RANGE = re.compile(
    r"(?:scale|range|between|from|从)[^.\n0-9]{0,20}[0-9]{1,4}\s{0,2}(?:-|to|and|through|到|至|~)"
    r"\s{0,2}[0-9]{1,4}(?:\s?分)?|[(\[]\s?[0-9]{1,4}\s?(?:-|to|到|至|~)\s?[0-9]{1,4}\s?分?[)\]]"
    r"|(?:scale|range)\sof\s[0-9]{1,4}",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\s{0,3}(?:would|requires?|means?|needs?|indicates?|represents?|is\s(?:for|reserved)|could|"
    r"might|should\sbe\sgiven|表示|代表|意味|需要)(?![A-Za-z])",
    re.IGNORECASE,
)
_SUPPOSING = re.compile(
    r"(?:\b(?:if|unless|to\s(?:get|earn|reach|deserve|receive|obtain)|for\sa|instead\sof|"
    r"says?|claims?|demands?|asks?|wants|tells?|requests?|insists?|states?|instructs?)\b|如果|要求|声称)"
    r"[^.\n!?。]{0,60}\Z",
    re.IGNORECASE,
)
_MORE = re.compile(r"[.。!;]\s|\n\s*\S")
_STRONG_LABEL = re.compile(
    r"(?:\b(?:final|overall|total|aggregate)|最终|总体|综合|总)[\s*_]{0,4}(?:\w{1,12}\s)?\Z",
    re.IGNORECASE,
)


def read_score(
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    integer: bool = False,
    keys: Sequence[str] = ("score",),
    tag: str | None = None,
    block: str | None = None,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | Unread:
    r"""The one score that a judge's reply gives.

    Looked for, in this order: inside the tagged ``block`` that our prompt asked for; JSON with one
    of ``keys``, ``<score>3</score>`` (or another ``tag``) and ``[[3]]``, which must agree; a
    labelled line ("Score: 3", "评分：4"); a sentence ("I give it 3 out of 5"); the whole reply. A
    number is never taken from the range of a scale ("1-5"), from "3 or 4", or out of another
    maximum than ``high`` ("4/10" on a scale to 5). With ``low, high = 0, 1`` yes, no and booleans
    are scores.

    ``quoted``: the candidate's texts, whose verdicts are not the judge's (the rule:
    :class:`~adjudge.verdicts.quoting.Quotes`). ``cut``: the reply ran into its length limit, so
    that only what is complete counts.

    Returns a :class:`Verdict` whose ``value`` is a float (an int with ``integer``) within the
    scale; else an :class:`Unread`: ``out_of_range`` for one clear score outside it (never clamped)
    or not whole with ``integer``, ``truncated``, ``unparsable``. Raises nothing.

    >>> read_score('Clear and short. {"score": "4/5"}', low=1, high=5).value
    4.0
    >>> read_score("On a scale of 1-5 I give 4", low=1, high=5).value
    4.0
    >>> read_score("Score: 4. No, score: 2.", low=1, high=5).why
    'several verdicts that differ'
    """
    scale = Scale(low, high, integer)

    def read(reply: Reply) -> Verdict | Unread:
        return _read(reply, scale, tuple(keys), tag)

    return read_blocks(Reply(text, quoted, cut=cut), block, read)


def _read(reply: Reply, scale: Scale, keys: tuple[str, ...], tag: str | None) -> Verdict | Unread:
    if reply.values.given_up:
        return Unread(why="too much JSON, or too much that is broken")
    marked = list(islice(_marked(reply, scale, keys, tag), MOST_FOUND + 1))
    settled = settle(reply, marked)
    if isinstance(settled, Found) and not reply.bare:
        said = [one for one in _labelled(reply, scale, keys) if _called_final(reply, one.start)]
        if any(one.value != settled.value for one in said):
            return Unread(why="several verdicts that differ")
    if settled is None and reply.values.unclosed:
        return truncated(reply)
    if settled is None:
        settled = settle(reply, _finals(reply, _labelled(reply, scale, keys)))
    if settled is None:
        settled = settle(reply, _finals(reply, _spoken(reply, scale))) or _alone(reply, scale)
    if settled is None:
        return truncated(reply)
    if isinstance(settled, Unread):
        return settled
    return _verdict(reply, settled, scale)


def _verdict(reply: Reply, found: Found, scale: Scale) -> Verdict | Unread:
    score = found.value
    if not scale.holds(score):
        return Unread(kind=ErrorKind.OUT_OF_RANGE, why="a score outside the scale")
    return Verdict(
        value=int(score) if scale.integer else score,
        reason=reason_in(found.fields) or reply.around(found),
        form=found.form,
        fields=found.fields,
    )


def _found(start: int, end: int, score: float | None, form: str, **fields: Any) -> Found:
    return Found(start, end, NO_VERDICT if score is None else score, form, **fields)


def _marked(reply: Reply, scale: Scale, keys: tuple[str, ...], tag: str | None) -> Iterator[Found]:
    for piece in reply.values.pieces:
        for value, fields in first_under(piece.value, keys):
            yield _found(piece.start, piece.end, score_of(value, scale), "json", fields=fields)
    if reply.bare:
        return
    if "<" in reply.prose:
        for hit in tag_pattern(tag or "score").finditer(reply.prose):
            if reply.counts(*hit.span()):
                yield _found(*hit.span(), score_of(hit[2], scale), "tag")
    for start, end, content in reply.bracketed():
        yield _found(start, end, score_of(content, scale), "brackets")


def _without_ranges(prose: str) -> str:
    return _RANGE.sub(lambda found: "\x00" * (found.end() - found.start()), prose)


def _labelled(reply: Reply, scale: Scale, keys: tuple[str, ...]) -> list[Found]:
    """Scores behind a word for them."""
    return _sentences(reply, scale, _label(keys))


def _spoken(reply: Reply, scale: Scale) -> list[Found]:
    """Scores in a sentence: "I give it a 4", "4 out of 5"."""
    found = _sentences(reply, scale, _GIVEN) + _sentences(reply, scale, _GIVEN_ZH)
    if found or scale.high is None:
        return found
    return _sentences(reply, scale, _OUT_OF, only_with_scale=True)


def _sentences(
    reply: Reply, scale: Scale, pattern: re.Pattern[str], *, only_with_scale: bool = False
) -> list[Found]:
    prose = reply.reworked(_without_ranges)
    found: list[Found] = []
    for hit in islice(pattern.finditer(prose), 4 * MOST_FOUND):
        if only_with_scale and hit["scale"] is None:
            continue
        if not _supposed(prose, hit) and _whole(reply, prose, hit) and reply.counts(*hit.span()):
            found.append(_found(*hit.span(), amount(hit, scale), "phrase"))
    return found[: MOST_FOUND + 1]


def _supposed(prose: str, hit: re.Match[str]) -> bool:
    """Whether the sentence only speaks of a score: "a score of 5 would need …", "it asks for"."""
    if _SUPPOSED.match(prose, hit.end()):
        return True
    return _SUPPOSING.search(prose, max(0, hit.start() - 80), hit.start()) is not None


def _whole(reply: Reply, prose: str, hit: re.Match[str]) -> bool:
    """Of a cut reply: whether the score is complete, and no other can have followed."""
    if not reply.cut:
        return True
    if not _MORE.search(prose, hit.end()):
        return False
    return not prose[: hit.start()].strip(" \n*_#") or _called_final(reply, hit.start())


def _alone(reply: Reply, scale: Scale) -> Found | None:
    """The whole reply as a score."""
    text = reply.prose.strip()
    if not text or reply.cut or len(text) > 80 or text.startswith(">"):
        return None
    score = score_of(text, scale)
    return None if score is None else Found(0, len(reply.prose), score, "bare")


def _called_final(reply: Reply, start: int) -> bool:
    before = reply.prose[max(0, start - 40) : start]
    return reply.final(start) or _STRONG_LABEL.search(before) is not None


def _finals(reply: Reply, found: list[Found]) -> list[Found]:
    """Those called final or overall, when there are some; else all."""
    return [one for one in found if _called_final(reply, one.start)] or found
