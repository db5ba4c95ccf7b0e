"""verl: its advantage estimators and its policy loss."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, split_groups
from adjudge_lab.conformance.source import Scope, TrainerSource

_FILE = "trainer/ppo/core_algos.py"
_TORCH = "utils/torch_functional.py"
_SETTINGS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "grpo": ("compute_grpo_outcome_advantage", {}, "token-mean"),
    "grpo, no std": (
        "compute_grpo_outcome_advantage",
        {"norm_adv_by_std_in_grpo": False},
        "seq-mean-token-sum-norm",
    ),
    "rloo": ("compute_rloo_outcome_advantage", {}, "seq-mean-token-mean"),
    "reinforce++ baseline": (
        "compute_reinforce_plus_plus_baseline_outcome_advantage",
        {},
        "token-mean",
    ),
    "gdpo": ("compute_gdpo_outcome_advantage", {}, "token-mean"),  # since 0.9
}


class VerlDriver:
    """verl's estimators by the prompt's ``uid``, ``compute_policy_loss_vanilla`` and ``agg_loss``.

    A reward manager cannot say "missing": it gives a number. What remains is to leave the rollout
    out of the batch, as verl's own agent loop does with one that failed; to mask its response; or
    to write NaN. With two parts, of which GDPO takes each by itself, a function that adds them
    cannot add ``None``.
    """

    name = "verl"
    ways: tuple[Way, ...] = (
        Way("left out"),
        Way("response mask of zeros", documented=False),
        Way("NaN", documented=False),
        Way("None of one of two parts", documented=False, functions=2),
    )
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide = frozenset({"reinforce++ baseline", "gdpo"})

    def __init__(self, checkout: Path | None = None) -> None:
        import numpy as np  # noqa: PLC0415
        import torch  # noqa: PLC0415

        self._np, self._torch = np, torch
        source = TrainerSource("verl", "verl", checkout)
        self.version = source.version
        self.decided_at = source.find_line(_FILE, "id2score[index[i]].append(scores[i])")
        maths: Scope = {"torch": torch}
        names = ["masked_sum", "masked_mean", "masked_var", "masked_whiten"]
        source.load_names(_TORCH, names, maths)
        self._scope: Scope = {
            "torch": torch,
            "np": np,
            "defaultdict": defaultdict,
            "verl_F": SimpleNamespace(**{name: maths[name] for name in names}),
            "register_adv_est": lambda _: _keep,
            "register_policy_loss": lambda _: _keep,
            "AdvantageEstimator": SimpleNamespace(
                GRPO=None, RLOO=None, REINFORCE_PLUS_PLUS_BASELINE=None, GDPO=None
            ),
            "AlgoConfig": type("AlgoConfig", (), {}),
        }
        if "compute_gdpo_outcome_advantage" not in (source.root / _FILE).read_text("utf-8"):
            self.settings = tuple(one for one in _SETTINGS if one != "gdpo")
        functions = {_SETTINGS[setting][0] for setting in self.settings}
        functions |= {"agg_loss", "compute_policy_loss_vanilla", "kl_penalty", "kl_penalty_forward"}
        source.load_names(_FILE, sorted(functions), self._scope)

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """Give verl's advantages and gradient of the rollouts that are in the batch."""
        torch, size = self._torch, len(batch.groups[0])
        given = [reward for group in batch.groups for reward in group]
        tokens = [length for group in batch.lengths for length in group]
        rows = [row for row, one in enumerate(given) if one is not None or way != "left out"]
        if not rows:
            raise RuntimeError("the batch is empty")
        lengths = torch.tensor([tokens[row] for row in rows])
        present = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).float()
        mask, rewards = present.clone(), torch.zeros(present.shape)
        parts: dict[str, list[Any]] = {"judge": []}
        if "two parts" in way:
            parts["rule"] = [batch.other_rewards[row] for row in rows]
        for place, row in enumerate(rows):
            reward = given[row]
            if reward is None and "rule" not in parts:
                reward = math.nan if way == "NaN" else 0.0
                mask[place] *= way == "NaN"
            parts["judge"].append(reward)
            if setting != "gdpo":  # which does not read the sum
                total: Any = sum(part[place] for part in parts.values())
                rewards[place, int(lengths[place]) - 1] = total
        index = self._np.array([row // size for row in rows])
        function, options, mode = _SETTINGS[setting]
        if setting == "gdpo":
            options = {
                "config": {"gdpo_reward_keys": list(parts)},
                "non_tensor_batch": parts,
                "batch": {"prompts": present[:, :0], "attention_mask": present.long()},
            }
        with torch.no_grad():
            advantages, _ = self._scope[function](rewards, mask, index, **options)
        gradients = self._gradients(advantages, mask, mode, batch.kl)
        return StepResult(
            advantages=split_groups(_put_back(advantages[:, 0].tolist(), rows, len(given)), size),
            gradients=split_groups(_put_back(gradients, rows, len(given)), size),
        )

    def _gradients(self, advantages: Any, mask: Any, mode: str, kl: float) -> list[float]:
        """Of ``compute_policy_loss_vanilla`` and, with ``use_kl_loss``, verl's KL loss."""
        torch = self._torch
        logps = torch.full(mask.shape, -1.0, requires_grad=True)
        config = _ActorConfig(
            clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, global_batch_info={}
        )
        loss = self._scope["compute_policy_loss_vanilla"](
            logps.detach(), logps, advantages, mask, loss_agg_mode=mode, config=config
        )[0]
        if kl:
            divergence = self._scope["kl_penalty"](logps, torch.full(mask.shape, -2.0), "k3")
            loss = loss + kl * self._scope["agg_loss"](divergence, mask, mode)
        loss.backward()
        return list(logps.grad[:, 0].tolist())


class _ActorConfig(SimpleNamespace):
    """verl's configuration of the actor: attributes, and ``get``."""

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def _keep(function: Any) -> Any:
    """A decorator that registers nothing."""
    return function


def _put_back(values: list[float], rows: list[int], count: int) -> list[float | None]:
    made: list[float | None] = [None] * count
    for row, value in zip(rows, values, strict=True):
        made[row] = value
    return made
