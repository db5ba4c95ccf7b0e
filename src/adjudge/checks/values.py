"""Checks of the rewards as numbers: scales, outliers, a scale that ends, rewards that are stale.

They need no texts and no judge's words, and most have no p value: a scale a hundred times as wide
is there or not. Each says how an honest run may have it.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from adjudge.checks.check import NO_REWARDS, Check, CheckResult, need
from adjudge.checks.effects import (
    MIN_SAMPLES,
    SHARE_OF_SAMPLES,
    Affected,
    estimate_share_by_group,
    first_rows,
    live_advantages,
    measure_pooled_difference,
    needed_of,
    visible_share,
)
from adjudge.checks.filled import are_shares, compare_lengths, stands_apart
from adjudge.checks.responses import measure_content
from adjudge.checks.run import AuditedRollout, AuditedRun, BlockFeature
from adjudge.checks.words import hash_text
from adjudge.stats import Estimate
from adjudge.stats.estimates import np, special

_FAR = 15.0
"""An outlier is so many times the width of nearly all rewards away from them."""

_MOST_OUTLIERS = 0.05

_SCALE_RATIO = 10.0
"""Two scales are apart where one is so many times as wide as the other."""

_MIN_PART = 0.02

SATURATED = 0.25
"""From this share on rewards at the end of their scale are a finding."""

_MIN_CLOSE = 0.05
"""So many others are close to the end of a scale that was cut, by the rewards at its end."""

_SCALE_VALUES = 12
"""A reward with so few values ends at both sides by nature."""

_SOURCES = ("data_source", "source", "dataset", "task", "domain", "env_name", "env", "category")


def _find_outliers(run: AuditedRun) -> CheckResult:
    rewards = run.reward[np.isfinite(run.reward)]
    need(len(rewards), NO_REWARDS)
    need(len(rewards) >= 20, "fewer than 20 rewards")
    low, middle, high = np.quantile(rewards, [_MOST_OUTLIERS, 0.5, 1 - _MOST_OUTLIERS])
    width = float(high - low)
    if not width:  # most are one value: how far the others usually are
        off = np.abs(rewards - middle)
        width = float(np.median(off[off > 0])) if (off > 0).any() else 0.0
    need(width, "all rewards are equal")
    present = np.isfinite(run.reward)
    bad = present & (np.maximum(low - run.reward, run.reward - high) > _FAR * width)
    affected = Affected.measure(run, bad, present, 1)
    worst = run.reward[bad][np.abs(run.reward[bad] - middle).argmax()]
    return affected.describe(
        f"{int(bad.sum()):,} of {len(rewards):,} rewards are far from all others: {worst:g} is "
        f"one, and nine of ten are from {low:g} to {high:g}.",
        otherwise="An environment may pay a rare success so much. A parser that took another "
        "number for the score gives the same: read these samples.",
        rows=first_rows(bad),
        harm=min(1.0, float((run.group_sizes[np.unique(run.group[bad])]).sum()) / len(run)),
    )


def _measure_source(rollout: AuditedRollout) -> float | None:
    """The source of a sample, as its dump names it, by number."""
    for name in _SOURCES:
        value = rollout.extras.get(name)
        if isinstance(value, str) and value:
            return hash_text(value)
    return None


def _find_scales(run: AuditedRun) -> CheckResult:
    present = np.isfinite(run.reward)
    source = run.feature("scales.source")
    known = present & np.isfinite(source)
    sources = np.unique(source[known])
    if 2 <= len(sources) <= 100:
        names, part = "sources", np.searchsorted(sources, np.where(known, source, sources[0]))
    else:
        names, known, part = "groups", present, run.group
    need(known.any(), "the run has no single reward")
    size = int(part.max()) + 1
    widest = np.zeros(size)
    np.maximum.at(widest, part[known], np.abs(run.reward[known]))
    counts = np.bincount(part[known], minlength=size)
    used = np.flatnonzero((widest > 0) & (counts > 1))
    need(len(used) > 1, "there are no two sources or groups with rewards other than 0")
    used = used[np.argsort(widest[used], kind="stable")]
    ratios = widest[used][1:] / widest[used][:-1]
    cut = int(ratios.argmax()) + 1
    wide = np.zeros(size, dtype=bool)
    wide[used[cut:]] = True
    mask = known & wide[part]
    few = min(int(mask.sum()), int(known.sum() - mask.sum())) < needed_of(known.sum(), _MIN_PART)
    enough = not few and (names == "sources" or min(cut, len(used) - cut) >= MIN_SAMPLES)
    if ratios[cut - 1] < _SCALE_RATIO or not enough:
        return CheckResult(effect=Estimate(0.0), unit=SHARE_OF_SAMPLES)
    result = CheckResult(effect=estimate_share_by_group(run, mask, known), unit=SHARE_OF_SAMPLES)
    small, large = float(widest[used[cut - 1]]), float(widest[used[-1]])
    return Affected(run, mask, result).describe(
        f"Rewards are on two scales: in {len(used) - cut} of {len(used)} {names} they reach "
        f"{large:g}, in the others at most {small:g}, and none is between.",
        otherwise="Tasks may pay differently on purpose; then a mean over all of them says little, "
        "and advantages without a division by the spread follow the largest. A score of 0 to 100 "
        "that was not divided gives the same.",
    )


def _find_saturation(run: AuditedRun) -> CheckResult:
    present = np.isfinite(run.reward)
    need(present.any(), NO_REWARDS)
    values, counts = np.unique(run.reward[present], return_counts=True)
    steps = f"the reward has {_SCALE_VALUES} values or fewer: a scale of steps"
    need(len(values) > _SCALE_VALUES, steps)
    need(not are_shares(values), "the rewards are shares, which end at 0 and 1 by nature")
    total = int(present.sum())
    ends = [one for one in (values[0], values[-1]) if not stands_apart(values, counts, one)]
    shares = {end: int(counts[values == end][0]) for end in ends}
    need(shares, "the highest and the lowest reward stand apart from the others")
    end = max(shares, key=lambda one: shares[one])
    mask = present & (run.reward == end)
    affected = Affected.measure(run, mask, present, least=SATURATED)
    spread = float(np.subtract(*np.quantile(run.reward[present], [0.75, 0.25])))
    close = np.abs(values - end) <= max(0.1 * spread, 0.05 * float(values[-1] - values[0]))
    near = int(counts[close].sum()) - shares[end]
    if near < _MIN_CLOSE * shares[end]:
        return affected.result
    is_top = end == values[-1]
    return affected.describe(
        f"{shares[end] / total:.0%} of the rewards are exactly {end:g}, the "
        f"{'highest' if is_top else 'lowest'}, and others are close to it: the scale ends there.",
        otherwise=f"Answers may all be as {'good' if is_top else 'bad'} as can be. A reward that "
        "was clipped gives the same: values beyond the end become equal.",
        harm=min(0.1, shares[end] / total / 4),
    )


def _find_mixed_prompts(run: AuditedRun) -> CheckResult:
    prompt = run.feature("mixed_prompts.opening")
    known = prompt != hash_text("")
    need(known.any(), "no row says what stands before the policy")
    pairs = np.unique(np.stack([run.group[known], prompt[known]]), axis=1)
    of = np.bincount(pairs[0].astype(int), minlength=len(run.group_sizes))
    compared = of[(of > 0) & (run.group_sizes > 1)]
    need(len(compared), "every group has one sample")
    bad = (of > 1)[run.group] & known
    count = int((compared > 1).sum())
    result = CheckResult(
        effect=estimate_share_by_group(run, bad, known),
        unit="share of groups",
        visible=visible_share(len(compared), math.floor(_MIN_PART * len(compared)) + 1),
    )
    if count <= _MIN_PART * len(compared):
        return result
    return Affected(run, bad, result).describe(
        f"{count:,} of {len(compared):,} groups have answers to more than one prompt (up to "
        f"{int(compared.max())}): their rewards are compared within the group.",
        otherwise="A prompt that is worded anew for each sample, or that grows with the turns, is "
        "one question. Else name the group: -m group=COLUMN.",
        harm=float(bad.mean()),
    )


def _find_missing_pattern(run: AuditedRun) -> CheckResult:
    missing = np.array([bool(kind) for kind in run.kinds], dtype=bool) & np.isnan(run.reward)
    need(np.isfinite(run.reward).any(), NO_REWARDS)
    count = int(missing.sum())
    need(10 <= count <= len(run) - 10, "fewer than ten rewards are missing, or are there")
    length = np.log(np.maximum(run.feature("length"), 1.0))
    found = measure_pooled_difference(missing, length, run.group)
    by_length = found.test
    by_group = _clustering_p_value(missing, run)
    tests = [by_group] + ([by_length.p_value] if by_length is not None else [])
    result = CheckResult(
        p_value=min(1.0, min(tests) * len(tests)),
        effect=found.estimate,
        unit="difference of the logarithms of the lengths",
        visible=None if by_length is None else by_length.visible(_MIN_LENGTHS, len(tests)),
    )
    parts = []
    if (
        by_length is not None
        and abs(by_length.value) >= _MIN_LENGTHS
        and by_length.p_value * len(tests) <= 0.05
    ):
        parts.append(f"their answers are {compare_lengths(by_length.value)}")
    if by_group * len(tests) <= 0.001:
        parts.append("they are together in some groups")
    if not parts:
        return result
    return Affected(run, missing, msgspec.structs.replace(result, visible=None)).describe(
        f"The {count:,} samples without a reward are not chosen by chance: {' and '.join(parts)}.",
        otherwise="A judge may fail on what is hard to judge; the policy is then taught the rest. "
        "Raise the judge's limit of tokens or its deadline, and grade these again.",
        harm=count / len(run),
    )


_MIN_LENGTHS = 0.2


def _clustering_p_value(mask: Any, run: AuditedRun) -> float:
    """Of the groups having the share of ``mask`` that chance gives: χ² of their counts."""
    sizes = run.group_sizes
    hits = np.bincount(run.group, weights=mask.astype(float), minlength=len(sizes))
    share = float(mask.mean())
    used = sizes > 1
    freedom = int(used.sum()) - 1
    if freedom < 8:
        return 1.0
    square = float(((hits - share * sizes)[used] ** 2 / (sizes[used] * share * (1 - share))).sum())
    # Few expected hits a group: the sum is more spread than χ², by its own variance.
    n = sizes[used].astype(float)
    kurtosis = (1 - 6 * share * (1 - share)) / (share * (1 - share))
    variance = float((2 + kurtosis / n).sum())
    scale = variance / (2 * freedom)
    return float(special.chdtrc(freedom / scale, square / scale))


def _find_stale(run: AuditedRun) -> CheckResult:
    content = run.feature("words.content")
    known = np.isfinite(content) & np.isfinite(run.reward)
    need(known.any(), "needs rewards and texts")
    values, place = np.unique(run.reward[known], return_inverse=True)
    few = f"the reward has {_SCALE_VALUES} values or fewer: equal ones are many"
    need(len(values) > _SCALE_VALUES, few)
    size = len(run.group_sizes)
    group = run.group[known]
    shares = np.bincount(place) / int(known.sum())
    pairs = np.unique(np.stack([group, place]), axis=1)
    texts = np.unique(np.stack([group, content[known]]), axis=1)
    distinct = np.bincount(pairs[0].astype(int), minlength=size)
    unlike = np.bincount(texts[0].astype(int), minlength=size)
    compared = unlike > 1
    equal = compared & (distinct == 1)
    own = np.zeros(size)
    own[pairs[0].astype(int)] = shares[pairs[1].astype(int)]
    # A value that many groups have is no surprise: what is left of it without this group.
    elsewhere = np.clip(own - np.bincount(group, minlength=size) / int(known.sum()), 0.0, 1.0)
    surprising = equal & (elsewhere <= 0.02)
    count, total = int(surprising.sum()), int(compared.sum())
    need(total, "no group has unlike answers")
    needed = needed_of(total, _MIN_PART)
    mask = surprising[run.group] & known
    result = CheckResult(
        effect=estimate_share_by_group(run, mask, compared[run.group] & known),
        unit="share of groups",
        visible=visible_share(total, needed),
    )
    if count < needed:
        return result
    return Affected(run, mask, result).describe(
        f"In {count:,} of {total:,} groups unlike answers have exactly the same reward, which is "
        "rare elsewhere: it may be one answer's reward that the others got, too.",
        otherwise="A reward of the whole group (a shared outcome) is meant so. A cache by the "
        "prompt alone gives the same.",
        harm=float(mask.mean()),
    )


_LEAST_REFERENCE, _REFERENCE_WORDS = 16, 3


def _has_reference(rollout: AuditedRollout) -> float | None:
    reference = " ".join(rollout.reference.split()).lower()
    if len(reference) < _LEAST_REFERENCE or reference.count(" ") < _REFERENCE_WORDS - 1:
        return None
    return float(reference in " ".join(rollout.prompt.split()).lower())


def _find_reference(run: AuditedRun) -> CheckResult:
    has = run.feature("reference_in_prompt.has")
    known = np.isfinite(has)
    count = int(known.sum())
    need(count, f"no reference of {_REFERENCE_WORDS} words or more")
    mask = known & (has > 0)
    affected = Affected.measure(run, mask, known, least=_MIN_PART)
    return affected.describe(
        f"{int(mask.sum()):,} of {count:,} samples have their reference in their prompt.",
        otherwise="Questions on a passage and choices have the answer there on purpose. Otherwise "
        "the prompt gives the answer away: look at the prompt's template.",
        harm=min(0.1, float(mask.mean())),
    )


_CHANCE_MEAN = 0.01
"""The most rewards that are the mean of their group's others by chance, of many values."""


def _find_repeats(run: AuditedRun) -> CheckResult:
    """Rewards that are the row's before, or the mean of their group: what a fallback gives."""
    present = np.isfinite(run.reward)
    need(present.any(), NO_REWARDS)
    few = f"the reward has {_SCALE_VALUES} values or fewer"
    need(len(np.unique(run.reward[present])) > _SCALE_VALUES, few)
    order = np.lexsort((run.place, run.group))
    group, value = run.group[order], run.reward[order]
    near, far = (group[lag:] == group[:-lag] for lag in (1, 2))
    equal, equal_far = near & (value[1:] == value[:-1]), far & (value[2:] == value[:-2])
    before = np.zeros(len(run), dtype=bool)
    before[order[1:][equal]] = True
    # In any order of the group a reward is as often equal to the one before as to that before it.
    chance = float(near.sum()) / max(1, int(near.sum() + far.sum()))
    counts = np.bincount(run.group[present], minlength=len(run.group_sizes))[run.group]
    sums = np.bincount(run.group[present], weights=run.reward[present])[run.group]
    mean = (sums - run.reward) / np.maximum(counts - 1, 1)
    close = np.abs(run.reward - mean) <= 1e-9 * np.maximum(1.0, np.abs(mean))
    # On a scale of steps a reward may well be the others' mean; a value of no other group is not.
    _, place, times = np.unique(run.reward, return_inverse=True, return_counts=True)
    pairs = place + len(times) * run.group
    _, at, within = np.unique(pairs, return_inverse=True, return_counts=True)
    own = times[place] == within[at]
    means = close & own & (counts > MIN_SAMPLES) & np.isfinite(live_advantages(run))

    def tail(mask: Any, trials: int, share: float) -> float:
        hits = int(mask.sum())
        return float(special.bdtrc(hits - 1, trials, share)) if hits else 1.0

    by_before = tail(before, int(equal.sum() + equal_far.sum()), chance)
    by_mean = tail(means, int(present.sum()), _CHANCE_MEAN)
    name, mask = "the one of the row before", before
    if by_mean < by_before:
        name, mask = "the mean of their group's others", means
    result = CheckResult(
        p_value=min(1.0, 2 * min(by_before, by_mean)),
        effect=estimate_share_by_group(run, mask, present),
        unit=SHARE_OF_SAMPLES,
    )
    if int(mask.sum()) < needed_of(int(present.sum()), _MIN_PART):
        return result
    return Affected(run, mask, result).describe(
        f"{int(mask.sum()):,} of {int(present.sum()):,} rewards are exactly {name}, more than by "
        "chance.",
        otherwise="A grader that falls back on such a number when its judge fails gives the same. "
        "Copies of one answer beside each other are honest: see duplicates.",
        advice="Return a missing reward where the grader has none of its own.",
    )


# fmt: off
VALUE_CHECKS = (
    Check("outliers", "Rewards far from all others",
          f"rewards {_FAR:g} times as far away as nine of ten are wide", _find_outliers),
    Check("scales", "Rewards on two scales",
          f"sources, or else groups, with rewards {_SCALE_RATIO:g} times as large as "
          "the others', with none between", _find_scales,
          features={"scales.source": _measure_source}),
    Check("saturation", "Rewards at the end of their scale",
          f"{SATURATED:.0%} or more of the rewards at the highest or lowest value, others "
          "close to it", _find_saturation),
    Check("mixed_prompts", "Groups with several prompts",
          f"more than {_MIN_PART:.0%} of the groups with answers to more than one prompt",
          _find_mixed_prompts,
          features={"mixed_prompts.opening": lambda rollout: hash_text(rollout.opening)}),
    Check("missing_pattern", "Missing rewards that follow the answers",
          "missing rewards that depend on the answer's length, or are together in groups",
          _find_missing_pattern),
    Check("stale_rewards", "One reward for unlike answers",
          "groups where different answers have one reward that is rare elsewhere", _find_stale,
          features={"words.content": BlockFeature(measure_content)}),
    Check("repeated_rewards", "Rewards of a neighbour",
          "rewards of many values that are the row's before, or the mean of their group's "
          "others, more often than by chance", _find_repeats),
    Check("reference_in_prompt", "The reference in the prompt",
          f"references of {_REFERENCE_WORDS} words or more that the prompt contains",
          _find_reference,
          features={"reference_in_prompt.has": _has_reference}),
)
# fmt: on
