"""Reinforcement learning against the judge: TRL's ``GRPOTrainer`` with a reward spec's reward."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any

from adjudge.rewards.spec import RewardSpec
from adjudge.runs.distributions import mean
from adjudge.training.runfile import RunFile
from adjudge.training.task import environment_reward, questions
from adjudge.training.warm_start import silence

__all__ = ["StepRow", "answers_to", "judge_reward", "settings_of", "train_policy"]

StepRow = dict[str, float]
"""One step's metrics by name; what could not be computed is absent."""

_OF_TRAINER = {
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_std_frac",
    "completions/mean_length": "length",
    "completions/clipped_ratio": "clipped_frac",
    "entropy": "entropy",
    "loss": "loss",
    "step_time": "step_s",
}


def settings_of(run: RunFile) -> dict[str, Any]:
    """The ``GRPOConfig`` that a run file means, by TRL's names; needs no TRL."""
    training = run.training
    return {
        "per_device_train_batch_size": training.batch_size,
        "num_generations": training.group_size,
        "max_completion_length": run.rollout.max_tokens,
        "max_steps": training.steps,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": min(5, training.steps),
        "importance_sampling_level": "sequence" if run.algorithm.variety == "gspo" else "token",
        "temperature": 1.0,
        "beta": 0.0,
        "seed": training.seed,
    }


def judge_reward(spec: RewardSpec, group_size: int, found: StepRow) -> Callable[..., Any]:
    """The reward function of ``spec`` for TRL, with the environment's reward of the task.

    Each call leaves the batch's metrics in ``found``, under the names of the trainer's log.
    """
    from adjudge.trainers.trl import make_reward  # noqa: PLC0415

    inner: Callable[..., Awaitable[list[float | None]]] = make_reward(spec)
    weighted = spec.reward.combine_mode == "weighted_sum"

    async def judge(
        prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        responses = [turns[-1]["content"] for turns in completions]
        env = [
            environment_reward(response, reference)
            for response, reference in zip(responses, columns["reference"], strict=True)
        ]
        found.clear()
        passed_on = columns.pop("log_metric", None)

        def note(name: str, value: float) -> None:
            found[name] = value
            if passed_on is not None:
                passed_on(name, value)

        rewards = await inner(
            prompts=prompts,
            completions=completions,
            log_metric=note,
            **{**columns, "env_reward": env},
        )
        note("judge/env_mean", sum(env) / len(env))
        if weighted:
            for name, value in spreads(rewards, env, group_size).items():
                note(name, value)
        return rewards

    return judge


def spreads(
    rewards: Sequence[float | None], env: Sequence[float], group_size: int
) -> dict[str, float]:
    """Mean within-group variance of the environment's reward and of the judge's part of the sum.

    Only samples with a reward count; a group of fewer than two has none.

    >>> spreads([1.0, 3.0], [0.0, 1.0], 2)
    {'judge/env_group_var': 0.5, 'judge/part_group_var': 0.5}
    """
    env_vars, part_vars = [], []
    for start in range(0, len(rewards), group_size):
        pairs = [
            (reward - env[place], env[place])
            for place in range(start, min(start + group_size, len(rewards)))
            if (reward := rewards[place]) is not None
        ]
        if len(pairs) > 1:
            part_vars.append(_variance([part for part, _ in pairs]))
            env_vars.append(_variance([own for _, own in pairs]))
    found = {"judge/env_group_var": mean(env_vars), "judge/part_group_var": mean(part_vars)}
    return {name: value for name, value in found.items() if value is not None}


def _variance(values: Sequence[float]) -> float:
    middle = sum(values) / len(values)
    return sum((value - middle) ** 2 for value in values) / (len(values) - 1)


def train_policy(
    model: Any,
    tokenizer: Any,
    run: RunFile,
    spec: RewardSpec,
    *,
    folder: str,
    on_step: Callable[[int, StepRow], bool],
) -> None:
    """Train ``model`` in place; ``on_step`` gets each step's row and says whether to stop.

    A row has the trainer's numbers (``reward``, ``length`` in tokens, ``zero_std_frac``, …) and
    those of :func:`adjudge.trainers.metrics.batch_metrics`. Raises what the reward raises:
    :class:`~adjudge.errors.JudgeUnavailable`, :class:`~adjudge.errors.JudgeAuthError`.
    """
    import datasets  # noqa: PLC0415
    import transformers  # noqa: PLC0415
    import trl  # noqa: PLC0415

    found: StepRow = {}

    class Watch(transformers.TrainerCallback):  # type: ignore[misc]  # the base is untyped
        def on_log(self, _: Any, state: Any, control: Any, **given: Any) -> None:
            logs = given["logs"]
            if "reward" not in logs:
                return
            row = {
                ours: float(logs[theirs]) for theirs, ours in _OF_TRAINER.items() if theirs in logs
            }
            if on_step(state.global_step, {**row, **found}):
                control.should_training_stop = True

    training = run.training
    rng = random.Random(f"prompts {training.seed}")  # noqa: S311  (no secret)
    prompts = list(
        islice(questions(rng), training.steps * training.batch_size // training.group_size)
    )
    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[judge_reward(spec, training.group_size, found)],
        train_dataset=datasets.Dataset.from_list(prompts),
        args=trl.GRPOConfig(
            output_dir=folder,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **settings_of(run),
        ),
        callbacks=[Watch()],
    )
    silence(trainer)
    trainer.train()


def answers_to(
    model: Any, tokenizer: Any, prompts: Sequence[Any], *, max_tokens: int, seed: int
) -> list[str]:
    """One answer to each prompt, drawn at temperature 1; the same for the same ``seed``."""
    import torch  # noqa: PLC0415

    model.eval()
    torch.manual_seed(seed)
    given = tokenizer.apply_chat_template(
        list(prompts), add_generation_prompt=True, return_tensors="pt", padding=True,
        return_dict=True,
    )  # fmt: skip
    with torch.no_grad():
        said = model.generate(
            **given, max_new_tokens=max_tokens, do_sample=True, temperature=1.0, top_k=0
        )
    start = given["input_ids"].shape[1]
    return [tokenizer.decode(one[start:], skip_special_tokens=True) for one in said]
