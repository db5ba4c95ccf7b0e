"""ms-swift: an answer without any reward is left out. Run with pytest where ms-swift is installed."""

import pytest
import torch

from swift.rl_core.advantage import (
    compute_advantages,
    compute_advantages_dynamic,
    compute_reward_metrics,
)
from swift.rl_core.grpo_algorithm import compute_std_for_dynamic_sampling

NAN = float("nan")
REWARDS = [0.62, 0.58, NAN, 0.65]  # None of a reward function, as ms-swift stores it
ESTIMATORS = [
    ("grpo", "group"),
    ("grpo", "none"),
    ("grpo", "batch"),
    ("rloo", "none"),
    ("reinforce_plus_plus", "group"),
]


def fixed(rewards, estimator, scale):
    table = torch.tensor(rewards).unsqueeze(1)
    return compute_advantages(table, torch.ones(1), len(rewards), estimator, scale)[0]


def multi_turn(rewards, estimator, scale):
    table, requests = (
        torch.tensor(rewards).unsqueeze(1),
        [str(place) for place in range(len(rewards))],
    )
    return compute_advantages_dynamic(
        table, torch.ones(1), ["p"] * len(rewards), requests, estimator, scale
    )[0]


@pytest.mark.parametrize("compute", [fixed, multi_turn])
@pytest.mark.parametrize(("estimator", "scale"), ESTIMATORS)
def test_the_others_learn_what_they_learn_alone(compute, estimator, scale):
    made = compute(REWARDS, estimator, scale)
    alone = compute([REWARDS[place] for place in (0, 1, 3)], estimator, scale)
    torch.testing.assert_close(made[[0, 1, 3]], alone, rtol=1e-5, atol=1e-5)
    assert made[2] == 0


@pytest.mark.parametrize("compute", [fixed, multi_turn])
@pytest.mark.parametrize(("estimator", "scale"), ESTIMATORS)
def test_a_lone_answer_has_nothing_to_compare_with(compute, estimator, scale):
    assert compute([NAN, 1.0, NAN, NAN], estimator, scale).tolist() == [0.0] * 4
    assert compute([NAN] * 4, estimator, scale).tolist() == [0.0] * 4


def test_the_log_and_dynamic_sampling_leave_the_answer_out():
    table = torch.tensor([1.0, 1.0, NAN, 1.0]).unsqueeze(1)
    assert compute_std_for_dynamic_sampling(table, torch.ones(1), 4).tolist() == [0.0] * 4
    logged = compute_reward_metrics(table.nansum(1), table, ["judge"], 4, "group")
    assert (logged.reward_mean, logged.reward_std, logged.frac_reward_zero_std) == (1.0, 0.0, 1.0)
