"""NeMo-RL's GRPO: its mask filter, the call of its advantage estimators, and its loss."""

from __future__ import annotations

import contextlib
import math
import typing
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, make_ways, split_groups
from adjudge_lab.conformance.source import Scope, TrainerSource, stand_in

_GRPO = "algorithms/grpo.py"
_ESTIMATORS = "algorithms/advantage_estimator.py"
_SETTINGS: Mapping[str, tuple[bool, bool, bool]] = {
    # use_leave_one_out_baseline, normalize_rewards, token_level_loss
    "leave one out, std": (True, True, True),
    "mean, std": (False, True, True),
    "mean": (False, False, False),
    "leave one out": (True, False, False),
}


class _Columns(dict[str, Any]):
    """A batch: columns by name, as NeMo-RL's ``BatchedDataDict`` has them."""

    @property
    def size(self) -> int:
        return len(self["total_reward"])

    def select_indices(self, rows: Any) -> _Columns:
        return _Columns({name: column[rows] for name, column in self.items()})

    def slice(self, start: int, end: int) -> _Columns:
        return _Columns({name: column[start:end] for name, column in self.items()})


class NeMoRLDriver:
    """The statements of ``grpo_train`` around its advantage estimator, and ``ClippedPGLossFn``.

    ``mask_sample`` is what a NeMo-Gym environment gives for a rollout that does not count.
    """

    name = "NeMo-RL"
    ways: tuple[Way, ...] = make_ways("mask_sample", undocumented=("mask_sample and NaN", "NaN"))
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide: frozenset[str] = frozenset()

    def __init__(self, checkout: Path | None = None) -> None:
        import numpy as np  # noqa: PLC0415
        import pydantic  # noqa: PLC0415
        import torch  # noqa: PLC0415

        self._np, self._torch = np, torch
        self._source = source = TrainerSource("nemo_rl", "nemo-rl", checkout)
        self.version = source.version
        self.decided_at = source.find_line(_ESTIMATORS, "torch.ones_like(rewards)")
        types: Scope = {name: one for name, one in vars(typing).items() if name[0].isupper()}
        types["torch"] = torch
        stand_in("nemo_rl.distributed.batched_data_dict", BatchedDataDict=_Columns)
        utils = stand_in("nemo_rl.algorithms.utils", **types)
        functions = ["calculate_kl", "calculate_baseline_and_std_per_prompt", "masked_mean"]
        functions += ["get_gdpo_reward_component_keys", "masked_var"]
        source.load_names("algorithms/utils.py", functions, vars(utils))
        interfaces = source.load_module(
            "algorithms/loss/interfaces.py", "nemo_rl.algorithms.loss.interfaces"
        )
        self._loss = stand_in(
            "nemo_rl.algorithms.loss",
            **types
            | {name: one for name, one in vars(interfaces).items() if not name.startswith("__")},
            BaseModel=pydantic.BaseModel,
            Tensor=torch.Tensor,
            calculate_kl=utils.calculate_kl,
            masked_mean=utils.masked_mean,
        )
        losses = ["ClippedPGLossConfig", "ClippedPGLossDataDict", "ClippedPGLossFn"]
        source.load_names("algorithms/loss/loss_functions.py", losses, vars(self._loss))
        self._utils = utils
        self._estimators = source.load_module(_ESTIMATORS, "nemo_rl.algorithms.advantage_estimator")
        self._grpo: Scope = {**types, "BatchedDataDict": _Columns, "print": lambda *_, **__: None}
        self._grpo |= dict.fromkeys(("DatumSpec", "MasterConfig", "Timer"), object)
        source.load_names(_GRPO, ["_apply_mask_sample_filter", "dynamic_sampling"], self._grpo)
        self._call = source.load_statements(_GRPO, "grpo_train", _calls_estimator)
        self._log = source.load_statements(_GRPO, "grpo_train", _logs_mean)

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """NeMo-RL's masks, advantages, filter, logged mean and gradient."""
        torch, size = self._torch, len(batch.groups[0])
        given = [reward for group in batch.groups for reward in group]
        filler = math.nan if "NaN" in way else 0.0
        rewards = torch.tensor([filler if reward is None else reward for reward in given])
        columns = _Columns(loss_multiplier=torch.ones(len(given)), total_reward=rewards)
        if "mask_sample" in way:
            columns["mask_sample"] = [reward is None for reward in given]
            self._grpo["_apply_mask_sample_filter"](columns)
        masks = columns["loss_multiplier"]
        prompts = torch.arange(len(batch.groups)).repeat_interleave(size).unsqueeze(1)
        advantages = self._estimate(rewards, masks, prompts, setting) * masks
        baseline, deviation = self._utils.calculate_baseline_and_std_per_prompt(
            prompts, rewards, torch.ones_like(rewards)
        )
        kept = self._filter(rewards, baseline, deviation, size)
        return StepResult(
            advantages=split_groups(advantages.tolist(), size),
            gradients=split_groups(self._gradients(advantages, masks, batch, setting), size),
            reward_mean=self._log_mean(rewards),
            kept=kept,
        )

    def _estimate(self, rewards: Any, masks: Any, prompts: Any, setting: str) -> Any:
        """The trainer's own statements around ``adv_estimator.compute_advantage``."""
        leave_one_out, normalize, _ = _SETTINGS[setting]
        config = self._estimators.AdvEstimatorConfig(
            name="grpo", use_leave_one_out_baseline=leave_one_out, normalize_rewards=normalize
        )
        estimator = self._estimators.GRPOAdvantageEstimator(
            config, self._loss.ClippedPGLossConfig()
        )
        ones = self._torch.ones(len(rewards), 3)
        scope: Scope = {
            **self._grpo,
            "train_data": {"token_mask": ones, "sample_mask": masks},
            "rewards": rewards,
            "repeated_batch": {"total_reward": rewards},
            "prompt_ids_for_adv": prompts,
            "adv_estimator": estimator,
            "trajectory_teacher_logprobs": None,
        }
        scope["train_data"] |= dict.fromkeys(("prev_logprobs", "generation_logprobs"), ones)
        self._source.run_statements(_GRPO, self._call, scope)
        return scope["train_data"]["advantages"][:, 0]

    def _log_mean(self, rewards: Any) -> float:
        one = self._torch.ones(1)
        scope: Scope = {**self._grpo, "np": self._np, "metrics": {}, "ds_metrics": {}}
        scope |= {"rewards": rewards, "train_results": {"loss": one, "grad_norm": one}}
        scope |= {
            "input_lengths": one,
            "response_advantages": one,
            "repeated_batch": {"length": one},
        }
        self._source.run_statements(_GRPO, self._log, scope)
        return float(scope["metrics"]["reward"])

    def _filter(self, rewards: Any, baseline: Any, deviation: Any, size: int) -> list[bool]:
        groups = len(rewards) // size
        settings = SimpleNamespace(
            num_prompts_per_step=groups,
            num_generations_per_prompt=size,
            use_dynamic_sampling=True,
            dynamic_sampling_max_gen_batches=9,
            deduplicate_multimodal_data=False,
        )
        columns = _Columns(total_reward=rewards, place=self._torch.arange(len(rewards)))
        timer = SimpleNamespace(time=lambda _: contextlib.nullcontext())
        kept, *_ = self._grpo["dynamic_sampling"](
            columns, deviation, baseline, 1, SimpleNamespace(grpo=settings), timer
        )
        places = set(kept["place"].tolist())
        return [any(group * size + row in places for row in range(size)) for group in range(groups)]

    def _gradients(self, advantages: Any, masks: Any, batch: Batch, setting: str) -> list[float]:
        torch = self._torch
        lengths = torch.tensor([length for group in batch.lengths for length in group])
        width = int(lengths.max()) + 1
        tokens = (torch.arange(width) < (lengths + 1).unsqueeze(1)).float()
        tokens[:, 0] = 0  # the prompt
        logps = torch.full((len(lengths), width - 1), -1.0, requires_grad=True)
        before = torch.full((len(lengths), width), -1.0)
        data = _Columns(
            token_mask=tokens,
            sample_mask=masks,
            advantages=advantages.unsqueeze(1).expand(-1, width),
            prev_logprobs=before,
            generation_logprobs=before,
            reference_policy_logprobs=before - 1,
        )
        loss = self._loss.ClippedPGLossFn(
            self._loss.ClippedPGLossConfig(
                token_level_loss=_SETTINGS[setting][2], reference_policy_kl_penalty=batch.kl
            )
        )
        counted = (tokens[:, 1:] * masks.unsqueeze(1)).sum()
        loss(logps, data, masks.sum(), counted)[0].backward()
        return list(logps.grad[:, 0].tolist())


def _calls_estimator(text: str) -> bool:
    """Whether a statement makes the masks that the estimator gets, or calls it."""
    masks = ("token_mask = train_data", "sample_mask = train_data", "mask = token_mask")
    return text.startswith(masks) or (
        text.startswith("train_data['advantages']") and "adv_estimator.compute_advantage" in text
    )


def _logs_mean(text: str) -> bool:
    """Whether a statement collects what is logged of a step, or takes its means."""
    return (text.startswith("metrics = {") and "rewards.numpy()" in text) or (
        text.startswith("for k, v in metrics.items():") and "'filtered_reward'" in text
    )
