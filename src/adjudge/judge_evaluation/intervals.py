"""Estimates with bootstrap intervals, and rank statistics inside groups.

Pure Python, deterministic by seed. For a statistic over items there are the bootstrap and, for
shares, Wilson's interval. An item is the unit: all that was asked about one topic is resampled
together, so pairs stay pairs and translations of one question are not two observations. A number
that is a function of sums over groups is resampled by groups.

Rank correlations have a bootstrap over groups that is exact or linearised, in O(n log n).
Kendall's τ-b and Spearman's ρ over all samples compare samples of different groups, so they are no
sums over groups. Their numerators and denominators are homogeneous functions of the samples'
weights, and each sample's share below is the derivative by its weight: a weighted sum of shares is
the first-order change of the whole under resampling (the Hájek projection of a U-statistic, as in
:mod:`adjudge.runs.stats`). Inside groups, which are resampled whole, the sums are exact.

Source: Kendall, Biometrika 33 (1945), for τ-b; van der Vaart, Asymptotic Statistics, §11-12.
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

from adjudge.runs.stats import quantile, t_quantile

__all__ = [
    "Estimate",
    "ItemColumns",
    "Statistic",
    "bootstrap",
    "bootstrap_groups",
    "concordance_shares",
    "correlation",
    "estimate_largest_share",
    "estimate_share",
    "ratio",
    "spearman_shares",
    "unseen_share_bound",
]


ItemColumns = tuple[float, ...]
"""What one item contributes: the columns of which a statistic needs the sums."""

Statistic = Callable[[Sequence[float]], float | None]
"""From the sums of the columns to the number of interest; ``None`` where it has no value."""

_NORMAL = NormalDist()
_MAX_UNDEFINED_SHARE = 0.05
_MAX_CACHED_DRAWS = 1_000_000


class Estimate(msgspec.Struct, frozen=True):
    """A number and its interval; ``None`` where it could not be had."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


def unseen_share_bound(n: int, level: float) -> float:
    """The largest share of items that may behave otherwise when none of ``n`` did.

    The upper Clopper-Pearson bound of 0 in ``n``: 1 − (α/2)^(1/n).

    >>> round(unseen_share_bound(40, 0.95), 3)
    0.088
    """
    return 1.0 - math.pow((1.0 - level) / 2, 1.0 / n)


def bootstrap(
    rows: Sequence[ItemColumns],
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
    could move it, each by 1 (:func:`unseen_share_bound`). No interval below two items, nor
    where more than 5 % of the resamples have no value.

    >>> bootstrap([(0.0, 1.0)] * 40, lambda sums: sums[0] / sums[1]).high < 0.09
    True
    """
    if not rows:
        return Estimate()
    columns, n = list(zip(*rows, strict=True)), len(rows)
    value = statistic([math.fsum(column) for column in columns])
    if value is None or n < 2:
        return Estimate(value)
    drawn = _resample_values(columns, n, statistic, resamples, seed)
    if len(drawn) < (1 - _MAX_UNDEFINED_SHARE) * resamples:
        return Estimate(value)
    if drawn[0] == drawn[-1]:
        width = unseen_share_bound(n, level)
        return Estimate(value, value - width, value + width)
    wider = t_quantile((1 + level) / 2, n - 1) * math.sqrt(n / (n - 1))
    tail = _NORMAL.cdf(-wider)
    return Estimate(value, quantile(drawn, tail), quantile(drawn, 1 - tail))


def _resample_values(
    columns: Sequence[Sequence[float]], n: int, statistic: Statistic, resamples: int, seed: int
) -> list[float]:
    """The statistic's values over resamples, sorted, those without a value left out."""
    # Most statistics have columns of counts that are the same for every item.
    fixed = [column[0] * n if min(column) == max(column) else None for column in columns]
    varying = [(at, columns[at]) for at, sure in enumerate(fixed) if sure is None]
    sums = [0.0 if sure is None else sure for sure in fixed]
    found = []
    draws = _cached_resamples if n * resamples <= _MAX_CACHED_DRAWS else _draw_resamples
    for chosen in draws(n, resamples, seed):
        for at, column in varying:
            sums[at] = sum(chosen(column))
        value = statistic(sums)
        if value is not None:
            found.append(value)
    found.sort()
    return found


def _draw_resamples(
    n: int, resamples: int, seed: int
) -> Iterator[Callable[[Sequence[float]], Any]]:
    """Resamples of ``n`` items as functions that pick them from a column."""
    choices = random.Random(seed).choices  # noqa: S311  (no secret)
    for _ in range(resamples):
        yield itemgetter(*choices(range(n), k=n))


@lru_cache(maxsize=4)
def _cached_resamples(n: int, resamples: int, seed: int) -> list[Callable[[Sequence[float]], Any]]:
    """The same, kept: most probes of a card have the same number of items."""
    return list(_draw_resamples(n, resamples, seed))


def estimate_share(rows: Sequence[ItemColumns], *, level: float = 0.95) -> Estimate:
    """Σ hits / Σ trials with Wilson's interval, rows being ``(hits, trials)`` of an item each.

    Trials of one item are no independent trials: the interval is that of as many trials as have
    the variance that the items show (the design effect), between the number of items and that of
    trials. Where all or none are hits, nothing tells how alike they are, and all trials count.

    >>> estimate_share([(0, 1)] * 40).high < 0.09
    True
    """
    hits, trials = (math.fsum(row[place] for row in rows) for place in (0, 1))
    if trials <= 0:
        return Estimate()
    p = hits / trials
    z = _NORMAL.inv_cdf((1 + level) / 2)
    n = _effective_trials(rows, p, trials)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = centre - half if hits else 0.0
    high = centre + half if hits < trials else 1.0
    return Estimate(p, low, high)


def _effective_trials(rows: Sequence[ItemColumns], p: float, trials: float) -> float:
    """How many independent trials have the variance of the share that the items show."""
    items = len(rows)
    if not 0 < p < 1 or items < 2:
        return trials
    off = math.fsum((hits - p * of) ** 2 for hits, of in rows)
    variance = off * items / (items - 1) / trials**2
    if variance <= 0:
        return trials
    return min(trials, max(float(items), p * (1 - p) / variance))


def estimate_largest_share(
    parts: Sequence[Sequence[ItemColumns]], *, level: float = 0.95
) -> Estimate:
    """The largest of several shares, with an interval that allows for having looked for it.

    The largest of several noisy shares is too large on average. Its lower end is the largest of
    the parts' lower ends at the level 1 − (1 − level)/k of k parts (Bonferroni), its upper end the
    largest upper end: the true maximum lies above all of the true shares.
    """
    found = [estimate_share(rows, level=level) for rows in parts if rows]
    values = [one.value for one in found if one.value is not None]
    if not values:
        return Estimate()
    strict = 1 - (1 - level) / len(parts)
    lows = [estimate_share(rows, level=strict).low for rows in parts if rows]
    highs = [one.high for one in found]
    return Estimate(
        max(values),
        max(low for low in lows if low is not None),
        max(high for high in highs if high is not None),
    )


_MIN_GROUPS, _MAX_BLOCKS = 8, 500
_TINY = 1e-12


def bootstrap_groups(
    rows: Sequence[ItemColumns],
    statistic: Statistic,
    *,
    bounds: tuple[float, float] = (-1.0, 1.0),
    seed: int = 0,
) -> Estimate:
    """A statistic of the groups' summed columns with its 95 % interval, cut to ``bounds``.

    A row is a group. More than 500 groups are put together at random into 500 blocks, which are
    then resampled: sums of independent groups have the same variance in blocks. Below 8 groups
    there is no interval: so few say nothing of how much groups differ. Else as
    :func:`adjudge.judge_evaluation.intervals.bootstrap`, whose notes on few groups and on resamples
    that do not vary hold here.
    """
    if len(rows) < _MIN_GROUPS:
        sums = [math.fsum(column) for column in zip(*rows, strict=True)]
        return Estimate(statistic(sums) if rows else None)
    found = bootstrap(_merge_into_blocks(rows, seed), statistic, seed=seed)
    if found.low is None or found.high is None:
        return found
    return Estimate(found.value, max(bounds[0], found.low), min(bounds[1], found.high))


def _merge_into_blocks(rows: Sequence[ItemColumns], seed: int) -> list[ItemColumns]:
    if len(rows) <= _MAX_BLOCKS:
        return list(rows)
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)  # noqa: S311  (no secret)
    return [
        tuple(map(math.fsum, zip(*(rows[at] for at in order[first::_MAX_BLOCKS]), strict=True)))
        for first in range(_MAX_BLOCKS)
    ]


def ratio(sums: Sequence[float]) -> float | None:
    """First column by second; ``None`` of nothing."""
    return sums[0] / sums[1] if sums[1] > 0 else None


def correlation(product: float, square: float, other: float) -> float | None:
    """``product``/√(``square``·``other``) within [−1, 1]; ``None`` where one does not vary."""
    if square <= _TINY or other <= _TINY:
        return None
    return max(-1.0, min(1.0, product / math.sqrt(square * other)))


def concordance_shares(x: Sequence[float], y: Sequence[float]) -> list[tuple[int, int, int]]:
    """Per sample: concordant less discordant partners, partners untied in x, untied in y.

    Half of the sums are τ-b's C − D, n₀ − n₁ and n₀ − n₂.

    >>> [sum(column) // 2 for column in zip(*concordance_shares([1, 2, 3], [1, 3, 2]))]
    [1, 3, 3]
    """
    places, below, equal = _places(y)
    order = sorted(range(len(x)), key=x.__getitem__)
    tree = _FenwickTree(len(below))
    shares = [(0, 0, 0)] * len(x)
    n, start = len(x), 0
    while start < n:
        end = start
        while end < n and x[order[end]] == x[order[start]]:
            end += 1
        batch = order[start:end]
        before = [tree.around(places[i]) for i in batch]
        for i in batch:
            tree.add(places[i])
        for i, (low, high) in zip(batch, before, strict=True):
            place = places[i]
            low_to, high_to = tree.around(place)
            over = n - below[place] - equal[place]
            agreeing = (low - high) + (over - high_to) - (below[place] - low_to)
            shares[i] = (agreeing, n - (end - start), n - equal[place])
        start = end
    return shares


def spearman_shares(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float, float]]:
    """Per sample: its share in Σ rs, Σ r² and Σ s² of centred mid-ranks r, s (doubled).

    The shares sum to three times the whole: each of the three is of third degree in the weights.

    >>> [sum(column) / 3 for column in zip(*spearman_shares([1, 2, 3], [1, 3, 2]))]
    [4.0, 8.0, 8.0]
    """
    r, s = _doubled_ranks(x), _doubled_ranks(y)
    by_x, by_y = _weights_above_less_below(x, s), _weights_above_less_below(y, r)
    own_x, own_y = _weights_above_less_below(x, r), _weights_above_less_below(y, s)
    return [
        (float(a * b + c + d), float(a * a + 2 * e), float(b * b + 2 * f))
        for a, b, c, d, e, f in zip(r, s, by_x, by_y, own_x, own_y, strict=True)
    ]


def _places(values: Sequence[float]) -> tuple[list[int], list[int], list[int]]:
    """Each value's place among the distinct ones; how many values lie below and at each place."""
    place = {value: at for at, value in enumerate(sorted(set(values)))}
    places = [place[value] for value in values]
    equal = [0] * len(place)
    for at in places:
        equal[at] += 1
    below, total = [], 0
    for count in equal:
        below.append(total)
        total += count
    return places, below, equal


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Per value: how many lie below it less how many above: twice its centred mid-rank."""
    places, below, equal = _places(values)
    n = len(values)
    return [2 * below[at] + equal[at] - n for at in places]


def _weights_above_less_below(values: Sequence[float], weights: Sequence[int]) -> list[int]:
    """Per value: the weights of those above it less the weights of those below it."""
    places, below, _ = _places(values)
    sums = [0] * len(below)
    for at, weight in zip(places, weights, strict=True):
        sums[at] += weight
    total, under, turned = sum(sums), 0, []
    for one in sums:
        turned.append(total - 2 * under - one)
        under += one
    return [turned[at] for at in places]


class _FenwickTree:
    """How many of the places added so far lie below and above one (a Fenwick tree)."""

    def __init__(self, size: int) -> None:
        self._tree = [0] * (size + 1)
        self._at = [0] * size
        self._total = 0

    def add(self, place: int) -> None:
        self._total += 1
        self._at[place] += 1
        place += 1
        while place < len(self._tree):
            self._tree[place] += 1
            place += place & -place

    def around(self, place: int) -> tuple[int, int]:
        equal, below = self._at[place], 0
        while place:
            below += self._tree[place]
            place &= place - 1
        return below, self._total - below - equal
