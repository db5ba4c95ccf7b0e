"""A reward spec as one reward function of TRL's trainers for each grader: a vector of rewards.

For ``multi_objective_aggregation="normalize_then_sum"``, which is GDPO: TRL then normalises each
function within its group and adds them up with ``reward_weights``.

TRL sums what functions there are, so that a component alone that is missing would count as 0, or
under GDPO as its group's mean. A sample without one of its components is therefore ``None`` in
every function: TRL leaves such a row out of all means and deviations, and its advantage is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.adapter import DEFAULT_NAME
from adjudge.trainers.recorder import FlightRecorder
from adjudge.trainers.trl import TrlAdapter
from adjudge.trainers.trl_batch import TrlBatch, find_group_layout, group_equal_prompts
from adjudge.trainers.trl_shared import Rewards, RewardShare, SharedFunction
from adjudge.types import Role


class RewardVector(NamedTuple):
    """For a trainer: its ``reward_funcs``, and the ``reward_weights`` of its configuration."""

    functions: list[SharedFunction]
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
    share = _VectorShare(adapter)
    return RewardVector(share.functions, [entry.weight_at(0) for entry in counting])


class _VectorShare(RewardShare):
    """Grades each batch once for the functions of all graders."""

    def __init__(self, adapter: _VectorAdapter) -> None:
        super().__init__(adapter.names)
        self._adapter = adapter

    def ask(self, given: dict[str, Any]) -> list[Rewards]:
        return run_blocking(self._adapter.vectors(TrlBatch(**given)))


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

    async def vectors(self, batch: TrlBatch) -> list[Rewards]:
        """The scores of each grader in :attr:`names`; ``None`` where the reward is missing."""
        layout = find_group_layout(batch) or group_equal_prompts(batch.prompts)
        scored = await self.score_batch(batch, layout)
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
