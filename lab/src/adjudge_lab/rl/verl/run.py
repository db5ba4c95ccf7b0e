"""A run file as a run of verl: its command with every setting, its files, its Ray, and the run.

verl starts Ray if its process finds no cluster, else it joins the cluster on the machine.
With the variable ``RAY_PORT`` the run starts its own, with the control service at that port, so
that two runs on one machine do not meet in one cluster.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge_lab.rl.policy import read_chat_template
from adjudge_lab.rl.rewards import format_toml, start_run_judge
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.sinks import SHIPPED_SINKS
from adjudge_lab.rl.trainer_settings import flatten_settings
from adjudge_lab.rl.verl.inputs import (
    VerlRows,
    build_scaffold_settings,
    build_verl_spec,
    prompts_per_step,
    verl_gpus,
    verl_nodes,
    verl_version,
    write_parquet_rows,
)
from adjudge_lab.rl.verl.settings import merge_verl_settings

RAY_PORT_VARIABLE = "RAY_PORT"
"""The variable with the port of the run's own Ray; another one for each run on a machine."""

_LOWEST, _HIGHEST = 1024, 65_535


def own_ray_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which Ray starts anew and listens at ``RAY_PORT``; none without it.

    None either where ``RAY_ADDRESS`` names a cluster to join, as in a Ray job (its pods may have
    a ``RAY_PORT`` as well). Raises :class:`~adjudge.errors.ConfigError` for what is no port.

    >>> own_ray_variables({"RAY_PORT": "6380"})
    {'RAY_ADDRESS': 'local', 'RAY_GCS_SERVER_PORT': '6380'}
    """
    port = environment.get(RAY_PORT_VARIABLE, "").strip()
    if not port or environment.get("RAY_ADDRESS", "local") not in ("", "local"):
        return {}
    is_port = port.isascii() and port.isdecimal() and len(port) <= len(str(_HIGHEST))
    if not is_port or not _LOWEST <= int(port) <= _HIGHEST:
        raise ConfigError(
            f"{RAY_PORT_VARIABLE}: must be a port from {_LOWEST} to {_HIGHEST} (found "
            f"{port[:20]!r})"
        )
    return {"RAY_ADDRESS": "local", "RAY_GCS_SERVER_PORT": port}


def check_ray_port_free(variables: Mapping[str, str]) -> None:
    """Raise :class:`ConfigError` if the port of :func:`own_ray_variables` is taken."""
    port = variables.get("RAY_GCS_SERVER_PORT")
    if port is None:
        return
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        raise ConfigError(
            f"{RAY_PORT_VARIABLE}: the port {port} is not free ({error.strerror}), maybe "
            f"because of another run's Ray. Set {RAY_PORT_VARIABLE} to another port."
        ) from None


LaunchFunction = Callable[[Sequence[str], Mapping[str, str]], int]
"""From a module's name with its arguments, and variables to set, to an exit code."""

_MIN_TOKENS_PER_GPU = 16_384
_MAX_TEMPLATE_BYTES = 120_000  # Linux takes 131,071 bytes an argument, its key included
_UNQUOTED = re.compile(r"[A-Za-z/][A-Za-z0-9_./+@-]*(://[A-Za-z0-9_./+@-]+)?\Z")
_RESERVED_WORDS = {"true", "false", "null", "nan", "inf", "infinity"}


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
    def within(cls, folder: Path, rows: VerlRows | None = None) -> VerlFiles:
        """Their places in a run's folder, with room for ``rows``; ``None``: they are not known."""
        spec, train, validation = (
            folder / name for name in ("reward.toml", "train.parquet", "validation.parquet")
        )
        room = () if rows is None else (rows.prompt_tokens, rows.shown_tokens)
        return cls(spec, train, validation, *room)


def build_verl_command(
    run: RunFile, files: VerlFiles, folder: Path, version: str | None = None
) -> list[str]:
    """``python -m … key=value …``: the run in verl's (Hydra's) own settings.

    ``folder`` is where verl leaves what it makes. ``version``: ``0.9.1`` or ``0.6.1``, by default
    what is installed; in 0.6.1 our entry point replaces verl's and takes the same settings.
    """
    version = version or verl_version()
    old = version == "0.6.1"
    ours = {
        **_data_settings(run, files),
        **_policy_settings(run, files),
        **_rollout_settings(run, old),
        **(_reward_061(files) if old else _reward_091(run, files)),
        **_trainer_settings(run, folder),
        **build_scaffold_settings(run, files.shown_tokens),
    }
    settings = merge_verl_settings(ours, flatten_settings(run.verl), run.where)
    module = "adjudge.trainers.verl.main_ppo" if old else "verl.trainer.main_ppo"
    if run.rollout.scaffold is not None:
        module = "adjudge_lab.rl.verl.main_ppo"
    return hydra_command([module], settings)


def hydra_command(module: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """``python -m MODULE… key=value …``."""
    values = (f"{key}={format_hydra_value(value)}" for key, value in settings.items())
    return ["python", "-m", *module, *values]


def build_verl_environment(run: RunFile, folder: Path) -> dict[str, str]:
    """The variables that verl's process needs: its logs into ``folder``, our modules found.

    With ``RAY_PORT`` in this process's environment also those of a Ray of its own
    (:func:`own_ray_variables`).
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
        **own_ray_variables(os.environ),
    }


def write_verl_files(run: RunFile, folder: Path, spec: RewardSpec) -> VerlFiles:
    """Write what verl reads: the reward spec, and the rows of training and validation.

    ``spec``: the run's, with the addresses of what listens. Raises
    :class:`~adjudge.errors.ConfigError` for a dataset that cannot be read or written so.
    """
    rows = VerlRows(run)
    files = VerlFiles.within(folder, rows)
    folder.mkdir(parents=True, exist_ok=True)
    files.spec.write_text(format_verl_spec(run, spec), encoding="utf-8")
    write_parquet_rows(files.train, rows.train)
    write_parquet_rows(files.validation, rows.validation)
    return files


def format_verl_spec(run: RunFile, spec: RewardSpec) -> str:
    """The reward spec's file."""
    return format_toml(build_verl_spec(run, spec))


def run_verl(run: RunFile, folder: Path, *, launch: LaunchFunction) -> int:
    """Do the run with verl in a process of its own; its exit code.

    ``launch`` gets the command from the module's name on, as ``python -m`` does, and variables to
    add to the environment. What the run starts itself (a mock, a judge service) listens meanwhile.
    What verl cannot honour is the caller's to refuse
    (:func:`adjudge_lab.rl.backend_checks.check_backend_support`). Raises :class:`ConfigError`.
    """
    folder = folder.resolve()
    environment = build_verl_environment(run, folder)
    check_ray_port_free(environment)
    folder.mkdir(parents=True, exist_ok=True)
    with start_run_judge(run, folder) as (spec, _):
        files = write_verl_files(run, folder, spec)
        _python, _m, *argv = build_verl_command(run, files, folder)
        return launch(argv, environment)


def _data_settings(run: RunFile, files: VerlFiles) -> dict[str, Any]:
    return {
        "data.train_files": files.train,
        "data.val_files": files.validation,
        "data.train_batch_size": prompts_per_step(run),
        "data.shuffle": False,  # the file has the order
        "data.return_raw_chat": True,
        "data.max_prompt_length": _prompt_tokens(run, files),
        "data.max_response_length": run.rollout.max_tokens,
        # verl's data knows of no other template than the tokenizer's, unless it is set.
        **_template_settings(run, "+data.apply_chat_template_kwargs.chat_template"),
    }


def _policy_settings(run: RunFile, files: VerlFiles) -> dict[str, Any]:
    training, actor = run.training, "actor_rollout_ref.actor"
    base = run.folder / run.model.base
    is_gspo = run.algorithm.variety == "gspo"
    return {
        "actor_rollout_ref.model.path": base.resolve() if base.is_dir() else run.model.base,
        **_template_settings(run, "actor_rollout_ref.model.custom_chat_template"),
        f"{actor}.ppo_mini_batch_size": prompts_per_step(run),  # one update a step
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": max(
            _MIN_TOKENS_PER_GPU, _prompt_tokens(run, files) + run.rollout.max_tokens
        ),
        f"{actor}.policy_loss.loss_mode": "gspo" if is_gspo else "vanilla",
        f"{actor}.optim.lr": run.learning_rate,
        f"{actor}.optim.lr_warmup_steps": min(5, training.steps),
        f"{actor}.optim.weight_decay": 0.0,
        "critic.enable": False,
    }


def _rollout_settings(run: RunFile, old: bool) -> dict[str, Any]:
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


def _template_settings(run: RunFile, key: str) -> dict[str, Any]:
    text = read_chat_template(run)
    if text is None:
        return {}
    where = f"{run.where}: model.custom_chat_template: {run.model.custom_chat_template}"
    if "${" in text:
        raise ConfigError(
            where + ": verl would expand the '${' of the template. Write '{{ \"$\" }}{' instead."
        )
    if len(format_hydra_value(text).encode()) > _MAX_TEMPLATE_BYTES:
        raise ConfigError(
            f"{where}: the template is too long for verl's command line (allowed: at most "
            f"{_MAX_TEMPLATE_BYTES:,} bytes). Shorten it, or save it with the model."
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


def _trainer_settings(run: RunFile, folder: Path) -> dict[str, Any]:
    training, evaluation = run.training, run.evaluation
    # Asynchronous trainers take no other; with one turn both are the same.
    ours = training.pipeline_async_enabled
    return {
        "algorithm.adv_estimator": "adjudge_grpo" if ours else run.algorithm.adv_estimator,
        "trainer.nnodes": verl_nodes(run),
        "trainer.n_gpus_per_node": verl_gpus(run) // verl_nodes(run),
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": training.steps,
        "trainer.save_freq": training.save_every_n_iters,
        "trainer.val_before_train": True,
        "trainer.test_freq": evaluation.every_n_iters or training.steps,  # and after the last step
        "trainer.project_name": "adjudge",
        "trainer.experiment_name": run.model.label or run.env_name,
        "trainer.logger": ["console", "file", *_logger_names(run)],
        "trainer.default_local_dir": folder / "checkpoints",
        "trainer.rollout_data_dir": folder / "rollouts",
        "trainer.validation_data_dir": folder / "validation",
    }


def _logger_names(run: RunFile) -> list[str]:
    to = run.logging.to
    if to == "auto":
        return ["trackio"] if find_spec("trackio") else []
    return [to] if to in SHIPPED_SINKS and to != "none" else []


def format_hydra_value(value: Any) -> str:
    """A value in the grammar of Hydra's overrides; text that it could read otherwise is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(format_hydra_value, value)) + "]"
    text = str(value)
    if _UNQUOTED.match(text) and text.lower() not in _RESERVED_WORDS:
        return text
    if "${" in text:  # verl resolves its configuration more than once, so no escape survives
        raise ConfigError(f"{text!r}: verl would expand ${{…}}. Use a name or folder without it.")
    # A backslash counts before a quote, and at the end, only.
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    text = re.sub(r"(\\+)\Z", r"\1\1", text)
    return f"'{text}'"


def format_command(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The command for a person to read: a setting a line, quoted for a shell."""
    import shlex  # noqa: PLC0415

    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    lines = [*variables, " ".join(command[:3]), *map(shlex.quote, command[3:])]
    return " \\\n    ".join(lines)
