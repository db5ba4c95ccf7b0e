"""Several reward functions of one TRL trainer, in which a missing reward is missing in all.

TRL leaves a completion out only if every function returns ``None`` for it. A ``None`` of one
function beside others counts as 0, or under ``normalize_then_sum`` as its group's mean, and so
changes what the others of the group learn. Hence:

* :func:`share_missing` takes a trainer's functions, and gives functions that leave out together;
* :func:`make_rewards` makes a function for each grader of a spec, for
  ``multi_objective_aggregation="normalize_then_sum"``, which is GDPO: TRL then normalises each
  function within its group and adds them up with ``reward_weights``;
* :func:`expose_environment_reward` gives an environment's own reward to the spec. TRL adds
  ``get_reward`` as a reward function named after the class, with weight 1; a spec that combines
  judges with ``env_reward`` would count it a second time.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from adjudge.engine.loop import run_all, run_blocking
from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.adapter import AdapterOptions
from adjudge.trainers.trl import TrlAdapter
from adjudge.trainers.trl_batch import HIDDEN_REWARD, Rewards, SharedFunction, TrlBatch
from adjudge.types import Role


class RewardShare:
    """Asks once for the rewards of all functions, when the first is called for a batch.

    ``ask`` gives the rewards of each function in the order of ``names`` for one call of the
    trainer.
    """

    def __init__(
        self, names: Sequence[str], ask: Callable[[dict[str, Any]], Sequence[Rewards]]
    ) -> None:
        self._names, self._ask = names, ask
        self.functions = [
            SharedFunction(self, functools.partial(self.take, place), name)
            for place, name in enumerate(names)
        ]
        self._lock = threading.Lock()  # AsyncGRPO calls each function in a thread of its own
        self._completions: Any = None
        self._parts: dict[int, Rewards] = {}

    def __reduce__(self) -> Any:
        return RewardShare, (self._names, self._ask)  # AsyncGRPO pickles reward functions

    def take(self, place: int, given: dict[str, Any]) -> Rewards:
        """The rewards of one function, which are given once."""
        with self._lock:
            if self._completions is not given["completions"] or place not in self._parts:
                self._parts = dict(enumerate(self._ask(given)))
                self._completions = given["completions"]
            return self._parts.pop(place)


# --- a trainer's own functions --------------------------------------------------------------------


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
    ask = functools.partial(_ask_functions, list(functions))
    return RewardShare([_name(one) for one in functions], ask).functions


def _ask_functions(functions: list[Callable[..., Any]], given: dict[str, Any]) -> list[Rewards]:
    said = [one(**given) for one in functions]
    if any(map(inspect.isawaitable, said)):
        run_blocking(_await_all(said))
    columns = [list(one) for one in said]
    for function, column in zip(functions, columns, strict=True):
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


# --- a function of each grader --------------------------------------------------------------------


class RewardVector(NamedTuple):
    """For a trainer: its ``reward_funcs``, and the ``reward_weights`` of its configuration."""

    functions: list[SharedFunction]
    weights: list[float]


def make_rewards(
    spec: RewardSpec | Path | str | None = None, **options: Unpack[AdapterOptions]
) -> RewardVector:
    """A reward function for each grader with a weight, called as the grader, and the weights.

    All share one grading of each batch, so each grader is asked once. ``options`` are those of
    :class:`~adjudge.trainers.adapter.Adapter`. A function returns its grader's score of each
    completion as it would enter the sum (in [0, 1] where the spec normalises), and ``None`` in
    every function where the reward is missing. Graders of weight 0 are logged only.

    Raises :class:`~adjudge.errors.ConfigError` for a spec that says more than a weighted sum:
    a group step, gates, events, the environment's reward, ``aggregate`` of another kind,
    ``missing.policy = "fallback"``, schedules of weights. The functions raise what
    ``make_reward``'s does.
    """
    adapter = _VectorAdapter(spec, **options)
    counting = [entry for entry in adapter.spec.graders if entry.name in adapter.names]
    share = RewardShare(adapter.names, adapter.ask)
    return RewardVector(share.functions, [entry.weight_at(0) for entry in counting])


class _VectorAdapter(TrlAdapter):
    """From TRL's arguments to a list of rewards for each grader."""

    _ALLOWED: Mapping[str, tuple[Any, ...]] = {
        "reward.group": ("none",),
        "reward.combine_mode": ("replace",),
        "reward.event_weight": (0.0,),
        "reward.outcome_weight": (1.0,),
        "reward.judge_scale": (1.0,),
        "reward.aggregate": ("weighted_mean", "points"),
        "missing.policy": ("mask", "drop_group", "raise"),
    }

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._check_sum()
        self.names = [one.name for one in self.spec.graders if one.name in self.spec.counting]

    def _check_sum(self) -> None:
        where = self.spec.where
        self.spec.refuse_schedules("reward_weights of TRL, fixed before the first step,", "")
        for key, allowed in self._ALLOWED.items():
            if (found := attrgetter(key)(self.spec)) not in allowed:
                raise ConfigError(
                    f"{where}: {key}: must be {' or '.join(map(repr, allowed))} where TRL adds up "
                    f"the graders itself (found {found!r}). Set it, or use make_reward."
                )
        for name in self.spec.counting:
            if getattr(self.scorer.graders[name], "role", Role.SCORE) == Role.GATE:
                raise ConfigError(
                    f"{where}: graders.{name}: is a gate, which multiplies, but TRL adds up the "
                    "graders. Use weight = 0, or make_reward."
                )

    def ask(self, given: dict[str, Any]) -> list[Rewards]:
        """The scores of each grader in :attr:`names`; ``None`` where the reward is missing."""
        batch = TrlBatch(**given)
        layout = batch.find_layout()
        scored = run_blocking(self.score_batch(batch, layout))
        whole_groups = layout.broken is None
        components = self.scorer.components(scored.judged, whole_groups=whole_groups)
        pairs = [*zip(scored.rewards, components, strict=True)]
        return [
            [None if reward is None or one is None else one.get(name) for reward, one in pairs]
            for name in self.names
        ]

    def check_trainer(self, trainer: Any) -> None:
        """Refuse functions beside these, and warn once of other weights."""
        functions = getattr(trainer, "reward_funcs", None) or ()
        if len(functions) > len(self.names) and self.spec.missing.policy != "raise":
            raise ConfigError(
                f"{self.spec.where}: missing.policy: does not hold beside other reward functions: "
                "a row that is missing in these alone would count there, with 0 or the mean in "
                f"these (found {len(functions)} functions for {len(self.names)} graders; allowed "
                "here: 'raise'). Make the others graders of the spec."
            )
        weights = getattr(trainer, "reward_weights", None)
        said = [entry.weight_at(0) for entry in self.spec.graders if entry.name in self.names]
        found = said if weights is None else [float(weight) for weight in weights]
        if len(found) != len(said) or not all(map(_is_close, found, said)):
            self.warn(
                f"the trainer's reward_weights are {found}, and the spec's weights {said}. Give "
                "reward_weights=make_rewards(…).weights to the trainer's configuration."
            )


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)  # TRL keeps float32


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
