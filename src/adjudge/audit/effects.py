"""Effects within groups, with intervals clustered by group, and what they did to advantages.

A group-relative trainer learns from differences within a group alone, so every effect on advantages
is one within groups: both sides are centred by group first. Intervals are by the cluster-robust
variance with groups as clusters (Liang and Zeger 1986, CR1), and Student's t with groups − 1
degrees of freedom.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from adjudge.audit.findings import FALSE_ALARM_RATE, STATED_POWER, AdvantageImpact
from adjudge.audit.rollouts import AuditedRun, compute_advantage_column
from adjudge.stats.estimates import CONFIDENCE_LEVEL, Estimate, np, t_quantile, t_tail

MIN_GROUPS = 8
"""Fewer groups say nothing of how much groups differ."""

EXPECTED_CHECKS = 20
"""The smallest effect that could be seen is stated at the strictest level that Holm may ask for."""


class MeasuredEffect(NamedTuple):
    """An effect with its interval, its two-sided p value, and the least that would be seen.

    ``p_value`` and ``detectable`` are ``None`` where ``estimate.why`` says what is missing.
    """

    estimate: Estimate
    p_value: float | None
    detectable: float | None


def centre_by_group(values: Any, group: Any, used: Any) -> Any:
    """``values`` less the mean of their group, over the rows that are ``used``; else 0."""
    size = int(group.max()) + 1 if len(group) else 0
    counts = np.bincount(group[used], minlength=size)
    sums = np.bincount(group[used], weights=values[used], minlength=size)
    mean = sums / np.maximum(counts, 1)
    return np.where(used, values - mean[group], 0.0)


def measure_slope(x: Any, y: Any, group: Any) -> MeasuredEffect:
    """The change of ``y`` a unit of ``x`` within groups; NaN rows are left out."""
    used = np.isfinite(x) & np.isfinite(y)
    xc, yc = (centre_by_group(np.where(used, v, 0.0), group, used) for v in (x, y))
    return _clustered_slope(xc, yc, group)


def measure_correlation(x: Any, y: Any, group: Any) -> MeasuredEffect:
    """The correlation of ``x`` and ``y`` within groups, with the same test as the slope's."""
    used = np.isfinite(x) & np.isfinite(y)
    xc, yc = (centre_by_group(np.where(used, v, 0.0), group, used) for v in (x, y))
    spread_x, spread_y = (math.sqrt(float((v * v).sum())) for v in (xc, yc))
    if not spread_x or not spread_y:
        what = "x" if not spread_x else "the advantage"
        return MeasuredEffect(Estimate(why=f"{what} does not vary within groups"), None, None)
    return _clustered_slope(xc / spread_x, yc / spread_y, group, bounds=1.0)


def measure_difference(mask: Any, y: Any, group: Any) -> MeasuredEffect:
    """How much larger ``y`` is where ``mask`` holds than elsewhere in the same group."""
    return measure_slope(np.asarray(mask, dtype=float), y, group)


def measure_mean(values: Any, group: Any, *, at: float = 0.0) -> MeasuredEffect:
    """The mean of ``values``, tested against ``at``, groups as clusters; NaN rows left out."""
    used = np.isfinite(values)
    size = int(group.max()) + 1 if len(group) else 0
    count = int(used.sum())
    if not count:
        return MeasuredEffect(Estimate(why="no value"), None, None)
    mean = float(values[used].mean())
    scores = np.bincount(group[used], weights=values[used] - mean, minlength=size)
    clusters = int((np.bincount(group[used], minlength=size) > 0).sum())
    return _finish(mean, at, float((scores**2).sum()) / count**2, clusters)


def _clustered_slope(x: Any, y: Any, group: Any, bounds: float = math.inf) -> MeasuredEffect:
    square = float((x * x).sum())
    if square <= 0:
        return MeasuredEffect(Estimate(why="it does not vary within groups"), None, None)
    slope = float((x * y).sum()) / square
    size = int(group.max()) + 1
    scores = np.bincount(group, weights=x * (y - slope * x), minlength=size)
    varies = np.bincount(group, weights=x * x, minlength=size) > 0
    return _finish(slope, 0.0, float((scores**2).sum()) / square**2, int(varies.sum()), bounds)


def _finish(
    value: float, at: float, variance: float, clusters: int, bounds: float = math.inf
) -> MeasuredEffect:
    """With its interval, p value and detectable size, from a variance summed over clusters."""
    if clusters < MIN_GROUPS:
        why = f"fewer than {MIN_GROUPS} groups in which it varies"
        return MeasuredEffect(Estimate(value, why=why), None, None)
    freedom = clusters - 1
    error = math.sqrt(variance * clusters / freedom)
    if error <= 0:
        return MeasuredEffect(Estimate(value, why="nothing varied"), 0.0 if value != at else 1.0, 0)
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, freedom) * error
    p_value = min(1.0, 2 * t_tail(abs(value - at) / error, freedom))
    estimate = Estimate(value, max(-bounds, value - half), min(bounds, value + half))
    return MeasuredEffect(estimate, p_value, smallest_visible_effect(error, freedom))


def smallest_visible_effect(error: float, freedom: float) -> float:
    """The smallest effect seen with 90 % power at the strictest level that Holm may ask for."""
    level = FALSE_ALARM_RATE / EXPECTED_CHECKS
    return error * (t_quantile(1 - level / 2, freedom) + t_quantile(STATED_POWER, freedom))


def impact_without(run: AuditedRun, mask: Any) -> AdvantageImpact:
    """What the other samples' advantages are when the samples of ``mask`` are left out."""
    mask = np.asarray(mask, dtype=bool)
    present = np.isfinite(run.reward)
    affected = float(mask.mean()) if len(mask) else 0.0
    if not present.any():
        return AdvantageImpact(affected=affected, why="the run has no single reward")
    after = compute_advantage_column(run.reward, run.group, ~mask)
    return _compare(run.advantage, after, present & ~mask, affected)


def impact_of_removing(run: AuditedRun, x: Any, slope: float) -> AdvantageImpact:
    """What the advantages are when the linear effect of ``x`` within groups is taken out."""
    used = np.isfinite(x) & np.isfinite(run.advantage)
    after = run.advantage - slope * centre_by_group(np.where(used, x, 0.0), run.group, used)
    return _compare(run.advantage, after, used, float(used.mean()) if len(used) else 0.0)


def _compare(before: Any, after: Any, used: Any, affected: float) -> AdvantageImpact:
    both = used & np.isfinite(before) & np.isfinite(after)
    if not both.any():
        return AdvantageImpact(affected=affected, why="no advantage is left to compare")
    one, other = before[both], after[both]
    turned = (np.minimum(np.abs(one), np.abs(other)) > 1e-6) & ((one > 0) != (other > 0))
    return AdvantageImpact(
        affected=affected,
        turned=float(turned.mean()),
        change=float(np.abs(other - one).mean()),
    )
