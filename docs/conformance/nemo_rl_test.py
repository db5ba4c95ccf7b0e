"""NeMo-RL: a masked rollout has no say in its group. Run with pytest where NeMo-RL is installed."""

from types import SimpleNamespace

import pytest
import torch

from nemo_rl.algorithms.advantage_estimator import GDPOAdvantageEstimator, GRPOAdvantageEstimator

REWARDS = torch.tensor([1.0, 0.0, 0.0, 0.5])  # the second rollout has no reward: 0, and masked
OTHER = torch.tensor([0.2, 0.9, 0.4, 0.1])
LIVE = [0, 2, 3]


def estimate(estimator, rewards, other, masked, leave_one_out, normalize):
    config = SimpleNamespace(
        use_leave_one_out_baseline=leave_one_out, normalize_rewards=normalize, reward_weights=None
    )
    mask = torch.ones(len(rewards), 3)
    mask[masked] = 0.0
    made = estimator(config, {}).compute_advantage(
        prompt_ids=torch.zeros(len(rewards), 1, dtype=torch.long),
        rewards=rewards,
        repeated_batch={"reward/judge": rewards, "reward/rule": other},
        mask=mask,
    )
    return made[:, 0]


@pytest.mark.parametrize("estimator", [GRPOAdvantageEstimator, GDPOAdvantageEstimator])
@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("reward", [0.0, float("nan")])
def test_the_others_learn_what_they_learn_alone(estimator, leave_one_out, normalize, reward):
    rewards = REWARDS.clone()
    rewards[1] = reward
    made = estimate(estimator, rewards, OTHER, [1], leave_one_out, normalize)
    alone = estimate(estimator, REWARDS[LIVE], OTHER[LIVE], [], leave_one_out, normalize)
    torch.testing.assert_close(made[LIVE], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_a_lone_rollout_has_nothing_to_compare_with(leave_one_out):
    made = estimate(GRPOAdvantageEstimator, REWARDS, OTHER, [1, 2, 3], leave_one_out, True)
    assert made[0] == 0
