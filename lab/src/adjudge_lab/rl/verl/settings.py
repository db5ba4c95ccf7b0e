"""``[verl]``: any of verl's own settings, checked against verl's own configuration.

Nothing of it is named here but what a run file says in another place. Names and kinds are read off
the configuration of the verl that is installed, composed by Hydra as verl does it, without
importing verl; where none is installed, nothing is checked, and nothing can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adjudge.config import suggest_name
from adjudge.errors import ConfigError
from adjudge_lab.rl.trainer_settings import check_setting_kind

_ENGINE = "model_engine"
_FORCED = "+"
_CONFIGURATION = "ppo_trainer"

RESERVED_VERL_SETTINGS: Mapping[str, str] = {
    "data.train_files": "rollout.dataset",
    "data.val_files": "rollout.dataset and evaluation.seeds",
    "data.train_batch_size": "training.batch_size",
    "data.max_response_length": "rollout.max_tokens",
    "data.shuffle": "training.seed",
    "actor_rollout_ref.model.path": "model.base",
    "actor_rollout_ref.model.custom_chat_template": "model.custom_chat_template",
    "actor_rollout_ref.actor.optim.lr": "training.learning_rate",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "algorithm.variety",
    "actor_rollout_ref.rollout.n": "training.group_size",
    "actor_rollout_ref.rollout.temperature": "rollout.temperature",
    "actor_rollout_ref.rollout.seed": "training.seed",
    "algorithm.adv_estimator": "algorithm.adv_estimator",
    "trainer.total_training_steps": "training.iterations_per_epoch",
    "trainer.total_epochs": "training.num_epochs",
    "trainer.save_freq": "training.save_every_n_iters",
    "trainer.test_freq": "evaluation.every_n_iters",
    "trainer.experiment_name": "model.label",
    "trainer.default_local_dir": "the option -o",
    "trainer.rollout_data_dir": "the option -o",
    "trainer.validation_data_dir": "the option -o",
    "reward.reward_manager": "[judge] and [[graders]]",
    "reward.reward_kwargs": "[judge] and [[graders]]",
    "reward.custom_reward_function": "[judge] and [[graders]]",
    "reward_model.reward_manager": "[judge] and [[graders]]",
    "reward_model.reward_kwargs": "[judge] and [[graders]]",
    "custom_reward_function": "[judge] and [[graders]]",
    "adjudge": "[rollout.scaffold]",
}
"""Settings of verl that a run file says in a place of its own, and where."""


def check_reserved_settings(given: Mapping[str, Any], where: str) -> None:
    """Raise :class:`ConfigError` for settings that the file says in another place."""
    for key in given:
        bare = key.lstrip(_FORCED)
        for one, place in RESERVED_VERL_SETTINGS.items():
            if bare == one or bare.startswith(f"{one}."):
                raise ConfigError(
                    f"{where}: verl.{key}: this file sets it by {place}. Set that, and leave this "
                    "key out."
                )


def find_verl_configuration() -> Path | None:
    """The folder of verl's configuration files; ``None`` where no verl is installed."""
    spec = find_spec("verl")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return next((place for one in places if (place := Path(one) / "trainer/config").is_dir()), None)


def merge_verl_settings(
    ours: Mapping[str, Any], given: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """``ours`` with what ``[verl]`` gives, by names as Hydra takes them.

    A name must be one of verl's configuration, or be under one that verl leaves open (such
    as ``…engine_kwargs.vllm``); its value must be of the kind of verl's own, where that is not
    null. ``"null"`` is null. A key that begins with ``+`` is Hydra's: added, and not checked.
    Raises :class:`ConfigError` naming ``where`` and key.
    """
    place = find_verl_configuration()
    tree = None
    if given and place is not None:
        engine = given.get(_ENGINE)
        tree = _compose(place, None if engine is None else str(engine), where)
    merged = dict(ours)
    for key, value in given.items():
        name = key
        if tree is not None and key != _ENGINE and not key.startswith(_FORCED):
            name = _check_setting(tree, key, value, f"{where}: verl.{key}")
        for old in [one for one in merged if one.lstrip(_FORCED) == key.lstrip(_FORCED)]:
            del merged[old]
        merged[name] = None if value == "null" else value
    return merged


def _compose(place: Path, engine: str | None, where: str) -> dict[str, Any]:
    """Verl's configuration as plain data, interpolations as text."""
    try:
        return _composed(place, engine)
    except ImportError:
        raise ConfigError(
            f"{where}: verl: its settings are read by Hydra, which is not installed though verl "
            "is. Run: pip install hydra-core"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{where}: verl.{_ENGINE}: {str(error).splitlines()[0]}") from None


@cache
def _composed(place: Path, engine: str | None) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir  # noqa: PLC0415  (comes with verl)
    from hydra.errors import HydraException  # noqa: PLC0415
    from omegaconf import OmegaConf  # noqa: PLC0415

    overrides = [] if engine is None else [f"{_ENGINE}={engine}"]
    try:
        with initialize_config_dir(str(place), version_base=None):
            found = compose(_CONFIGURATION, overrides=overrides)
    except HydraException as error:
        raise ValueError(str(error)) from None
    plain: dict[str, Any] = OmegaConf.to_container(found, resolve=False)  # type: ignore[assignment]  # a mapping at the top
    return plain


def _check_setting(tree: dict[str, Any], key: str, value: Any, where: str) -> str:
    """The name of a setting as Hydra takes it; raises :class:`ConfigError`."""
    here: Any = tree
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if isinstance(here, dict) and part in here:
            here = here[part]
            continue
        if here in ({}, None) and depth:  # verl leaves it open: anything may be added
            return f"{_FORCED}{key}"
        names = list(_setting_names(tree))
        above = ".".join(parts[:depth]) or "verl's configuration"
        raise ConfigError(
            f"{where}: verl has no such setting: {above} has no {part!r}"
            f"{suggest_name(key, names)}. Write {f'+{key}'!r} to add it all the same."
        )
    if isinstance(here, dict) and here:
        raise ConfigError(f"{where}: is a table of verl's (found {value!r:.80}). Set its keys.")
    if value != "null":
        check_setting_kind(where, value, here)
    return key


def _setting_names(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _setting_names(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"
