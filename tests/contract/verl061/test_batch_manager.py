"""The batch manager under verl's own loader: shapes, places, missing rewards."""

import functools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import tiny  # type: ignore[import-not-found]  # beside this file
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.reward import compute_reward, load_reward_manager

from adjudge.errors import ConfigError, JudgeUnavailable
from adjudge.rewards import RewardFunction, RewardResult
from adjudge.trainers.verl import JudgeRewardManager, register
from adjudge.trainers.verl.rewards import MissingRewardUid

RESPONSES = ["the answer good", "the answer poor", "fail", "fine", "a b", "good", "", "poor"]


def config(estimator: str = "adjudge_grpo", path: Any = None, name: str = "compute_score") -> Any:
    return OmegaConf.create(
        {
            "algorithm": {"adv_estimator": estimator},
            "reward_model": {"reward_manager": "adjudge", "reward_kwargs": {}},
            "data": {"reward_fn_key": "data_source"},
            "custom_reward_function": {"path": path, "name": name, "reward_kwargs": {}},
        }
    )


def manager(spec: str, estimator: str = "adjudge_grpo", num_examine: int = 0) -> Any:
    return load_reward_manager(config(estimator), tiny.tokenizer(), num_examine, spec=spec)


def test_the_registered_manager_puts_rewards_on_the_last_valid_token(spec: str) -> None:
    data = tiny.batch(RESPONSES)
    tensor, extra = compute_reward(data, manager(spec))
    assert tensor.shape == (8, 8)
    assert tensor.dtype == torch.float32
    expected = {0: (3, 1.0), 1: (3, 0.0), 3: (1, 0.75), 4: (2, 0.25), 5: (1, 1.0), 6: (7, 0.25)}
    for row, (place, reward) in expected.items():
        assert tensor[row, place] == reward
        assert tensor[row].sum() == reward
    assert extra["reward_missing"] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert extra["quality_score"][0] == 1.0
    assert math.isnan(extra["quality_score"][2])
    assert {len(column) for column in extra.values()} == {8}
    assert extra["details"][2]["missing"]["kind"] == "unparsable"


def test_a_missing_reward_is_its_groups_mean_and_its_uid_is_marked(spec: str) -> None:
    data = tiny.batch(RESPONSES)
    tensor, extra = compute_reward(data, manager(spec))
    assert tensor[2].sum() == pytest.approx((1.0 + 0.0 + 0.75) / 3)
    marked = [isinstance(uid, MissingRewardUid) for uid in extra["uid"]]
    assert marked == [False, False, True, False, False, False, False, False]
    assert list(extra["uid"]) == list(data.non_tensor_batch["uid"])


def test_groups_are_uids_else_prompts(spec: str) -> None:
    reader = JudgeRewardManager(tiny.tokenizer(), 0, spec=spec).reader
    data = tiny.batch(["good"] * 4, n=2)
    assert reader.read(data).groups == ["u0", "u0", "u1", "u1"]
    assert [sample.group_index for sample in reader.read(data).samples] == [0, 1, 0, 1]
    del data.non_tensor_batch["uid"]
    assert len(set(reader.read(data).groups)) == 1


def test_without_a_conversation_there_are_no_messages(tmp_path: Path) -> None:
    path = tmp_path / "loops.toml"
    path.write_text('[[graders]]\nname = "loop"\ntype = "action_loop"\n')
    one = manager(str(path))
    data = tiny.batch(["a b c"], width=3, ended=False)
    (sample,) = one.reader.read(data).samples
    assert sample.messages is None
    assert sample.prompt == "what is 2 + 3 ?"
    assert dict(sample.extra or {})["finish_reason"] == "length"
    (detail,) = one(data, return_dict=True)["reward_extra_info"]["details"]
    assert detail["missing"]["kind"] == "invalid_input"


def test_rewards_that_are_there_are_not_judged_again(spec: str) -> None:
    data = tiny.batch(["good"] * 2, other=[0.5, 0.5], meta={"reward_extra_keys": ["other"]})
    data.batch["rm_scores"] = torch.full((2, 8), 0.125)
    tensor, extra = compute_reward(data, manager(spec))
    assert tensor is data.batch["rm_scores"]
    assert list(extra) == ["other"]


def test_validation_means_are_those_of_what_is_there(spec: str) -> None:
    texts = ["good", "fail", "good", "poor", "fail", "fail", "fine", "fine"]
    data = tiny.batch(texts, n=2, meta={"validate": True})
    result = manager(spec)(data, return_dict=True)
    infos = {"reward": result["reward_tensor"].sum(-1).tolist(), **result["reward_extra_info"]}
    found = process_validation_metrics(
        data.non_tensor_batch["data_source"], data.non_tensor_batch["uid"], infos
    )["judge/x"]
    assert found["reward"]["mean@2"] == pytest.approx((1.0 + 0.5 + 0.75) / 3)
    assert found["quality_score"]["mean@2"] == pytest.approx((1.0 + 0.5 + 0.75) / 3)
    assert found["reward_missing"]["mean@2"] == pytest.approx(3 / 8)
    assert "details" not in found
    assert "uid" not in infos


def test_stock_grpo_gets_means_and_a_logged_factor(
    spec: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = manager(spec, "grpo")
    _, extra = compute_reward(tiny.batch(RESPONSES), one)
    factor = math.sqrt(3 / 2)
    assert one.metrics["judge/inflation_max"] == pytest.approx(factor)
    assert one.metrics["judge/inflation_mean"] == pytest.approx((factor + 1) / 2)
    assert f"up to {factor:.3f} times" in caplog.text
    assert extra["judge_metrics"][0] == one.metrics
    exact = manager(spec)
    compute_reward(tiny.batch(RESPONSES), exact)
    assert "judge/inflation_max" not in exact.metrics


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus", "rloo", "remax"])
def test_estimators_that_cannot_leave_out_are_refused_at_the_start(
    spec: str, estimator: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="adjudge_grpo"):
        manager(spec, estimator)
    strict = tmp_path / "strict.toml"
    strict.write_text(Path(spec).read_text() + '\n[missing]\npolicy = "raise"\n')
    assert isinstance(manager(str(strict), estimator), JudgeRewardManager)


def test_the_registering_file_serves_as_custom_reward_function(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_SPEC", spec)
    found = load_reward_manager(config(path=register.__file__), tiny.tokenizer(), 0)
    assert isinstance(found, JudgeRewardManager)


def test_a_custom_function_that_would_never_be_called_is_refused(spec: str, tmp_path: Path) -> None:
    path = tmp_path / "rf.py"
    path.write_text("def compute_score(**kw):\n    return 1.0\n")
    with pytest.raises(ConfigError, match="'compute_score' would never be called"):
        load_reward_manager(config(path=str(path)), tiny.tokenizer(), 0, spec=spec)


class Best(RewardFunction):
    """Prefers the longest answer of a group; says nothing about empty ones."""

    async def compute_batch_scores(self, prompt_to_samples: Any) -> list[RewardResult]:
        found = []
        for group in prompt_to_samples.values():
            longest = max(len(sample.response) for sample in group)
            for sample in group:
                best = float(len(sample.response) == longest)
                score = best if sample.response else None
                info: dict[str, float | None] = (
                    {"length": float(len(sample.response))} if sample.response else {}
                )
                found.append(RewardResult(sample.original_index, sample.group_index, score, info))
        return found[::-1]


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: functools.partial(print, f)])
def test_a_reward_function_of_ones_own(wrap: Any) -> None:
    one = JudgeRewardManager(tiny.tokenizer(), 0, compute_score=wrap(Best()))
    tensor, extra = compute_reward(tiny.batch(["a", "a b", "", "c"]), one)
    assert tensor.sum(-1).tolist() == pytest.approx([0.0, 1.0, 1 / 3, 0.0])
    assert extra["reward_missing"] == [0, 0, 1, 0]
    assert extra["length"][:2] == [1.0, 3.0]
    assert math.isnan(extra["length"][2])


class Down(RewardFunction):
    calls = 0

    async def compute_batch_scores(self, prompt_to_samples: Any) -> list[RewardResult]:
        type(self).calls += 1
        raise JudgeUnavailable("judges are down")


def test_an_outage_stops_the_run_and_is_not_waited_for_twice() -> None:
    one = JudgeRewardManager(tiny.tokenizer(), 0, compute_score=Down())
    with pytest.raises(JudgeUnavailable):
        compute_reward(tiny.batch(["a"]), one)
    assert Down.calls == 1


def test_num_examine_prints_per_data_source_and_escapes(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tiny.batch(RESPONSES, data_source=["x"] * 4 + ["\x1b[31m"] * 4)
    manager(spec, num_examine=1)(data)
    printed = capsys.readouterr().out
    assert printed.count("[response]") == 2
    assert "[score] 1.0" in printed
    manager(spec, num_examine=3)(data)
    assert "[score] missing: unparsable" in capsys.readouterr().out


def test_a_pickled_manager_scores_the_same(spec: str) -> None:
    one = manager(spec)
    again = pickle.loads(pickle.dumps(one))
    data = tiny.batch(RESPONSES)
    assert torch.equal(again(data), one(data))
    marks = pickle.loads(pickle.dumps(one(data, return_dict=True)["reward_extra_info"]["uid"]))
    assert isinstance(marks[2], MissingRewardUid)


def test_a_batch_is_recorded_with_its_step_and_evaluations_stand_apart(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_RECORD", str(tmp_path / "run"))
    one = manager(spec)
    tensor, _ = compute_reward(tiny.batch(RESPONSES, meta={"global_steps": 5}), one)
    compute_reward(tiny.batch(["good", "poor"], meta={"global_steps": 5, "validate": True}), one)
    one.source.recorder.close()
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").open()]
    assert [row["step"] for row in rows] == [5] * 8
    for row, given in zip(rows, tensor.sum(dim=1).tolist(), strict=True):
        assert row["reward"] == (None if row["missing"] else pytest.approx(given))
    assert [row["missing"] and row["missing"]["kind"] for row in rows][2] == "unparsable"
    held_out = (tmp_path / "run" / "evaluation_rollouts.jsonl").read_text().splitlines()
    assert len(held_out) == 2
