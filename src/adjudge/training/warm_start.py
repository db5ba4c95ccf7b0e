"""The warm start: supervised fine-tuning until the policy imitates the demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from adjudge.training.rl import silence

__all__ = ["warm_start"]

_ANSWERS, _LONG = 32, 8
"""Demonstrations in a batch: single answers; and where some are episodes or have a scaffold."""


def warm_start(
    model: Any,
    tokenizer: Any,
    rows: list[dict[str, Any]],
    *,
    steps: int,
    seed: int,
    folder: str,
    on_step: Callable[[int], None],
) -> list[float]:
    """Train ``model`` in place on the assistant's turns of ``rows``; the loss of every step.

    ``on_step`` hears the number of each step that is done.
    """
    batch = _LONG if any(len(row["messages"]) > 2 for row in rows) else _ANSWERS
    import datasets  # noqa: PLC0415
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415
    import trl  # noqa: PLC0415

    if steps == 0:
        return []

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]  # the base is untyped
        def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            on_step(state.global_step)

    settings = trl.SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=batch,
        max_steps=steps,
        learning_rate=5e-3,
        warmup_steps=min(5, steps),
        logging_steps=1,
        max_length=None,
        assistant_only_loss=True,
        report_to=[],
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        activation_checkpointing=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=seed,
    )
    trainer = trl.SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(list(islice(cycle(rows), steps * batch))),
        args=settings,
        callbacks=[Watch()],
    )
    silence(trainer)
    trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
