"""Checks of what judges said in words: verdicts against their reasons, errors that became rewards.

Rules, no model, and precise rather than complete: a reason counts only where a number or a plain
statement about the answer stands in it, once and without a condition, and only the two ends of the
scale contradict a statement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from adjudge.audit.effects import (
    EXPECTED_CHECKS,
    describe_samples,
    estimate_share_by_group,
    rank_rows,
)
from adjudge.audit.findings import (
    FALSE_ALARM_RATE,
    STATED_POWER,
    AdvantageImpact,
    AuditResult,
    Check,
    Finding,
    not_applicable,
    severity_of,
)
from adjudge.audit.rollouts import AuditedRollout, AuditedRun
from adjudge.runs.reasons import ANSWER_NOUN, read_polarity, read_stated_score
from adjudge.stats.agreement import spearman_correlation
from adjudge.stats.estimates import Estimate, np, special


class _Judgement(NamedTuple):
    """What a reason says, and the number that was recorded with it."""

    stated: float | None = None
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
    stem = _SUFFIXES.sub("", name)
    for one in (name, stem, f"{stem}_score", f"{stem}_reward"):
        if one in rollout.components:
            return rollout.components[one]
    return rollout.reward


@lru_cache(maxsize=4)
def _judge_reasons(pairs: tuple[tuple[str, float | None], ...]) -> _Judgement:
    said = _Judgement()
    for reason, recorded in pairs:
        if recorded is None or math.isnan(recorded) or is_judge_error(reason):
            continue
        if said.stated is None and (stated := read_stated_score(reason)) is not None:
            said = said._replace(stated=stated, stated_with=recorded)
        if said.polarity is None and (polarity := read_polarity(reason)):
            said = said._replace(polarity=float(polarity), polarity_with=recorded)
    return said


def _judgement_column(field: str) -> Any:
    def measure(rollout: AuditedRollout) -> float | None:
        pairs = tuple(
            (text, find_recorded_score(rollout, name)) for name, text in rollout.reasons.items()
        )
        value: float | None = getattr(_judge_reasons(pairs), field)
        return value

    return measure


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


_READING_ERRORS = 0.02
"""Reasons that the rules may misread: fewer contradictions than this share are no finding."""

_END_OF_SCALE = 0.1
_MIN_READ = 8


def _find_contradictions(run: AuditedRun) -> AuditResult:
    stated, stated_with, polarity, polarity_with = (
        run.feature(f"contradictions.{field}") for field in _Judgement._fields
    )
    numbers, statements = np.isfinite(stated), np.isfinite(polarity)
    wrong_number = np.zeros(len(run), dtype=bool)
    is_reversed = False
    if int(numbers.sum()) >= _MIN_READ:
        found = find_mismatches(stated[numbers], stated_with[numbers])
        if found is None:
            unrelated = _find_unrelated(run, numbers, stated, stated_with)
            if unrelated is not None:
                return unrelated
            numbers = np.zeros_like(numbers)
        else:
            wrong_number[numbers], is_reversed = found
    else:
        numbers = np.zeros_like(numbers)
    low, high = _ends(polarity_with[statements])
    margin = _END_OF_SCALE * (high - low)
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
            if np.isfinite(stated).sum() >= _MIN_READ
            else "there are too few reasons that state a score or a clear opinion"
        )
    mask = wrong_number | opposed
    affected = int(mask.sum())
    unit = "share of the reasons that can be read"
    effect = estimate_share_by_group(run, mask, read)
    p_value = float(special.bdtrc(affected - 1, count, _READING_ERRORS)) if affected else 1.0
    detectable = least_detectable_share(count)
    if not affected:
        return AuditResult(effect=effect, p_value=1.0, unit=unit, detectable=detectable)
    parts = []
    if wrong_number.any():
        what = "the reverse of the score" if is_reversed else "another score than the one"
        parts.append(f"{int(wrong_number.sum())} record {what} that the reason states")
    if opposed.any():
        parts.append(
            f"{int(opposed.sum())} call the answer wrong and give the top score, or the reverse"
        )
    finding = describe_samples(
        run,
        mask,
        f"{affected} of {count} verdicts whose reason can be read contradict it: "
        f"{'; '.join(parts)}.",
        effect,
        unit,
        advice="Read the samples. A swapped scale or a parser that takes the first number are the "
        "usual causes; ask for the score in a form that a strict reader checks.",
    )
    return AuditResult(
        finding=finding, p_value=p_value, effect=effect, unit=unit, detectable=detectable
    )


_FOLLOWS = 0.5
_MIN_UNRELATED = 20


def _find_unrelated(run: AuditedRun, known: Any, stated: Any, recorded: Any) -> AuditResult | None:
    """Recorded scores that hardly follow the stated ones: another row's, or another quantity.

    ``None`` where they follow them on some scale of their own, or there are too few.
    """
    count = int(known.sum())
    if count < _MIN_UNRELATED:
        return None
    follows = spearman_correlation(stated[known].tolist(), recorded[known].tolist())
    if follows is None or follows >= _FOLLOWS:
        return None
    unit = "rank correlation of stated and recorded scores"
    finding = Finding(
        sentence=(
            f"The reasons of {count} samples state a score, and the recorded scores hardly follow "
            f"it: rank correlation {follows:.2f}."
        ),
        effect=Estimate(follows, why="counted"),
        unit=unit,
        rows=rank_rows(known, run),
        affected=count,
        impact=AdvantageImpact(why="it is not known which samples are wrong"),
        harm=count / len(run),
        severity="high",
        advice=(
            "Read some samples. The reasons may be another row's, or their scores are turned round "
            "or replaced; if the reward has other parts, look at this judge's own score."
        ),
    )
    return AuditResult(finding=finding, effect=finding.effect, unit=unit)


def _ends(values: Any) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def least_detectable_share(count: int) -> float:
    """The smallest share of ``count`` reasons that would be found with 90 % power."""
    level = FALSE_ALARM_RATE / EXPECTED_CHECKS
    hits = np.arange(count + 1)
    enough = np.flatnonzero(special.bdtrc(hits - 1, count, _READING_ERRORS) <= level)
    least = int(enough[0]) if len(enough) else count
    return float(special.bdtri(least - 1, count, 1 - STATED_POWER)) if least > 0 else 0.0


_ERROR = re.compile(
    r"\b(?:APITimeoutError|APIConnectionError|APIError|APIStatusError|RateLimitError|"
    r"InternalServerError|ReadTimeout|ConnectTimeout|ConnectionError|TimeoutError|"
    r"ServiceUnavailableError|JSONDecodeError|ContextWindowExceededError)\b"
    r"|\brate[\s-]?limit(?:ed|s)?\b|\btoo\smany\srequests\b"
    r"|\b(?:HTTP|status(?:\scode)?|error(?:\scode)?)[\s:]{0,3}(?:429|5[0-9]{2})\b"
    r"|\b(?:judge|grader|scorer|reward\smodel|llm|api|request|call|evaluation)\s(?:call\s|request\s)?"
    r"(?:has\s)?(?:failed|timed\sout|errored|crashed|unavailable|error|timeout)\b"
    r"|\b(?:could\snot|couldn't|cannot|can't|failed\sto|unable\sto)\s(?:be\s)?(?:parse|parsed|decode|"
    r"extract|read|get|grade|connect|reach)\b(?!\sthe\s(?:question|answer\skey))"
    r"|\b(?:parse|parsing|decoding|validation|connection|timeout|server)\s(?:error|failure|failed)\b"
    r"|\b(?:service\sunavailable|bad\sgateway|connection\s(?:reset|refused))\b"
    r"|\bno\s(?:valid\s)?(?:score|verdict)\s(?:found|returned|received)\b"
    r"|\b(?:defaulting|default(?:s|ed)?)\sto\b|\b(?:fallback|default)\s(?:score|reward|value)\b"
    r"|\bafter\s[0-9]+\s(?:retries|attempts)\b|^(?:timeout|timed\sout|error|none|null|n/a|nan)[.!]?$"
    r"|^Traceback\s\(most\srecent\scall\slast\)|^(?:[A-Za-z_]+\.)*[A-Z][A-Za-z]*(?:Error|Exception)\b",
    re.IGNORECASE,
)
_ABOUT_THE_ANSWER = re.compile(
    rf"\b(?:the|this|its|their|your|user'?s?|student'?s?)\s(?:\w+\s)?(?:{ANSWER_NOUN}|code|program|function|script|test|"
    r"tests|agent|implementation)\b",
    re.IGNORECASE,
)
_LONGEST_ERROR = 600


def is_judge_error(reason: str) -> bool:
    """Whether what stands where a reason should is the error of a judge's call.

    Short, with the words of a failed call or of a reply that could not be read, and nothing about
    the answer: a reason may say that the *answer's* code has a timeout.

    >>> is_judge_error("RateLimitError: 429, defaulting to 0.5")
    True
    >>> is_judge_error("The code fails with a timeout error on the third test.")
    False
    """
    text = reason.strip()
    if not text or (len(text) > _LONGEST_ERROR and not text.startswith("Traceback (most recent")):
        return False
    found = _ERROR.search(text)
    return found is not None and (
        text.startswith("Traceback (most recent") or not _ABOUT_THE_ANSWER.search(text)
    )


def measure_error_text(rollout: AuditedRollout) -> float | None:
    """Whether a judge's words on a rollout are an error; ``None`` where there are no words."""
    if not any(rollout.reasons.values()):
        return None
    return float(any(map(is_judge_error, rollout.reasons.values())))


_FIXED_SHARE = 0.8


def _find_judge_errors(run: AuditedRun) -> AuditResult:
    error = run.feature("judge_errors.error")
    known = np.isfinite(error)
    count = int(known.sum())
    if not count:
        return not_applicable("no judge's words are there")
    mask = known & (error > 0) & np.isfinite(run.reward)
    unit = "share of the samples with a judge's words"
    effect = estimate_share_by_group(run, mask, known)
    values = run.reward[mask]
    value, times = _most_common(values.tolist())
    if int(mask.sum()) < 3 or times < _FIXED_SHARE * len(values):
        return AuditResult(effect=effect, unit=unit, detectable=3 / count)
    finding = describe_samples(
        run,
        mask,
        f"In {int(mask.sum())} of {count} samples the judge's words are an error, and {times} of "
        f"them still have a reward, {value:g} each: a failure became a number.",
        effect,
        unit,
        advice="Mark these samples as missing, so that the trainer leaves them out, and ask the "
        "judge again: `adjudge grade` does both.",
        severity=severity_of(2 * int(mask.sum()) / len(run)),
    )
    return AuditResult(finding=finding, effect=effect, unit=unit)


def _most_common(values: Iterable[float]) -> tuple[float, int]:
    times: dict[float, int] = {}
    for value in values:
        rounded = round(value, 9)
        times[rounded] = times.get(rounded, 0) + 1
    return max(times.items(), key=lambda one: one[1], default=(0.0, 0))


JUDGE_TEXT_CHECKS = (
    Check(
        name="judge_errors",
        title="Judge errors that became rewards",
        looks_for="words of a failed judge call beside a reward",
        run=_find_judge_errors,
        features={"judge_errors.error": measure_error_text},
    ),
    Check(
        name="contradictions",
        title="Verdicts against their reasons",
        looks_for="scores that are not what the judge's reason says",
        run=_find_contradictions,
        features={
            f"contradictions.{field}": _judgement_column(field) for field in _Judgement._fields
        },
    ),
)
