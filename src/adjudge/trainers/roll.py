"""ROLL: a reward spec as a reward worker, and a rollout loop that keeps missing rewards out.

In the YAML of an RLVR pipeline, with ``ADJUDGE_SPEC`` naming the spec on every machine::

    user_defined_rollout_loop_cls: adjudge.trainers.roll.JudgeRolloutLoop
    rewards: {my_domain: {worker_cls: adjudge.trainers.roll.JudgeRewardWorker, …}}

ROLL has no way to say "missing": a 0 votes, also under a loss mask, and NaN spreads. The worker
gives NaN, and the loop, which sees all responses to a prompt, lets none of it out. Where the run
takes off the group's mean and does nothing else (``adv_estimator: reinforce``, ``norm_mean_type:
group``, no ``norm_std_type``, no whitening), a missing reward becomes the mean of the present. In
every other run the prompt is dropped, and ROLL takes another.

A module of one's own may name a worker of another spec, ``Worker = make_reward("style.toml")``.
Both classes are made when they are asked for, since they derive from ROLL's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.adapter import Adapter, AdapterOptions
from adjudge.trainers.metrics import fill_missing

LOOP = f"{__name__}.JudgeRolloutLoop"


def __getattr__(name: str) -> Any:
    builders = {"JudgeRewardWorker": _load_worker, "JudgeRolloutLoop": _load_loop}
    if name not in builders:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = builders[name]()
    made.__qualname__ = name  # so that Ray finds it here
    globals()[name] = made
    return made


class RollAdapter(Adapter):
    """From ROLL's rows to their rewards; each request is one sample, or several of one prompt."""

    trainer = "ROLL"
    call_holds = "one sample"

    def check_config(self, config: Any) -> None:
        """Refuse a run whose loop would let a missing reward through.

        Raises :class:`~adjudge.errors.ConfigError`.
        """
        loop = getattr(config, "user_defined_rollout_loop_cls", None)
        if loop != LOOP and self.spec.missing.policy != "raise":
            raise ConfigError(
                f"user_defined_rollout_loop_cls: must be {LOOP}, since ROLL would spread a missing "
                f"reward over its group (found {loop!r})"
            )

    def score_rows(
        self, prompts: Sequence[str], responses: Sequence[str], rows: Any
    ) -> list[float]:
        """Rewards of decoded rows, NaN for a missing one; ``rows`` are arrays by column."""
        samples = []
        for place, (prompt, text) in enumerate(zip(prompts, responses, strict=True)):
            columns = {key: values[place] for key, values in rows.items() if len(values) > place}
            fields = self.select_fields(columns)
            samples.append(self.make_sample(place, place, prompt, text, fields))
        rewards = self.score(samples, list(map(self.name_group, samples))).rewards
        return [math.nan if reward is None else reward for reward in rewards]


def make_reward(
    spec: RewardSpec | Path | str | None = None, **options: Unpack[AdapterOptions]
) -> type:
    """A reward worker of ``spec``, for ``worker_cls: my_module.NAME``; beside it the loop.

    ``options`` are those of :class:`~adjudge.trainers.adapter.Adapter`. The spec is read when ROLL
    initialises the worker.
    """
    return _load_worker(partial(RollAdapter, spec, **options))


def settle_missing(config: Any, responses: Sequence[Any]) -> bool:
    """Whether a prompt's responses can be trained on, after filling in what is missing.

    The rewards of ``responses`` are changed in place: ``response_level_rewards`` and ``scores``.
    """
    given = [float(one.batch["response_level_rewards"][0]) for one in responses]
    found = [None if math.isnan(one) else one for one in given]
    centres = config.adv_estimator == "reinforce" and config.norm_mean_type == "group"
    scales = config.norm_std_type is not None or getattr(config, "whiten_rewards", False)
    if None in found and (not centres or scales or getattr(config, "whiten_advantages", False)):
        return False
    filled = fill_missing(found, ["0"] * len(found))
    if None in filled:
        return False
    for place in (place for place, reward in enumerate(found) if reward is None):
        for name in ("response_level_rewards", "scores"):
            responses[place].batch[name][0] = filled[place]
    return True


def derive_loop(base: type, query_filter: Callable[[Sequence[Any], Any], bool]) -> type:
    """The rollout loop on ROLL's ``base``; its ``query_filter`` is asked again after filling."""

    class JudgeRolloutLoop(base):  # type: ignore[misc]  # not installed for mypy
        async def process_new_prompt(self, context: Any) -> Any:
            responses = await super().process_new_prompt(context)
            if responses is None or context.is_val:  # a mean over an evaluation shows NaN
                return responses
            config = context.pipeline_config
            kept = settle_missing(config, responses) and query_filter(responses, config)
            return responses if kept else None

    return JudgeRolloutLoop


def _load_loop() -> type:
    from roll.distributed.scheduler import user_defined_rollout_loop as own  # noqa: PLC0415

    return derive_loop(own.UserDefinedRolloutLoop, own.query_filter)


def _load_worker(make_adapter: Callable[[], RollAdapter] = RollAdapter) -> type:
    from roll.distributed.executor.worker import Worker  # noqa: PLC0415
    from roll.distributed.scheduler.decorator import Dispatch, register  # noqa: PLC0415
    from roll.distributed.scheduler.protocol import DataProto  # noqa: PLC0415
    from roll.models.model_providers import default_tokenizer_provider  # noqa: PLC0415

    class JudgeRewardWorker(Worker):  # type: ignore[misc]  # as above
        def __init__(self, worker_config: Any) -> None:
            super().__init__(worker_config=worker_config)
            self.rank_info.dp_rank, self.rank_info.dp_size = (
                self.rank_info.rank,
                self.rank_info.world_size,
            )
            self.strategy = None

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
        def initialize(self, pipeline_config: Any) -> None:
            super().initialize(pipeline_config)
            self.adapter = make_adapter()
            self.adapter.check_config(pipeline_config)
            self.tokenizer = default_tokenizer_provider(pipeline_config.actor_train.model_args)

        @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)  # type: ignore[untyped-decorator]
        def compute_rewards(self, data: Any) -> Any:
            prompts, responses = (
                self.tokenizer.batch_decode(data.batch[name], skip_special_tokens=True)
                for name in ("prompts", "responses")
            )
            rewards = self.adapter.score_rows(prompts, responses, data.non_tensor_batch)
            tokens = data.batch["responses"].float()
            tensors = {"token_level_rewards": tokens * 0}
            for name in ("response_level_rewards", "scores"):
                tensors[name] = tokens.new_tensor(rewards)
            output = DataProto.from_dict(tensors=tensors)
            output.meta_info = {"metrics": {}}
            return output

    return JudgeRewardWorker
