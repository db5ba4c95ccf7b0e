"""The information gain: published values and what surrounds them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.graders.rules.redundancy import ObservationInformationGainGrader


def trajectory(*observations: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for number, observation in enumerate(observations):
        made = {"id": f"c{number}", "function": {"name": "look", "arguments": "{}"}}
        messages.append({"role": "assistant", "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": observation})
    return messages


def generated(steps: int) -> list[dict[str, Any]]:
    """60 words of 4,000; every fifth step repeats the first."""
    words = [f"w{number}" for number in range(4000)]
    observations = []
    for step in range(steps):
        rng = random.Random((step if step % 5 else 0) * 7919 + 13)
        observations.append(" ".join(rng.choice(words) for _ in range(60)))
    return trajectory(*observations)


FOUR = "one two three four"

PUBLISHED = [
    # observations, score at threshold 0.5, score at threshold 0.8
    ([], 0.0, 0.0),
    (["alpha beta gamma delta"], 1.0, 1.0),
    (["alpha beta gamma delta"] * 2, 0.5, 0.5),
    (["Alpha BETA gamma delta", "alpha beta gamma delta"], 0.5, 0.5),
    ([FOUR, "one two three five"], 0.663746, 0.7),
    (["alpha beta gamma", "delta epsilon zeta"], 1.0, 1.0),
    (["short", FOUR], 1.0, 1.0),
    ([FOUR] * 3, 0.333333, 0.333333),
    ([FOUR, FOUR + " nine"], 0.554881, 0.6),
]


@pytest.mark.parametrize(("observations", "half", "high"), PUBLISHED)
def test_published_scores(observations: list[str], half: float, high: float) -> None:
    messages = trajectory(*observations)
    for threshold, score in ((0.5, half), (0.8, high)):
        grader = ObservationInformationGainGrader(similarity_threshold=threshold)
        assert grader.evaluate(messages).score == pytest.approx(score, abs=5e-7)


@pytest.mark.parametrize(
    ("steps", "score"), [(10, 0.885352), (50, 0.801167), (200, 0.779717), (500, 0.773260)]
)
def test_published_scores_of_generated_trajectories(steps: int, score: float) -> None:
    found = ObservationInformationGainGrader().evaluate(generated(steps)).score
    assert found == pytest.approx(score, abs=5e-7)


@pytest.mark.parametrize(
    ("observations", "skipped"), [([], 0), (["short", "", None, "  tiny      "], 4)]
)
def test_nothing_to_judge_is_not_evaluable(observations: list[Any], skipped: int) -> None:
    score = ObservationInformationGainGrader().evaluate(trajectory(*observations))
    assert score.score == 0.0
    assert not score.evaluable
    assert score.metadata["skipped"] == skipped


def test_content_parts_are_read() -> None:
    parts = [{"type": "text", "text": "alpha beta "}, {"type": "text", "text": "gamma delta"}]
    score = ObservationInformationGainGrader().evaluate(trajectory(parts, "alpha beta gamma delta"))
    assert score.score == 0.5
    assert score.metadata["repeats"] == 1


@pytest.mark.parametrize("threshold", [-1, 1.5, float("inf"), None])
def test_a_wrong_threshold_is_named(threshold: Any) -> None:
    with refuses("similarity_threshold"):
        ObservationInformationGainGrader(similarity_threshold=threshold)
