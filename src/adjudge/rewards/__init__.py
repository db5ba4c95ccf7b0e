"""From what graders said to the reward that a trainer gets."""

from adjudge.rewards.aggregate import (
    AggregateTerm,
    aggregate,
    combine,
    combine_parts,
    reduce_events,
)
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.groups import group_step
from adjudge.rewards.spec import RewardSpec
from adjudge.types import RewardFunction, RewardResult, RewardSample, check_results

__all__ = [
    "AggregateTerm",
    "RewardFunction",
    "RewardResult",
    "RewardSample",
    "RewardSpec",
    "SpecRewardFunction",
    "aggregate",
    "check_results",
    "combine",
    "combine_parts",
    "group_step",
    "reduce_events",
]
