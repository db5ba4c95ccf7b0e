"""The TRL backend: libraries, ``GRPOTrainer`` on the run's own rollouts, and the warm start.

Batches, optimiser, loss, clipping, checkpoints and logging are the trainer's; where the rollouts
come from (``rollout_func``), their rewards and the advantage of each turn are the run's. The warm
start is supervised fine-tuning until the policy imitates the demonstrations.
"""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.installation import LAB, install_command
from adjudge_lab.rl.collector import RolloutCollector
from adjudge_lab.rl.rollouts import RolloutBatch, ScoredRollouts
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.scaffold import compute_unscaffolded_logps, correct_off_policy
from adjudge_lab.rl.trainer_settings import (
    RESERVED_GRPO_SETTINGS,
    check_trl_settings,
    merge_trl_settings,
)


def load_libraries(*, one_device: bool = True, hub: bool = False, one_thread: bool = True) -> None:
    """Load torch, transformers, datasets and TRL; raises :class:`ConfigError` where one is missing.

    ``one_device``: hide all GPUs but the first, for a trainer that sees several would split the
    model over them. ``hub``: something is to be fetched by its name; else the hub is not asked at
    all, unless ``HF_HUB_OFFLINE`` allows it. ``one_thread``: on a CPU, compute with one thread, for
    models so small that a second one costs more than it computes.
    """
    for name, value in (
        ("HF_HUB_OFFLINE", "0" if hub else "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("TRL_EXPERIMENTAL_SILENCE", "1"),
    ):
        os.environ.setdefault(name, value)
    if one_device:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        os.environ["CUDA_VISIBLE_DEVICES"] = seen.partition(",")[0]
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        import datasets  # noqa: PLC0415
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415
        import trl  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError(
            f"adjudge train needs torch, transformers, datasets and trl ({error.name} is not "
            f"installed). Try `make demo-rl`, or run: {install_command('train', LAB)}"
        ) from None
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("trl").setLevel(logging.ERROR)
    if one_thread and not torch.cuda.is_available():
        torch.set_num_threads(1)


StepMetrics = dict[str, float]
"""One step's metrics by name; what could not be computed is absent."""

_TRAINER_METRICS = {
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_std_frac",
    "completions/clipped_ratio": "cut_off_frac",
    "clip_ratio/region_mean": "clip_frac",
    "entropy": "entropy",
    "loss": "loss",
    "grad_norm": "grad_norm",
    "kl": "kl",
    "step_time": "step_s",
}


def grpo_settings(run: RunFile) -> dict[str, Any]:
    """The ``GRPOConfig`` that a run file means, by TRL's names; needs no TRL."""
    training = run.training
    ours: dict[str, Any] = {
        "per_device_train_batch_size": training.batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "num_generations": training.group_size,
        "max_completion_length": run.rollout.max_tokens,
        "max_steps": training.steps,
        "learning_rate": run.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": min(5, training.steps),
        "importance_sampling_level": "sequence" if run.algorithm.variety == "gspo" else "token",
        "temperature": run.rollout.temperature,
        "beta": 0.0,
        "seed": training.seed,
        "shuffle_dataset": False,
        "save_strategy": "steps",
        "save_steps": training.save_every_n_iters,
        # The run takes old ones away: the trainer would take the first policy with them.
        "save_total_limit": None,
        "activation_checkpointing": False,
    }
    return merge_trl_settings(ours, run.trl)


class TrainerHooks:
    """A run's side of the trainer: hands it rollouts, rewards and advantages, step by step.

    With ``pipeline_async_enabled`` the rollouts of the next step are played while those of this
    one are judged: by the policy that has not learned from this step yet (a lag of one update), so
    the ratio is taken to the log-probabilities with which they were drawn.
    """

    def __init__(
        self,
        run: RunFile,
        collector: RolloutCollector,
        *,
        on_settled: Callable[[ScoredRollouts], None],
    ) -> None:
        self._run, self._collector, self._on_settled = run, collector, on_settled
        self._ahead: RolloutBatch | None = None
        self._batch: RolloutBatch | None = None
        self._settled: ScoredRollouts | None = None
        self._trainer: Any = None
        self.step_metrics: StepMetrics = {}
        self._learning = time.perf_counter()

    def rollouts(self, _prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """TRL's ``rollout_func``: the tokens of this step's rollouts."""
        self._trainer = trainer
        done = trainer.state.global_step
        batch = self._ahead or self._collector.generate(done + 1, done)
        self._ahead = None
        if self._run.training.pipeline_async_enabled and done + 2 <= self._run.training.steps:
            self._ahead = self._collector.generate(done + 2, done)
        self._batch = batch
        tokens = [rollout.tokens for rollout in batch.rollouts]
        return {
            "prompt_ids": [one.prompt for one in tokens],
            "completion_ids": [one.completion for one in tokens],
            "logprobs": [one.logprobs for one in tokens],
            "env_mask": [[int(turn >= 0) for turn in one.turns] for one in tokens],
        }

    def judge(self, **given: Any) -> list[float | None]:
        """TRL's reward function: the rewards of this step's rollouts; ``None`` is missing."""
        assert self._batch is not None  # noqa: S101  (rollouts come first)
        settled = self._collector.score_batch(self._batch)
        self._settled = settled
        self.step_metrics = dict(settled.metrics)
        for name, value in settled.metrics.items():
            given["log_metric"](name, value)
        self._on_settled(settled)
        self._learning = time.perf_counter()
        return [result.score for result in settled.results]

    def shape_batch(self, output: dict[str, Any]) -> dict[str, Any]:
        """The trainer's batch with our advantages, and with the ratio's denominator if it lags.

        Rollouts that were drawn with a scaffold are corrected for that.
        """
        import torch  # noqa: PLC0415

        settled = self._settled
        assert settled is not None  # noqa: S101  (rewards come first)
        if self._run.algorithm.adv_estimator == "adjudge_grpo":
            mask = output["completion_mask"]
            spread = torch.zeros(mask.shape, dtype=torch.float32)
            for row, (rollout, advantages) in enumerate(
                zip(settled.batch.rollouts, settled.advantages, strict=True)
            ):
                if advantages is not None:
                    turns = rollout.tokens.turns
                    spread[row, : len(turns)] = torch.tensor(_token_advantages(turns, advantages))
            output["advantages"] = spread.to(mask.device)
        if self._run.training.pipeline_async_enabled:
            output["old_per_token_logps"] = output["sampling_per_token_logps"]
        if (scaffold := self._run.rollout.scaffold) is not None:
            self.step_metrics |= correct_off_policy(
                output,
                [one.tokens.read is not None for one in settled.batch.rollouts],
                scaffold,
                lags=self._run.training.pipeline_async_enabled,
                logps=lambda: compute_unscaffolded_logps(self._trainer, output),
            )
        return output

    @property
    def update_s(self) -> float:
        """Seconds since the rewards were there."""
        return time.perf_counter() - self._learning

    def close(self) -> None:
        """Stop judging rollouts that will not be learned from."""
        for batch in (self._batch, self._ahead):
            for job in batch.judging if batch is not None else ():
                job.cancel()


def _token_advantages(turns: Sequence[int], advantages: Sequence[float]) -> list[float]:
    """Each token's advantage: its turn's; 0 for tokens that the policy did not write."""
    if len(advantages) == 1:
        return [advantages[0] if turn >= 0 else 0.0 for turn in turns]
    return [advantages[turn] if turn >= 0 else 0.0 for turn in turns]


@cache
def _trainer_class() -> Any:
    import trl  # noqa: PLC0415

    class JudgedTrainer(trl.GRPOTrainer):  # type: ignore[misc]  # the base is untyped
        """``GRPOTrainer`` with an advantage for each turn."""

        run_side: TrainerHooks

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return self.run_side.shape_batch(super()._generate_and_score_completions(inputs))

    return JudgedTrainer


def train_policy(
    model: Any,
    tokenizer: Any,
    run: RunFile,
    side: TrainerHooks,
    *,
    folder: Path,
    resume: Path | None,
    on_step: Callable[[int, StepMetrics], bool],
    on_saved: Callable[[int], None],
) -> None:
    """Train ``model`` in place; ``on_step`` gets each step's row and says whether to stop.

    Checkpoints go to ``folder``; ``resume`` is the one to go on from, ``on_saved`` hears of each.
    A row has the trainer's numbers (``reward``, ``zero_std_frac``, …) and those of the rollouts.
    Raises what the reward raises: :class:`~adjudge.errors.JudgeUnavailable`,
    :class:`~adjudge.errors.JudgeAuthError`.
    """
    import datasets  # noqa: PLC0415
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415
    import trl  # noqa: PLC0415

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]  # the base is untyped
        def on_log(self, _: Any, state: Any, control: Any, **given: Any) -> None:
            logs = given["logs"]
            if "reward" not in logs:
                return
            # A number that is missing (no reward in the whole step) comes as None.
            row = {
                ours: float(logs[theirs])
                for theirs, ours in _TRAINER_METRICS.items()
                if logs.get(theirs) is not None
            }
            row = {**row, **side.step_metrics, "update_s": side.update_s}
            if on_step(state.global_step, {k: v for k, v in row.items() if math.isfinite(v)}):
                control.should_training_stop = True

        def on_save(self, _: Any, state: Any, _control: Any, **_given: Any) -> None:
            on_saved(state.global_step)

    training = run.training
    check_trl_settings(run.trl, "GRPOConfig", RESERVED_GRPO_SETTINGS, run.where)
    if training.trained_layers is not None:
        freeze_below(model, training.trained_layers, where=run.where)
    groups = training.rollouts_per_step // training.group_size
    # What is played comes from the run; the trainer only counts through these.
    rows = [{"prompt": [{"role": "user", "content": "."}]}] * (training.steps * groups)
    cuda = torch.cuda.is_available()
    trainer = _trainer_class()(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[side.judge],
        rollout_func=side.rollouts,
        train_dataset=datasets.Dataset.from_list(rows),
        args=trl.GRPOConfig(
            output_dir=str(folder),
            logging_steps=1,
            report_to=[],
            **{
                "use_cpu": not cuda,
                "bf16": cuda,
                "disable_tqdm": True,
                "dataloader_pin_memory": False,
                **grpo_settings(run),
            },
        ),
        callbacks=[Watch()],
    )
    trainer.run_side = side
    disable_trainer_logging(trainer)
    try:
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    finally:
        side.close()


def freeze_below(model: Any, layers: int, *, where: str) -> None:
    """Let only the last ``layers`` layers of a language model of transformers learn.

    Embeddings, the output and the norm before it stay as they are: backpropagation then ends at the
    first layer that learns. Raises :class:`~adjudge.errors.ConfigError` for more layers than there
    are, and where the model's layers are not found.
    """
    blocks = getattr(model.get_decoder(), "layers", None)
    if blocks is None or layers > len(blocks):
        found = "the model does not say which layers it has"
        if blocks is not None:
            found = f"found {layers}; the model has {len(blocks)}"
        raise ConfigError(
            f"{where}: training.trained_layers: must be at most the model's layers ({found}). "
            "Leave the key out to train all weights."
        )
    model.requires_grad_(False)
    for block in blocks[len(blocks) - layers :]:
        block.requires_grad_(True)


def disable_trainer_logging(trainer: Any) -> None:
    """Take away the callback that prints every log entry: the run has its own."""
    import contextlib  # noqa: PLC0415

    import transformers  # noqa: PLC0415

    with contextlib.suppress(ValueError):
        trainer.remove_callback(transformers.PrinterCallback)


_ANSWER_BATCH, _EPISODE_BATCH = 32, 8
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
    batch = _EPISODE_BATCH if any(len(row["messages"]) > 2 for row in rows) else _ANSWER_BATCH
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
    disable_trainer_logging(trainer)
    trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
