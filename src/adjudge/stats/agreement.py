"""How numbers agree: two judges' with each other, and one's with what was right.

Pearson, Spearman, Kendall and kappa, with intervals; how far stated probabilities hold; and the
calibrations that make them hold: temperature and isotonic regression, fitted to held-out rows and
measured on rows that a fit did not see.

Kendall's τ-b and Spearman's ρ over samples of several groups compare samples of different groups,
so they are no sums over groups. Their numerators and denominators are homogeneous functions of the
samples' weights, and each sample's share below is the derivative by its weight: a weighted sum of
shares is the first-order change of the whole under resampling (the Hájek projection of a
U-statistic, as in :mod:`adjudge.stats.predictions`).

Source: Kendall, Biometrika 33 (1945), for τ-b; van der Vaart, Asymptotic Statistics, §11-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

from adjudge.stats import Estimate, sigmoid, z_scores
from adjudge.stats.bootstrap import (
    DEFAULT_RESAMPLES,
    Statistic,
    bootstrap_groups,
    draw_counts,
    expanded_tail,
    percentile_interval,
)
from adjudge.stats.estimates import NO_VALUE, np, optimize
from adjudge.stats.predictions import (
    IsotonicFit,
    RatingCalibration,
    Reliability,
    ReliabilityBin,
    ScoreCalibration,
    pair_counts,
)
from adjudge.text import encode_exactly

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


def estimate_correlation(
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    ranks: bool = False,
    clusters: Sequence[int] | None = None,
    seed: int = 0,
) -> Estimate:
    """Pearson's r, or with ``ranks`` Spearman's ρ, with its expanded percentile interval.

    Of three pairs at least; every resample is ranked anew. With ``clusters`` (a number a pair, of
    two clusters at least) pairs of one cluster are drawn together. No interval where all points lie
    on a line, and where more than 5 % of the resamples have no value.
    """
    n = len(xs)
    value = (spearman_correlation if ranks else pearson_correlation)(xs, ys)
    if value is None or 1 - abs(value) < _TINY:
        return Estimate(value and float(round(value)), n=n, why="a perfect correlation")
    resampled = _resampled_ranks if ranks else _resampled_moments
    _, units = np.unique(range(n) if clusters is None else clusters, return_inverse=True)
    drawn = [
        one
        for counts in draw_counts(units.max() + 1, DEFAULT_RESAMPLES, seed)
        for one in _correlations(n, *resampled(counts[:, units], xs, ys))
    ]
    found = percentile_interval(
        drawn, value, tail=expanded_tail(units.max() + 1), undefined="too few seeds differ"
    )
    return Estimate(value, found.low, found.high, n, found.why)


def _resampled_moments(counts: Any, xs: Sequence[float], ys: Sequence[float]) -> tuple[Any, ...]:
    """Σ(x−x̄)², Σ(y−ȳ)² and Σ(x−x̄)(y−ȳ) of each resample, in units of the pairs."""
    n, x, y = counts.sum(1), standardise(xs), standardise(ys)
    of_x, of_y, xx, yy, xy = (counts @ np.stack([x, y, x * x, y * y, x * y], axis=1)).T
    return xx - of_x * of_x / n, yy - of_y * of_y / n, xy - of_x * of_y / n


def _resampled_ranks(counts: Any, xs: Sequence[float], ys: Sequence[float]) -> tuple[Any, ...]:
    """The same of the centred mid-ranks in each resample."""
    ranks, total = [], counts.sum(1, keepdims=True)
    for values in (xs, ys):
        _, places = np.unique(np.asarray(values, dtype=float), return_inverse=True)
        each = counts @ (places[:, None] == np.arange(places.max() + 1))
        ranks.append((np.cumsum(each, axis=1) - each / 2 - total / 2)[:, places])
    x, y = ranks
    return (counts * x * x).sum(1), (counts * y * y).sum(1), (counts * x * y).sum(1)


def _correlations(n: int, of_x: Any, of_y: Any, product: Any) -> list[float | None]:
    varies = (of_x > _TINY * n) & (of_y > _TINY * n)
    root = np.sqrt(np.where(varies, of_x * of_y, 1.0))
    return np.where(varies, np.clip(product / root, -1, 1), None).tolist()  # type: ignore[no-any-return]


MIN_CALIBRATION_PAIRS = 20
"""Fewer rows say too little: nothing is fitted to them."""

CALIBRATION_FOLDS = 5
"""Parts of the rows, each measured by a fit to the others."""

_RELIABILITY_BINS = 10
_MIN_PROBABILITY = 1e-12
"""Probabilities count as no smaller in the log loss, so that it is finite."""
_MAX_INVERSE_TEMPERATURE = 2.0**200

ScorePairs = Sequence[tuple[float, float]]
"""Scores (or lengths) of chosen and rejected."""

_CalibrationMethod = Callable[[Sequence[float]], Callable[[float], float] | None]
"""From differences to the probability of a distance; ``None`` where there is no fit."""


def pair_length_correlation(scores: Sequence[float], lengths: Sequence[float]) -> float | None:
    """Correlation of score and length differences of pairs, whichever side is subtracted.

    Each pair counts in both orders, so that both means are 0: Σ s·l / √(Σ s² · Σ l²), from −1 to 1.
    ``None`` where all lengths or all scores are equal.

    >>> pair_length_correlation([1.0, -2.0], [10, -20])
    1.0
    """
    s, n = _scale_by_power_of_two(scores), _scale_by_power_of_two(lengths)
    power = math.fsum(x * x for x in s) * math.fsum(x * x for x in n)
    if not power > 0 or not math.isfinite(power):
        return None
    product = math.fsum(x * y for x, y in zip(s, n, strict=True))
    return max(-1.0, min(1.0, product / math.sqrt(power)))


def _scale_by_power_of_two(values: Sequence[float]) -> list[float]:
    """The largest is from 0.5 to 1: squares neither over- nor underflow, and no digit is lost."""
    _, exponent = math.frexp(max(map(abs, values), default=0.0))
    return [math.ldexp(value, -exponent) for value in values]


def fit_isotonic(points: Iterable[tuple[float, float]]) -> IsotonicFit:
    """The rising function with the least squared distance to ``points`` (x, y), at least one.

    Isotonic regression on the means of equal x (Barlow et al. 1972). Points in any order. At every
    x of the points the result is the fit's value; between two blocks of equal value it is linear.

    >>> fit_isotonic([(0, 0.0), (1, 3.0), (2, 1.0), (3, 4.0)])
    IsotonicFit(at=(0.0, 1.0, 2.0, 3.0), values=(0.0, 2.0, 2.0, 4.0))
    """
    x, y = np.array(sorted(points), dtype=float).T
    at, first, counts = np.unique(x, return_index=True, return_counts=True)
    found = optimize.isotonic_regression(np.add.reduceat(y, first) / counts, weights=counts).x
    inner = np.diff(found) == 0
    knots = ~(np.append(inner, False) & np.insert(inner, 0, False))
    return IsotonicFit(tuple(at[knots].tolist()), tuple(found[knots].tolist()))


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


def measure_pairs(
    scores: ScorePairs, lengths: ScorePairs, margins: Sequence[float] | None = None
) -> dict[str, float]:
    """``loss``, ``accuracy``, ``margin``, ``calibration_error`` and ``length_corr`` of pairs.

    Scores are finite. ``accuracy``: the share of pairs whose chosen side has the higher score
    (equal is not higher); ``margin``: the mean difference of scores; ``lengths`` in tokens. What
    cannot be computed is absent.
    """
    differences = [chosen - rejected for chosen, rejected in scores]
    n = len(differences)
    found = {
        "loss": bradley_terry_loss(differences, margins),
        "accuracy": sum(d > 0 for d in differences) / n,
        "margin": math.fsum(differences) / n,
        "calibration_error": calibration_error(differences),
    }
    correlation = pair_length_correlation(
        differences, [chosen - other for chosen, other in lengths]
    )
    return found if correlation is None else {**found, "length_corr": correlation}


def bradley_terry_loss(
    differences: Sequence[float], margins: Sequence[float] | None = None
) -> float:
    """Mean of −log σ(d − m), d the chosen side's score above the other's, m the margin (0).

    Bradley and Terry (1952); the margin as in Llama 2 (Touvron et al. 2023, eq. 2).

    >>> round(bradley_terry_loss([0.0]), 4), bradley_terry_loss([2000.0, -2000.0])
    (0.6931, 1000.0)
    """
    over = margins or [0.0] * len(differences)
    losses = [_softplus(m - d) for d, m in zip(differences, over, strict=True)]
    return math.fsum(losses) / len(losses)


def calibration_error(differences: Sequence[float]) -> float:
    """Expected calibration error of σ(|d|) as the probability that the higher score is right.

    Ten bins of equal width over 0.5 to 1; 0 is perfect (Guo et al. 2017). Equal scores are half
    right.
    """
    return measure_reliability(*_probabilities_of_gaps(differences)).error


def _probabilities_of_gaps(differences: Sequence[float]) -> tuple[list[float], list[float]]:
    """σ(|d|), and 1, 0 or 0.5 for whether the higher score was right."""
    return [sigmoid(abs(d)) for d in differences], [_correctness(d) for d in differences]


def _correctness(difference: float) -> float:
    return 0.5 if difference == 0 else float(difference > 0)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def calibrate_scores(scores: ScorePairs, clusters: Sequence[str] | None = None) -> ScoreCalibration:
    """Both calibrations of a scalar judge, and what they change on pairs that they did not see.

    ``scores``: outputs for the chosen and the rejected answer of at least one held-out pair, finite
    and before any normalisation. ``clusters``: what each pair's answers answer (any text); pairs
    with the same stay in one fold. The order of pairs does not matter.
    """
    differences = [chosen - rejected for chosen, rejected in scores]
    names = [f"{a!r} {b!r}" for a, b in scores] if clusters is None else list(clusters)
    said_as_is, right = _probabilities_of_gaps(differences)
    temperature, gaps = fit_temperature(differences), fit_isotonic_gaps(differences)
    folds = _assign_folds(names)
    missing: dict[str, str] = {}
    measured: dict[str, Reliability | None] = {}
    for name, method, fitted in (
        ("temperature", _temperature_probability, temperature),
        ("isotonic", _isotonic_probability, gaps),
    ):
        said = None if isinstance(fitted, str) else _cross_validated(differences, folds, method)
        measured[name] = None if said is None else measure_reliability(said, right)
        if isinstance(fitted, str):
            missing[name] = fitted
        elif said is None:
            missing[f"with_{name}"] = "too few prompts, or a fold without a fit"
    return ScoreCalibration(
        pairs=len(differences),
        prompts=len(set(names)),
        temperature=None if isinstance(temperature, str) else temperature,
        isotonic=None if isinstance(gaps, str) else gaps,
        missing=missing,
        as_is=measure_reliability(said_as_is, right),
        with_temperature=measured["temperature"],
        with_isotonic=measured["isotonic"],
    )


def fit_temperature(differences: Sequence[float]) -> float | str:
    """The T > 0 with the least mean −log σ(Δ/T) over the chosen sides' ``differences`` Δ.

    Convex in 1/T, so there is one at most (temperature scaling, Guo et al. 2017, for two classes).
    A text says why there is none: fewer than :data:`MIN_CALIBRATION_PAIRS`; all Δ are 0; no Δ < 0,
    so that the smaller T the better; or their mean is not positive, so that the larger T the
    better.

    >>> round(fit_temperature([2.0, 2.0, 2.0, -2.0] * 5) * math.log(3), 9)  # σ(2/T) = 3/4
    2.0
    """
    if len(differences) < MIN_CALIBRATION_PAIRS:
        return f"{len(differences)} pairs, fewer than {MIN_CALIBRATION_PAIRS}"
    scale = max(map(abs, differences))
    if scale == 0:
        return "all differences are 0"
    if min(differences) >= 0:
        return "no pair is wrong: the smaller the temperature, the better"
    if math.fsum(differences) <= 0:
        return "the mean difference is not positive: no temperature makes the judge right"
    scaled = np.array(differences, dtype=float) / scale

    def slope(beta: float) -> float:
        """The derivative of Σ −log σ(βΔ) by β."""
        return -math.fsum((scaled / (1 + np.exp(np.minimum(beta * scaled, 700.0)))).tolist())

    high = 1.0
    while slope(high) < 0:
        high *= 2
        if high > _MAX_INVERSE_TEMPERATURE:
            return "the wrong pairs differ by next to nothing"
    return scale / float(optimize.brentq(slope, high / 2 if high > 1 else 0.0, high, xtol=1e-300))


def fit_isotonic_gaps(differences: Sequence[float]) -> IsotonicFit | str:
    """The rising probability that the higher output is right, by the distance of the two.

    The least-squares fit between 0.5 (at distance 0: equal outputs say nothing) and
    1 − 1/(n + 2) for n pairs, since n that were right do not prove that all are. A text says why
    there is none: fewer than :data:`MIN_CALIBRATION_PAIRS`, or all differences are 0.
    """
    n = len(differences)
    if n < MIN_CALIBRATION_PAIRS:
        return f"{n} pairs, fewer than {MIN_CALIBRATION_PAIRS}"
    apart = [(abs(d), float(d > 0)) for d in differences if d]
    if not apart:
        return "all differences are 0"
    fit = fit_isotonic(apart)
    most = 1 - 1 / (n + 2)
    values = (min(most, max(0.5, value)) for value in fit.values)
    return IsotonicFit((0.0, *fit.at), (0.5, *values))


def calibrate_ratings(
    ratings: Sequence[float], labels: Sequence[float], clusters: Sequence[str]
) -> RatingCalibration | None:
    """The mean label of each rating, rising.

    ``None`` for fewer than :data:`MIN_CALIBRATION_PAIRS` rows. One entry a held-out row whose reply
    had a verdict; ``clusters`` as for :func:`calibrate_scores`.
    """
    if len(ratings) < MIN_CALIBRATION_PAIRS:
        return None
    points = list(zip(map(float, ratings), map(float, labels), strict=True))
    folds = _assign_folds(clusters)
    after: float | None = None
    if len(set(folds)) > 1:
        squares = []
        for fold in sorted(set(folds)):
            fit = fit_isotonic(p for p, at in zip(points, folds, strict=True) if at != fold)
            held = [p for p, at in zip(points, folds, strict=True) if at == fold]
            squares += [(fit(rating) - label) ** 2 for rating, label in held]
        after = math.fsum(squares) / len(squares)
    error = math.fsum((rating - label) ** 2 for rating, label in points) / len(points)
    return RatingCalibration(
        rows=len(points), labels=fit_isotonic(points), error=error, error_after=after
    )


def _temperature_probability(differences: Sequence[float]) -> Callable[[float], float] | None:
    found = fit_temperature(differences)
    return None if isinstance(found, str) else lambda gap: sigmoid(gap / found)


def _isotonic_probability(differences: Sequence[float]) -> Callable[[float], float] | None:
    found = fit_isotonic_gaps(differences)
    return None if isinstance(found, str) else found


def _cross_validated(
    differences: Sequence[float], folds: Sequence[int], method: _CalibrationMethod
) -> list[float] | None:
    """Each pair's probability by a fit to the other folds; ``None`` where one has no fit."""
    said = [0.0] * len(differences)
    for fold in sorted(set(folds)):
        fit = method([d for d, at in zip(differences, folds, strict=True) if at != fold])
        if fit is None:
            return None
        for place, at in enumerate(folds):
            if at == fold:
                said[place] = fit(abs(differences[place]))
    return said


def _assign_folds(clusters: Sequence[str]) -> list[int]:
    """A fold for each pair: the prompts in the order of their digests, dealt out in turn."""
    digests = {name: sha256(encode_exactly(name)).digest() for name in clusters}
    fold_of = {
        name: n % CALIBRATION_FOLDS
        for n, name in enumerate(sorted(digests, key=digests.__getitem__))
    }
    return [fold_of[name] for name in clusters]
