"""Strengths from paired comparisons: the Bradley-Terry model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import starmap
from operator import mul
from typing import NamedTuple

__all__ = ["Strengths", "bradley_terry"]

_CLOSE = 1e-12
_MOST_STEPS = 100


class Strengths(NamedTuple):
    """``strengths``: logits with mean 0; ``errors``: their standard errors."""

    strengths: list[float]
    errors: list[float]


def bradley_terry(
    wins: Mapping[tuple[int, int], float], n: int, *, prior: float = 0.1
) -> Strengths:
    """Strengths θ of ``n`` players with P(i beats j) = σ(θᵢ − θⱼ).

    ``wins[i, j]`` ≥ 0: how often i beat j; a tie is half a win for each. Every player besides has
    ``prior`` wins and as many losses against an opponent of strength 0, so that θ is finite and
    unique for perfect records and unconnected players too; the smaller ``prior``, the closer to
    maximum likelihood. It favours nobody: all results reversed give −θ.

    Maximised is Σ wᵢⱼ·log σ(θᵢ − θⱼ), the model of Bradley and Terry (1952) in the form of Hunter
    (2004, "MM algorithms for generalized Bradley-Terry models", Annals of Statistics 32), here by
    Newton's method with step halving, which converges from anywhere as the function is strictly
    concave. Standard errors are those of the centred strengths, from the inverse of its curvature.
    Time grows with n³. Raises ``ValueError`` for a ``prior`` that is not positive.

    >>> fit = bradley_terry({(0, 1): 3, (1, 0): 1}, 2, prior=1e-9)
    >>> round(fit.strengths[0] - fit.strengths[1], 6) == round(math.log(3), 6)
    True
    """
    if not 0 < prior < math.inf:
        raise ValueError(f"prior must be positive and finite, got {prior!r}")
    games = _Games(wins, n, prior)
    theta = [0.0] * n
    value = games.value(theta)
    for _ in range(_MOST_STEPS):
        step = _solve(_cholesky(games.curvature(theta)), games.slope(theta))
        theta, value = games.improved(theta, step, value)
        if max(map(abs, step), default=0.0) < _CLOSE:
            break
    mean = math.fsum(theta) / n if n else 0.0
    return Strengths([one - mean for one in theta], _errors(games.curvature(theta)))


class _Games:
    """What was played: wins by player, and games by pair."""

    def __init__(self, wins: Mapping[tuple[int, int], float], n: int, prior: float) -> None:
        self.n, self.prior = n, prior
        self.won = [prior] * n
        self.played: dict[tuple[int, int], float] = {}
        for (i, j), count in wins.items():
            self.won[i] += count
            pair = (i, j) if i < j else (j, i)
            self.played[pair] = self.played.get(pair, 0.0) + count

    def value(self, theta: list[float]) -> float:
        """The log-likelihood."""
        won = math.fsum(map(mul, self.won, theta))
        lost = math.fsum(m * _log_sum(theta[i], theta[j]) for (i, j), m in self.played.items())
        return won - lost - math.fsum(2 * self.prior * _log_sum(one, 0.0) for one in theta)

    def slope(self, theta: list[float]) -> list[float]:
        """Wins above expectation, by player."""
        slope = [w - 2 * self.prior * _sigmoid(t) for w, t in zip(self.won, theta, strict=True)]
        for (i, j), m in self.played.items():
            expected = m * _sigmoid(theta[i] - theta[j])
            slope[i] -= expected
            slope[j] -= m - expected
        return slope

    def curvature(self, theta: list[float]) -> list[list[float]]:
        """The negative second derivatives: a positive definite matrix."""
        matrix = [[0.0] * self.n for _ in range(self.n)]
        for i, one in enumerate(theta):
            matrix[i][i] = 2 * self.prior * _variance(one)
        for (i, j), m in self.played.items():
            weight = m * _variance(theta[i] - theta[j])
            matrix[i][i] += weight
            matrix[j][j] += weight
            matrix[i][j] -= weight
            matrix[j][i] -= weight
        return matrix

    def improved(
        self, theta: list[float], step: list[float], value: float
    ) -> tuple[list[float], float]:
        """``theta`` after as much of ``step`` as does not lower the likelihood."""
        scale = 1.0
        while scale > _CLOSE:
            tried = [t + scale * s for t, s in zip(theta, step, strict=True)]
            new = self.value(tried)
            if new >= value - 1e-12 * abs(value):
                return tried, new
            scale /= 2
        return theta, value


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _variance(x: float) -> float:
    p = _sigmoid(-abs(x))
    return p * (1 - p)


def _log_sum(x: float, y: float) -> float:
    """log(eˣ + eʸ)."""
    return max(x, y) + math.log1p(math.exp(-abs(x - y)))


def _cholesky(matrix: list[list[float]]) -> list[list[float]]:
    """The lower triangle L of a positive definite matrix with L·Lᵀ = matrix."""
    rows: list[list[float]] = []
    for i, given in enumerate(matrix):
        row: list[float] = []
        for j in range(i):
            rest = given[j] - sum(map(mul, row, rows[j]))
            row.append(rest / rows[j][j])
        row.append(math.sqrt(given[i] - sum(starmap(mul, zip(row, row, strict=True)))))
        rows.append(row)
    return rows


def _solve(lower: list[list[float]], right: list[float]) -> list[float]:
    """The x with L·Lᵀ·x = right."""
    half: list[float] = []
    for row, value in zip(lower, right, strict=True):
        half.append((value - sum(map(mul, row, half))) / row[-1])
    found = [0.0] * len(half)
    for i in range(len(half) - 1, -1, -1):
        found[i] = half[i] / lower[i][i]
        for j in range(i):
            half[j] -= lower[i][j] * found[i]
    return found


def _errors(curvature: list[list[float]]) -> list[float]:
    """Standard errors after centring: the diagonal of P·C⁻¹·P with P = 1 − 1/n."""
    n = len(curvature)
    lower = _cholesky(curvature)
    columns = [_solve(lower, [float(i == j) for j in range(n)]) for i in range(n)]
    means = [math.fsum(column) / n for column in columns]
    grand = math.fsum(means) / n if n else 0.0
    return [math.sqrt(max(0.0, columns[i][i] - 2 * means[i] + grand)) for i in range(n)]
