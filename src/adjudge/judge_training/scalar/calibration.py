"""What a judge's outputs are worth in probability and in labels, measured on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import sha256

import msgspec

from adjudge.judge_training.scalar.isotonic import Isotonic, isotonic_of
from adjudge.judge_training.scalar.reliability import Reliability, reliability_of

__all__ = [
    "FOLDS",
    "LEAST_PAIRS",
    "Calibration",
    "RatingCalibration",
    "calibrate",
    "calibrate_ratings",
    "isotonic_gaps",
    "sigmoid",
    "temperature_of",
]

LEAST_PAIRS = 20
"""Fewer rows say too little: nothing is fitted to them."""

FOLDS = 5
"""Parts of the rows, each measured by a fit to the others."""

_MOST_STEPS = 200
_CLOSE = 1e-12

_Pairs = Sequence[tuple[float, float]]
_Method = Callable[[Sequence[float]], Callable[[float], float] | None]
"""From differences to the probability of a distance; ``None`` where there is no fit."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
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
    isotonic: Isotonic | None
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
    ``error_after``: of the mean label by the other folds; see :class:`Calibration`.
    """

    rows: int
    labels: Isotonic
    error: float
    error_after: float | None


def calibrate(scores: _Pairs, clusters: Sequence[str] | None = None) -> Calibration:
    """Both calibrations of a scalar judge, and what they change on pairs that they did not see.

    ``scores``: outputs for the chosen and the rejected answer of at least one held-out pair, finite
    and before any normalisation. ``clusters``: what each pair's answers answer (any text); pairs
    with the same stay in one fold. The order of pairs does not matter.
    """
    differences = [chosen - rejected for chosen, rejected in scores]
    names = [f"{a!r} {b!r}" for a, b in scores] if clusters is None else list(clusters)
    right = [_right(d) for d in differences]
    temperature, gaps = temperature_of(differences), isotonic_gaps(differences)
    folds = _folds(names)
    missing: dict[str, str] = {}
    measured: dict[str, Reliability | None] = {}
    for name, method, fitted in (
        ("temperature", _tempered, temperature),
        ("isotonic", _stepped, gaps),
    ):
        said = None if isinstance(fitted, str) else _crossed(differences, folds, method)
        measured[name] = None if said is None else reliability_of(said, right)
        if isinstance(fitted, str):
            missing[name] = fitted
        elif said is None:
            missing[f"with_{name}"] = "too few prompts, or a fold without a fit"
    return Calibration(
        pairs=len(differences),
        prompts=len(set(names)),
        temperature=None if isinstance(temperature, str) else temperature,
        isotonic=None if isinstance(gaps, str) else gaps,
        missing=missing,
        as_is=reliability_of([sigmoid(abs(d)) for d in differences], right),
        with_temperature=measured["temperature"],
        with_isotonic=measured["isotonic"],
    )


def temperature_of(differences: Sequence[float]) -> float | str:
    """The T > 0 with the least mean −log σ(Δ/T) over the chosen sides' ``differences`` Δ.

    Convex in 1/T, so there is one at most (temperature scaling, Guo et al. 2017, for two classes).
    A text says why there is none: fewer than :data:`LEAST_PAIRS`; all Δ are 0; no Δ < 0, so that
    the smaller T the better; or their mean is not positive, so that the larger T the better.

    >>> round(temperature_of([2.0, 2.0, 2.0, -2.0] * 5) * math.log(3), 9)  # σ(2/T) = 3/4
    2.0
    """
    if len(differences) < LEAST_PAIRS:
        return f"{len(differences)} pairs, fewer than {LEAST_PAIRS}"
    scale = max(map(abs, differences))
    if scale == 0:
        return "all differences are 0"
    if min(differences) >= 0:
        return "no pair is wrong: the smaller the temperature, the better"
    if math.fsum(differences) <= 0:
        return "the mean difference is not positive: no temperature makes the judge right"
    scaled = [d / scale for d in differences]
    low, high = 0.0, 1.0
    while _slope(scaled, high) < 0:
        low, high = high, 2 * high
        if high > 2.0**_MOST_STEPS:
            return "the wrong pairs differ by next to nothing"
    return scale / _root(scaled, low, high)


def isotonic_gaps(differences: Sequence[float]) -> Isotonic | str:
    """The rising probability that the higher output is right, by the distance of the two.

    The least-squares fit between 0.5 (at distance 0: equal outputs say nothing) and
    1 − 1/(n + 2) for n pairs, since n that were right do not prove that all are. A text says why
    there is none: fewer than :data:`LEAST_PAIRS`, or all differences are 0.
    """
    n = len(differences)
    if n < LEAST_PAIRS:
        return f"{n} pairs, fewer than {LEAST_PAIRS}"
    apart = [(abs(d), float(d > 0)) for d in differences if d]
    if not apart:
        return "all differences are 0"
    fit = isotonic_of(apart)
    most = 1 - 1 / (n + 2)
    values = (min(most, max(0.5, value)) for value in fit.values)
    return Isotonic((0.0, *fit.at), (0.5, *values))


def calibrate_ratings(
    ratings: Sequence[float], labels: Sequence[float], clusters: Sequence[str]
) -> RatingCalibration | None:
    """The mean label of each rating, rising; ``None`` for fewer than :data:`LEAST_PAIRS` rows.

    One entry a held-out row whose reply had a verdict; ``clusters`` as for :func:`calibrate`.
    """
    if len(ratings) < LEAST_PAIRS:
        return None
    points = list(zip(map(float, ratings), map(float, labels), strict=True))
    folds = _folds(clusters)
    after: float | None = None
    if len(set(folds)) > 1:
        squares = []
        for fold in sorted(set(folds)):
            fit = isotonic_of(p for p, at in zip(points, folds, strict=True) if at != fold)
            held = [p for p, at in zip(points, folds, strict=True) if at == fold]
            squares += [(fit(rating) - label) ** 2 for rating, label in held]
        after = math.fsum(squares) / len(squares)
    error = math.fsum((rating - label) ** 2 for rating, label in points) / len(points)
    return RatingCalibration(
        rows=len(points), labels=isotonic_of(points), error=error, error_after=after
    )


def sigmoid(x: float) -> float:
    """1/(1 + e^−x), for any finite x."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def _right(difference: float) -> float:
    return 0.5 if difference == 0 else float(difference > 0)


def _slope(differences: Sequence[float], beta: float) -> float:
    """The derivative of Σ −log σ(βΔ) by β."""
    return math.fsum(-d * sigmoid(-beta * d) for d in differences)


def _root(differences: Sequence[float], low: float, high: float) -> float:
    """The β between ``low`` and ``high`` where the slope is 0: Newton's steps, else halving."""
    beta = (low + high) / 2
    for _ in range(_MOST_STEPS):
        wrong = [sigmoid(-beta * d) for d in differences]
        slope = math.fsum(-d * p for d, p in zip(differences, wrong, strict=True))
        low, high = (beta, high) if slope < 0 else (low, beta)
        curvature = math.fsum(d * d * p * (1 - p) for d, p in zip(differences, wrong, strict=True))
        step = beta - slope / curvature if curvature > 0 else high
        new = step if low < step < high else (low + high) / 2
        if abs(new - beta) <= _CLOSE * beta:
            return new
        beta = new
    return beta


def _tempered(differences: Sequence[float]) -> Callable[[float], float] | None:
    found = temperature_of(differences)
    return None if isinstance(found, str) else lambda gap: sigmoid(gap / found)


def _stepped(differences: Sequence[float]) -> Callable[[float], float] | None:
    found = isotonic_gaps(differences)
    return None if isinstance(found, str) else found


def _crossed(
    differences: Sequence[float], folds: Sequence[int], method: _Method
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


def _folds(clusters: Sequence[str]) -> list[int]:
    """A fold for each pair: the prompts in the order of their digests, dealt out in turn."""
    digests = {name: sha256(name.encode("utf-8", "surrogatepass")).digest() for name in clusters}
    fold_of = {name: n % FOLDS for n, name in enumerate(sorted(digests, key=digests.__getitem__))}
    return [fold_of[name] for name in clusters]
