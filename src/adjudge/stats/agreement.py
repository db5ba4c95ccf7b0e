"""How numbers agree: two judges' with each other, and one's with what was right.

Pearson, Spearman, Kendall and kappa, with intervals; and how far stated probabilities hold.

Kendall's τ-b and Spearman's ρ over samples of several groups compare samples of different groups,
so they are no sums over groups. Their numerators and denominators are homogeneous functions of the
samples' weights, and each sample's share below is the derivative by its weight: a weighted sum of
shares is the first-order change of the whole under resampling (the Hájek projection of a
U-statistic, as in :mod:`adjudge.stats.predictions`).

Source: Kendall, Biometrika 33 (1945), for τ-b; van der Vaart, Asymptotic Statistics, §11-12.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from adjudge.stats import Estimate, z_scores
from adjudge.stats.bootstrap import (
    Statistic,
    bootstrap_groups,
)
from adjudge.stats.estimates import NO_VALUE, np
from adjudge.stats.predictions import (
    Reliability,
    ReliabilityBin,
    pair_counts,
)

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


def spearman_shares(x: Sequence[float], y: Sequence[float]) -> Any:
    """Per sample: its share in Σ rs, Σ r² and Σ s² of centred mid-ranks r, s (doubled).

    An array (samples, 3). The shares sum to three times the whole: each of the three is of third
    degree in the weights.

    >>> (spearman_shares([1, 2, 3], [1, 3, 2]).sum(axis=0) / 3).tolist()
    [4.0, 8.0, 8.0]
    """
    r, s = doubled_ranks(x).astype(float), doubled_ranks(y).astype(float)
    columns = (
        r * s + _weights_above_less_below(x, s) + _weights_above_less_below(y, r),
        r * r + 2 * _weights_above_less_below(x, r),
        s * s + 2 * _weights_above_less_below(y, s),
    )
    return np.stack(columns, axis=1)


def _weights_above_less_below(values: Sequence[float], weights: Any) -> Any:
    """Per value: the weights of those above it less the weights of those below it."""
    _, places = np.unique(np.asarray(values, dtype=float), return_inverse=True)
    sums = np.bincount(places, weights)
    return (sums.sum() - 2 * np.cumsum(sums) + sums)[places]


PairedScores = tuple[Sequence[float], Sequence[float]]
"""What two judges say of the same samples, one a sample."""

_MAX_LEVELS = 20


def estimate_agreement(groups: Sequence[PairedScores], *, seed: int = 0) -> dict[str, Estimate]:
    """``pearson``, ``spearman``, ``kendall`` and ``kappa`` over all samples; intervals by group.

    ``kappa`` is quadratic-weighted, 1 − Σ(x−y)²/n ÷ its expectation were they independent (Cohen,
    Psychol. Bull. 70, 1968), for few levels in ranges that overlap by half. Nothing has a value
    where one of the two does not vary.
    """
    x, y = (np.concatenate([np.empty(0), *(pair[side] for pair in groups)]) for side in (0, 1))
    if not len(x) or x.min() == x.max() or y.min() == y.max():
        return dict.fromkeys(("pearson", "spearman", "kendall", "kappa"), Estimate(why=NO_VALUE))
    sizes = np.cumsum([0, *(len(pair[0]) for pair in groups)])[:-1]

    def estimate(columns: Any, statistic: Statistic) -> Estimate:
        return bootstrap_groups(np.add.reduceat(columns, sizes).tolist(), statistic, seed=seed)

    def linearised(shares: Any, degree: int) -> Estimate:
        """The ratio whose parts have these shares: from sums to the first-order change."""
        whole = shares.sum(axis=0) / degree
        known = (whole / whole[1] * (degree - 1)).tolist()
        return estimate(
            shares / whole[1],
            lambda sums: correlation(*(own - of for own, of in zip(sums, known, strict=True))),
        )

    scale = np.abs(np.concatenate([x, y]) / 2 - x.mean() / 2).max() * 2
    same = [(side - x.mean()) / scale for side in (x, y)]
    return {
        "pearson": estimate(_moments(standardise(x), standardise(y)), _pearson_of_moments),
        "spearman": linearised(spearman_shares(x, y), 3),
        "kendall": linearised(concordance_shares(x, y), 2),
        "kappa": estimate(_moments(*same), _kappa_of_moments)
        if have_same_scale(x, y)
        else Estimate(why="not the same few levels"),
    }


def _moments(x: Any, y: Any) -> Any:
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1)


def _central(sums: Sequence[float]) -> tuple[float, float, float, float]:
    n, x, y, xx, yy, xy = sums
    return xy / n - x * y / n**2, xx / n - (x / n) ** 2, yy / n - (y / n) ** 2, (x - y) / n


def _pearson_of_moments(sums: Sequence[float]) -> float | None:
    return correlation(*_central(sums)[:3])


def _kappa_of_moments(sums: Sequence[float]) -> float | None:
    product, of_x, of_y, apart = _central(sums)
    expected = of_x + of_y + apart**2
    return 2 * product / expected if expected > 1e-18 else None


def have_same_scale(x: Any, y: Any) -> bool:
    """Whether both have few levels, in ranges that overlap by half."""
    both = np.concatenate([x, y])
    overlap = min(x.max(), y.max()) - max(x.min(), y.min())
    return len(np.unique(both)) <= _MAX_LEVELS and overlap >= (both.max() - both.min()) / 2


def estimate_within_agreement(
    groups: Sequence[PairedScores], *, seed: int = 0
) -> dict[str, Estimate]:
    """``pearson``, ``spearman``, ``kendall`` inside groups, pooled; intervals by group.

    And ``advantage_pearson``: of the z-scores that GRPO trains on.
    """
    spreads = [
        max((max(pair[at]) / 2 - min(pair[at]) / 2 for pair in groups), default=0.0) or 1.0
        for at in (0, 1)
    ]

    def pooled(rows: Iterable[Any]) -> Estimate:
        sums = [tuple(map(float, row)) for row in rows]
        return bootstrap_groups(sums, lambda totals: correlation(*totals), seed=seed)

    def linear(pair: PairedScores) -> Any:
        x, y = (np.asarray(side, float) / by for side, by in zip(pair, spreads, strict=True))
        return _products(x - x.mean(), y - y.mean())

    return {
        "pearson": pooled(map(linear, groups)),
        "spearman": pooled(_products(doubled_ranks(x), doubled_ranks(y)) for x, y in groups),
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
