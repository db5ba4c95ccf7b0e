"""Intervals of a statistic over items: bootstrap, and Wilson's for shares.

Pure Python, deterministic by seed. An item is the unit: all that was asked about one topic is
resampled together, so pairs stay pairs and translations of one question are not two observations.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from statistics import NormalDist
from typing import Any

import msgspec

from adjudge.runs.distributions import quantile
from adjudge.runs.student import t_quantile

__all__ = [
    "Estimate",
    "Row",
    "Statistic",
    "bootstrap",
    "largest_share",
    "share",
    "unseen",
]

Row = tuple[float, ...]
"""What one item contributes: the columns of which a statistic needs the sums."""

Statistic = Callable[[Sequence[float]], float | None]
"""From the sums of the columns to the number of interest; ``None`` where it has no value."""

_NORMAL = NormalDist()
_MOST_UNDEFINED = 0.05
_MOST_KEPT = 1_000_000


class Estimate(msgspec.Struct, frozen=True):
    """A number and its interval; ``None`` where it could not be had."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


def unseen(n: int, level: float) -> float:
    """The largest share of items that may behave otherwise when none of ``n`` did.

    The upper Clopper-Pearson bound of 0 in ``n``: 1 − (α/2)^(1/n).

    >>> round(unseen(40, 0.95), 3)
    0.088
    """
    return 1.0 - math.pow((1.0 - level) / 2, 1.0 / n)


def bootstrap(
    rows: Sequence[Row],
    statistic: Statistic,
    *,
    level: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Estimate:
    """A statistic with its expanded percentile interval over resampled items.

    The percentiles are taken at Φ(−t·√(n/(n−1))) instead of α/2, which mends the narrowness of the
    plain percentile interval for few items (Hesterberg 2015, "What Teachers Should Know About the
    Bootstrap", The American Statistician 69). Where every resample has the same value, nothing
    varied, which is no certainty: the interval then reaches as far as the items that were not seen
    could move it, each by 1 (:func:`unseen`). No interval below two items, nor where more than 5 %
    of the resamples have no value.

    >>> bootstrap([(0.0, 1.0)] * 40, lambda sums: sums[0] / sums[1]).high < 0.09
    True
    """
    if not rows:
        return Estimate()
    columns, n = list(zip(*rows, strict=True)), len(rows)
    value = statistic([math.fsum(column) for column in columns])
    if value is None or n < 2:
        return Estimate(value)
    drawn = _resampled(columns, n, statistic, resamples, seed)
    if len(drawn) < (1 - _MOST_UNDEFINED) * resamples:
        return Estimate(value)
    if drawn[0] == drawn[-1]:
        width = unseen(n, level)
        return Estimate(value, value - width, value + width)
    wider = t_quantile((1 + level) / 2, n - 1) * math.sqrt(n / (n - 1))
    tail = _NORMAL.cdf(-wider)
    return Estimate(value, quantile(drawn, tail), quantile(drawn, 1 - tail))


def _resampled(
    columns: Sequence[Sequence[float]], n: int, statistic: Statistic, resamples: int, seed: int
) -> list[float]:
    """The statistic's values over resamples, sorted, those without a value left out."""
    # Most statistics have columns of counts that are the same for every item.
    fixed = [column[0] * n if min(column) == max(column) else None for column in columns]
    varying = [(at, columns[at]) for at, sure in enumerate(fixed) if sure is None]
    sums = [0.0 if sure is None else sure for sure in fixed]
    found = []
    draws = _kept if n * resamples <= _MOST_KEPT else _drawn
    for chosen in draws(n, resamples, seed):
        for at, column in varying:
            sums[at] = sum(chosen(column))
        value = statistic(sums)
        if value is not None:
            found.append(value)
    found.sort()
    return found


def _drawn(n: int, resamples: int, seed: int) -> Iterator[Callable[[Sequence[float]], Any]]:
    """Resamples of ``n`` items as functions that pick them from a column."""
    choices = random.Random(seed).choices  # noqa: S311  (no secret)
    for _ in range(resamples):
        yield itemgetter(*choices(range(n), k=n))


@lru_cache(maxsize=4)
def _kept(n: int, resamples: int, seed: int) -> list[Callable[[Sequence[float]], Any]]:
    """The same, kept: most probes of a card have the same number of items."""
    return list(_drawn(n, resamples, seed))


def share(rows: Sequence[Row], *, level: float = 0.95) -> Estimate:
    """Σ hits / Σ trials with Wilson's interval, rows being ``(hits, trials)`` of an item each.

    Trials of one item are no independent trials: the interval is that of as many trials as have
    the variance that the items show (the design effect), between the number of items and that of
    trials. Where all or none are hits, nothing tells how alike they are, and all trials count.

    >>> share([(0, 1)] * 40).high < 0.09
    True
    """
    hits, trials = (math.fsum(row[place] for row in rows) for place in (0, 1))
    if trials <= 0:
        return Estimate()
    p = hits / trials
    z = _NORMAL.inv_cdf((1 + level) / 2)
    n = _effective(rows, p, trials)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = centre - half if hits else 0.0
    high = centre + half if hits < trials else 1.0
    return Estimate(p, low, high)


def _effective(rows: Sequence[Row], p: float, trials: float) -> float:
    """How many independent trials have the variance of the share that the items show."""
    items = len(rows)
    if not 0 < p < 1 or items < 2:
        return trials
    off = math.fsum((hits - p * of) ** 2 for hits, of in rows)
    variance = off * items / (items - 1) / trials**2
    if variance <= 0:
        return trials
    return min(trials, max(float(items), p * (1 - p) / variance))


def largest_share(parts: Sequence[Sequence[Row]], *, level: float = 0.95) -> Estimate:
    """The largest of several shares, with an interval that allows for having looked for it.

    The largest of several noisy shares is too large on average. Its lower end is the largest of
    the parts' lower ends at the level 1 − (1 − level)/k of k parts (Bonferroni), its upper end the
    largest upper end: the true maximum lies above all of the true shares.
    """
    found = [share(rows, level=level) for rows in parts if rows]
    values = [one.value for one in found if one.value is not None]
    if not values:
        return Estimate()
    strict = 1 - (1 - level) / len(parts)
    lows = [share(rows, level=strict).low for rows in parts if rows]
    highs = [one.high for one in found]
    return Estimate(
        max(values),
        max(low for low in lows if low is not None),
        max(high for high in highs if high is not None),
    )
