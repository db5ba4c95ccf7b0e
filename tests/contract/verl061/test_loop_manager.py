"""The loop manager, alone and with the batch manager behind it, as the async rollout uses them."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest
import tiny  # type: ignore[import-not-found]  # beside this file
import torch
from omegaconf import OmegaConf
from verl.experimental.reward.reward_loop import get_reward_loop_manager_cls
from verl.trainer.ppo.reward import compute_reward

from adjudge.errors import ConfigError
from adjudge.trainers.verl import JudgeRewardLoopManager, JudgeRewardManager, register
from adjudge.trainers.verl.rewards import MissingRewardUid


def config(spec: str, estimator: str = "adjudge_grpo") -> Any:
    return OmegaConf.create(
        {
            "algorithm": {"adv_estimator": estimator},
            "reward_model": {"reward_manager": "adjudge", "reward_kwargs": {"spec": spec}},
            "data": {"reward_fn_key": "data_source"},
        }
    )


def rewards_one_by_one(spec: str, data: Any) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        cls = get_reward_loop_manager_cls(register.MANAGER_NAME)
        loop = cls(config(spec), tiny.tokenizer(), None, None, None)
        return [await loop.run_single(data[i : i + 1]) for i in range(len(data))]

    return asyncio.run(run())


def test_each_rollout_has_the_same_keys_and_a_missing_reward_is_nan(spec: str) -> None:
    found = rewards_one_by_one(spec, tiny.batch(["good", "fail", ""]))
    scores = [row["reward_score"] for row in found]
    assert scores[0] == 1.0
    assert math.isnan(scores[1])
    assert scores[2] == 0.25
    assert len({tuple(row["reward_extra_info"]) for row in found}) == 1
    assert [row["reward_extra_info"]["reward_missing"] for row in found] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("validate", [False, True])
def test_the_batch_manager_finishes_what_the_loop_began(spec: str, validate: bool) -> None:
    texts = ["good", "poor", "fail", "fine"]
    data = tiny.batch(texts, meta={"validate": validate})
    direct = JudgeRewardManager(tiny.tokenizer(), 0, spec=spec)
    expected = direct(data, return_dict=True)
    found = rewards_one_by_one(spec, data)
    # As AgentLoopWorker._postprocess does.
    data.batch["rm_scores"] = torch.zeros(4, 8)
    last = data.batch["attention_mask"][:, -8:].sum(dim=1) - 1
    scores = torch.tensor([row["reward_score"] for row in found])
    data.batch["rm_scores"][torch.arange(4), last] = scores
    infos = [row["reward_extra_info"] for row in found]
    for key in infos[0]:
        data.non_tensor_batch[key] = np.array([info[key] for info in infos])
    data.meta_info["reward_extra_keys"] = list(infos[0])

    after = JudgeRewardManager(tiny.tokenizer(), 0, spec=spec)
    tensor, extra = compute_reward(data, after)
    assert torch.equal(tensor, expected["reward_tensor"])
    assert set(extra) == set(expected["reward_extra_info"])
    assert extra["reward_missing"] == [0, 0, 1, 0]
    assert after.metrics["judge/missing_frac/unparsable"] == 0.25
    assert after.metrics["judge/score_mean"] == direct.metrics["judge/score_mean"]
    if validate:
        assert all(isinstance(one, str) for one in extra["details"])
    else:
        assert isinstance(extra["uid"][2], MissingRewardUid)
        assert extra["details"] == expected["reward_extra_info"]["details"]


def test_other_estimators_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="adjudge_grpo"):
        JudgeRewardLoopManager(config(spec, "gae"), tiny.tokenizer())
