"""A run of verl's real trainer on a CPU: two GRPO steps and validations before and after.

`python train_on_cpu.py FOLDER [override …]`; the folder gets the model, the data and the dumps.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import cpu_shim  # type: ignore[import-not-found]  # beside this file
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import tiny  # type: ignore[import-not-found]  # beside this file
import torch
import verl
from hydra import compose, initialize_config_dir
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.main_ppo import TaskRunner
from verl.trainer.ppo.ray_trainer import Role
from verl.utils import tracking

from adjudge.trainers.verl.main_ppo import JudgeTaskRunnerMixin

OVERRIDES = """
data.train_files={folder}/data.parquet data.val_files={folder}/data.parquet data.train_batch_size=4
data.max_prompt_length=32 data.max_response_length=8 data.dataloader_num_workers=0
data.return_raw_chat=True actor_rollout_ref.model.path={folder}/model
actor_rollout_ref.model.use_remove_padding=False
actor_rollout_ref.model.enable_gradient_checkpointing=False
+actor_rollout_ref.model.override_config.attn_implementation=sdpa
actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.ppo_mini_batch_size=4
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16
actor_rollout_ref.actor.use_torch_compile=False actor_rollout_ref.actor.optim.lr=1e-3
actor_rollout_ref.rollout.name=hf actor_rollout_ref.rollout.mode=sync actor_rollout_ref.rollout.n=4
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16
actor_rollout_ref.rollout.val_kwargs.n=2 actor_rollout_ref.rollout.val_kwargs.do_sample=True
actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor_rollout_ref.rollout.free_cache_engine=False actor_rollout_ref.rollout.load_format=auto
critic.enable=False algorithm.adv_estimator=adjudge_grpo reward_model.reward_manager=adjudge
trainer.logger=[console,file] trainer.total_training_steps=2 trainer.total_epochs=1
trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.val_before_train=True trainer.test_freq=2
trainer.save_freq=-1 trainer.device=cuda trainer.resume_mode=disable
trainer.default_local_dir={folder}/checkpoints trainer.rollout_data_dir={folder}/rollouts
trainer.validation_data_dir={folder}/validation
"""


class CPUTaskRunner(JudgeTaskRunnerMixin, TaskRunner):  # type: ignore[misc]  # verl has no types
    """The shipped task runner with the worker that needs no GPU."""

    def add_actor_rollout_worker(self, config: Any) -> tuple[Any, Any]:
        self.role_worker_mapping[Role.ActorRollout] = ray.remote(cpu_shim.CPUWorker)
        return cpu_shim.CPUWorker, RayWorkerGroup

    def add_critic_worker(self, config: Any) -> None:
        pass


def log(self: Any, data: dict[str, Any], step: int) -> None:
    """As verl's FileLogger, which stops at metrics that are tensors (its own are, on a CPU)."""
    self.fp.write(json.dumps({"step": step, "data": data}, default=float) + "\n")


def main(folder: Path, overrides: list[str], runner: Any = CPUTaskRunner, **row: Any) -> None:
    torch.set_num_threads(1)
    tracking.FileLogger.log = log
    tiny.save_model(folder / "model")
    question = [{"role": "user", "content": "what is 2 + 3 ?"}]
    truth = {"style": "rule", "ground_truth": "5"}
    rows = [
        {"prompt": question, "data_source": "judge/x", "reward_model": truth,
         "extra_info": {"index": i}, **row}
        for i in range(8)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), folder / "data.parquet")
    configs = str(Path(verl.__file__).parent / "trainer/config")
    with initialize_config_dir(configs, version_base=None):
        config = compose("ppo_trainer", [*OVERRIDES.format(folder=folder).split(), *overrides])
    names = ("PYTHONPATH", "HF_HUB_OFFLINE", "ADJUDGE_SPEC", "VERL_USE_EXTERNAL_MODULES")
    env = {name: os.environ[name] for name in names if name in os.environ}
    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=1,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        runtime_env={"env_vars": {**env, "OMP_NUM_THREADS": "1"}},
    )
    try:
        runner().run(config)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
