"""Reinforcement learning: TRL's ``GRPOTrainer`` on rollouts that the run plays and judges itself.

Batches, optimiser, loss, clipping, checkpoints and logging are the trainer's; where the rollouts
come from (``rollout_func``), their rewards and the advantage of each turn are the run's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from adjudge.training.collecting import Collector
from adjudge.training.rollouts import Batch, Settled
from adjudge.training.runfile import RunFile
from adjudge.training.scaffold.correction import correct, unscaffolded_logps

__all__ = ["StepRow", "Training", "settings_of", "silence", "train_policy"]

StepRow = dict[str, float]
"""One step's metrics by name; what could not be computed is absent."""

_OF_TRAINER = {
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


def settings_of(run: RunFile) -> dict[str, Any]:
    """The ``GRPOConfig`` that a run file means, by TRL's names; needs no TRL."""
    training = run.training
    return {
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
        "save_total_limit": 2,
    }


class Training:
    """A run's side of the trainer: hands it rollouts, rewards and advantages, step by step.

    With ``pipeline_async_enabled`` the rollouts of the next step are played while those of this
    one are judged: by the policy that has not learned from this step yet (a lag of one update), so
    the ratio is taken to the log-probabilities with which they were drawn.
    """

    def __init__(
        self,
        run: RunFile,
        collector: Collector,
        *,
        on_settled: Callable[[Settled], None],
    ) -> None:
        self._run, self._collector, self._on_settled = run, collector, on_settled
        self._ahead: Batch | None = None
        self._batch: Batch | None = None
        self._settled: Settled | None = None
        self._trainer: Any = None
        self.found: StepRow = {}
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
        settled = self._collector.settle(self._batch)
        self._settled = settled
        self.found = dict(settled.metrics)
        for name, value in settled.metrics.items():
            given["log_metric"](name, value)
        self._on_settled(settled)
        self._learning = time.perf_counter()
        return [result.score for result in settled.results]

    def shaped(self, output: dict[str, Any]) -> dict[str, Any]:
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
                    spread[row, : len(turns)] = torch.tensor(_by_token(turns, advantages))
            output["advantages"] = spread.to(mask.device)
        if self._run.training.pipeline_async_enabled:
            output["old_per_token_logps"] = output["sampling_per_token_logps"]
        if (scaffold := self._run.rollout.scaffold) is not None:
            self.found |= correct(
                output,
                [one.tokens.read is not None for one in settled.batch.rollouts],
                scaffold,
                lags=self._run.training.pipeline_async_enabled,
                logps=lambda: unscaffolded_logps(self._trainer, output),
            )
        return output

    @property
    def update_s(self) -> float:
        """Seconds since the rewards were there."""
        return time.perf_counter() - self._learning

    def close(self) -> None:
        """Ask no more about rollouts that nobody will learn from."""
        for batch in (self._batch, self._ahead):
            for job in batch.judging if batch is not None else ():
                job.cancel()


def _by_token(turns: Sequence[int], advantages: Sequence[float]) -> list[float]:
    """Each token's advantage: its turn's; 0 for what the policy was told."""
    if len(advantages) == 1:
        return [advantages[0] if turn >= 0 else 0.0 for turn in turns]
    return [advantages[turn] if turn >= 0 else 0.0 for turn in turns]


@cache
def _trainer_class() -> Any:
    import trl  # noqa: PLC0415

    class JudgedTrainer(trl.GRPOTrainer):  # type: ignore[misc]  # the base is untyped
        """``GRPOTrainer`` with an advantage for each turn."""

        run_side: Training

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return self.run_side.shaped(super()._generate_and_score_completions(inputs))

    return JudgedTrainer


def train_policy(
    model: Any,
    tokenizer: Any,
    run: RunFile,
    side: Training,
    *,
    folder: Path,
    resume: Path | None,
    on_step: Callable[[int, StepRow], bool],
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
            # A number that there is none of (no reward in the whole step) comes as None.
            row = {
                ours: float(logs[theirs])
                for theirs, ours in _OF_TRAINER.items()
                if logs.get(theirs) is not None
            }
            row = {**row, **side.found, "update_s": side.update_s}
            if on_step(state.global_step, {k: v for k, v in row.items() if math.isfinite(v)}):
                control.should_training_stop = True

        def on_save(self, _: Any, state: Any, _control: Any, **_given: Any) -> None:
            on_saved(state.global_step)

    training = run.training
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
            use_cpu=not cuda,
            bf16=cuda,
            activation_checkpointing=False,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            # The run takes old ones away: the trainer would take the first policy with them.
            **{**settings_of(run), "save_total_limit": None},
        ),
        callbacks=[Watch()],
    )
    trainer.run_side = side
    silence(trainer)
    try:
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    finally:
        side.close()


def silence(trainer: Any) -> None:
    """Take away the callback that prints every log entry: the run has its own."""
    import contextlib  # noqa: PLC0415

    import transformers  # noqa: PLC0415

    with contextlib.suppress(ValueError):
        trainer.remove_callback(transformers.PrinterCallback)
