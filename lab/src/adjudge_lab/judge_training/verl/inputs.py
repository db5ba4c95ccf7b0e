"""What verl 0.6.1 is given for a judge: Parquet files, commands in its own settings, and checks.

Rows are those that our readers took; the checks refuse what verl cannot do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.rows import (
    Comparison,
    Demonstration,
    Rating,
    RowProblem,
    RowProblems,
)
from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import JudgementForm
from adjudge.judges.models.local_loading import convert_to_turns
from adjudge_lab.judge_training.dataset import (
    ConversationEncoder,
    EncodedRows,
    JudgeDataset,
    check_unusable_rows,
    digest_rows,
    encode_rows,
    load_demonstrations,
)
from adjudge_lab.judge_training.judge_file import TINY_MODEL, JudgeFile
from adjudge_lab.judge_training.judge_questions import (
    JudgeQuestion,
    LabelledDataset,
    check_form_tags,
    load_fence_key,
    load_labelled,
    make_demonstrations,
    make_questions,
    tokenize_prompts,
)
from adjudge_lab.judge_training.judgement_rewards import question_baselines
from adjudge_lab.judge_training.verl.reward import JUDGE_MANAGER_NAME, REGISTER_FILE
from adjudge_lab.rl.verl.inputs import write_parquet_rows
from adjudge_lab.rl.verl.run import hydra_command

JUDGE_DATA_SOURCE = "judge"
"""verl's ``data_source`` of all our rows, which names its validation metrics."""

_ROLES = ("user", "assistant", "tool")


@dataclass(frozen=True)
class JudgeFiles:
    """What a run of verl reads: ``train`` and ``validation``, with as many rows.

    ``first`` is the first row of training. ``form``: how the judge is asked, if it is. ``facts``:
    what was read, as the summary and the card have it; ``baselines``: what judges earn in GRPO that
    look at no answer; ``tokens``: those of a batch in SFT, in the mean; ``bayes_accuracy``: the
    best that can be expected on held-out rows that were made up.
    """

    train: Path
    validation: Path
    train_rows: int
    val_rows: int
    first: dict[str, Any] = field(default_factory=dict)
    form: JudgementForm | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    baselines: dict[str, Any] = field(default_factory=dict)
    tokens: float | None = None
    bayes_accuracy: float | None = None


def write_judge_files(judge: JudgeFile, folder: Path, tokenizer: Any | None) -> JudgeFiles:
    """Write ``train.parquet`` and ``validation.parquet`` into ``folder``.

    Without a ``tokenizer`` (a plan on a machine that has none) nothing is measured: what is too
    long, and what the chat template refuses, is found when the run begins. Raises
    :class:`~adjudge.errors.ConfigError` for rows that cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = None if tokenizer is None else ConversationEncoder(tokenizer)
    if judge.mode is not None and encoder is not None:
        check_form_tags(encoder, judge)
    if judge.method == "grpo":
        return _write_grpo_files(judge, folder, encoder)
    return _write_sft_files(judge, folder, encoder)


@dataclass
class _FilePart(EncodedRows[Any]):
    """One file's rows and what verl reads of them; ``counts`` are further facts."""

    written: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    tokens: int | None = None

    def part_facts(self, name: str) -> dict[str, Any]:
        """As the summary has them."""
        facts = {"rows": 0, "truncated": 0, **self.counts, **self.facts}
        return {f"{name}_rows": facts, f"{name}_sha256": digest_rows(self.rows)}


def _write_grpo_files(
    judge: JudgeFile, folder: Path, encoder: ConversationEncoder | None
) -> JudgeFiles:
    """Questions, both orders of a comparison next to each other."""
    labelled, key = load_labelled(judge), load_fence_key(folder)
    train = list(labelled.material.train)
    random.Random(judge.trainer.seed).shuffle(train)  # noqa: S311  (no secret)
    parts, baselines = {}, {}
    for name, rows in (("train", train), ("val", labelled.material.val)):
        questions, problems = _encode_questions(judge, f"data.{name}", rows, labelled, key, encoder)
        part = parts[name] = _FilePart(problems=problems, counts={"questions": len(questions)})
        part.rows = [rows[place] for place in dict.fromkeys(one.row for one in questions)]
        check_unusable_rows(part, judge, f"data.{name}")
        part.written = [_question_row(place, one, encoder) for place, one in enumerate(questions)]
        if questions:
            baselines[name] = msgspec.to_builtins(question_baselines(questions, labelled.form))
    return _write_files(judge, folder, parts, labelled.material, labelled.form, baselines)


def _encode_questions(
    judge: JudgeFile,
    name: str,
    rows: Sequence[Rating | Comparison],
    labelled: LabelledDataset,
    key: bytes,
    encoder: ConversationEncoder | None,
) -> tuple[list[JudgeQuestion], RowProblems]:
    questions, problems = make_questions(rows, labelled.form, key)
    if encoder is None:
        return questions, problems
    found = tokenize_prompts(questions, problems, rows, encoder, judge, name)
    return found.rows, found.problems


def _question_row(
    place: int, question: JudgeQuestion, encoder: ConversationEncoder | None
) -> dict[str, Any]:
    turns = (
        convert_to_turns(question.messages, ())
        if encoder is None
        else encoder.clean_messages(question.messages)
    )
    return {
        "prompt": turns,
        "data_source": JUDGE_DATA_SOURCE,
        "reward_model": {"style": "rule", "ground_truth": question.label},
        "extra_info": {
            "index": place,
            "row": question.row,
            "swapped": question.swapped,
            "answer_lengths": list(question.answer_lengths),
            "subset": question.subset or "",
        },
    }


def _write_sft_files(
    judge: JudgeFile, folder: Path, encoder: ConversationEncoder | None
) -> JudgeFiles:
    """Conversations; with a ``mode`` those are questions with the replies that are wanted."""
    labelled = None if judge.mode is None else load_labelled(judge, reasons=True)
    material = load_demonstrations(judge) if labelled is None else labelled.material
    key, whole = judge.data.multiturn.messages_key, judge
    if labelled is not None:  # cut, a judgement would teach not to give a verdict
        uncut = judge.data.model_copy(update={"truncation": "error"})
        whole = judge.model_copy(update={"data": uncut})
    parts = {}
    given: dict[str, list[Any]] = {"train": material.train, "val": material.val}
    for name, rows in given.items():
        part, where = _FilePart(), f"data.{name}"
        if labelled is not None:
            secret = load_fence_key(folder)
            questions, part.problems = _encode_questions(
                judge, where, rows, labelled, secret, encoder
            )
            made = make_demonstrations(questions, rows, labelled.form, labelled.reasons)
            rows = made[0]  # noqa: PLW2901
            part.problems.extend(made[2])
        part.rows = _drop_unsupported_rows(rows, part.problems)
        check_unusable_rows(part, judge, where)
        if encoder is None:
            turns = [convert_to_turns(row.messages, ()) for row in part.rows]
        else:
            found = encode_rows(part.rows, encoder, whole, where, part.problems)
            part = _FilePart(found.rows, found.ids, found.truncated, found.problems)
            part.tokens = sum(len(side) for sides in found.ids for side in sides)
            turns = [encoder.clean_messages(row.messages) for row in part.rows]
        part.written = [{key: one} for one in turns]
        parts[name] = part
    return _write_files(judge, folder, parts, material, labelled.form if labelled else None)


def _drop_unsupported_rows(
    rows: Sequence[Demonstration], problems: RowProblems
) -> list[Demonstration]:
    """Those rows that verl's own reader takes: it stops at the first that begins otherwise."""
    usable = []
    for row in rows:
        roles = [str(turn.get("role")) for turn in row.messages]
        rest = roles[1:] if roles[0] == "system" else roles
        if rest[:2] == ["user", "assistant"] and all(role in _ROLES for role in rest):
            usable.append(row)
            continue
        found = f"turns of {', '.join(roles[:4])[:60]}"
        wanted = "perhaps a system message, then user and assistant, for verl"
        problems.add(RowProblem(row.where, "messages", found, wanted))
    return usable


def _write_files(
    judge: JudgeFile,
    folder: Path,
    parts: dict[str, _FilePart],
    material: JudgeDataset[Any],
    form: JudgementForm | None,
    baselines: dict[str, Any] | None = None,
) -> JudgeFiles:
    train, val = parts["train"], parts["val"]
    paths = folder / "train.parquet", folder / "validation.parquet"
    for path, part in zip(paths, (train, val), strict=True):
        write_parquet_rows(path, iter(part.written))
    share = judge.data.train_batch_size / max(1, len(train.written))
    return JudgeFiles(
        *paths,
        len(train.written),
        len(val.written),
        first=train.written[0],
        form=form,
        facts={**material.facts, **train.part_facts("train"), **val.part_facts("val")},
        baselines=baselines or {},
        tokens=None if train.tokens is None else share * train.tokens,
        bayes_accuracy=material.bayes_accuracy,
    )


_SCHEDULERS = {"sft": ("cosine", "wsd"), "grpo": ("constant", "cosine")}
_CHECKPOINT_CONTENTS = ["model", "optimizer", "extra", "hf_model"]
"""Shards to go on from, and the whole model as transformers reads it."""


def verl_judge_command(judge: JudgeFile, files: JudgeFiles, folder: Path) -> list[str]:
    """``python -m … key=value …``: the training in verl's (Hydra's) settings.

    ``folder`` is where verl leaves what it makes. SFT is started by torch's own launcher, a process
    for each GPU; GRPO by our entry point, which replaces verl's. Raises
    :class:`~adjudge.errors.ConfigError`, also for what :func:`check_verl` finds.
    """
    check_verl(judge)
    check_verl_rows(judge, files)
    if judge.method == "sft":
        module = [
            "torch.distributed.run", "--standalone", "--nnodes=1",
            f"--nproc_per_node={judge_gpus(judge)}", "-m", "verl.trainer.fsdp_sft_trainer",
        ]  # fmt: skip
        settings = {**_sft_settings(judge, files), **_trainer_settings(judge, files, folder)}
    else:
        module = ["adjudge.trainers.verl.main_ppo"]
        settings = {
            **_grpo_data_settings(judge, files),
            **_policy_settings(judge),
            **_rollout_settings(judge),
            **_reward_settings(files),
            **_trainer_settings(judge, files, folder),
        }
    return hydra_command(module, settings)


def judge_gpus(judge: JudgeFile) -> int:
    """The GPUs of the node: as many as are asked for, else as sequences are split over."""
    return judge.trainer.n_gpus_per_node or judge.trainer.sp_size


def verl_steps(judge: JudgeFile, rows: int) -> int:
    """Updates in the whole run; verl leaves out the rows of an epoch that fill no batch."""
    return judge.trainer.total_epochs * (rows // judge.data.train_batch_size)


def check_verl(judge: JudgeFile) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for what verl 0.6.1 would not do, or do wrong."""
    trainer = judge.trainer
    if judge.is_scalar:
        judge.refuse(
            "backend",
            "verl trains no scalar judges. Leave it out, and give --ray ADDRESS to train on a "
            "cluster.",
        )
    if judge.model.path == TINY_MODEL:
        judge.refuse(
            "model.path", f"{TINY_MODEL!r} is only for backend = 'trl'. Give a model's folder."
        )
    if judge.lora is not None:
        judge.refuse(
            "lora",
            "verl 0.6.1 saves adapters without their scale. Use backend = 'trl', or leave it out.",
        )
    allowed = _SCHEDULERS[judge.method]
    if (found := judge.optim.lr_scheduler) not in allowed:
        judge.refuse(
            "optim.lr_scheduler",
            f"verl's {judge.method} does not have it (found {found!r}; allowed: "
            f"{', '.join(allowed)})",
        )
    is_sft = judge.method == "sft"
    if trainer.param_offload if is_sft else trainer.cpu_offload:
        given, other = ("param", "cpu") if is_sft else ("cpu", "param")
        judge.refuse(
            f"trainer.{given}_offload",
            f"cannot be used with {judge.method}. Use trainer.{other}_offload.",
        )
    if trainer.cpu_offload and trainer.strategy == "fsdp2":
        judge.refuse(
            "trainer.cpu_offload", "verl 0.6.1 offloads in SFT with strategy = 'fsdp' only"
        )
    _check_batches(judge)


def check_verl_rows(judge: JudgeFile, files: JudgeFiles) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for too few rows to fill verl's batches."""
    data, part = judge.data, judge_gpus(judge) // judge.trainer.sp_size
    if files.train_rows < data.train_batch_size:
        judge.refuse(
            "data.train_batch_size",
            f"must be at most the number of rows: {files.train_rows} (found "
            f"{data.train_batch_size})",
        )
    wanted = data.micro_batch_size * part
    if judge.method == "sft" and files.val_rows < wanted:
        judge.refuse(
            "data.val",
            f"must have at least {wanted} rows (found {files.val_rows}), because verl validates in "
            "whole batches of micro_batch_size on each part of the GPUs",
        )


def _check_batches(judge: JudgeFile) -> None:
    data, gpus, parts = judge.data, judge_gpus(judge), judge.trainer.sp_size
    if gpus % parts:
        judge.refuse(
            "trainer.sp_size",
            f"must divide the number of GPUs, n_gpus_per_node = {gpus} (found {parts})",
        )
    replicas = gpus // parts
    replies = 1 if judge.method == "sft" else judge.grpo.rollout_n
    if (data.train_batch_size * replies) % (replicas * data.micro_batch_size):
        of = "" if judge.method == "sft" else f", each answered {replies} times"
        judge.refuse(
            "data.train_batch_size",
            f"must give each of {replicas} data-parallel parts (n_gpus_per_node / sp_size) a "
            f"multiple of micro_batch_size = {data.micro_batch_size} (found "
            f"{data.train_batch_size}{of})",
        )


def _sft_settings(judge: JudgeFile, files: JudgeFiles) -> dict[str, Any]:
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
        "model.partial_pretrain": _base_model_path(judge),
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
        "trainer.checkpoint.save_contents": _CHECKPOINT_CONTENTS,
        "trainer.checkpoint.load_contents": _CHECKPOINT_CONTENTS[:-1],
    }


def _grpo_data_settings(judge: JudgeFile, files: JudgeFiles) -> dict[str, Any]:
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


def _policy_settings(judge: JudgeFile) -> dict[str, Any]:
    trainer, optim, grpo = judge.trainer, judge.optim, judge.grpo
    actor, ref = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
    return {
        "actor_rollout_ref.model.path": _base_model_path(judge),
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
        f"{actor}.checkpoint.save_contents": _CHECKPOINT_CONTENTS,
        f"{actor}.checkpoint.load_contents": _CHECKPOINT_CONTENTS[:-1],
        f"{ref}.log_prob_micro_batch_size_per_gpu": judge.data.micro_batch_size,
        f"{ref}.fsdp_config.param_offload": trainer.param_offload,
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "critic.enable": False,
    }


def _rollout_settings(judge: JudgeFile) -> dict[str, Any]:
    at = "actor_rollout_ref.rollout"
    return {
        f"{at}.name": "vllm",
        f"{at}.mode": "sync",  # rewards need the whole batch
        f"{at}.n": judge.grpo.rollout_n,
        f"{at}.temperature": judge.grpo.temperature,
        f"{at}.tensor_model_parallel_size": 1,
        f"{at}.log_prob_micro_batch_size_per_gpu": judge.data.micro_batch_size,
    }


def _reward_settings(files: JudgeFiles) -> dict[str, Any]:
    if files.form is None:
        raise ConfigError("these files ask no questions, so nothing can be rewarded")
    form = files.form
    return {
        "custom_reward_function.path": REGISTER_FILE,
        "custom_reward_function.name": "compute_score",
        "reward_model.reward_manager": JUDGE_MANAGER_NAME,
        "+reward_model.reward_kwargs.mode": form.mode,
        "+reward_model.reward_kwargs.ties": form.ties,
    }


def _trainer_settings(judge: JudgeFile, files: JudgeFiles, folder: Path) -> dict[str, Any]:
    steps = verl_steps(judge, files.train_rows)
    every = min(steps, judge.trainer.eval_every or math.ceil(steps / 10))
    common: dict[str, Any] = {
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": judge_gpus(judge),
        "trainer.total_epochs": judge.trainer.total_epochs,
        "trainer.test_freq": every,
        "trainer.save_freq": every,
        "trainer.project_name": "adjudge",
        "trainer.experiment_name": judge.model.label or judge.method,
        "trainer.logger": ["console", "file"],
        "trainer.default_local_dir": folder / "checkpoints",
        "hydra.run.dir": folder / "hydra",  # else it makes a folder in the current one
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


def _base_model_path(judge: JudgeFile) -> str:
    base = Path(judge.base)
    return str(base.resolve()) if base.is_dir() else judge.base
