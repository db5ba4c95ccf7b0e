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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'adjudge.client' has no attribute {name!r}")
    home = "grader" if name == "ServedGrader" else "reward_system"
    value = getattr(import_module(f"adjudge.client.{home}"), name)
    globals()[name] = value
    return value
