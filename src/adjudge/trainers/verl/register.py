"""Importing this makes ``adjudge`` and ``adjudge_grpo`` names that verl knows.

No patch of verl is needed, in one of two ways:

* the environment variable ``VERL_USE_EXTERNAL_MODULES=adjudge.trainers.verl.register``, which verl
  imports in every process (in ``env_vars`` of a Ray job's runtime environment);
* this file as ``custom_reward_function.path``; its ``name`` may stay as it is.

verl 0.9.1 needs neither when it takes the manager as ``pkg://adjudge.trainers.verl``.

Importing it twice, or in both ways, is fine.
"""

from __future__ import annotations

from importlib.util import find_spec

from adjudge.trainers.verl import check_verl_version, installed_verl
from adjudge.trainers.verl.reward_managers import JudgeRewardLoopManager, JudgeRewardManager
from adjudge.trainers.verl.rewards import ADJUDGE_ESTIMATOR, adjudge_grpo

MANAGER_NAME = "adjudge"
"""The value of ``reward_model.reward_manager`` (0.9.1: ``reward.reward_manager.name``)."""

compute_score = JudgeRewardManager
"""What ``custom_reward_function.name`` finds; the manager takes its own class for "no function"."""


def register_adjudge() -> None:
    """Put the managers and the estimator into verl's registries; again is fine.

    Raises :class:`~adjudge.errors.ConfigError` for a verl in which they do not work.
    """
    check_verl_version(installed_verl())
    from verl.trainer.ppo.core_algos import register_adv_est  # noqa: PLC0415  (heavy)

    register_adv_est(ADJUDGE_ESTIMATOR)(adjudge_grpo)
    if find_spec("verl.experimental.reward_loop") is not None:
        from verl.experimental.reward_loop import reward_manager  # noqa: PLC0415

        reward_manager.register(MANAGER_NAME)(JudgeRewardLoopManager)
        return
    from verl.experimental.reward.reward_loop import registry  # noqa: PLC0415
    from verl.workers.reward_manager import register  # noqa: PLC0415

    register(MANAGER_NAME)(JudgeRewardManager)
    registry.register(MANAGER_NAME)(JudgeRewardLoopManager)


if find_spec("verl") is not None:  # tools that read documentation import every module
    register_adjudge()
