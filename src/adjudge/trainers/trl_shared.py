"""Several reward functions of one TRL trainer, in which a missing reward is missing in all.

TRL leaves a completion out only if every function returns ``None`` for it. A ``None`` of one
function beside others counts as 0, or under ``normalize_then_sum`` as its group's mean, and so
changes what the others of the group learn.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from adjudge.engine.loop import run_all, run_blocking
from adjudge.errors import ConfigError

Rewards = list[float | None]


def share_missing(functions: Sequence[Any]) -> list[Callable[..., Rewards]]:
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
    share = _Share(list(functions))
    return [_SharedFunction(share, place) for place in range(len(share.functions))]


def shares_missing(functions: Sequence[Any]) -> bool:
    """Whether these are all functions of one :func:`share_missing`, and no other."""
    shares = {id(getattr(one, "share", one)) for one in functions}
    return len(shares) == 1 and all(isinstance(one, _SharedFunction) for one in functions)


class _SharedFunction:
    """One of the functions: its part of what they all say of a batch."""

    def __init__(self, share: _Share, place: int) -> None:
        self.share, self._place = share, place
        self.__name__ = share.names[place]

    def __call__(self, /, **given: Any) -> Rewards:
        """The rewards of the batch; TRL gives all arguments by name."""
        return self.share.take(self._place, given)


class _Share:
    """Asks all functions when the first is called for a batch, and keeps what they say."""

    def __init__(self, functions: list[Callable[..., Any]]) -> None:
        self.functions = functions
        self.names = [_name(one) for one in functions]
        self._lock = threading.Lock()  # AsyncGRPO calls each function in a thread of its own
        self._completions: Any = None
        self._parts: dict[int, Rewards] = {}

    def __reduce__(self) -> Any:
        return _Share, (self.functions,)  # AsyncGRPO pickles reward functions

    def take(self, place: int, given: dict[str, Any]) -> Rewards:
        with self._lock:
            if self._completions is not given["completions"] or place not in self._parts:
                self._parts = dict(enumerate(self._ask(given)))
                self._completions = given["completions"]
            return self._parts.pop(place)

    def _ask(self, given: dict[str, Any]) -> list[Rewards]:
        said = [one(**given) for one in self.functions]
        if any(map(inspect.isawaitable, said)):
            run_blocking(_await_all(said))
        columns = [list(one) for one in said]
        for name, column in zip(self.names, columns, strict=True):
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
