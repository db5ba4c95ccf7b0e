"""SkyRL's ``RayPPOTrainer``: its advantages, its loss reduction and its policy loss."""

from __future__ import annotations

import math
import typing
from collections import defaultdict
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, make_ways, split_groups
from adjudge_lab.conformance.source import SILENT, Scope, TrainerSource, stand_in

_MATHS = "backends/skyrl_train/utils/ppo_utils.py"
_TRAINER = "train/trainer.py"
_WORKER = "backends/skyrl_train/workers/worker.py"
_SETTINGS: Mapping[str, tuple[str, bool, str]] = {
    # advantage_estimator, grpo_norm_by_std, loss_reduction
    "grpo, token mean": ("grpo", True, "token_mean"),
    "grpo, no std, by length": ("grpo", False, "seq_mean_token_sum_norm"),
    "rloo, sequence mean": ("rloo", True, "sequence_mean"),
    "maxrl, token mean": ("maxrl", True, "token_mean"),
}


class _Rows(dict[str, Any]):
    """A batch: columns by name, as SkyRL's ``TrainingInputBatch`` has them."""

    metadata: dict[str, Any]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return {name: column[key] for name, column in self.items() if column is not None}
        return super().__getitem__(key)

    def to(self, _: str) -> _Rows:
        return self


class SkyRLDriver:
    """SkyRL from the reward of an environment's last step to the gradient.

    A generator of the user's own gives the loss mask; an environment gives a reward only. SkyRL's
    own generator for Harbor masks all answers of a prompt if one failed.
    """

    name = "SkyRL"
    ways: tuple[Way, ...] = make_ways(
        "loss mask of zeros, whole prompt",
        "loss mask of zeros",
        undocumented=("None", "NaN", "loss mask of zeros and NaN"),
    )
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide: frozenset[str] = frozenset()

    def __init__(self, checkout: Path | None = None) -> None:
        import numpy as np  # noqa: PLC0415
        import torch  # noqa: PLC0415

        self._torch = torch
        self._source = source = TrainerSource("skyrl", "skyrl", checkout)
        self.version = source.version
        self.decided_at = source.find_line(_MATHS, "torch.mean(torch.tensor(id2score[idx]))")
        stand_in("loguru", logger=SILENT)
        estimators: dict[str, Any] = {}

        def register(name: str) -> Callable[[Any], Any]:
            return lambda function: estimators.setdefault(str(name), function)

        maths: Scope = {
            **vars(typing),
            "torch": torch,
            "np": np,
            "logger": SILENT,
            "defaultdict": defaultdict,
            "StrEnum": StrEnum,
            "register_advantage_estimator": register,
            "register_policy_loss": lambda _: lambda function: function,
            "AdvantageEstimatorRegistry": estimators,
            # no correction, as by default without the sampler's log-probabilities
            "apply_off_policy_correction": lambda loss, *given: (loss, given[2], {}),
        }
        source.load_names(
            "backends/skyrl_train/utils/torch_utils.py", ["masked_mean", "safe_exp_delta"], maths
        )
        names = ["AdvantageEstimator", "PolicyLossType", "compute_approx_kl", "reduce_loss"]
        names += ["apply_loss_reduction_to_advantages_minibatch", "compute_rloo_outcome_advantage"]
        names += ["compute_grpo_outcome_advantage", "ppo_policy_loss", "compute_maxrl_advantage"]
        source.load_names(_MATHS, [*names, "compute_advantages_and_returns"], maths)
        self._maths = maths
        self._trainer: Scope = {**maths, "ppo_utils": SimpleNamespace(**maths)}
        methods = ["compute_advantages_and_returns", "_normalize_advantages"]
        source.load_names(_TRAINER, [f"RayPPOTrainer.{one}" for one in methods], self._trainer)
        source.load_names(
            "train/generators/skyrl_gym_generator.py",
            ["SkyRLGymGenerator._build_per_token_rewards"],
            self._trainer,
        )
        self._kl = source.load_statements(
            _WORKER, "PolicyWorkerBase._forward_backward_micro", _adds_kl
        )

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """SkyRL's advantages, logged mean and gradient."""
        torch, size = self._torch, len(batch.groups[0])
        given = [reward for group in batch.groups for reward in group]
        lengths = [length for group in batch.lengths for length in group]
        width = max(lengths)
        mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).float()
        rewards, loss_mask = torch.zeros(mask.shape), mask.clone()
        for row, (reward, length) in enumerate(zip(given, lengths, strict=True)):
            shown = reward
            group = batch.groups[row // size]
            if (None in group if "whole" in way else reward is None) and way != "None":
                shown = math.nan if "NaN" in way else 0.0
                loss_mask[row] *= "loss mask" not in way
            steps = self._trainer["_build_per_token_rewards"](
                SimpleNamespace(custom_chat_template=None),
                [(shown, length - 1)],
                [0] * length,
                appended_eos_token=False,
            )
            rewards[row, :length] = torch.tensor(steps)
        rows = _Rows(rewards=rewards, response_mask=mask, loss_mask=loss_mask, values=None)
        uids = [str(number) for number in range(len(batch.groups)) for _ in range(size)]
        rows.metadata = {"uids": uids, "avg_response_length": 1.0}
        trainer = self._make_trainer(batch, setting)
        with torch.no_grad():
            rows = self._trainer["compute_advantages_and_returns"](trainer, rows)
            advantages = rows["advantages"][:, 0] * loss_mask[:, 0]
            rows = self._trainer["_normalize_advantages"](trainer, rows, [(0, len(given))])
        logps = torch.full(mask.shape, -1.0, requires_grad=True)
        loss, _ = self._maths["ppo_policy_loss"](
            logps, logps.detach(), rows["advantages"], trainer.cfg.algorithm, loss_mask=loss_mask
        )
        scope: Scope = {**self._maths, "self": trainer, "loss_mask": loss_mask}
        scope |= {"action_log_probs": logps, "base_action_log_probs": logps.detach() - 1}
        self._source.run_statements(_WORKER, self._kl, scope)
        (loss + scope["kl_loss_term"]).backward()
        return StepResult(
            advantages=split_groups(advantages.tolist(), size),
            gradients=split_groups(logps.grad[:, 0].tolist(), size),
            reward_mean=trainer.all_metrics["loss/avg_final_rewards"],
        )

    def _make_trainer(self, batch: Batch, setting: str) -> Any:
        """What the driven lines read of trainer and worker, with SkyRL's defaults."""
        estimator, by_std, reduction = _SETTINGS[setting]
        algorithm = SimpleNamespace(
            advantage_estimator=estimator,
            grpo_norm_by_std=by_std,
            loss_reduction=reduction,
            gamma=1.0,
            lambd=1.0,
            advantage_batch_normalize=False,
            max_seq_len=8,
            policy_loss_type="regular",
            eps_clip_low=0.2,
            eps_clip_high=0.2,
            off_policy_correction=None,
            use_kl_loss=bool(batch.kl),
            kl_loss_coef=batch.kl,
            kl_estimator_type="k3",
        )
        return SimpleNamespace(
            all_metrics={},
            cfg=SimpleNamespace(
                algorithm=algorithm,
                generator=SimpleNamespace(step_wise_trajectories=False),
                trainer=SimpleNamespace(algorithm=algorithm, micro_train_batch_size_per_gpu=1),
            ),
        )


def _adds_kl(text: str) -> bool:
    """Whether a statement makes the KL term."""
    return text.startswith("kl_loss_term =") or (
        text.startswith("if self.cfg.algorithm.use_kl_loss") and "compute_approx_kl" in text
    )
