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

0.6.1 scores whole batches, 0.9.1 one rollout at a time. Later versions are taken as 0.9.1, with a
warning; others are refused before anything is generated.

Nothing here imports verl or torch before it is used.
"""

from __future__ import annotations

import logging
import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from adjudge.errors import ConfigError

_MODULE_OF = {
    "JudgeAgentLoopManager": "agent_loops",
    "JudgeMetricsMixin": "main_ppo",
    "JudgeRewardLoopManager": "reward_managers",
    "JudgeRewardManager": "reward_managers",
    "JudgeToolAgentLoop": "agent_loops",
    "JudgeTrainerMixin": "main_ppo",
    "adjudge_grpo": "rewards",
    "make_reward": "reward_managers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    if name == "JudgeRewardLoopManager":  # looked up anew by every trainer that starts
        import_module(f"{__name__}.main_ppo").check_before_workers()
    else:
        globals()[name] = value
    return value


SUPPORTED_VERSIONS = ("0.6.1", "0.9.1")

_OLD, _NEW = (0, 6, 1), (0, 9, 1)
_log = logging.getLogger("adjudge")


def installed_verl() -> str | None:
    """The version of verl that is installed; ``None`` without one."""
    try:
        return version("verl")
    except PackageNotFoundError:
        return None


def check_verl_version(found: str | None) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for a version in which the managers do not work.

    >>> check_verl_version("0.9.1")
    >>> check_verl_version("0.7.0")
    Traceback (most recent call last):
    ...
    adjudge.errors.ConfigError: verl: version 0.7.0 is not supported (found 0.7.0; ...
    """
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", found or "")
    release = _NEW if numbers is None else tuple(map(int, numbers.groups()))
    if release > _NEW:
        _log.warning(
            "verl %s is newer than those that adjudge was tested with (%s)",
            found, ", ".join(SUPPORTED_VERSIONS),
        )  # fmt: skip
    elif release not in (_OLD, _NEW):
        raise ConfigError(
            f"verl: version {found} is not supported (found {found}; allowed: "
            f"{', '.join(SUPPORTED_VERSIONS)}, or newer). Install one of these."
        )
