"""A reward spec as one reward function of TRL's trainers for each grader: a vector of rewards.

For ``multi_objective_aggregation="normalize_then_sum"``, which is GDPO: TRL then normalises each
function within its group and adds them up with ``reward_weights``.

TRL sums what functions there are, so that a component alone that is missing would count as 0, or
under GDPO as its group's mean. A sample without one of its components is therefore ``None`` in
every function: TRL leaves such a row out of all means and deviations, and its advantage is 0.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.adapter import DEFAULT_NAME
from adjudge.trainers.recorder import FlightRecorder
from adjudge.trainers.trl import TrlAdapter
from adjudge.trainers.trl_batch import TrlBatch, find_group_layout, group_equal_prompts
from adjudge.trainers.trl_shared import Rewards
from adjudge.types import Role


class RewardVector(NamedTuple):
    """For a trainer: its ``reward_funcs``, and the ``reward_weights`` of its configuration."""

    functions: list[Callable[..., Coroutine[Any, Any, Rewards]]]
    weights: list[float]


def make_rewards(
    spec: RewardSpec | Path | str | None = None,
    *,
    name: str = DEFAULT_NAME,
    columns: Mapping[str, str] | None = None,
    record: FlightRecorder | Path | str | None = None,
) -> RewardVector:
    """A reward function for each grader with a weight, called as the grader, and the weights.

    All share one grading of each batch, so each grader is asked once. Options are those of
    :func:`~adjudge.trainers.trl.make_reward`. A function returns its grader's score of each
    completion as it would enter the sum (in [0, 1] where the spec normalises), and ``None`` in
    every function where the reward is missing. Graders of weight 0 are logged only.

    Raises :class:`~adjudge.errors.ConfigError` for a spec that says more than a weighted sum:
    a group step, gates, events, the environment's reward, ``aggregate`` of another kind,
    ``missing.policy = "fallback"``, schedules of weights. The functions raise what
    ``make_reward``'s does.
    """
    adapter = _VectorAdapter(spec, name=name, columns=columns, record=record)
    counting = [entry for entry in adapter.spec.graders if entry.name in adapter.names]
    return RewardVector(
        [_make_function(adapter, entry.name) for entry in counting],
        [entry.weight_at(0) for entry in counting],
    )


def _make_function(
    adapter: _VectorAdapter, grader: str
) -> Callable[..., Coroutine[Any, Any, Rewards]]:
    async def scored(*given: Any, **columns: Any) -> Rewards:
        return await adapter.scores_of(grader, TrlBatch(*given, **columns))

    scored.__name__ = scored.__qualname__ = grader
    scored.__doc__ = f"Scores of {grader} in {adapter.spec.where}; None is missing."
    return scored


@dataclass
class _Grading:
    """One grading of a batch, and which functions have had their part of it."""

    completions: Sequence[Any]
    task: asyncio.Task[list[dict[str, float] | None]]
    taken: set[str] = field(default_factory=set)

    def serves(self, grader: str, batch: TrlBatch) -> bool:
        """Whether it is the one that ``grader``'s function should take."""
        return (
            self.completions is batch.completions
            and grader not in self.taken
            and self.task.get_loop() is asyncio.get_running_loop()
        )


class _VectorAdapter(TrlAdapter):
    """Grades each batch once for all functions, which TRL calls at the same time."""

    _NEEDED: Mapping[str, Any] = {
        "group": "none",
        "combine_mode": "replace",
        "event_weight": 0.0,
        "outcome_weight": 1.0,
        "judge_scale": 1.0,
    }

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._check_sum()
        self.names = [one.name for one in self.spec.graders if one.name in self.spec.counting]
        self._grading: _Grading | None = None

    def _check_sum(self) -> None:
        where, reward = self.spec.where, self.spec.reward
        self.spec.refuse_schedules("reward_weights of TRL, fixed before the first step,", "")
        for key, needed in self._NEEDED.items():
            if (found := getattr(reward, key)) != needed:
                raise ConfigError(
                    f"{where}: reward.{key}: must be {needed!r} where TRL adds up the graders "
                    f"itself (found {found!r}). Set it, or use make_reward."
                )
        if reward.aggregate not in ("weighted_mean", "points"):
            raise ConfigError(
                f"{where}: reward.aggregate: must be 'weighted_mean' or 'points' where TRL adds up "
                f"the graders itself (found {reward.aggregate!r}). Use make_reward."
            )
        if self.spec.missing.policy == "fallback":
            raise ConfigError(
                f"{where}: missing.policy: 'fallback' has one score and no vector. Use another "
                "policy, or make_reward."
            )
        for name in self.spec.counting:
            if getattr(self.scorer.graders[name], "role", Role.SCORE) == Role.GATE:
                raise ConfigError(
                    f"{where}: graders.{name}: is a gate, which multiplies, but TRL adds up the "
                    "graders. Use weight = 0, or make_reward."
                )

    async def scores_of(self, grader: str, batch: TrlBatch) -> Rewards:
        """One function's part of a batch, which is graded for all of them when the first asks."""
        grading = self._grading
        if grading is None or not grading.serves(grader, batch):
            task = asyncio.ensure_future(self._components(batch))
            grading = self._grading = _Grading(batch.completions, task)
        grading.taken.add(grader)
        if len(grading.taken) == len(self.names):
            self._grading = None
        found = await asyncio.shield(grading.task)
        return [None if one is None else one.get(grader) for one in found]

    async def _components(self, batch: TrlBatch) -> list[dict[str, float] | None]:
        layout = find_group_layout(batch) or group_equal_prompts(batch.prompts)
        scored = await self.score_batch(batch, layout)
        whole_groups = layout.broken is None
        components = self.scorer.components(scored.judged, whole_groups=whole_groups)
        pairs = zip(scored.rewards, components, strict=True)
        return [None if reward is None else one for reward, one in pairs]

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
