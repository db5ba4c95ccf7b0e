"""A judge's training file in verl 0.6.1's own settings: the commands, and what verl cannot do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.judge_training.judge_tables import TINY
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.verl.files import JudgeFiles
from adjudge.judge_training.verl.reward import NAME, REGISTER
from adjudge.training.verl.run import hydra_value

__all__ = ["check_rows", "check_verl", "gpus_of", "steps_of", "verl_judge_command"]

_SCHEDULERS = {"sft": ("cosine", "wsd"), "grpo": ("constant", "cosine")}
_SAVED = ["model", "optimizer", "extra", "hf_model"]
"""Shards to go on from, and the whole model as transformers reads it."""


def verl_judge_command(judge: JudgeFile, files: JudgeFiles, folder: Path) -> list[str]:
    """``python -m … key=value …``: the training in verl's (Hydra's) settings.

    ``folder`` is where verl leaves what it makes. SFT is started by torch's own launcher, a process
    for each GPU; GRPO by the entry point of ours that stands for verl's. Raises
    :class:`~adjudge.errors.ConfigError`, also for what :func:`check_verl` finds.
    """
    check_verl(judge)
    check_rows(judge, files)
    if judge.method == "sft":
        module = [
            "torch.distributed.run", "--standalone", "--nnodes=1",
            f"--nproc_per_node={gpus_of(judge)}", "-m", "verl.trainer.fsdp_sft_trainer",
        ]  # fmt: skip
        settings = {**_sft(judge, files), **_trainer(judge, files, folder)}
    else:
        module = ["adjudge.trainers.verl.main_ppo"]
        settings = {
            **_questions(judge, files),
            **_policy(judge),
            **_rollout(judge),
            **_reward(files),
            **_trainer(judge, files, folder),
        }
    return [
        "python",
        "-m",
        *module,
        *(f"{key}={hydra_value(value)}" for key, value in settings.items()),
    ]


def gpus_of(judge: JudgeFile) -> int:
    """The GPUs of the node: as many as are asked for, else as sequences are split over."""
    return judge.trainer.n_gpus_per_node or judge.trainer.sp_size


def steps_of(judge: JudgeFile, rows: int) -> int:
    """Updates in the whole run; verl leaves out the rows of an epoch that fill no batch."""
    return judge.trainer.total_epochs * (rows // judge.data.train_batch_size)


def check_verl(judge: JudgeFile) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for what verl 0.6.1 would not do, or do wrong."""
    trainer = judge.trainer
    if judge.is_scalar:
        judge.refuse(
            "backend",
            "verl trains no scalar judges; leave it out, and give --ray ADDRESS to train on a "
            "cluster",
        )
    if judge.model.path == TINY:
        judge.refuse("model.path", f"{TINY!r} is for backend = 'trl'; give verl a model's folder")
    if judge.lora is not None:
        judge.refuse(
            "lora", "verl 0.6.1 saves adapters without their scale; use backend = 'trl', or leave "
            "it out"
        )  # fmt: skip
    allowed = _SCHEDULERS[judge.method]
    if (found := judge.optim.lr_scheduler) not in allowed:
        judge.refuse(
            "optim.lr_scheduler", f"found {found!r}, verl's {judge.method} has {', '.join(allowed)}"
        )
    is_sft = judge.method == "sft"
    if trainer.param_offload if is_sft else trainer.cpu_offload:
        given, other = ("param", "cpu") if is_sft else ("cpu", "param")
        judge.refuse(
            f"trainer.{given}_offload", f"is not {judge.method}'s; use trainer.{other}_offload"
        )
    if trainer.cpu_offload and trainer.strategy == "fsdp2":
        judge.refuse(
            "trainer.cpu_offload", "verl 0.6.1 offloads in SFT with strategy = 'fsdp' only"
        )
    _check_batches(judge)


def check_rows(judge: JudgeFile, files: JudgeFiles) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for too few rows to fill verl's batches."""
    data, part = judge.data, gpus_of(judge) // judge.trainer.sp_size
    if files.train_rows < data.train_batch_size:
        judge.refuse(
            "data.train_batch_size",
            f"is {data.train_batch_size}, and there are {files.train_rows} rows: not one batch",
        )
    wanted = data.micro_batch_size * part
    if judge.method == "sft" and files.val_rows < wanted:
        judge.refuse(
            "data.val",
            f"has {files.val_rows} rows; verl validates by batches of {wanted} "
            "(micro_batch_size on each part of the GPUs), and leaves out what fills none",
        )


def _check_batches(judge: JudgeFile) -> None:
    data, gpus, parts = judge.data, gpus_of(judge), judge.trainer.sp_size
    if gpus % parts:
        judge.refuse(
            "trainer.sp_size", f"is {parts}, must divide the GPUs (n_gpus_per_node = {gpus})"
        )
    replicas = gpus // parts
    replies = 1 if judge.method == "sft" else judge.grpo.rollout_n
    if (data.train_batch_size * replies) % (replicas * data.micro_batch_size):
        of = "" if judge.method == "sft" else f", each answered {replies} times,"
        judge.refuse(
            "data.train_batch_size",
            f"is {data.train_batch_size}{of} over {replicas} data-parallel parts (n_gpus_per_node "
            f"/ sp_size), which is no multiple of micro_batch_size ({data.micro_batch_size})",
        )


def _sft(judge: JudgeFile, files: JudgeFiles) -> dict[str, Any]:
    data, trainer, optim = judge.data, judge.trainer, judge.optim
    offloads = trainer.cpu_offload
    return {
        "data.train_files": files.train,
        "data.val_files": files.validation,
        "data.train_batch_size": data.train_batch_size,
        "data.micro_batch_size_per_gpu": data.micro_batch_size,
        "data.max_length": data.max_length,
        "data.truncation": data.truncation,
        "data.multiturn.enable": data.multiturn.enable,
        "data.multiturn.messages_key": data.multiturn.messages_key,
        "model.partial_pretrain": _base(judge),
        "model.strategy": trainer.strategy,
        "model.fsdp_config.cpu_offload": offloads,
        "model.fsdp_config.offload_params": offloads,
        "model.enable_gradient_checkpointing": trainer.enable_gradient_checkpointing,
        "ulysses_sequence_parallel_size": trainer.sp_size,
        "use_remove_padding": trainer.sp_size > 1,  # verl splits sequences without padding only
        "optim.lr": optim.lr,
        "optim.weight_decay": optim.weight_decay,
        "optim.lr_warmup_steps_ratio": optim.warmup_steps_ratio,
        "optim.clip_grad": optim.clip_grad,
        "optim.lr_scheduler": optim.lr_scheduler,
        "trainer.seed": trainer.seed,
        "trainer.max_ckpt_to_keep": 2,
        "trainer.checkpoint.save_contents": _SAVED,
        "trainer.checkpoint.load_contents": _SAVED[:-1],
    }


def _questions(judge: JudgeFile, files: JudgeFiles) -> dict[str, Any]:
    return {
        "data.train_files": files.train,
        "data.val_files": files.validation,
        "data.train_batch_size": judge.data.train_batch_size,
        "data.shuffle": False,  # the file has the order, in which both orders of a pair meet
        "data.validation_shuffle": False,
        "data.filter_overlong_prompts": False,  # ours are left out already, by pairs
        "data.truncation": "error",
        "data.max_prompt_length": judge.data.max_length,
        "data.max_response_length": judge.grpo.max_response_length,
    }


def _policy(judge: JudgeFile) -> dict[str, Any]:
    trainer, optim, grpo = judge.trainer, judge.optim, judge.grpo
    actor, ref = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
    return {
        "actor_rollout_ref.model.path": _base(judge),
        "actor_rollout_ref.model.use_remove_padding": True,
        "actor_rollout_ref.model.enable_gradient_checkpointing": (
            trainer.enable_gradient_checkpointing
        ),
        f"{actor}.strategy": trainer.strategy,
        f"{actor}.ppo_mini_batch_size": judge.data.train_batch_size,  # one update a step
        f"{actor}.ppo_micro_batch_size_per_gpu": judge.data.micro_batch_size,
        f"{actor}.ulysses_sequence_parallel_size": trainer.sp_size,
        f"{actor}.use_kl_loss": grpo.kl_loss_coef > 0,
        f"{actor}.kl_loss_coef": grpo.kl_loss_coef,
        f"{actor}.kl_loss_type": "low_var_kl",
        f"{actor}.entropy_coeff": 0,
        f"{actor}.optim.lr": optim.lr,
        f"{actor}.optim.weight_decay": optim.weight_decay,
        f"{actor}.optim.lr_warmup_steps_ratio": optim.warmup_steps_ratio,
        f"{actor}.optim.lr_scheduler_type": optim.lr_scheduler,
        f"{actor}.grad_clip": optim.clip_grad,
        f"{actor}.fsdp_config.param_offload": trainer.param_offload,
        f"{actor}.fsdp_config.optimizer_offload": trainer.param_offload,
        f"{actor}.checkpoint.save_contents": _SAVED,
        f"{actor}.checkpoint.load_contents": _SAVED[:-1],
        f"{ref}.log_prob_micro_batch_size_per_gpu": judge.data.micro_batch_size,
        f"{ref}.fsdp_config.param_offload": trainer.param_offload,
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "critic.enable": False,
    }


def _rollout(judge: JudgeFile) -> dict[str, Any]:
    at = "actor_rollout_ref.rollout"
    return {
        f"{at}.name": "vllm",
        f"{at}.mode": "sync",  # rewards need the whole batch
        f"{at}.n": judge.grpo.rollout_n,
        f"{at}.temperature": judge.grpo.temperature,
        f"{at}.tensor_model_parallel_size": 1,
        f"{at}.log_prob_micro_batch_size_per_gpu": judge.data.micro_batch_size,
    }


def _reward(files: JudgeFiles) -> dict[str, Any]:
    if files.form is None:
        raise ConfigError("these files ask no questions, so nothing can be rewarded")
    form = files.form
    return {
        "custom_reward_function.path": REGISTER,
        "custom_reward_function.name": "compute_score",
        "reward_model.reward_manager": NAME,
        "+reward_model.reward_kwargs.mode": form.mode,
        "+reward_model.reward_kwargs.ties": form.ties,
    }


def _trainer(judge: JudgeFile, files: JudgeFiles, folder: Path) -> dict[str, Any]:
    steps = steps_of(judge, files.train_rows)
    every = min(steps, judge.trainer.eval_every or math.ceil(steps / 10))
    common: dict[str, Any] = {
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": gpus_of(judge),
        "trainer.total_epochs": judge.trainer.total_epochs,
        "trainer.test_freq": every,
        "trainer.save_freq": every,
        "trainer.project_name": "adjudge",
        "trainer.experiment_name": judge.model.label or judge.method,
        "trainer.logger": ["console", "file"],
        "trainer.default_local_dir": folder / "checkpoints",
        "hydra.run.dir": folder / "hydra",  # else it makes a folder where one stands
    }
    if judge.method == "sft":
        return common
    return {
        **common,
        "trainer.max_actor_ckpt_to_keep": 2,
        "trainer.val_before_train": True,
        "trainer.rollout_data_dir": folder / "rollouts",
        "trainer.validation_data_dir": folder / "validation",
    }


def _base(judge: JudgeFile) -> str:
    base = Path(judge.base)
    return str(base.resolve()) if base.is_dir() else judge.base
