"""``reward_model.reward_manager=adjudge`` with ``rollout.mode=async``: one rollout at a time."""

from __future__ import annotations

import math
from typing import Any

from adjudge.errors import ConfigError
from adjudge.trainers.scoring import Scorer
from adjudge.trainers.verl.columns import METRICS, row_of
from adjudge.trainers.verl.estimators import check_estimator, estimator_of, never_missing
from adjudge.trainers.verl.rows import RowReader
from adjudge.trainers.verl.sources import source_of

__all__ = ["JudgeRewardLoopManager"]


class JudgeRewardLoopManager:
    """Scores each rollout when it is done; verl 0.6.1 calls it in the agent loop's reward actor.

    ``config`` is verl's; the spec is ``reward_model.reward_kwargs.spec`` there, else
    ``ADJUDGE_SPEC``. A rollout is seen alone, so what compares a group is refused with
    :class:`~adjudge.errors.ConfigError`, and so is ``sample_rate``. ``compute_score``, the router's
    address and tokenizer are verl's and not used.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
        **_: Any,
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.reward_router_address = reward_router_address
        self.reward_model_tokenizer = reward_model_tokenizer
        source = source_of(compute_score, _spec_of(config))
        if not isinstance(source, Scorer):
            raise ConfigError(
                "custom_reward_function: a RewardFunction scores whole groups, and rollout.mode="
                "async shows one rollout at a time; use a spec, or rollout.mode=sync"
            )
        if (what := source.compares_groups) is not None:
            raise ConfigError(
                f"{source.spec.where}: {what} needs whole groups, and rollout.mode=async shows one "
                "rollout at a time; use rollout.mode=sync"
            )
        if source.spec.reward.sample_rate < 1:
            raise ConfigError(
                f"{source.spec.where}: reward.sample_rate draws groups, and rollout.mode=async "
                "shows one rollout at a time; use rollout.mode=sync"
            )
        if not never_missing(source.spec):
            check_estimator(estimator_of(config))
        self.scorer = source
        self.reader = RowReader(tokenizer, _source_key(config))

    async def run_single(self, data: Any) -> dict[str, Any]:
        """``{"reward_score", "reward_extra_info"}`` of a ``DataProto`` with one rollout.

        A missing reward is NaN with ``reward_missing`` 1.0; the batch manager of the same name
        knows what to do with it. Of a rollout in several rows the last counts.
        """
        rows = self.reader.read(data if len(data) == 1 else data[-1:])
        scored = await self.scorer.ascore(rows.samples, rows.groups)
        result = scored.results[0]
        extra = row_of(result, self.scorer.info_keys)
        extra[METRICS] = scored.metrics
        score = math.nan if result.score is None else result.score
        return {"reward_score": score, "reward_extra_info": extra}


def _spec_of(config: Any) -> Any:
    settings = config.get("reward_model") or config.get("reward") or {}
    return (settings.get("reward_kwargs") or {}).get("spec")


def _source_key(config: Any) -> str:
    return str((config.get("data") or {}).get("reward_fn_key") or "data_source")
