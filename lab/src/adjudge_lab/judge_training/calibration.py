"""Calibrations of a judge: ranks, temperature, isotonic regression, and measures of its pairs.

Fits are made on held-out rows and measured on rows that a fit did not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from adjudge.graders.llm.trained_judge_card import ScoreNormalisation
from adjudge.stats import sigmoid
from adjudge.stats.agreement import measure_reliability
from adjudge.stats.estimates import np, optimize
from adjudge.stats.predictions import (
    IsotonicFit,
    RatingCalibration,
    Reliability,
    ScoreCalibration,
)
from adjudge.text import encode_exactly

MIN_CALIBRATION_PAIRS = 20
"""Fewer rows say too little: nothing is fitted to them."""

CALIBRATION_FOLDS = 5
"""Parts of the rows, each measured by a fit to the others."""

_MAX_INVERSE_TEMPERATURE = 2.0**200

ScorePairs = Sequence[tuple[float, float]]
"""Scores (or lengths) of chosen and rejected."""

_CalibrationMethod = Callable[[Sequence[float]], float | IsotonicFit | str]
"""From differences to a temperature or a fit; the reason where there is none."""


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


def measure_pairs(
    scores: ScorePairs, lengths: ScorePairs, margins: Sequence[float] | None = None
) -> dict[str, float]:
    """``loss``, ``accuracy``, ``margin``, ``calibration_error`` and ``length_corr`` of pairs.

    Scores are finite. ``accuracy``: the share of pairs in which the chosen side scores higher
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
        ("temperature", fit_temperature, temperature),
        ("isotonic", fit_isotonic_gaps, gaps),
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
    Returns the reason where there is no such T: fewer than :data:`MIN_CALIBRATION_PAIRS`; all Δ
    are 0; no Δ < 0, so that the smaller T the better; or their mean is not positive, so that the
    larger T the better.

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
    1 − 1/(n + 2) for n pairs, since n that were right do not prove that all are. Returns the
    reason where no fit exists: fewer than :data:`MIN_CALIBRATION_PAIRS`, or all differences are 0.
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

    ``None`` for fewer than :data:`MIN_CALIBRATION_PAIRS` rows. One entry a held-out row with a
    verdict; ``clusters`` as for :func:`calibrate_scores`.
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


def _cross_validated(
    differences: Sequence[float], folds: Sequence[int], method: _CalibrationMethod
) -> list[float] | None:
    """Each pair's probability by a fit to the other folds; ``None`` where one has no fit."""
    said = [0.0] * len(differences)
    for fold in sorted(set(folds)):
        fit = method([d for d, at in zip(differences, folds, strict=True) if at != fold])
        if isinstance(fit, str):
            return None
        for place, at in enumerate(folds):
            if at == fold:
                gap = abs(differences[place])
                said[place] = sigmoid(gap / fit) if isinstance(fit, float) else fit(gap)
    return said


def _assign_folds(clusters: Sequence[str]) -> list[int]:
    """A fold for each pair: the prompts in the order of their digests, dealt out in turn."""
    digests = {name: sha256(encode_exactly(name)).digest() for name in clusters}
    fold_of = {
        name: n % CALIBRATION_FOLDS
        for n, name in enumerate(sorted(digests, key=digests.__getitem__))
    }
    return [fold_of[name] for name in clusters]


_QUANTILE_LEVELS = tuple(level / 20 for level in range(21))


def fit_normalisation(scores: Sequence[float]) -> ScoreNormalisation:
    """Quantiles (every 5 %, linear between order statistics) of at least one score."""
    ranked = sorted(scores)
    found = []
    for level in _QUANTILE_LEVELS:
        place = level * (len(ranked) - 1)
        low = int(place)
        high = min(low + 1, len(ranked) - 1)
        between = ranked[low] + (place - low) * (ranked[high] - ranked[low])
        found.append(min(between, ranked[high]))  # never above it by rounding
    return ScoreNormalisation(_QUANTILE_LEVELS, tuple(found))
