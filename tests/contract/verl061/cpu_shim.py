"""What verl 0.6.1 lacks on a machine without a GPU: gloo, a rollout through `generate`, stubs.

For tests only. Importing it registers the rollout ``("hf", "sync")``; it is importable by that name
in Ray's workers when its folder is in ``PYTHONPATH``.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import verl.workers.fsdp_workers as fsdp_workers
from tensordict import TensorDict
from torch.distributed.fsdp import OffloadPolicy
from transformers import AutoModelForCausalLM
from verl import DataProto
from verl.utils.torch_functional import get_response_mask
from verl.workers.fsdp_workers import ActorRolloutRefWorker
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout

ROOM = (1 << 30, 1 << 30)
STUBS: dict[str, Any] = {
    **dict.fromkeys(("empty_cache", "ipc_collect", "reset_peak_memory_stats"), lambda *a: None),
    **dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"),
        lambda *a: 0,
    ),
    "mem_get_info": lambda *a: ROOM,
    "get_rng_state": lambda *a: torch.get_rng_state(),
    "set_rng_state": lambda state, *a: torch.set_rng_state(state),
    "manual_seed": torch.manual_seed,
    "manual_seed_all": torch.manual_seed,
}
for name, stub in STUBS.items():
    if not hasattr(torch.cpu, name):
        setattr(torch.cpu, name, stub)

# gloo of this torch fails on its all_gather of 0-dimensional tensors.
fsdp_workers.topk_reduce_ratio_min_max = lambda value, k=10: (1.0, float(value), float(value))
# A reference model is always kept in memory that is pinned for a GPU, which is not there.
fsdp_workers.CPUOffloadPolicy = lambda **_: OffloadPolicy()
_ROLLOUT_REGISTRY[("hf", "sync")] = "cpu_shim.CPURollout"


class CPURollout(BaseRollout):  # type: ignore[misc]  # verl has no types
    """Rollouts by the model's own `generate`."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        path = self.model_config.local_path
        self.model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa").eval()

    async def resume(self, tags: Any) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(self, weights: Any, **kwargs: Any) -> None:
        state = {
            name: (w.full_tensor() if hasattr(w, "full_tensor") else w).detach().float()
            for name, w in weights
        }
        self.model.load_state_dict(state, strict=False)

    @torch.no_grad()
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        batch, meta = prompts.batch, prompts.meta_info
        room, pad, eos = self.config.response_length, meta["pad_token_id"], meta["eos_token_id"]
        given = batch["input_ids"]
        whole = self.model.generate(
            input_ids=given,
            attention_mask=batch["attention_mask"],
            max_new_tokens=room,
            do_sample=meta.get("do_sample", True),
            pad_token_id=pad,
            eos_token_id=eos,
        )
        said = whole[:, given.shape[1] :]
        said = torch.nn.functional.pad(said, (0, room - said.shape[1]), value=pad)
        mask = get_response_mask(said, eos_token=eos, dtype=batch["attention_mask"].dtype)
        later = batch["position_ids"][:, -1:] + torch.arange(1, room + 1)[None]
        tensors = {
            "prompts": given,
            "responses": said,
            "input_ids": torch.cat([given, said], 1),
            "attention_mask": torch.cat([batch["attention_mask"], mask], 1),
            "position_ids": torch.cat([batch["position_ids"], later], 1),
        }
        return DataProto(
            batch=TensorDict(tensors, batch_size=len(said)),
            non_tensor_batch=prompts.non_tensor_batch,
        )


class CPUWorker(ActorRolloutRefWorker):  # type: ignore[misc]  # verl has no types
    """verl's actor worker over gloo."""

    def __init__(self, config: Any, role: str, **kwargs: Any) -> None:
        torch.set_num_threads(1)
        if not dist.is_initialized():
            rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
            dist.init_process_group("gloo", rank=rank, world_size=size)
        super().__init__(config, role, **kwargs)
