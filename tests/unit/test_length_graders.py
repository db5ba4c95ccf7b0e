"""Length penalties against their formulas, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.rules.response_form import LengthPenaltyGrader, SoftOverlongPunishmentGrader
from adjudge.types import Role


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, -0.1), (9, -0.01), (10, 0.0), (1000, 0.0), (1001, -0.01), (3000, -20.0)],
)
def test_the_published_penalty_has_no_floor(length: int, penalty: float) -> None:
    result = LengthPenaltyGrader().evaluate("x" * length)
    assert result.score == pytest.approx(penalty)
    assert (result.role, result.score_range, result.metadata) == (
        Role.PENALTY,
        (None, 0.0),
        {"length": length},
    )


def test_a_floor_closes_the_range() -> None:
    result = LengthPenaltyGrader(floor=-0.5).evaluate("x" * 3000)
    assert (result.score, result.score_range) == (-0.5, (-0.5, 0.0))
    assert LengthPenaltyGrader().score_range == (None, 0.0)


def test_units_and_views() -> None:
    assert LengthPenaltyGrader(unit="words").evaluate("one two 三四").metadata == {"length": 4}
    response = "<think>" + "x" * 2000 + "</think>" + "y" * 20
    assert LengthPenaltyGrader(view="final").evaluate(response).score == 0.0
    assert LengthPenaltyGrader().evaluate(response).score < 0
    assert LengthPenaltyGrader(view="final").evaluate("<think>" + "x" * 500).metadata == {
        "length": 0
    }


@pytest.mark.parametrize(
    "parameters",
    [
        {"min_length": -1},
        {"max_length": 5},
        {"penalty_rate": float("nan")},
        {"floor": 0.5},
        {"unit": "tokens"},
        {"view": ["final"]},
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(parameters))):
        LengthPenaltyGrader(**parameters)


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    # The paper's numbers: nothing up to 16,384 tokens, -1 from 20,480 on.
    [(0, 0.0), (16_384, 0.0), (17_408, -0.25), (18_432, -0.5), (20_480, -1.0), (10**400, -1.0)],
)
def test_soft_overlong_follows_the_equation(tokens: int, penalty: float) -> None:
    result = SoftOverlongPunishmentGrader().evaluate(response_length=tokens)
    assert result.score == penalty
    assert (result.role, result.score_range) == (Role.PENALTY, (-1.0, 0.0))
    assert str(SoftOverlongPunishmentGrader().evaluate(response_length=3).score) == "0.0"


def test_soft_overlong_in_other_units() -> None:
    chars = SoftOverlongPunishmentGrader(max_length=10, cache_length=4, unit="chars")
    assert chars.evaluate("<think>x").score == -0.5
    in_words = SoftOverlongPunishmentGrader(max_length=3, cache_length=2, unit="words")
    assert in_words.evaluate("two words").score == -0.5
    assert SoftOverlongPunishmentGrader().evaluate(response_length=18_432.0).score == -0.5


@pytest.mark.parametrize("tokens", [None, "12", -1, True, 1.5, float("nan"), [12]])
def test_tokens_need_a_token_count(tokens: Any) -> None:
    with pytest.raises(GradingFailure, match="response_length") as caught:
        SoftOverlongPunishmentGrader().evaluate("text", tokens)
    assert caught.value.kind is ErrorKind.INVALID_INPUT


@pytest.mark.parametrize("cache", [0, 101, -3, 2.5])
def test_the_cache_must_fit(cache: Any) -> None:
    with refuses("cache_length"):
        SoftOverlongPunishmentGrader(max_length=100, cache_length=cache)
