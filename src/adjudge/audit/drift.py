"""Checks over the steps of a run: a sudden change of the reward, and a judge that drifts."""

from __future__ import annotations

import math
from typing import Any

from adjudge.audit.effects import smallest_visible_effect
from adjudge.audit.findings import (
    AdvantageImpact,
    AuditResult,
    Check,
    Finding,
    not_applicable,
    severity_of,
)
from adjudge.audit.rewards import MAX_ROWS, series_by_step
from adjudge.audit.rollouts import AuditedRun
from adjudge.stats.estimates import CONFIDENCE_LEVEL, Estimate, np, t_quantile, t_tail

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


def _find_jump(run: AuditedRun) -> AuditResult:
    series = series_by_step(run, run.reward)
    if len(series) < MIN_STEPS:
        return not_applicable(_NO_STEPS.format(MIN_STEPS))
    spread = float(np.nanstd(run.reward))
    if not spread:
        return not_applicable("all rewards are equal")
    steps, means = (np.array(column) for column in zip(*series, strict=True))
    tried = []
    for split in range(3, len(steps) - 2):
        window = slice(max(0, split - _WINDOW), split + _WINDOW)
        at, y = steps[window], means[window] / spread
        after = (at >= steps[split]).astype(float)
        if fit := _fit_last([np.ones(len(at)), at - steps[split], after], y):
            tried.append((split, *fit))
    tried = [one for one in tried if one[2] > 0]
    if not tried:
        return not_applicable("the rewards of the steps do not vary")
    split, jump, error, freedom = max(tried, key=lambda one: abs(one[1]) / one[2])
    p_value = min(1.0, len(tried) * 2 * t_tail(abs(jump) / error, freedom))
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, freedom) * error
    effect = Estimate(jump, jump - half, jump + half)
    typical = sorted(one[2] for one in tried)[len(tried) // 2]
    result = AuditResult(
        p_value=p_value,
        effect=effect,
        unit=_UNIT,
        detectable=smallest_visible_effect(typical, freedom, len(tried)),
    )
    if abs(jump) < MIN_JUMP:
        return result
    at_step = run.step == steps[split]
    order = np.argsort((run.reward if jump < 0 else -run.reward)[at_step], kind="stable")
    harm = min(1.0, abs(jump) / 10)
    finding = Finding(
        sentence=f"At step {steps[split]:.0f} the mean reward {'jumps' if jump > 0 else 'falls'} "
        f"by {abs(jump):.2f} standard deviations, beside its trend. "
        "A policy does not change so fast.",
        effect=effect,
        unit=_UNIT,
        rows=tuple(np.flatnonzero(at_step)[order][:MAX_ROWS].tolist()),
        affected=int((run.step >= steps[split]).sum()),
        impact=_IMPACT,
        harm=harm,
        severity=severity_of(harm),
        advice="See what changed there: the judge's model, its prompt, the data, a failing server.",
        series=series,
    )
    return AuditResult(
        finding=finding,
        p_value=p_value,
        effect=effect,
        unit=_UNIT,
        detectable=result.detectable,
    )


def _find_judge_drift(run: AuditedRun) -> AuditResult:
    both = np.isfinite(run.reward) & np.isfinite(run.env_reward) & np.isfinite(run.step)
    if not both.any():
        return not_applicable("needs a judge's reward, an environment's reward, and steps")
    steps = np.unique(run.step[both])
    if len(steps) < MIN_STEPS:
        return not_applicable(_NO_STEPS.format(MIN_STEPS))
    env, reward = run.env_reward[both], run.reward[both]
    spread = float(reward.std())
    if not spread or np.allclose(env, reward):
        return not_applicable("the reward is the environment's, or all rewards are equal")
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
    p_value = min(1.0, 2 * t_tail(abs(change) / error, freedom))
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, freedom) * error
    effect = Estimate(change, change - half, change + half)
    detectable = smallest_visible_effect(error, freedom)
    if abs(change) < MIN_DRIFT:
        return AuditResult(p_value=p_value, effect=effect, unit=_UNIT, detectable=detectable)
    late = np.where(run.step >= steps[-max(1, len(steps) // 5)], residual, np.nan)
    order = np.argsort(np.nan_to_num(-late if change > 0 else late, nan=math.inf), kind="stable")
    harm = min(1.0, abs(change) / 10)
    finding = Finding(
        sentence=f"At an equal reward of the environment, the judge's reward "
        f"{'rises' if change > 0 else 'falls'} by {abs(change):.2f} standard deviations over the "
        "run: "
        + (
            "the policy may be learning to please the judge."
            if change > 0
            else "the judge has become stricter, or it is another judge."
        ),
        effect=effect,
        unit=_UNIT,
        rows=tuple(order[: min(MAX_ROWS, int(np.isfinite(late).sum()))].tolist()),
        affected=int(np.isfinite(late).sum()),
        impact=_IMPACT,
        harm=harm,
        severity=severity_of(harm),
        advice="Read late samples with a high judge's reward that the environment calls failed.",
        series=series,
    )
    return AuditResult(
        finding=finding, p_value=p_value, effect=effect, unit=_UNIT, detectable=detectable
    )


DRIFT_CHECKS = (
    Check(
        name="reward_jump",
        title="A sudden change of the reward",
        looks_for=f"a step at which the mean reward changes by {MIN_JUMP} standard deviations or "
        "more, beside its trend",
        run=_find_jump,
    ),
    Check(
        name="judge_drift",
        title="The judge drifts from the environment",
        looks_for="a judge's reward that rises or falls over the run at an equal reward of the "
        "environment",
        run=_find_judge_drift,
    ),
)
