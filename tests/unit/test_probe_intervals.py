"""Intervals of probes: known values, what happens where nothing varies, coverage by simulation."""

import math
import random
from statistics import fmean

import pytest

from adjudge.judge_evaluation.probes.probe import (
    POWER,
    Measurement,
    decide_verdict,
    detectable_effect,
    estimate_effect,
    mean_shift,
    standard_shift,
)
from adjudge.stats import Estimate
from adjudge.stats.bootstrap import bootstrap
from adjudge.stats.estimates import estimate_largest_share, estimate_share, unseen_share_bound


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


def test_bootstrap_covers_the_mean() -> None:
    rng = random.Random(3)
    covered = 0
    for run in range(150):
        rows = [(rng.expovariate(1.0), 1.0) for _ in range(40)]
        found = bootstrap(rows, mean_shift, resamples=400, seed=run)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert covered >= 132  # 88 %: skewed data, few resamples; 78 % would be a plain mistake


def test_the_same_seed_gives_the_same_interval() -> None:
    rows = [(math.sin(i), 1.0) for i in range(30)]
    assert bootstrap(rows, mean_shift, seed=5) == bootstrap(rows, mean_shift, seed=5)
    assert bootstrap(rows, mean_shift, seed=5) != bootstrap(rows, mean_shift, seed=6)


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


def test_the_detectable_effect_of_a_mean() -> None:
    measured = Measurement("net preference", [(0.0, 1.0)] * 40, mean_shift)
    found = detectable_effect(measured, Estimate(0.05, -0.05, 0.15), 0.25)
    assert found == pytest.approx(0.25 + 0.1 * (1 + 1.2816 / 1.9600), abs=1e-4)
    assert detectable_effect(measured, Estimate(0.1, -0.5, 0.7), 0.25) is None  # beyond 1
    assert detectable_effect(measured, Estimate(0.1), 0.25) is None
    few = Measurement("net preference", [(0.0, 1.0)] * 7, mean_shift)
    assert detectable_effect(few, Estimate(0.05, -0.05, 0.15), 0.25) is None


@pytest.mark.parametrize(("limit", "n"), [(0.1, 40), (0.25, 40), (0.5, 40), (0.02, 840)])
def test_a_judge_with_the_detectable_share_fails_with_the_stated_power(
    limit: float, n: int
) -> None:
    clean = Measurement("share", shares={"one": [(0.0, 1.0)] * n})
    share = detectable_effect(clean, estimate_share(clean.shares["one"]), limit)
    assert share is not None
    rng, runs = random.Random(1), 400
    failed = 0
    for _ in range(runs):
        rows = [(float(rng.random() < share), 1.0) for _ in range(n)]
        failed += decide_verdict(estimate_share(rows), limit) == "fail"
    assert failed / runs == pytest.approx(POWER, abs=0.06)  # hits are whole numbers


def test_a_judge_with_the_detectable_shift_fails_with_the_stated_power() -> None:
    rng, runs, limit = random.Random(2), 200, 0.25
    detectable, failed = [], 0
    for _ in range(runs):
        rows = [(rng.gauss(0.0, 0.4), 1.0) for _ in range(40)]
        measured = Measurement("SD of scores", rows, mean_shift)
        found = estimate_effect(measured, level=0.95, resamples=400, seed=0)
        detectable.append(detectable_effect(measured, found, limit) or math.nan)
        moved = [(shift + 0.25 + 0.0633 * (2.05 + 1.2816), one) for shift, one in rows]
        again = estimate_effect(
            Measurement("SD of scores", moved, mean_shift), level=0.95, resamples=400, seed=0
        )
        failed += decide_verdict(again, limit) == "fail"
    # 0.4/√40 = 0.0633 is the standard error, 2.05 the intervals' half width in it.
    assert fmean(detectable) == pytest.approx(0.25 + 0.0633 * (2.05 + 1.2816), rel=0.03)
    assert failed / runs == pytest.approx(POWER, abs=0.06)


def test_without_an_interval_nothing_is_decided() -> None:
    assert decide_verdict(Estimate(5.0), 0.2) == "uncertain"
