"""The manager as verl 0.9.1 finds and makes it, one rollout at a time."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny  # beside this file
import torch
from verl.trainer import main_ppo_v0
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.reward import load_reward_manager, resolve_reward_manager_cls
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from adjudge.errors import ConfigError, GradingFailure, JudgeUnavailable, MissingRewardError
from adjudge.trainers.verl import JudgeRewardLoopManager
from adjudge.trainers.verl.batches import RowReader, last_output
from adjudge.trainers.verl.main_ppo import (
    JudgeMetricsMixin,
    MetricsTaskRunnerMixin,
    metrics_runner_bases,
)

V0 = ["trainer.use_v1=False"]
ASYNC = ["trainer.v1.trainer_mode=colocate_async"]
KEYS = ["quality_score", "outcome", "env_reward", "reward_missing", "details"]


def run(folder: Path, spec: str, overrides: list[str], *data: Any) -> list[dict[str, Any]]:
    async def rewards() -> list[dict[str, Any]]:
        manager = load_reward_manager(
            tiny.manager_config(folder, spec, *overrides),
            tiny.tokenizer(),
            reward_router_address=None,
            reward_model_tokenizer=None,
        )
        return [await manager.run_single(one) for one in data]

    return asyncio.run(rewards())


@pytest.mark.parametrize("overrides", [V0, ASYNC], ids=["v0", "async"])
def test_keys_are_the_same_and_a_missing_reward_is_nan(
    folder: Path, spec: str, overrides: list[str]
) -> None:
    data = tiny.batch(["good", "fail", ""])
    found = run(folder, spec, overrides, *(data[i : i + 1] for i in range(3)))
    scores = [row["reward_score"] for row in found]
    assert scores[0] == 1.0
    assert math.isnan(scores[1])
    assert scores[2] == 0.25
    infos = [row["reward_extra_info"] for row in found]
    assert [list(info) for info in infos] == [KEYS] * 3
    assert [info["reward_missing"] for info in infos] == [0.0, 1.0, 0.0]
    assert infos[1]["quality_score"] is None
    assert json.loads(infos[1]["details"])["missing"]["kind"] == "unparsable"


def test_columns_go_through_verls_validation(folder: Path, spec: str) -> None:
    data = tiny.batch(["good", "fail", "poor", "good"])
    found = run(folder, spec, V0, *(data[i : i + 1] for i in range(4)))
    infos = [row["reward_extra_info"] for row in found]
    columns = {key: [info[key] for info in infos] for key in KEYS}
    means = process_validation_metrics(["x"] * 4, ["u"] * 4, columns)["x"]
    assert means["quality_score"]["mean@3"] == pytest.approx(2 / 3)
    assert means["reward_missing"]["mean@4"] == 0.25
    assert not {"details", "env_reward"} & means.keys()


def test_in_the_sync_v1_trainer_a_missing_reward_is_an_exception(folder: Path, spec: str) -> None:
    assert run(folder, spec, [], tiny.batch(["good"]))[0]["reward_score"] == 1.0
    with pytest.raises(GradingFailure) as caught:
        run(folder, spec, [], tiny.batch(["fail"]))
    assert caught.value.kind == "unparsable"


def test_of_several_outputs_the_last_counts_whatever_the_padding(folder: Path, spec: str) -> None:
    """As ``AgentLoopWorker._compute_score`` pads them: each whole sequence on its right."""
    outputs = [("what is 2 + 3 ? 5", "fail fail fail fine"), ("what ?", "good")]
    prompts = [torch.tensor(tiny.ids(prompt)) for prompt, _ in outputs]
    answers = [torch.tensor([*tiny.ids(answer), 1]) for _, answer in outputs]
    masks = [
        torch.ones(len(p) + len(a), dtype=torch.int64)
        for p, a in zip(prompts, answers, strict=True)
    ]
    pad = torch.nn.utils.rnn.pad_sequence
    data = tiny.DataProto.from_dict(
        tensors={
            "prompts": pad(prompts, batch_first=True),
            "responses": pad(answers, batch_first=True),
            "attention_mask": pad(masks, batch_first=True),
        },
        non_tensors={
            "data_source": tiny.objects(["x"] * 2),
            "prompt_len": tiny.objects([len(p) for p in prompts]),
            "response_len": tiny.objects([len(a) for a in answers]),
        },
    )
    assert run(folder, spec, V0, data)[0]["reward_score"] == 1.0
    chat = np.array([[{"role": "user", "content": "2 + 3 ?"}]] * 2)
    data.non_tensor_batch["raw_prompt"] = chat
    reader = RowReader(tiny.tokenizer())
    [sample] = reader.read(last_output(data)).samples
    assert (sample.prompt, sample.messages) == ("2 + 3 ?", None)  # no half of a trajectory
    carried = [{"extras": {"messages": [*chat[0], {"role": "assistant", "content": "good"}]}}] * 2
    data.non_tensor_batch["tool_extra_fields"] = tiny.objects(carried)
    assert len(reader.read(last_output(data)).samples[0].messages or []) == 2


@pytest.mark.parametrize(
    ("content", "said"), [([{"image": "a.png"}, {"text": "5 ?"}], "5 ?"), ({"a": 1}, None)]
)
def test_messages_of_a_loop_cost_no_row_but_their_own(content: Any, said: str | None) -> None:
    talks = [[{"role": "user", "content": one}] for one in ("what ?", content)]
    carried = [{"messages": [*talk, {"role": "assistant", "content": "good"}]} for talk in talks]
    data = tiny.batch(["good", "good"], raw_prompt=talks, tool_extra_fields=carried)
    whole, other = RowReader(tiny.tokenizer()).read(data).samples
    assert (whole.prompt, other.prompt) == ("what ?", said)
    assert (whole.is_lost, other.is_lost) == (False, said is None)


@pytest.mark.parametrize("is_call", [False, True])
def test_a_turn_ends_in_a_call_only_where_the_run_offers_tools(
    folder: Path, spec: str, is_call: bool
) -> None:
    said = '<tool_call> {"name": "look", "arguments": {"word": "good"}} </tool_call>'
    tools = ["actor_rollout_ref.rollout.multi_turn.function_tool_path=tools.py"] * is_call
    manager = JudgeRewardLoopManager(tiny.manager_config(folder, spec, *tools), tiny.tokenizer())
    [sample] = manager.reader.read(tiny.batch([said], width=8)).samples
    assert sample.response == ("" if is_call else said)


def test_a_rollout_of_several_outputs_counts_once_in_its_group(folder: Path, spec: str) -> None:
    """As verl's own `grpo` has it; and what is missing is out, all its outputs with it."""
    resolve_reward_manager_cls(tiny.manager_config(folder, spec))
    keys = ["u_0_0", "u_0_1", "u_1_0", "u_2_0", "u_2_1", "u_2_2", "u_3_0", "w_0_0", "w_1_0"]
    worth = [1.0, 1.0, 0.0, 0.75, 0.75, 0.75, 0.25, 1.0, 0.0]

    def advantages(estimator: str, rewards: list[float], rows: list[int]) -> Any:
        tensors = {"token_level_rewards": torch.tensor(rewards)[rows, None] * torch.eye(2)[1]}
        tensors["response_mask"] = torch.ones(len(rows), 2)
        uids = tiny.objects([keys[row][0] for row in rows])
        data = tiny.DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})
        done = compute_advantage_for_multi_trajectories(
            data, [keys[row] for row in rows], estimator, config={}
        )
        return done.batch["advantages"]

    rows = list(range(len(keys)))
    assert torch.equal(advantages("adjudge_grpo", worth, rows), advantages("grpo", worth, rows))
    gone = [*worth[:3], *[math.nan] * 3, *worth[6:]]
    here = [0, 1, 2, 6, 7, 8]
    found = advantages("adjudge_grpo", gone, rows)
    assert torch.equal(found[here], advantages("grpo", worth, here))
    assert not found[3:6].any()


def test_scores_stand_on_the_last_valid_token() -> None:
    tensor = JudgeRewardLoopManager.assemble_rm_scores(
        tiny.batch(["good", "good fine", ""]), [1.0, math.nan, 0.25]
    )
    assert tensor[0].tolist() == [0, 1, 0, 0]
    assert tensor[1].isnan().tolist() == [False, False, True, False]
    assert tensor[2].tolist() == [0, 0, 0, 0.25]


@pytest.mark.parametrize("use_v1", [True, False])
def test_main_ppo_trains_with_verls_trainer_and_its_metrics(
    folder: Path, spec: str, monkeypatch: pytest.MonkeyPatch, use_v1: bool
) -> None:
    trainers: list[type] = []

    class Runner:
        def run(self, config: Any) -> None:
            mode = config.trainer.v1.trainer_mode
            trainers.append(get_trainer_cls(mode) if use_v1 else main_ppo_v0.RayPPOTrainer)

    monkeypatch.setattr(main_ppo_v0, "RayPPOTrainer", RayPPOTrainer)
    monkeypatch.setitem(TRAINER_REGISTRY, "sync", PPOTrainerSync)
    runner = type("Both", (MetricsTaskRunnerMixin, Runner), {})()
    runner.run(tiny.manager_config(folder, spec, f"trainer.use_v1={use_v1}"))
    stock = PPOTrainerSync if use_v1 else RayPPOTrainer
    assert trainers[0].__mro__[1:3] == (JudgeMetricsMixin, stock)
    mixin, own = metrics_runner_bases(use_v1=use_v1)
    assert mixin is MetricsTaskRunnerMixin
    assert own.__name__ == ("TaskRunnerV1" if use_v1 else "TaskRunner")


@pytest.mark.parametrize(
    ("lines", "overrides", "what"),
    [
        ('[reward]\ngroup = "rank"', V0, "reward.group"),
        ("[reward]\nsample_rate = 0.5", V0, "sample_rate"),
        ('[missing]\npolicy = "drop_group"', [], "drop_group"),
        ('[missing]\npolicy = "raise"', [], "'raise' cannot end"),
        ('[missing]\npolicy = "raise"', ASYNC, "'raise' cannot end"),
        ("", [*V0, "algorithm.adv_estimator=grpo"], "adjudge_grpo"),
        ("", [*ASYNC, "algorithm.adv_estimator=gae"], "adjudge_grpo"),
        ("", ["reward.reward_model.enable=True"], "reward_model.enable"),
        ("", [*V0, tiny.ROLLOUTS], "is for the V1 trainers"),
    ],
)
def test_what_cannot_work_is_refused_where_the_trainer_starts(
    folder: Path, spec: str, tmp_path: Path, lines: str, overrides: list[str], what: str
) -> None:
    """Not only in reward workers, whose failures the V1 trainer takes for failed rollouts."""
    path = tmp_path / "other.toml"
    path.write_text(f"{Path(spec).read_text()}\n{lines}\n")
    wrong = tiny.manager_config(folder, str(path), *overrides)
    with pytest.raises(ConfigError, match=what):
        resolve_reward_manager_cls(wrong)
    with pytest.raises(ConfigError, match=what):
        JudgeRewardLoopManager(wrong, tiny.tokenizer())


@pytest.mark.parametrize(
    ("lines", "overrides"),
    [
        ('[missing]\npolicy = "raise"', [*V0, "algorithm.adv_estimator=gae"]),
        ("", ["algorithm.adv_estimator=grpo"]),
        ("", ["algorithm.adv_estimator=rloo"]),
    ],
)
def test_other_estimators_may_stay_where_a_rollout_can_be_absent(
    folder: Path, spec: str, tmp_path: Path, lines: str, overrides: list[str]
) -> None:
    path = tmp_path / "other.toml"
    path.write_text(f"{Path(spec).read_text()}\n{lines}\n")
    assert resolve_reward_manager_cls(tiny.manager_config(folder, str(path), *overrides))


@pytest.mark.parametrize(
    ("overrides", "raised"), [(V0, True), ([], True), (ASYNC, False)], ids=["v0", "sync", "async"]
)
def test_an_outage_is_raised_unless_it_would_be_swallowed_for_ever(
    folder: Path, spec: str, overrides: list[str], raised: bool
) -> None:
    async def down(*_: Any, **__: Any) -> None:
        raise JudgeUnavailable("all judges are down")

    manager = JudgeRewardLoopManager(
        tiny.manager_config(folder, spec, *overrides), tiny.tokenizer()
    )
    vars(manager.scorer)["ascore"] = down
    if raised:
        with pytest.raises(JudgeUnavailable):
            asyncio.run(manager.run_single(tiny.batch(["good"])))
        return
    found = asyncio.run(manager.run_single(tiny.batch(["good"])))
    assert math.isnan(found["reward_score"])
    assert list(found["reward_extra_info"]) == KEYS


def test_the_estimator_leaves_nan_out_and_stops_without_any_reward(folder: Path, spec: str) -> None:
    resolve_reward_manager_cls(tiny.manager_config(folder, spec))
    ours, stock = get_adv_estimator_fn("adjudge_grpo"), get_adv_estimator_fn("grpo")
    rewards = torch.tensor([[0, 1.0], [0, 0.0], [0, math.nan], [0, 0.75], [0, 0.5]])
    mask = torch.ones(5, 2)
    uids = tiny.objects(["a", "a", "a", "a", "b"])
    here = [0, 1, 3]
    found, _ = ours(token_level_rewards=rewards, response_mask=mask, index=uids, config={})
    expected, _ = stock(rewards[here], mask[here], uids[here])
    assert torch.allclose(found[here], expected, atol=1e-6)
    assert found[[2, 4]].abs().sum() == 0
    padding = torch.cat([torch.zeros(1, 2), torch.full((2, 2), math.nan)])
    with pytest.raises(MissingRewardError, match="not one reward"):
        ours(padding, torch.tensor([[0, 0], [1, 1], [1, 1]]), tiny.objects(["p", "a", "a"]))
