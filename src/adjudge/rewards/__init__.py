"""From what graders said to the reward that a trainer gets."""

from adjudge.rewards.formulas import group_step
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import RewardSpec
from adjudge.types import RewardFunction, RewardResult, RewardSample, check_results

__all__ = [
    "RewardFunction",
    "RewardResult",
    "RewardSample",
    "RewardSpec",
    "SpecRewardFunction",
    "check_results",
    "group_step",
]
