"""Importing this makes the rewards of judges' training a reward manager that verl 0.6.1 knows.

It is the run's ``custom_reward_function.path``, which verl loads, as a file, wherever it looks a
manager up: in Ray tasks and actors, too. Importing it twice is fine.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from adjudge_lab.judge_training.verl.reward import JUDGE_MANAGER_NAME, JudgementRewardManager

__all__ = ["JUDGE_MANAGER_NAME", "compute_score", "register_judge_manager"]

compute_score = JudgementRewardManager
"""What ``custom_reward_function.name`` finds; the manager does not call it."""


def register_judge_manager() -> None:
    """Put the manager into verl's registry; again is fine. Without a verl before 0.7: nothing."""
    if find_spec("verl") is None or find_spec("verl.workers.reward_manager") is None:
        return  # tools that read documentation import every module
    import_module("verl.workers.reward_manager").register(JUDGE_MANAGER_NAME)(
        JudgementRewardManager
    )


register_judge_manager()
