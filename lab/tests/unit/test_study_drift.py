"""Slopes over an axis of judges, and how features of the policies' answers move."""

from collections.abc import Sequence

import pytest
from lab.tests.unit.helpers.made_study import bare_arm

from adjudge_lab.statistics import Observation, estimate_slope
from adjudge_lab.studies.comparisons import measure_feature_curves
from adjudge_lab.studies.results import ArmResult, CheckpointResult, StudyResult


def points(judges: Sequence[tuple[float, float]], seeds: int = 3) -> list[Observation]:
    return [
        Observation(f"j{k}", x, y + noise)
        for k, (x, y) in enumerate(judges)
        for noise in [-0.1, 0.0, 0.1][:seeds]
    ]


def test_a_slope_by_hand() -> None:
    # Sxy = 11, Sxx = 5; residuals of 4 − 2 degrees of freedom.
    judges = [(0, 1), (1, 3), (2, 4), (3, 8)]
    slope = estimate_slope(points(judges))
    left = sum((y - (0.7 + 2.2 * x)) ** 2 for x, y in judges)
    half = 4.30265 * (left / 2 / 5) ** 0.5
    assert (slope.value, slope.low, slope.high) == pytest.approx(
        (2.2, 2.2 - half, 2.2 + half), abs=1e-4
    )


def test_refusals_say_why() -> None:
    assert "2 arms of 2 judges are too few" in estimate_slope(points([(0, 1), (1, 3)], 1)).why
    assert "does not vary" in estimate_slope(points([(1, 1), (1, 3)])).why
    for judges in ([(0, 1), (1, 3)], [(0, 1), (1, 3), (2, 5)]):  # without residuals
        exact = estimate_slope(points(judges, seeds=2))
        assert exact.value == pytest.approx(2)
        assert exact.low is None
        assert exact.why


def arm(seed: int, words: Sequence[float]) -> ArmResult:
    points = [
        CheckpointResult(step=at, kl=0.0, scores={}, prompts=[], features={"words": value})
        for at, value in enumerate(words)
    ]
    return bare_arm(points, "j", seed, "none")


def test_features_over_steps() -> None:
    arms = [arm(seed, [10 + seed, 20 + 2 * seed]) for seed in range(3)]
    (found,) = measure_feature_curves(StudyResult(gold="gold", judges={}, arms=arms, best_of=[]))
    assert [(point.step, point.seeds, point.mean.value) for point in found.points] == [
        (0, 3, 11.0),
        (1, 3, 22.0),
    ]
    assert found.points[1].mean.high == pytest.approx(22 + 4.30265 * 2 / 3**0.5, abs=1e-4)
    assert found.change.value == 11.0
