"""Isotonic fits are the best rising ones; a known temperature comes back; order means nothing."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adjudge.stats import sigmoid
from adjudge.stats.predictions import IsotonicFit
from adjudge_lab.judge_training.calibration import (
    MIN_CALIBRATION_PAIRS,
    calibrate_scores,
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


def squares(points: list[tuple[float, float]], values: dict[float, float]) -> float:
    return math.fsum((y - values[x]) ** 2 for x, y in points)


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


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=4))
def test_no_rising_function_on_a_grid_is_closer(ys: list[float]) -> None:
    points = [(float(x), y) for x, y in enumerate(ys)]
    fit = fit_isotonic(points)
    ours = squares(points, {x: fit(x) for x, _ in points})
    grid = [step / 6 for step in range(13)]
    for values in itertools.combinations_with_replacement(grid, len(points)):
        assert ours <= squares(points, dict(enumerate(values))) + 1e-9


@given(POINTS, st.randoms(use_true_random=False))
def test_the_order_of_points_means_nothing(
    points: list[tuple[float, float]], rng: random.Random
) -> None:
    assert fit_isotonic(rng.sample(points, len(points))) == fit_isotonic(points)


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


def loss(differences: list[float], beta: float) -> float:
    return -math.fsum(
        beta * d - math.log1p(math.exp(beta * d))
        if beta * d < 0
        else -math.log1p(math.exp(-beta * d))
        for d in differences
    )


@given(DIFFERENCES)
def test_no_other_temperature_is_better(differences: list[float]) -> None:
    found = fit_temperature(differences)
    if isinstance(found, str):
        positive = math.fsum(differences) > 0
        assert min(differences) >= 0 or not positive
        return
    best = loss(differences, 1 / found)
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2.0):
        assert best <= loss(differences, factor / found) + 1e-9 * (1 + best)


@given(DIFFERENCES, st.floats(0.1, 10))
def test_a_temperature_is_in_the_units_of_the_outputs(
    differences: list[float], factor: float
) -> None:
    found = fit_temperature(differences)
    scaled = fit_temperature([factor * d for d in differences])
    if isinstance(found, float) and isinstance(scaled, float):
        assert scaled == pytest.approx(factor * found, rel=1e-6)


@given(DIFFERENCES)
def test_the_probability_of_a_distance_is_never_below_a_half(differences: list[float]) -> None:
    fit = fit_isotonic_gaps(differences)
    if isinstance(fit, str):
        assert not any(differences)
        return
    assert isinstance(fit, IsotonicFit)
    assert fit(0.0) == 0.5
    assert 0.5 <= fit(1e9) <= 1 - 1 / (len(differences) + 2)


@given(DIFFERENCES, st.randoms(use_true_random=False))
def test_the_order_of_pairs_means_nothing(differences: list[float], rng: random.Random) -> None:
    pairs = [(d, 0.0) for d in differences]
    prompts = [f"prompt {place % 9}" for place in range(len(pairs))]
    order = rng.sample(range(len(pairs)), len(pairs))
    plain = calibrate_scores(pairs, prompts)
    turned = calibrate_scores(
        [pairs[place] for place in order], [prompts[place] for place in order]
    )
    assert turned.temperature == plain.temperature
    assert turned.isotonic == plain.isotonic
    assert turned.missing == plain.missing
    for name in ("as_is", "with_temperature", "with_isotonic"):
        one, other = getattr(plain, name), getattr(turned, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert other.log_loss == pytest.approx(one.log_loss, abs=1e-9)
            assert other.brier == pytest.approx(one.brier, abs=1e-9)
