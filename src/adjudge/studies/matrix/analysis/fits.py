"""Reward against √KL: Gao's two forms by least squares, where they peak, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from adjudge.studies.matrix.analysis.bootstrap import Column, Estimate, Means, Resampling
from adjudge.studies.matrix.analysis.scores import NO_UNIT, change, ordered
from adjudge.studies.matrix.results import ArmResult

__all__ = ["Fits", "Form", "fit_arms", "fit_curves"]

Curve = Sequence[tuple[float, Column]]
"""Distances d and, by prompt, the change of the reward from d = 0."""

_FORMS = ("bon", "rl")
_LINEAR = (0, 1, 3, 4)
_SINGULAR = 1e-9
_FEWEST = 3
_FEW = f"fewer than {_FEWEST} distances above 0 with a score"
_SAME = "the distances are all the same"


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """One form. ``peak``: the distance of its maximum, ``None`` where it has none, and why.

    ``extrapolated``: the peak lies beyond the largest distance seen. ``at_peak``: the change of the
    reward there. ``r2``: 1 − residuals/deviations from the mean; below 0 for a fit that is worse
    than the mean.
    """

    alpha: Estimate
    beta: Estimate
    r2: float | None
    peak: Estimate
    extrapolated: bool | None
    at_peak: float | None


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """Both forms of one curve: ``bon`` d(α − β·d) and ``rl`` d(α − β·log d).

    ``better``: that with the larger R², ``None`` of equals. ``points``: pairs of seed and distance;
    ``at_zero``: checkpoints left out as their KL was estimated at 0 or less, or had no score;
    ``largest``: distance seen. Without ``forms``: ``why``.
    """

    forms: dict[str, Form] = {}
    better: str | None = None
    points: int = 0
    at_zero: int = 0
    largest: float | None = None
    seeds: int = 0
    why: str = ""


def fit_arms(
    arms: Sequence[ArmResult], scorer: str, unit: float | None, resampling: Resampling
) -> Fits:
    """Both forms of ``scorer`` over the checkpoints of arms that differ in the seed.

    The origin of each arm is its own step 0; changes are in ``unit``, the SD of the scorer.
    """
    if unit is None:
        return Fits(why=NO_UNIT)
    curves: dict[int, Curve] = {}
    left_out = 0
    for arm in arms:
        points = ordered(arm)
        if not points or points[0].step != 0:
            left_out += len(points)
            continue
        curve = []
        for point in points[1:]:
            moved = change(points[0], point, [scorer])
            if point.distance > 0 and math.isfinite(point.distance) and moved:
                column = {prompt: by / unit for prompt, (by,) in moved.items()}
                curve.append((point.distance, column))
            else:
                left_out += 1
        if curve:
            curves[arm.seed] = curve
    return msgspec.structs.replace(fit_curves(curves, resampling), at_zero=left_out)


def fit_curves(curves: Mapping[int, Curve], resampling: Resampling) -> Fits:
    """Both forms through the origin, linear in α and β: ordinary least squares over all points.

    R(d) − R(0) = d(α − β·d) for best-of-n and d(α − β·log d) for reinforcement learning (Gao et al.
    2022, arXiv 2210.10760, d = √KL), whose maxima are at α/2β and e^(α/β − 1) if β > 0. Intervals
    resample seeds and prompts, those of α and β know of few seeds by t as well, those of a peak do
    not and are rough; distances are taken as they are. Points of one curve depend on each
    other, so R² says how well a form follows the curve, not how sure it is.
    """
    distances = {seed: [d for d, _ in curve] for seed, curve in curves.items()}
    flat = [d for of in distances.values() for d in of]
    few = Fits(points=len(flat), seeds=len(curves), largest=max(flat, default=None))
    if len(flat) < _FEWEST:
        return msgspec.structs.replace(few, why=_FEW)
    bases = {
        form: {seed: [_basis(form, d) for d in of] for seed, of in distances.items()}
        for form in _FORMS
    }

    def statistic(seeds: Sequence[tuple[int, Means]]) -> list[float | None]:
        found: list[float | None] = []
        for form in _FORMS:
            pair = _least_squares([(bases[form][seed], means) for seed, means in seeds])
            found += [None] * 3 if pair is None else [*pair, _peak(form, *pair)]
        return found

    columns = {seed: [column for _, column in curve] for seed, curve in curves.items()}
    numbers = resampling.averages(columns, statistic, _LINEAR)
    if numbers[0].value is None and numbers[3].value is None:
        return msgspec.structs.replace(few, why=_SAME)
    seen = [
        (d, math.fsum(column.values()) / len(column))
        for curve in curves.values()
        for d, column in curve
    ]
    forms = {
        form: _form(form, numbers[3 * place : 3 * place + 3], seen)
        for place, form in enumerate(_FORMS)
    }
    return msgspec.structs.replace(few, forms=forms, better=_better(forms))


def _basis(form: str, d: float) -> tuple[float, float]:
    return d, -d * (d if form == "bon" else math.log(d))


def _least_squares(
    seeds: Sequence[tuple[Sequence[tuple[float, float]], Means]],
) -> tuple[float, float] | None:
    """α and β of y = α·f + β·g by the normal equations; ``None`` where f and g are parallel."""
    ff = fg = gg = fy = gy = 0.0
    for basis, means in seeds:
        for (f, g), y in zip(basis, means, strict=True):
            if y is not None:
                ff += f * f
                fg += f * g
                gg += g * g
                fy += f * y
                gy += g * y
    determinant = ff * gg - fg * fg
    if determinant <= _SINGULAR * ff * gg:
        return None
    return (gg * fy - fg * gy) / determinant, (ff * gy - fg * fy) / determinant


def _peak(form: str, alpha: float, beta: float) -> float | None:
    if beta <= 0 or (form == "bon" and alpha <= 0):
        return None
    if form == "bon":
        return alpha / (2 * beta)
    exponent = alpha / beta - 1
    return math.exp(exponent) if exponent < 700 else None


def _form(form: str, numbers: Sequence[Estimate], seen: Sequence[tuple[float, float]]) -> Form:
    alpha, beta, peak = numbers
    if alpha.value is None or beta.value is None:
        missing = Estimate(why=_SAME)
        return Form(
            alpha=missing, beta=missing, r2=None, peak=missing, extrapolated=None, at_peak=None
        )
    at_peak = None
    if peak.value is None:
        why = "β is not above 0: no maximum" if beta.value <= 0 else "it falls from the start"
        peak = Estimate(why=why if form == "bon" or beta.value <= 0 else "beyond all numbers")
    else:
        at_peak = _value(form, peak.value, alpha.value, beta.value)
    return Form(
        alpha=alpha,
        beta=beta,
        r2=_r_squared([(_value(form, d, alpha.value, beta.value), y) for d, y in seen]),
        peak=peak,
        extrapolated=None if peak.value is None else peak.value > max(d for d, _ in seen),
        at_peak=at_peak if at_peak is not None and math.isfinite(at_peak) else None,
    )


def _value(form: str, d: float, alpha: float, beta: float) -> float:
    f, g = _basis(form, d)
    return alpha * f + beta * g


def _r_squared(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Of (fitted, seen); ``None`` where what was seen does not vary."""
    middle = math.fsum(y for _, y in pairs) / len(pairs)
    around = math.fsum((y - middle) ** 2 for _, y in pairs)
    if around <= 1e-24 * math.fsum(y * y for _, y in pairs) or around == 0:
        return None
    return 1 - math.fsum((y - fitted) ** 2 for fitted, y in pairs) / around


def _better(forms: Mapping[str, Form]) -> str | None:
    r2 = {name: form.r2 for name, form in forms.items() if form.r2 is not None}
    if len(r2) < len(_FORMS) or r2["bon"] == r2["rl"]:
        return None
    return max(r2, key=lambda name: r2[name])
