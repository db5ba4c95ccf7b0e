"""The check for failures that were written as a number: a judge that timed out and became a 0.

A reward of 0 may be a 0. What gives a filled-in failure away is company: one value that stands
apart from all others, and samples at that value which are longer, cut off, or stand in one stretch;
or a grader's own words that something failed. A reward of few values (0 and 1) is held to the last
two alone, since wrong answers are often longer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from adjudge.audit.effects import (
    EXPECTED_CHECKS,
    MAX_ROWS,
    MeasuredEffect,
    describe_samples,
    estimate_share_by_group,
    impact_without,
    measure_pooled_difference,
)
from adjudge.audit.findings import (
    FALSE_ALARM_RATE,
    AuditResult,
    Check,
    not_applicable,
)
from adjudge.audit.judge_texts import measure_error_text
from adjudge.audit.rewards import SHARE_OF_SAMPLES, series_by_step
from adjudge.audit.rollouts import AuditedRun
from adjudge.stats.estimates import np

MIN_SHARE, MIN_COUNT = 0.01, 5
"""Fewer samples at a value are no spike."""

_FEW_VALUES = 12
"""A reward with so many values is a scale; each of them stands apart."""

_NEAR, _MAX_NEAR = 0.1, 0.2
"""A spike has fewer neighbours within a tenth of the spread than a fifth of itself."""

_MIN_BLOCK, _MIN_STRETCH = 64, 4


class _Sign(NamedTuple):
    """One thing that a spike comes with."""

    value: float
    rows: Any
    words: str
    p_value: float
    strength: float


def _find_filled(run: AuditedRun) -> AuditResult:
    reward = run.reward
    present = np.isfinite(reward)
    if not present.any():
        return not_applicable("the run has no single reward")
    values, counts = np.unique(reward[present], return_counts=True)
    if len(values) < 2:
        return not_applicable("all rewards are equal")
    total = int(present.sum())
    enough = (counts >= MIN_COUNT) & (counts >= MIN_SHARE * total)
    spikes = sorted(values[enough].tolist(), key=lambda v: -counts[values == v][0])[:6]
    detectable = max(MIN_SHARE, MIN_COUNT / total)
    if not spikes:
        return AuditResult(p_value=1.0, unit=SHARE_OF_SAMPLES, detectable=detectable)
    signs, looks = [], 0
    for value in spikes:
        at = present & (reward == value)
        apart = _stands_apart(reward[present], value, values)
        for sign in _signs_of(run, value, at, present, apart=apart):
            looks += 1
            if sign is not None:
                signs.append(sign)
    if not signs:
        return AuditResult(p_value=1.0, unit=SHARE_OF_SAMPLES, detectable=detectable)
    best = min(signs, key=lambda one: (one.p_value, -one.strength))
    p_value = min(1.0, best.p_value * looks)
    effect = estimate_share_by_group(run, best.rows, present)
    level = FALSE_ALARM_RATE / EXPECTED_CHECKS
    words = "; ".join(
        one.words for one in signs if one.value == best.value and one.p_value * looks <= level
    )
    share = float(best.rows.sum()) / total
    turned = impact_without(run, best.rows).turned
    finding = describe_samples(
        run,
        best.rows,
        f"{int(best.rows.sum()):,} rewards of exactly {best.value:g} look like failures that were "
        f"written as a number: {words or best.words}.",
        effect,
        SHARE_OF_SAMPLES,
        harm=share if turned is None else min(1.0, share + turned),
        rows=tuple(np.flatnonzero(best.rows)[:MAX_ROWS].tolist()),
        advice="Find where the grader returns this number when it fails, and return a missing "
        "reward instead (None, or what the trainer leaves out).",
        series=series_by_step(run, np.where(present, best.rows, np.nan)),
    )
    return AuditResult(
        finding=finding,
        p_value=p_value,
        effect=effect,
        unit=SHARE_OF_SAMPLES,
        detectable=detectable,
    )


def _stands_apart(rewards: Any, value: float, values: Any) -> bool:
    """Whether the reward is no scale of few values, and nothing much lies near ``value``."""
    others = rewards[rewards != value]
    if len(values) <= _FEW_VALUES or len(others) < MIN_COUNT:
        return False
    low, high = np.quantile(others, [0.25, 0.75])
    near = np.abs(others - value) <= _NEAR * max(high - low, 1e-12)
    return bool(near.sum() <= _MAX_NEAR * (len(rewards) - len(others)))


def _signs_of(
    run: AuditedRun, value: float, at: Any, present: Any, *, apart: bool
) -> list[_Sign | None]:
    """What was looked at for one value; ``None`` for what was not seen."""
    signs: list[_Sign | None] = [_in_one_stretch(run, value, at, present)]
    error = run.feature("filled.error_text")
    if np.isfinite(error).any():
        seen = at & (error == 1)
        found = measure_pooled_difference(error == 1, np.where(present, at, np.nan), run.group)
        share = float(seen.sum() / max(1, at.sum()))
        words = f"in {share:.0%} of them the grader's words say that it failed"
        signs.append(_as_sign(value, seen, words, found, minimum=0.3))
    if not apart:
        return signs
    length = np.log(np.maximum(run.feature("length"), 1.0))
    if np.isfinite(length).any():
        found = measure_pooled_difference(at, np.where(present, length, np.nan), run.group)
        words = "" if found.test is None else _compare_lengths(found.test.value)
        signs.append(_as_sign(value, at, words, found, minimum=0.2))
    cut = run.feature("truncated")
    if np.isfinite(cut).any():
        found = measure_pooled_difference(at, np.where(present, cut, np.nan), run.group)
        share = float((cut[at] == 1).mean())
        words = f"no other reward is near it, and {share:.0%} of these samples were cut off"
        signs.append(_as_sign(value, at, words, found, minimum=0.1))
    last = np.maximum(run.group_sizes[run.group] - 1, 1)
    found = measure_pooled_difference(at, np.where(present, run.place / last, np.nan), run.group)
    words = "no other reward is near it, and these samples stand late in their groups"
    signs.append(_as_sign(value, at, words, found, minimum=0.1))
    return signs


def _compare_lengths(difference: float) -> str:
    """``difference``: of the logarithms of the lengths."""
    times = math.exp(min(50.0, abs(difference)))
    than = "long" if difference > 0 else "short"
    return (
        f"no other reward is near it, and these samples are {times:.1f} times as {than} as the "
        "others"
    )


def _as_sign(
    value: float, rows: Any, words: str, found: MeasuredEffect, *, minimum: float
) -> _Sign | None:
    if found.test is None or abs(found.test.value) < minimum:
        return None
    return _Sign(value, rows, words, found.test.p_value, abs(found.test.value))


def _in_one_stretch(run: AuditedRun, value: float, at: Any, present: Any) -> _Sign | None:
    """Whole groups at the value that follow each other, as in an outage.

    If groups of a block were in random order, L of k in m would follow each other with a
    probability of at most (m − L + 1)·∏(k − i)/(m − i). Blocks are neighbouring steps of 64 groups
    or more, so that a policy that learns does not look like a stretch.
    """
    size = len(run.group_sizes)
    filled = np.bincount(run.group, weights=at.astype(float), minlength=size)
    whole = (filled == run.group_sizes) & (run.group_sizes > 1)
    best: _Sign | None = None
    blocks = list(_blocks(run, size))
    for start, end in blocks:
        inside = whole[start:end]
        first, length = _longest_stretch(inside)
        if length < _MIN_STRETCH:
            continue
        m, k = end - start, int(inside.sum())
        log_p = math.log(m - length + 1) + sum(math.log((k - i) / (m - i)) for i in range(length))
        p_value = min(1.0, math.exp(log_p) * len(blocks))
        if best is None or p_value < best.p_value:
            groups = np.zeros(size, dtype=bool)
            groups[start + first : start + first + length] = True
            rows = groups[run.group] & at & present
            words = f"{length} whole groups one after the other have it"
            best = _Sign(value, rows, words, p_value, float(length))
    return best


def _blocks(run: AuditedRun, size: int) -> list[tuple[int, int]]:
    """Groups in the order in which they first occur, cut where a step ends."""
    first = np.full(size, -1, dtype=int)
    first[run.group[::-1]] = np.arange(len(run))[::-1]
    step = np.nan_to_num(run.step[first], nan=0.0)
    cuts, start = [], 0
    for place in (np.flatnonzero(np.diff(step)) + 1).tolist():
        if place - start >= _MIN_BLOCK:
            cuts.append((start, place))
            start = place
    if cuts and size - start < _MIN_BLOCK:
        return [*cuts[:-1], (cuts[-1][0], size)]
    return [*cuts, (start, size)]


def _longest_stretch(inside: Any) -> tuple[int, int]:
    """Where the longest run of true values begins, and how long it is."""
    edges = np.diff(np.concatenate([[0], inside.astype(int), [0]]))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(starts):
        return 0, 0
    place = int((ends - starts).argmax())
    return int(starts[place]), int((ends - starts)[place])


FILLED_CHECKS = (
    Check(
        name="filled_rewards",
        title="Failures written as a number",
        looks_for="a reward such as 0 that stands apart and comes with long, cut-off or late "
        "samples, with a grader's error texts, or in whole groups one after the other",
        run=_find_filled,
        features={"filled.error_text": measure_error_text},
    ),
)
