"""Units, changes from step 0, the proxy-gold gap and the transfer matrix, by hand."""

from collections.abc import Mapping, Sequence

import pytest
from lab.tests.unit.helpers.made_study import bare_arm

from adjudge_lab.statistics import Resampling
from adjudge_lab.studies.overoptimization import measure_cell_gap, transfer_matrix
from adjudge_lab.studies.results import (
    AnswerScores,
    ArmResult,
    BestOfScores,
    CheckpointResult,
    StudyResult,
    score_units,
)

FEW = Resampling(100)
Values = Sequence[float | None]
PROMPTS = ["p", "p", "q", "q"]


def arm(
    judge: str, seed: int, steps: Sequence[Mapping[str, Values]], mitigation: str = "none"
) -> ArmResult:
    points = [
        CheckpointResult(
            step=5 * at,
            kl=float(at * at),
            scores={name: AnswerScores(list(values)) for name, values in scores.items()},
            prompts=PROMPTS,
            features={},
        )
        for at, scores in enumerate(steps)
    ]
    return bare_arm(points, judge, seed, mitigation)


def study(arms: Sequence[ArmResult], best_of: Sequence[BestOfScores] = ()) -> StudyResult:
    names = list(dict.fromkeys(name for one in arms for name in one.points[0].scores))
    judges: dict[str, dict[str, object]] = {name: {} for name in names if name != "gold"}
    return StudyResult(gold="gold", judges=judges, arms=list(arms), best_of=list(best_of))


START: dict[str, Values] = {
    "a": [0, 2, 0, 2],
    "b": [0.0, 4.0, 0.0, 4.0],
    "gold": [0.0, 1.0, 1.0, 0.0],
}


def test_a_unit_is_the_spread_of_the_first_policies_answers() -> None:
    far: dict[str, Values] = {
        name: [None if value is None else value + 100 * seed for value in of]
        for seed, (name, of) in enumerate(START.items())
    }
    arms = [arm("a", 0, [START]), arm("b", 0, [START]), arm("a", 1, [far])]
    found = score_units(study(arms))
    # SS = 4 of each seed with 3 degrees of freedom; two arms of a seed are the same answers.
    assert found["a"] == pytest.approx((8 / 6) ** 0.5)
    assert found["gold"] == pytest.approx((2 / 6) ** 0.5)
    many = BestOfScores(seed=0, prompts=["p", "p"], scores={"a": AnswerScores([1.0, 3.0])})
    assert score_units(study(arms[:1], [many]))["a"] == pytest.approx(2**0.5)
    flat: dict[str, Values] = {"a": [1.0] * 4, "gold": [None] * 4}
    assert score_units(study([arm("a", 0, [flat])])) == {}


def test_the_gap_by_hand() -> None:
    middle: dict[str, Values] = {"a": [1, 3, 1, 3], "gold": [1.0, 1.0, 1.0, 1.0]}
    end: dict[str, Values] = {"a": [5, 5, 3, 3], "gold": [0.0, 0.0, 0.5, 0.5]}
    arms = [arm("a", seed, [START, middle, end]) for seed in range(3)]
    found = measure_cell_gap(arms, "gold", {"a": 2.0, "gold": 0.5}, FEW)
    assert found.start.value == 0.5
    # Change by prompt: a from (1, 1) to (5, 3), gold from (.5, .5) to (0, .5).
    assert found.end.proxy.value == pytest.approx(3 / 2)
    assert found.end.gold.value == pytest.approx(-0.25 / 0.5)
    assert found.end.gap.value == pytest.approx(1.5 + 0.5)
    assert (found.end.proxy_level.value, found.end.gold_level.value) == (4.0, 0.25)
    assert (found.end.step, found.end.distance, found.end.seeds) == (10.0, 2.0, [0, 1, 2])
    assert found.peak is not None
    assert (found.peak.step, found.peak.gold.value) == (5.0, 1.0)
    assert found.loss_level.value == pytest.approx(0.75)
    assert found.loss.value == pytest.approx(1.5)


def test_the_gap_is_over_answers_that_both_scored() -> None:
    end: dict[str, Values] = {"a": [5, None, 3, 3], "gold": [0.0, 9.0, None, None]}
    found = measure_cell_gap([arm("a", 0, [START, end])], "gold", {"a": 2.0, "gold": 0.5}, FEW)
    assert found.end.proxy.value == pytest.approx((5 - 1) / 2)
    assert found.end.gold.value == pytest.approx((0 - 0.5) / 0.5)
    assert found.end.prompts_left_out == 1
    assert found.end.gold_level.value == 4.5


def test_a_scorer_without_values_has_no_number() -> None:
    end: dict[str, Values] = {"a": [None] * 4, "gold": [1.0] * 4}
    found = measure_cell_gap([arm("a", 0, [START, end])], "gold", {"a": 2.0, "gold": 0.5}, FEW)
    assert found.end.proxy.value is None
    assert found.end.gap.value is None
    assert found.end.gap.why
    assert found.end.gold_level.value == 1.0
    assert found.end.proxy_level.value is None
    without = measure_cell_gap([arm("a", 0, [START, START])], "gold", {"gold": 0.5}, FEW)
    assert "do not differ" in without.end.proxy.why


def test_an_arm_that_never_got_beyond_its_start() -> None:
    found = measure_cell_gap([arm("a", 0, [START])], "gold", {"a": 2.0, "gold": 0.5}, FEW)
    assert (found.end.step, found.end.gap.value, found.loss.value) == (None, None, None)


def test_transfer_by_hand() -> None:
    end: dict[str, Values] = {
        "a": [4, 6, 4, 6],
        "b": [2.0, 6.0, 2.0, 6.0],
        "c": [1.0] * 4,
        "gold": [0.0] * 4,
    }
    start: dict[str, Values] = {**START, "c": [0.0, 1.0, 0.0, 1.0]}
    arms = [arm("a", seed, [start, end]) for seed in range(3)]
    arms.append(arm("a", 0, [start, start], mitigation="short"))
    found = transfer_matrix(study(arms), {"a": 1.0, "b": 2.0, "c": 0.5, "gold": 0.5}, FEW)
    assert found.scorers == ["a", "b", "c", "gold"]
    (row,) = found.rows
    gains = {name: one.value for name, one in row.gains.items()}
    assert gains == pytest.approx({"a": 4.0, "b": 1.0, "c": 1.0, "gold": -1.0})
    assert row.others == ["b", "c"]
    assert row.over_others.value == pytest.approx(3.0)
    assert row.over_gold.value == pytest.approx(5.0)
