"""Means, correlations and comparisons over seeds, and how far their intervals can be believed."""

import math
import random
from collections.abc import Callable
from statistics import correlation

import pytest
from hypothesis import given, settings, strategies as st

from adjudge.stats import Estimate
from adjudge_lab.evaluation import summary
from adjudge_lab.evaluation.summary import (
    SeedScores,
    compare_seed_scores,
    estimate_mean,
    estimate_seed_correlation,
)

NUMBERS = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of data sets are simulated; a tenth of the resamples says the same of them."""
    monkeypatch.setattr(summary, "_resamples", lambda n: 400)


def of(values: list[float]) -> SeedScores:
    return dict(enumerate(values))


def covers(estimate: Estimate, true: float) -> bool:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= true <= estimate.high


@pytest.mark.parametrize(
    ("draw", "true"),
    [(lambda rng: rng.gauss(2, 3), 2.0), (lambda rng: float(rng.random() < 0.3), 0.3)],
    ids=["normal", "binary"],
)
def test_the_mean_is_in_its_interval_as_often_as_it_says(
    draw: Callable[[random.Random], float], true: float
) -> None:
    rng = random.Random(4)
    sets = [estimate_mean(of([draw(rng) for _ in range(25)]), seed=number) for number in range(300)]
    share = sum(covers(one, true) for one in sets) / len(sets)
    assert 0.91 <= share <= 0.985


def test_no_difference_is_found_about_one_time_in_twenty() -> None:
    rng = random.Random(6)
    found = 0
    for number in range(300):
        level = [rng.gauss(0, 5) for _ in range(25)]  # seeds differ far more than policies
        a, b = ([one + rng.gauss(0, 1) for one in level] for _ in range(2))
        p = compare_seed_scores(of(a), of(b), seed=number).p
        assert p is not None
        found += p < 0.05
    assert 0.02 <= found / 300 <= 0.09


def test_a_real_difference_is_found_by_pairs() -> None:
    rng = random.Random(7)
    level = [rng.gauss(0, 5) for _ in range(40)]
    a = of([one + 1 + rng.gauss(0, 0.5) for one in level])
    found = compare_seed_scores(a, of(level))
    assert found.p is not None
    assert found.p < 0.01
    assert found.difference.low is not None
    assert found.difference.low > 0


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=12))
def test_correlations_are_those_of_the_standard_library(pairs: list[tuple[float, float]]) -> None:
    xs, ys = (list(column) for column in zip(*pairs, strict=True))
    for ranks in (False, True):
        found = estimate_seed_correlation(of(xs), of(ys), ranks=ranks)
        if min(xs) == max(xs) or min(ys) == max(ys):
            assert found.value is None
            assert "does not vary" in found.why
        elif found.value is not None:
            expected = correlation(_ranks(xs), _ranks(ys)) if ranks else correlation(xs, ys)
            assert found.value == pytest.approx(expected, abs=1e-6)


def _ranks(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(one) + (ordered.count(one) + 1) / 2 for one in values]


def test_what_is_missing_counts_nowhere() -> None:
    found = estimate_seed_correlation(
        {1: 1.0, 2: None, 3: 3.0, 4: 2.0}, {1: 0.0, 2: 9.0, 3: 1.0, 4: None, 5: 7.0}
    )
    assert (found.value, found.n, found.why) == (None, 2, "fewer than 3 seeds")
    assert estimate_mean({1: None, 2: 4.0}).value == 4.0
    assert estimate_mean({1: None}).value is None


def test_where_no_interval_can_be_had_it_says_why() -> None:
    assert estimate_mean(of([1.0] * 9)) == Estimate(value=1.0, n=9, why="all seeds score the same")
    constant = estimate_seed_correlation(of([1.0, 2.0, 3.0]), of([5.0] * 3))
    assert (constant.value, constant.why) == (None, "the official score does not vary")
    assert (
        estimate_seed_correlation(of([5.0] * 3), of([1.0, 2.0, 3.0])).why
        == "the score does not vary"
    )
    line = estimate_seed_correlation(of([1.0, 2.0, 4.0]), of([-1.0, -2.0, -4.0]))
    assert (line.value, line.low, line.why) == (-1.0, None, "a perfect correlation")
    lone = estimate_seed_correlation(
        of([0.0] * 19 + [1.0]), of([random.Random(1).random() for _ in range(20)])
    )
    assert lone.value is None or (lone.low is None and lone.why == "too few seeds differ")
    same = compare_seed_scores(of([1.0] * 5), of([0.0] * 5))
    assert (same.difference.value, same.p, same.wins) == (1.0, None, 5)


def test_what_rounding_leaves_is_no_difference() -> None:
    a, b = of([0.1 + 0.2, 0.5, 0.3, 0.1 + 0.7]), of([0.3, 0.5, 0.1 + 0.2, 0.8])
    found = compare_seed_scores(a, b)
    assert (found.wins, found.ties, found.losses) == (0, 4, 0)
    assert (found.difference.value, found.p) == (0.0, None)
    noise, slope = of([0.3, 0.1 + 0.2, 0.3, 0.3]), of([1.0, 2.0, 3.0, 4.0])
    assert estimate_seed_correlation(noise, slope).why == "the score does not vary"
    assert estimate_seed_correlation(slope, noise).why == "the official score does not vary"


ANY = st.floats(-1e307, 1e307) | st.sampled_from([0.0, 0.1 + 0.2, 0.3])
DEGENERATE = st.dictionaries(st.integers(0, 9), st.none() | ANY, max_size=8)


@settings(max_examples=60)
@given(DEGENERATE, DEGENERATE)
def test_whatever_the_numbers_are_nothing_is_made_up(a: SeedScores, b: SeedScores) -> None:
    compared = compare_seed_scores(a, b)
    for found in (
        estimate_mean(a),
        estimate_seed_correlation(a, b),
        estimate_seed_correlation(a, b, ranks=True),
        compared.difference,
    ):
        numbers = [one for one in (found.low, found.value, found.high) if one is not None]
        assert all(map(math.isfinite, numbers))
        assert (found.low is None) == (found.high is None) == bool(found.why)
        assert found.low is None or found.high is None or found.low <= found.high
    assert compared.p is None or 0 < compared.p <= 1
    assert (compared.p is None) == (compared.difference.low is None)
