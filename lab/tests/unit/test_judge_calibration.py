"""What a judge's outputs are worth: by hand, where nothing can be said, in a card and a report."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from lab.tests.unit.helpers.judge_cards import make_card, write_card

from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge import RankedScalar
from adjudge.judges import ScriptedModel
from adjudge.report.page import Fragment
from adjudge.rewards.spec import RewardSpec
from adjudge.stats import sigmoid
from adjudge.stats.agreement import measure_reliability
from adjudge.stats.predictions import IsotonicFit
from adjudge_lab.judge_training.calibration import (
    MIN_CALIBRATION_PAIRS,
    calibrate_ratings,
    calibrate_scores,
    fit_isotonic_gaps,
    fit_temperature,
)
from adjudge_lab.judge_training.report import calibration_blocks
from adjudge_lab.judge_training.run import reward_spec_of_card


def too_sure(n: int = 1000, *, factor: float = 4.0, seed: int = 1) -> list[tuple[float, float]]:
    """Scores of a judge whose differences are ``factor`` times what they are worth."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(n):
        worth = rng.gauss(0, 2)
        first, second = factor * worth + 7, 7.0
        right = rng.random() < sigmoid(worth)
        pairs.append((first, second) if right else (second, first))
    return pairs


def test_a_judge_that_is_too_sure_is_cooled_and_measured_on_other_pairs() -> None:
    found = calibrate_scores(too_sure())
    assert found.temperature == pytest.approx(4.0, rel=0.15)
    assert found.missing == {}
    assert (found.pairs, found.prompts) == (1000, 1000)
    assert found.with_temperature is not None
    assert found.with_isotonic is not None
    for after in (found.with_temperature, found.with_isotonic):
        assert after.error < found.as_is.error / 3
        assert after.brier < found.as_is.brier
        assert after.log_loss < found.as_is.log_loss
    assert found.probability(8.0) == pytest.approx(sigmoid(2.0), abs=0.05)
    assert found.probability(-8.0) == pytest.approx(1 - found.probability(8.0))
    assert found.isotonic is not None
    assert found.isotonic(8.0) == pytest.approx(sigmoid(2.0), abs=0.08)


def test_what_is_measured_was_not_fitted_to() -> None:
    """Isotonic fits remember noise: only measured on what they saw do they look right."""
    rng = random.Random(3)
    pairs = [(rng.choice([1, -1]) * rng.random(), 0.0) for _ in range(60)]
    found = calibrate_scores(pairs)
    assert found.isotonic is not None
    assert found.with_isotonic is not None
    right = [float(a > b) for a, b in pairs]
    seen = measure_reliability([found.isotonic(abs(a - b)) for a, b in pairs], right)
    assert found.with_isotonic.log_loss > seen.log_loss


def test_pairs_of_a_prompt_stay_in_one_fold() -> None:
    """Ten copies of each pair: told so, the measure is that of the pairs themselves."""
    pairs = [(float(n), 0.0) if n % 3 else (0.0, float(n)) for n in range(1, 31)]
    copies = [pair for pair in pairs for _ in range(10)]
    prompts = [f"{n}" for n in range(30) for _ in range(10)]
    one, told = (
        calibrate_scores(pairs, [f"{n}" for n in range(30)]),
        calibrate_scores(copies, prompts),
    )
    assert one.with_isotonic is not None
    assert told.with_isotonic is not None
    assert told.prompts == 30
    assert told.with_isotonic.brier == pytest.approx(one.with_isotonic.brier, abs=0.02)
    strewn = calibrate_scores(copies, [str(n) for n in range(300)])
    assert strewn.with_isotonic is not None
    assert strewn.with_isotonic.brier < told.with_isotonic.brier - 0.01


@pytest.mark.parametrize(
    ("differences", "why"),
    [
        ([1.0, -0.5] * (MIN_CALIBRATION_PAIRS // 2 - 1), "18 pairs, fewer than 20"),
        ([0.0] * 30, "all differences are 0"),
        ([1.0, 2.0, 0.0] * 10, "no pair is wrong"),
        ([1.0, -2.0] * 15, "mean difference is not positive"),
        ([1.0] + [1e-100] * 28 + [-1e-300], "differ by next to nothing"),
    ],
)
def test_where_no_temperature_is_best_the_reason_is_said(
    differences: list[float], why: str
) -> None:
    found = fit_temperature(differences)
    assert isinstance(found, str)
    assert why in found
    whole = calibrate_scores([(d, 0.0) for d in differences])
    assert whole.temperature is None
    assert whole.with_temperature is None
    assert why in whole.missing["temperature"]


def test_without_any_fit_there_is_no_probability() -> None:
    found = calibrate_scores([(1.0, 0.0), (0.0, 1.0)])
    assert (found.method, found.isotonic) == (None, None)
    assert set(found.missing) == {"temperature", "isotonic"}
    with pytest.raises(ValueError, match="no calibration"):
        found.probability(1.0)


def test_isotonic_by_hand() -> None:
    # At distance 1 a half is right, at 2 three quarters, at 3 a quarter: 2 and 3 are pooled.
    differences = [1.0, -1.0] * 4 + [2.0, 2.0, 2.0, -2.0] * 2 + [3.0, -3.0, -3.0, -3.0]
    fit = fit_isotonic_gaps(differences)
    assert isinstance(fit, IsotonicFit)
    assert fit.at == (0.0, 1.0, 2.0, 3.0)
    assert fit.values == pytest.approx((0.5, 0.5, 7 / 12, 7 / 12))
    assert fit(1.5) == pytest.approx((0.5 + 7 / 12) / 2)
    assert fit_isotonic_gaps([0.0] * 30) == "all differences are 0"


def test_ratings_are_worth_their_mean_labels() -> None:
    ratings = [0, 1, 2, 3, 4] * 10
    labels = [1, 0, 2, 4, 4] * 10  # 0 and 1 are the wrong way round: both are worth a half
    found = calibrate_ratings(ratings, labels, [str(n) for n in range(50)])
    assert found is not None
    assert [found.labels(r) for r in range(5)] == pytest.approx([0.5, 0.5, 2, 4, 4])
    assert found.error == pytest.approx((1 + 1 + 0 + 1 + 0) / 5)
    assert found.error_after is not None
    assert found.error_after < found.error
    assert calibrate_ratings([1] * 19, [1] * 19, [""] * 19) is None
    alone = calibrate_ratings(ratings, labels, ["one prompt"] * 50)
    assert alone is not None
    assert alone.error_after is None


def test_a_report_shows_what_was_measured() -> None:
    html = str(Fragment(*calibration_blocks(calibrate_scores(too_sure(400)))))
    assert html.count("<figure") == 3
    assert "Temperature 4." in html or "Temperature 3." in html
    assert "nan" not in html
    few = str(Fragment(*calibration_blocks(calibrate_scores([(1.0, 0.0)]))))
    assert few.count("<figure") == 1
    assert "No temperature: 1 pairs, fewer than 20." in few


@pytest.mark.parametrize("label", ["rm", "3b judge", "source", "Ωmega", "", "x" * 200])
def test_every_label_makes_a_spec(label: str, tmp_path: Path) -> None:
    text = reward_spec_of_card(make_card(label=label))
    assert text is not None
    (tmp_path / "reward.toml").write_text(text)
    spec = RewardSpec.load(tmp_path / "reward.toml")
    assert spec.graders[0].type.endswith(":RankedScalar")
    assert spec.judges["main"].model_dump()["task"] == "score"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"kind": "generative"}, "ranked_scalar needs a scalar judge"),
        ({}, "no quantiles"),
    ],
)
def test_cards_that_do_not_say_enough_are_refused(
    given: dict[str, Any], why: str, tmp_path: Path
) -> None:
    write_card(tmp_path, **given)
    with pytest.raises(ConfigError, match=re.escape(why)):
        RankedScalar(ScriptedModel("-", model=str(tmp_path)))
