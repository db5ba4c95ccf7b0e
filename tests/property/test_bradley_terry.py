"""Bradley-Terry: known strengths come back, nobody is favoured, perfect records stay finite."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, strategies as st

from adjudge.graders.llm.ranking import fit_bradley_terry

Wins = dict[tuple[int, int], float]
strengths = st.lists(st.floats(-3, 3), min_size=2, max_size=7)
sizes = st.shared(st.integers(2, 7), key="n")
wins = sizes.flatmap(
    lambda n: st.dictionaries(
        st.sampled_from(list(itertools.permutations(range(n), 2))),
        st.sampled_from([0.5, 1.0, 2.0, 30.0]),
        max_size=n * n,
    )
)


def centred(values: list[float]) -> list[float]:
    return [value - math.fsum(values) / len(values) for value in values]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@given(wins, sizes)
def test_expected_wins_are_the_observed_ones(won: Wins, n: int) -> None:
    theta = fit_bradley_terry(won, n)
    assert all(map(math.isfinite, theta))
    assert math.fsum(theta) == pytest.approx(0, abs=1e-9)
    shift = _shift(theta)
    for i in range(n):
        slope = 0.1 - 2 * 0.1 * sigmoid(theta[i] + shift)
        for (a, b), count in won.items():
            chance = sigmoid(theta[a] - theta[b])
            slope += count * (1 - chance) * ((a == i) - (b == i))
        assert slope == pytest.approx(0, abs=1e-6)


def _shift(theta: list[float]) -> float:
    """How far all must move for as many wins as losses against the opponent of strength 0."""
    low, high = -100.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        above = math.fsum(sigmoid(one + middle) for one in theta) > len(theta) / 2
        low, high = (low, middle) if above else (middle, high)
    return low


@given(wins, sizes)
def test_reversed_results_reverse_the_strengths(won: Wins, n: int) -> None:
    reversed_ = {(j, i): count for (i, j), count in won.items()}
    here, there = fit_bradley_terry(won, n), fit_bradley_terry(reversed_, n)
    assert there == pytest.approx([-one for one in here], abs=1e-8)


@pytest.mark.parametrize("n", [2, 8, 64])
def test_perfect_records_stay_finite_and_in_order(n: int) -> None:
    found = fit_bradley_terry({(i, j): 1.0 for i in range(n) for j in range(i)}, n)
    assert all(map(math.isfinite, found))
    assert found == sorted(found)
