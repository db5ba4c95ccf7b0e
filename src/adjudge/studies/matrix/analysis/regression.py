"""Least squares over the means of judges, with an intercept and Student's t."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from adjudge.runs.student import t_quantile
from adjudge.studies.matrix.analysis.bootstrap import LEVEL, NOTHING_VARIED, Estimate

__all__ = ["INTERCEPT", "Observation", "Regression", "regress"]

INTERCEPT = "intercept"
_SINGULAR = 1e-10
_SAME = "it does not vary"


class Observation(msgspec.Struct, frozen=True):
    """An arm: its judge, what describes the judge, and what came out."""

    judge: str
    inputs: Mapping[str, float]
    outcome: float


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """``coefficients``: change of the outcome a unit of each input, and the intercept.

    ``None`` where an input does not vary. ``r2``: of the judges' means. ``arms`` and ``judges``
    entered. Refused: without coefficients, with ``why``.
    """

    coefficients: dict[str, Estimate] = {}
    r2: float | None = None
    arms: int = 0
    judges: int = 0
    why: str = ""


def regress(observations: Sequence[Observation], inputs: Sequence[str]) -> Regression:
    """Regress outcomes on ``inputs`` with an intercept; arms of one judge are one observation.

    What an input says is the same for all arms of a judge, so judges are the units: ordinary least
    squares over their means, with t of judges − coefficients degrees of freedom (Donald and Lang
    2007, Review of Economics and Statistics 89). Refused with fewer arms than coefficients + 2,
    with fewer judges than coefficients, where no input varies, and where one follows from others.
    """
    judges = _judges(observations, inputs)
    varying = [name for k, name in enumerate(inputs) if len({x[k] for x, _ in judges}) > 1]
    size = len(varying) + 1
    base = Regression(arms=len(observations), judges=len(judges))
    if not varying:
        return msgspec.structs.replace(base, why=f"{', '.join(inputs) or 'no input'}: {_SAME}")
    if len(observations) < size + 2 or len(judges) < size:
        why = (
            f"{len(observations)} arms of {len(judges)} judges are too few for {size} "
            f"coefficients: {size + 2} arms and {size} judges are needed"
        )
        return msgspec.structs.replace(base, why=why)
    places = [inputs.index(name) for name in varying]
    solved = _solve([([x[k] for k in places], y) for x, y in judges])
    if solved is None:
        return msgspec.structs.replace(base, why=f"{', '.join(varying)} follow from each other")
    estimates, r2 = solved
    found = dict(zip([INTERCEPT, *varying], estimates, strict=True))
    for name in inputs:
        found.setdefault(name, Estimate(why=_SAME))
    return msgspec.structs.replace(base, coefficients=found, r2=r2)


def _judges(
    observations: Sequence[Observation], inputs: Sequence[str]
) -> list[tuple[list[float], float]]:
    """Inputs and mean outcome of each judge."""
    by_judge: dict[str, list[Observation]] = {}
    for one in observations:
        by_judge.setdefault(one.judge, []).append(one)
    return [
        (
            [of[0].inputs[name] for name in inputs],
            math.fsum(one.outcome for one in of) / len(of),
        )
        for of in by_judge.values()
    ]


def _solve(
    rows: Sequence[tuple[Sequence[float], float]],
) -> tuple[list[Estimate], float | None] | None:
    """Intercept and slopes with intervals, and R²; ``None`` where the inputs are collinear."""
    n, width = len(rows), len(rows[0][0])
    middles = [math.fsum(x[k] for x, _ in rows) / n for k in range(width)]
    scales = [max(abs(x[k] - middles[k]) for x, _ in rows) for k in range(width)]
    centred = [[(x[k] - middles[k]) / scales[k] for k in range(width)] for x, _ in rows]
    mean = math.fsum(y for _, y in rows) / n
    outcomes = [y - mean for _, y in rows]
    inverse = _inverse(
        [[math.fsum(x[i] * x[j] for x in centred) for j in range(width)] for i in range(width)]
    )
    if inverse is None:
        return None
    products = [
        math.fsum(x[k] * y for x, y in zip(centred, outcomes, strict=True)) for k in range(width)
    ]
    slopes = [_dot(row, products) for row in inverse]
    left = math.fsum((y - _dot(slopes, x)) ** 2 for x, y in zip(centred, outcomes, strict=True))
    around = math.fsum(y * y for y in outcomes)
    shift = [middle / scale for middle, scale in zip(middles, scales, strict=True)]
    factors = [1 / n + _dot(shift, [_dot(row, shift) for row in inverse])]
    factors += [inverse[k][k] / scales[k] ** 2 for k in range(width)]
    values = [mean - _dot(slopes, shift), *(s / c for s, c in zip(slopes, scales, strict=True))]
    freedom = n - width - 1
    exact = left <= 1e-20 * max(around, mean * mean)
    return (
        [
            _estimate(value, factor * left, freedom, exact=exact)
            for value, factor in zip(values, factors, strict=True)
        ],
        1 - left / around if around > 1e-20 * mean * mean else None,
    )


def _estimate(value: float, square: float, freedom: int, *, exact: bool) -> Estimate:
    """``square``: the sum of squared residuals times the coefficient's factor."""
    if freedom < 1:
        return Estimate(value, why="as many coefficients as judges")
    if exact:
        return Estimate(value, why=NOTHING_VARIED)
    half = t_quantile((1 + LEVEL) / 2, freedom) * math.sqrt(square / freedom)
    return Estimate(value, value - half, value + half)


def _dot(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def _inverse(matrix: list[list[float]]) -> list[list[float]] | None:
    """By Gauss and Jordan; ``None`` where a row hardly differs from a mix of those before it.

    The matrix is symmetric and positive, so pivots are taken as they come.
    """
    size = len(matrix)
    table = [row + [float(i == k) for k in range(size)] for i, row in enumerate(matrix)]
    for k in range(size):
        pivot = table[k][k]
        if pivot <= _SINGULAR * matrix[k][k]:
            return None
        table[k] = [one / pivot for one in table[k]]
        for row in range(size):
            if row != k:
                factor = table[row][k]
                table[row] = [
                    one - factor * other for one, other in zip(table[row], table[k], strict=True)
                ]
    return [row[size:] for row in table]
