"""The formats in which trainers ask a reward over HTTP, each at its own path."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from adjudge.errors import ConfigError
from adjudge.extensions import load_extension
from adjudge.service.formats.base import Format, WireFormat
from adjudge.service.formats.nemo_gym import NemoGym, NemoGymMetrics, NemoGymSession
from adjudge.service.formats.trainers import (
    LlamaFactory,
    OpenRLHF,
    Slime,
    SlimeWithParts,
)

__all__ = ["FORMATS", "Format", "NemoGym", "WireFormat", "load_formats"]

FORMATS: tuple[WireFormat, ...] = (
    OpenRLHF(),
    Slime(),
    SlimeWithParts(),
    LlamaFactory(),
    NemoGym(),
    NemoGymSession(),
    NemoGymMetrics(),
)
FORMAT_GROUP = "adjudge.service_formats"
"""The entry-point group of formats that packages bring."""

SHIPPED_VARIANTS = {"nemo-gym-marked": "adjudge.service.formats.nemo_gym:NemoGymMarked"}
"""Formats that are there when they are named, in the place of the one at their path."""


def load_formats(names: Sequence[str]) -> tuple[WireFormat, ...]:
    """The shipped formats, and those of the user: ``module:Class`` or a package's name for one.

    A variant (:data:`SHIPPED_VARIANTS`) stands in the place of the shipped format at its path.
    Raises :class:`ConfigError` for what cannot be imported or is no format.
    """
    named = [_load_format(name) for name in names]
    taken = {one.path for name, one in zip(names, named, strict=True) if name in SHIPPED_VARIANTS}
    return (*(one for one in FORMATS if one.path not in taken), *named)


def _load_format(name: str) -> WireFormat:
    where = f"--format {name}"
    found: Any = load_extension(FORMAT_GROUP, name, where=where, shipped=SHIPPED_VARIANTS)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(
                f"{where}: a format is made without arguments, and this one cannot be: "
                f"{type(error).__name__}: {error}"
            ) from error
    path = getattr(found, "path", None)
    is_path = isinstance(path, str) and path.startswith("/")
    if not is_path or not inspect.iscoroutinefunction(getattr(found, "answer", None)):
        raise ConfigError(
            f"{where}: must have a path that begins with '/' (found {path!r:.80}) and a method "
            "`async def answer(self, body, score)`"
        )
    return found  # type: ignore[no-any-return]
