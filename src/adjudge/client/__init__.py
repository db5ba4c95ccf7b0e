"""The client of a judge service: rewards over HTTP that never stall training."""

from adjudge.client.batcher import JudgeRewardResult
from adjudge.client.exchange import GroupClient
from adjudge.client.grader import ServedGrader
from adjudge.client.reward_system import (
    BaseJudgeReward,
    JudgeRewardSystem,
    MultiCritiqueJudge,
    create_judge_reward,
)

__all__ = [
    "BaseJudgeReward",
    "GroupClient",
    "JudgeRewardResult",
    "JudgeRewardSystem",
    "MultiCritiqueJudge",
    "ServedGrader",
    "create_judge_reward",
]
