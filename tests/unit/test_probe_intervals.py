"""Intervals of probes: known values, what happens where nothing varies, coverage by simulation."""

import random

import pytest

from adjudge.judge_evaluation.probes.probe import decide_verdict, mean_shift, standard_shift
from adjudge.stats import Estimate
from adjudge.stats.estimates import (
    bootstrap,
    estimate_largest_share,
    estimate_share,
    unseen_share_bound,
)


def test_wilson_interval_of_independent_trials() -> None:
    # 8 of 40, Wilson 1927: (p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 + z²/n)
    found = estimate_share([(1.0, 1.0)] * 8 + [(0.0, 1.0)] * 32)
    assert found.value == 0.2
    assert found.low == pytest.approx(0.1050, abs=2e-3)
    assert found.high == pytest.approx(0.3476, abs=2e-3)


@pytest.mark.parametrize(("p", "groups"), [(0.8, 8), (0.9, 10), (0.95, 20), (0.98, 40)])
@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
def test_a_share_of_groups_is_covered_however_alike_their_samples_are(
    p: float, groups: int, alike: float
) -> None:
    rng = random.Random(groups)

    def draw() -> tuple[float, float]:  # with chance ``alike`` a group's samples are one draw
        one = rng.random() < alike
        hits = sum(rng.random() < p for _ in range(1 if one else 8))
        return float(8 * hits if one else hits), 8.0

    found = [estimate_share([draw() for _ in range(groups)]) for _ in range(400)]
    covered = sum(one.low <= p <= one.high for one in found if one.low is not None and one.high)
    assert covered >= 0.91 * 400


def test_nothing_varied_is_no_certainty() -> None:
    found = bootstrap([(0.0, 1.0)] * 40, mean_shift)
    assert found == Estimate(0.0, -unseen_share_bound(40, 0.95), unseen_share_bound(40, 0.95))
    assert estimate_share([(0.0, 1.0)] * 40).low == 0.0


def test_no_interval_of_too_little() -> None:
    nothing = Estimate(why="no value")
    assert bootstrap([], mean_shift) == nothing
    assert bootstrap([(1.0, 1.0)], mean_shift) == Estimate(1.0, why="one item")
    assert estimate_share([]) == estimate_largest_share([[], []]) == nothing
    one_score = [(0.5, 1.0, 9.0, 27.0, 3.0)] * 20  # every clean score is 3
    assert bootstrap(one_score, standard_shift) == nothing


def test_the_largest_of_many_shares_is_held_to_a_stricter_level() -> None:
    rows = [(1.0, 1.0)] * 10 + [(0.0, 1.0)] * 30
    alone, looked_for = estimate_share(rows), estimate_largest_share([rows] * 9)
    assert looked_for.value == alone.value
    assert looked_for.high == alone.high
    assert looked_for.low is not None
    assert alone.low is not None
    assert looked_for.low < alone.low - 0.02


@pytest.mark.parametrize(
    ("low", "high", "two_sided", "verdict"),
    [
        (0.3, 0.5, False, "fail"),
        (0.1, 0.3, False, "uncertain"),
        (0.0, 0.2, False, "pass"),
        (-0.9, -0.5, False, "pass"),
        (-0.9, -0.5, True, "fail"),
        (-0.3, 0.1, True, "uncertain"),
        (-0.2, 0.2, True, "pass"),
    ],
)
def test_verdicts(low: float, high: float, two_sided: bool, verdict: str) -> None:
    found = Estimate((low + high) / 2, low, high)
    assert decide_verdict(found, 0.2, two_sided=two_sided) == verdict
