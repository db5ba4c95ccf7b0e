"""Which turn a reward belongs to, and a group's advantages."""

from typing import Any

import pytest

from adjudge.types import RewardResult
from adjudge_lab.environments import Episode
from adjudge_lab.rl.rollouts import (
    Rollout,
    RolloutTokens,
    compute_group_advantages,
    compute_turn_shares,
)
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file

GRADER = {"name": "q", "type": "llm", "template": "{response}", "score_range": [0, 1]}
EVENT = {**GRADER, "name": "e", "scope": "event"}


def run(
    *, judged: bool = True, mode: str = "weighted_sum", stepwise: bool = False, grpo: bool = False
) -> RunFile:
    data: dict[str, Any] = {
        "model": {"base": "tiny"},
        "algorithm": {"adv_estimator": "grpo" if grpo else "adjudge_grpo"},
        "rollout": {"env_name": "crafter"},
        "training": {"step_rewards_enabled": stepwise},
    }
    if judged:
        data |= {
            "graders": [GRADER, EVENT],
            "judge": {"model": "m", "combine_mode": mode, "event_weight": 0.5},
        }
    return resolve_run_file(data)


def rollout(turns: int, rewards: list[float]) -> Rollout:
    of = [place for turn in range(turns) for place in (turn, -1)][:-1]
    count = len(of)
    return Rollout(
        0, "1/0", Episode("e", 0, [], rewards), RolloutTokens([1], [2] * count, [0.0] * count, of)
    )


def result(score: float | None, events: list[float] | None) -> RewardResult:
    return RewardResult(0, 0, score, event_rewards=events)


def shares(
    given: RunFile, turns: int = 2, rewards: tuple[float, ...] = (1.0, 2.0), **of: Any
) -> Any:
    found = result(of.get("score", 3.0), of.get("events"))
    return compute_turn_shares(given, rollout(turns, list(rewards)), found)


def test_nothing_is_tied_to_turns_under_stock_grpo_or_without_a_reward() -> None:
    assert shares(run(grpo=True, stepwise=True), events=[0.25, 0.75]) is None
    assert shares(run(stepwise=True), score=None, events=None) is None


def test_what_does_not_match_the_replies_is_tied_to_none() -> None:
    assert shares(run(), events=[0.25]) is None
    assert shares(run(stepwise=True), rewards=(1.0,), events=[0.25, 0.75]) == [0.25, 0.75]
    assert shares(run(stepwise=True), rewards=(1.0, 2.0, 3.0)) is None
    assert shares(run(stepwise=True), rewards=(1.0, 2.0), events=[0.25]) == [1.0, 2.0]


def test_advantages_are_inside_groups_in_the_order_of_the_rollouts() -> None:
    """By hand: (r − mean) / (std + 1e-4), whatever lies between the members of a group."""
    found = compute_group_advantages([1.0, 5.0, 3.0, None], [None] * 4, ["a", "b", "a", "a"])
    assert found[1] == [0.0]  # alone
    assert found[3] is None
    each = 1.0 / (2.0**0.5 + 1e-4)
    assert [found[0], found[2]] == [pytest.approx([-each]), pytest.approx([each])]


def test_a_turn_answers_for_what_was_still_to_come() -> None:
    found = compute_group_advantages([1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]], ["a", "a"])
    scale = 0.5**0.5 + 1e-4
    assert found == [[0.0, pytest.approx(-0.5 / scale)], [0.0, pytest.approx(0.5 / scale)]]
