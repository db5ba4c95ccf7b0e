"""Reading a score out of a reply that has no form of ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from adjudge.errors import ErrorKind
from adjudge.verdicts.base import Unread, Verdict
from adjudge.verdicts.menu import NOUNS
from adjudge.verdicts.numbers import AMOUNT, Scale, amount, score_of
from adjudge.verdicts.reply import (
    MOST_FOUND,
    NO_VERDICT,
    Found,
    Reply,
    read_reply,
    settle,
    truncated,
)

__all__ = ["read_score"]

_SCORE = (
    "score", "rating", "grade", "mark", "verdict", "judge?ment", "evaluation", "assessment",
    "overall", "评分", "得分", "分数", "打分", "总分", "评级", "裁决",
)  # fmt: skip
_OWN = (
    r"(?:(?:my|the|this|your|our|final|overall|total|numeric(?:al)?|aggregate|resulting|evaluation|"
    r"最终|总体|综合|总|我的)[\s*_]{0,3}){0,4}"
)
_SUBJECT = rf"(?:the|this|that)\s(?:{'|'.join(one for one in NOUNS if one.isascii())})"
# Where a sentence begins, after words that lead over to a conclusion or a clause before a comma.
_START = (
    r"(?:^|(?<=[.!?。！？]\s)|(?<=[。！？]))[#*_>|\s-]{0,200}+(?:[^.\n!?。0-9:;]{0,80}[,，]\s{0,2})?"
    r"(?:(?:so|thus|therefore|hence|and|overall|finally|on\sa\s?\x00{1,40}(?:\sscale)?|因此|所以|综上)"
    r",?\s{0,2}){0,2}(?:i\s(?:think|believe|find|conclude)\s(?:that\s)?)?"
)
# What may follow a score, so that it is the whole of what stands there: an end or a reason, and
# neither a number nor a condition.
_END = (
    r"(?=[\s*_`\"')\]|}\\$]{0,8}(?:\Z|\n|[.!。！](?=[\s*_`\"')\]]|\Z|[\u4e00-\u9fff])|"
    r"(?:[;,:；，：]|\s[-–—]|\s?\()(?=\s?[^\s0-9])"
    r"(?!\s?(?:if|when|unless|or|and|otherwise|provided|assuming|for|not|"
    r"two|three|four|five|six|seven|eight|nine|ten|如果|或)(?![a-z]))|"
    r"(?:because|since|as|given|due\sto|based\son|overall|on\s(?:a|the)|因为|由于)(?![a-z])))"
)


@lru_cache(maxsize=64)
def _label(keys: tuple[str, ...]) -> re.Pattern[str]:
    """A sentence that begins with a word for a score, or one of ``keys``, and goes on with it."""
    own = tuple(re.escape(key).replace("_", r"[\s_]") for key in keys if key)
    return re.compile(
        # "Final score: 4", "**Rating** (1-5): 4", "So the score is 4", "评分：4", "| Score | 4 |"
        rf"{_START}{_OWN}(?P<word>{'|'.join((*own, *_SCORE))})(?![A-Za-z])[*_`]{{0,4}}"
        rf"(?:\s(?:for|of)\s{_SUBJECT})?(?:\s{{0,2}}[(\[][^()\[\]\n]{{0,40}}[)\]]|[\x00 ]{{0,60}})"
        r"[*_`]{0,4}\s{0,3}(?:(?:[:=|→]|->|-(?=\s)|(?:is|would\sbe|should\sbe|为|是)(?![a-z])|\n{1,2}|"
        r"(?=\s?[0-9.]))\s{0,3}(?:(?:therefore|thus|hence)\s)?(?:an?(?![a-z])\s{0,3})?)"
        rf"[\s*_`\"'(\[|{{\\$]{{0,8}}{AMOUNT}(?P<ends>{_END})?",
        re.IGNORECASE | re.MULTILINE,
    )


_FILLER = r"(?:(?!\b(?:two|three|four|five|six|seven|eight|nine|ten)\b)[^.\n!?0-9]){0,60}?"
_GIVEN = re.compile(
    # "I give it a 4", "I would rate this response 4/5", "This deserves a 4", "我给这个回答打4分"
    rf"{_START}(?:(?:i|we)(?:'d|'ll|\s(?:would|will|can|must|am))?\s(?:therefore\s|also\s)?"
    rf"(?:give|gave|giving|rate|score|grade|assign|award|say)(?![a-z]){_FILLER}"
    rf"|(?:it|this|{_SUBJECT})\s(?:is|deserves|earns|merits|gets|receives)\s(?:an?\s)?"
    r"(?:(?:score|rating)\sof\s)?"
    r"|an?\s(?:score|rating)\sof\s(?=[^\n]{1,24}\s(?:is|seems)\s(?:right|fair|appropriate))"
    r"|我[^。\n！？0-9]{0,16}?(?:给|打|评)[^。\n！？0-9一二三四五六七八九十]{0,12}?)"
    rf"[*_`\[(]{{0,4}}(?<![A-Za-z0-9.,/-]){AMOUNT}(?P<ends>{_END}|(?=\sis\s|\sseems\s))",
    re.IGNORECASE | re.MULTILINE,
)
# "a 1-5 scale", "from 1 to 5", "(1-5)": what the scale is, not what the score is.
_RANGE = re.compile(
    r"(?:scale|range|between|from|从)[^.\n0-9]{0,20}[0-9]{1,4}\s{0,2}(?:-|to|and|through|到|至|~)"
    r"\s{0,2}[0-9]{1,4}(?:\s?分)?|[(\[]\s?[0-9]{1,4}\s?(?:-|to|到|至|~)\s?[0-9]{1,4}\s?分?[)\]]"
    r"|(?:scale|range)\sof\s[0-9]{1,4}|[0-9]{1,4}\s?-\s?[0-9]{1,4}(?=\sscale)",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"(?:\b(?:if|unless|were|had|normally|usually|initially|originally|first|before|to\s(?:get|earn|"
    r"reach|deserve|receive|obtain)|instead\sof|for\sa)\b|如果|要求|声称|满分|最高)",
    re.IGNORECASE,
)
_LOOSE = re.compile(
    # A bare number that somebody arrives at: "so 2/5", "to 2.", "no wait, 2"
    rf"(?:\b(?:to|so|now|is|as|an?|at|be|it|say|meant|instead|rather|that)|[,…]|\.\.\.)\s{AMOUNT}{_END}",
    re.IGNORECASE,
)
_ABBREVIATED = re.compile(r"[a-z]\.\s[a-z]\Z")  # a full stop inside a sentence: "Max. score"
_LINE = re.compile(r"[^\n]*\S[^\n]*")
_LONGEST, _MOST_LINES = 80, 2_000
_DASHES = "–—―‐‑"


def read_score(
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    integer: bool = False,
    keys: Sequence[str] = ("score", "rating", "final_score", "overall_score"),
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | Unread:
    r"""The one score that a judge's reply gives, where no form of ours was asked for.

    Looked for are JSON with one of ``keys``, ``<score>3</score>``, ``[[3]]``,
    a sentence or line that begins with a word for the score ("Score: 3", "评分：4") and a first or
    last line that is nothing but a number; without any of these a sentence that gives one ("I give
    it 3 out of 5"). All that is found must agree, unless the last is called final. No verdict is
    what is part of arithmetic, a list or a condition, out of another maximum than ``high``, called
    by another name ("Maximum score"), or taken back. With ``low, high = 0, 1`` yes, no and booleans
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
    return read_reply(
        Reply(text, quoted, cut=cut),
        partial(_read, scale=Scale(low, high, integer), keys=tuple(keys)),
    )


def _read(reply: Reply, scale: Scale, keys: tuple[str, ...]) -> Verdict | Unread:
    marked = reply.marked(keys, "score|rating", partial(_score, scale))
    found = list(islice(marked, MOST_FOUND + 1))
    if not found and reply.values.unclosed:
        return truncated(reply)
    if not reply.bare:
        prose = _without_ranges(reply.prose)
        found += _sentences(reply, prose, scale, _label(keys)) + _lines(reply, scale)
        found = found or _sentences(reply, prose, scale, _GIVEN)
    settled = settle(reply, found)
    if not isinstance(settled, Found):
        return settled or truncated(reply)
    if not scale.holds(settled.value):
        return Unread(kind=ErrorKind.OUT_OF_RANGE, why="a score outside the scale")
    if _followed_by_another(reply, settled, scale):
        return Unread(why="several verdicts that differ")
    return reply.verdict(settled, int(settled.value) if scale.integer else settled.value)


def _score(scale: Scale, value: Any) -> Any:
    score = score_of(value, scale)
    return NO_VERDICT if score is None else score


def _without_ranges(prose: str) -> str:
    return _RANGE.sub(lambda found: "\x00" * (found.end() - found.start()), prose)


def _sentences(reply: Reply, prose: str, scale: Scale, pattern: re.Pattern[str]) -> list[Found]:
    found: list[Found] = []
    for hit in islice(pattern.finditer(prose), 4 * MOST_FOUND):
        start, end = hit.start(), hit.end("number")
        lead = prose[start : hit.start("number")]
        if _SUPPOSED.search(lead) or _ABBREVIATED.search(prose, max(0, start - 8), start + 1):
            continue
        firm = reply.final(start, hit.end())
        if not reply.complete(start, hit.end(), firm=firm) or not reply.counts(start, end):
            continue
        score = amount(hit, scale) if hit["ends"] is not None else None
        if hit["number"].startswith("-") and reply.text[hit.start("number")] in _DASHES:
            score = None  # a dash, or a sign?
        found.append(Found(start, hit.end(), NO_VERDICT if score is None else score, "phrase"))
    return found[: MOST_FOUND + 1]


def _lines(reply: Reply, scale: Scale) -> list[Found]:
    """Lines that are nothing but a number, where the first or last is one, apart from the rest."""
    lines = list(islice(_LINE.finditer(reply.prose), _MOST_LINES))
    if not 0 < len(lines) < _MOST_LINES:
        return []
    found = [
        Found(*line.span(), score, "bare")
        for line in lines
        if len(line[0]) < _LONGEST
        and (score := score_of(line[0], scale)) is not None
        and reply.counts(*line.span())
    ]
    if len(lines) == 1:
        return [] if reply.cut else found
    at = {one.start for one in found}
    opens = lines[0].start() in at and lines[1].start() - lines[0].end() > 1
    before, last = lines[-2:]
    closes = last.start() in at and last.start() - before.end() > 1 and not reply.cut
    announced = before[0].rstrip().endswith((":", "："))
    return found if opens or (closes and not announced) else []


def _followed_by_another(reply: Reply, settled: Found, scale: Scale) -> bool:
    """Whether the reply arrives at another number after its verdict: "so 2/5", "I make it 2"."""
    if reply.bare:
        return False
    prose = _without_ranges(reply.prose)
    loose = [amount(hit, scale) for hit in _LOOSE.finditer(prose, settled.end)]
    given = [one.value for one in _sentences(reply, prose, scale, _GIVEN) if one.end > settled.end]
    return any(
        type(one) is float and one != settled.value and scale.holds(one) for one in loose + given
    )
