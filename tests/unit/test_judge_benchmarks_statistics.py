"""Margins, calibration, length effects, intervals and exact tests, by hand."""

from __future__ import annotations

import math

import msgspec
import pytest
from tests.unit.test_judge_benchmarks import GONE, answer, bon, pair, said, scored

from adjudge.errors import ConfigError
from adjudge.judge_evaluation.benchmarks.items import Benchmark
from adjudge.judge_evaluation.benchmarks.measures import (
    calibration_metrics,
    measure_length_effects,
    win_probabilities,
)
from adjudge.judge_evaluation.benchmarks.scoring import judged_pairs, score_benchmark
from adjudge.stats.agreement import pearson_correlation
from adjudge.stats.estimates import (
    binomial_two_sided,
    bootstrap_p_value,
    percentile_interval,
    ratio,
    resample_statistics,
)

# Preference files.


def test_calibration() -> None:
    found = calibration_metrics([0.95, 0.95, 0.35, 0.5])
    assert found.pairs == 4
    assert found.brier == pytest.approx((0.05**2 * 2 + 0.65**2 + 0.25) / 4)
    # Confidences .95 twice (right), .65 (wrong), .5 (half right).
    assert found.ece == pytest.approx((2 * 0.05 + 0.65 + 0) / 4)
    assert found.log_loss == pytest.approx(
        -(2 * math.log(0.95) + math.log(0.35) + math.log(0.5)) / 4
    )
    assert [one[0] for one in found.bins] == [1, 1, 2]
    assert calibration_metrics([]).ece is None


def test_probabilities_of_winning() -> None:
    rows = [(pair("1"), scored("1", 2.0, 1.0)), (pair("2", "B"), scored("2", 0.0, 0.0))]
    assert win_probabilities(rows, "logits") == [pytest.approx(1 / (1 + math.exp(-1))), 0.5]
    rows = [(pair("1"), scored("1", 0.9, 0.5)), (pair("2"), scored("2", 1.0, 1.0))]
    assert win_probabilities(rows, "probabilities") == [pytest.approx(0.9), 0.5]
    with pytest.raises(ConfigError, match=r"must be in \[0, 1\] .found 2.0 and 0.5"):
        win_probabilities([(pair("1"), scored("1", 2.0, 0.5))], "probabilities")


def test_length_effects() -> None:
    rows = [
        (pair("1", a="long answer", b="short"), scored("1", 2.0, 1.0)),  # longer, right
        (pair("2", a="short", b="long answer"), scored("2", 1.0, 2.0)),  # prefers longer, wrong
        (pair("3", "B", a="short", b="long answer"), scored("3", 1.0, 2.0)),
        (pair("4", a="same", b="size"), scored("4", 1.0, 0.0)),
    ]
    found = measure_length_effects(rows)
    assert found.prefers_longer == 1.0
    assert found.better_is_longer == pytest.approx(2 / 3)
    assert (found.accuracy_longer, found.accuracy_shorter) == (1.0, 0.0)
    assert pearson_correlation([1, 1], [1, 2]) is None


def test_verdicts_by_length() -> None:
    rows = [
        (pair("1", a="long answer", b="short"), said("1", "A", "A")),  # longer is better: picked
        (pair("2", a="longer one", b="brief"), said("2", "A", "B")),  # by position
        (pair("3", "B", a="longest one", b="tiny"), said("3", "A", "tie")),  # the shorter is better
        (pair("4", a="same", b="size"), said("4", "A", "A")),
        (pair("5", a="lengthy", b="x"), said("5", "A", GONE)),
    ]
    found = measure_length_effects(rows)
    assert found.pairs == 4
    # Of the longer ones: 1, ½, and of the third A (1) and a tie (½).
    assert found.prefers_longer == pytest.approx((1 + 0.5 + 0.75) / 3)
    assert found.better_is_longer == pytest.approx(2 / 3)
    assert found.accuracy_longer == pytest.approx(0.75)
    assert found.accuracy_shorter == pytest.approx(0.25)
    assert found.spearman is not None
    assert found.spearman > 0


def test_best_of_four_as_scored_pairs() -> None:
    item = msgspec.structs.replace(
        bon("Math", "7"), answers=[*map(answer, ("right one", "w", "ww", "www"))]
    )
    benchmark = Benchmark(kind="rewardbench2", items=[item])
    judgement = scored("7", 2.0, 1.0, GONE, 3.0, subset="Math")
    pairs = judged_pairs(benchmark, [judgement])
    assert [one.scores for _, one in pairs] == [[2.0, 1.0], [2.0, GONE], [2.0, 3.0]]
    report = score_benchmark(benchmark, [judgement], scale="logits", resamples=10)
    assert report.calibration is not None
    assert report.calibration.pairs == 2
    assert report.lengths is not None
    assert report.lengths.prefers_longer == 0.5
    assert report.lengths.better_is_longer == 1.0
    assert report.overall.orders is None


# Intervals and tests.


def test_exact_tests_by_hand() -> None:
    assert binomial_two_sided(1, 8) == binomial_two_sided(7, 8) == 2 * (1 + 8) / 256
    assert binomial_two_sided(0, 0) == binomial_two_sided(5, 10) == 1.0
    assert binomial_two_sided(0, 10) == 2 / 1024
    assert binomial_two_sided(0, 5000) == 0.0  # 2/2⁵⁰⁰⁰, below the smallest float


def test_the_interval_has_the_width_of_a_binomial() -> None:
    credits_ = [1.0] * 60 + [0.0] * 140

    rows = [[(one, 1.0) for one in credits_]]
    drawn = resample_statistics(rows, ratio, seed=3)
    found = percentile_interval(drawn)
    assert found.low is not None
    assert found.high is not None
    half = 1.96 * math.sqrt(0.3 * 0.7 / 200)
    assert found.low == pytest.approx(0.3 - half, abs=half / 8)
    assert found.high == pytest.approx(0.3 + half, abs=half / 8)
    assert drawn == resample_statistics(rows, ratio, seed=3)


def test_no_interval_where_nothing_varies() -> None:
    assert percentile_interval([1.0, 1.0]).why == "all units score the same"
    assert percentile_interval([1.0, None]).why == "too few resamples have a score"
    assert bootstrap_p_value([]) is None
    assert bootstrap_p_value([1.0] * 98 + [2.0]) == 2 / 100
    assert bootstrap_p_value([0.0] * 99) == 1.0
    assert bootstrap_p_value([0.5] * 90 + [2.0, None, None]) is not None
    assert bootstrap_p_value([0.5, 2.0] * 45 + [None] * 10) is None  # nor is there an interval
    assert bootstrap_p_value([1.0] * 99) is None  # one item drawn again and again says nothing
