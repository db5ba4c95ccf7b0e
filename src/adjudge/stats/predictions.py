"""How well scores predict outcomes: their order (concordance), and their probability (calibration).

Does a score order samples as their outcomes do? The pooled number (:func:`concordance`) also
rewards telling easy prompts from hard ones. A group-relative trainer subtracts each group's level,
so it only sees the order inside a group: :func:`within_group_concordance`. What a trained judge's
outputs are worth is in the calibration that it is served with, which
:mod:`adjudge.stats.agreement` fits. Standard library only: ``adjudge grade`` prints the one
and loads the other wherever such a judge is asked.

Source: Harrell, Lee & Mark, Statistics in Medicine 15 (1996) for the concordance index. The
interval is derived in :func:`concordance`; for one sample a cluster and a binary outcome it is the
Hájek-projection variance of the AUC, G/(G − 1) · Σ e², as in DeLong, DeLong & Clarke-Pearson,
Biometrics 44 (1988), up to their divisors n₁ − 1 and n₀ − 1.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import accumulate, groupby
from statistics import NormalDist

import msgspec

from adjudge.stats import collect, sigmoid, snap_ties


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
    twice, pairs_of = pair_counts(kept.scores, kept.outcomes)
    sums: dict[Hashable, list[int]] = {}
    for unit, won, pairs in zip(kept.units, twice, pairs_of, strict=True):
        cell = sums.setdefault(unit, [0, 0])
        cell[0] += won
        cell[1] += pairs
    independent = _disjoint_pairs(kept.units, kept.outcomes)
    # Each pair was counted at both of its ends.
    return kept.agreement([(won, pairs) for won, pairs in sums.values() if pairs], 2, independent)


def within_group_concordance(
    scores: Sequence[float | None], outcomes: Sequence[float | None], groups: Sequence[Hashable]
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
    members = collect((unit, position) for position, unit in enumerate(kept.units))
    sums = []
    for positions in members.values():
        results = [kept.outcomes[i] for i in positions]
        if min(results) < max(results):
            twice, pairs_of = pair_counts([kept.scores[i] for i in positions], results)
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
        self.scores, self.outcomes, self.units = array("d"), array("d"), array("l")
        numbers: dict[Hashable, int] = {}
        self.missing = self.no_outcome = 0
        for score, outcome, unit in zip(scores, outcomes, units, strict=True):
            if outcome is None or math.isnan(outcome):
                self.no_outcome += 1
            elif score is None or math.isnan(score):
                self.missing += 1
            else:
                self.scores.append(score)
                self.outcomes.append(outcome)
                self.units.append(numbers.setdefault(unit, len(numbers)))
        # Millions of samples: a number takes 8 bytes here and 32 as an object in a list.
        self.scores = array("d", snap_ties(self.scores))
        self.outcomes = array("d", snap_ties(self.outcomes))

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
    half = t_975(count - 1) * error / (value * (1 - value))
    centre = math.log(value / (1 - value))
    return _expit(centre - half), _expit(centre + half)


def pair_counts(
    scores: Sequence[float], outcomes: Sequence[float]
) -> tuple[Sequence[int], Sequence[int]]:
    """Per sample: twice its concordant pairs (a tie is 1), and its comparable pairs.

    One sweep in order of outcome over a Fenwick tree of score ranks. Samples of equal score and
    outcome have equal counts and are looked at once.
    """
    n = len(scores)
    place = {score: rank for rank, score in enumerate(sorted(set(scores)), 1)}
    ranks = array("l", (place[score] for score in scores))
    # Entry r: how many ranks are ≤ r.
    not_above = list(accumulate(map(Counter(ranks).__getitem__, range(len(place) + 1))))
    cells = sorted(Counter(zip(outcomes, ranks, strict=True)).items())
    counts: dict[tuple[float, int], tuple[int, int]] = {}
    seen = _RankCounts(len(place))
    before = 0
    for _, level in groupby(cells, key=lambda cell: cell[0][0]):
        batch = [(cell, cell[1], count, seen.doubled_below(cell[1])) for cell, count in level]
        for _, rank, count, _ in batch:
            seen.add(rank, count)
        size = sum(count for _, _, count, _ in batch)
        before += size
        for cell, rank, _, below in batch:
            # The pairs above are all pairs above less those whose outcome is not higher.
            everywhere = 2 * n - not_above[rank] - not_above[rank - 1]
            above = everywhere - (2 * before - seen.doubled_below(rank))
            counts[cell] = (below + above, n - size)
    found = [counts[cell] for cell in zip(outcomes, ranks, strict=True)]
    return array("q", (twice for twice, _ in found)), array("q", (pairs for _, pairs in found))


class _RankCounts:
    """A multiset of ranks 1…n with prefix counts in O(log n) (Fenwick 1994)."""

    def __init__(self, highest: int) -> None:
        self._tree = [0] * (highest + 1)
        self._at = [0] * (highest + 1)

    def add(self, rank: int, count: int) -> None:
        self._at[rank] += count
        tree = self._tree
        while rank < len(tree):
            tree[rank] += count
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


def t_975(freedom: int) -> float:
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


class IsotonicFit(msgspec.Struct, frozen=True):
    """A rising function: ``values`` at the rising places ``at``, linear between, level outside."""

    at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.at) == len(self.values) > 0:
            raise ValueError("at and values must be equally many, one at least")
        if any(list(one) != sorted(one) for one in (self.at, self.values)):
            raise ValueError("at and values must rise")

    def __call__(self, x: float) -> float:
        """The value at ``x``.

        >>> IsotonicFit((0.0, 2.0), (0.5, 0.9))(1.0)
        0.7
        """
        high = bisect.bisect_right(self.at, x)
        if high == 0 or high == len(self.at):
            return self.values[max(0, high - 1)]
        part = (x - self.at[high - 1]) / (self.at[high] - self.at[high - 1])
        return self.values[high - 1] + part * (self.values[high] - self.values[high - 1])


class ReliabilityBin(msgspec.Struct, frozen=True, array_like=True):
    """Pairs of like probability: how many, its mean, and the share that was right."""

    pairs: int
    said: float
    right: float


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """Probabilities, 0.5 to 1, that the higher score is right, against what was right.

    ``error``: the expected calibration error, the mean distance of probability and share that is
    right over ``bins`` (ten of equal width, empty ones left out; Guo et al. 2017); few pairs a bin
    make it larger than it is. ``brier``: the mean squared distance to 1 (right), 0 (wrong) or 0.5
    (equal scores); ``log_loss``: the mean −log probability of what was the case. Less is better.
    """

    error: float
    brier: float
    log_loss: float
    bins: tuple[ReliabilityBin, ...]


class ScoreCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """How differences Δ of a scalar judge's outputs become probabilities.

    ``temperature`` T: σ(Δ/T) is the probability that the first of two answers is better.
    ``isotonic``: that the higher one is, by ``|Δ|``. Both are fitted to all ``pairs`` of the
    validation set; ``None`` where nothing can be, and ``missing`` says why, as it does for what
    could not be measured.

    ``as_is`` (σ(Δ) itself), ``with_temperature`` and ``with_isotonic`` are measured on the same
    pairs, each by a fit to the other folds (five, the pairs of a prompt in one), so that no pair
    was seen by what it measures. Only ``as_is`` has no fit and needs no folds.
    """

    pairs: int
    prompts: int
    temperature: float | None
    isotonic: IsotonicFit | None
    missing: dict[str, str]
    as_is: Reliability
    with_temperature: Reliability | None
    with_isotonic: Reliability | None

    def __post_init__(self) -> None:
        if self.temperature is not None and not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")

    @property
    def method(self) -> str | None:
        """By what :meth:`probability` goes: ``temperature``, else ``isotonic``, else nothing."""
        if self.temperature is not None:
            return "temperature"
        return None if self.isotonic is None else "isotonic"

    def probability(self, difference: float) -> float:
        """That the first of two answers is better, whose output is higher by ``difference``.

        Raises ``ValueError`` where neither could be fitted.
        """
        if self.temperature is not None:
            return sigmoid(difference / self.temperature)
        if self.isotonic is None:
            raise ValueError("this judge has no calibration")
        sure = self.isotonic(abs(difference))
        return sure if difference >= 0 else 1 - sure


class RatingCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """What a generative judge's ratings are worth: ``labels`` gives the mean label of a rating.

    Fitted to all ``rows``, rising. ``error``: mean squared distance of rating and label;
    ``error_after``: of the mean label by the other folds; see :class:`ScoreCalibration`.
    """

    rows: int
    labels: IsotonicFit
    error: float
    error_after: float | None
