"""How numbers agree: two judges' with each other, and one's with what was right.

Pearson, Spearman and Kendall, the last with intervals; and how far stated probabilities hold.

Kendall's τ-b over samples of several groups compares samples of different groups, so it is no sum
over groups. Its numerator and denominator are homogeneous functions of the samples' weights, and
each sample's share below is the derivative by its weight: a weighted sum of shares is the
first-order change of the whole under resampling (the Hájek projection of a U-statistic, as in
:mod:`adjudge.stats.predictions`).

Source: Kendall, Biometrika 33 (1945), for τ-b; van der Vaart, Asymptotic Statistics, §11-12.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from adjudge.stats import Estimate, z_scores
from adjudge.stats.bootstrap import bootstrap_groups
from adjudge.stats.estimates import NO_VALUE, np
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

_MAX_LEVELS = 20


def estimate_kendall(groups: Sequence[PairedScores], *, seed: int = 0) -> Estimate:
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
        seed=seed,
    )


def have_same_scale(x: Any, y: Any) -> bool:
    """Whether both have few levels, in ranges that overlap by half."""
    both = np.concatenate([x, y])
    overlap = min(x.max(), y.max()) - max(x.min(), y.min())
    return len(np.unique(both)) <= _MAX_LEVELS and overlap >= (both.max() - both.min()) / 2


def estimate_within_agreement(
    groups: Sequence[PairedScores], *, seed: int = 0
) -> dict[str, Estimate]:
    """``kendall`` inside groups, pooled; intervals by group.

    And ``advantage_pearson``: of the z-scores that GRPO trains on.
    """

    def pooled(rows: Iterable[Any]) -> Estimate:
        sums = [tuple(map(float, row)) for row in rows]
        return bootstrap_groups(sums, lambda totals: correlation(*totals), seed=seed)

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
