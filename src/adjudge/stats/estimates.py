"""A number with its interval: of means and shares by formula, of other statistics by bootstrap.

What is resampled is what is independent: an item with all that was asked about it, a group with its
samples, a unit within its stratum. A statistic is a function of sums over these, so a resample is a
matrix of counts times the columns, and any number of statistics share it. Everything is drawn by a
fixed seed: the same numbers give the same interval.

numpy and scipy come with the extra ``full`` and are imported at their first use: a command shows
its help without them, and says in one line what to install when it is run. What grading loads never
imports this module; a contract of the import linter holds that.

Source of the distributions: :mod:`scipy.special`; Hesterberg 2015, "What Teachers Should Know About
the Bootstrap", The American Statistician 69, for expanded percentile intervals; van der Vaart,
Asymptotic Statistics, §11-12, for statistics that are no sums over groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from adjudge.errors import ConfigError
from adjudge.installation import install_command
from adjudge.stats import Estimate, mean_and_std

CONFIDENCE_LEVEL = 0.95
NOTHING_VARIED = "nothing varied"
NO_VALUE = "no value"
EQUALITY_TOLERANCE = 1e-10
"""Numbers that differ by a smaller share of their size differ by rounding."""

ItemColumns = tuple[float, ...]
"""What one item contributes: the columns of which a statistic needs the sums."""


def t_quantile(p: float, freedom: float) -> float:
    """The ``p`` quantile of Student's t with ``freedom`` > 0 degrees of freedom.

    >>> round(t_quantile(0.975, 2), 4)
    4.3027
    """
    return float(special.stdtrit(freedom, p))


def t_tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's t.

    >>> round(2 * t_tail(2.0, 10), 5)
    0.07339
    """
    return float(special.stdtr(freedom, -t))


def normal_quantile(p: float) -> float:
    """The ``p`` quantile of the standard normal distribution."""
    return float(special.ndtri(p))


def normal_tail(z: float) -> float:
    """P(Z > z) of the standard normal distribution."""
    return float(special.ndtr(-z))


def binomial_two_sided(successes: int, n: int) -> float:
    """Exact two-sided p of ``successes`` in ``n`` at probability ½; 1 for ``n`` = 0."""
    return min(1.0, 2 * float(special.bdtr(min(successes, n - successes), n, 0.5)))


def t_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent numbers with the interval of Student's t.

    Exact for normal differences between them, and wide for few: ±2.5 SD with three.
    """
    n = len(values)
    if not n:
        return Estimate(why=NO_VALUE)
    middle = math.fsum(values) / n
    if n < 2:
        return Estimate(middle, why="one seed")
    _, spread = mean_and_std(values)
    if spread <= EQUALITY_TOLERANCE * abs(middle):
        return Estimate(middle, why=NOTHING_VARIED)
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, n - 1) * spread / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half)


def unseen_share_bound(n: int, level: float) -> float:
    """The largest share of items that may behave otherwise when none of ``n`` did.

    The upper Clopper-Pearson bound of 0 in ``n``: 1 − (α/2)^(1/n).

    >>> round(unseen_share_bound(40, 0.95), 3)
    0.088
    """
    return 1.0 - math.pow((1.0 - level) / 2, 1.0 / n)


def estimate_share(rows: Sequence[ItemColumns], *, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Σ hits / Σ trials with Wilson's interval, rows being ``(hits, trials)`` of an item each.

    Trials of one item are no independent trials: the interval is that of as many trials as have
    the variance that the items show (the design effect), between the number of items and that of
    trials, with the quantile of Student's t of items − 1. Where fewer than three items have the
    rarer outcome, nothing says how alike their trials are, and items are counted.

    >>> estimate_share([(0, 1)] * 40).high < 0.09
    True
    >>> estimate_share([(8, 8)] * 10).low < 0.75
    True
    """
    hits, trials = (math.fsum(row[place] for row in rows) for place in (0, 1))
    if trials <= 0:
        return Estimate(why=NO_VALUE)
    p = hits / trials
    n = _effective_trials(rows, p, trials)
    upper = (1 + level) / 2
    z = normal_quantile(upper) if n == trials else t_quantile(upper, max(1, len(rows) - 1))
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = centre - half if hits else 0.0
    high = centre + half if hits < trials else 1.0
    return Estimate(p, low, high)


_TELLING_ITEMS = 3
"""Items with the rarer outcome from which the variance between items is estimated."""


def _effective_trials(rows: Sequence[ItemColumns], p: float, trials: float) -> float:
    """How many independent trials have the variance of the share that the items show."""
    items = float(sum(of > 0 for _, of in rows))
    rarer = min(sum(hits > 0 for hits, _ in rows), sum(hits < of for hits, of in rows))
    if rarer < _TELLING_ITEMS or items < 2:
        return items
    off = math.fsum((hits - p * of) ** 2 for hits, of in rows)
    variance = off * items / (items - 1) / trials**2
    if variance <= 0:
        return trials
    return min(trials, max(items, p * (1 - p) / variance))


def estimate_largest_share(
    parts: Sequence[Sequence[ItemColumns]], *, level: float = CONFIDENCE_LEVEL
) -> Estimate:
    """The largest of several shares, with an interval that allows for having looked for it.

    The largest of several noisy shares is too large on average. Its lower end is the largest of
    the parts' lower ends at the level 1 − (1 − level)/k of k parts (Bonferroni), its upper end the
    largest upper end: the true maximum lies above all of the true shares.
    """
    found = [estimate_share(rows, level=level) for rows in parts if rows]
    values = [one.value for one in found if one.value is not None]
    if not values:
        return Estimate(why=NO_VALUE)
    strict = 1 - (1 - level) / len(parts)
    lows = [estimate_share(rows, level=strict).low for rows in parts if rows]
    highs = [one.high for one in found]
    return Estimate(
        max(values),
        max(low for low in lows if low is not None),
        max(high for high in highs if high is not None),
    )


class LazyLibrary:
    """A module that is imported when a name of it is first asked for.

    Raises :class:`~adjudge.errors.ConfigError` if it is not installed.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """The module's own attribute, kept."""
        try:
            value = getattr(import_module(self._module), name)
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            raise ConfigError(
                f"intervals and comparisons need {package}, which is not installed. "
                f"Run: {install_command('full')}"
            ) from None
        setattr(self, name, value)
        return value


np: Any = LazyLibrary("numpy")
special: Any = LazyLibrary("scipy.special")
optimize: Any = LazyLibrary("scipy.optimize")


def require_stats() -> None:
    """Raise :class:`~adjudge.errors.ConfigError` without numpy or scipy; ask before judges do."""
    _ = np.float64, special.ndtri


DEFAULT_RESAMPLES = 2_000
"""With so many the ends of a 95 % interval are off by about 3 % of its half-width."""

Statistic = Callable[[Sequence[float]], float | None]
"""From the sums of the columns to the number of interest; ``None`` where it has no value."""

_MAX_UNDEFINED_SHARE = 0.05
_ROUNDING = 1e-12
"""Differences of scores that are smaller are those of equal scores."""
_MAX_CELLS = 4_000_000
"""Counts held at a time: 32 MB."""


def ratio(sums: Sequence[float]) -> float | None:
    """First column by second; ``None`` of nothing."""
    return sums[0] / sums[1] if sums[1] > 0 else None


def draw_counts(n: int, resamples: int, seed: int) -> Iterator[Any]:
    """How often each of ``n`` units is drawn in each resample of ``n``: blocks of (resamples, n).

    The same seed draws the same.
    """
    rng = np.random.default_rng(seed)
    size = max(1, min(resamples, _MAX_CELLS // max(1, n)))
    for start in range(0, resamples, size):
        rows = min(size, resamples - start)
        places = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(places.ravel(), minlength=rows * n).reshape(rows, n).astype(float)


def _resample_sums(rows: Sequence[ItemColumns], resamples: int, seed: int) -> Any:
    """The columns' sums in resamples of the rows: (resamples, columns)."""
    values = np.asarray(rows, dtype=float)
    # Less the first row, so that a column of equal values has the same sum in every resample.
    with np.errstate(over="ignore", invalid="ignore"):  # sums may be too large: infinite, or NaN
        off = values - values[0]
        blocks = [counts @ off for counts in draw_counts(len(values), resamples, seed)]
        return np.concatenate(blocks) + len(values) * values[0]


def resample_statistics(
    strata: Sequence[Sequence[ItemColumns]],
    statistic: Callable[[Sequence[float]], Any],
    *,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = 0,
) -> list[Any]:
    """What ``statistic`` makes of the columns' sums in each of ``resamples`` resamples.

    A stratum is rows of units, one at least; it gets the sums of the first stratum, then those of
    the second, and so on. Units are drawn within strata, as many as there are: the sizes of
    subsets are a benchmark's and not chance.
    """
    sums = [_resample_sums(rows, resamples, seed + at) for at, rows in enumerate(strata)]
    return [statistic(one) for one in np.concatenate(sums, axis=1).tolist()]


def percentile_interval(
    drawn: Sequence[float | None],
    value: float | None = None,
    *,
    tail: float = (1 - CONFIDENCE_LEVEL) / 2,
    equal: str = "all units score the same",
    undefined: str = "too few resamples have a score",
) -> Estimate:
    """``value`` with the interval from the ``tail`` to the 1 − ``tail`` quantile of resamples.

    None where all are equal (nothing varied: that is no certainty), for which ``equal`` is said,
    and where more than 5 % are ``None``: the rest are no fair draw, and ``undefined`` is said.
    """
    present = _defined_values(drawn)
    if not len(present):
        return Estimate(value, why=undefined)
    if _are_equal(present):
        return Estimate(value, why=equal)
    low, high = np.quantile(present, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def _defined_values(drawn: Sequence[float | None]) -> Any:
    """The values there are; none where more than 5 % are not."""
    values = np.array(drawn, dtype=float)
    present = values[~np.isnan(values)]
    return present if len(present) >= (1 - _MAX_UNDEFINED_SHARE) * len(values) else present[:0]


def _are_equal(present: Any) -> bool:
    low, high = present.min(), present.max()
    return bool(high - low <= EQUALITY_TOLERANCE * max(abs(low), abs(high)))


def expanded_tail(*sizes: int, level: float = CONFIDENCE_LEVEL) -> float:
    """The share of resamples beyond each end of units in strata of these sizes, instead of α/2.

    Φ(−t·√(Σn/Σ(n − 1))) with t of Σ(n − 1) degrees of freedom: for normal data the interval then
    agrees with Student's t, without which a bootstrap of few units is too narrow (Hesterberg 2015,
    §4.1.2). A stratum of one unit adds none.
    """
    more = [size for size in sizes if size > 1]
    if not more:
        return (1 - level) / 2
    freedom = sum(more) - len(more)
    return normal_tail(t_quantile((1 + level) / 2, freedom) * math.sqrt(sum(more) / freedom))


def bootstrap_p_value(drawn: Sequence[float | None], *sizes: int) -> float | None:
    """The level at which the expanded interval of differences would touch 0, two-sided.

    ``sizes``: of the strata, as in :func:`expanded_tail`. ``None`` without a resample, where more
    than 5 % are undefined (as there is no interval then), and where all are the same difference: of
    one item, say, which tells nothing of others.
    """
    present = _defined_values(drawn)
    present[np.abs(present) < _ROUNDING] = 0
    if not len(present) or (_are_equal(present) and present[0]):
        return None
    below, above = int((present <= 0).sum()), int((present >= 0).sum())
    tail = min(0.5, (min(below, above) + 1) / (len(present) + 1))
    more = [size for size in sizes if size > 1]
    freedom = sum(more) - len(more)
    if freedom:
        tail = t_tail(-normal_quantile(tail) * math.sqrt(freedom / sum(more)), freedom)
    return min(1.0, 2 * tail)


def bootstrap(
    rows: Sequence[ItemColumns], statistic: Statistic, *, level: float = CONFIDENCE_LEVEL
) -> Estimate:
    """A statistic with its expanded percentile interval over resampled items.

    Where every resample has the same value, nothing varied, which is no certainty: the interval
    then reaches as far as the items that were not seen could move it, each by 1
    (:func:`~adjudge.stats.estimates.unseen_share_bound`). No interval below two items, nor
    where more than 5 % of the resamples have no value.

    >>> bootstrap([(0.0, 1.0)] * 40, lambda sums: sums[0] / sums[1]).high < 0.09
    True
    """
    n = len(rows)
    value = statistic([math.fsum(of) for of in zip(*rows, strict=True)]) if rows else None
    if value is None or n < 2:
        return Estimate(value, why=NO_VALUE if value is None else "one item")
    drawn = resample_statistics([rows], statistic)
    found = percentile_interval(
        drawn, value, tail=expanded_tail(n, level=level), equal=NOTHING_VARIED
    )
    if found.why == NOTHING_VARIED:
        width = unseen_share_bound(n, level)
        return Estimate(value, value - width, value + width)
    return found


_MIN_GROUPS, _MAX_BLOCKS = 8, 500


def bootstrap_groups(
    rows: Sequence[ItemColumns],
    statistic: Statistic,
    *,
    bounds: tuple[float, float] = (-1.0, 1.0),
) -> Estimate:
    """A statistic of the groups' summed columns with its 95 % interval, cut to ``bounds``.

    A row is a group. More than 500 groups are put together at random into 500 blocks, which are
    then resampled: sums of independent groups have the same variance in blocks. Below 8 groups
    there is no interval: so few say nothing of how much groups differ. Else as :func:`bootstrap`,
    whose notes on few groups and on resamples that do not vary hold here.
    """
    if len(rows) < _MIN_GROUPS:
        value = statistic([math.fsum(of) for of in zip(*rows, strict=True)]) if rows else None
        few = f"fewer than {_MIN_GROUPS} groups"
        return Estimate(value, why=NO_VALUE if value is None else few)
    found = bootstrap(_merge_into_blocks(rows), statistic)
    if found.low is None or found.high is None:
        return found
    return Estimate(found.value, max(bounds[0], found.low), min(bounds[1], found.high))


def _merge_into_blocks(rows: Sequence[ItemColumns]) -> Sequence[ItemColumns]:
    if len(rows) <= _MAX_BLOCKS:
        return rows
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    return [
        tuple(map(math.fsum, zip(*(rows[at] for at in order[first::_MAX_BLOCKS]), strict=True)))
        for first in range(_MAX_BLOCKS)
    ]
