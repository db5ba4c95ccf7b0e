"""verl's `one_step_off_policy` and `fully_async_policy` on a CPU, without models.

Arguments: a folder, and as JSON, for each case, the answers that each prompt gets. Rollouts,
rewards, queue, batch, advantages and metrics are verl's own; the LLM, the update and the logger are
stand-ins. Prints a JSON list as its last line: by policy, a step's rows and metrics, or the error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import tiny  # beside this file
import torch
import verl
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from v1_on_cpu import ScriptedLLM, rows_of  # type: ignore[import-not-found]  # likewise
from verl.experimental.agent_loop import AgentLoopManager
from verl.experimental.fully_async_policy.detach_utils import (
    RolloutSample,
    prepare_single_generation_data,
)
from verl.experimental.fully_async_policy.fully_async_rollouter import (
    FullyAsyncAgentLoopManager,
    FullyAsyncRollouter,
)
from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer
from verl.experimental.fully_async_policy.message_queue import MessageQueue, MessageQueueClient
from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer
from verl.experimental.reward_loop import RewardLoopManager
from verl.utils import tensordict_utils as tu

from adjudge.errors import MissingRewardError
from adjudge.trainers.verl.main_ppo import make_metrics_trainer

ROOT = Path(verl.__file__).parent


def config_of(folder: Path, policy: str, *lines: str) -> Any:
    """The policy's own configuration."""
    overrides = [*tiny.model_lines(folder), *tiny.MANAGER, *lines]
    name = {"one_step_off_policy": "one_step_off_ppo_trainer"}.get(
        policy, "fully_async_ppo_trainer"
    )
    with initialize_config_dir(str(ROOT / "experimental" / policy / "config"), version_base=None):
        return compose(name, overrides=overrides)


class Actor:
    """The one worker whose update is no model's."""

    def update_actor(self, batch: Any) -> TensorDict:
        found = TensorDict({}, batch_size=[])
        tu.assign_non_tensor(found, metrics={"mfu": [0.0], "pg_loss": [0.0]})
        return found


def bare(trainer: type, config: Any) -> Any:
    """A trainer as far as rewards and advantages go; its constructor needs GPUs."""
    made: Any = object.__new__(make_metrics_trainer(trainer))
    vars(made).update(
        config=config, tokenizer=tiny.tokenizer(), metrics={}, timing_raw={}, use_rm=False,
        global_steps=1, actor_rollout_wg=Actor(), reward_tensor=None, reward_extra_infos_dict={},
        distillation_config=None,
    )  # fmt: skip
    return made


def step(trainer: Any, batch: Any) -> dict[str, Any]:
    """The step's own methods, as `fit_step` calls them, and what its logger would get."""
    batch = trainer._fit_compute_reward(batch)
    batch = trainer._fit_compute_advantage(batch)
    trainer.config.trainer.critic_warmup = 0
    batch.batch["old_log_probs"] = torch.zeros_like(batch.batch["advantages"])
    trainer._fit_update_actor(batch)
    rows = [
        {
            "word": tiny.WORDS[int(batch.batch["responses"][i][0])],
            "reward": float(batch.batch["rm_scores"][i].sum()),
            "advantages": batch.batch["advantages"][i].tolist(),
            "missing": float(batch.non_tensor_batch["reward_missing"][i]),
        }
        for i in range(len(batch))
    ]
    judged = {k: float(v) for k, v in trainer.metrics.items() if k.startswith("judge/")}
    return {"rows": rows, "metrics": judged}


async def one_step_off(config: Any, rewards: Any, prompts: list[list[str]]) -> dict[str, Any]:
    trainer = bare(OneStepOffRayTrainer, config)
    trainer.async_rollout_manager = await AgentLoopManager.create(
        config=config,
        llm_client=ScriptedLLM(),
        reward_loop_worker_handles=rewards.reward_loop_workers,
    )
    rows: dict[str, Any] = {**rows_of(prompts), "dummy": torch.zeros(len(prompts), 1)}
    _, _, _, batch, _ = await trainer._async_gen_next_batch(iter([(0, rows)]))
    return step(trainer, batch)


async def fully_async(config: Any, rewards: Any, prompts: list[list[str]]) -> dict[str, Any]:
    queue = MessageQueueClient(MessageQueue.remote(config, 16))
    rollouter = object.__new__(FullyAsyncRollouter.__ray_actor_class__)
    manager = await FullyAsyncAgentLoopManager.create(
        config=config,
        llm_client=ScriptedLLM(),
        reward_loop_worker_handles=rewards.reward_loop_workers,
    )

    async def statistics() -> dict[str, Any]:
        return {}

    vars(rollouter).update(
        async_rollout_manager=manager, message_queue_client=queue, total_generated_samples=0,
        _step_generated_samples=0, processed_sample_count=0, dropped_stale_samples=0,
        get_statistics=statistics,
    )  # fmt: skip
    for place, words in enumerate(prompts):
        rows = {**rows_of([words]), "dummy": torch.zeros(1, 1)}
        full = prepare_single_generation_data(rows, config)
        sample = RolloutSample(full, f"sample_0_{place}", 0, {})
        await rollouter._process_single_sample_streaming(sample)
    trainer = bare(FullyAsyncTrainer.__ray_actor_class__, config)
    vars(trainer).update(
        message_queue_client=queue, required_samples=len(prompts), dynamic_schedule_enabled=False,
        _step_wait_times=[], _step_wait_samples=[], _balance_batch=None,
    )  # fmt: skip
    config.trainer.balance_batch = False
    _, batch = await trainer._get_samples_from_queue()
    return step(trainer, batch)


def attempt(policy: str, folder: Path, prompts: list[list[str]]) -> dict[str, Any]:
    run, more = {
        "one_step_off_policy": (one_step_off, ["trainer.balance_batch=False"]),
        "fully_async_policy": (fully_async, ["data.train_batch_size=0"]),
    }[policy]
    config = config_of(folder, policy, *more)
    rewards = RewardLoopManager(config)
    try:
        return asyncio.run(run(config, rewards, prompts))
    except MissingRewardError as error:
        return {"error": f"{type(error).__name__}: {error}"[:2000]}
    finally:
        for worker in rewards.reward_loop_workers:
            ray.kill(worker)


def main() -> None:
    folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    os.chdir(ROOT.parent)  # where one_step_off's file looks for verl's others
    ray.init(address="local", num_cpus=16, include_dashboard=False, object_store_memory=200 * 2**20)
    policies = ("one_step_off_policy", "fully_async_policy")
    found = [{policy: attempt(policy, folder, case) for policy in policies} for case in cases]
    ray.shutdown()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
