"""What ``adjudge serve TARGET`` puts behind the service."""

from __future__ import annotations

from collections.abc import Mapping

from adjudge.errors import ConfigError
from adjudge.rewards.spec import is_trained_judge
from adjudge.service.backend import Backend
from adjudge.service.backends.damping import DampedBackend, Damping
from adjudge.service.backends.spec import SpecBackend
from adjudge.service.backends.user import UserBackend
from adjudge.service.settings import ServiceSettings

__all__ = ["DampedBackend", "Damping", "SpecBackend", "UserBackend", "load_backend"]


def load_backend(
    target: str,
    settings: ServiceSettings,
    *,
    arguments: Mapping[str, str] | None = None,
    damping: Damping | None = None,
) -> Backend:
    """The backend that ``target`` names: a reward spec, or a class (``module:Class``).

    A spec is a ``.toml`` file or the folder of a trained judge. ``arguments`` go to the class's
    constructor by name, read as its annotations say; a spec takes none. Nothing is loaded before
    ``start``. Raises :class:`ConfigError` naming what is wrong.
    """
    backend: Backend
    if target.endswith(".toml") or is_trained_judge(target):
        if arguments:
            raise ConfigError(f"{target}: a reward spec takes no arguments; set them in the file")
        backend = SpecBackend.from_file(target, settings)
    elif ":" in target:
        backend = UserBackend(target, arguments, settings)
    else:
        raise ConfigError(
            f"{target!r}: must be a reward spec (a .toml file), the folder of a "
            "trained judge, or 'module:Class' of your own judge"
        )
    if damping is not None and backend.compares_groups is not None:
        raise ConfigError(
            f"damping: {target} compares the samples of a group ({backend.compares_groups}), whose "
            "scores are not damped; leave it out"
        )
    if damping is not None:
        backend = DampedBackend(backend, damping)
    return backend
