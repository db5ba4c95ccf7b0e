"""A reward spec inside verl: managers, an exact advantage estimator, a trainer mixin.

verl 0.6.1 must know their names before its configuration is read. The environment variable
``VERL_USE_EXTERNAL_MODULES=adjudge.trainers.verl.register`` does that in every process, and so
does that module's file as ``custom_reward_function.path``. Then::

    reward_model.reward_manager=adjudge algorithm.adv_estimator=adjudge_grpo

verl 0.9.1 takes the manager by its path, which makes the estimator known, too::

    reward.reward_manager.source=importlib reward.reward_manager.name=JudgeRewardLoopManager
    reward.reward_manager.module.path=pkg://adjudge.trainers.verl
    algorithm.adv_estimator=adjudge_grpo

and, where a judge service compares groups, for advantages per turn, or for conversations of the
tool loop, rollouts from here too::

    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=\
        adjudge.trainers.verl.JudgeAgentLoopManager

Nothing here imports verl or torch before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "JudgeAgentLoopManager",
    "JudgeMetricsMixin",
    "JudgeRewardLoopManager",
    "JudgeRewardManager",
    "JudgeToolAgentLoop",
    "JudgeTrainerMixin",
    "adjudge_grpo",
]

if TYPE_CHECKING:
    from adjudge.trainers.verl.advantage import adjudge_grpo
    from adjudge.trainers.verl.agent_loops import JudgeAgentLoopManager
    from adjudge.trainers.verl.reward_managers import JudgeRewardLoopManager, JudgeRewardManager
    from adjudge.trainers.verl.step_metrics import JudgeMetricsMixin
    from adjudge.trainers.verl.tool_loop import JudgeToolAgentLoop
    from adjudge.trainers.verl.trainer import JudgeTrainerMixin

_MODULE_OF = {
    "JudgeAgentLoopManager": "agent_loops",
    "JudgeMetricsMixin": "step_metrics",
    "JudgeRewardLoopManager": "reward_managers",
    "JudgeRewardManager": "reward_managers",
    "JudgeToolAgentLoop": "tool_loop",
    "JudgeTrainerMixin": "trainer",
    "adjudge_grpo": "advantage",
    "make_reward": "reward_managers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    if name == "JudgeRewardLoopManager":  # looked up anew by every trainer that starts
        import_module(f"{__name__}.trainer").check_before_workers()
    else:
        globals()[name] = value
    return value
