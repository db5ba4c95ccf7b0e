"""Statistics: what a number is, how sure it is, and how two compare.

Here are means, spreads, quantiles and bins, where what rounding tells apart is equal. Missing
values are ``None`` and are left out where a function says so; nothing turns one into a number.

This and :mod:`~adjudge.stats.predictions` need the standard library only: grading and the judges
that it asks use them. The rest takes numpy and scipy from :mod:`~adjudge.stats.estimates`, which
come with the extra ``full``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from operator import sub
from typing import TypeVar

import msgspec

__all__ = [
    "TIE_TOLERANCE",
    "Bins",
    "Estimate",
    "GroupSpread",
    "Histogram",
    "bins_for",
    "collect",
    "describe_sizes",
    "equal_count_bins",
    "group_spread",
    "histogram",
    "mean",
    "mean_and_std",
    "mean_of_all",
    "mid_ranks",
    "missing_by_bin",
    "missing_by_value",
    "quantile",
    "rank_rewards",
    "sigmoid",
    "snap_ties",
    "std",
    "z_scores",
]


TIE_TOLERANCE = 2.0**-28
"""Rewards of a group tie if they differ by no more than this, times max(1, their median size).

That is 4e-9: ten million times the rounding of float64, and a sixteenth of that of float32, in
which trainers keep rewards. Being so much wider than the errors of a sum, it leaves them no weight:
what rounding does to rewards 10 tolerances apart changes a z-score by less than 1e-6.
"""


class Estimate(msgspec.Struct, frozen=True):
    """A number and its interval, at 95 % where nothing else is said; ``None`` what there is not.

    ``why`` says why there is no number or no interval. ``n``: observations, where they are counted
    with the number itself.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | msgspec.UnsetType = msgspec.UNSET
    why: str = ""


def sigmoid(x: float) -> float:
    """1/(1 + e^−x), for any finite x."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def snap_ties(values: Sequence[float]) -> list[float]:
    """``values`` of a group with those made equal that differ by rounding alone.

    From the smallest value up, each value that is at most :data:`TIE_TOLERANCE` ·
    max(1, median |value|) above the smallest of its level becomes that smallest; the next one
    begins a new level. So a long ramp of tiny steps becomes several levels, nothing moves by more
    than the tolerance, the order of the values plays no part, and one huge value blurs no others.

    >>> snap_ties([0.1 + 0.2, 0.3, 0.3, 0.7])
    [0.3, 0.3, 0.3, 0.7]
    >>> snap_ties([1e9, 0.2, 0.9, 0.5])
    [1000000000.0, 0.2, 0.9, 0.5]
    """
    distinct = sorted(set(values))
    if len(distinct) < 2:
        return list(values)
    smallest_gap = min(map(sub, distinct[1:], distinct))
    if smallest_gap > TIE_TOLERANCE * max(1.0, -distinct[0], distinct[-1]):  # the usual case
        return list(values)
    tolerance = TIE_TOLERANCE * max(1.0, quantile(list(map(abs, values)), 0.5) or 0.0)
    if not math.isfinite(tolerance):
        return list(values)
    level = distinct[0]
    snapped = {}
    for value in distinct:
        if value - level > tolerance:
            level = value
        snapped[value] = level
    return [snapped[value] for value in values]


def z_scores(present: Sequence[float], epsilon: float = 0.0) -> list[float]:
    """(r − mean)/(std + epsilon) with n − 1; 0 for a lone sample and where all are equal."""
    mean, std = mean_and_std(present)
    return [(reward - mean) / (std + epsilon) if std else 0.0 for reward in present]


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n − 1), in any order the same to the last bit.

    For one value and for equal values it is exactly that value and 0. A mean that is only the
    rounding of its values (that of z-scores, say) is 0. Huge values do not overflow on the way:
    deviations are scaled before they are squared.
    """
    n = len(values)
    if min(values) == max(values):  # their sum's nth part may be off by rounding
        return values[0], 0.0
    try:
        mean = math.fsum(values) / n
    except OverflowError:
        mean = math.fsum(value / n for value in values)
    off = [value - mean for value in values]
    scale = max(map(abs, off))
    if scale == 0:
        return mean, 0.0
    squares = math.fsum([(one / scale) ** 2 for one in off])
    mean = 0.0 if abs(mean) < 2.0**-52 * scale else mean
    return mean, scale * math.sqrt(squares / (n - 1))


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean, summed exactly; ``None`` for no values."""
    return mean_and_std(values)[0] if values else None


def mean_of_all(values: Iterable[float | None]) -> float | None:
    """Arithmetic mean; ``None`` where one of the values is missing, and for no values."""
    found = list(values)
    present = [value for value in found if value is not None]
    return math.fsum(present) / len(present) if present and len(present) == len(found) else None


def std(values: Sequence[float]) -> float | None:
    """Sample standard deviation (divisor n − 1, as trainers use); ``None`` below two values."""
    return mean_and_std(values)[1] if len(values) > 1 else None


def quantile(values: Sequence[float], q: float) -> float | None:
    """Quantile ``q`` in [0, 1] by linear interpolation (Hyndman & Fan type 7); ``None`` if empty.

    >>> quantile([4, 1, 3, 2], 0.5)
    2.5
    """
    if not values:
        return None
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class Bins(msgspec.Struct, frozen=True):
    """Bin *i* is [edges[i], edges[i + 1]), the last one closed.

    With ``half``, each bin that can be filled is that far around one distinct value, and the
    outer edges lie that far beyond the range; without, bins are stretches of it.
    """

    edges: list[float]
    half: float | None = None


class Histogram(msgspec.Struct, frozen=True):
    """How many values lie in each bin."""

    bins: Bins
    counts: list[int]


def bins_for(
    values: Sequence[float], low: float | None = None, high: float | None = None, count: int = 20
) -> Bins:
    """Bins that suit ``values``: one for each where there are few, else ``count`` equal ones.

    ``low`` and ``high`` default to the smallest and largest value; values beyond them widen the
    range, so every value has a bin. A range of no width, for its size, becomes a wider one.

    >>> bins_for([0, 0.5, 1], count=4)
    Bins(edges=[-0.0125, 0.0125, 0.4875, 0.5125, 0.9875, 1.0125], half=0.0125)
    """
    low = min([*values, *([] if low is None else [low])], default=0.0)
    high = max([*values, *([] if high is None else [high])], default=1.0)
    size = max(abs(low), abs(high))
    if high - low < max(1e-300, 1e-12 * size):  # no width that could be cut into bins
        low, high = low - max(0.5, 1e-6 * size), high + max(0.5, 1e-6 * size)
    width = high - low
    distinct = sorted(set(values))
    half = width / 80
    if len(distinct) <= 21 and all(b - a > 2.4 * half for a, b in pairwise(distinct)):
        inner = [edge for value in distinct for edge in (value - half, value + half)]
        return Bins(sorted({low - half, *inner, high + half}), half)
    return Bins([low + width * i / count for i in range(count)] + [high])


def histogram(values: Iterable[float], bins: Bins) -> Histogram:
    """Counts of ``values`` in ``bins``; raises ``ValueError`` for a value outside all of them.

    >>> histogram([0, 0.2, 1], Bins([0, 0.5, 1])).counts
    [2, 1]
    """
    edges = bins.edges
    counts = [0] * (len(edges) - 1)
    for x in values:
        if not edges[0] <= x <= edges[-1]:
            raise ValueError(f"{x!r} lies outside the bins [{edges[0]!r}, {edges[-1]!r}]")
        counts[min(len(counts) - 1, bisect_right(edges, x) - 1)] += 1
    return Histogram(bins, counts)


class GroupSpread(msgspec.Struct, frozen=True):
    """The spread of a number inside groups.

    ``stds`` has one sample standard deviation for each group with at least two values present,
    exactly 0 where they differ by rounding alone; ``groups`` counts all groups, those without
    included.
    """

    groups: int
    stds: list[float]

    @property
    def zero(self) -> int:
        """Groups whose present values are all equal."""
        return self.stds.count(0.0)

    @property
    def zero_frac(self) -> float | None:
        """``zero`` as a share of ``stds``; ``None`` if no group has two values."""
        return self.zero / len(self.stds) if self.stds else None

    @property
    def mean_std(self) -> float | None:
        """Mean of ``stds``, zeros included."""
        return mean(self.stds)


_Key = TypeVar("_Key", bound=Hashable)
_Row = TypeVar("_Row")


def collect(rows: Iterable[tuple[_Key, _Row]]) -> dict[_Key, list[_Row]]:
    """The rows of each key, in their order.

    >>> collect([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[_Key, list[_Row]] = {}
    for key, row in rows:
        found.setdefault(key, []).append(row)
    return found


def group_spread(values: Iterable[float | None], groups: Iterable[Hashable]) -> GroupSpread:
    """Standard deviation of the present values of each group.

    >>> group_spread([1, 1, 0, 2, None], ["a", "a", "b", "b", "c"]).zero_frac
    0.5
    """
    members: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        present = members.setdefault(group, [])
        if value is not None:
            present.append(value)
    spreads = (std(snap_ties(present)) for present in members.values())
    return GroupSpread(len(members), [spread for spread in spreads if spread is not None])


def describe_sizes(sizes: Iterable[int]) -> dict[str, int]:
    """How many groups there are, of at least one, and the smallest, middle and largest size."""
    ordered = sorted(sizes)
    return {
        "count": len(ordered),
        "size_min": ordered[0],
        "size_median": ordered[len(ordered) // 2],
        "size_max": ordered[-1],
    }


def equal_count_bins(values: Sequence[float], bins: int = 10) -> list[list[int]]:
    """Positions of ``values`` in at most ``bins`` runs of about equal count, lowest first.

    Equal values always share a run, so there are fewer runs where values repeat.

    >>> equal_count_bins([5, 1, 1, 9], bins=2)
    [[1, 2], [0, 3]]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    runs: list[list[int]] = []
    start = 0
    for number in range(1, bins + 1):
        end = max(start, round(number * len(order) / bins))
        while 0 < end < len(order) and values[order[end]] == values[order[end - 1]]:
            end += 1
        if end > start:
            runs.append(order[start:end])
        start = end
    return runs


def missing_by_bin(
    values: Sequence[float], missing: Sequence[int], bins: int = 10
) -> list[dict[str, float]]:
    """How many samples are missing in each tenth of ``values``: ``{low, high, n, missing}``."""
    return [
        {
            "low": values[run[0]],
            "high": values[run[-1]],
            "n": len(run),
            "missing": sum(missing[i] for i in run),
        }
        for run in equal_count_bins(values, bins)
    ]


def missing_by_value(
    values: Sequence[float | None], missing: Sequence[int], most: int = 10
) -> list[dict[str, float]]:
    """As :func:`missing_by_bin`, by single value ``{value, n, missing}`` where there are few.

    Samples whose own value is ``None`` are left out.
    """
    known = Counter(x for x in values if x is not None)
    if len(known) > most:
        kept = [(x, gone) for x, gone in zip(values, missing, strict=True) if x is not None]
        return missing_by_bin([x for x, _ in kept], [gone for _, gone in kept])
    lost = Counter(x for x, gone in zip(values, missing, strict=True) if gone and x is not None)
    return [{"value": x, "n": known[x], "missing": lost[x]} for x in sorted(known)]


def mid_ranks(values: Sequence[float]) -> list[float]:
    """Competition places 1…n of ``values`` (smallest first), ties at the mean of their places."""
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in range(start, end + 1):
            places[order[position]] = (start + end) / 2 + 1
        start = end + 1
    return places


def rank_rewards(values: Sequence[float]) -> list[float]:
    """(n − place)/(n − 1) of two or more ``values``, the smallest first: from best 1 to worst 0."""
    n = len(values)
    return [(n - place) / (n - 1) for place in mid_ranks(values)]
