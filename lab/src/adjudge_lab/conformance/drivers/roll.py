"""ROLL: the masks, reward normalisation, advantages, query filter and loss of its RLVR pipeline."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, make_ways, split_groups
from adjudge_lab.conformance.source import SILENT, Scope, TrainerSource

_FILE = "utils/functionals.py"
_LOOP = "distributed/scheduler/user_defined_rollout_loop.py"
_ACTOR = "pipeline/rlvr/actor_worker.py"
_METRICS = "utils/metrics/metrics_manager.py"
_NAMES = (
    "masked_mean masked_sum masked_var masked_whiten compute_approx_kl compute_reinforce_return "
    "expand_to_token_level reward_norm get_sample_level_mask reward_postprocess "
    "compute_token_reward compute_advantage agg_loss"
)
_LOGGED = "metrics[f'{prefix}/score/mean']"
_LOSS = ("kl_loss =", "surr1 =", "surr2 =", "loss = -", "weighted_pg_loss =")
_SETTINGS: Mapping[str, str] = {
    "grpo": "seq-mean-token-mean",
    "reinforce, group mean": "seq-mean-token-sum",
    "grpo, whitened": "seq-mean-token-mean",
}
_PROMPT = 2


class _Columns(dict[str, Any]):
    """A batch: columns by name, as ROLL's ``DataProto`` holds them."""

    @property
    def batch_size(self) -> tuple[int]:
        return (len(self["response_level_rewards"]),)


class ROLLDriver:
    """The functions that ``RLVRPipeline.run`` calls with rewards, and the loss of its actor.

    A worker's rewards are a tensor, so they cannot be ``None``. ``loss mask`` is the
    ``final_response_mask`` set to 0, with the reward 0.
    """

    name = "ROLL"
    ways: tuple[Way, ...] = make_ways("loss mask", undocumented=("NaN", "NaN and loss mask"))
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide = frozenset({"grpo, whitened"})

    def __init__(self, checkout: Path | None = None) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        self._source = source = TrainerSource("roll", "roll", checkout)
        self.version = source.version
        self.decided_at = source.find_line(_FILE, "reshape_reward = response_level_rewards")
        self._scope: Scope = {**vars(typing), "torch": torch, "math": math, "logger": SILENT}
        source.load_names(_FILE, _NAMES.split(), self._scope)
        source.load_names(_LOOP, ["query_filter"], self._scope)
        self._loss = source.load_statements(
            _ACTOR, "ActorWorker.loss_func", lambda text: text.startswith(_LOSS)
        )
        self._log = source.load_statements(
            _METRICS,
            "MetricsManager.add_values_metrics",
            lambda text: text.startswith(("sequence_score =", _LOGGED)),
        )

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """ROLL's advantages, filter, logged mean of ``scores`` and gradient."""
        torch, size = self._torch, len(batch.groups[0])
        given = [reward for group in batch.groups for reward in group]
        filler = math.nan if "NaN" in way else 0.0
        rewards = torch.tensor([filler if reward is None else reward for reward in given])
        lengths = torch.tensor([length for group in batch.lengths for length in group])
        width = _PROMPT + int(lengths.max())
        places = torch.arange(width).expand(len(given), -1)
        attended = (places < (lengths + _PROMPT).unsqueeze(1)).long()
        logps = torch.full((len(given), width - 1), -1.0)
        data = SimpleNamespace(meta_info={}, rename=lambda **_: None)
        data.batch = _Columns(attention_mask=attended, position_ids=places)
        data.batch |= {"response_mask": attended * (places >= _PROMPT)}
        data.batch |= {"responses": places[:, _PROMPT:], "old_log_probs": logps}
        data.batch |= {"ref_log_probs": logps - 1, "response_level_rewards": rewards}
        data.batch["scores"] = rewards
        estimator, _, more = setting.partition(", ")
        config = SimpleNamespace(
            **dict.fromkeys(("max_len_mask", "difficulty_mask", "error_max_len_clip"), False),
            **dict.fromkeys(("norm_std_type", "reward_clip", "add_token_level_kl")),
            norm_mean_type="group",
            kl_penalty="kl",
            adv_estimator=estimator,
            loss_agg_mode=_SETTINGS[setting],
        )
        config.actor_infer = SimpleNamespace(
            generating_args=SimpleNamespace(num_return_sequences=size)
        )
        functions, control = self._scope, SimpleNamespace(value=0.0, update=lambda **_: None)
        functions["get_sample_level_mask"](data, config)
        if "loss mask" in way:
            missing = torch.tensor([reward is None for reward in given])
            data.batch["final_response_mask"][missing] = 0
        kept = [self._filter(group) for group in rewards.split(size)]
        functions["reward_postprocess"](data, config, {})
        functions["compute_token_reward"](data, config, control)
        mask = data.batch["final_response_mask"]
        functions["compute_advantage"](
            *(data, 1.0, 1.0, estimator), whiten_advantages=more == "whitened", response_mask=mask
        )
        advantages, first = data.batch["advantages"], _PROMPT - 1
        policy = logps.clone().requires_grad_()
        ratio = torch.exp(policy - logps)
        counted = {"final_response_mask": int((mask.sum(-1) > 0).sum())}
        scope: Scope = {
            **functions,
            **dict.fromkeys(("pg_clip_low", "pg_clip_high"), 0.2),
            "log_probs": policy,
            "ref_log_probs": logps - 1,
            "ratio": ratio,
            "advantages": advantages,
            "final_response_mask": mask,
            "sample_weights": None,
            "global_valid_samples": counted,
            "batch_num_tokens": {"final_response_mask": int(mask.sum())},
            "self": SimpleNamespace(pipeline_config=config),
        }
        self._source.run_statements(_ACTOR, self._loss, scope)
        (scope["weighted_pg_loss"] + scope["kl_loss"] * batch.kl).backward()
        logged: Scope = {"torch": torch, "batch": data, "prefix": "critic", "metrics": {}}
        self._source.run_statements(_METRICS, self._log, logged)
        return StepResult(
            advantages=split_groups(advantages[:, first].tolist(), size),
            gradients=split_groups(policy.grad[:, first].tolist(), size),
            reward_mean=logged["metrics"]["critic/score/mean"],
            kept=kept,
        )

    def _filter(self, rewards: Any) -> bool:
        filtering = SimpleNamespace(type="std_filter", filter_args={"std_threshold": 0})
        config = SimpleNamespace(rewards={"d": SimpleNamespace(query_filter_config=filtering)})
        rows = [
            SimpleNamespace(
                batch={"response_level_rewards": one.reshape(1)}, non_tensor_batch={"domain": ["d"]}
            )
            for one in rewards
        ]
        return bool(self._scope["query_filter"](rows, config))
