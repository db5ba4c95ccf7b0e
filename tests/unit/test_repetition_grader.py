"""The n-gram repetition penalty against values worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from adjudge.errors import ConfigError
from adjudge.graders.rules.response_form import NgramRepetitionPenaltyGrader
from adjudge.types import Role


def test_hard_penalty_starts_at_the_threshold() -> None:
    # "a b c" five times: 13 trigrams, 3 of them distinct.
    result = NgramRepetitionPenaltyGrader().evaluate("a b c " * 5)
    assert result.metadata == {"rate": pytest.approx(10 / 13), "ngrams": 13}
    assert result.score == pytest.approx(-(10 / 13 - 0.3))
    assert (result.role, result.score_range) == (Role.PENALTY, (-0.7, 0.0))
    # 4 trigrams, 3 distinct: 0.25 lies below the threshold.
    assert NgramRepetitionPenaltyGrader().evaluate("a b c a b c").score == 0.0


@pytest.mark.parametrize(
    ("text", "ngrams", "rate"),
    [
        ("今天今天今天", 4, 0.5),
        ("ดีมากดีมากดีมาก", 10, 0.6),
        ("!!!!!!", 4, 0.75),
        ("Yes YES yes yes", 2, 0.5),
        ("😀😀😀😀", 2, 0.5),
    ],
)
def test_tokens(text: str, ngrams: int, rate: float) -> None:
    metadata = NgramRepetitionPenaltyGrader().evaluate(text).metadata
    assert metadata == {"rate": pytest.approx(rate), "ngrams": ngrams}


@pytest.mark.parametrize("text", ["", "one two", " \n"])
def test_short_texts_are_nothing_to_judge(text: str) -> None:
    result = NgramRepetitionPenaltyGrader().evaluate(text)
    assert (result.score, result.evaluable) == (0.0, False)


@pytest.mark.parametrize(
    ("view", "response", "ngrams"),
    [
        ("full", "<think>a b c</think>d e f", 11),  # tags: < think > and < / think >
        ("final", "<think>a b c</think>d e f g", 2),
        ("thought", "<think>a b c d</think>d e f", 2),
        ("thought", "a b c</think>d e f", 1),
        ("thought", "<think>a b c", 1),
        ("thought", "<think>a b</think> x y z <think>c d</think>", 2),
    ],
)
def test_views(view: Any, response: str, ngrams: int) -> None:
    result = NgramRepetitionPenaltyGrader(view=view).evaluate(response)
    assert result.metadata["ngrams"] == ngrams


@pytest.mark.parametrize(("view", "response"), [("thought", "a b c d"), ("final", "<think>a b c")])
def test_a_missing_part_is_nothing_to_judge(view: Any, response: str) -> None:
    assert not NgramRepetitionPenaltyGrader(view=view).evaluate(response).evaluable


@pytest.mark.parametrize(
    "parameters",
    [
        {"n": 0},
        {"n": 101},
        {"penalty_threshold": 1.5},
        {"penalty_rate": -1},
        {"view": "answer"},
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(parameters))):
        NgramRepetitionPenaltyGrader(**parameters)
