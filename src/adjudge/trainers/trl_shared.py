"""Several reward functions of one TRL trainer, in which a missing reward is missing in all.

TRL leaves a completion out only if every function returns ``None`` for it. A ``None`` of one
function beside others counts as 0, or under ``normalize_then_sum`` as its group's mean, and so
changes what the others of the group learn.
"""

from __future__ import annotations

import inspect
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from adjudge.engine.loop import run_all, run_blocking
from adjudge.errors import ConfigError

Rewards = list[float | None]


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
    return _FunctionShare(list(functions)).functions


def shares_missing(functions: Sequence[Any]) -> bool:
    """Whether these are all functions of one :func:`share_missing`, and no other."""
    shares = {id(getattr(one, "share", one)) for one in functions}
    return len(shares) == 1 and all(isinstance(one, SharedFunction) for one in functions)


class SharedFunction:
    """One of a trainer's functions: its part of what a share says of a batch."""

    def __init__(self, share: RewardShare, place: int, name: str) -> None:
        self.share, self._place = share, place
        self.__name__ = self.__qualname__ = name

    def __call__(self, /, **given: Any) -> Rewards:
        """The rewards of the batch; TRL gives all arguments by name."""
        return self.share.take(self._place, given)


class RewardShare(ABC):
    """Asks once for the rewards of all functions, when the first is called for a batch."""

    def __init__(self, names: Sequence[str]) -> None:
        self.functions = [SharedFunction(self, *row) for row in enumerate(names)]
        self._lock = threading.Lock()  # AsyncGRPO calls each function in a thread of its own
        self._completions: Any = None
        self._parts: dict[int, Rewards] = {}

    def take(self, place: int, given: dict[str, Any]) -> Rewards:
        """The rewards of one function, which are given once."""
        with self._lock:
            if self._completions is not given["completions"] or place not in self._parts:
                self._parts = dict(enumerate(self.ask(given)))
                self._completions = given["completions"]
            return self._parts.pop(place)

    @abstractmethod
    def ask(self, given: dict[str, Any]) -> Sequence[Rewards]:
        """The rewards of each function for one call of the trainer."""


class _FunctionShare(RewardShare):
    """Asks the functions themselves."""

    def __init__(self, asked: list[Callable[..., Any]]) -> None:
        self._names, self._asked = [_name(one) for one in asked], asked
        super().__init__(self._names)

    def __reduce__(self) -> Any:
        return _FunctionShare, (self._asked,)  # AsyncGRPO pickles reward functions

    def ask(self, given: dict[str, Any]) -> list[Rewards]:
        said = [one(**given) for one in self._asked]
        if any(map(inspect.isawaitable, said)):
            run_blocking(_await_all(said))
        columns = [list(one) for one in said]
        for name, column in zip(self._names, columns, strict=True):
            if len(column) != len(given["completions"]):
                raise ConfigError(
                    f"share_missing: {name}: must return a reward for each completion (found "
                    f"{len(column)} for {len(given['completions'])})"
                )
        missing = [any(map(_is_missing, row)) for row in zip(*columns, strict=True)]
        return [
            [None if gone else one for one, gone in zip(column, missing, strict=True)]
            for column in columns
        ]


async def _await_all(said: list[Any]) -> None:
    async def settle(place: int) -> None:
        said[place] = await said[place]

    await run_all(settle(place) for place, one in enumerate(said) if inspect.isawaitable(one))


def _is_missing(reward: Any) -> bool:
    return reward is None or math.isnan(reward)


def _name(function: Any) -> str:
    """The name under which TRL logs it."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
