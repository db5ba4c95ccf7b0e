"""Isotonic fits are the best rising ones; a known temperature comes back; order means nothing."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings, strategies as st

from adjudge.stats import sigmoid
from adjudge.stats.predictions import IsotonicFit
from adjudge_lab.judge_training.calibration import (
    MIN_CALIBRATION_PAIRS,
    fit_isotonic,
    fit_isotonic_gaps,
    fit_temperature,
)

pytestmark = pytest.mark.slow  # many examples

PLACES = st.integers(-5, 5).map(float)
POINTS = st.lists(st.tuples(PLACES, st.sampled_from([0.0, 0.5, 1.0, 4.0])), min_size=1, max_size=40)
DIFFERENCES = st.lists(
    st.floats(-50, 50).map(lambda d: round(d, 3)), min_size=MIN_CALIBRATION_PAIRS, max_size=60
)


def best_rising(points: list[tuple[float, float]]) -> dict[float, float]:
    """Max-min formula of Robertson, Wright and Dykstra (1988, 1.4.4): the fit at every x."""
    xs = sorted({x for x, _ in points})

    def mean(low: float, high: float) -> float:
        inside = [y for x, y in points if low <= x <= high]
        return math.fsum(inside) / len(inside)

    return {
        x: max(min(mean(low, high) for high in xs if high >= x) for low in xs if low <= x)
        for x in xs
    }


@given(POINTS, st.lists(PLACES, max_size=20))
def test_the_fit_rises_everywhere(points: list[tuple[float, float]], more: list[float]) -> None:
    fit = fit_isotonic(points)
    assert list(fit.at) == sorted(set(fit.at))
    values = [fit(x) for x in sorted([*fit.at, *more, -99.0, 99.0])]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values))
    assert min(y for _, y in points) <= values[0]
    assert values[-1] <= max(y for _, y in points)


@given(POINTS)
def test_the_fit_is_the_least_squares_one(points: list[tuple[float, float]]) -> None:
    fit, expected = fit_isotonic(points), best_rising(points)
    for x, value in expected.items():
        assert fit(x) == pytest.approx(value, abs=1e-9)


def simulated(n: int, temperature: float, seed: int) -> list[float]:
    """Differences of outputs that are right with probability σ(``|Δ|``/T)."""
    rng = random.Random(seed)
    gaps = [abs(rng.gauss(0, 3 * temperature)) for _ in range(n)]
    return [gap if rng.random() < sigmoid(gap / temperature) else -gap for gap in gaps]


@settings(max_examples=25)
@given(st.floats(0.05, 50), st.integers(0, 10**6))
def test_a_known_temperature_comes_back(temperature: float, seed: int) -> None:
    differences = simulated(1000, temperature, seed)
    found = fit_temperature(differences)
    assert isinstance(found, float)
    # Five standard errors of 1/T, whose information is Σ Δ²·p·(1 − p).
    terms = (d * d * sigmoid(d / temperature) * sigmoid(-d / temperature) for d in differences)
    error = 1 / math.sqrt(math.fsum(terms))
    assert abs(1 / found - 1 / temperature) < 5 * error


@given(DIFFERENCES)
def test_the_probability_of_a_distance_is_never_below_a_half(differences: list[float]) -> None:
    fit = fit_isotonic_gaps(differences)
    if isinstance(fit, str):
        assert not any(differences)
        return
    assert isinstance(fit, IsotonicFit)
    assert fit(0.0) == 0.5
    assert 0.5 <= fit(1e9) <= 1 - 1 / (len(differences) + 2)
