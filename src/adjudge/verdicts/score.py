"""Reading a score, or a ranking of several samples, out of a reply that has no form of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any

from adjudge.errors import ErrorKind
from adjudge.verdicts.json_text import find_under_keys, normalize_key
from adjudge.verdicts.notation import (
    ANSWER_NOUNS,
    NUMBER_PATTERN,
    normalize_signs,
    parse_amount,
    parse_score,
)
from adjudge.verdicts.reply import (
    MAX_MATCHES,
    NO_VERDICT,
    ReplyText,
    VerdictMatch,
    apply_reader,
    missing_verdict,
    select_verdict,
)
from adjudge.verdicts.strict import NumberScale, UnreadableReply, Verdict, check_places

_SCORE = (
    "score", "rating", "grade", "mark", "verdict", "judge?ment", "evaluation", "assessment",
    "overall", "评分", "得分", "分数", "打分", "总分", "评级", "裁决",
)  # fmt: skip
_OWN = (
    r"(?:(?:my|the|this|your|our|final|overall|total|numeric(?:al)?|aggregate|resulting|evaluation|"
    r"最终|总体|综合|总|我的)[\s*_]{0,3}){0,4}"
)
_SUBJECT = rf"(?:the|this|that)\s(?:{'|'.join(one for one in ANSWER_NOUNS if one.isascii())})"
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
        rf"[\s*_`\"'(\[|{{\\$]{{0,8}}{NUMBER_PATTERN}(?P<ends>{_END})?",
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
    rf"[*_`\[(]{{0,4}}(?<![A-Za-z0-9.,/-]){NUMBER_PATTERN}(?P<ends>{_END}|(?=\sis\s|\sseems\s))",
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
    rf"(?:\b(?:to|so|now|is|as|an?|at|be|it|say|meant|instead|rather|that)|[,…]|\.\.\.)\s{NUMBER_PATTERN}{_END}",
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
) -> Verdict | UnreadableReply:
    r"""The one score that a judge's reply gives, where no form of ours was asked for.

    Looked for are JSON with one of ``keys``, ``<score>3</score>``, ``[[3]]``,
    a sentence or line that begins with a word for the score ("Score: 3", "评分：4") and a first or
    last line that is nothing but a number; without any of these a sentence that gives one ("I give
    it 3 out of 5"). All that is found must agree, unless the last is called final. No verdict is
    what is part of arithmetic, a list or a condition, out of another maximum than ``high``, called
    by another name ("Maximum score"), or taken back. With ``low, high = 0, 1`` yes, no and booleans
    are scores.

    ``quoted``: the candidate's texts, whose verdicts are not the judge's (the rule:
    :class:`~adjudge.verdicts.reply.Quotes`). ``cut``: the reply ran into its length limit, so
    that only what is complete counts.

    Returns a :class:`Verdict` whose ``value`` is a float (an int with ``integer``) within the
    scale; else an :class:`UnreadableReply`: ``out_of_range`` for one clear score outside it (never
    clamped) or not whole with ``integer``, ``truncated``, ``unparsable``. Raises nothing.

    >>> read_score('Clear and short. {"score": "4/5"}', low=1, high=5).value
    4.0
    >>> read_score("On a scale of 1-5 I give 4", low=1, high=5).value
    4.0
    >>> read_score("Score: 4. No, score: 2.", low=1, high=5).why
    'several verdicts that differ'
    """
    return apply_reader(
        ReplyText(text, quoted, cut=cut),
        partial(_read_score_reply, scale=NumberScale(low, high, integer), keys=tuple(keys)),
    )


def _read_score_reply(
    reply: ReplyText, scale: NumberScale, keys: tuple[str, ...]
) -> Verdict | UnreadableReply:
    marked = reply.find_keyed_verdicts(keys, "score|rating", partial(_score, scale))
    found = list(islice(marked, MAX_MATCHES + 1))
    if not found and reply.json_values.unclosed:
        return missing_verdict(reply)
    if not reply.is_only_json:
        prose = _without_ranges(reply.prose)
        found += _sentences(reply, prose, scale, _label(keys)) + _lines(reply, scale)
        found = found or _sentences(reply, prose, scale, _GIVEN)
    settled = select_verdict(reply, found)
    if not isinstance(settled, VerdictMatch):
        return settled or missing_verdict(reply)
    if not scale.holds(settled.value):
        return UnreadableReply(kind=ErrorKind.OUT_OF_RANGE, why="a score outside the scale")
    if _followed_by_another(reply, settled, scale):
        return UnreadableReply(why="several verdicts that differ")
    return reply.make_verdict(settled, int(settled.value) if scale.integer else settled.value)


def _score(scale: NumberScale, value: Any) -> Any:
    score = parse_score(value, scale)
    return NO_VERDICT if score is None else score


def _without_ranges(prose: str) -> str:
    return _RANGE.sub(lambda found: "\x00" * (found.end() - found.start()), prose)


def _sentences(
    reply: ReplyText, prose: str, scale: NumberScale, pattern: re.Pattern[str]
) -> list[VerdictMatch]:
    found: list[VerdictMatch] = []
    for hit in islice(pattern.finditer(prose), 4 * MAX_MATCHES):
        start, end = hit.start(), hit.end("number")
        lead = prose[start : hit.start("number")]
        if _SUPPOSED.search(lead) or _ABBREVIATED.search(prose, max(0, start - 8), start + 1):
            continue
        firm = reply.is_called_final(start, hit.end())
        complete = reply.is_complete(start, hit.end(), firm=firm)
        if not complete or not reply.is_own_statement(start, end):
            continue
        score = parse_amount(hit, scale) if hit["ends"] is not None else None
        if hit["number"].startswith("-") and reply.text[hit.start("number")] in _DASHES:
            score = None  # a dash, or a sign?
        found.append(
            VerdictMatch(start, hit.end(), NO_VERDICT if score is None else score, "phrase")
        )
    return found[: MAX_MATCHES + 1]


def _lines(reply: ReplyText, scale: NumberScale) -> list[VerdictMatch]:
    """Lines that are nothing but a number, where the first or last is one, apart from the rest."""
    lines = list(islice(_LINE.finditer(reply.prose), _MOST_LINES))
    if not 0 < len(lines) < _MOST_LINES:
        return []
    found = [
        VerdictMatch(*line.span(), score, "bare")
        for line in lines
        if len(line[0]) < _LONGEST
        and (score := parse_score(line[0], scale)) is not None
        and reply.is_own_statement(*line.span())
    ]
    if len(lines) == 1:
        return [] if reply.cut else found
    at = {one.start for one in found}
    opens = lines[0].start() in at and lines[1].start() - lines[0].end() > 1
    before, last = lines[-2:]
    closes = last.start() in at and last.start() - before.end() > 1 and not reply.cut
    announced = before[0].rstrip().endswith((":", "："))
    return found if opens or (closes and not announced) else []


def _followed_by_another(reply: ReplyText, settled: VerdictMatch, scale: NumberScale) -> bool:
    """Whether the reply arrives at another number after its verdict: "so 2/5", "I make it 2"."""
    if reply.is_only_json:
        return False
    prose = _without_ranges(reply.prose)
    loose = [parse_amount(hit, scale) for hit in _LOOSE.finditer(prose, settled.end)]
    given = [one.value for one in _sentences(reply, prose, scale, _GIVEN) if one.end > settled.end]
    return any(
        type(one) is float and one != settled.value and scale.holds(one) for one in loose + given
    )


_NOUN = "|".join(noun for noun in ANSWER_NOUNS if noun.isascii())
_NAME = rf"(?:(?i:{_NOUN})\s{{1,2}})?[(\[\"']{{0,2}}(?:[A-Z]|[0-9]{{1,4}})[)\]\"']{{0,2}}"
_ORDER = re.compile(rf"(?<![\w>=<])({_NAME}(?:\s?(?:>{{1,3}}|=|~)\s?{_NAME})+)")
_WORST_FIRST = re.compile(
    r"worst\s(?:to|first)|(?:least|lowest)\s(?:to|first)|ascending|最差到|从差", re.IGNORECASE
)
_NUMBER = re.compile(r"\D{0,16}([0-9]{1,4})\D{0,4}|\W{0,4}(?:[A-Za-z]{2,12}\W{1,3})?([A-Z])\W{0,4}")


def read_ranking(
    text: str,
    n: int,
    *,
    keys: Sequence[str] = ("rank", "ranking"),
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | UnreadableReply:
    """The places of ``n`` samples, in the samples' order.

    Read are, under one of ``keys``, a list of *n* places (``[2, 1, 3]``: the first sample is
    second), an object of places by sample number or letter, or letters from best to worst
    (``["B", "A"]``); an order ("B > A = C", "2 > 1 > 3"); and a bare list of numbers where it says
    the same read as places and as samples from best to worst.

    Places run from 1, the best; equal samples share a number, and the next place may be skipped or
    not. ``[1, 1, 3]`` and ``[1, 1, 2]`` are fine, ``[1, 3, 3]`` is not. ``quoted`` and ``cut``: as
    for :func:`~adjudge.verdicts.read_score`.

    Returns a :class:`Verdict` whose ``value`` is a list of *n* integers from 1 to *n*; else an
    :class:`UnreadableReply`. Raises nothing.

    >>> read_ranking('{"rank": [2, 1, 3], "reason": "…"}', 3).value
    [2, 1, 3]
    >>> read_ranking("B > C > A", 3).value
    [3, 1, 2]
    """
    return apply_reader(
        ReplyText(text, quoted, cut=cut), partial(_read_ranking_reply, n=n, keys=tuple(keys))
    )


def _read_ranking_reply(
    reply: ReplyText, n: int, keys: tuple[str, ...]
) -> Verdict | UnreadableReply:
    found = list(islice(_in_json(reply, n, keys), MAX_MATCHES))
    if not reply.json_values.unclosed:
        found += islice(_in_text(reply, n), MAX_MATCHES)
    settled = select_verdict(reply, found)
    if not isinstance(settled, VerdictMatch):
        return settled or missing_verdict(reply)
    return reply.make_verdict(settled, settled.value)


def _in_json(reply: ReplyText, n: int, keys: tuple[str, ...]) -> Iterator[VerdictMatch]:
    wanted = {normalize_key(key) for key in keys}
    for piece in reply.json_values.pieces:
        found = piece.value
        if isinstance(found, list) and all(isinstance(item, int | str) for item in found):
            places = _same_either_way(_places(found, n))
            yield VerdictMatch(piece.start, piece.end, places or NO_VERDICT, "json")
            continue
        own = found.items() if isinstance(found, dict) else ()  # a ranking may be an object
        values = [(inner, found) for key, inner in own if normalize_key(key) in wanted]
        for value, fields in values or find_under_keys(found, keys):
            yield VerdictMatch(
                piece.start, piece.end, _places(value, n) or NO_VERDICT, "json", fields
            )


def _in_text(reply: ReplyText, n: int) -> Iterator[VerdictMatch]:
    for found in _ORDER.finditer(reply.prose):
        behind = reply.prose[found.end() :].lstrip(" *)]")
        if behind[:1] in ("<", ">", "=") or (reply.cut and not behind):
            continue  # more follows, or could have followed, of which this makes nothing
        if reply.is_own_statement(*found.span()) and not reply.is_reported(found.start()):
            line = reply.prose[reply.prose.rfind("\n", 0, found.start()) + 1 : found.start()]
            value = None if _WORST_FIRST.search(line) else _ordered(found[0], n)
            yield VerdictMatch(*found.span(), value or NO_VERDICT, "phrase")


def _same_either_way(places: list[int] | None) -> list[int] | None:
    """Numbers that may be places or name samples from best to worst: where both are the same."""
    if places is None or len(set(places)) < len(places):
        return places
    return places if all(places[place - 1] == at for at, place in enumerate(places, 1)) else None


def _ordered(text: str, n: int) -> list[int] | None:
    """Places from "B > A = C": equals share the first of their places."""
    places: dict[int | None, int] = {}
    place = 1
    for number, item in enumerate(re.split(r"(?<=[>=~])(?=[^>=~])", text), 1):
        sample = _sample(item.rstrip(">=~ "))
        if sample is None or sample in places:
            return None
        places[sample] = place
        if item[-1] == ">":
            place = number + 1
    return _by_sample(places, n)


def _places(value: Any, n: int) -> list[int] | None:
    """``value`` of a ranking key as places; ``None`` for what is none."""
    if isinstance(value, str):
        return (
            _ordered(value, n)
            if _ORDER.fullmatch(value := normalize_signs(value).strip())
            else None
        )
    if isinstance(value, dict):
        by_name = {_sample(str(key)): _whole(place) for key, place in value.items()}
        return _by_sample(by_name, n) if len(by_name) == len(value) else None
    if not isinstance(value, list) or len(value) != n:
        return None
    if all(isinstance(item, str) and not item.strip().isdigit() for item in value):
        return _by_sample({_sample(item): place for place, item in enumerate(value, 1)}, n)
    return check_places([_whole(item) for item in value], n)


def _whole(place: Any) -> int | None:
    text = "" if isinstance(place, bool) else str(place).removesuffix(".0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None


def _sample(name: str) -> int | None:
    """The number of a sample from 1, by its number or letter ("Response 2", "B")."""
    found = _NUMBER.fullmatch(name) if len(name) < 40 else None
    if found is None:
        return None
    return int(found[1]) if found[1] else ord(found[2]) - ord("A") + 1


def _by_sample(places: Mapping[int | None, int | None], n: int) -> list[int] | None:
    if set(places) != set(range(1, n + 1)):
        return None
    return check_places([places[sample] for sample in range(1, n + 1)], n)


# --- what a reason says of the answer -----------------------------------------------------------

# Precise rather than complete: a reason counts only where a number or a plain statement about the
# answer stands in it, once and without a condition.

_MAXIMUM = re.compile(
    r"[0-9](?:\.[0-9]+)?\s?(?:/|\bout\sof)\s?([0-9]{1,3})\b(?!/|%|\.[0-9])", re.IGNORECASE
)
_SCORE_WORDS = re.compile(r"score|rating|\brate|\bgive|award|grade|points|评|分", re.IGNORECASE)
_LONGEST_REASON = 4_000


def read_stated_score(reason: str) -> float | None:
    """The score that a reason states, as a number out of what it says is the maximum.

    The value itself where no maximum is named; ``None`` where there is no one clear score.

    >>> read_stated_score("Mostly wrong. Score: 2/10"), read_stated_score("Rating: 4")
    (0.2, 4.0)
    >>> read_stated_score("It lists 3 of 5 rivers."), read_stated_score("The answer is 42.")
    (None, None)
    """
    text = reason[-_LONGEST_REASON:]
    maxima = {int(found) for found in _MAXIMUM.findall(text)} - {0}
    if len(maxima) > 1:
        return None
    high = float(maxima.pop()) if maxima else None
    read = read_score(text, low=0.0 if high else None, high=high)
    if not isinstance(read, Verdict) or (read.form == "phrase" and not _SCORE_WORDS.search(text)):
        return None
    return float(read.value) / (high or 1.0)


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

    Where both are said, or the statement is hedged, conditional or somebody else's, it is 0.

    >>> read_polarity("The answer is incorrect: Lima is not in Chile.")
    -1
    >>> read_polarity("The response fully answers the question.")
    1
    >>> read_polarity("The answer is not incorrect."), read_polarity("Nothing is wrong here.")
    (0, 0)
    """
    text = reason if len(reason) <= _LONGEST_REASON else f"{reason[:500]}\n{reason[-1500:]}"
    text = " ".join(text.replace("\n", " . ").split())
    negative, positive = _NEGATIVE.search(text), _POSITIVE.search(text)
    if bool(negative) == bool(positive):
        return 0
    found = negative or positive
    if found is None or _HEDGED.search(_sentence_around(text, *found.span())):
        return 0
    return -1 if negative else 1


def _sentence_around(text: str, start: int, end: int) -> str:
    left = max(text.rfind(mark, 0, start + 1) for mark in (". ", "! ", "? ", "\n"))
    rights = [at for mark in (". ", "! ", "? ") if (at := text.find(mark, end - 1)) >= 0]
    return text[left + 1 : (min(rights) + 1 if rights else len(text))]
