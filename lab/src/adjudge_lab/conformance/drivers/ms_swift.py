"""ms-swift's ``GRPOTrainer``: its rewards, advantages, dynamic sampling and loss."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, split_groups
from adjudge_lab.conformance.source import SILENT, Scope, TrainerSource, stand_in

_LOSS = "GRPOTrainer._compute_loss_and_metrics"
_SETTINGS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "grpo, group": ({"scale_rewards": "group"}, "grpo"),
    "grpo, none": ({"scale_rewards": "none"}, "dr_grpo"),
    "rloo": ({"scale_rewards": "none", "advantage_estimator": "rloo"}, "bnpo"),
    "grpo, batch": ({"scale_rewards": "batch"}, "dapo"),
    "gdpo": ({"scale_rewards": "gdpo"}, "grpo"),
    "grpo, group, multi-turn": ({"scale_rewards": "group"}, "grpo"),
    "rloo, multi-turn": ({"scale_rewards": "none", "advantage_estimator": "rloo"}, "bnpo"),
}


class MsSwiftDriver:
    """ms-swift's ``compute_rewards_per_func``, ``compute_advantages`` and loss, unchanged.

    The settings with ``multi-turn`` take ``compute_advantages_dynamic``.
    """

    name = "ms-swift"
    ways: tuple[Way, ...] = (
        Way("None"),
        Way("NaN", documented=False),
        Way("None of one of two functions", functions=2),
    )
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide = frozenset({"grpo, batch", "gdpo"})

    def __init__(self, checkout: Path | None = None) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        source = TrainerSource("swift", "ms-swift", checkout)
        self.version = source.version
        self.decided_at = source.find_line("rl_core/advantage.py", ".nansum(dim=1)")
        scope: Scope = {**vars(typing), "torch": torch}
        source.load_names("utils/torch_utils.py", ["nanstd"], scope)
        rows: Scope = {**vars(typing)}
        source.load_names("dataset/preprocessor/core.py", ["RowPreprocessor.rows_to_batched"], rows)
        stand_in(
            "swift.utils",
            nanstd=scope["nanstd"],
            get_logger=lambda: SILENT,
        )
        stand_in(
            "swift.dataset",
            RowPreprocessor=SimpleNamespace(rows_to_batched=rows["rows_to_batched"]),
        )
        stand_in("swift.rl_core.data", GRPOSample=object)
        self._advantage = source.load_module("rl_core/advantage.py", "swift.rl_core.advantage")
        self._algorithm = source.load_module(
            "rl_core/grpo_algorithm.py", "swift.rl_core.grpo_algorithm"
        )
        self._loss: Scope = {
            **vars(typing),
            "torch": torch,
            "logger": SILENT,
            "GRPOBatch": object,
            "gather_object": lambda value: value,
            "gather": lambda value: value,
            "nanmin": lambda value: value.min(),
            "nanmax": lambda value: value.max(),
            "WINDOW_NORMALIZED_LOSS_TYPES": ["cispo", "dapo", "fipo"],
        }
        source.load_names("rlhf_trainers/grpo_trainer.py", [_LOSS], self._loss)

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """ms-swift's rewards, advantages, filter, logged mean and gradient."""
        torch, size = self._torch, len(batch.groups[0])
        given = [reward for group in batch.groups for reward in group]
        if way == "NaN":
            given = [math.nan if reward is None else reward for reward in given]
        samples = [
            SimpleNamespace(
                messages=[{"role": "assistant", "content": ""}],
                to_reward_row=lambda: {"prompt_id": "p", "finish_reason": "stop"},
                rollout_infos={},
            )
            for _ in given
        ]
        functions = [lambda *_, **__: given, lambda *_, **__: batch.other_rewards]
        names = ["judge", "rule"][: 2 if "two" in way else 1]
        judged = self._algorithm.compute_rewards_per_func(
            samples, functions[: len(names)], [None] * len(names), torch.device("cpu")
        )
        options, loss_type = _SETTINGS[setting]
        weights = torch.ones(len(names))
        if "multi-turn" in setting:
            requests = [str(row) for row in range(len(given))]
            prompts = [str(row // size) for row in range(len(given))]
            advantages = self._advantage.compute_advantages_dynamic(
                judged, weights, prompts, requests, **options
            )[0]
        else:
            advantages = self._advantage.compute_advantages(judged, weights, size, **options)[0]
        deviation = self._algorithm.compute_std_for_dynamic_sampling(judged, weights, size)
        logged = self._advantage.compute_reward_metrics(
            judged.nansum(1), judged, names, size, "group"
        )
        alone = len(names) == 1
        return StepResult(
            advantages=split_groups(advantages.tolist(), size),
            gradients=split_groups(self._gradients(advantages, batch, loss_type), size),
            reward_mean=float(logged.reward_mean) if alone else None,
            kept=[bool(one > 0) for one in deviation[::size]] if alone else None,
        )

    def _gradients(self, advantages: Any, batch: Batch, loss_type: str) -> list[float]:
        torch = self._torch
        lengths = torch.tensor([length for group in batch.lengths for length in group])
        mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
        logps = torch.full(mask.shape, -1.0, requires_grad=True)
        inputs = SimpleNamespace(
            completion_mask=mask,
            truncated_mask=torch.zeros(len(mask), dtype=torch.bool),
            advantages=advantages.unsqueeze(1).expand(mask.shape),
            old_per_token_logps=None,
            ref_per_token_logps=torch.full(mask.shape, -2.0),
            rollout_per_token_logps=None,
            teacher_per_token_logps=None,
            num_items_in_batch=mask.sum(),
        )
        trainer = SimpleNamespace(
            model=SimpleNamespace(training=True),
            args=SimpleNamespace(delta=None),
            accelerator=SimpleNamespace(num_processes=1, gather_for_metrics=lambda value: value),
            _get_per_token_logps_and_entropies=lambda *_, **__: (logps, None),
            _undo_gradient_accumulation_scaling=lambda loss: loss,
            beta=batch.kl,
            loss_type=loss_type,
            num_generations=len(batch.groups[0]),
            epsilon_low=0.2,
            epsilon_high=0.2,
            max_completion_length=8,
            importance_sampling_level="token",
            compute_entropy=False,
            overlong_filter=False,
            kl_in_reward=False,
            rollout_importance_sampling_mode=None,
            log_rollout_offpolicy_metrics=False,
            disable_rollout_importance_sampling=True,
            off_policy_sequence_mask_delta=None,
            sdar_loss_coef=0,
            chord_sft_iterator=None,
            _has_teacher=False,
        )
        loss, _ = self._loss["_compute_loss_and_metrics"](trainer, None, {}, inputs)
        loss.backward()
        return list(logps.grad[:, 0].tolist())
