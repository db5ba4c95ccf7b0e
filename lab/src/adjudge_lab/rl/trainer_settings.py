"""Settings that a file passes through to its trainer, by the trainer's own names.

What is shared by verl's and TRL's, and TRL's: a table is checked against the fields of the
configuration class of the TRL that is installed. No setting is named here but those that a file
says in another place, or that would undo what the run does itself.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from adjudge.config import suggest_name
from adjudge.errors import ConfigError

MODEL_OPTIONS = "model_init_kwargs"
"""TRL's name for what a model is loaded with: ``dtype``, ``attn_implementation``, …"""

_OWN_OPTIONS = ("trust_remote_code", "use_safetensors", "device_map", "output_loading_info")
"""Of ``from_pretrained``: code that comes with a model is not run, and weights are safetensors."""

_LOGGING = "logging.to"
_STEPS = "because a step is one batch of the run's own rollouts, kept to be gone on with"
_PLAYER = (
    "because the run's own player draws the replies, by transformers. Use backend = 'verl' to "
    "generate with vLLM"
)
_PROCESS = (
    "because a policy is trained in one process here. Use backend = 'verl', or make_reward in a "
    "script of your own that accelerate launches"
)

RESERVED_GRPO_SETTINGS: Mapping[str, str] = {
    "output_dir": "by the option -o",
    "max_steps": "by training.iterations_per_epoch",
    "num_train_epochs": "by training.num_epochs",
    "per_device_train_batch_size": "by training.batch_size",
    "gradient_accumulation_steps": "by training.gradient_accumulation_steps",
    "num_generations": "by training.group_size",
    "max_completion_length": "by rollout.max_tokens",
    "temperature": "by rollout.temperature",
    "learning_rate": "by training.learning_rate",
    "importance_sampling_level": "by algorithm.variety",
    "seed": "by training.seed",
    "save_steps": "by training.save_every_n_iters",
    "report_to": f"by {_LOGGING}",
    "logging_steps": _STEPS,
    "save_strategy": _STEPS,
    "save_total_limit": _STEPS,
    "shuffle_dataset": _STEPS,
    "generation_batch_size": _STEPS,
    "steps_per_generation": _STEPS,
    "num_iterations": _STEPS,
    "eval_strategy": "by evaluation.every_n_iters",
    "use_vllm": _PLAYER,
    "use_transformers_continuous_batching": _PLAYER,
    "fsdp": _PROCESS,
    "deepspeed": _PROCESS,
    "parallelism_config": _PROCESS,
}
"""Fields of ``GRPOConfig`` that ``[trl]`` of a run file cannot have, and why."""


def flatten_settings(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """A table's settings by their dotted names; ``"a.b" = 1`` and ``[a] b = 1`` are one.

    >>> flatten_settings({"trainer": {"nnodes": 2}, "trainer.device": "cuda"})
    {'trainer.nnodes': 2, 'trainer.device': 'cuda'}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{above}{key}"
        found |= flatten_settings(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def check_setting_kind(where: str, value: Any, default: Any) -> None:
    """Raise :class:`ConfigError` where ``value`` is of another kind than the trainer's ``default``.

    A default that is null, or names another setting, says nothing.
    """
    wanted = None
    if isinstance(default, bool):
        wanted = None if isinstance(value, bool) else "true or false"
    elif isinstance(default, numbers.Number):
        fits = isinstance(value, numbers.Number) and not isinstance(value, bool)
        wanted = None if fits else "a number"
    elif isinstance(default, str):
        is_open = "${" in default or default == "???"
        wanted = None if is_open or isinstance(value, str) else "text"
    elif isinstance(default, Sequence):
        wanted = None if isinstance(value, list) else "a list"
    if wanted is not None:
        raise ConfigError(
            f"{where}: must be {wanted}, as the trainer's own {default!r:.60} is (found "
            f"{value!r:.80})"
        )


def check_model_options(given: Mapping[str, Any], where: str) -> None:
    """Raise :class:`ConfigError` for model options of ``[trl]`` that cannot be had."""
    options = given.get(MODEL_OPTIONS, {})
    if not isinstance(options, dict):
        raise ConfigError(f"{where}: trl.{MODEL_OPTIONS}: must be a table (found {options!r:.80})")
    for key in options:
        if key in _OWN_OPTIONS:
            raise ConfigError(
                f"{where}: trl.{MODEL_OPTIONS}.{key}: cannot be set: weights are read as "
                "safetensors onto one device, and code that comes with a model is not run. Leave "
                "it out."
            )


def check_trl_settings(
    given: Mapping[str, Any], config: str, reserved: Mapping[str, str], where: str
) -> bool:
    """Check ``[trl]``; whether its names and kinds were, for which TRL must be installed.

    ``config`` names TRL's class, ``reserved`` its fields that the table cannot have, and why.
    Raises :class:`ConfigError` naming ``where`` and key.
    """
    for key in given:
        if key in reserved or (key.startswith("vllm_") and "use_vllm" in reserved):
            why = reserved.get(key, reserved.get("use_vllm", ""))
            raise ConfigError(
                f"{where}: trl.{key}: cannot be set here: it is set {why}. Leave the key out."
                if why.startswith("by ")
                else f"{where}: trl.{key}: cannot be set here, {why}."
            )
    if not given or find_spec("trl") is None:
        return not given
    import trl  # noqa: PLC0415  (heavy)

    fields = {one.name: one.default for one in dataclasses.fields(getattr(trl, config))}
    for key, value in given.items():
        if key not in fields:
            raise ConfigError(
                f"{where}: trl.{key}: {config} of TRL {trl.__version__} has no such field"
                f"{suggest_name(key, fields)}."
            )
        if fields[key] is not dataclasses.MISSING:
            check_setting_kind(f"{where}: trl.{key}", value, fields[key])
    return True


def merge_trl_settings(ours: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``ours`` with what ``[trl]`` gives, less what the model itself is loaded with.

    ``gradient_checkpointing`` and ``activation_checkpointing`` are two names of one setting.
    """
    merged = {**ours, **{key: value for key, value in given.items() if key != MODEL_OPTIONS}}
    if "gradient_checkpointing" in given:
        merged.pop("activation_checkpointing", None)
    return merged
