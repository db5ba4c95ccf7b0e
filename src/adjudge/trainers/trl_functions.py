"""Several reward functions of one TRL trainer, in which a missing reward is missing in all.

TRL leaves a completion out only if every function returns ``None`` for it. A ``None`` of one
function beside others counts as 0, or under ``normalize_then_sum`` as its group's mean, and so
changes what the others of the group learn. Hence:

* :func:`share_missing` takes a trainer's functions, and gives functions that leave out together;
* :func:`expose_environment_reward` gives an environment's own reward to the spec. TRL adds
  ``get_reward`` as a reward function named after the class, with weight 1; a spec that combines
  judges with ``env_reward`` would count it a second time.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from adjudge.engine.loop import run_all, run_blocking
from adjudge.errors import ConfigError
from adjudge.trainers.trl_batch import HIDDEN_REWARD, Rewards


class SharedFunction:
    """One of the functions of a ``share``: a reward that is missing in one is missing in all."""

    def __init__(self, share: RewardShare, place: int, name: str) -> None:
        self.share, self._place = share, place
        self.__name__ = self.__qualname__ = name

    def __call__(self, /, **given: Any) -> Rewards:
        """The rewards of the batch; TRL gives all arguments by name."""
        return self.share.take(self._place, given)


def shares_missing(functions: Sequence[Any]) -> bool:
    """Whether these are all functions of one share, and no other."""
    shares = {id(one.share) if isinstance(one, SharedFunction) else None for one in functions}
    return len(shares) == 1 and None not in shares


class RewardShare:
    """Asks all functions when the first is called for a batch, and leaves out of all together."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self._asked = list(functions)
        self.functions = [
            SharedFunction(self, place, _name(one)) for place, one in enumerate(functions)
        ]
        self._lock = threading.Lock()  # AsyncGRPO calls each function in a thread of its own
        self._completions: Any = None
        self._parts: dict[int, Rewards] = {}

    def __reduce__(self) -> Any:
        return RewardShare, (self._asked,)  # AsyncGRPO pickles reward functions

    def take(self, place: int, given: dict[str, Any]) -> Rewards:
        """The rewards of one function, which are given once."""
        with self._lock:
            if self._completions is not given["completions"] or place not in self._parts:
                self._parts = dict(enumerate(self._ask(given)))
                self._completions = given["completions"]
            return self._parts.pop(place)

    def _ask(self, given: dict[str, Any]) -> list[Rewards]:
        said = [one(**given) for one in self._asked]
        if any(map(inspect.isawaitable, said)):
            run_blocking(_await_all(said))
        columns = [list(one) for one in said]
        for function, column in zip(self._asked, columns, strict=True):
            if len(column) != len(given["completions"]):
                raise ConfigError(
                    f"share_missing: {_name(function)}: must return a reward for each completion "
                    f"(found {len(column)} for {len(given['completions'])})"
                )
        missing = [any(map(_is_missing, row)) for row in zip(*columns, strict=True)]
        return [
            [None if gone else one for one, gone in zip(column, missing, strict=True)]
            for column in columns
        ]


def share_missing(functions: Sequence[Any]) -> list[SharedFunction]:
    """The same reward functions, where a completion without a reward in one has none in any.

    For ``reward_funcs``, with all functions of the trainer. Each is asked once for each batch:
    plain ones in the thread that calls, then ``async def`` ones at the same time. Missing is
    ``None`` or NaN. Not for a function that returns ``None`` for rows of other tasks.

    Args:
        functions: Plain or ``async def`` reward functions of TRL, in the order of
            ``reward_weights``.

    Returns:
        As many plain functions, with the same names.

    Raises:
        ConfigError: For a reward model, which TRL calls in another way. The functions raise it
            where one returns another number of rewards than of completions.
    """
    for place, one in enumerate(functions):
        if not callable(one) or hasattr(one, "forward"):
            raise ConfigError(
                f"share_missing: functions[{place}]: must be a function (found a "
                f"{type(one).__name__}). Make the reward model a grader of the spec, or a function "
                "that calls the model."
            )
    return RewardShare(functions).functions


async def _await_all(said: list[Any]) -> None:
    async def settle(place: int) -> None:
        said[place] = await said[place]

    await run_all(settle(place) for place, one in enumerate(said) if inspect.isawaitable(one))


def _is_missing(reward: Any) -> bool:
    return reward is None or math.isnan(reward)


def _name(function: Any) -> str:
    """The name under which TRL logs it."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


# --- the reward of an environment -----------------------------------------------------------------


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
    body = {"get_reward": None, HIDDEN_REWARD: reward, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), body)
