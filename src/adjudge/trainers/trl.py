"""TRL's trainers: a reward spec as one reward function of ``GRPOTrainer`` and ``RLOOTrainer``.

``reward_funcs=make_reward("reward.toml")`` in Python; where only a dotted path fits (``trl grpo``,
YAML), ``adjudge.trainers.trl.reward`` with the spec's file in ``ADJUDGE_SPEC``. A missing reward
is ``None``, which TRL leaves out of its group's mean and deviation.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.scoring import SPEC_VARIABLE, Scorer, ScorerResult
from adjudge.trainers.trl_batch import (
    GroupLayout,
    TrlBatch,
    check_columns,
    detect_zero_filling,
    find_group_layout,
    group_equal_prompts,
)
from adjudge.types import RewardResult

_log = logging.getLogger("adjudge")

Rewards = list[float | None]

_NAME = "adjudge"


def make_reward(
    spec: RewardSpec | Path | str | None = None,
    *,
    name: str = _NAME,
    columns: Mapping[str, str] | None = None,
) -> Callable[..., Coroutine[Any, Any, Rewards]]:
    """A reward function for ``reward_funcs=``: one plain ``async def`` called ``name``.

    ``spec`` is an object or a file, by default the file that ``ADJUDGE_SPEC`` names. ``name`` tells
    several functions of one trainer apart, in ``rewards/NAME/mean`` and, where it is not the
    default, in ``judge/NAME/…``. ``columns`` names the dataset column of a field
    (``{"reference": "target"}``); see :mod:`adjudge.trainers.trl_batch` for what a sample gets
    without it.

    The function returns a float per completion, ``None`` for a missing one. It raises
    :class:`~adjudge.errors.JudgeUnavailable`, :class:`~adjudge.errors.JudgeAuthError`, under
    policy ``raise`` :class:`~adjudge.errors.MissingRewardError`, and
    :class:`~adjudge.errors.ConfigError`, also where the spec compares the samples of a group and a
    group straddles processes. This one raises :class:`~adjudge.errors.ConfigError`.
    """
    adapter = _Adapter(Scorer(spec), columns, name)

    async def scored(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **given: Any,
    ) -> Rewards:
        return await adapter.rewards(TrlBatch(prompts, completions, completion_ids, given))

    scored.__name__ = scored.__qualname__ = name
    scored.__doc__ = f"Rewards of {adapter.scorer.spec.where}; None is missing."
    return scored


async def reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]] | None = None,
    **given: Any,
) -> Rewards:
    """``adjudge.trainers.trl.reward``: :func:`make_reward` of the file in ``ADJUDGE_SPEC``.

    The spec is loaded at the first call, so a wrong one shows after the first generation.
    """
    adapter = _from_environment(os.environ.get(SPEC_VARIABLE))
    return await adapter.rewards(TrlBatch(prompts, completions, completion_ids, given))


# What TRL logs it under; the qualified name stays, because pickle looks it up.
reward.__name__ = _NAME


class PicklableReward:
    """:func:`make_reward` for trainers that pickle reward functions, or do not await them.

    A plain callable. ``AsyncGRPOTrainer`` pickles it and calls it with one whole group, in a thread
    of its rollout process, without a logger; under ``sample_rate`` each call draws anew, so the
    whole group is judged, or none of it. ``OnlineDPOTrainer`` calls it with pairs, and counts a
    missing reward as 0: it needs ``missing.policy = "raise"``. Returns and raises what
    :func:`make_reward`'s function does.
    """

    def __init__(
        self,
        spec: RewardSpec | Path | str | None = None,
        *,
        name: str = _NAME,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.__name__ = name
        self._adapter = _Adapter(Scorer(spec), columns, name)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **given: Any,
    ) -> Rewards:
        """The rewards of one group, or of a trainer's batch; ``None`` is missing."""
        batch = TrlBatch(prompts, completions, completion_ids, given)
        group = None if batch.of_a_trainer else GroupLayout(["0"] * len(prompts))
        return run_blocking(self._adapter.rewards(batch, group))


@cache
def _from_environment(path: str | None) -> _Adapter:
    return _Adapter(Scorer(path), None, _NAME)


class _Adapter:
    """From TRL's arguments to its list of rewards; holds what was already warned about."""

    def __init__(self, scorer: Scorer, columns: Mapping[str, str] | None, name: str) -> None:
        self.scorer, self._name = scorer, name
        self._prefix = "judge/" if name == _NAME else f"judge/{name}/"
        self._columns = check_columns(columns)
        self._warned: set[str] = set()

    async def rewards(self, batch: TrlBatch, layout: GroupLayout | None = None) -> Rewards:
        """Score one call of the trainer and log what it offers to log."""
        if layout is None:
            layout = find_group_layout(batch) or group_equal_prompts(batch.prompts)
        spec, zeros = self.scorer.spec, detect_zero_filling(batch)
        if zeros is not None:
            zeros.check(spec, layout)
        self._check_groups(layout)
        self._check_trainer(batch.trainer)
        samples = batch.samples(layout.groups, self._columns)
        scored = await self.scorer.ascore(
            samples, layout.groups, whole_groups=layout.broken is None
        )
        self._log(batch, scored)
        return scored.rewards if zeros is None else zeros.exact(scored.rewards, layout, spec)

    def _check_groups(self, layout: GroupLayout) -> None:
        """Refuse incomplete groups where the spec compares the samples of a group."""
        compares = self.scorer.compares_groups
        if compares is None or layout.broken is None:
            return
        raise ConfigError(
            f"{self.scorer.spec.where}: {compares} needs whole groups, but {layout.broken}. Make "
            "per_device_train_batch_size × steps_per_generation a multiple of num_generations "
            "(and per_device_eval_batch_size one of num_generations_eval), or use a spec that "
            "judges each sample by itself."
        )

    def _check_trainer(self, trainer: Any) -> None:
        """Warn once of settings that turn what the spec says into something else."""
        names = list(getattr(trainer, "reward_func_names", ()))
        if names.count(self._name) > 1:
            self._warn(
                f"{names.count(self._name)} reward functions are called {self._name!r}, so TRL "
                "logs them as one. Give each a name=… of its own."
            )
        functions = getattr(trainer, "reward_funcs", None)
        aggregation = getattr(trainer, "multi_objective_aggregation", "sum_then_normalize")
        if functions and len(functions) > 1 and aggregation == "sum_then_normalize":
            self._warn(
                "there are other reward functions beside adjudge's, and TRL's sum counts a missing "
                "reward as 0 there. Make them graders of the spec (weight 0 reports only), or set "
                "multi_objective_aggregation='normalize_then_sum'."
            )
        scale = getattr(trainer, "scale_rewards", "none")
        if self.scorer.spec.reward.group == "z_score" and scale in ("group", "batch"):
            self._warn(
                f"rewards are divided by a deviation twice: reward.group = 'z_score' in the spec, "
                f"and scale_rewards={scale!r} in the trainer. Set scale_rewards='none' or group = "
                "'none'."
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s: %s", self.scorer.spec.where, message)

    def _log(self, batch: TrlBatch, scored: ScorerResult) -> None:
        """Metrics to the run's log; parts, and why it is missing, beside each completion."""
        results, prefix = scored.results, self._prefix
        if batch.log_metric is not None:
            for key, value in scored.metrics.items():
                batch.log_metric(prefix + key.removeprefix("judge/"), value)
        if batch.log_extra is not None:
            for key in self.scorer.info_keys:
                batch.log_extra(prefix + key, [one.reward_info[key] for one in results])
            batch.log_extra(prefix + "missing", [_missing(one) for one in results])


def _missing(result: RewardResult) -> str:
    return "" if result.missing is None else str(result.missing.kind)
