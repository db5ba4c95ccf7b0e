"""From what graders said to the reward that a trainer gets."""

from adjudge.graders.llm.reduce import soft_min
from adjudge.rewards.aggregate import Term, aggregate
from adjudge.rewards.combine import combine, judge_part, reduce_events
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.groups import group_step
from adjudge.rewards.samples import RewardFunction, RewardResult, RewardSample, check_results
from adjudge.rewards.spec import RewardSpec

__all__ = [
    "RewardFunction",
    "RewardResult",
    "RewardSample",
    "RewardSpec",
    "SpecRewardFunction",
    "Term",
    "aggregate",
    "check_results",
    "combine",
    "group_step",
    "judge_part",
    "reduce_events",
    "soft_min",
]
