"""Best-of-n of a study: by hand, against all subsets, ties, missing scores."""

import math
from collections.abc import Sequence

import pytest

from adjudge_lab.statistics import Resampling
from adjudge_lab.studies.kl_curves import best_of_curves
from adjudge_lab.studies.results import AnswerScores, BestOfScores, StudyResult

UNITS = {"judge": 2.0, "gold": 0.5}


def study(*seeds: BestOfScores) -> StudyResult:
    return StudyResult(gold="gold", judges={"judge": {}}, arms=[], best_of=list(seeds))


def answers(
    proxy: Sequence[float | None], gold: Sequence[float | None], prompts: int = 1, seed: int = 0
) -> BestOfScores:
    each = len(proxy) // prompts
    return BestOfScores(
        seed=seed,
        prompts=[f"p{at // each}" for at in range(len(proxy))],
        scores={"judge": AnswerScores(list(proxy)), "gold": AnswerScores(list(gold))},
    )


def test_curve_is_the_mean_over_prompts_in_units_of_the_first_policy() -> None:
    result = study(answers([0.0, 2.0, 4.0, 8.0], [1.0, 0.0, 0.5, 0.5], prompts=2))
    (curve,) = best_of_curves(result, UNITS, Resampling(50))
    one, two = curve.rows
    assert (one.n, one.proxy.value, one.gold.value) == (1, 0.0, 0.0)
    assert (one.proxy_level, one.gold_level) == (3.5, 0.5)
    assert (two.proxy_level, two.gold_level) == (5.0, 0.25)
    assert two.proxy.value == pytest.approx(1.5 / 2.0)
    assert two.gold.value == pytest.approx(-0.25 / 0.5)
    assert two.gap.value == pytest.approx(0.75 + 0.5)
    assert two.distance == pytest.approx(math.sqrt(math.log(2) - 0.5))


def test_missing_answers_are_left_out_and_counted() -> None:
    result = study(answers([0.0, None, 4.0, 8.0, None, 1.0], [1.0, 0.0, None, 0.5, 1.0, None], 3))
    (curve,) = best_of_curves(result, UNITS, Resampling(50))
    assert (curve.answers, curve.missing, curve.prompts_left_out) == (6, 4, 1)
    assert [row.n for row in curve.rows] == [1]
    assert curve.rows[0].proxy_level == 4.0
    assert curve.fits == {}
    assert curve.why == "fewer than two answers a prompt"


def test_a_change_is_over_prompts_that_have_so_many_answers() -> None:
    full, short = [0.0, 1.0, 2.0, 3.0], [50.0, 60.0, 70.0, None]
    (curve,) = best_of_curves(study(answers([*full, *short], [0.0] * 8, 2)), UNITS, Resampling(50))
    assert [(row.n, row.prompts) for row in curve.rows] == [(1, 2), (2, 2), (4, 1)]
    assert curve.rows[2].proxy.value == pytest.approx((3.0 - 1.5) / 2.0)


def test_nothing_to_say_is_said() -> None:
    assert best_of_curves(study(), UNITS, Resampling(50)) == []
    (curve,) = best_of_curves(study(answers([None, None], [1.0, 1.0])), UNITS, Resampling(50))
    assert (curve.rows, curve.fits, curve.why) == ([], {}, "no value")
    (same,) = best_of_curves(study(answers([1.0, 2.0], [1.0, 1.0])), {"judge": 1.0}, Resampling(50))
    assert same.rows[1].gold.value is None
    assert "do not differ" in same.rows[1].gold.why
    assert same.rows[1].proxy.value == 0.5
