"""Checks of rewards: no numbers, missing, equal or alone; sudden changes and drift over steps."""

from __future__ import annotations

import math
from collections import Counter
from operator import itemgetter
from typing import Any

import msgspec

from adjudge.checks.check import (
    NO_REWARDS,
    AdvantageImpact,
    Check,
    CheckResult,
    need,
    not_applicable,
    share_text,
)
from adjudge.checks.effects import (
    MAX_ROWS,
    SHARE_OF_SAMPLES,
    Affected,
    EffectTest,
    MeasuredEffect,
    find_turned,
    first_rows,
    live_advantages,
    need_advantages,
    rows_by,
    visible_share,
)
from adjudge.checks.run import NOT_A_NUMBER, AuditedRun
from adjudge.stats import Estimate
from adjudge.stats.estimates import CONFIDENCE_LEVEL, estimate_share, np, t_quantile, t_tail

MAX_DEAD_SHARE = 0.5
"""More groups without spread than this are a finding: most of the run teaches nothing."""

MAX_MISSING_SHARE, MAX_MISSING_STEP = 0.02, 0.10
"""More missing rewards than this, in the run or in one step of ten or more samples."""

MAX_TURNED = 0.01
"""More recorded advantages than this with another sign than the rewards say are a finding."""

_MIN_STEP, _MIN_MISSING = 10, 5
_LEAST_EQUAL = 20


def series_by_step(run: AuditedRun, values: Any) -> tuple[tuple[float, float], ...]:
    """The mean of ``values`` in each step, NaN left out; empty without steps."""
    used = np.isfinite(run.step) & np.isfinite(values)
    steps, places = np.unique(run.step[used], return_inverse=True)
    if len(steps) < 2:
        return ()
    means = np.bincount(places, weights=values[used]) / np.bincount(places)
    return tuple(zip(steps.tolist(), means.tolist(), strict=True))


def _count(count: int, of: int, unit: str) -> CheckResult:
    effect = Estimate(count / of, why="counted" if count else "")
    return CheckResult(effect=effect, unit=unit, visible=visible_share(of, 1))


def count_affected(run: AuditedRun, bad: Any, sentence: str, **said: Any) -> CheckResult:
    """The result of a check of facts: every sample of ``bad`` is one, and chance plays no part.

    ``sentence`` has places for ``count``, ``of`` and ``share``; ``said``: fields of the finding.
    """
    total, count = len(run), int(bad.sum())
    result = _count(count, total, SHARE_OF_SAMPLES)
    if not count:
        return result
    share = count / total
    return Affected(run, bad, result).describe(
        sentence.format(count=f"{count:,}", of=f"{total:,}", share=share_text(share)),
        rows=first_rows(bad),
        series=series_by_step(run, bad.astype(float)),
        **said,
    )


def _least_above(limit: float, count: int) -> int:
    return math.floor(limit * count) + 1


def _find_not_finite(run: AuditedRun) -> CheckResult:
    bad = run.is_nan | np.isinf(run.reward) | np.isinf(run.recorded)
    if np.isfinite(run.recorded).mean() > 0.5:
        bad |= np.isnan(run.recorded) & np.isfinite(run.reward)
    return count_affected(
        run,
        bad,
        "{count} of {of} samples have no usable number as reward or advantage: it is NaN, infinite "
        "or beyond 1e100, or an advantage is null.",
        broken=True,
        harm=1.0,
        advice="A NaN reward makes the advantages of its whole group NaN. Find out where it comes "
        "from, and mark such samples as missing.",
    )


def _find_broken_rows(run: AuditedRun) -> CheckResult:
    total = len(run) + run.broken_count
    result = _count(run.broken_count, total, "share of rows")
    if not run.broken_count:
        return result
    return Affected(run, np.zeros(len(run), dtype=bool), result).describe(
        f"{run.broken_count:,} of {total:,} rows are no samples; the first: {run.broken[0]:.300}",
        affected=run.broken_count,
        impact=AdvantageImpact(why="the rows cannot be read"),
        harm=run.broken_count / total,
        advice="`adjudge grade` would skip them, too. See where they were written.",
    )


def _find_lone_samples(run: AuditedRun) -> CheckResult:
    need((run.group_sizes > 1).any(), "every group has one sample: this is no group-relative run")
    lonely = run.input.groups_are_prompts and (run.group_sizes == 1).mean() > 0.5
    need(not lonely, "most prompts have one answer: this is no group-relative run")
    return count_affected(
        run,
        run.group_sizes[run.group] == 1,
        "{count} of {of} samples ({share}) are alone in their group: their advantage is always 0.",
        advice="Check the group column, and whether the other samples of the prompt were lost.",
    )


def _find_dead_groups(run: AuditedRun) -> CheckResult:
    advantage = run.advantage
    present = np.isfinite(advantage)
    size = len(run.group_sizes)
    counts = np.bincount(run.group[present], minlength=size)
    compared = counts > 1
    if not compared.any():
        return _find_one_reward(run)
    live = np.bincount(run.group[np.isfinite(live_advantages(run))], minlength=size) > 0
    dead = compared & ~live
    rows, total = dead[run.group] & present, int(compared.sum())
    result = CheckResult(
        effect=estimate_share([(float(one), 1.0) for one in dead[compared]]),
        unit="share of groups",
        visible=visible_share(total, _least_above(MAX_DEAD_SHARE, total)),
    )
    share = float(dead.sum() / compared.sum())
    if share <= MAX_DEAD_SHARE:
        return result
    places = np.flatnonzero(rows)  # the first sample of each group
    first = places[np.sort(np.unique(run.group[places], return_index=True)[1])]
    # They teach nothing; they do not teach anything wrong.
    harm = 0.05 * share + (0.05 if share > 0.9 else 0.0)
    return Affected(run, rows, result).describe(
        f"In {share:.0%} of the groups all rewards are equal{_ends(run, rows)}: "
        "these samples have the advantage 0 and teach nothing.",
        rows=tuple(first[:MAX_ROWS].tolist()),
        impact=AdvantageImpact(
            affected=float(rows.mean()),
            why="they are 0 in these groups; those of other groups do not depend on them",
        ),
        harm=harm,
        otherwise="Easy or hard prompts have such groups in every honest run.",
        advice="Prompts that are always or never solved can be left out (dynamic sampling); a "
        "reward with few values can be refined.",
        series=series_by_step(run, np.where(compared[run.group] & present, rows, np.nan)),
    )


def _find_one_reward(run: AuditedRun) -> CheckResult:
    """One value for all answers, in a run without groups."""
    present = np.isfinite(run.reward)
    values = run.reward[present]
    if len(values) < _LEAST_EQUAL or np.ptp(values):
        need_advantages(run)
        need(False, "no group has two rewards")
    result = CheckResult(effect=Estimate(1.0, why="counted"), unit=SHARE_OF_SAMPLES)
    return Affected(run, present, result).describe(
        f"All {len(values):,} rewards are {values[0]:g}: they tell no answer from another.",
        otherwise="An easy or a hard set of questions may give this.",
        advice="Look whether the grader was run at all.",
        severity="medium",
    )


def _ends(run: AuditedRun, rows: Any) -> str:
    """How many of the equal rewards are the lowest and the highest of the run."""
    rewards = run.reward[np.isfinite(run.reward)]
    if not len(rewards) or rewards.min() == rewards.max():
        return ""
    own = run.reward[rows]
    low, high = (float((own == end).mean()) for end in (rewards.min(), rewards.max()))
    if low + high < 0.5:
        return ""
    return f" ({low:.0%} of them at the lowest reward, {high:.0%} at the highest)"


def _find_missing(run: AuditedRun) -> CheckResult:
    null = (run.is_null & ~run.is_nan).tolist()
    kinds = [
        kind if kind != NOT_A_NUMBER else "null in the dump" if is_null else ""
        for kind, is_null in zip(run.kinds, null, strict=True)
    ]
    bad = np.array([bool(kind) for kind in kinds], dtype=bool) & np.isnan(run.reward)
    need(np.isfinite(run.reward).any() or bad.any(), NO_REWARDS)
    # Of steps with enough samples for a share of them.
    used = np.isfinite(run.step)
    steps, places, counts = np.unique(run.step[used], return_inverse=True, return_counts=True)
    shares = np.bincount(places, weights=bad[used].astype(float)) / counts
    kept = (counts >= _MIN_STEP) & (shares * counts >= _MIN_MISSING) & (len(steps) > 1)
    large = zip(shares[kept].tolist(), steps[kept].tolist(), strict=True)
    worst_share, worst_step = max(large, key=itemgetter(0), default=(0.0, 0.0))
    share = float(bad.mean())
    every = np.ones(len(run), dtype=bool)
    is_step = worst_share > MAX_MISSING_STEP
    needed = 0 if is_step else _least_above(MAX_MISSING_SHARE, len(run))
    affected = Affected.measure(run, bad, every, needed)
    counted = Counter(kind for kind, is_bad in zip(kinds, bad.tolist(), strict=True) if is_bad)
    listed = ", ".join(f"{kind} {count:,}" for kind, count in counted.most_common(3))
    at = f"; in step {worst_step:.0f} it is {worst_share:.0%}" if worst_share > 1.5 * share else ""
    return affected.describe(
        f"{share_text(share)} of the rewards are missing ({listed}){at}.",
        rows=first_rows(bad),
        impact=AdvantageImpact(affected=share, why="missing rewards are already left out"),
        harm=share,
        advice="See that the trainer leaves them out and does not read them as 0.",
        series=series_by_step(run, bad.astype(float)),
    )


def _find_other_advantages(run: AuditedRun) -> CheckResult:
    both = np.isfinite(run.recorded) & np.isfinite(run.reward)
    need(both.any(), "the run has not both rewards and recorded advantages")
    own, other = run.advantage, run.recorded
    turned = both & find_turned(own, other)
    share = float(turned.sum() / both.sum())
    needed = _least_above(MAX_TURNED, int(both.sum()))
    unit = "share of advantages with another sign"
    affected = Affected.measure(run, turned, both, needed, unit=unit)
    return affected.describe(
        f"{share_text(share)} of the recorded advantages have another sign than the rewards of "
        "their group say.",
        rows=rows_by(-np.abs(own - other), turned),
        impact=AdvantageImpact(
            affected=share, turned=share, change=float(np.abs(own - other)[both].mean())
        ),
        harm=share,
        broken=True,
        advice="Rewards were changed after they were written (failures as 0, a penalty), or the "
        "groups of the trainer are others than those of the dump.",
    )


# fmt: off
REWARD_CHECKS = (
    Check("not_finite", "Rewards that are no numbers",
          "rewards or advantages that are NaN or infinite, and advantages that are null",
          _find_not_finite),
    Check("broken_rows", "Rows that cannot be read",
          "rows that cannot be read as samples, such as rollouts that did not end",
          _find_broken_rows),
    Check("missing", "Missing rewards",
          f"more than {MAX_MISSING_SHARE:.0%} of the rewards missing, or more than "
          f"{MAX_MISSING_STEP:.0%} in a step", _find_missing),
    Check("lone_samples", "Groups of one",
          "samples that are alone in their group, so that they teach nothing",
          _find_lone_samples),
    Check("dead_groups", "Groups without spread",
          f"more than {MAX_DEAD_SHARE:.0%} of the groups with equal rewards; in a run "
          "without groups one reward for all answers", _find_dead_groups),
    Check("recorded_advantages", "Recorded advantages that do not follow from the rewards",
          f"more than {MAX_TURNED:.0%} of the recorded advantages with another sign than "
          "the rewards of the group give", _find_other_advantages),
)
# fmt: on


MIN_STEPS = 8
"""Fewer steps say nothing of a change over them."""

MIN_JUMP, MIN_DRIFT = 0.5, 0.25
"""Smaller changes are no finding, in standard deviations of the reward."""

_WINDOW = 10
_UNIT = "standard deviations of the reward"
_NO_STEPS = "the run has no steps, or fewer than {} of them"
_IMPACT = AdvantageImpact(
    why="groups are within steps, so their advantages stay; curves and stopping rules do not"
)


def _fit_last(columns: list[Any], y: Any) -> tuple[float, float, int] | None:
    """The last coefficient of least squares, its error and the degrees of freedom."""
    x = np.stack(columns, axis=1)
    freedom = len(y) - x.shape[1]
    if freedom < 1 or np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    inverse = np.linalg.inv(x.T @ x)
    slopes = inverse @ x.T @ y
    variance = float(((y - x @ slopes) ** 2).sum()) / freedom
    return float(slopes[-1]), math.sqrt(max(0.0, variance * float(inverse[-1, -1]))), freedom


def _test_change(change: float, error: float, freedom: int, looks: int = 1) -> CheckResult:
    p_value = min(1.0, 2 * looks * t_tail(abs(change) / error, freedom))
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, freedom) * error
    test = EffectTest(change, p_value, error, error, freedom)
    measured = MeasuredEffect(Estimate(change, change - half, change + half), test)
    return measured.as_result(_UNIT, MIN_DRIFT)


def _find_jump(run: AuditedRun) -> CheckResult:
    series = series_by_step(run, run.reward)
    need(len(series) >= MIN_STEPS, _NO_STEPS.format(MIN_STEPS))
    spread = float(np.nanstd(run.reward))
    need(spread, "all rewards are equal")
    steps, means = (np.array(column) for column in zip(*series, strict=True))
    tried = []
    for split in range(3, len(steps) - 2):
        window = slice(max(0, split - _WINDOW), split + _WINDOW)
        at, y = steps[window], means[window] / spread
        after = (at >= steps[split]).astype(float)
        if fit := _fit_last([np.ones(len(at)), at - steps[split], after], y):
            tried.append((split, *fit))
    tried = [one for one in tried if one[2] > 0]
    need(tried, "the rewards of the steps do not vary")
    split, jump, error, freedom = max(tried, key=lambda one: abs(one[1]) / one[2])
    result = _test_change(jump, error, freedom, len(tried))
    # No size is stated: a trend of its own over the steps changes what would be seen.
    result = msgspec.structs.replace(result, visible=None)
    if abs(jump) < MIN_JUMP:
        return result
    at_step = run.step == steps[split]
    return Affected(run, at_step, result).describe(
        f"At step {steps[split]:.0f} the mean reward {'jumps' if jump > 0 else 'falls'} "
        f"by {abs(jump):.2f} standard deviations, beside its trend. "
        "A policy hardly changes so fast.",
        otherwise="The prompts may have changed there (a curriculum), or their difficulty.",
        rows=rows_by(run.reward if jump < 0 else -run.reward, at_step),
        affected=int((run.step >= steps[split]).sum()),
        impact=_IMPACT,
        harm=min(1.0, abs(jump) / 10),
        advice="See what changed there: the judge's model, its prompt, the data, a failing server.",
        series=series,
    )


def _find_judge_drift(run: AuditedRun) -> CheckResult:
    both = np.isfinite(run.reward) & np.isfinite(run.env_reward) & np.isfinite(run.step)
    need(both.any(), "needs a judge's reward, an environment's reward, and steps")
    steps = np.unique(run.step[both])
    need(len(steps) >= MIN_STEPS, _NO_STEPS.format(MIN_STEPS))
    env, reward = run.env_reward[both], run.reward[both]
    spread = float(reward.std())
    other = spread and not np.allclose(env, reward)
    need(other, "the reward is the environment's, or all rewards are equal")
    # What the judge says beyond the environment: less the mean at an equal environment's reward.
    x = np.stack([np.ones(len(env)), env], axis=1)
    residual = np.full(len(run), np.nan)
    residual[both] = (reward - x @ np.linalg.lstsq(x, reward, rcond=None)[0]) / spread
    series = series_by_step(run, residual)
    at, beyond = (np.array(column) for column in zip(*series, strict=True))
    position = (at - at[0]) / (at[-1] - at[0])
    fit = _fit_last([np.ones(len(at)), position], beyond)
    if fit is None or not fit[1]:
        return not_applicable("the rewards of the steps do not vary")
    change, error, freedom = fit
    result = _test_change(change, error, freedom)
    if abs(change) < MIN_DRIFT:
        return result
    late = np.where(run.step >= steps[-max(1, len(steps) // 5)], residual, np.nan)
    return Affected(run, np.isfinite(late), result).describe(
        f"At an equal reward of the environment, the judge's reward "
        f"{'rises' if change > 0 else 'falls'} by {abs(change):.2f} standard deviations over the "
        "run: "
        + (
            "the policy may be learning to please the judge."
            if change > 0
            else "the judge has become stricter, or it is another judge."
        ),
        rows=rows_by(-late if change > 0 else late, np.isfinite(late)),
        impact=_IMPACT,
        harm=min(1.0, abs(change) / 10),
        advice="Read late samples with a high judge's reward that the environment calls failed.",
        series=series,
    )


# fmt: off
DRIFT_CHECKS = (
    Check("reward_jump", "A sudden change of the reward",
          f"a step at which the mean reward changes by {MIN_JUMP} standard deviations or "
          "more, beside its trend", _find_jump),
    Check("judge_drift", "The judge drifts from the environment",
          "a judge's reward that rises or falls over the run at an equal reward of the "
          "environment", _find_judge_drift),
)
# fmt: on
