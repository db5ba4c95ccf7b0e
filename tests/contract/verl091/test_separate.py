"""Rewards, missing ones included, in verl's one_step_off_policy and fully_async_policy."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
import tiny  # beside this file
from omegaconf import open_dict

from adjudge.errors import ConfigError, JudgeUnavailable
from adjudge.service.server import start_service
from adjudge.trainers.verl import JudgeRewardLoopManager

POLICIES = ["one_step_off_policy", "fully_async_policy"]
REGISTER = "adjudge.trainers.verl.register"
PROMPTS = [["good", "poor", "fail", "fine"], ["good", "good", "poor", "poor"]]
WITHOUT = [["fail"] * 4] * 2


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, spec: str) -> list[dict[str, Any]]:
    """A step with one missing reward, and one without any, by policy."""
    folder = tmp_path_factory.mktemp("separate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_USE_EXTERNAL_MODULES", REGISTER)
        cases = json.dumps([PROMPTS, WITHOUT])
        found: list[dict[str, Any]] = tiny.last_line(spec, "separate_on_cpu.py", folder, cases)
    return found


def z_scores(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return [(value - mean) / (std + 1e-6) for value in values]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_missing_reward_leaves_its_group_exactly(steps: list[Any], policy: str) -> None:
    rows = steps[0][policy]["rows"]
    first = dict(zip(["good", "poor", "fine"], z_scores([1.0, 0.0, 0.75]), strict=True))
    second = dict(zip(["good", "poor"], z_scores([1.0, 1.0, 0.0, 0.0])[1:3], strict=True))
    for words, expected, found in zip(PROMPTS, [first, second], [rows[:4], rows[4:]], strict=True):
        assert sorted(row["word"] for row in found) == sorted(words)
        for row in found:
            missing = row["word"] == "fail"
            assert row["missing"] == missing == math.isnan(row["reward"])
            wanted = 0.0 if missing else expected[row["word"]]
            assert row["advantages"][0] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_steps_metrics_come_with_the_update(steps: list[Any], policy: str) -> None:
    found = steps[0][policy]["metrics"]
    assert found["judge/missing_frac"] == found["judge/missing_frac/unparsable"] == 1 / 8
    assert found["judge/quality_score_mean"] == pytest.approx(3.75 / 7)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_any_reward_the_trainer_stops(steps: list[Any], policy: str) -> None:
    assert "MissingRewardError" in steps[1][policy]["error"]


def config(folder: Path, spec: str, policy: str, *overrides: str) -> Any:
    lines = [*tiny.MANAGER, f"+reward.reward_kwargs.spec={spec}", *overrides]
    made = tiny.config(folder, *lines)
    with open_dict(made):
        made.rollout = {"nnodes": 1, "n_gpus_per_node": 1}
        if policy == "fully_async_policy":
            made.async_training = {"staleness_threshold": 0.1}
    return made


@pytest.mark.parametrize(("policy", "raised"), zip(POLICIES, [True, False], strict=True))
def test_an_outage_ends_the_run_or_is_missing_where_it_would_look_finished(
    folder: Path, spec: str, policy: str, raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: Any, **__: Any) -> None:
        raise JudgeUnavailable("all judges are down")

    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", REGISTER)
    manager = JudgeRewardLoopManager(config(folder, spec, policy), tiny.tokenizer())
    vars(manager.scorer)["ascore"] = down
    if raised:
        with pytest.raises(JudgeUnavailable):
            asyncio.run(manager.run_single(tiny.batch(["good"])))
        return
    found = asyncio.run(manager.run_single(tiny.batch(["good"])))
    assert math.isnan(found["reward_score"])


@pytest.mark.parametrize(
    ("policy", "lines", "overrides", "what"),
    [
        (
            "one_step_off_policy",
            "",
            ["algorithm.adv_estimator=grpo"],
            "adv_estimator: .*adjudge_grpo",
        ),
        (
            "fully_async_policy",
            "",
            ["algorithm.adv_estimator=gae"],
            "adv_estimator: .*adjudge_grpo",
        ),
        ("fully_async_policy", '[missing]\npolicy = "raise"', [], "'raise' cannot end.*'mask'[.]"),
        ("fully_async_policy", '[reward]\ngroup = "rank"', [], "reward.group"),
    ],
)
def test_what_cannot_work_is_refused(
    folder: Path,
    spec: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    lines: str,
    overrides: list[str],
    what: str,
) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", REGISTER)
    path = tmp_path / "other.toml"
    path.write_text(f"{Path(spec).read_text()}\n{lines}\n")
    with pytest.raises(ConfigError, match=what):
        JudgeRewardLoopManager(config(folder, str(path), policy, *overrides), tiny.tokenizer())


def test_fully_async_needs_the_estimator_in_its_trainers_process(
    folder: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VERL_USE_EXTERNAL_MODULES", raising=False)
    with pytest.raises(ConfigError, match="VERL_USE_EXTERNAL_MODULES=adjudge.trainers.verl.regis"):
        JudgeRewardLoopManager(config(folder, spec, "fully_async_policy"), tiny.tokenizer())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_service_that_compares_groups_is_for_v1(
    folder: Path, spec: str, tmp_path: Path, policy: str
) -> None:
    path = tmp_path / "groups.toml"
    path.write_text(f'{Path(spec).read_text()}\n[reward]\ngroup = "z_score"\n')
    with start_service(str(path)) as url, pytest.raises(ConfigError, match="the V1 trainer"):
        JudgeRewardLoopManager(config(folder, url, policy), tiny.tokenizer())
