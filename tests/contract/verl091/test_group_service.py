"""Specs that compare groups, behind a judge service, under verl's own V1 rollouts and trainers."""

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny  # beside this file
from tiny import last_line
from verl.trainer.ppo.reward import resolve_reward_manager_cls

from adjudge.errors import ConfigError
from adjudge.rewards import RewardSample
from adjudge.service.server import start_service
from adjudge.trainers.scoring import Scorer
from adjudge.trainers.verl import JudgeRewardLoopManager

GROUPS = tiny.SPEC + '\n[reward]\ngroup = "z_score"\n'
ASYNC = ["trainer.v1.trainer_mode=colocate_async"]
PROMPTS = [["good", "poor", "fail", "fine"], ["good", "crash", "poor", "fine"]]
WHOLE = [["good", "poor", "fail", "fine"], ["good", "good", "poor", "fine"]]
TWO_ACTORS = "reward.num_workers=2"
CASES: dict[str, dict[str, Any]] = {
    "announced": {
        "mode": "sync",
        "prompts": PROMPTS,
        "slots": 1,
        "overrides": [tiny.ROLLOUTS, TWO_ACTORS, "actor_rollout_ref.rollout.val_kwargs.n=2"],
    },
    "asynchronous": {
        "mode": "colocate_async",
        "prompts": WHOLE,
        "overrides": [tiny.ROLLOUTS, TWO_ACTORS],
    },
}


@pytest.fixture(scope="module")
def group_spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("groups") / "groups.toml"
    path.write_text(GROUPS)
    return path


@pytest.fixture(scope="module")
def service(group_spec: Path) -> Iterator[str]:
    with start_service(str(group_spec), group_timeout_s=60.0) as url:
        yield url


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory, service: str) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("v1")
    found = last_line(service, "v1_on_cpu.py", folder, json.dumps(list(CASES.values())))
    return dict(zip(CASES, found, strict=True))


def locally(spec: Path, words: list[str]) -> dict[str, float | None]:
    """Rewards of the same spec for a whole group, by answer."""
    samples = [RewardSample(i, i, "is 5 ?", word) for i, word in enumerate(words)]
    return dict(zip(words, Scorer(spec).score(samples, ["g"] * len(words)).rewards, strict=True))


def check_rewards(spec: Path, step: dict[str, Any], prompts: list[list[str]]) -> None:
    """Every real row has the reward that its whole group gives it here."""
    assert "error" not in step, step
    for row in step["rows"]:
        if row["padding"]:
            continue
        there = [word for word in prompts[row["prompt"]] if word != "crash"]
        expected = locally(spec, there)[row["word"]]
        if expected is None:
            assert math.isnan(row["reward"])
        else:
            assert row["reward"] == pytest.approx(expected, abs=1e-5)


def counts(row: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = json.loads(row["info"]["details"])["group"]
    return found


def test_announced_groups_get_their_rewards_with_one_generation_slot(
    v1: dict[str, Any], group_spec: Path
) -> None:
    """With one slot for eight rollouts, one that waited in it would let no group come together."""
    step = v1["announced"]["step"]
    check_rewards(group_spec, step, PROMPTS)
    real = [row for row in step["rows"] if not row["padding"]]
    assert sorted((row["prompt"], row["word"]) for row in real) == [
        *[(0, "fine"), (0, "good"), (0, "poor")],
        *[(1, "fine"), (1, "good"), (1, "poor")],
    ]
    whole = {"size": 4, "present": 4, "aborted": 0, "absent": 0}
    without = {"size": 4, "present": 3, "aborted": 1, "absent": 0}
    for row in real:
        assert counts(row) == [whole, without][row["prompt"]]
        assert list(row["info"]) == ["quality_score", "env_reward", "reward_missing", "details"]
        assert row["info"]["quality_score"] == {"good": 1.0, "poor": 0.0, "fine": 0.75}[row["word"]]


def test_validation_has_groups_of_its_own_size(v1: dict[str, Any]) -> None:
    """Two answers of each prompt: `good` and `poor`; of the second only `good`."""
    found = v1["announced"]["validation"]
    assert found["val-core/judge/x/reward/mean@2"] == pytest.approx(0.0, abs=1e-6)
    assert found["val-aux/judge/x/quality_score/mean@2"] == 0.5


def test_asynchronous_trainers_keep_a_missing_reward_as_nan(
    v1: dict[str, Any], group_spec: Path
) -> None:
    step = v1["asynchronous"]["step"]
    rows = step["rows"]
    assert len(rows) == 8
    missing = [row for row in rows if math.isnan(row["reward"])]
    assert [row["word"] for row in missing] == ["fail"]
    assert missing[0]["advantages"] == [0.0] * len(missing[0]["advantages"])
    assert json.loads(missing[0]["info"]["details"])["missing"]["kind"] == "unparsable"
    assert len({tuple(row["info"]) for row in rows}) == 1
    samples = [RewardSample(i, i, "is 5 ?", word) for i, word in enumerate(WHOLE[1])]
    expected = Scorer(group_spec).score(samples, ["g"] * 4).rewards
    second = sorted((row["word"], row["reward"]) for row in rows if row["prompt"] == 1)
    for (word, found), (same, reward) in zip(
        second, sorted(zip(WHOLE[1], expected, strict=True)), strict=True
    ):
        assert word == same
        assert found == pytest.approx(reward, abs=1e-5)


def together(verls: Any, words: list[str], **columns: list[Any]) -> list[dict[str, Any]]:
    """One manager's answers to rollouts of one group that come at the same time."""
    size = len(words)
    data = tiny.batch(words, uid=["one"] * size, session_id=list(range(size)), **columns)

    async def rewards() -> list[dict[str, Any]]:
        manager = JudgeRewardLoopManager(verls, tiny.tokenizer())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(manager.run_single(data[i : i + 1])) for i in range(size)]
        return [task.result() for task in tasks]

    return asyncio.run(rewards())


def test_one_that_never_comes_costs_the_others_the_groups_timeout(
    folder: Path, group_spec: Path
) -> None:
    with start_service(str(group_spec), group_timeout_s=1.0) as url:
        found = together(tiny.manager_config(folder, url), ["good", "poor", "fine"])
    expected = locally(group_spec, ["good", "poor", "fine"])
    assert [row["reward_score"] for row in found] == pytest.approx(list(expected.values()))
    for row in found:
        group = json.loads(row["reward_extra_info"]["details"])["group"]
        assert group == {"size": 4, "present": 3, "aborted": 0, "absent": 1}


def test_a_service_that_compares_nothing_is_asked_for_each_rollout(folder: Path, spec: str) -> None:
    with start_service(spec) as url:
        found = together(
            tiny.manager_config(folder, url, "trainer.use_v1=False"), ["good", "fine", "fail"]
        )
    scores = [row["reward_score"] for row in found]
    assert scores[:2] == [1.0, 0.75]
    assert math.isnan(scores[2])
    keys = ["served_score", "outcome", "env_reward", "reward_missing", "details"]
    assert [list(row["reward_extra_info"]) for row in found] == [keys] * 3


def test_a_rollout_whose_group_is_unknown_is_missing(folder: Path, service: str) -> None:
    data = tiny.batch(["good"])
    data.non_tensor_batch.pop("uid")
    manager = JudgeRewardLoopManager(tiny.manager_config(folder, service, *ASYNC), tiny.tokenizer())
    found = asyncio.run(manager.run_single(data))
    assert math.isnan(found["reward_score"])
    assert "no uid" in found["reward_extra_info"]["details"]


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["actor_rollout_ref.rollout.val_kwargs.n=1"], "agent_loop_manager_class"),
        (["data.train_batch_size=512"], "reward.num_workers: must be at least 3.*found 1"),
        ([*ASYNC, "data.train_batch_size=256"], "reward.num_workers: must be at least 3.*found 1"),
        ([*ASYNC, "algorithm.adv_estimator=gae"], "adjudge_grpo"),
        (["trainer.use_v1=False"], "the V1 trainer"),
    ],
)
def test_what_cannot_work_is_refused_where_the_trainer_starts(
    folder: Path, service: str, overrides: list[str], what: str
) -> None:
    wrong = tiny.manager_config(folder, service, *overrides)
    with pytest.raises(ConfigError, match=what):
        resolve_reward_manager_cls(wrong)
    with pytest.raises(ConfigError, match=what):
        JudgeRewardLoopManager(wrong, tiny.tokenizer())


def test_a_spec_file_that_compares_groups_names_the_service(folder: Path, group_spec: Path) -> None:
    with pytest.raises(ConfigError, match="adjudge serve"):
        resolve_reward_manager_cls(tiny.manager_config(folder, str(group_spec)))
