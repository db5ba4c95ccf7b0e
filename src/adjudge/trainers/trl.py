"""TRL's trainers: a reward spec as one reward function of ``GRPOTrainer`` and ``RLOOTrainer``.

``reward_funcs=make_reward("reward.toml")`` in Python; where only a dotted path fits (``trl grpo``,
YAML), ``adjudge.trainers.trl.reward`` with the spec's file in ``ADJUDGE_SPEC``. A missing reward
is ``None``, which TRL leaves out of its group's mean and deviation.

What a sample gets is on :mod:`adjudge.trainers.adapter`. ``finish_reason`` is ``length`` or
``stop`` where the trainer's end tokens and its limit are known, and ``env_reward``, without such a
column, the attribute ``env_reward`` of the sample's environment.

Where the trainer has a ``rollout_func``, which may mix an environment's text into completions,
the policy's turns come from the ``messages`` that it returns, else from its mask (``tool_mask``);
with neither it is refused.

What TRL makes of a missing reward is read off its code. TRL before 1.6 adds up rewards with
``nansum``, which makes ``None`` a 0: a failed judge counts as a bad answer and shifts its whole
group. It is refused. ``OnlineDPOTrainer`` does so in every version: it needs policy ``raise``.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Unpack

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.intake.rendered import Thinking
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers import INSTALL_LINES
from adjudge.trainers.adapter import DEFAULT_NAME, Adapter, AdapterOptions, share_adapter
from adjudge.trainers.scoring import ScoreOptions, ScorerResult
from adjudge.trainers.trl_batch import (
    GroupLayout,
    Rewards,
    TrlBatch,
    find_future_straddling,
    find_group_layout,
    find_tokenizer,
)
from adjudge.trainers.trl_functions import shares_missing

_REMEDY = (
    "Make per_device_train_batch_size × steps_per_generation a multiple of num_generations (and "
    "per_device_eval_batch_size one of num_generations_eval)"
)


_NONE_WARNING = "All reward functions returned None"


def make_reward(
    spec: RewardSpec | Path | str | None = None,
    *,
    args: Any = None,
    **options: Unpack[AdapterOptions],
) -> Callable[..., Coroutine[Any, Any, Rewards]]:
    """A reward function for ``reward_funcs=``: one plain ``async def`` called ``name``.

    ``spec`` is an object or a file, by default the file that ``ADJUDGE_SPEC`` names; see the module
    for what a sample gets. ``args`` is the trainer's own configuration (``GRPOConfig``): TRL shows
    a reward function nothing of the trainer before the first call, and with it groups that would
    straddle processes are refused here. ``options`` are those of
    :class:`~adjudge.trainers.adapter.Adapter`: ``name`` tells several functions of one trainer
    apart, in ``rewards/NAME/mean`` and, where it is not the default, in ``judge/NAME/…``;
    ``columns`` names the dataset column of a field (``{"reference": "target"}``); ``record`` is the
    folder of a :mod:`flight recorder <adjudge.trainers.recorder>`, or one; by default
    ``ADJUDGE_RECORD`` names it.

    The function returns a float per completion, ``None`` for a missing one. It raises
    :class:`~adjudge.errors.JudgeUnavailable`, :class:`~adjudge.errors.JudgeAuthError`, under
    policy ``raise`` :class:`~adjudge.errors.MissingRewardError`, and
    :class:`~adjudge.errors.ConfigError`, also where the spec compares the samples of a group and a
    group straddles processes. This one raises :class:`~adjudge.errors.ConfigError`.
    """
    adapter = TrlAdapter(spec, **options)
    if args is not None:
        adapter.check_whole_groups(find_future_straddling(args), _REMEDY)

    async def scored(*given: Any, **columns: Any) -> Rewards:
        return await adapter.rewards(TrlBatch(*given, **columns))

    scored.__name__ = scored.__qualname__ = adapter.name
    scored.__doc__ = f"Rewards of {adapter.scorer.spec.where}; None is missing."
    return scored


async def reward(*given: Any, **columns: Any) -> Rewards:
    """``adjudge.trainers.trl.reward``: :func:`make_reward` of the file in ``ADJUDGE_SPEC``.

    Its arguments are those of :class:`~adjudge.trainers.trl_batch.TrlBatch`. The spec is loaded at
    the first call, so a wrong one shows after the first generation.
    """
    return await share_adapter(TrlAdapter).rewards(TrlBatch(*given, **columns))


# What TRL logs it under; the qualified name stays, because pickle looks it up.
reward.__name__ = DEFAULT_NAME


class PicklableReward:
    """:func:`make_reward` for trainers that pickle reward functions, or do not await them.

    A plain callable. ``AsyncGRPOTrainer`` pickles it and calls it with one whole group, in a thread
    of its rollout process, without a logger; under ``sample_rate`` each call draws anew, so the
    whole group is judged, or none of it. ``OnlineDPOTrainer`` calls it with pairs, and counts a
    missing reward as 0: it needs ``missing.policy = "raise"``. ``options`` are ``name``,
    ``columns`` and ``record``. Returns and raises what :func:`make_reward`'s function does.
    """

    def __init__(
        self, spec: RewardSpec | Path | str | None = None, **options: Unpack[AdapterOptions]
    ) -> None:
        self._adapter = TrlAdapter(spec, **options)
        self.__name__ = self._adapter.name

    def __call__(self, /, *given: Any, **columns: Any) -> Rewards:
        """The rewards of one group, or of a trainer's batch; ``None`` is missing."""
        batch = TrlBatch(*given, **columns)
        group = None if batch.of_a_trainer else GroupLayout(["0"] * len(batch.prompts))
        return run_blocking(self._adapter.rewards(batch, group))


class TrlAdapter(Adapter):
    """From TRL's arguments to its list of rewards."""

    trainer = "TRL"

    def __init__(self, *given: Any, **options: Any) -> None:
        refuse_older_trl()
        super().__init__(*given, **options)
        self._thinking: tuple[Any, Thinking] | None = None
        self._expects_warning = False

    async def rewards(self, batch: TrlBatch, layout: GroupLayout | None = None) -> Rewards:
        """Score one call of the trainer, once nothing there forbids it, and log what it offers."""
        layout = layout or find_group_layout(batch)
        refuse_zero_filling(batch, self.spec)
        self.check_whole_groups(layout.broken, _REMEDY)
        self.check_trainer(batch.trainer)
        self._end_gracefully(batch.trainer)
        await batch.read_environments()
        samples = batch.samples(layout.groups, self, self._read_thinking(batch.trainer))
        options = ScoreOptions(
            step=batch.step, whole_groups=layout.broken is None, progress=batch.progress
        )
        scored = await self.ascore(samples, layout.groups, **options)
        self._log(batch, scored)
        self._expects_warning = None in scored.rewards
        for base in type(batch.trainer).__mro__ if self._expects_warning else ():
            if base.__module__.startswith("trl."):
                logging.getLogger(base.__module__).addFilter(self.filter_warning)  # once
        return scored.rewards

    def filter_warning(self, record: logging.LogRecord) -> bool:
        """Whether to log it: not that all functions returned None where this one has said why."""
        expected = self._expects_warning and _NONE_WARNING in str(record.msg)  # after "[RANK 0]"
        self._expects_warning = self._expects_warning and not expected
        return not expected

    def _read_thinking(self, trainer: Any) -> Thinking:
        """What the trainer's tokenizer and template say of thinking, asked once."""
        tokenizer = find_tokenizer(trainer)
        if tokenizer is None:
            return Thinking()
        if self._thinking is None or self._thinking[0] is not tokenizer:
            options = dict(getattr(trainer, "chat_template_kwargs", None) or {})
            if template := getattr(trainer, "chat_template", None):
                options["chat_template"] = template
            self._thinking = tokenizer, Thinking.of(tokenizer, options)
        return self._thinking[1]

    def check_trainer(self, trainer: Any) -> None:
        """Refuse settings that turn what the spec says into something else, or warn once."""
        names = list(getattr(trainer, "reward_func_names", ()))
        if names.count(self.name) > 1:
            self.warn(
                f"{names.count(self.name)} reward functions are called {self.name!r}, so TRL "
                "logs them as one. Give each a name=… of its own."
            )
        self._check_other_functions(trainer)
        step = self.spec.reward.group
        by, setting, remedy = _find_division(trainer) or (None, "", "")
        both = setting.startswith("multi_objective")  # its sums are divided by the batch's, too
        self.check_drawn_groups(setting if by == "batch" or both else None)
        # What GDPO comes to is divided by the batch's deviation last: that is the trainer's part.
        if by in {"z_score": ("group", "batch"), "gdpo": ("group",)}.get(step, ()):
            self.warn(
                f"rewards are divided by a deviation twice: reward.group = {step!r} in the spec, "
                f"and {setting} in the trainer. Set {remedy} or group = 'none'."
            )
        if step == "rloo" and any(base.__name__ == "RLOOTrainer" for base in type(trainer).__mro__):
            self.warn(
                "the mean of the others is taken away twice: reward.group = 'rloo' in the spec, "
                "and by RLOOTrainer itself. Set group = 'none'."
            )

    def _check_other_functions(self, trainer: Any) -> None:
        """Refuse functions beside which a missing reward, or an environment's, would count."""
        mode, policy = self.spec.reward.combine_mode, self.spec.missing.policy
        functions = getattr(trainer, "reward_funcs", None) or ()
        names = getattr(trainer, "reward_func_names", None) or ()
        owned = [name for one, name in zip(functions, names, strict=False) if _is_trls_own(one)]
        if owned and mode != "replace":
            raise ConfigError(
                f"{self.spec.where}: reward.combine_mode: {mode!r} would count the reward of "
                f"{' and '.join(owned)} twice, since TRL adds what get_reward returns. Give it to "
                "the spec alone, environment_factory=expose_environment_reward(…) of "
                "adjudge.trainers.trl_functions, or leave it to TRL with 'replace'."
            )
        if len(functions) < 2 or policy == "raise" or shares_missing(functions):
            return
        aggregation = getattr(trainer, "multi_objective_aggregation", "sum_then_normalize")
        counted = "its group's mean" if aggregation == "normalize_then_sum" else "0"
        raise ConfigError(
            f"{self.spec.where}: missing.policy: does not hold beside other reward functions, "
            f"since TRL counts a missing reward of one function as {counted} (found {policy!r} and "
            f"{len(functions)} functions; allowed here: 'raise'). Make the others graders of the "
            "spec (weight 0 reports only), or give all of them to share_missing of "
            "adjudge.trainers.trl_functions."
        )

    def _end_gracefully(self, trainer: Any) -> None:
        """Where a recorded run is to end and this is its only process, end it after this step.

        Of several processes each would end at a step of its own, and wait for the others forever:
        there the scorer raises.
        """
        recorder, control = self.scorer.recorder, getattr(trainer, "control", None)
        alone = getattr(getattr(trainer, "accelerator", None), "num_processes", None) == 1
        if recorder is not None and alone and control is not None and recorder.stop_reason:
            self.warn(f"the run ends after this step: {recorder.stop_reason}")
            control.should_training_stop = True
            recorder.acknowledge_stop()

    def _log(self, batch: TrlBatch, scored: ScorerResult) -> None:
        """Metrics to the run's log; parts, and why it is missing, beside each completion."""
        results, prefix = scored.results, self.metric_prefix
        if batch.log_metric is not None:
            for key, value in self.rename_metrics(scored.metrics).items():
                batch.log_metric(key, value)
        if batch.log_extra is not None:
            for key in self.scorer.info_keys:
                batch.log_extra(prefix + key, [one.reward_info[key] for one in results])
            kinds = [str(one.missing.kind) if one.missing else "" for one in results]
            batch.log_extra(prefix + "missing", kinds)


def _find_division(trainer: Any) -> tuple[str, str, str] | None:
    """By what a trainer divides rewards (group or batch), the setting, and the remedy."""
    name = "multi_objective_aggregation"
    if getattr(trainer, name, None) == "normalize_then_sum":
        return "group", f"{name}='normalize_then_sum'", f"{name}='sum_then_normalize'"
    if (scale := getattr(trainer, "scale_rewards", None)) in ("group", "batch"):
        return scale, f"scale_rewards={scale!r}", "scale_rewards='none'"
    if getattr(trainer, "normalize_advantages", False):
        return "batch", "normalize_advantages=True", "normalize_advantages=False"
    return None


def _is_trls_own(function: Any) -> bool:
    """Whether it is the function that TRL makes of an environment's ``get_reward``."""
    module = str(getattr(function, "__module__", ""))
    return module.startswith("trl.") and getattr(function, "__name__", "") == "get_reward"


# --- trainers that count a missing reward as 0, found from their code: others derive from these ---


def refuse_older_trl() -> None:
    """Raise :class:`ConfigError` where the imported TRL counts a missing reward as 0."""
    for name in ("GRPO", "RLOO"):
        module = sys.modules.get(f"trl.trainer.{name.lower()}_trainer")
        trainer = getattr(module, f"{name}Trainer", None)
        if trainer is not None and _adds_up_missing(trainer):
            raise ConfigError(
                f"trl: {_describe_trainer(trainer)} counts a missing reward as 0, so that a failed "
                f"judge looks like a bad answer. Run: {INSTALL_LINES['trl']}"
            )


def refuse_zero_filling(batch: TrlBatch, spec: RewardSpec) -> None:
    """Raise :class:`ConfigError` where the caller would count a missing reward as 0.

    ``OnlineDPOTrainer`` does so in every version. Policy ``raise`` leaves none missing. A trainer
    that cannot be seen through its loggers is one of those that are imported.
    """
    refuse_older_trl()
    if batch.trainer is None:
        who = _imported_zero_filling_trainer(batch.of_a_trainer)
    else:
        seen: Any = type(batch.trainer)  # hashable, though mypy does not know
        who = _describe_trainer(seen) if _adds_up_missing(seen) else None
    if who is not None and spec.missing.policy != "raise":
        raise ConfigError(
            f"{spec.where}: missing.policy: does not hold under {who}, which counts a missing "
            "reward as 0, so that a failed judge looks like a bad answer "
            f"(found {spec.missing.policy!r}; allowed here: 'raise'). Use this policy, or "
            "GRPOTrainer or RLOOTrainer of trl >= 1.6."
        )


@cache
def _imported_zero_filling_trainer(of_a_trainer: bool) -> str | None:
    """A class of TRL in this process that adds up missing rewards.

    Trainers say their state to reward functions; the rollout process of AsyncGRPO does not.
    """
    for name, module in sorted(sys.modules.items()):
        if name.startswith("trl.") and ("async_grpo" in name) != of_a_trainer:
            for one in list(vars(module).values()):
                if isinstance(one, type) and one.__module__ == name and _adds_up_missing(one):
                    return _describe_trainer(one)
    return None


def _describe_trainer(trainer: type) -> str:
    version = getattr(sys.modules.get("trl"), "__version__", None)
    return f"{trainer.__name__} of TRL {version}" if version else trainer.__name__


@cache
def _adds_up_missing(trainer: type) -> bool:
    """Whether a method of it does so.

    Of the methods that run: a base's only where it is not replaced, or called by ``super``.
    """
    replaced: set[str] = set()
    for base in trainer.__mro__:
        for name, value in vars(base).items():
            method = inspect.unwrap(value) if callable(value) else value
            if name in replaced or not isinstance(method, FunctionType):
                continue
            if _is_bare_sum(method.__code__):
                return True
            if "super" not in method.__code__.co_names:
                replaced.add(name)
    return False


def _is_bare_sum(code: CodeType) -> bool:
    """Whether it sums reward functions with NaN as 0, and never looks for it again.

    TRL 1.6 and later set the rewards and then the advantages of such rows apart (``isnan``,
    ``nan_to_num``); before 0.20 ``isnan`` serves a warning only, which names ``nan_row_idx``.
    """
    names = {*code.co_names, *code.co_varnames, *code.co_cellvars}
    if "nansum" not in names or not names & {"reward_funcs", "reward_weights"}:
        return False
    return "nan_to_num" not in names and ("isnan" not in names or "nan_row_idx" in names)
