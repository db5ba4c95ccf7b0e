"""How numbers agree: two judges' with each other, people's, and one's with what was right.

Pearson, Spearman and Kendall, the last with intervals; how far stated probabilities hold; Cohen's κ
of two raters, Krippendorff's α of any number, Youden's J of a judge that passes answers or not.

Kendall's τ-b over samples of several groups compares samples of different groups, so it is no sum
over groups. Its numerator and denominator are homogeneous functions of the samples' weights, and
each sample's share below is the derivative by its weight: a weighted sum of shares is the
first-order change of the whole under resampling (the Hájek projection of a U-statistic, as in
:mod:`adjudge.stats.predictions`).

κ and α compare what differs with what would differ by chance. Cohen's κ takes chance from how often
each of the two gives each level; Krippendorff's α from all values together, so it takes any number
of raters, and samples that some have not rated. A difference counts by its distance: 1 for any two
levels, or (x − y)² of their values. Everything is a function of sums over samples, so intervals are
bootstraps over groups.

Source: Kendall, Biometrika 33 (1945), for τ-b; van der Vaart, Asymptotic Statistics, §11-12; Cohen,
Psychol. Bull. 70 (1968); Krippendorff, Content Analysis, 4th ed. (2018), ch. 12.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, Literal

from adjudge.stats import Estimate, z_scores
from adjudge.stats.estimates import NO_VALUE, ItemColumns, bootstrap_groups, estimate_share, np
from adjudge.stats.predictions import Reliability, ReliabilityBin, pair_counts

_TINY = 1e-12


def correlation(product: float, square: float, other: float) -> float | None:
    """``product``/√(``square``·``other``) within [−1, 1]; ``None`` where one does not vary."""
    if square <= _TINY or other <= _TINY:
        return None
    return max(-1.0, min(1.0, product / math.sqrt(square * other)))


def pearson_correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's r; ``None`` below two points and where one of the two does not vary."""
    if len(xs) < 2 or min(xs) == max(xs) or min(ys) == max(ys):
        return None
    x, y = standardise(xs), standardise(ys)
    power = float(x @ x) * float(y @ y)
    return max(-1.0, min(1.0, float(x @ y) / math.sqrt(power))) if power else None


def spearman_correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Spearman's ρ, ties at mid-rank; ``None`` as for :func:`pearson_correlation`."""
    return pearson_correlation(doubled_ranks(xs), doubled_ranks(ys))


def standardise(values: Sequence[float]) -> Any:
    """Centred, and scaled to a largest deviation of 1: squares neither over- nor underflow.

    Halves are subtracted, as the difference of two huge numbers may be none.
    """
    half = np.asarray(values, dtype=float) / 2
    half = half - (half.min() / 2 + half.max() / 2)
    scaled = half / np.abs(half).max()
    scaled = scaled - math.fsum(scaled) / len(scaled)
    return scaled / np.abs(scaled).max()


def doubled_ranks(values: Sequence[float]) -> Any:
    """Per value: how many lie below it less how many above: twice its centred mid-rank."""
    _, places, equal = np.unique(
        np.asarray(values, dtype=float), return_inverse=True, return_counts=True
    )
    return (2 * np.cumsum(equal) - equal - len(values))[places]


def concordance_shares(x: Sequence[float], y: Sequence[float]) -> Any:
    """Per sample: concordant less discordant partners, partners untied in x, untied in y.

    An array (samples, 3). Half of the sums are τ-b's C − D, n₀ − n₁ and n₀ − n₂.

    >>> concordance_shares([1, 2, 3], [1, 3, 2]).sum(axis=0).tolist()
    [2, 6, 6]
    """
    twice, untied_y = map(np.asarray, pair_counts(x, y))
    _, places, equal = np.unique(np.asarray(x, float), return_inverse=True, return_counts=True)
    return np.stack([twice - untied_y, (len(x) - equal)[places], untied_y], axis=1)


PairedScores = tuple[Sequence[float], Sequence[float]]
"""What two judges say of the same samples, one a sample."""


def estimate_kendall(groups: Sequence[PairedScores]) -> Estimate:
    """τ-b over all samples, with its interval by group; no value where one does not vary."""
    x, y = (np.concatenate([np.empty(0), *(pair[side] for pair in groups)]) for side in (0, 1))
    if not len(x) or x.min() == x.max() or y.min() == y.max():
        return Estimate(why=NO_VALUE)
    sizes = np.cumsum([0, *(len(pair[0]) for pair in groups)])[:-1]
    shares = concordance_shares(x, y)
    whole = shares.sum(axis=0) / 2
    known = (whole / whole[1]).tolist()
    return bootstrap_groups(
        np.add.reduceat(shares / whole[1], sizes).tolist(),
        lambda sums: correlation(*(own - of for own, of in zip(sums, known, strict=True))),
    )


def have_same_scale(x: Any, y: Any) -> bool:
    """Whether both have few levels, in ranges that overlap by half."""
    both = np.concatenate([x, y])
    overlap = min(x.max(), y.max()) - max(x.min(), y.min())
    return len(np.unique(both)) <= MAX_LEVELS and overlap >= (both.max() - both.min()) / 2


def estimate_within_agreement(groups: Sequence[PairedScores]) -> dict[str, Estimate]:
    """``kendall`` inside groups, pooled; intervals by group.

    And ``advantage_pearson``: of the z-scores that GRPO trains on.
    """

    def pooled(rows: Iterable[Any]) -> Estimate:
        sums = [tuple(map(float, row)) for row in rows]
        return bootstrap_groups(sums, lambda totals: correlation(*totals))

    return {
        "kendall": pooled(concordance_shares(x, y).sum(axis=0) for x, y in groups),
        "advantage_pearson": pooled(
            _products(*map(np.asarray, map(z_scores, pair))) for pair in groups
        ),
    }


def _products(x: Any, y: Any) -> tuple[Any, Any, Any]:
    return x @ y, x @ x, y @ y


_RELIABILITY_BINS = 10
_MIN_PROBABILITY = 1e-12
"""Probabilities count as no smaller in the log loss, so that it is finite."""


def measure_reliability(said: Sequence[float], right: Sequence[float]) -> Reliability:
    """``said``: a probability from 0.5 to 1 for each pair, at least one; ``right``: 1, 0 or 0.5.

    >>> found = measure_reliability([0.75, 0.75, 0.75, 0.75], [1, 1, 1, 0])
    >>> found.error, found.brier, found.bins
    (0.0, 0.1875, (ReliabilityBin(pairs=4, said=0.75, right=0.75),))
    """
    p, was = np.asarray(said, dtype=float), np.asarray(right, dtype=float)
    places = np.clip((p - 0.5) * 2 * _RELIABILITY_BINS, 0, _RELIABILITY_BINS - 1).astype(int)
    bins = tuple(
        ReliabilityBin(int(own.sum()), float(p[own].mean()), float(was[own].mean()))
        for own in (places == place for place in np.unique(places))
    )
    log_losses = was * np.log(np.maximum(p, _MIN_PROBABILITY))
    log_losses += (1 - was) * np.log(np.maximum(1 - p, _MIN_PROBABILITY))
    return Reliability(
        error=math.fsum(one.pairs * abs(one.said - one.right) for one in bins) / len(p),
        brier=float(((p - was) ** 2).mean()),
        log_loss=-float(log_losses.mean()),
        bins=bins,
    )


MAX_LEVELS = 20
"""With more levels a table of them says nothing; only squared distances of values are used."""

KappaWeights = Literal["plain", "quadratic"]
Ratings = Sequence[float]
"""What several raters say of one sample, in any order."""

_TOO_MANY = f"more than {MAX_LEVELS} levels"
_ONE_CLASS = "all values are equal"


def cohen_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """(p₀ − pₑ)/(1 − pₑ) of two labels each; ``None`` without any, and where pₑ = 1."""
    n = len(pairs)
    if not n:
        return None
    agreed = sum(first == second for first, second in pairs) / n
    firsts, seconds = (Counter(side) for side in zip(*pairs, strict=True))
    chance = sum(count * seconds[name] for name, count in firsts.items()) / (n * n)
    return None if chance == 1 else (agreed - chance) / (1 - chance)


def estimate_kappas(
    groups: Sequence[Sequence[tuple[float, float]]],
) -> dict[KappaWeights, Estimate]:
    """Cohen's κ of pairs of numbers, by weights: 1 − Σ d·observed / Σ d·expected by chance.

    A group has the pairs of samples that depend on each other. Without a value where all numbers
    are equal, and with more than 20 levels.

    >>> found = estimate_kappas([[(0, 0)], [(1, 1)], [(2, 1)], [(2, 2)]])
    >>> round(found["quadratic"].value, 4)
    0.8
    """
    levels = find_levels(chain.from_iterable(chain.from_iterable(groups)))
    if why := _why_none(levels):
        return {name: Estimate(why=why) for name in ("plain", "quadratic")}
    place = {level: at for at, level in enumerate(levels)}
    size = len(levels)
    rows = []
    for pairs in groups:
        table = np.zeros((size, size))
        for one, other in pairs:
            table[place[one], place[other]] += 1
        rows.append(tuple(table.ravel().tolist()))

    def estimate(weights: Any) -> Estimate:
        def kappa(sums: Sequence[float]) -> float | None:
            table = np.asarray(sums).reshape(size, size)
            expected = (weights * np.outer(table.sum(axis=1), table.sum(axis=0))).sum()
            return float(1 - (weights * table).sum() * table.sum() / expected) if expected else None

        return bootstrap_groups(rows, kappa)

    apart = np.abs(np.subtract.outer(np.array(levels), np.array(levels)))
    plain = estimate((apart > 0).astype(float))
    squares = (apart / apart.max()) ** 2
    return {"plain": plain, "quadratic": plain if size == 2 else estimate(squares)}


def estimate_alpha(groups: Sequence[Sequence[Ratings]]) -> Estimate:
    """Krippendorff's α (interval) of samples that two raters or more have rated: 1 − Dₒ/Dₑ.

    A group has the samples that depend on each other. Without a value where no sample has two
    ratings, and where all are equal.

    >>> round(estimate_alpha([[(1, 1), (2, 2)], [(3, 3), (3, 4)]]).value, 4)
    0.8889
    """
    rated = [[one for one in samples if len(one) > 1] for samples in groups]
    values = sorted(set(chain.from_iterable(chain.from_iterable(rated))))
    if len(values) < 2:
        return Estimate(why=_ONE_CLASS if values else "no sample has two ratings")
    middle = values[0] / 2 + values[-1] / 2
    scale = values[-1] / 2 - values[0] / 2
    moments = [_moments([(np.array(x) - middle) / scale for x in one]) for one in rated]
    return bootstrap_groups(moments, _interval_alpha)


def estimate_youden(groups: Sequence[Sequence[tuple[bool, bool]]]) -> Estimate:
    """Youden's J = true minus false positive rate, of a judge that passes answers or not.

    A group has the pairs (right, passed) of answers that depend on each other. Without a value
    where no answer is right, or none is wrong. Where all right answers pass, or none does, or so
    with the wrong ones, resamples do not show how sure that rate is: the interval then reaches at
    least as far as Newcombe's, which is made of Wilson's of the two rates.

    Source: Newcombe, Statistics in Medicine 17 (1998), method 10.

    >>> estimate_youden([[(True, True)], [(True, False)], [(False, False)]]).value
    0.5
    """

    def rate_difference(sums: Sequence[float]) -> float | None:
        true_passed, true, false_passed, false = sums
        return true_passed / true - false_passed / false if true and false else None

    rows = []
    for pairs in groups:
        counts = Counter(pairs)
        true_passed, false_passed = counts[True, True], counts[False, True]
        row = (true_passed, true_passed + counts[True, False],
               false_passed, false_passed + counts[False, False])  # fmt: skip
        rows.append(tuple(map(float, row)))
    found = bootstrap_groups(rows, rate_difference)
    why = found.why if found.value is not None else "needs right answers and wrong ones"
    low, high = found.low, found.high
    if low is not None and high is not None:
        least, most = _newcombe_interval(rows)
        low, high = min(low, least), max(high, most)
    return Estimate(found.value, low, high, sum(map(len, groups)), why)


def _newcombe_interval(rows: Sequence[ItemColumns]) -> tuple[float, float]:
    """Bounds of the difference of two rates of which one is 0 or 1; of any others, nothing."""
    sides = [[row[at : at + 2] for row in rows if row[at + 1]] for at in (0, 2)]
    ours, theirs = map(estimate_share, sides)
    if None in (ours.value, theirs.value) or not {0.0, 1.0} & {ours.value, theirs.value}:
        return math.inf, -math.inf
    down = math.hypot(ours.value - ours.low, theirs.high - theirs.value)  # type: ignore[operator]
    up = math.hypot(ours.high - ours.value, theirs.value - theirs.low)  # type: ignore[operator]
    difference = ours.value - theirs.value  # type: ignore[operator]
    return max(-1.0, difference - down), min(1.0, difference + up)


def describe_youden(judge: str, found: Estimate) -> str:
    """What J ≤ 0 does to a training, in a sentence; empty where J is above 0.

    Source: arXiv 2601.04411 (training on noisy rewards: J > 0 is needed).
    """
    if found.value is None or (found.value > 0 and (found.low is None or found.low > 0)):
        return ""
    ends = "" if found.low is None else f" ({found.low:.3f} to {found.high:.3f})"
    number = f"Youden's J is {found.value:.3f}{ends}"
    if found.value > 0:
        return f"{judge} may train the wrong way: its {number}, and the interval reaches 0"
    return f"{judge} trains the wrong way: its {number}, not above 0"


def find_levels(values: Iterable[float]) -> list[float]:
    """The distinct values, the lowest first."""
    return sorted(set(values))


def binary_levels(values: Iterable[float]) -> tuple[float, float] | None:
    """The two levels of values, the lower first; ``None`` where they are of one, or of more.

    Of 0 alone, or of 1 alone, the other is known.

    >>> binary_levels([1, 1]), binary_levels([2, 5, 2]), binary_levels([1, 2, 3])
    ((0.0, 1.0), (2, 5), None)
    """
    levels = find_levels(values)
    if levels and {*levels} <= {0.0, 1.0}:
        levels = [0.0, 1.0]
    return (levels[0], levels[1]) if len(levels) == 2 else None


def _why_none(levels: Sequence[float]) -> str:
    if len(levels) < 2:
        return _ONE_CLASS if levels else NO_VALUE
    return _TOO_MANY if len(levels) > MAX_LEVELS else ""


def _moments(samples: Sequence[Any]) -> tuple[float, ...]:
    """Values, their sum and sum of squares, and the squared distances inside samples."""
    n = total = squares = inside = 0.0
    for x in samples:
        own, square = float(x.sum()), float(x @ x)
        n, total, squares = n + len(x), total + own, squares + square
        inside += 2 * (len(x) * square - own * own) / (len(x) - 1)
    return n, total, squares, inside


def _interval_alpha(sums: Sequence[float]) -> float | None:
    n, total, squares, inside = sums
    expected = 2 * (n * squares - total * total)
    return 1 - (n - 1) * inside / expected if expected > 1e-12 * n * n else None
