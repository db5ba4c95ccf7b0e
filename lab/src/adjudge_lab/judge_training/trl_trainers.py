"""What TRL's trainers share: arguments, logs as metric rows, validation, and the order of rows.

Rows of like lengths are in one batch, so that little is padding.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adjudge_lab.judge_training.distributed import (
    ProcessRank,
    all_gather,
    distributed_rank,
    gpu_count,
    is_main_process,
    process_count,
    world_size,
)
from adjudge_lab.judge_training.judge_file import JudgeFile, MetricRow
from adjudge_lab.rl.trainer_settings import check_trl_settings
from adjudge_lab.rl.trl_backend import disable_trainer_logging

_CONFIGS = {"sft": "SFTConfig", "bradley_terry": "RewardConfig", "grpo": "GRPOConfig"}
_ORDER = "because rows are encoded, cut and batched by like lengths by the run itself"
_BEST = "because the run validates and keeps the best step itself"
_REPLIES = "because replies are drawn by transformers. Use backend = 'verl' for vLLM"
_RESERVED_SETTINGS: Mapping[str, str] = {
    "output_dir": "by the option -o",
    "num_train_epochs": "by trainer.total_epochs",
    "max_steps": "by trainer.total_epochs",
    "seed": "by trainer.seed",
    "per_device_train_batch_size": "by data.micro_batch_size",
    "per_device_eval_batch_size": "by data.micro_batch_size",
    "gradient_accumulation_steps": "by data.train_batch_size",
    "max_length": "by data.max_length",
    "learning_rate": "by optim.lr",
    "weight_decay": "by optim.weight_decay",
    "max_grad_norm": "by optim.clip_grad",
    "lr_scheduler_type": "by optim.lr_scheduler",
    "warmup_steps": "by optim.warmup_steps_ratio",
    "gradient_checkpointing": "by trainer.enable_gradient_checkpointing",
    "activation_checkpointing": "by trainer.enable_gradient_checkpointing",
    "fsdp": "by trainer.strategy and trainer.n_gpus_per_node",
    "deepspeed": "by trainer.strategy, which shards the model as ZeRO-3 does",
    "num_generations": "by grpo.rollout_n",
    "max_completion_length": "by grpo.max_response_length",
    "temperature": "by grpo.temperature",
    "beta": "by grpo.kl_loss_coef",
    **dict.fromkeys(
        ("packing", "padding_free", "shuffle_dataset", "completion_only_loss",
         "assistant_only_loss", "train_sampling_strategy", "generation_batch_size",
         "steps_per_generation"), _ORDER
    ),
    **dict.fromkeys(
        ("eval_strategy", "eval_steps", "eval_on_start", "save_strategy", "save_steps",
         "save_total_limit", "load_best_model_at_end", "metric_for_best_model",
         "greater_is_better", "logging_steps", "report_to"), _BEST
    ),
    **dict.fromkeys(("use_vllm", "use_transformers_continuous_batching"), _REPLIES),
}  # fmt: skip
"""Fields of TRL's configurations that ``[trl]`` of a training file cannot have, and why."""


def check_judge_settings(judge: JudgeFile) -> bool:
    """Check ``[trl]``; whether its names were, for which TRL must be installed.

    Raises :class:`~adjudge.errors.ConfigError` naming the key.
    """
    return check_trl_settings(judge.trl, _CONFIGS[judge.method], _RESERVED_SETTINGS, judge.where)


_SCHEDULERS = {
    "cosine": "cosine",
    "constant": "constant_with_warmup",
    "linear": "linear",
    "wsd": "warmup_stable_decay",
}
SUPERVISED_METRICS = {
    "loss": "train/loss",
    "accuracy": "train/accuracy",
    "margin": "train/margin",
    "mean_token_accuracy": "train/token_accuracy",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "num_tokens": "tokens",
}


class TrainerContext(NamedTuple):
    """Where a trainer saves, the checkpoint to go on from, and who hears of a step's metrics."""

    folder: Path
    resume: Path | None
    on_row: Callable[[int, MetricRow], None]


def training_steps(judge: JudgeFile, rows: int) -> int:
    """Updates in the whole run; the last of an epoch may be of fewer rows."""
    return judge.trainer.total_epochs * math.ceil(rows / judge.data.train_batch_size)


def validation_interval(judge: JudgeFile, steps: int) -> int:
    """Steps from one validation to the next."""
    return min(steps, judge.trainer.eval_every or math.ceil(steps / 10))


def trainer_arguments(judge: JudgeFile, steps: int, context: TrainerContext) -> dict[str, Any]:
    """Arguments that the configurations of TRL's trainers share; needs torch.

    Sixteen bits are for a GPU's arithmetic only: weights and the optimiser stay float32. Of several
    processes each computes its part of a batch of ``train_batch_size`` rows.
    """
    import torch  # noqa: PLC0415

    data, optim, trainer = judge.data, judge.optim, judge.trainer
    warmup = math.ceil(optim.warmup_steps_ratio * steps)
    every = validation_interval(judge, steps)
    cuda = torch.cuda.is_available()
    settings: dict[str, Any] = {
        "output_dir": str(context.folder),
        "num_train_epochs": trainer.total_epochs,
        "per_device_train_batch_size": data.micro_batch_size,
        "per_device_eval_batch_size": data.micro_batch_size,
        "gradient_accumulation_steps": data.train_batch_size
        // (data.micro_batch_size * world_size()),
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
        "eval_on_start": context.resume is None,
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


def unsupported_settings(judge: JudgeFile) -> list[str]:
    """What the file asks for that is not done on this machine, one line each."""
    trainer, count = judge.trainer, process_count(judge)
    notes, chosen = [], trainer.model_fields_set  # nobody asked for a default
    if (trainer.n_gpus_per_node or 1) > count and "n_gpus_per_node" in chosen:
        notes.append(f"trainer.n_gpus_per_node = {trainer.n_gpus_per_node}: trained on one device")
    if trainer.sp_size > 1 and "sp_size" in chosen:
        notes.append(f"trainer.sp_size = {trainer.sp_size}: sequences are not split over devices")
    if count > 1 and gpu_count() > 0:
        return notes
    if count > 1:
        notes.append(
            f"trainer.strategy = {trainer.strategy}: there is no GPU; each of {count} processes "
            "has the whole model"
        )
    offloads = [name for name in ("cpu_offload", "param_offload") if getattr(trainer, name)]
    return notes + [f"trainer.{name}: a model in one piece is not offloaded" for name in offloads]


def metrics_callback(
    names: Mapping[str, str],
    measured: Callable[[MetricRow], MetricRow],
    on_row: Callable[[int, MetricRow], None],
) -> Any:
    """A callback of transformers that makes one row of a step: training's, and validation's.

    ``names``: the trainer's numbers by ours, the first of which every training step has.
    ``measured`` gives (and forgets) what the run itself found since the last row, beside those. Of
    several processes the first alone tells of rows. ``tokens_before``: those that the trainer had
    seen when it began, which is more than none where it goes on.
    """
    import transformers  # noqa: PLC0415

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]  # the base is untyped
        def __init__(self) -> None:
            self._row: MetricRow = {}
            self.tokens_before = 0

        def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
            # A resumed state names the best checkpoint by where the folder was then.
            if state.best_global_step:
                best = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
                state.best_model_checkpoint = str(best)
            self.tokens_before = state.num_input_tokens_seen

        def on_log(self, _: Any, state: Any, control: Any, **given: Any) -> None:
            logs = given["logs"]
            if next(iter(names)) not in logs:
                return
            row = {
                ours: float(logs[theirs])
                for theirs, ours in names.items()
                if isinstance(logs.get(theirs), int | float)
            }
            self._row = {**row, **measured(row)}
            if not control.should_evaluate:
                self._tell(state.global_step)

        def on_evaluate(self, _: Any, state: Any, _control: Any, **given: Any) -> None:
            for name, value in given["metrics"].items():
                if name != CHOICE_METRIC:
                    self._row[f"val/{name.removeprefix('eval_')}"] = float(value)
            self._tell(state.global_step)

        def _tell(self, step: int) -> None:
            row, self._row = self._row, {}
            if is_main_process():
                on_row(step, {name: value for name, value in row.items() if math.isfinite(value)})

    return Watch()


CHOICE_METRIC = "eval_choice"
"""By what the best step is chosen, where that is no metric of its own."""


class OwnValidation:
    """Before a trainer of TRL among the bases of a class: the run's own validation, by ``side``."""

    side: Any
    control: Any

    def evaluate(self, *_: Any, **_given: Any) -> Mapping[str, float]:
        """What ``side`` measures, by names that begin with ``eval_``."""
        trainer: Any = self
        metrics: Mapping[str, float] = self.side.validate(trainer)
        self.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, metrics
        )
        return metrics


class OwnOrder(OwnValidation):
    """The same with rows in the run's order."""

    order: LengthGroupedSampler

    def _get_train_sampler(self, _dataset: Any = None) -> LengthGroupedSampler:
        return self.order


def run_trainer(trainer: Any, resume: Path | None) -> int:
    """Train, from the checkpoint ``resume`` on; the step of the model that is left, the best."""
    disable_trainer_logging(trainer)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return int(trainer.state.best_global_step or trainer.state.global_step)


class ValidationShare:
    """A process's own part of ``count`` held-out rows, and the model that computes it.

    A model in parts is computed by all processes at once, on the same rows.
    """

    def __init__(self, trainer: Any, count: int) -> None:
        self._in_parts = trainer.is_fsdp_enabled
        self.model = trainer.model_wrapped if self._in_parts else trainer.model
        self.places = range(count) if self._in_parts else process_share(count)

    def gather(self, found: list[Any]) -> list[Any]:
        """What all processes have found."""
        return found if self._in_parts else all_gather(found)


_BATCHES_PER_GROUP = 50
"""Rows of like lengths are looked for among those of so many batches."""


def group_by_length(lengths: Sequence[int], size: int, rng: random.Random) -> list[int]:
    """Every place once, ordered so that consecutive batches of ``size`` have like lengths.

    Rows are shuffled; of each 50 batches the rows are sorted by length and cut into batches. The
    batches are shuffled, so that length says nothing about time. The last batch may be smaller.

    >>> order = group_by_length([5, 1, 5, 1], 2, random.Random(0))
    >>> sorted(order), {abs(order[0] - order[1]), abs(order[2] - order[3])}
    ([0, 1, 2, 3], {2})
    """
    places = list(range(len(lengths)))
    rng.shuffle(places)
    batches: list[list[int]] = []
    for start in range(0, len(places), size * _BATCHES_PER_GROUP):
        near = sorted(
            places[start : start + size * _BATCHES_PER_GROUP], key=lambda place: -lengths[place]
        )
        batches += [near[at : at + size] for at in range(0, len(near), size)]
    short = [batch for batch in batches if len(batch) < size]
    whole = [batch for batch in batches if len(batch) == size]
    rng.shuffle(whole)
    return [place for batch in [*whole, *short] for place in batch]


class LengthGroupedSampler:
    """A sampler with an order by seed and epoch alone, so that a resumed run has the same.

    ``size`` is what all processes compute at once: accelerate deals an order out in batches, one to
    each process in turn, so that those of a step are alike and none waits. Where the last ones
    do not come out even, it fills them up with rows from the epoch's beginning.
    """

    def __init__(self, lengths: Sequence[int], size: int, seed: int) -> None:
        self._lengths, self._size, self._seed = lengths, size, seed
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self._seed} {self._epoch}")  # noqa: S311  (no secret)
        return iter(group_by_length(self._lengths, self._size, rng))

    def set_epoch(self, epoch: int) -> None:
        """Which pass over the rows comes next, from 0."""
        self._epoch = epoch


def process_share(count: int, place: ProcessRank | None = None) -> range:
    """Which of ``count`` rows are this process's (or that of ``place``) to compute.

    >>> [list(process_share(5, ProcessRank(rank, 2))) for rank in (0, 1)]
    [[0, 2, 4], [1, 3]]
    """
    place = place or distributed_rank() or ProcessRank(0, 1)
    return range(place.rank, count, place.world)
