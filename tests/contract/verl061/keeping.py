"""A rollout on a CPU that keeps what it was given, for Ray's workers to import."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cpu_shim  # type: ignore[import-not-found]  # beside this file
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY

FOLDER = "ADJUDGE_TEST_KEPT"
_ROLLOUT_REGISTRY[("hf", "sync")] = "keeping.KeepingRollout"


def keep(kind: str, what: dict[str, Any]) -> None:
    folder = Path(os.environ[FOLDER])
    folder.mkdir(exist_ok=True)
    torch.save(what, folder / f"{kind}-{len(list(folder.glob(f'{kind}-*')))}.pt")


def log_probs(model: Any, tensors: Any) -> Any:
    """Of each token of the responses, under the prompts that are in ``tensors``."""
    length = tensors["responses"].shape[1]
    logits = model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["attention_mask"],
        position_ids=tensors["position_ids"],
    ).logits[:, -length - 1 : -1]
    return logits.log_softmax(-1).gather(-1, tensors["responses"][..., None])[..., 0]


class KeepingRollout(cpu_shim.CPURollout):  # type: ignore[misc]  # has no types
    """As a rollout server that is asked for log-probabilities."""

    @torch.no_grad()
    def generate_sequences(self, prompts: Any) -> Any:
        asked = {name: prompts.batch[name].clone() for name in ("input_ids", "attention_mask")}
        told = [list(ids) for ids in prompts.non_tensor_batch["raw_prompt_ids"]]
        out = super().generate_sequences(prompts)
        if self.config.calculate_log_probs:
            out.batch["rollout_log_probs"] = log_probs(self.model, out.batch)
        meta = {name: prompts.meta_info.get(name) for name in ("validate", "global_steps")}
        keep("rollout", {**asked, **meta, "raw_prompt_ids": told, "columns": list(
            prompts.non_tensor_batch), "responses": out.batch["responses"]})  # fmt: skip
        return out


class KeepingWorker(cpu_shim.CPUWorker):  # type: ignore[misc]  # as above
    """Its being here makes the rollout above known where it works."""
