"""What judges said in words: scores and opinions of reasons, errors that became rewards.

Rules, no model, and precise rather than complete: a reason counts only where it has a number or a
plain statement about the answer, once and without a condition, and only the two ends of the scale
contradict a statement.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from adjudge.checks.check import (
    STATED_POWER,
    AdvantageImpact,
    Check,
    CheckResult,
    need,
    not_applicable,
    severity_of,
)
from adjudge.checks.effects import Affected, estimate_share_by_group
from adjudge.checks.run import AuditedRollout, AuditedRun, BlockFeature
from adjudge.stats import Estimate
from adjudge.stats.agreement import spearman_correlation
from adjudge.stats.estimates import normal_tail, np, special
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


class _Judgement(NamedTuple):
    """What a reason says, and the number that was recorded with it."""

    stated: float | None = None
    maximum: float | None = None
    stated_with: float | None = None
    polarity: float | None = None
    polarity_with: float | None = None


_SUFFIXES = re.compile(
    r"[_.\s]?(?:reason(?:ing|s)?|rationale?|explanation|critique|verdict|feedback|comment|text|"
    r"response|output|reply|raw)$",
    re.IGNORECASE,
)


def find_recorded_score(rollout: AuditedRollout, name: str) -> float | None:
    """The number that goes with the reason ``name``: its grader's, else the reward."""
    for one in _score_names(name):
        if one in rollout.components:
            return rollout.components[one]
    return rollout.reward


@lru_cache(maxsize=256)
def _score_names(reason: str) -> tuple[str, ...]:
    stem = _SUFFIXES.sub("", reason)
    return reason, stem, f"{stem}_score", f"{stem}_reward"


def _judge_reasons(rollout: AuditedRollout) -> _Judgement:
    said = _Judgement()
    for name, reason in rollout.reasons.items():
        recorded = find_recorded_score(rollout, name)
        if recorded is None or math.isnan(recorded) or is_judge_error(reason):
            continue
        if said.stated is None and (stated := read_stated_score(reason)) is not None:
            said = said._replace(stated=stated.score, maximum=stated.maximum, stated_with=recorded)
        if said.polarity is None and (polarity := read_polarity(reason)):
            said = said._replace(polarity=float(polarity), polarity_with=recorded)
    return said


_SCALES = (1.0, 4.0, 5.0, 7.0, 10.0, 100.0)
_MATCHED, _ALSO_MATCHED = 0.6, 0.25
_TOLERANCE = 0.006  # of a number that was rounded to two places


def find_mismatches(stated: Any, recorded: Any) -> tuple[Any, bool] | None:
    """Which recorded scores are not what was stated; and whether the scale is reversed.

    The two are related in one of the usual ways (as stated, as a share of a scale's maximum, from 1
    to a maximum; straight or reversed): the one that holds for most rows, and any that holds for a
    quarter of them. ``None`` where none holds for 60 %, so that they are not the same number. On a
    reversed scale a row is no mismatch that says the same in both directions.
    """
    straight, reversed_ = [stated], []
    for top in _SCALES:
        straight += [stated / top, stated * top, 2 * stated / top - 1]
        reversed_ += [(top - stated, stated), (1 - stated / top, stated / top)]
        if top > 1:
            shift = (stated - 1) / (top - 1)
            straight += [shift, 1 + stated * (top - 1)]
            reversed_ += [(top + 1 - stated, stated), (1 - shift, shift)]
    least = _MATCHED * len(stated)
    hits = [_agree(recorded, one) for one in straight]
    best = max(int(one.sum()) for one in hits)
    turned, both = max(
        ((_agree(recorded, one), _agree(recorded, other)) for one, other in reversed_),
        key=lambda pair: int(pair[0].sum()),
    )
    if int(turned.sum()) > max(best, least):
        return turned & ~both, True
    if best < least:
        return None
    explained = [one for one in hits if int(one.sum()) >= _ALSO_MATCHED * len(stated)]
    return ~np.logical_or.reduce(explained), False


def _agree(recorded: Any, value: Any) -> Any:
    return np.abs(recorded - value) <= _TOLERANCE * np.maximum(1, np.abs(value))


_MIN_READ = 8


def _find_contradictions(run: AuditedRun) -> CheckResult:
    stated, maximum, stated_with, polarity, polarity_with = run.feature("contradictions.said").T
    numbers, wrong_number = np.zeros((2, len(run)), dtype=bool)
    is_reversed = off_scale = False
    # A judge may word one score as 7/10 here and as 7 there: each form has its own scale.
    for form in (np.isfinite(stated) & has for has in (np.isfinite(maximum), np.isnan(maximum))):
        if int(form.sum()) < _MIN_READ:
            continue
        found = find_mismatches(stated[form], stated_with[form])
        if found is not None:
            numbers |= form
            wrong_number[form], turned = found
            is_reversed |= turned
            continue
        off_scale = True
        unrelated = _find_unrelated(run, form, stated, stated_with)
        if unrelated is not None:
            return unrelated
    statements = np.isfinite(polarity)
    ends = polarity_with[statements]
    low, high = (float(ends.min()), float(ends.max())) if len(ends) else (0.0, 0.0)
    margin = END_OF_SCALE * (high - low)
    opposed = statements & (
        ((polarity < 0) & (polarity_with >= high - margin))
        | ((polarity > 0) & (polarity_with <= low + margin))
    )
    if high <= low:
        statements = opposed = np.zeros_like(statements)
    read = numbers | statements
    count = int(read.sum())
    if count < _MIN_READ:
        return not_applicable(
            "the scores that the reasons state are on no scale of the recorded ones"
            if off_scale
            else "there are too few reasons that state a score or a clear opinion"
        )
    mask = wrong_number | opposed
    affected = int(mask.sum())
    result = CheckResult(
        p_value=float(special.bdtrc(affected - 1, count, READING_ERRORS)) if affected else 1.0,
        effect=estimate_share_by_group(run, mask, read),
        unit="share of the reasons that can be read",
        visible=visible_contradictions(count),
    )
    if not affected:
        return result
    parts = []
    if wrong_number.any():
        what = "the reverse of the score" if is_reversed else "another score than the one"
        parts.append(f"{int(wrong_number.sum())} record {what} that the reason states")
    if opposed.any():
        parts.append(
            f"{int(opposed.sum())} call the answer wrong and give the top score, or the reverse"
        )
    return Affected(run, mask, result).describe(
        f"{affected} of {count} verdicts with a reason that can be read contradict it: "
        f"{'; '.join(parts)}.",
        otherwise="The rules that read reasons may misread some. A swapped scale, or a parser that "
        "takes the first number, gives the same. Read the samples.",
        advice="Ask for the score in a form that a strict reader checks.",
    )


_FOLLOWS, _SAME_QUANTITY = 0.5, 0.8
_MIN_UNRELATED = 20


def _find_unrelated(run: AuditedRun, known: Any, stated: Any, recorded: Any) -> CheckResult | None:
    """Recorded scores that hardly follow the stated ones: another row's, or another quantity.

    ``None`` where they follow them on some scale of their own, or there are too few. The p value is
    Fisher's, that the rank correlation is no less than that of one quantity told twice.
    """
    count = int(known.sum())
    if count < _MIN_UNRELATED:
        return None
    follows = spearman_correlation(stated[known].tolist(), recorded[known].tolist())
    if follows is None or follows >= _FOLLOWS:
        return None
    apart = math.atanh(_SAME_QUANTITY) - math.atanh(max(-0.999, follows))
    result = CheckResult(
        p_value=normal_tail(apart * math.sqrt((count - 3) / 1.06)),
        effect=Estimate(follows, why="counted"),
        unit="rank correlation of stated and recorded scores",
    )
    return Affected(run, known, result).describe(
        f"The reasons of {count} samples state a score, and the recorded scores hardly follow "
        f"it: rank correlation {follows:.2f}.",
        otherwise="The reward may have other parts than this judge's score: look at that alone. "
        "Else the reasons are another row's, or their scores are turned round or replaced. Read "
        "some samples.",
        impact=AdvantageImpact(why="it is not known which samples are wrong"),
        severity="high",
    )


def visible_contradictions(count: int) -> Callable[[float], float]:
    """The smallest share of ``count`` reasons that is found in 90 % of runs."""

    def at(level: float) -> float:
        hits = np.arange(count + 1)
        enough = np.flatnonzero(special.bdtrc(hits - 1, count, READING_ERRORS) <= level)
        least = int(enough[0]) if len(enough) else count
        return float(special.bdtri(least - 1, count, 1 - STATED_POWER)) if least > 0 else 0.0

    return at


_CALL = r"(?:judge|grader|scorer|reward\smodel|llm|model|api|server|endpoint|evaluation|provider)"
_ERROR = re.compile(
    # A text that begins as an error does: its class, its code, or the call that failed.
    r"(?:(?:\W{0,3}(?:error|warning|exception|failed|failure)\W{1,3})?(?:"
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout)(?=\s?[:(,;]|\.?$)"
    rf"|(?:the\s)?{_CALL}(?:'s)?\s(?:(?:call|request|reply|response)\s)?(?:has\s)?(?:failed|timed\sout|"
    r"errored|crashed|error(?!s)|timeout|unavailable|could\snot\sbe|was\snot\s(?:parsed|valid))\b"
    r"|(?:(?:error|status)(?:\scode)?|HTTP)[\s:=/]{0,3}(?:1\.[01]\s)?(?:429|40[0-9]|5[0-9]{2})\b"
    r"|(?:429|5[0-9]{2})[\s:]{1,3}(?:too\smany|internal|service|bad|gateway|server)"
    r"|(?:too\smany\srequests|service\s(?:temporarily\s)?unavailable|bad\sgateway|gateway\stime-?out|"
    r"internal\sserver\serror|rate\slimit(?:ed|\s(?:exceeded|reached|error))|connection\s(?:error|"
    r"reset|refused|aborted|timed\sout)|(?:request\s|read\s|connect\s)?time(?:d\s)?-?out(?:\serror)?|"
    r"(?:parse|parsing|json|decoding|validation)\s(?:error|failure|failed))"
    r"(?=\s?[.,:;!(]|\s(?:after|by|from|while|when|default\w*|for\s(?:url|http))\b|\s?$)"
    r"|(?:could\snot|couldn't|cannot|can't|failed\sto|unable\sto)\s(?:be\s)?(?:parse|decode|extract|read|"
    rf"get|grade|score|connect|reach|call|query)\w*\s[^.\n]{{0,30}}?\b(?:{_CALL}|score|verdict|rating|"
    r"judgement|judgment|reply|json|output|response)\b"
    r"|no\s(?:valid\s)?(?:score|verdict|rating|judgement|judgment)\s(?:was\s|could\sbe\s)?(?:found|returned|received|"
    r"parsed|extracted)"
    r"|exception:\s\S"
    r"|(?:error|none|null|n/a|nan|failed)[.!]?$"
    r"))",
    re.IGNORECASE,
)
_REPLACED = re.compile(
    # A text that says which number took the score's place.
    r"\b(?:defaulting|default(?:s|ed)?|falling\sback|fallback)\sto\s(?:a\s)?(?:default\s|neutral\s)?"
    r"(?:score|reward|[0-9])|\b(?:default|fallback)\s(?:score|reward)\b(?=\s?(?:[.,:;=0-9]|used|of|$))",
    re.IGNORECASE,
)
_TRACEBACK = "Traceback (most recent"
_ABOUT_THE_ANSWER = re.compile(
    rf"\b(?:the|this|its|their|your|user'?s?|student'?s?)\s(?:\w+\s)?(?:{ANSWER_NOUN}|code|program|function|script|test|"
    r"tests|agent|implementation)\b(?!'s\sreply)",
    re.IGNORECASE,
)
_LONGEST_ERROR = 600


@lru_cache(maxsize=256)
def is_judge_error(reason: str) -> bool:
    """Whether the text in place of a reason is the error of a judge's call.

    It begins as an error does, or names the number that took the score's place, and says nothing of
    the answer: a reason may say that the *answer's* code has a timeout, or forgets a rate limit.

    >>> is_judge_error("RateLimitError: 429, defaulting to 0.5")
    True
    >>> is_judge_error("The code fails with a timeout error on the third test.")
    False
    >>> is_judge_error("No handling of a connection error at all.")
    False
    """
    text = reason.strip()
    if text.startswith(_TRACEBACK):
        return True
    if not text or len(text) > _LONGEST_ERROR:
        return False
    replaced = "fa" in text.lower() and _REPLACED.search(text)  # "default", "fall back"
    if not replaced and not _ERROR.match(text):
        return False
    return not _ABOUT_THE_ANSWER.search(text.replace("model's", "").replace("the model", ""))


def measure_error_text(rollout: AuditedRollout) -> float | None:
    """Whether a judge's words on a rollout are an error; ``None`` where there are no words.

    2 where the run itself says that it made a failure a number.
    """
    if rollout.missing and rollout.reward is not None:
        return 2.0
    if not any(rollout.reasons.values()):
        return None
    return float(any(map(is_judge_error, rollout.reasons.values())))


_FIXED_SHARE = 0.8


def _find_judge_errors(run: AuditedRun) -> CheckResult:
    error = run.feature("judge_errors.error")
    known = np.isfinite(error)
    count = int(known.sum())
    need(count, "no judge's words are there")
    mask = known & (error > 0) & np.isfinite(run.reward)
    unit = "share of the samples with a judge's words"
    affected = Affected.measure(run, mask, known, unit=unit)
    [(value, times)] = Counter(np.round(run.reward[mask], 9).tolist()).most_common(1)
    known_of = int((error[mask] == 2).sum())  # the run says of so many that it made them numbers
    if times < _FIXED_SHARE * mask.sum() and not known_of:
        return affected.result
    kept = (
        f"{known_of} of them have a number for it"
        if known_of
        else (f"{times} of them still have a reward, {value:g} each")
    )
    return affected.describe(
        f"In {int(mask.sum())} of {count} samples the judge's words are an error, and {kept}: a "
        "failure became a number.",
        advice="Mark these samples as missing, so that the trainer leaves them out, and ask the "
        "judge again: `adjudge grade` does both, unless the spec has missing.suspect = 'min'.",
        severity=severity_of(2 * int(mask.sum()) / len(run)),
    )


# fmt: off
JUDGE_TEXT_CHECKS = (
    Check("judge_errors", "Judge errors that became rewards",
          "words of a failed judge call beside one and the same reward", _find_judge_errors,
          features={"judge_errors.error": measure_error_text}),
    Check("contradictions", "Verdicts against their reasons",
          "scores that are not what the judge's reason says", _find_contradictions,
          features={"contradictions.said": BlockFeature(
              lambda rollouts: np.array([_judge_reasons(one) for one in rollouts], dtype=float)
          )}),
)
# fmt: on
