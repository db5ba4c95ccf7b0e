"""Graders of events, and what each event adds to a reward."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.helpers.reward_functions import build, samples, scored, values

from adjudge import ErrorKind, FunctionGrader, RewardResult

TURNS: list[dict[str, Any]] = [{"s": 0.25}, {"s": 0.5}, {"s": 1.0}]


def results(
    extras: Sequence[dict[str, Any]], missing: dict[str, Any] | None = None, **reward: Any
) -> list[RewardResult]:
    rule = FunctionGrader(lambda: 1.0, "rule", score_range=(0, 1))
    rule.is_rule = True
    whole = FunctionGrader(lambda w: w, score_range=(0, 1))
    made = build(
        {"step": scored(), "whole": whole, "rule": rule},
        entries={"step": {"scope": "event"}, "rule": {"weight": 0.0}},
        reward={"event_weight": 0.5, "judge_scale": 4.0, **reward},
        missing=missing,
    )
    return made.compute(samples(*extras))


def test_event_graders_judge_each_event() -> None:
    told: tuple[Any, ...] = ([{"s": 0.2}, {"s": 0.4}], [{"s": 0.2}, {"s": "budget"}], [], None)
    rows = [{"w": 0.5, "env_reward": 1.0, **({} if e is None else {"events": e})} for e in told]
    found = results(rows, combine_mode="weighted_sum", judge_scale=2.0)
    assert values(found) == [pytest.approx(1 + 2 * (0.5 * 0.6 + 0.5)), None, 2.0, None]
    assert found[0].reward_info["step_score"] == pytest.approx(0.3)
    assert found[1].missing is not None
    assert found[1].missing.kind is ErrorKind.BUDGET
    assert found[3].missing is not None
    assert "events" in found[3].missing.error
    assert {tuple(one.reward_info) for one in found} == {tuple(found[0].reward_info)}


@pytest.mark.parametrize(("mode", "env"), [("weighted_sum", 3.0), ("replace", 0.0)])
@pytest.mark.parametrize(
    ("reduce", "expected"), [("sum", [0.5, 1.0, 2.0]), ("mean", [0.5 / 3, 1 / 3, 2 / 3])]
)
def test_with_the_rest_they_are_the_score(
    mode: str, env: float, reduce: str, expected: list[float]
) -> None:
    [found] = results(
        [{"w": 0.75, "env_reward": 3.0, "events": TURNS}], combine_mode=mode, event_reduce=reduce
    )
    assert found.event_rewards == pytest.approx(expected)
    assert found.score == pytest.approx(math.fsum(expected) + env + 4.0 * 0.75)


def test_a_group_step_moves_the_rest_only() -> None:
    rows = [{"w": w, "events": TURNS} for w in (0.0, 1.0)]
    found = results(rows, combine_mode="replace", group="centre")
    assert [one.event_rewards for one in found] == [[0.5, 1.0, 2.0]] * 2
    assert [one.score for one in found] == pytest.approx([3.5 - 2.0, 3.5 + 2.0])


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({"events": [{"s": 0.5}, {"s": "budget"}]}, {}),
        ({"events": []}, {}),
        ({"events": []}, {"event_reduce": "mean"}),
        ({}, {}),
        ({"events": TURNS}, {"combine_mode": "multiply"}),
        ({"events": TURNS}, {"event_weight": 0.0}),
        ({"events": TURNS}, {"combine_mode": "weighted_sum", "sample_rate": 1e-12}),
        ({"events": TURNS, "w": "budget"}, {"missing": {"policy": "fallback", "fallback": "rule"}}),
    ],
    ids=["failed", "none", "no mean", "unknown", "multiply", "weighs 0", "not drawn", "fallback"],
)
def test_what_is_no_sum_over_events_says_nothing(
    row: dict[str, Any], settings: dict[str, Any]
) -> None:
    [found] = results([{"w": 0.5, "env_reward": 1.0, **row}], **settings)
    assert found.event_rewards is None
    source = (found.details or {})["source"]
    sources = {"sample_rate": "none", "missing": "rule_fallback"}
    assert source == next((sources[key] for key in settings if key in sources), "graders")
