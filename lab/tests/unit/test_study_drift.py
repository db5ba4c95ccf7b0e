"""Regression of the policies' drift on the judges' dials, and how features move."""

from collections.abc import Sequence

import msgspec
import pytest
from lab.tests.unit.helpers.made_study import bare_arm

from adjudge_lab.statistics import INTERCEPT, Observation, regress
from adjudge_lab.studies.comparisons import measure_feature_curves, regress_drift
from adjudge_lab.studies.results import ArmResult, CheckpointResult, StudyResult


def points(judges: Sequence[tuple[float, float]], seeds: int = 3) -> list[Observation]:
    return [
        Observation(f"j{k}", {"length": x}, y + noise)
        for k, (x, y) in enumerate(judges)
        for noise in [-0.1, 0.0, 0.1][:seeds]
    ]


def test_regression_by_hand() -> None:
    # x = 0,1,2,3; y = 1,3,4,8: slope 22/10... Sxy = 11, Sxx = 5, residuals of 4 − 2 df.
    found = regress(points([(0, 1), (1, 3), (2, 4), (3, 8)]), ["length"])
    slope, intercept = found.coefficients["length"], found.coefficients[INTERCEPT]
    assert slope.value == pytest.approx(2.2)
    assert intercept.value == pytest.approx(0.7)
    left = sum((y - (0.7 + 2.2 * x)) ** 2 for x, y in [(0, 1), (1, 3), (2, 4), (3, 8)])
    assert found.r2 == pytest.approx(1 - left / 26)
    half = 4.30265 * (left / 2 / 5) ** 0.5
    assert slope.low == pytest.approx(2.2 - half, abs=1e-4)
    assert slope.high == pytest.approx(2.2 + half, abs=1e-4)
    width = 4.30265 * (left / 2 * (1 / 4 + 1.5**2 / 5)) ** 0.5
    assert intercept.high == pytest.approx(0.7 + width, abs=1e-4)
    assert (found.arms, found.judges) == (12, 4)


def test_two_dials_are_told_apart() -> None:
    rows = [
        Observation(f"{a}{b}", {"a": a, "b": b, "c": 7.0}, 1 + 2 * a - 3 * b)
        for a in (0.0, 0.5, 1.0)
        for b in (0.0, 10.0)
    ]
    found = regress(rows, ["a", "b", "c"])
    assert found.coefficients["a"].value == pytest.approx(2)
    assert found.coefficients["b"].value == pytest.approx(-3)
    assert found.coefficients[INTERCEPT].value == pytest.approx(1)
    assert found.coefficients["c"].value is None
    assert found.coefficients["c"].why == "it does not vary"
    assert found.coefficients["a"].low is None  # without residuals there is no interval
    assert found.r2 == pytest.approx(1)


def test_refusals_say_why() -> None:
    few = regress(points([(0, 1), (1, 3)], seeds=1), ["length"])
    assert few.coefficients == {}
    assert "2 arms of 2 judges are too few for 2 coefficients" in few.why
    assert "does not vary" in regress(points([(1, 1), (1, 3)]), ["length"]).why
    twins = [
        Observation(f"j{k}", {"a": float(k), "b": 2.0 * k + 1}, float(k * k)) for k in range(6)
    ]
    assert "follow from each other" in regress(twins, ["a", "b"]).why
    exact = regress(points([(0, 1), (1, 3)], seeds=2), ["length"])
    assert exact.coefficients["length"].value == pytest.approx(2)
    assert exact.coefficients["length"].low is None


def arm(
    judge: str, seed: int, bias: dict[str, float], words: Sequence[float], mitigation: str = "none"
) -> ArmResult:
    points = [
        CheckpointResult(step=at, kl=0.0, scores={}, prompts=[], features={"words": value})
        for at, value in enumerate(words)
    ]
    return msgspec.structs.replace(bare_arm(points, judge, seed, mitigation), bias=bias)


def study(arms: list[ArmResult]) -> StudyResult:
    return StudyResult(gold="gold", judges={}, arms=arms, best_of=[])


def test_drift_on_dials() -> None:
    arms = [
        arm(f"j{k}", seed, {"length": k / 2}, [10, 12, 10 + 4 * k + seed])
        for k in range(4)
        for seed in range(3)
    ]
    arms += [arm("unknown", 0, {}, [0, 900]), arm("j1", 0, {"length": 0.5}, [0, 900], "short")]
    (found,) = regress_drift(study(arms))
    assert found.feature == "words"
    assert found.regression.coefficients["length"].value == pytest.approx(8)
    assert found.regression.coefficients[INTERCEPT].value == pytest.approx(1)
    assert found.left_out == 1


def test_features_over_steps() -> None:
    arms = [arm("j", seed, {}, [10 + seed, 20 + 2 * seed]) for seed in range(3)]
    (found,) = measure_feature_curves(study(arms))
    assert [(point.step, point.seeds, point.mean.value) for point in found.points] == [
        (0, 3, 11.0),
        (1, 3, 22.0),
    ]
    assert found.points[1].mean.high == pytest.approx(22 + 4.30265 * 2 / 3**0.5, abs=1e-4)
    assert found.change.value == 11.0
