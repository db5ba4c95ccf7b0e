"""Effects within groups, with intervals clustered by group, and what they did to advantages.

A group-relative trainer learns from differences within a group alone, so every effect on advantages
is one within groups: both sides are centred by group first. Intervals are by the cluster-robust
variance with groups as clusters (Liang and Zeger 1986, CR1), and Student's t with groups − 1
degrees of freedom. Tests permute within groups: where nothing explains advantages, any sample of a
group could have had any of its advantages, so the test is exact however few or uneven the groups
are; of many samples it uses the permutations' own variance (Hoeffding 1951, "A Combinatorial
Central Limit Theorem").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from adjudge.checks.check import (
    STATED_POWER,
    AdvantageImpact,
    CheckResult,
    Finding,
    FindingSeverity,
    NotApplicable,
    NothingFound,
    need,
    severity_of,
)
from adjudge.checks.run import AuditedRun, compute_advantage_column
from adjudge.stats import Estimate
from adjudge.stats.estimates import (
    CONFIDENCE_LEVEL,
    estimate_share,
    normal_quantile,
    normal_tail,
    np,
    special,
    t_quantile,
    t_tail,
)

MIN_GROUPS = 8
"""Fewer groups say nothing of how much groups differ: there is no interval."""

_PERMUTATIONS, _PERMUTED_AT_ONCE, _MOST_PERMUTED = 20_000, 500, 600
_CLEARLY_CHANCE, _CLEARLY_NO_CHANCE, _ENOUGH_BEYOND = 0.1, 1e-9, 50

MAX_ROWS = 200
"""Affected samples that a finding names."""

SHARE_OF_SAMPLES = "share of samples"
MIN_SAMPLES = 3


class EffectTest(NamedTuple):
    """An effect's size, its two-sided p value, and how precisely it is measured.

    ``error``: the standard error of the effect; ``null``: of an effect that is 0, by which p is;
    ``freedom``: degrees of freedom of that.
    """

    value: float
    p_value: float
    error: float
    null: float
    freedom: float = math.inf

    def visible(self, limit: float = 0.0, looks: int = 1) -> Callable[[float], float]:
        """The smallest effect found in 90 % of such runs, by the level that p must reach.

        ``limit``: smaller measured effects are no finding. ``looks``: places that were looked at,
        of which the strongest is reported.
        """

        def at(level: float) -> float:
            certain = 1 - level / looks / 2
            infinite = math.isinf(self.freedom)
            by = normal_quantile(certain) if infinite else t_quantile(certain, self.freedom)
            return max(limit, by * self.null) + normal_quantile(STATED_POWER) * self.error

        return at


class MeasuredEffect(NamedTuple):
    """An effect with its interval; ``test`` is ``None`` where ``estimate.why`` says what misses."""

    estimate: Estimate
    test: EffectTest | None = None

    def as_result(self, unit: str, limit: float = 0.0) -> CheckResult:
        """The result of a check to which a smaller effect than ``limit`` is no finding."""
        if self.test is None:
            raise NotApplicable(self.estimate.why)
        return CheckResult(
            effect=self.estimate,
            p_value=self.test.p_value,
            unit=unit,
            visible=self.test.visible(limit),
        )


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
    return _slope_within(xc, yc, group, used)


def measure_correlation(x: Any, y: Any, group: Any) -> MeasuredEffect:
    """The correlation of ``x`` and ``y`` within groups, with the same test as the slope's."""
    used = np.isfinite(x) & np.isfinite(y)
    xc, yc = (centre_by_group(np.where(used, v, 0.0), group, used) for v in (x, y))
    spread_x, spread_y = (math.sqrt(float((v * v).sum())) for v in (xc, yc))
    if not spread_x or not spread_y:
        what = "x" if not spread_x else "the advantage"
        return MeasuredEffect(Estimate(why=f"{what} does not vary within groups"))
    return _slope_within(xc / spread_x, yc / spread_y, group, used, bounds=1.0)


def measure_partial(x: Any, y: Any, beyond: Any, group: Any) -> MeasuredEffect:
    """The change of ``y`` a unit of ``x`` within groups that ``beyond`` does not explain."""
    used = np.isfinite(x) & np.isfinite(y) & np.isfinite(beyond)
    xc, yc, bc = (centre_by_group(np.where(used, v, 0.0), group, used) for v in (x, y, beyond))
    square = float((bc * bc).sum())
    if square > 0:
        xc, yc = (v - bc * (float((v * bc).sum()) / square) for v in (xc, yc))
    return _slope_within(xc, yc, group, used)


def measure_pooled_difference(mask: Any, y: Any, group: Any) -> MeasuredEffect:
    """How much larger ``y`` is where ``mask`` holds, over all samples, groups as clusters."""
    used = np.isfinite(y)
    if not used.any():
        return MeasuredEffect(Estimate(why="no value"))
    x = np.where(used, np.asarray(mask, dtype=float) - float(mask[used].mean()), 0.0)
    off = np.where(used, np.where(used, y, 0.0) - float(y[used].mean()), 0.0)
    return _clustered_slope(x, off, group)


def measure_difference(mask: Any, y: Any, group: Any) -> MeasuredEffect:
    """How much larger ``y`` is where ``mask`` holds than elsewhere in the same group."""
    return measure_slope(np.asarray(mask, dtype=float), y, group)


def _slope_within(
    x: Any, y: Any, group: Any, used: Any, bounds: float = math.inf
) -> MeasuredEffect:
    """The slope of centred columns: its interval by groups, its test by permutation."""
    clustered = _clustered_slope(x, y, group, bounds)
    found = clustered.estimate
    if found.value is None:
        return MeasuredEffect(found)
    size = int(group.max()) + 1
    counts = np.bincount(group[used], minlength=size)
    square_x, square_y = (np.bincount(group, weights=v * v, minlength=size) for v in (x, y))
    null = math.sqrt(float((square_x * square_y / np.maximum(counts - 1, 1)).sum()))
    if not null:
        return MeasuredEffect(Estimate(why="it does not vary within groups"))
    product = float((x * y).sum())
    p_value = 2 * normal_tail(abs(product) / null)
    if p_value < _CLEARLY_CHANCE and int(used.sum()) <= _MOST_PERMUTED:
        draws = _PERMUTATIONS if p_value > _CLEARLY_NO_CHANCE else _PERMUTATIONS // 10
        p_value = _permutation_p_value(x[used], y[used], group[used], product, draws)
    error = clustered.test.error if clustered.test else null / float(square_x.sum())
    test = EffectTest(found.value, min(1.0, p_value), error, null / float(square_x.sum()))
    return MeasuredEffect(found, test)


def _permutation_p_value(x: Any, y: Any, group: Any, product: float, draws: int) -> float:
    """How often Σ xy is as far from 0 with ``y`` permuted within groups.

    Stops when that has happened so often that more draws would not make it small. Where it never
    happens in fewer draws than all, the rest is taken not to have it either.
    """
    order = np.argsort(group, kind="stable")
    x, y, group = x[order], y[order], group[order]
    rng = np.random.default_rng(0)
    beyond = drawn = 0
    while drawn < draws and beyond < _ENOUGH_BEYOND:
        keys = rng.random((_PERMUTED_AT_ONCE, len(y))) + group
        products = np.abs(y[np.argsort(keys, axis=1)] @ x)
        beyond += int((products >= abs(product) * (1 - 1e-9)).sum())
        drawn += _PERMUTED_AT_ONCE
    return (beyond + 1) / ((drawn if beyond else _PERMUTATIONS) + 1)


def _clustered_slope(x: Any, y: Any, group: Any, bounds: float = math.inf) -> MeasuredEffect:
    square = float((x * x).sum())
    if square <= 0:
        return MeasuredEffect(Estimate(why="it does not vary within groups"))
    slope = float((x * y).sum()) / square
    size = int(group.max()) + 1
    scores = np.bincount(group, weights=x * (y - slope * x), minlength=size)
    clusters = int((np.bincount(group, weights=x * x, minlength=size) > 0).sum())
    variance = float((scores**2).sum()) / square**2
    if clusters < MIN_GROUPS:
        why = f"fewer than {MIN_GROUPS} groups in which it varies"
        return MeasuredEffect(Estimate(slope, why=why))
    freedom = clusters - 1
    error = math.sqrt(variance * clusters / freedom)
    if error <= 0:
        certain = EffectTest(slope, 0.0 if slope else 1.0, 0.0, 0.0)
        return MeasuredEffect(Estimate(slope, why="nothing varied"), certain)
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, freedom) * error
    p_value = min(1.0, 2 * t_tail(abs(slope) / error, freedom))
    estimate = Estimate(slope, max(-bounds, slope - half), min(bounds, slope + half))
    return MeasuredEffect(estimate, EffectTest(slope, p_value, error, error, freedom))


def visible_share(count: int, needed: int) -> Callable[[float], float] | None:
    """The share of ``count`` that gives ``needed`` or more in 90 % of runs; by no level, of facts.

    ``None`` where there are fewer.
    """
    if needed > count:
        return None
    share = float(special.bdtri(needed - 1, count, 1 - STATED_POWER)) if needed else 0.0
    return lambda _level: share


def estimate_share_by_group(run: AuditedRun, hit: Any, used: Any = None) -> Estimate:
    """The share of the ``used`` samples (default: all) with ``hit``, groups as clusters."""
    size = len(run.group_sizes)
    trials = run.group_sizes if used is None else np.bincount(run.group[used], minlength=size)
    hits = np.bincount(run.group, weights=np.asarray(hit, dtype=float), minlength=size)
    rows = [(h, t) for h, t in zip(hits.tolist(), trials.tolist(), strict=True) if t]
    return estimate_share(rows)


def live_advantages(run: AuditedRun) -> Any:
    """The advantages of groups in which they differ; NaN elsewhere: nothing is learned there."""
    advantage = run.advantage
    present = np.isfinite(advantage)
    centred = centre_by_group(np.where(present, advantage, 0.0), run.group, present)
    spread = np.bincount(run.group, weights=centred * centred, minlength=len(run.group_sizes))
    return np.where(present & (spread > 1e-9)[run.group], advantage, np.nan)


def need_advantages(run: AuditedRun) -> None:
    """What is said of advantages needs groups in which they differ."""
    need(len(run), "the run has no samples")
    need(np.isfinite(run.advantage).any(), "the run has neither rewards nor advantages")
    alone = "every group has one sample, so there are no advantages within groups"
    need((run.group_sizes > 1).any(), alone)
    need(np.isfinite(live_advantages(run)).any(), "no group has rewards that differ")


def impact_without(run: AuditedRun, mask: Any) -> AdvantageImpact:
    """What the other samples' advantages are when the samples of ``mask`` are left out."""
    mask = np.asarray(mask, dtype=bool)
    present = np.isfinite(run.reward)
    affected = float(mask.mean()) if len(mask) else 0.0
    if not present.any():
        return AdvantageImpact(affected=affected, why="the run has no single reward")
    after = compute_advantage_column(run.reward, run.group, ~mask)
    return measure_advantages(run.advantage, after, present & ~mask, affected)


def find_turned(before: Any, after: Any) -> Any:
    """Which advantages have another sign, those that are nearly 0 left out."""
    return (np.minimum(np.abs(before), np.abs(after)) > 1e-6) & ((before > 0) != (after > 0))


def measure_advantages(before: Any, after: Any, used: Any, affected: float) -> AdvantageImpact:
    """What becomes of the advantages of the ``used`` samples; ``affected``: the share concerned."""
    both = used & np.isfinite(before) & np.isfinite(after)
    if not both.any():
        return AdvantageImpact(affected=affected, why="no advantage is left to compare")
    return AdvantageImpact(
        affected=affected,
        turned=float(find_turned(before, after)[both].mean()),
        change=float(np.abs(after - before)[both].mean()),
    )


def harm_of(impact: AdvantageImpact, share: float) -> float:
    """The larger of ``share`` and of the share that turns; ``share`` where that is not known."""
    return share if impact.turned is None else max(share, impact.turned)


def rows_by(value: Any, mask: Any) -> tuple[int, ...]:
    """The rows of ``mask`` that a finding names, those with the lowest ``value`` first."""
    rows = np.flatnonzero(mask)
    return tuple(rows[np.argsort(value[rows], kind="stable")][:MAX_ROWS].tolist())


def first_rows(mask: Any) -> tuple[int, ...]:
    """The rows of ``mask`` that a finding names, in the order of the run."""
    return tuple(np.flatnonzero(mask)[:MAX_ROWS].tolist())


def needed_of(count: int, share: float) -> int:
    """The fewest of ``count`` samples that are worth a word: three, and a share of them."""
    return max(MIN_SAMPLES, math.ceil(share * count))


class Affected(NamedTuple):
    """The samples of a run that a check is about, and its result without a finding."""

    run: AuditedRun
    mask: Any
    result: CheckResult

    @classmethod
    def measure(
        cls,
        run: AuditedRun,
        mask: Any,
        known: Any,
        needed: int = MIN_SAMPLES,
        least: float = 0.0,
        unit: str = SHARE_OF_SAMPLES,
    ) -> Affected:
        """The ``known`` samples with ``mask``; a finding needs ``needed`` and a share ``least``.

        Raises :class:`~adjudge.checks.check.NothingFound` where they are fewer.
        """
        count, effect = int(known.sum()), estimate_share_by_group(run, mask, known)
        needed = max(needed, math.ceil(least * count))
        result = CheckResult(effect=effect, unit=unit, visible=visible_share(count, needed))
        if int(mask.sum()) < needed:
            raise NothingFound(result)
        return cls(run, mask, result)

    def describe(
        self,
        sentence: str,
        *,
        harm: float | None = None,
        severity: FindingSeverity | None = None,
        rows: tuple[int, ...] | None = None,
        affected: int | None = None,
        impact: AdvantageImpact | None = None,
        **said: Any,
    ) -> CheckResult:
        """The result with the finding that these samples are.

        ``harm``: their share of the run where it is not given; ``severity``: that of ``harm``;
        ``rows``: the best rewarded first; ``impact``: what the others' advantages are without
        them. ``said``: other fields of the finding. Without a test of chance there is no need to
        say what could have been seen.
        """
        run, mask, result = self
        affected = int(mask.sum()) if affected is None else affected
        harm = affected / len(run) if harm is None else harm
        best = rows_by(-np.nan_to_num(run.advantage, nan=-np.inf), mask)
        finding = Finding(
            sentence=sentence,
            rows=best if rows is None else rows,
            affected=affected,
            impact=impact_without(run, mask) if impact is None else impact,
            harm=harm,
            severity=severity or severity_of(harm),
            **said,
        )
        visible = None if result.p_value is None else result.visible
        return msgspec.structs.replace(result, finding=finding, visible=visible)
