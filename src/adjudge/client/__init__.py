"""The client of a judge service: rewards over HTTP that never stall training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.client.grader import ServedGrader
    from adjudge.client.reward_system import (
        BaseJudgeReward,
        JudgeRewardResult,
        JudgeRewardSystem,
        MultiCritiqueJudge,
        create_judge_reward,
    )

__all__ = [
    "BaseJudgeReward",
    "JudgeRewardResult",
    "JudgeRewardSystem",
    "MultiCritiqueJudge",
    "ServedGrader",
    "create_judge_reward",
]

_MODULE_OF = {
    "BaseJudgeReward": "reward_system",
    "JudgeRewardResult": "reward_system",
    "JudgeRewardSystem": "reward_system",
    "MultiCritiqueJudge": "reward_system",
    "ServedGrader": "grader",
    "create_judge_reward": "reward_system",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'adjudge.client' has no attribute {name!r}")
    value = getattr(import_module(f"adjudge.client.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
