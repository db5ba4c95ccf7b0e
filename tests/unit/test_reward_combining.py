"""A judge's part, events and the environment's reward made one."""

from typing import Any

import pytest
from tests.unit.helpers.reward_functions import build, samples, scored, values

from adjudge import ErrorKind, FunctionGrader
from adjudge.rewards.formulas import combine
from adjudge.rewards.spec import RewardSettings
from adjudge.types import GraderError


@pytest.mark.parametrize(
    ("mode", "env", "expected"),
    [
        ("replace", None, 5.0),
        ("weighted_sum", 2.0, 7.0),
        ("weighted_sum", -2.0, 3.0),
        ("multiply", 2.0, 10.0),
        ("multiply", 0.0, 0.0),
        ("multiply", -1.0, -5.0),
        ("multiply", None, None),
        ("weighted_sum", None, None),
    ],
)
def test_combining_with_the_environment(
    mode: Any, env: float | None, expected: float | None
) -> None:
    reward = combine(0.5, env, RewardSettings(combine_mode=mode, judge_scale=10.0))
    if expected is None:
        assert isinstance(reward, GraderError)
        assert reward.kind is ErrorKind.INVALID_INPUT
    else:
        assert reward == expected


def test_a_reward_is_finite_or_missing() -> None:
    modes: tuple[Any, ...] = ("replace", "weighted_sum", "multiply")
    for mode in modes:
        reward = combine(1e308, 1e308, RewardSettings(combine_mode=mode, judge_scale=1e308))
        assert isinstance(reward, GraderError)
        assert reward.kind is ErrorKind.OUT_OF_RANGE


def test_event_graders_judge_each_event() -> None:
    graders = {"step": scored(), "whole": FunctionGrader(lambda w: w, score_range=(0, 1))}
    made = build(
        graders,
        entries={"step": {"scope": "event"}},
        reward={"event_weight": 0.5, "combine_mode": "weighted_sum", "judge_scale": 2.0},
    )
    rows = samples(
        {"w": 0.5, "env_reward": 1.0, "events": [{"s": 0.2}, {"s": 0.4}]},
        {"w": 0.5, "env_reward": 1.0, "events": [{"s": 0.2}, {"s": "budget"}]},
        {"w": 0.5, "env_reward": 1.0, "events": []},
        {"w": 0.5, "env_reward": 1.0},
    )
    results = made.compute(rows)
    assert values(results) == [pytest.approx(1 + 2 * (0.5 * 0.6 + 0.5)), None, 2.0, None]
    assert results[0].reward_info["step_score"] == pytest.approx(0.3)
    assert results[1].missing is not None
    assert results[1].missing.kind is ErrorKind.BUDGET
    assert results[3].missing is not None
    assert "events" in results[3].missing.error
    assert {tuple(r.reward_info) for r in results} == {tuple(results[0].reward_info)}
