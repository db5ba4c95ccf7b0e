"""A reward spec inside other people's trainers: their shapes in and out, no logic of their own.

Nothing here imports a trainer before it is used.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adjudge.errors import ConfigError
from adjudge.extensions import load_extension
from adjudge.trainers.declarations import SHIPPED_TRAINERS, find_install_line

if TYPE_CHECKING:
    from adjudge.rewards.spec import RewardSpec

__all__ = ["SHIPPED_TRAINERS", "make_trainer_reward"]


def make_trainer_reward(spec: RewardSpec | Path | str | None, trainer: str, **options: Any) -> Any:
    """A reward spec in the form that ``trainer`` calls.

    ``trainer`` is one of :data:`SHIPPED_TRAINERS`, the name of an installed package's adapter, or
    ``module:function`` of the user's own, which may stand beside the spec. The adapter gets
    ``spec`` as it is, and ``options``. Raises :class:`~adjudge.errors.ConfigError`.
    """
    beside = None
    if isinstance(spec, Path | str) and Path(spec).is_file():  # not a judge service's address
        beside = Path(spec).parent
    try:
        adapter = load_extension(
            "adjudge.trainers", trainer, where="trainer", folder=beside, shipped=SHIPPED_TRAINERS
        )
        return _call_adapter(adapter, trainer, spec, options)
    except (ConfigError, ImportError) as error:
        cause = error.__cause__ if isinstance(error, ConfigError) else error
        install = find_install_line(trainer)
        if install and isinstance(cause, ModuleNotFoundError):
            raise ConfigError(
                f"trainer: {trainer!r} needs a package that is not installed (found no "
                f"{cause.name}). Run: {install}"
            ) from error
        raise


def _call_adapter(adapter: Any, trainer: str, spec: Any, options: dict[str, Any]) -> Any:
    if not callable(adapter):
        raise ConfigError(
            f"trainer: must be a function make_reward(spec, **options) (found {trainer!r}, of type "
            f"{type(adapter).__name__})"
        )
    try:
        parameters = inspect.signature(adapter)
    except ValueError:  # of something built in
        return adapter(spec, **options)
    try:
        parameters.bind(spec, **options)
    except TypeError as error:
        raise ConfigError(f"trainer {trainer!r}: {error} (its parameters: {parameters})") from None
    return adapter(spec, **options)
