"""A run of verl's real trainer on a CPU with a scaffold; what is seen and trained on is kept.

`python scaffold_on_cpu.py FOLDER [override …]`; `FOLDER/kept` gets what rollouts were drawn from
(`rollout-N.pt`, in the order of the calls) and what the actor was updated with (`update-N.pt`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import keeping  # type: ignore[import-not-found]  # beside this file
import ray
import tiny  # type: ignore[import-not-found]  # beside this file
import torch
import train_on_cpu  # type: ignore[import-not-found]  # beside this file
from transformers import Qwen2ForCausalLM
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.ray_trainer import Role

from adjudge_lab.rl.verl.main_ppo import ScaffoldTaskRunnerMixin

RUBRICS = [
    {"criterion": "a b", "points": 5.0},
    {"criterion": "c d", "points": 3.0},
    {"criterion": "e f", "points": -2.0},
    {"criterion": "g h", "points": 1.0},
]


class KeepingTrainerMixin:
    """Keeps the batches that the actor is updated with."""

    actor_rollout_wg: Any

    def init_workers(self) -> None:
        super().init_workers()  # type: ignore[misc]  # of the trainer beside us
        update = self.actor_rollout_wg.update_actor

        def kept(batch: Any) -> Any:
            columns = batch.non_tensor_batch
            named = {name: columns[name].tolist() for name in columns if name.startswith("sca")}
            raw = [list(turns) for turns in columns["raw_prompt"]]
            keeping.keep("update", {**dict(batch.batch.items()), **named, "raw_prompt": raw})
            return update(batch)

        self.actor_rollout_wg.update_actor = kept


class Runner(ScaffoldTaskRunnerMixin, train_on_cpu.CPUTaskRunner):  # type: ignore[misc]  # as above
    """The shipped task runner of scaffolded runs, with what a CPU needs."""

    def trainer_class(self) -> type:
        return type("Trainer", (KeepingTrainerMixin, super().trainer_class()), {})

    def add_actor_rollout_worker(self, config: Any) -> tuple[Any, Any]:
        self.role_worker_mapping[Role.ActorRollout] = ray.remote(keeping.KeepingWorker)
        return keeping.KeepingWorker, RayWorkerGroup


def save_model(folder: Path) -> None:
    """One that minds its prompt: a fresh model's log-probabilities hardly differ."""
    fresh(folder)
    model = Qwen2ForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    model.save_pretrained(folder)


if __name__ == "__main__":
    fresh, tiny.save_model = tiny.save_model, save_model
    os.environ[keeping.FOLDER] = str(Path(sys.argv[1]) / "kept")
    train_on_cpu.main(Path(sys.argv[1]), sys.argv[2:], Runner, rubrics=RUBRICS)
