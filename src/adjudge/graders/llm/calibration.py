"""What a judge's outputs are worth in probability and in labels, measured on held-out rows.

Temperature; isotonic regression (the best rising fit to points, by pooling adjacent violators); how
far stated probabilities hold; how well scores tell chosen from rejected, and how much of that is
length.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import groupby
from math import fsum
from operator import itemgetter

import msgspec

from adjudge.text import encode_exactly

__all__ = [
    "CALIBRATION_FOLDS",
    "MIN_CALIBRATION_PAIRS",
    "IsotonicFit",
    "RatingCalibration",
    "Reliability",
    "ReliabilityBin",
    "ScoreCalibration",
    "bradley_terry_loss",
    "calibrate_ratings",
    "calibrate_scores",
    "calibration_error",
    "fit_isotonic",
    "fit_isotonic_gaps",
    "fit_temperature",
    "measure_pairs",
    "measure_reliability",
    "pair_length_correlation",
    "sigmoid",
]


def pair_length_correlation(scores: Sequence[float], lengths: Sequence[float]) -> float | None:
    """Correlation of score and length differences of pairs, whichever side is subtracted.

    Each pair counts in both orders, so that both means are 0: Σ s·l / √(Σ s² · Σ l²), from −1 to 1.
    ``None`` where all lengths or all scores are equal.

    >>> pair_length_correlation([1.0, -2.0], [10, -20])
    1.0
    """
    power = math.fsum(s * s for s in scores) * math.fsum(n * n for n in lengths)
    if not power > 0 or not math.isfinite(power):
        return None
    return math.fsum(s * n for s, n in zip(scores, lengths, strict=True)) / math.sqrt(power)


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


class _PooledBlock(msgspec.Struct):
    """Neighbouring places that share a value, the mean of what was seen there."""

    low: float
    high: float
    total: float
    count: int

    @property
    def mean(self) -> float:
        return self.total / self.count


def fit_isotonic(points: Iterable[tuple[float, float]]) -> IsotonicFit:
    """The rising function with the least squared distance to ``points`` (x, y), at least one.

    Pool adjacent violators (Ayer et al. 1955; Barlow et al. 1972): places whose means fall are
    joined until none does. Points in any order, equal x are one place. At every x of the points the
    result is the fit's value; between two blocks of equal value it is linear.

    >>> fit_isotonic([(0, 0.0), (1, 3.0), (2, 1.0), (3, 4.0)])
    IsotonicFit(at=(0, 1, 2, 3), values=(0.0, 2.0, 2.0, 4.0))
    """
    blocks: list[_PooledBlock] = []
    for x, same in groupby(sorted(points), itemgetter(0)):
        values = [y for _, y in same]
        block = _PooledBlock(x, x, fsum(values), len(values))
        while blocks and blocks[-1].mean >= block.mean:
            last = blocks.pop()
            block = _PooledBlock(last.low, x, last.total + block.total, last.count + block.count)
        blocks.append(block)
    knots = [
        (x, block.mean)
        for block in blocks
        for x in ((block.low,) if block.low == block.high else (block.low, block.high))
    ]
    return IsotonicFit(tuple(x for x, _ in knots), tuple(y for _, y in knots))


_RELIABILITY_BINS = 10
_MIN_PROBABILITY = 1e-12
"""Probabilities count as no smaller in the log loss, so that it is finite."""


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


def measure_reliability(said: Sequence[float], right: Sequence[float]) -> Reliability:
    """``said``: a probability from 0.5 to 1 for each pair, at least one; ``right``: 1, 0 or 0.5.

    >>> found = measure_reliability([0.75, 0.75, 0.75, 0.75], [1, 1, 1, 0])
    >>> found.error, found.brier, found.bins
    (0.0, 0.1875, (ReliabilityBin(pairs=4, said=0.75, right=0.75),))
    """
    n = len(said)
    binned: dict[int, list[tuple[float, float]]] = {}
    for p, was in zip(said, right, strict=True):
        place = min(_RELIABILITY_BINS - 1, max(0, int((p - 0.5) * 2 * _RELIABILITY_BINS)))
        binned.setdefault(place, []).append((p, was))
    bins = tuple(
        ReliabilityBin(
            len(one),
            math.fsum(p for p, _ in one) / len(one),
            math.fsum(r for _, r in one) / len(one),
        )
        for _, one in sorted(binned.items())
    )
    return Reliability(
        error=math.fsum(one.pairs * abs(one.said - one.right) for one in bins) / n,
        brier=math.fsum((p - was) ** 2 for p, was in zip(said, right, strict=True)) / n,
        log_loss=math.fsum(_log_loss(p, was) for p, was in zip(said, right, strict=True)) / n,
        bins=bins,
    )


def _log_loss(p: float, was: float) -> float:
    return -(
        was * math.log(max(p, _MIN_PROBABILITY))
        + (1 - was) * math.log(max(1 - p, _MIN_PROBABILITY))
    )


_ERROR_BINS = 10

ScorePairs = Sequence[tuple[float, float]]
"""Scores (or lengths) of chosen and rejected."""


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
    bins: list[list[tuple[float, float]]] = [[] for _ in range(_ERROR_BINS)]
    for d in differences:
        sure = 1 / (1 + math.exp(-min(abs(d), 700.0)))
        place = min(_ERROR_BINS - 1, int((sure - 0.5) * 2 * _ERROR_BINS))
        bins[place].append((sure, 0.5 if d == 0 else float(d > 0)))
    gaps = (abs(math.fsum(sure - right for sure, right in one)) for one in bins)
    return math.fsum(gaps) / len(differences)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


MIN_CALIBRATION_PAIRS = 20
"""Fewer rows say too little: nothing is fitted to them."""

CALIBRATION_FOLDS = 5
"""Parts of the rows, each measured by a fit to the others."""

_MAX_NEWTON_STEPS = 200
_TOLERANCE = 1e-12

_ScorePairs = Sequence[tuple[float, float]]
_CalibrationMethod = Callable[[Sequence[float]], Callable[[float], float] | None]
"""From differences to the probability of a distance; ``None`` where there is no fit."""


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


def calibrate_scores(
    scores: _ScorePairs, clusters: Sequence[str] | None = None
) -> ScoreCalibration:
    """Both calibrations of a scalar judge, and what they change on pairs that they did not see.

    ``scores``: outputs for the chosen and the rejected answer of at least one held-out pair, finite
    and before any normalisation. ``clusters``: what each pair's answers answer (any text); pairs
    with the same stay in one fold. The order of pairs does not matter.
    """
    differences = [chosen - rejected for chosen, rejected in scores]
    names = [f"{a!r} {b!r}" for a, b in scores] if clusters is None else list(clusters)
    right = [_correctness(d) for d in differences]
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
        as_is=measure_reliability([sigmoid(abs(d)) for d in differences], right),
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
    scaled = [d / scale for d in differences]
    low, high = 0.0, 1.0
    while _loss_slope(scaled, high) < 0:
        low, high = high, 2 * high
        if high > 2.0**_MAX_NEWTON_STEPS:
            return "the wrong pairs differ by next to nothing"
    return scale / _find_root(scaled, low, high)


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


def sigmoid(x: float) -> float:
    """1/(1 + e^−x), for any finite x."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def _correctness(difference: float) -> float:
    return 0.5 if difference == 0 else float(difference > 0)


def _loss_slope(differences: Sequence[float], beta: float) -> float:
    """The derivative of Σ −log σ(βΔ) by β."""
    return math.fsum(-d * sigmoid(-beta * d) for d in differences)


def _find_root(differences: Sequence[float], low: float, high: float) -> float:
    """The β between ``low`` and ``high`` where the slope is 0: Newton's steps, else halving."""
    beta = (low + high) / 2
    for _ in range(_MAX_NEWTON_STEPS):
        wrong = [sigmoid(-beta * d) for d in differences]
        slope = math.fsum(-d * p for d, p in zip(differences, wrong, strict=True))
        low, high = (beta, high) if slope < 0 else (low, beta)
        curvature = math.fsum(d * d * p * (1 - p) for d, p in zip(differences, wrong, strict=True))
        step = beta - slope / curvature if curvature > 0 else high
        new = step if low < step < high else (low + high) / 2
        if abs(new - beta) <= _TOLERANCE * beta:
            return new
        beta = new
    return beta


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
