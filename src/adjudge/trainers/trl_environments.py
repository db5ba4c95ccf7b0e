"""Rewards that TRL's environments have: counted once, by the trainer or by the spec.

An environment with ``get_reward`` owns a reward: TRL adds it as a reward function of its own, named
after the class, with weight 1. A spec that combines judges with ``env_reward`` would count it a
second time. Either the spec leaves it alone (``combine_mode = "replace"``), or it gets it, by
:func:`expose_environment_reward`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

_HIDDEN = "_adjudge_environment_reward"  # TRL makes tools of names without an underscore


def expose_environment_reward(factory: Callable[[], Any]) -> Callable[[], Any]:
    """``environment_factory`` whose environments give their reward to the spec, and not to TRL.

    ``factory`` is a class or a function. What ``get_reward`` returns, awaited where it must be,
    is the sample's ``env_reward``; ``None`` is missing.

        GRPOTrainer(environment_factory=expose_environment_reward(Wordle),
                    reward_funcs=make_reward("reward.toml"), …)
    """

    @functools.wraps(factory, updated=())
    def make() -> Any:
        environment = factory()
        if hasattr(type(environment), "get_reward"):
            kind: Any = type(environment)  # hashable, though mypy does not know
            environment.__class__ = _hide_reward(kind)
        return environment

    return make


@functools.cache
def _hide_reward(kind: type) -> type:
    """The class without what TRL looks for; cached, since TRL compares environments' types."""
    reward = getattr(kind, "get_reward")  # noqa: B009  (no type says that it is there)
    body = {"get_reward": None, _HIDDEN: reward, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), body)


async def read_environment_rewards(environments: Sequence[Any]) -> list[Any]:
    """What each environment's exposed reward says, else its attribute ``env_reward``."""
    return [await _read_reward(environment) for environment in environments]


async def _read_reward(environment: Any) -> Any:
    reward = getattr(environment, _HIDDEN, None)
    if reward is None:
        return getattr(environment, "env_reward", None)
    found = reward()
    return await found if inspect.isawaitable(found) else found
