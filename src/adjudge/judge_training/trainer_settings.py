"""What both of TRL's trainers are told by a training file, and how their logs become rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from adjudge.judge_training.distributed import gpus, leads, processes, world
from adjudge.judge_training.judgefile import JudgeFile

__all__ = ["Row", "eval_every", "left_undone", "settings_of", "steps_of", "watch"]

Row = dict[str, float]
"""One step's metrics by name; what could not be computed is absent."""

_SCHEDULERS = {
    "cosine": "cosine",
    "constant": "constant_with_warmup",
    "linear": "linear",
    "wsd": "warmup_stable_decay",
}
_OF_TRAINER = {
    "loss": "train/loss",
    "accuracy": "train/accuracy",
    "margin": "train/margin",
    "mean_token_accuracy": "train/token_accuracy",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "num_tokens": "tokens",
}


def steps_of(judge: JudgeFile, rows: int) -> int:
    """Updates in the whole run; the last of an epoch may be of fewer rows."""
    return judge.trainer.total_epochs * math.ceil(rows / judge.data.train_batch_size)


def eval_every(judge: JudgeFile, steps: int) -> int:
    """Steps from one validation to the next."""
    return min(steps, judge.trainer.eval_every or math.ceil(steps / 10))


def settings_of(judge: JudgeFile, steps: int, folder: Path, *, resumed: bool) -> dict[str, Any]:
    """Arguments that ``RewardConfig`` and ``SFTConfig`` share; needs torch.

    Sixteen bits are for a GPU's arithmetic only: weights and the optimiser stay float32. Of several
    processes each computes its part of a batch of ``train_batch_size`` rows.
    """
    import torch  # noqa: PLC0415

    data, optim, trainer = judge.data, judge.optim, judge.trainer
    warmup = math.ceil(optim.warmup_steps_ratio * steps)
    every = eval_every(judge, steps)
    cuda = torch.cuda.is_available()
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": trainer.total_epochs,
        "per_device_train_batch_size": data.micro_batch_size,
        "per_device_eval_batch_size": data.micro_batch_size,
        "gradient_accumulation_steps": data.train_batch_size // (data.micro_batch_size * world()),
        "learning_rate": optim.lr,
        "weight_decay": optim.weight_decay,
        "max_grad_norm": optim.clip_grad,
        "lr_scheduler_type": _SCHEDULERS[optim.lr_scheduler],
        "warmup_steps": warmup,
        "seed": trainer.seed,
        "max_length": None,  # rows are cut, and counted, before
        "activation_checkpointing": trainer.enable_gradient_checkpointing,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": every,
        "eval_on_start": not resumed,
        "save_strategy": "steps",
        "save_steps": every,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "report_to": [],
        "use_cpu": not cuda,
        "bf16": cuda,
        "disable_tqdm": True,
        "dataloader_pin_memory": cuda,
    }
    if optim.lr_scheduler == "wsd":
        settings["lr_scheduler_kwargs"] = {"num_decay_steps": max(1, steps // 10)}
    return settings


def left_undone(judge: JudgeFile) -> list[str]:
    """What the file asks for that is not done on this machine, one line each."""
    trainer, count = judge.trainer, processes(judge)
    notes = []
    if (trainer.n_gpus_per_node or 1) > count:
        notes.append(f"trainer.n_gpus_per_node = {trainer.n_gpus_per_node}: trained on one device")
    if trainer.sp_size > 1:
        notes.append(f"trainer.sp_size = {trainer.sp_size}: sequences are not split over devices")
    if count > 1 and gpus() > 0:
        return notes
    if count > 1:
        notes.append(
            f"trainer.strategy = {trainer.strategy}: there is no GPU; each of {count} processes "
            "has the whole model"
        )
    offloads = [name for name in ("cpu_offload", "param_offload") if getattr(trainer, name)]
    return notes + [f"trainer.{name}: a model in one piece is not offloaded" for name in offloads]


def watch(
    measured: Callable[[], Mapping[str, float]],
    on_row: Callable[[int, Row], None],
    on_saved: Callable[[int], None],
) -> Any:
    """A callback of transformers that makes one row of a step: training's, and validation's.

    ``measured`` gives (and forgets) what the run itself found since the last row. Of several
    processes the first alone tells of rows and checkpoints.
    """
    import transformers  # noqa: PLC0415

    on_row, on_saved = _of_the_first(on_row), _of_the_first(on_saved)

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]  # the base is untyped
        def __init__(self) -> None:
            self._row: Row = {}

        def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
            # A resumed state names the best checkpoint by where the folder was then.
            if state.best_global_step:
                best = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
                state.best_model_checkpoint = str(best)

        def on_log(self, _: Any, state: Any, control: Any, **given: Any) -> None:
            logs = given["logs"]
            if "loss" in logs:
                found = {
                    ours: float(logs[theirs])
                    for theirs, ours in _OF_TRAINER.items()
                    if isinstance(logs.get(theirs), int | float)
                }
                self._row = {**found, **measured()}
                if not control.should_evaluate:
                    self._tell(state.global_step)

        def on_evaluate(self, _: Any, state: Any, _control: Any, **given: Any) -> None:
            for name, value in given["metrics"].items():
                key = name.removeprefix("eval_")
                if key in _VALIDATED and isinstance(value, int | float):
                    self._row[_VALIDATED[key]] = float(value)
            self._tell(state.global_step)

        def on_save(self, _: Any, state: Any, _control: Any, **_given: Any) -> None:
            on_saved(state.global_step)

        def _tell(self, step: int) -> None:
            row, self._row = self._row, {}
            on_row(step, {name: value for name, value in row.items() if math.isfinite(value)})

    return Watch()


def _of_the_first(tell: Callable[..., None]) -> Callable[..., None]:
    return tell if leads() else lambda *_: None


_VALIDATED = {
    "loss": "val/loss",
    "accuracy": "val/accuracy",
    "margin": "val/margin",
    "calibration_error": "val/calibration_error",
    "length_corr": "val/length_corr",
    "mean_token_accuracy": "val/token_accuracy",
}
