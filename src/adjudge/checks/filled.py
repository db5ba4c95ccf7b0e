"""The check for failures that were written as a number: a judge that timed out and became a 0.

A number alone does not say what it means. What can be seen is a value that no other reward is
near, and that is said whatever made it: honest zeros of a word overlap look the same. What comes
with it (long or cut-off answers, a stretch of whole groups, a grader's own words that something
failed) is said beside it. A reward of few values is held to the last two alone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec

from adjudge.checks.check import Check, CheckResult, need
from adjudge.checks.effects import (
    SHARE_OF_SAMPLES,
    Affected,
    MeasuredEffect,
    estimate_share_by_group,
    first_rows,
    impact_without,
    measure_pooled_difference,
    visible_share,
)
from adjudge.checks.judge_texts import measure_error_text
from adjudge.checks.rewards import series_by_step
from adjudge.checks.run import AuditedRun
from adjudge.stats.estimates import np

MIN_SHARE, MIN_COUNT = 0.01, 5
"""Fewer samples at a value are no spike."""

_MIN_OTHERS, _GAPS = 3, 5.0
"""A value apart is five times as far from the next as others are from theirs."""

_NEAR, _MAX_NEAR = 0.1, 0.2
"""It has fewer neighbours than a fifth of itself, within a tenth of the spread."""

_REPEATED = 2
"""In a reward of which nearly no value comes more often, one that does is apart."""

_LARGEST_N, _SCALE_VALUES = 40, 12
_MIN_STRETCH = 4
_CERTAIN = 0.001
"""The p value from which on what comes with a spike is named."""

_TWO_VALUES = "a reward of two values cannot show failures that were written as one of them"
_NEAR_ZERO = (
    "0 is one of the reward's steps, or so near to others that failures would look like them"
)


class _Sign(NamedTuple):
    """One thing that a spike comes with."""

    value: float
    rows: Any
    words: str
    p_value: float
    strength: float


def _find_filled(run: AuditedRun) -> CheckResult:
    present = np.isfinite(run.reward)
    need(present.any(), "the run has no single reward")
    values, counts = np.unique(run.reward[present], return_counts=True)
    need(len(values) > 1, "all rewards are equal")
    total = int(present.sum())
    enough = (counts >= MIN_COUNT) & (counts >= MIN_SHARE * total)
    spikes = sorted(values[enough].tolist(), key=lambda one: -counts[values == one][0])
    apart = [one for one in spikes if stands_apart(values, counts, one)]
    if apart:
        return _describe_spike(run, present, min(apart), apart)
    visible, why = None, _TWO_VALUES
    if len(values) > 2:
        needed = needed_apart(values, counts, 0.0)
        visible = visible_share(total, math.ceil(min(needed, total + 1)))
        why = "" if visible else _NEAR_ZERO
    result = CheckResult(p_value=1.0, unit=SHARE_OF_SAMPLES, visible=visible, detectable_why=why)
    return _find_company(run, present, spikes[:6], result)


def stands_apart(values: Any, counts: Any, value: float) -> bool:
    """Whether no other reward is near ``value``, of the distinct ``values`` with their ``counts``.

    On a scale of steps no value is apart: the next is as far as any other. At the end of a tail
    the others are few: they count with their error of chance.
    """
    return int(counts[values == value].sum()) >= needed_apart(values, counts, value)


def needed_apart(values: Any, counts: Any, value: float, *, loosely: bool = False) -> float:
    """How many rewards of ``value`` set it apart from the others; infinite where no number does.

    ``loosely``: as far as the neighbours go that there are, whatever chance has to do with it.
    """
    other = values != value
    others, times = values[other], counts[other]  # both in the order of values
    least = max(MIN_COUNT, MIN_SHARE * int(counts.sum()))
    if len(others) < _MIN_OTHERS:
        return math.inf
    all_others = np.repeat(others, times)
    repeated = float(np.quantile(np.repeat(times, times), 0.95))
    if others[0] < value < others[-1] and repeated <= _REPEATED:
        return max(least, 10 * repeated)
    if 0 <= value <= 1 and are_shares(others):
        return math.inf
    low, high = np.quantile(all_others, [0.25, 0.75])
    step = _usual_step(others)
    distance = np.abs(others - value)
    if len(others) < _SCALE_VALUES if loosely else distance.min() < _GAPS * step * (1 - 1e-9):
        return math.inf
    near = int(times[distance <= _NEAR * (high - low)].sum())
    return float(max(least, (near + (0 if loosely else 2) * (math.sqrt(near) + 1)) / _MAX_NEAR))


def _usual_step(values: Any) -> float:
    """How far values are from the next: the step of their scale, or what nearly all gaps are."""
    gaps = np.diff(values)
    least = float(gaps.min())
    times = gaps / least
    on_a_scale = (np.abs(times - np.round(times)) <= 1e-6 * times + 1e-3).mean() >= 0.95
    return least if on_a_scale and least > 1e-6 else float(np.quantile(gaps, 0.95))


def are_shares(values: Any) -> bool:
    """Whether values are shares k/n of several small n (tests passed, words in common).

    Of such the 0 and the 1 are further from the next than others are.
    """
    steps = np.diff(values)
    if values[0] < 0 or values[-1] > 1 or np.quantile(steps, 0.95) <= 1.5 * np.median(steps):
        return False
    rounded = np.abs(values * 10_000 - np.round(values * 10_000)).max() < 1e-6
    parts = values[:, None] * np.arange(1, _LARGEST_N + 1)
    off = np.abs(parts - np.round(parts)) / np.arange(1, _LARGEST_N + 1)
    return bool((off.min(axis=1) <= (5e-4 if rounded else 1e-9)).mean() >= 0.95)


def _describe_spike(run: AuditedRun, present: Any, value: float, apart: list[float]) -> CheckResult:
    rewards = run.reward[present]
    at = present & (run.reward == value)
    others = rewards[rewards != value]
    nearest = float(others[np.abs(others - value).argmin()])
    company = [
        sign.words
        for sign in _signs_of(run, value, at, present)
        if sign is not None and sign.p_value <= _CERTAIN
    ]
    more = [f"{one:g}" for one in apart if one != value]
    also = f" (so do the rewards of {', '.join(more)})" if more else ""
    honest = (
        "answers that earn nothing (no word in common, no test passed)"
        if value == rewards.min()
        else "answers that are fully right"
        if value == rewards.max()
        else "a default that the grader gives on purpose"
    )
    values, counts = np.unique(rewards, return_counts=True)
    needed = math.ceil(needed_apart(values, counts, value))
    affected = Affected.measure(run, at, present, needed)
    found = _describe_failures(
        affected,
        f"{int(at.sum()):,} of {len(rewards):,} rewards are exactly {value:g}, and no other is "
        f"near: the next is {nearest:g}{also}. {'They come with this: ' if company else ''}"
        f"{'; '.join(company)}{'.' if company else ''}".strip(),
        otherwise=f"Judge calls that failed and were written as {value:g} look so; so do {honest}. "
        "Read some of these samples, and look for the judge's reply to each.",
        advice="If the grader returns this number when it fails, return a missing reward instead "
        "(None, or what the trainer leaves out).",
    )
    return msgspec.structs.replace(found, visible=affected.result.visible)


def _describe_failures(affected: Affected, sentence: str, **said: Any) -> CheckResult:
    """The finding that rewards may be failures, with the harm if they are."""
    run, at, *_ = affected
    present = np.isfinite(run.reward)
    turned = impact_without(run, at).turned or 0.0
    harm = min(1.0, float(at.sum()) / int(present.sum()) + turned)
    series = series_by_step(run, np.where(present, at, np.nan))
    return affected.describe(sentence, rows=first_rows(at), harm=harm, series=series, **said)


def _find_company(
    run: AuditedRun, present: Any, spikes: list[float], nothing: CheckResult
) -> CheckResult:
    """A value of a scale, by what comes with it alone: a stretch, or a grader's own words."""
    signs, looks = [], 0
    values, counts = np.unique(run.reward[present], return_counts=True)
    for value in spikes:
        at = present & (run.reward == value)
        # What stands apart but for chance is held to all that it may come with.
        loosely = int(at.sum()) >= needed_apart(values, counts, value, loosely=True)
        beside = _signs_of if loosely else _signs_beside
        for sign in beside(run, value, at, present):
            looks += 1
            if sign is not None:
                signs.append(sign)
    if not signs:
        return nothing
    best = min(signs, key=lambda one: (one.p_value, -one.strength))
    result = msgspec.structs.replace(
        nothing,
        p_value=min(1.0, best.p_value * looks),
        effect=estimate_share_by_group(run, best.rows, present),
    )
    return _describe_failures(
        Affected(run, best.rows, result),
        f"{int(best.rows.sum()):,} rewards of exactly {best.value:g} may be failures that were "
        f"written as a number: {best.words}.",
        otherwise="Hard prompts that are together in the file have whole groups of one value, and "
        "honest wrong answers may be longer. Read some samples, and the judge's reply to each.",
        advice="Find where the grader returns this number when it fails, and return a missing "
        "reward instead (None, or what the trainer leaves out).",
    )


def _signs_beside(run: AuditedRun, value: float, at: Any, present: Any) -> list[_Sign | None]:
    """What makes any value a suspicion; ``None`` for what was not seen."""
    signs: list[_Sign | None] = [_in_one_stretch(run, value, at, present)]
    error = run.feature("judge_errors.error")
    if np.isfinite(error).any():
        seen = at & (error == 1)
        found = measure_pooled_difference(error == 1, np.where(present, at, np.nan), run.group)
        share = float(seen.sum() / max(1, at.sum()))
        words = f"in {share:.0%} of them the grader's words say that it failed"
        signs.append(_as_sign(value, seen, words, found, minimum=0.3))
    return signs


def _signs_of(run: AuditedRun, value: float, at: Any, present: Any) -> list[_Sign | None]:
    """What a value that stands apart comes with."""
    signs = _signs_beside(run, value, at, present)
    length = np.log(np.maximum(run.feature("length"), 1.0))
    cut = run.feature("truncated")
    share = f"{np.nanmean(cut[at] == 1):.0%}"
    late = run.place / np.maximum(run.group_sizes[run.group] - 1, 1)
    for column, minimum, words in (
        (length, 0.2, "these samples are {}"),
        (cut, 0.1, f"{share} of these samples were cut off"),
        (late, 0.1, "these samples are late in their groups"),
    ):
        found = measure_pooled_difference(at, np.where(present, column, np.nan), run.group)
        if np.isfinite(column).any():
            said = words.format(compare_lengths(found.test.value)) if found.test else ""
            signs.append(_as_sign(value, at, said, found, minimum=minimum))
    return signs


def compare_lengths(difference: float) -> str:
    """``difference``: of the logarithms of the lengths."""
    times = math.exp(min(50.0, abs(difference)))
    than = "long" if difference > 0 else "short"
    return f"{times:.1f} times as {than} as the others"


def _as_sign(
    value: float, rows: Any, words: str, found: MeasuredEffect, *, minimum: float
) -> _Sign | None:
    if found.test is None or abs(found.test.value) < minimum:
        return None
    return _Sign(value, rows, words, found.test.p_value, abs(found.test.value))


def _in_one_stretch(run: AuditedRun, value: float, at: Any, present: Any) -> _Sign | None:
    """Whole groups at the value that follow each other, as in an outage.

    L groups in a row have it by chance with a probability of at most m·qᴸ, where q is the share of
    such groups in the 2·L before it or after, the larger: a policy that learns, and prompts that
    get harder, change that share at one of its ends, too.
    """
    size = len(run.group_sizes)
    filled = np.bincount(run.group, weights=at.astype(float), minlength=size)
    whole = (filled == run.group_sizes) & (run.group_sizes > 1)
    first, length = _longest_stretch(whole)
    if length < _MIN_STRETCH or length == size:
        return None
    before, after = whole[max(0, first - 2 * length) : first], whole[first + length :][: 2 * length]
    q = max((float(side.sum()) + 1) / (len(side) + 2) for side in (before, after) if len(side))
    groups = np.zeros(size, dtype=bool)
    groups[first : first + length] = True
    words = f"{length} whole groups one after the other have it"
    p_value = min(1.0, math.exp(math.log(size) + length * math.log(q)))
    return _Sign(value, groups[run.group] & at & present, words, p_value, float(length))


def _longest_stretch(inside: Any) -> tuple[int, int]:
    """Where the longest run of true values begins, and how long it is."""
    edges = np.diff(np.concatenate([[0], inside.astype(int), [0]]))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(starts):
        return 0, 0
    place = int((ends - starts).argmax())
    return int(starts[place]), int((ends - starts)[place])


# fmt: off
FILLED_CHECKS = (
    Check("filled_rewards", "Failures that may be written as a number",
          "a reward such as 0 that no other is near; or one that comes with a grader's "
          "error texts, or in whole groups one after the other", _find_filled,
          features={"judge_errors.error": measure_error_text}),
)
# fmt: on
