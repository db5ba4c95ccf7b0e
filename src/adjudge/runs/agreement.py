"""Does a score order samples as their outcomes do: over all pairs, and inside groups.

The pooled number (:func:`concordance`) also rewards telling easy prompts from hard ones. A
group-relative trainer subtracts each group's level, so it only sees the order inside a group:
:func:`within_group_concordance`.

Source: Harrell, Lee & Mark, Statistics in Medicine 15 (1996) for the concordance index. The
interval is derived in :func:`concordance`; for one sample a cluster and a binary outcome it is the
Hájek-projection variance of the AUC, G/(G − 1) · Σ e², as in DeLong, DeLong & Clarke-Pearson,
Biometrics 44 (1988), up to their divisors n₁ − 1 and n₀ − 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from statistics import NormalDist

import msgspec

from adjudge.rewards.groups import snap_ties

__all__ = ["Agreement", "concordance", "within_group_concordance"]


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
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
) -> Agreement:
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
    kept = _Kept(scores, outcomes, units)
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
) -> Agreement:
    """:func:`concordance` over pairs inside a group only, pooled as Σ_g conc_g / Σ_g D_g.

    This is what a group-relative trainer can learn from. ``clusters`` counts the groups that have
    a comparable pair at all (G). The variance is that of a ratio estimator,
    G/(G − 1) · Σ_g (conc_g − C·D_g)² / D², used as in :func:`concordance`; at C = 0 or 1 the bound
    rests on m = G.

    >>> within_group_concordance([1, 2, 8, 9], [0, 1, 0, 1], ["a", "a", "b", "b"]).value
    1.0
    """
    kept = _Kept(scores, outcomes, groups)
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


class _Kept:
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

    def agreement(self, sums: Sequence[tuple[int, int]], ends: int, independent: int) -> Agreement:
        """From (twice the concordant pairs, comparable pairs) per unit, each counted ``ends`` ×."""
        pairs = sum(pairs for _, pairs in sums)
        value = sum(twice for twice, _ in sums) / (2 * pairs) if pairs else None
        low, high = _interval(sums, ends, independent)
        return Agreement(
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
