"""Length effects of verdicts and of best-of-four items, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from adjudge.errors import ErrorKind
from adjudge.judge_evaluation.benchmarks.items import (
    Benchmark,
    BestOfItem,
    Judgement,
    MissingJudgement,
    PairItem,
)
from adjudge.judge_evaluation.benchmarks.scoring import judged_pairs, score_benchmark
from adjudge.judge_evaluation.benchmarks.statistics import measure_length_effects

GONE = MissingJudgement(ErrorKind.TIMEOUT)


def pair(name: str, a: str, b: str, label: str = "A") -> PairItem:
    return PairItem(
        id=name,
        subset="s",
        prompt=[{"role": "user", "content": "q"}],
        a=[{"role": "assistant", "content": a}],
        b=[{"role": "assistant", "content": b}],
        label=label,  # type: ignore[arg-type]  # "A" or "B"
        where=f"x:{name}",
    )


def said(name: str, *verdicts: Any) -> Judgement:
    return Judgement(subset="s", id=name, verdicts=list(verdicts))


def test_verdicts_by_length() -> None:
    rows = [
        (pair("1", "long answer", "short"), said("1", "A", "A")),  # longer is better: picked
        (pair("2", "longer one", "brief"), said("2", "A", "B")),  # longer is better: by position
        (pair("3", "longest one", "tiny", "B"), said("3", "A", "tie")),  # the shorter is better
        (pair("4", "same", "size"), said("4", "A", "A")),
        (pair("5", "lengthy", "x"), said("5", "A", GONE)),
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
    item = BestOfItem(
        id="7",
        subset="Math",
        prompt=[{"role": "user", "content": "q"}],
        answers=["right one", "w", "ww", "www"],
        correct=1,
        where="x:1",
    )
    benchmark = Benchmark(kind="rewardbench2", items=[item])
    judgement = Judgement(subset="Math", id="7", scores=[2.0, 1.0, GONE, 3.0])
    pairs = judged_pairs(benchmark, [judgement])
    assert [one.scores for _, one in pairs] == [[2.0, 1.0], [2.0, GONE], [2.0, 3.0]]
    report = score_benchmark(benchmark, [judgement], scale="logits", resamples=10)
    assert report.calibration is not None
    assert report.calibration.pairs == 2
    assert report.lengths is not None
    assert report.lengths.prefers_longer == 0.5
    assert report.lengths.better_is_longer == 1.0
    assert report.overall.orders is None
