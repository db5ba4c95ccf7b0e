"""Advantages through verl's own code: what is missing changes nothing else, to the bit."""

from typing import Any

import numpy as np
import pytest
import tiny  # type: ignore[import-not-found]  # beside this file
import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.reward import compute_reward

from adjudge.trainers.verl import JudgeRewardManager, adjudge_grpo, register  # noqa: F401  (makes the name known)

RESPONSES = [
    "good",
    "poor",
    "fail",
    "fine",
    "a b",
    "good",
    "fail",
    "fail",
    "fail",
    "fail",
    "fail",
    "a",
]


def advantages(spec: str, estimator: str, responses: list[str], **algorithm: Any) -> Any:
    data = tiny.batch(responses)
    manager = JudgeRewardManager(tiny.tokenizer(), 0, spec=spec, adv_estimator=estimator)
    tensor, extra = compute_reward(data, manager)
    # As RayPPOTrainer.fit does.
    data.batch["token_level_scores"] = data.batch["token_level_rewards"] = tensor
    data.non_tensor_batch.update({key: np.array(column) for key, column in extra.items()})
    norm = algorithm.get("norm_adv_by_std_in_grpo", True)
    compute_advantage(data, estimator, norm_adv_by_std_in_grpo=norm, config=algorithm)
    return data.batch["advantages"], tensor, data


@pytest.mark.parametrize("norm", [True, False])
def test_the_rest_is_bit_for_bit_what_stock_grpo_gives_without_the_missing_rows(
    spec: str, norm: bool
) -> None:
    found, tensor, data = advantages(spec, "adjudge_grpo", RESPONSES, norm_adv_by_std_in_grpo=norm)
    there = [row for row in range(8) if "fail" not in RESPONSES[row]]
    expected, _ = compute_grpo_outcome_advantage(
        tensor[there],
        data.batch["response_mask"][there],
        data.non_tensor_batch["uid"][there],
        norm_adv_by_std_in_grpo=norm,
    )
    assert torch.equal(found[there], expected)
    assert expected.abs().sum() > 0
    missing = [row for row, text in enumerate(RESPONSES) if text == "fail"]
    assert torch.all(found[missing] == 0)
    assert torch.all(found[11] == 0)  # alone in its group
    assert torch.isfinite(found).all()


def test_with_nothing_missing_and_one_turn_each_it_is_stock_grpo() -> None:
    torch.manual_seed(0)
    rewards = torch.randn(32, 6)  # on every token, as with a KL term in the reward
    mask = (torch.arange(6) < torch.randint(1, 7, (32, 1))).float()
    index = np.array([f"u{i % 4}" for i in range(32)], dtype=object)
    expected, _ = compute_grpo_outcome_advantage(rewards, mask, index)
    assert torch.equal(adjudge_grpo(rewards, mask, index)[0], expected)
