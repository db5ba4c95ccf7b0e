"""A checkpoint by verl's own manager on two gloo ranks: `torch.distributed.run … MODEL FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager


def save(source: str, folder: str, step: int) -> None:
    """FSDP2 on a CPU; the second rank holds its half of every weight."""
    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),),
                                             mesh_dim_names=("fsdp",))  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    fully_shard(model, mesh=mesh)
    manager = FSDPCheckpointManager(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        processing_class=AutoTokenizer.from_pretrained(source),
        checkpoint_config=OmegaConf.create({"save_contents": ["model"], "load_contents": []}),
    )
    manager.save_checkpoint(f"{folder}/global_step_{step}/actor", global_step=step)
    dist.barrier()
    if dist.get_rank() == 0:
        Path(folder, "latest_checkpointed_iteration.txt").write_text(str(step))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    save(sys.argv[1], sys.argv[2], int(sys.argv[3]))
