"""Rewards on the turns that earned them, in verl 0.9.1's own V1 rollouts and advantages."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tiny  # beside this file
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl_words import BY_TURN  # type: ignore[import-not-found]  # above

from adjudge.trainers.verl import JudgeRewardLoopManager
from adjudge.trainers.verl.agent_loops import TurnOutput
from adjudge.trainers.verl.rewards import TurnReward
from adjudge_lab.rl.rollouts import turn_advantages

PROMPTS = [["good", "poor", "fail", "fine"]]
EVENTS = {"good": [1.0, 0.0], "poor": [0.0, 1.0], "fine": [0.75, 0.75]}
MESSAGES = [
    {"role": "user", "content": "what ?"},
    {"role": "assistant", "content": "good"},
    {"role": "user", "content": "what ?"},
    {"role": "assistant", "content": "fine"},
]


@pytest.fixture(scope="module")
def by_turn(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("turns") / "reward.toml"
    path.write_text(BY_TURN)
    return str(path)


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory, by_turn: str) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("v1")
    loops = folder / "loops.yaml"
    loops.write_text("- name: two_turns\n  _target_: two_turns.TwoTurns\n")
    agent = "actor_rollout_ref.rollout.agent"
    lines = [f"{agent}.agent_loop_config_path={loops}", f"{agent}.default_agent_loop=two_turns"]
    cases = {"ours": [*lines, tiny.ROLLOUTS], "verl's own": lines}
    listed = [{"mode": "sync", "prompts": PROMPTS, "overrides": case} for case in cases.values()]
    found = tiny.last_line(by_turn, "v1_on_cpu.py", folder, json.dumps(listed))
    return dict(zip(cases, found, strict=True))


def rows_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert "error" not in found["step"], found["step"]
    return {row["word"]: row for row in found["step"]["rows"] if not row["padding"]}


def test_in_our_rollouts_each_turn_has_its_advantage(v1: dict[str, Any]) -> None:
    rows = rows_of(v1["ours"])
    assert rows.keys() == EVENTS.keys()  # the failed one is absent
    totals = [sum(events) for events in EVENTS.values()]
    expected = dict(zip(EVENTS, turn_advantages(totals, list(EVENTS.values())), strict=True))
    for word, row in rows.items():
        first, second = expected[word] or []
        assert row["mask"] == [1, 1, 0, 0, 0, 1, 1]
        assert row["scores"] == [0, EVENTS[word][0], 0, 0, 0, 0, EVENTS[word][1]]
        wanted = [first, first, 0, 0, 0, second, second]
        assert row["advantages"] == pytest.approx(wanted, abs=1e-5)


def test_in_verls_own_the_turns_share_one(v1: dict[str, Any]) -> None:
    rows = rows_of(v1["verl's own"])
    expected = turn_advantages([1.0, 1.0, 1.5], [None] * 3)
    for (word, events), [one] in zip(EVENTS.items(), filter(None, expected), strict=True):
        assert rows[word]["scores"] == [0] * 6 + [sum(events)]
        wanted = [one * mask for mask in rows[word]["mask"]]
        assert rows[word]["advantages"] == pytest.approx(wanted, abs=1e-5)


def test_validation_sees_the_same_rewards(v1: dict[str, Any]) -> None:
    for found in v1.values():
        assert found["validation"]["val-aux/judge/x/turn_score/mean@3"] == pytest.approx(3.5 / 6)


@pytest.mark.parametrize(
    ("overrides", "carries"),
    [([], True), (["algorithm.adv_estimator=grpo"], False), (["trainer.use_v1=False"], False)],
    ids=["ours", "stock", "v0"],
)
def test_a_v1_score_carries_its_events(
    folder: Path, by_turn: str, overrides: list[str], carries: bool
) -> None:
    config = tiny.manager_config(folder, by_turn, *overrides)
    manager = JudgeRewardLoopManager(config, tiny.tokenizer())
    data = tiny.batch(
        ["good fine"], tool_extra_fields=[{"messages": MESSAGES}], raw_prompt=[MESSAGES[:1]]
    )
    score = asyncio.run(manager.run_single(data))["reward_score"]
    assert score == 1.75
    assert isinstance(score, TurnReward) is carries
    if carries:
        assert score.events == (1.0, 0.75)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([0.5, 0.25], [0, 0.5, 0, 1.5]),
        ([9.0, 0.5, 0.25], [0, 0, 0, 2.0]),
        ([0.5], [0, 0, 0, 2.0]),
        ([float("inf"), 0.5], [0, 0, 0, 2.0]),
    ],
)
def test_an_output_keeps_all_it_holds_and_places_its_reward(
    events: list[float], expected: list[float]
) -> None:
    given = AgentLoopOutput(
        prompt_ids=[5],
        response_ids=[6, 7, 8, 9],
        response_mask=[1, 1, 0, 1],
        response_logprobs=[0.0] * 4,
        metrics=AgentLoopMetrics(),
        extra_fields={"a": 1},
    )
    given.reward_score = TurnReward(2.0, events)
    placed, whole = TurnOutput.of(given).as_dict(), given.as_dict()
    assert placed.pop("rm_scores").tolist() == expected
    assert whole.pop("rm_scores").tolist() == [0, 0, 0, 2.0]
    assert placed.keys() == whole.keys()
    for name, value in whole.items():
        same = placed[name] == value
        assert same.all() if isinstance(same, torch.Tensor) else same
