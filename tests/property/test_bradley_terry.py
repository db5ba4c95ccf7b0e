"""Bradley-Terry: known strengths come back, nobody is favoured, perfect records stay finite."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.graders.llm.tournament import fit_bradley_terry

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
priors = st.sampled_from([0.001, 0.1, 1.0])


def centred(values: list[float]) -> list[float]:
    return [value - math.fsum(values) / len(values) for value in values]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@given(strengths)
def test_expected_results_give_back_the_strengths(theta: list[float]) -> None:
    players = itertools.permutations(range(len(theta)), 2)
    expected = {(i, j): 1e6 * sigmoid(theta[i] - theta[j]) for i, j in players}
    found = fit_bradley_terry(expected, len(theta), prior=1e-3)
    assert found.strengths == pytest.approx(centred(theta), abs=1e-4)


def test_errors_are_those_of_repeated_tournaments() -> None:
    theta, rng, games = centred([0.0, 0.5, 1.0, -0.5]), random.Random(1), 60
    runs = []
    for _ in range(300):
        won: Wins = {}
        for i, j in itertools.combinations(range(4), 2):
            count = sum(rng.random() < sigmoid(theta[i] - theta[j]) for _ in range(games))
            won[i, j], won[j, i] = count, games - count
        runs.append(fit_bradley_terry(won, 4, prior=0.01))
    for player in range(4):
        found = [run.strengths[player] for run in runs]
        mean = math.fsum(found) / len(found)
        spread = math.sqrt(math.fsum((one - mean) ** 2 for one in found) / (len(found) - 1))
        assert mean == pytest.approx(theta[player], abs=0.05)
        assert runs[0].errors[player] == pytest.approx(spread, rel=0.2)


@given(wins, sizes, priors)
def test_the_slope_is_zero_at_the_strengths(won: Wins, n: int, prior: float) -> None:
    theta = fit_bradley_terry(won, n, prior=prior).strengths
    assert all(map(math.isfinite, theta))
    assert math.fsum(theta) == pytest.approx(0, abs=1e-9)
    shift = _shift(theta)
    for i in range(n):
        slope = prior - 2 * prior * sigmoid(theta[i] + shift)
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


@given(wins, sizes, st.randoms(use_true_random=False))
def test_players_may_be_numbered_in_any_order(won: Wins, n: int, rng: random.Random) -> None:
    number = list(range(n))
    rng.shuffle(number)
    renamed = {(number[i], number[j]): count for (i, j), count in won.items()}
    here, there = fit_bradley_terry(won, n), fit_bradley_terry(renamed, n)
    assert [there.strengths[number[i]] for i in range(n)] == pytest.approx(here.strengths, abs=1e-8)
    assert [there.errors[number[i]] for i in range(n)] == pytest.approx(here.errors, rel=1e-6)


@given(wins, sizes)
def test_reversed_results_reverse_the_strengths(won: Wins, n: int) -> None:
    reversed_ = {(j, i): count for (i, j), count in won.items()}
    here, there = fit_bradley_terry(won, n), fit_bradley_terry(reversed_, n)
    assert there.strengths == pytest.approx([-one for one in here.strengths], abs=1e-8)
    assert there.errors == pytest.approx(here.errors, rel=1e-6)


@given(st.integers(2, 7), st.data())
def test_in_a_full_tournament_more_wins_mean_more_strength(n: int, data: st.DataObject) -> None:
    won: Wins = {}
    for i, j in itertools.combinations(range(n), 2):
        won[i, j] = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
        won[j, i] = 1 - won[i, j]
    total = [math.fsum(won.get((i, j), 0.0) for j in range(n)) for i in range(n)]
    theta = fit_bradley_terry(won, n).strengths
    for i, j in itertools.combinations(range(n), 2):
        if total[i] == total[j]:
            assert theta[i] == pytest.approx(theta[j], abs=1e-10)
        else:
            assert (theta[i] > theta[j]) == (total[i] > total[j])


@pytest.mark.parametrize("n", [2, 8, 64])
@pytest.mark.parametrize("prior", [0.001, 0.1, 10])
def test_perfect_records_stay_finite_and_in_order(n: int, prior: float) -> None:
    found = fit_bradley_terry({(i, j): 1.0 for i in range(n) for j in range(i)}, n, prior=prior)
    assert all(map(math.isfinite, (*found.strengths, *found.errors)))
    assert found.strengths == sorted(found.strengths)


def test_without_games_all_are_equal() -> None:
    assert fit_bradley_terry({}, 3).strengths == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("prior", [0.0, -1.0, math.inf, math.nan])
def test_a_prior_is_positive(prior: float) -> None:
    with pytest.raises(ValueError, match="prior"):
        fit_bradley_terry({}, 2, prior=prior)
