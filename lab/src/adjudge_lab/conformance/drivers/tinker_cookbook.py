"""tinker-cookbook's rollout strategies, group rewards and advantages."""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, make_ways
from adjudge_lab.conformance.source import TrainerSource, stand_in

_TOLERANT = "raise in step, MinViableGroup"
_FAIL_FAST = "raise in step"
_NAN = "NaN of the group"
_NONE = "None of the group, MinViableGroup"


class TinkerCookbookDriver:
    """A group through the cookbook's rollout, ``compute_advantages`` and constant-reward filter.

    The policy is two fixed tokens. The loss is on Tinker's servers, so there is no gradient. The
    packages that ``tinker_cookbook.rl`` imports (tinker, chz, termcolor, cloudpickle, tiktoken,
    tml-renderers) must be importable.
    """

    name = "tinker-cookbook"
    ways: tuple[Way, ...] = make_ways(_TOLERANT, _FAIL_FAST, undocumented=(_NAN, _NONE))
    settings: tuple[str, ...] = ("mean",)
    batch_wide: frozenset[str] = frozenset()

    def __init__(self, checkout: Path | None = None) -> None:
        source = TrainerSource("tinker_cookbook", "tinker-cookbook", checkout)
        self.version = source.version
        self.decided_at = source.find_line("rl/rollouts.py", "zip(*rewards_and_metrics_G")
        if checkout is not None and str(checkout) not in sys.path:
            sys.path.insert(0, str(checkout))
        for name in ("orjson", "blobfile"):  # of a client and of log files, which are not used
            try:
                importlib.import_module(name)
            except ImportError:
                stand_in(name)
        load = importlib.import_module
        self._tinker = load("tinker")
        self._rollouts = load("tinker_cookbook.rl.rollouts")
        self._processing = load("tinker_cookbook.rl.data_processing")
        self._strategies = load("tinker_cookbook.rl.rollout_strategy")
        self._metrics = load("tinker_cookbook.rl.metric_util")
        self._types = load("tinker_cookbook.rl.types")
        tokens = load("tinker_cookbook.completers").TokensWithLogprobs
        logging.getLogger("tinker_cookbook").setLevel(logging.CRITICAL)

        async def sample(*_: Any) -> Any:
            return tokens(tokens=[5, 6], maybe_logprobs=[-0.5, -0.5])

        vars(self._rollouts)["TinkerTokenCompleter"] = lambda *_, **__: sample

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:  # noqa: ARG002
        """The advantages of the trajectories that come back; there may be fewer than asked for."""
        size = len(batch.groups[0])
        made = [asyncio.run(self._roll_out(group, way, drop=False)) for group in batch.groups]
        kept = [
            asyncio.run(self._roll_out(group, way, drop=True)) is not None for group in batch.groups
        ]
        there = [group for group in made if group is not None]
        centred = iter(self._processing.compute_advantages(there))
        advantages: list[list[float | None]] = []
        for group in made:
            row: list[float | None] = [None] * size
            if group is not None:
                for trajectory, value in zip(group.trajectories_G, next(centred), strict=True):
                    row[int(trajectory.transitions[0].metrics["place"])] = float(value)
            advantages.append(row)
        logged = self._metrics.compute_trajectory_metrics(there, [[]] * len(there)) if there else {}
        return StepResult(
            advantages=advantages,
            reward_mean=logged.get("env/all/reward/total"),
            kept=kept,
        )

    async def _roll_out(self, group: Sequence[float | None], way: str, *, drop: bool) -> Any:
        """The trainer's group of trajectories, or ``None`` where it drops the group."""
        strategy = self._strategies.FailFast()
        if "MinViableGroup" in way:
            strategy = self._strategies.MinViableGroup(min_successful=2, max_retries=0)
        return await self._rollouts.do_group_rollout_and_filter_constant_reward(
            None, self._build_group(group, way), 8, 1.0, drop, False, strategy=strategy
        )

    def _build_group(self, group: Sequence[float | None], way: str) -> Any:
        """A user's environments; their rewards are given in the step or for the whole group."""
        empty, types, in_step = self._tinker.ModelInput.from_ints, self._types, "step" in way
        filler = math.nan if way == _NAN else None

        class JudgedStep(types.Env):  # type: ignore[name-defined, misc]
            def __init__(self, place: int) -> None:
                self.place = place

            async def initial_observation(self) -> Any:
                return empty([1, 2]), []

            async def step(self, _: Any, *, extra: Any = None) -> Any:  # noqa: ARG002
                reward = group[self.place] if in_step else 0.0
                if reward is None:
                    raise RuntimeError("the judge failed")
                return types.StepResult(
                    reward=reward,
                    episode_done=True,
                    next_observation=empty([]),
                    next_stop_condition=[],
                    metrics={"place": self.place},
                )

        class JudgedGroup(types.EnvGroupBuilder):  # type: ignore[name-defined, misc]
            async def make_envs(self) -> list[Any]:
                return [JudgedStep(place) for place in range(len(group))]

            async def compute_group_rewards(self, trajectories: Any, _: Any) -> list[Any]:
                if in_step:
                    return [(0.0, {}) for _ in trajectories]
                places = [int(one.transitions[0].metrics["place"]) for one in trajectories]
                rewards = [group[place] for place in places]
                return [(filler if reward is None else reward, {}) for reward in rewards]

        return JudgedGroup()
