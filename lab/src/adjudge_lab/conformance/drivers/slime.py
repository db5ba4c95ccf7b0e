"""slime's and miles' GRPO on Megatron: their rewards, advantages, filter and loss."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, make_ways, split_groups
from adjudge_lab.conformance.source import Scope, TrainerSource

_Names = Mapping[str, tuple[str, ...]]
"""The functions and classes that are driven, by file."""
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "grpo, per token": {"calculate_per_token_loss": True},
    "grpo, no std": {"grpo_std_normalization": False},
}
_MATHS = ("compute_approx_kl", "compute_policy_loss", "get_grpo_returns")
_ABSENT = ["reward_key", "custom_advantage_function_path", "eps_clip_c"]
_ABSENT += ["custom_pg_loss_reducer_function_path"]
_OFF = ["use_rollout_logprobs", "normalize_advantages", "use_opd", "use_opsm", "use_tis"]
_OFF += ["calculate_per_token_loss", "recompute_loss_function", "allgather_cp"]
_OFF += ["get_mismatch_metrics", "use_unbiased_kl", "skip_actor_forward_only"]
_OFF += ["observe_training_entropy", "use_dynamic_global_batch_size", "true_on_policy_mode"]
_SLIME: _Names = {
    "utils/types.py": ("Sample",),
    "utils/data.py": ("get_source",),
    "ray/rollout.py": (
        "RolloutManager._post_process_rewards",
        "RolloutManager._convert_samples_to_train_data",
    ),
    "rollout/filter_hub/dynamic_sampling_filters.py": ("check_reward_nonzero_std",),
    "utils/ppo_utils.py": _MATHS,
    "backends/megatron_utils/cp_utils.py": ("get_sum_of_sample_mean",),
    "backends/megatron_utils/loss.py": (
        "compute_advantages_and_returns",
        "get_rollout_top_p_logprob_kwargs",
        "policy_loss_function",
        "loss_function",
    ),
}
_MILES: _Names = {
    "utils/types.py": ("Sample",),
    "ray/rollout/train_data_conversion.py": (
        "_compute_rollout_mask_sums",
        "_reward_group_segments",
        "_normalize_rewards_by_rollout",
        "_post_process_rewards",
        "convert_samples_to_train_data",
    ),
    "rollout/filter_hub/dynamic_sampling_filters.py": (
        "_flatten_samples",
        "check_reward_nonzero_std",
    ),
    "backends/training_utils/loss_hub/math_utils.py": (
        *_MATHS,
        "_LOG_RATIO_EXP_CLAMP",
        "_safe_clamp_log_ratio",
        "_safe_exp_neg_ppo_kl",
    ),
    "backends/training_utils/cp_utils.py": (
        "get_sum_of_sample_mean",
        "get_local_response_loss_masks",
    ),
    "backends/training_utils/loss_hub/advantages.py": ("compute_advantages",),
    "backends/training_utils/loss_hub/losses.py": (
        "policy_loss_function",
        "get_loss_function",
    ),
    "backends/training_utils/loss.py": (
        "_detach_rollout_tensor_list",
        "compute_advantages_and_returns",
        "loss_function",
    ),
}


class SlimeDriver:
    """slime's ``RolloutManager`` from rewards to train data, its advantages and its loss.

    The first way is a sample with ``remove_sample``, the second a loss mask of zeros of its own,
    both with a reward of 0. A sample is left out as ``--rollout-sample-filter-path`` may do it.
    """

    name = "slime"
    ways: tuple[Way, ...] = make_ways(
        "remove_sample",
        "loss mask of zeros",
        undocumented=("left out", "None", "NaN", "remove_sample and NaN"),
    )
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide: frozenset[str] = frozenset()

    _package = "slime"
    _decides = ("ray/rollout.py", "rewards.mean(dim=-1")
    _names: _Names = _SLIME

    def __init__(self, checkout: Path | None = None) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        source = TrainerSource(self._package, self._package, checkout)
        self.version = source.version
        self.decided_at = source.find_line(*self._decides)
        one = SimpleNamespace(size=1)
        self._scope: Scope = {
            **vars(typing),
            "torch": torch,
            "dataclass": dataclass,
            "field": field,
            "Enum": Enum,
            "DynamicFilterOutput": SimpleNamespace,
            # one rank: nothing is split
            "mpu": SimpleNamespace(
                is_pipeline_last_stage=lambda: True,
                get_context_parallel_world_size=lambda: 1,
                get_data_parallel_world_size=lambda **_: 1,
            ),
            "get_parallel_state": lambda: SimpleNamespace(cp=one, intra_dp=one, intra_dp_cp=one),
            "compute_ess_ratio_contribution": lambda **_: torch.zeros(()),  # only logged
            "is_multi_lora_enabled": lambda _: False,
            "_maybe_capture_log_probs": lambda *_: None,
        }
        for file, names in self._names.items():
            source.load_names(file, names, self._scope)

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """The trainer's train data, advantages, filter, logged mean and gradient."""
        size = len(batch.groups[0])
        args = self._arguments(batch, setting)
        samples = self._make_samples(batch, way)
        kept = [
            bool(self._scope["check_reward_nonzero_std"](args, samples[start : start + size]).keep)
            for start in range(0, len(samples), size)
        ]
        given = [reward for group in batch.groups for reward in group]
        if way == "left out":
            samples = [
                one for one, reward in zip(samples, given, strict=True) if reward is not None
            ]
        data = self._convert(args, samples)
        with self._torch.compiler.set_stance("force_eager"):  # what is compiled says the same
            advantages, gradients = self._train(args, data)
        rows = {one.index: row for row, one in enumerate(samples)}
        places = [rows.get(place) for place in range(len(given))]
        return StepResult(
            advantages=split_groups([None if p is None else advantages[p] for p in places], size),
            gradients=split_groups([None if p is None else gradients[p] for p in places], size),
            reward_mean=sum(data["raw_reward"]) / len(samples),
            kept=kept,
        )

    def _make_samples(self, batch: Batch, way: str) -> list[Any]:
        """What a reward function of the user's own makes of the samples of a step."""
        sample = self._scope["Sample"]
        samples: list[Any] = []
        for number, group in enumerate(batch.groups):
            for reward, length in zip(group, batch.lengths[number], strict=True):
                one = sample(group_index=number, index=len(samples), rollout_id=len(samples))
                one.tokens, one.response_length = [0] * (1 + length), length
                one.status, one.reward = sample.Status.COMPLETED, reward
                if reward is None and way != "None":
                    one.reward = math.nan if "NaN" in way else 0.0
                    one.remove_sample = "remove_sample" in way
                    one.loss_mask = [0] * length if "loss mask" in way else None
                samples.append(one)
        return samples

    def _convert(self, args: Any, samples: list[Any]) -> dict[str, Any]:
        manager: Any = SimpleNamespace(
            args=args,
            custom_reward_post_process_func=None,
            custom_convert_samples_to_train_data_func=None,
            _post_process_rewards=lambda given: self._scope["_post_process_rewards"](
                manager, given
            ),
        )
        made: dict[str, Any] = self._scope["_convert_samples_to_train_data"](manager, samples)
        return made

    def _train(self, args: Any, data: dict[str, Any]) -> tuple[list[float], list[float]]:
        """Advantages as they count, which is times the loss mask, and gradients, of first tokens.

        Megatron divides the gradient by the normaliser that the loss function returns.
        """
        torch = self._torch
        lengths = data["response_lengths"]
        logps = [torch.full((length,), -1.0, requires_grad=True) for length in lengths]
        masks = [torch.tensor(mask) for mask in data["loss_masks"]]
        batch = {
            **data,
            "loss_masks": masks,
            "rollout_mask_sums": torch.tensor(data["rollout_mask_sums"], dtype=torch.float32),
            "total_lengths": [1 + length for length in lengths],
            "unconcat_tokens": None,
            "log_probs": [one.detach() for one in logps],
            "ref_log_probs": [one.detach() - 1 for one in logps],
        }
        self._scope["compute_advantages_and_returns"](args, batch)
        forward = {"log_probs": logps, "entropy": [torch.zeros(length) for length in lengths]}
        loss, normaliser = self._compute_loss(args, batch, forward)
        (loss / normaliser).backward()
        advantages = [
            float(one[0] * mask[0]) for one, mask in zip(batch["advantages"], masks, strict=True)
        ]
        return advantages, [float(one.grad[0]) for one in logps]

    def _compute_loss(self, args: Any, batch: dict[str, Any], forward: Any) -> tuple[Any, Any]:
        self._scope["get_log_probs_and_entropy"] = lambda *_, **__: (None, forward)
        count = len(set(batch["rollout_ids"]))
        made = self._scope["loss_function"](args, batch, 1, count, self._torch.zeros(1))
        return made[0], made[1]

    def _arguments(self, batch: Batch, setting: str) -> Any:
        """The trainer's defaults, with the setting's on top."""
        given: dict[str, Any] = dict.fromkeys(_ABSENT) | dict.fromkeys(_OFF, False)
        given |= {"rewards_normalization": True, "grpo_std_normalization": True}
        given |= {"advantage_estimator": "grpo", "loss_type": "policy_loss", "qkv_format": "thd"}
        given |= {"rollout_top_p": 1.0, "entropy_coef": 0.0, "eps_clip": 0.2, "eps_clip_high": 0.2}
        given |= {"kl_coef": 0.0, "kl_loss_type": "k1", "kl_loss_coef": batch.kl}
        return SimpleNamespace(
            n_samples_per_prompt=len(batch.groups[0]),
            rollout_batch_size=len(batch.groups),
            use_kl_loss=bool(batch.kl),
            **{**given, **_SETTINGS[setting]},
        )


class MilesDriver(SlimeDriver):
    """miles, which grew out of slime: the same, with groups by ``group_index``.

    A left out sample needs ``--disable-rollout-trim-samples``, else miles cuts the batch further.
    """

    name = "miles"
    _package = "miles"
    _decides = ("ray/rollout/train_data_conversion.py", "rollout_rewards.mean()")
    _names: _Names = _MILES

    def _convert(self, args: Any, samples: list[Any]) -> dict[str, Any]:
        made: dict[str, Any] = self._scope["convert_samples_to_train_data"](
            args, samples, {}, None, None
        )
        return made

    def _compute_loss(self, args: Any, batch: dict[str, Any], forward: Any) -> tuple[Any, Any]:
        self._scope["get_log_probs_and_entropy"] = lambda *_, **__: forward
        count = len(set(batch["rollout_ids"]))
        made = self._scope["loss_function"](
            args,
            batch,
            1,
            self._torch.zeros(1),
            apply_megatron_loss_scaling=True,
            num_rollouts=count,
        )
        return made[0], made[1]
