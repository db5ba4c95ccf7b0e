"""Statistics in pure Python: moments, quantiles, bins, Student's t, concordance with outcomes.

The core has no numpy. Missing values are ``None`` and are left out where a function says so;
nothing here turns one into a number. Student's t is exact for few degrees of freedom.

Does a score order samples as their outcomes do? The pooled number (:func:`concordance`) also
rewards telling easy prompts from hard ones. A group-relative trainer subtracts each group's level,
so it only sees the order inside a group: :func:`within_group_concordance`.

Source: Harrell, Lee & Mark, Statistics in Medicine 15 (1996) for the concordance index. The
interval is derived in :func:`concordance`; for one sample a cluster and a binary outcome it is the
Hájek-projection variance of the AUC, G/(G − 1) · Σ e², as in DeLong, DeLong & Clarke-Pearson,
Biometrics 44 (1988), up to their divisors n₁ − 1 and n₀ − 1.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import msgspec

from adjudge.rewards.groups import mean_and_std, snap_ties

__all__ = [
    "Bins",
    "ConcordanceEstimate",
    "GroupSpread",
    "Histogram",
    "bins_for",
    "concordance",
    "equal_count_bins",
    "group_spread",
    "histogram",
    "mean",
    "missing_by_bin",
    "missing_by_value",
    "quantile",
    "std",
    "t_quantile",
    "t_tail",
    "within_group_concordance",
]


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean, summed exactly; ``None`` for no values."""
    return mean_and_std(values)[0] if values else None


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
    range, so every value has a bin. A range of no width becomes one of width 1 around it.

    >>> bins_for([0, 0.5, 1], count=4)
    Bins(edges=[-0.0125, 0.0125, 0.4875, 0.5125, 0.9875, 1.0125], half=0.0125)
    """
    low = min([*values, *([] if low is None else [low])], default=0.0)
    high = max([*values, *([] if high is None else [high])], default=1.0)
    if high - low < 1e-300:  # no width that could be cut into bins
        low, high = low - 0.5, high + 0.5
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
) -> list[dict[str, Any]]:
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
) -> list[dict[str, Any]]:
    """As :func:`missing_by_bin`, by single value ``{value, n, missing}`` where there are few.

    Samples whose own value is ``None`` are left out.
    """
    pairs = [(x, gone) for x, gone in zip(values, missing, strict=True) if x is not None]
    distinct = sorted({x for x, _ in pairs})
    if len(distinct) > most:
        return missing_by_bin([x for x, _ in pairs], [gone for _, gone in pairs])
    counts = {x: [0, 0] for x in distinct}
    for x, gone in pairs:
        counts[x][0] += 1
        counts[x][1] += gone
    return [{"value": x, "n": n, "missing": gone} for x, (n, gone) in counts.items()]


_NORMAL = NormalDist()
_NORMAL_FROM_DEGREES = 2_000


def t_quantile(p: float, freedom: int) -> float:
    """The ``p`` quantile, ½ < p < 1, of Student's t with ``freedom`` ≥ 1 degrees of freedom.

    By bisection to twelve digits; the normal's first correction from 2,000 degrees on.

    >>> round(t_quantile(0.975, 2), 4)
    4.3027
    """
    if freedom >= _NORMAL_FROM_DEGREES:
        z = _NORMAL.inv_cdf(p)
        return z + (z**3 + z) / (4 * freedom)
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1 - p:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - p else (low, middle)
    return high


def t_tail(t: float, freedom: int) -> float:
    """P(T > t), t ≥ 0: the finite series of Abramowitz and Stegun 26.7.3 and 26.7.4.

    >>> round(2 * t_tail(2.0, 10), 5)
    0.07339
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, squared = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    series = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= squared * (k - 1) / k
        series += term
    inside = 2 / math.pi * (angle + sine * series) if odd else sine * series
    return (1.0 - inside) / 2


class ConcordanceEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """How often a score orders two samples as their outcomes do.

    ``value`` is in [0, 1]: 0.5 is chance or a constant score, below it the score points the wrong
    way; ``None`` without a comparable pair. ``low`` and ``high`` bound it at 95 %, both ``None``
    where no interval can be computed. ``pairs`` is the number of pairs with different outcomes,
    ``clusters`` of the independent units that the interval rests on, ``samples`` of the samples
    that entered. Left out: ``missing`` samples without a score, ``no_outcome`` without an outcome.
    """

    value: float | None
    low: float | None
    high: float | None
    pairs: int
    clusters: int
    samples: int
    missing: int
    no_outcome: int


def concordance(
    scores: Sequence[float | None],
    outcomes: Sequence[float | None],
    clusters: Sequence[Hashable] | None = None,
) -> ConcordanceEstimate:
    """Probability that of two samples with different outcomes the better one scores higher.

    Ties in the score count ½: the AUC for a binary outcome, Harrell's C for any other. All three
    sequences have one entry a sample; ``None`` and NaN are missing and left out. Samples of one
    cluster (by default each is its own) may depend on each other. O(n log n), exact counts.

    With h_ij = conc_ij − C over the D comparable pairs and e_i = Σ_j h_ij, the sum Σ_{i<j} h_ij
    has the Hájek projection Σ_i e_i, so that Var(C) ≈ G/(G − 1) · Σ_c (Σ_{i∈c} e_i)² / D² over G
    clusters. The interval is C ± t(G − 1) standard errors on the logit scale. There is none for
    fewer than two clusters, nor where the variance is 0 (a constant score). At C = 1 it is the
    one-sided bound 0.05^(1/m) ≤ C (the rule of three, about 1 − 3/m) for the m pairs of samples
    that share no cluster with another pair; at C = 0 its mirror image.

    Raises ``ValueError`` for sequences of different lengths.

    >>> concordance([0.1, 0.4, 0.4, 0.9], [0, 0, 1, 1]).value
    0.875
    """
    units: Sequence[Hashable] = range(len(scores)) if clusters is None else clusters
    kept = _CompleteSamples(scores, outcomes, units)
    twice, pairs_of = _pair_counts(kept.scores, kept.outcomes)
    sums: dict[Hashable, list[int]] = {}
    for unit, won, pairs in zip(kept.units, twice, pairs_of, strict=True):
        cell = sums.setdefault(unit, [0, 0])
        cell[0] += won
        cell[1] += pairs
    independent = _disjoint_pairs(kept.units, kept.outcomes)
    # Each pair was counted at both of its ends.
    return kept.agreement([(won, pairs) for won, pairs in sums.values() if pairs], 2, independent)


def within_group_concordance(
    scores: Sequence[float | None],
    outcomes: Sequence[float | None],
    groups: Sequence[Hashable],
) -> ConcordanceEstimate:
    """:func:`concordance` over pairs inside a group only, pooled as Σ_g conc_g / Σ_g D_g.

    This is what a group-relative trainer can learn from. ``clusters`` counts the groups that have
    a comparable pair at all (G). The variance is that of a ratio estimator,
    G/(G − 1) · Σ_g (conc_g − C·D_g)² / D², used as in :func:`concordance`; at C = 0 or 1 the bound
    rests on m = G.

    >>> within_group_concordance([1, 2, 8, 9], [0, 1, 0, 1], ["a", "a", "b", "b"]).value
    1.0
    """
    kept = _CompleteSamples(scores, outcomes, groups)
    members: dict[Hashable, list[int]] = {}
    for position, unit in enumerate(kept.units):
        members.setdefault(unit, []).append(position)
    sums = []
    for positions in members.values():
        results = [kept.outcomes[i] for i in positions]
        if min(results) < max(results):
            twice, pairs_of = _pair_counts([kept.scores[i] for i in positions], results)
            sums.append((sum(twice) // 2, sum(pairs_of) // 2))
    return kept.agreement(sums, 1, len(sums))


class _CompleteSamples:
    """The samples that have both a score and an outcome; rounding alone tells no two apart."""

    def __init__(
        self,
        scores: Sequence[float | None],
        outcomes: Sequence[float | None],
        units: Sequence[Hashable],
    ) -> None:
        self.scores: list[float] = []
        self.outcomes: list[float] = []
        self.units: list[Hashable] = []
        self.missing = self.no_outcome = 0
        for score, outcome, unit in zip(scores, outcomes, units, strict=True):
            if outcome is None or math.isnan(outcome):
                self.no_outcome += 1
            elif score is None or math.isnan(score):
                self.missing += 1
            else:
                self.scores.append(score)
                self.outcomes.append(outcome)
                self.units.append(unit)
        self.scores, self.outcomes = snap_ties(self.scores), snap_ties(self.outcomes)

    def agreement(
        self, sums: Sequence[tuple[int, int]], ends: int, independent: int
    ) -> ConcordanceEstimate:
        """From (twice the concordant pairs, comparable pairs) per unit, each counted ``ends`` ×."""
        pairs = sum(pairs for _, pairs in sums)
        value = sum(twice for twice, _ in sums) / (2 * pairs) if pairs else None
        low, high = _interval(sums, ends, independent)
        return ConcordanceEstimate(
            value=value,
            low=low,
            high=high,
            pairs=pairs // ends,
            clusters=len(sums),
            samples=len(self.scores),
            missing=self.missing,
            no_outcome=self.no_outcome,
        )


def _interval(
    sums: Sequence[tuple[int, int]], ends: int, independent: int
) -> tuple[float | None, float | None]:
    count = len(sums)
    won = sum(twice for twice, _ in sums)
    pairs = sum(pairs for _, pairs in sums)
    if count < 2:
        return None, None
    if won in (0, 2 * pairs):
        bound = 0.05 ** (1 / independent)
        return (bound, 1.0) if won else (0.0, 1.0 - bound)
    # Whole numbers, 2·pairs times the deviation of each unit: a variance of 0 is exactly 0.
    squares = sum((pairs * twice - won * own) ** 2 for twice, own in sums)
    if squares == 0:
        return None, None
    value = won / (2 * pairs)
    error = ends * math.sqrt(count / (count - 1) * squares) / (2 * pairs * pairs)
    half = _t_975(count - 1) * error / (value * (1 - value))
    centre = math.log(value / (1 - value))
    return _expit(centre - half), _expit(centre + half)


def _pair_counts(scores: Sequence[float], outcomes: Sequence[float]) -> tuple[list[int], list[int]]:
    """Per sample: twice its concordant pairs (a tie is 1), and its comparable pairs.

    One sweep in order of outcome over a Fenwick tree of score ranks.
    """
    n = len(scores)
    place = {score: rank for rank, score in enumerate(sorted(set(scores)), 1)}
    ranks = [place[score] for score in scores]
    not_above = _cumulative(ranks, len(place))
    by_outcome = sorted(range(n), key=outcomes.__getitem__)
    twice, pairs_of = [0] * n, [0] * n
    seen = _RankCounts(len(place))
    start = 0
    while start < n:
        end = start
        level = outcomes[by_outcome[start]]
        while end < n and outcomes[by_outcome[end]] == level:
            end += 1
        batch = by_outcome[start:end]
        for i in batch:
            twice[i] = seen.doubled_below(ranks[i])
            pairs_of[i] = n - (end - start)
        for i in batch:
            seen.add(ranks[i])
        for i in batch:
            # The pairs above are all pairs above less those whose outcome is not higher.
            rank = ranks[i]
            everywhere = 2 * n - not_above[rank] - not_above[rank - 1]
            twice[i] += everywhere - (2 * end - seen.doubled_below(rank))
        start = end
    return twice, pairs_of


def _cumulative(ranks: Iterable[int], highest: int) -> list[int]:
    """Entry r: how many ranks are ≤ r."""
    counts = Counter(ranks)
    totals = [0]
    for rank in range(1, highest + 1):
        totals.append(totals[-1] + counts[rank])
    return totals


class _RankCounts:
    """A multiset of ranks 1…n with prefix counts in O(log n) (Fenwick 1994)."""

    def __init__(self, highest: int) -> None:
        self._tree = [0] * (highest + 1)
        self._at = [0] * (highest + 1)

    def add(self, rank: int) -> None:
        self._at[rank] += 1
        tree = self._tree
        while rank < len(tree):
            tree[rank] += 1
            rank += rank & -rank

    def doubled_below(self, rank: int) -> int:
        """Twice the number of smaller ranks, plus the number of equal ones."""
        ties = self._at[rank]
        tree, below = self._tree, 0
        rank -= 1
        while rank:
            below += tree[rank]
            rank &= rank - 1
        return 2 * below + ties


def _disjoint_pairs(units: Sequence[Hashable], outcomes: Sequence[float]) -> int:
    """The most pairs of different outcome that can be formed with no cluster used twice.

    A cluster with several outcomes makes a pair by itself; the others are matched across
    outcomes: min(⌊R/2⌋, R − largest class) of R.
    """
    single: dict[Hashable, float | None] = {}
    for unit, outcome in zip(units, outcomes, strict=True):
        if single.setdefault(unit, outcome) != outcome:
            single[unit] = None
    classes = Counter(outcome for outcome in single.values() if outcome is not None)
    rest = classes.total()
    matched = min(rest // 2, rest - max(classes.values())) if classes else 0
    return max(1, len(single) - rest + matched)


def _expit(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))


def _t_975(freedom: int) -> float:
    """97.5 % point of Student's t, to 0.004: Abramowitz & Stegun 26.7.5, exact for 1 and 2."""
    if freedom < 3:
        return (12.706205, 4.302653)[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / math.pow(freedom, power) for power, term in enumerate(terms, 1))
