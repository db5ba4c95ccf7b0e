"""A reward spec inside other people's trainers: their shapes in and out, no logic of their own.

:data:`TRAINERS`, read from ``trainers.toml``, are the trainers that adjudge works with: one
declaration each, for every table, message and name. ``adjudge.make_reward(trainer=…)`` finds its
adapters here, messages their install lines, and ``docs/generate_conformance.py --table`` makes the
table of ``docs/trainers.md`` of the rows, with what was measured of each trainer alone
(``docs/conformance/results.json``).

Nothing here imports a trainer before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.extensions import load_extension

if TYPE_CHECKING:
    from adjudge.rewards.spec import RewardSpec

__all__ = ["INSTALL_LINES", "SHIPPED_TRAINERS", "TRAINERS", "Trainer", "make_trainer_reward"]


@dataclass(frozen=True)
class Trainer:
    """A trainer, or one of its ways to ask for rewards: a row of the table, in Markdown.

    ``install`` has, by the names of ``make_reward(trainer=…)``, the command that installs the
    trainer. ``trainers.toml`` says what the fields mean.
    """

    title: str
    add: str = "–"
    missing: str = "–"
    refused: str = "–"
    measured: tuple[str, ...] = ()
    tested: str = ""
    install: Mapping[str, str] = field(default_factory=dict)
    sees: str = ""


TRAINERS = msgspec.toml.decode(
    Path(__file__).with_name("trainers.toml").read_bytes(), type=dict[str, tuple[Trainer, ...]]
)["trainers"]
"""In the order of the table."""

INSTALL_LINES = {name: command for one in TRAINERS for name, command in one.install.items()}
"""The command that installs a shipped trainer, by the trainer's name."""

SHIPPED_TRAINERS = {
    name: f"adjudge.trainers.{next(iter(one.install)).replace('-', '_')}:make_reward"
    for name, one in sorted((name, one) for one in TRAINERS for name in one.install)
}
"""Trainers by their names, and the adapter of each: ``make_reward(spec, **options)``."""


def make_trainer_reward(spec: RewardSpec | Path | str | None, trainer: str, **options: Any) -> Any:
    """A reward spec in the form that ``trainer`` calls.

    ``trainer`` is one of :data:`SHIPPED_TRAINERS`, the name of an installed package's adapter, or
    ``module:function`` of the user's own, which may stand beside the spec. It gets ``spec`` as it
    is, and ``options``. Raises :class:`~adjudge.errors.ConfigError`.
    """
    beside = None
    if isinstance(spec, Path | str) and Path(spec).is_file():  # not a judge service's address
        beside = Path(spec).parent
    try:
        adapter = load_extension(
            "adjudge.trainers", trainer, where="trainer", folder=beside, shipped=SHIPPED_TRAINERS
        )
        return adapter(spec, **options)
    except (ConfigError, ImportError) as error:
        cause = error.__cause__ if isinstance(error, ConfigError) else error
        install = INSTALL_LINES.get(trainer)
        if install and isinstance(cause, ModuleNotFoundError):
            raise ConfigError(
                f"trainer: {trainer!r} needs a package that is not installed (found no "
                f"{cause.name}). Run: {install}"
            ) from error
        raise
