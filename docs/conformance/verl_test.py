"""verl: a rollout that failed is left out of the batch. Run with pytest where verl is installed.

verl 0.9.1 passes the first test and fails the second: a rollout that is left alone in its group
gets its bare reward as advantage, though the other groups of the batch are compared.
"""

import numpy as np
import pytest
import torch

from verl.trainer.ppo.core_algos import (
    compute_grpo_outcome_advantage,
    compute_rloo_outcome_advantage,
)

ESTIMATORS = [compute_grpo_outcome_advantage, compute_rloo_outcome_advantage]


def estimate(estimator, groups):
    scores = torch.tensor([score for group in groups for score in group])
    rewards = torch.stack([torch.zeros_like(scores), scores], dim=1)
    index = np.array([str(number) for number, group in enumerate(groups) for _ in group])
    return estimator(rewards, torch.ones_like(rewards), index)[0][:, 0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_other_groups_do_not_change(estimator):
    whole = estimate(estimator, [[1.0, 0.0, 0.5, 0.25], [0.0, 1.0, 1.0, 0.0]])
    part = estimate(estimator, [[1.0, 0.0, 0.5, 0.25], [0.0, 1.0]])
    torch.testing.assert_close(part[:4], whole[:4])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_rollout_that_is_left_alone_has_nothing_to_compare_with(estimator):
    made = estimate(estimator, [[1.0, 0.0, 0.5, 0.25], [1.0]])
    assert made[4] == 0
