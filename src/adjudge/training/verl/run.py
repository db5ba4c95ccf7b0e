"""A run file as a run of verl: its command with every setting, its files, and doing it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.template import chat_template
from adjudge.training.served import listening_judge, toml_text
from adjudge.training.verl.data import VerlRows, prompts_per_step, write_rows
from adjudge.training.verl.own_ray import check_free, own_ray
from adjudge.training.verl.scaffold_settings import scaffold_settings
from adjudge.training.verl.spec import verl_spec
from adjudge.training.verl.version import verl_gpus, verl_version

__all__ = [
    "Launch",
    "VerlFiles",
    "hydra_value",
    "run_verl",
    "verl_command",
    "verl_environment",
    "write_verl_files",
]

Launch = Callable[[Sequence[str], Mapping[str, str]], int]
"""From a module's name with its arguments, and variables to set, to an exit code."""

_LONGEST_STRIP = 16_384
_LONGEST_TEMPLATE = 120_000  # Linux takes 131,071 bytes an argument, its key included
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./+@-]*(://[A-Za-z0-9_./+@-]+)?\Z")
_WORDS = {"true", "false", "null", "nan", "inf", "infinity"}


@dataclass(frozen=True)
class VerlFiles:
    """What a run of verl reads; ``prompt_tokens`` is room for the longest prompt.

    ``shown_tokens``: for the longest with its rubrics, where a scaffold shows them.
    """

    spec: Path
    train: Path
    validation: Path
    prompt_tokens: int = 512
    shown_tokens: int = 512

    @classmethod
    def within(
        cls, folder: Path, prompt_tokens: int = 512, shown_tokens: int | None = None
    ) -> VerlFiles:
        """Their places in a run's folder."""
        return cls(
            folder / "reward.toml",
            folder / "train.parquet",
            folder / "validation.parquet",
            prompt_tokens,
            prompt_tokens if shown_tokens is None else shown_tokens,
        )

    @classmethod
    def of(cls, folder: Path, rows: VerlRows | None) -> VerlFiles:
        """The same, with room for ``rows``; ``None``: they are not known."""
        if rows is None:
            return cls.within(folder)
        return cls.within(folder, rows.prompt_tokens, rows.shown_tokens)


def verl_command(
    run: RunFile, files: VerlFiles, folder: Path, version: str | None = None
) -> list[str]:
    """``python -m … key=value …``: the run in verl's (Hydra's) own settings.

    ``folder`` is where verl leaves what it makes. ``version``: ``0.9.1`` or ``0.6.1``, by default
    what is installed; in 0.6.1 our entry point stands for verl's and takes the same settings.
    """
    version = version or verl_version()
    old = version == "0.6.1"
    settings = {
        **_data(run, files),
        **_policy(run, files),
        **_rollout(run, old),
        **(_reward_061(files) if old else _reward_091(run, files)),
        **_trainer(run, folder),
        **scaffold_settings(run, files.shown_tokens),
    }
    module = "adjudge.trainers.verl.main_ppo" if old else "verl.trainer.main_ppo"
    if run.rollout.scaffold is not None:
        module = "adjudge.training.verl.main_ppo"
    return [
        "python",
        "-m",
        module,
        *(f"{key}={hydra_value(value)}" for key, value in settings.items()),
    ]


def verl_environment(run: RunFile, folder: Path) -> dict[str, str]:
    """The variables that verl's process needs: its logs into ``folder``, our modules found.

    With ``RAY_PORT`` in this process's environment also those of a Ray of its own
    (:mod:`adjudge.training.verl.own_ray`).
    """
    here = os.environ.get("PYTHONPATH")
    return {
        # At the end of the path: a file beside the run file must not shadow a library.
        "PYTHONPATH": os.pathsep.join([*([here] if here else []), str(run.folder.resolve())]),
        "VERL_FILE_LOGGER_PATH": str(folder / "verl.jsonl"),
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
        "TRACKIO_DIR": str(folder / "trackio"),
        "WANDB_DIR": str(folder),
        "WANDB_MODE": os.environ.get("WANDB_MODE", "offline"),
        **own_ray(os.environ),
    }


def write_verl_files(run: RunFile, folder: Path, spec: RewardSpec) -> VerlFiles:
    """Write what verl reads: the reward spec, and the rows of training and validation.

    ``spec``: the run's, with the addresses of what listens. Raises
    :class:`~adjudge.errors.ConfigError` for a dataset that cannot be read or written so.
    """
    rows = VerlRows(run)
    files = VerlFiles.of(folder, rows)
    folder.mkdir(parents=True, exist_ok=True)
    files.spec.write_text(spec_text(run, spec), encoding="utf-8")
    write_rows(files.train, rows.train)
    write_rows(files.validation, rows.validation)
    return files


def spec_text(run: RunFile, spec: RewardSpec) -> str:
    """The reward spec's file."""
    return toml_text(verl_spec(run, spec, every_rollout=verl_version() != "0.6.1"))


def run_verl(run: RunFile, folder: Path, *, launch: Launch) -> int:
    """Do the run with verl in a process of its own; its exit code.

    ``launch`` gets the command from the module's name on, as ``python -m`` does, and variables to
    add to the environment. What the run starts itself (a mock, a judge service) listens meanwhile.
    What verl cannot honour is the caller's to refuse
    (:func:`adjudge.training.honoured.check_honoured`). Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    folder = folder.resolve()
    environment = verl_environment(run, folder)
    check_free(environment)
    folder.mkdir(parents=True, exist_ok=True)
    with listening_judge(run, folder) as (spec, _):
        files = write_verl_files(run, folder, spec)
        _python, _m, *argv = verl_command(run, files, folder)
        return launch(argv, environment)


def _data(run: RunFile, files: VerlFiles) -> dict[str, Any]:
    return {
        "data.train_files": files.train,
        "data.val_files": files.validation,
        "data.train_batch_size": prompts_per_step(run),
        "data.shuffle": False,  # the file has the order
        "data.return_raw_chat": True,
        "data.max_prompt_length": _prompt_tokens(run, files),
        "data.max_response_length": run.rollout.max_tokens,
        # verl's data knows of no other template than the tokenizer's, unless it is told.
        **_template(run, "+data.apply_chat_template_kwargs.chat_template"),
    }


def _policy(run: RunFile, files: VerlFiles) -> dict[str, Any]:
    training, actor = run.training, "actor_rollout_ref.actor"
    base = run.folder / run.model.base
    is_gspo = run.algorithm.variety == "gspo"
    return {
        "actor_rollout_ref.model.path": base.resolve() if base.is_dir() else run.model.base,
        **_template(run, "actor_rollout_ref.model.custom_chat_template"),
        f"{actor}.ppo_mini_batch_size": prompts_per_step(run),  # one update a step
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": max(
            _LONGEST_STRIP, _prompt_tokens(run, files) + run.rollout.max_tokens
        ),
        f"{actor}.policy_loss.loss_mode": "gspo" if is_gspo else "vanilla",
        f"{actor}.optim.lr": run.learning_rate,
        f"{actor}.optim.lr_warmup_steps": min(5, training.steps),
        f"{actor}.optim.weight_decay": 0.0,
        "critic.enable": False,
    }


def _rollout(run: RunFile, old: bool) -> dict[str, Any]:
    rollout, at = run.rollout, "actor_rollout_ref.rollout"
    settings: dict[str, Any] = {
        f"{at}.name": "vllm",
        f"{at}.tensor_model_parallel_size": 1,
        f"{at}.n": run.training.group_size,
        f"{at}.temperature": rollout.temperature,
        f"{at}.val_kwargs.do_sample": True,  # held-out answers are drawn as the others are
        f"{at}.val_kwargs.temperature": rollout.temperature,
    }
    default = type(rollout).model_fields["max_concurrent_rollouts"].default
    if rollout.episodes_per_batch is not None or rollout.max_concurrent_rollouts != default:
        most = min(rollout.episodes_per_batch or default, rollout.max_concurrent_rollouts)
        settings[f"{at}.max_num_seqs"] = max(1, most // verl_gpus(run))  # of each GPU's server
    if not old:
        settings[f"{at}.seed"] = run.training.seed
    return settings


def _prompt_tokens(run: RunFile, files: VerlFiles) -> int:
    """Room for what is trained on: the prompt, with its rubrics where they take part."""
    scaffold = run.rollout.scaffold
    takes_part = scaffold is not None and scaffold.participate_training
    return files.shown_tokens if takes_part else files.prompt_tokens


def _template(run: RunFile, key: str) -> dict[str, Any]:
    text = chat_template(run)
    if text is None:
        return {}
    where = f"{run.where}: model.custom_chat_template: {run.model.custom_chat_template}"
    if "${" in text:
        raise ConfigError(where + ": has '${', which verl would look up; write '{{ \"$\" }}{'")
    if len(hydra_value(text).encode()) > _LONGEST_TEMPLATE:
        raise ConfigError(
            f"{where}: is longer than {_LONGEST_TEMPLATE:,} bytes, more than a command line's "
            "argument holds, by which verl is told; shorten it, or save the model with it"
        )
    return {key: text}


def _reward_061(files: VerlFiles) -> dict[str, Any]:
    return {
        "reward_model.reward_manager": "adjudge",
        "+reward_model.reward_kwargs.spec": files.spec,
    }


def _reward_091(run: RunFile, files: VerlFiles) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "reward.num_workers": 1,  # limits on a judge's calls count per worker
        "reward.reward_manager.source": "importlib",
        "reward.reward_manager.name": "JudgeRewardLoopManager",
        "reward.reward_manager.module.path": "pkg://adjudge.trainers.verl",
        "+reward.reward_kwargs.spec": files.spec,
    }
    if run.training.pipeline_async_enabled:
        # One batch ahead, waited for rather than dropped: a rollout spans two versions at most,
        # and the ratio is to the log-probabilities that it was drawn with.
        settings |= {
            "trainer.v1.trainer_mode": "colocate_async",
            "trainer.v1.colocate_async.num_warmup_batches": 1,
            "trainer.v1.sampler.max_off_policy_threshold": 2,
            "trainer.v1.sampler.max_off_policy_strategy": "wait",
            "algorithm.rollout_correction.bypass_mode": True,
        }
    return settings


def _trainer(run: RunFile, folder: Path) -> dict[str, Any]:
    training, evaluation = run.training, run.evaluation
    # Asynchronous trainers take no other; with one turn both are the same.
    ours = training.pipeline_async_enabled
    return {
        "algorithm.adv_estimator": "adjudge_grpo" if ours else run.algorithm.adv_estimator,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": verl_gpus(run),
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": training.steps,
        "trainer.save_freq": training.save_every_n_iters,
        "trainer.val_before_train": True,
        "trainer.test_freq": evaluation.every_n_iters or training.steps,  # and after the last step
        "trainer.project_name": "adjudge",
        "trainer.experiment_name": run.model.label or run.env_name,
        "trainer.logger": ["console", "file", *_logger(run)],
        "trainer.default_local_dir": folder / "checkpoints",
        "trainer.rollout_data_dir": folder / "rollouts",
        "trainer.validation_data_dir": folder / "validation",
    }


def _logger(run: RunFile) -> list[str]:
    to = run.logging.to
    if to == "auto":
        return ["trackio"] if find_spec("trackio") else []
    return [] if to == "none" else [to]


def hydra_value(value: Any) -> str:
    """A value in the grammar of Hydra's overrides; text that it could read otherwise is quoted."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    text = str(value)
    if _PLAIN.match(text) and text.lower() not in _WORDS:
        return text
    if "${" in text:  # verl resolves its configuration more than once, so no escape survives
        raise ConfigError(f"{text!r}: verl would look ${{…}} up; use a name or folder without it")
    # A backslash counts before a quote, and at the end, only.
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(\\+)\Z", r"\1\1", text)
    return f"'{text}'"


def shown(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The command for a person to read: a setting a line, quoted for a shell."""
    import shlex  # noqa: PLC0415

    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    lines = [*variables, " ".join(command[:3]), *map(shlex.quote, command[3:])]
    return " \\\n    ".join(lines)
