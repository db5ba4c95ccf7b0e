"""From what graders said to the reward that a trainer gets."""

from adjudge.rewards.formulas import group_step
from adjudge.rewards.function import RewardFunction, SpecRewardFunction, check_results
from adjudge.rewards.spec import RewardSpec
from adjudge.types import RewardResult, RewardSample

__all__ = [
    "RewardFunction",
    "RewardResult",
    "RewardSample",
    "RewardSpec",
    "SpecRewardFunction",
    "check_results",
    "group_step",
]
