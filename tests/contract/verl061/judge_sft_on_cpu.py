"""verl's own SFT trainer where there is no GPU: gloo, sdpa, data read in this process.

`python -m torch.distributed.run judge_sft_on_cpu.py override …`
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import verl.trainer.fsdp_sft_trainer as trainer
from transformers import AutoModelForCausalLM


def initialised(timeout_second: int = 0) -> tuple[int, ...]:
    dist.init_process_group("gloo")
    return tuple(int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))


class Model(AutoModelForCausalLM):  # type: ignore[misc]  # transformers has no types
    @classmethod
    def from_pretrained(cls, *given: Any, **options: Any) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            *given, **{**options, "attn_implementation": "sdpa"}
        )


def loader(made: Any, **options: Any) -> Any:
    return made(**{**options, "num_workers": 0, "pin_memory": False})


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer.initialize_global_process_group = initialised
    trainer.AutoModelForCausalLM = Model
    trainer.StatefulDataLoader = partial(loader, trainer.StatefulDataLoader)
    trainer.main()
