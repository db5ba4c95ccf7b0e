"""The formats in which trainers ask a reward over HTTP, each at its own path."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from adjudge.errors import ConfigError
from adjudge.extensions import load_extension
from adjudge.service.formats.base import Format, WireFormat
from adjudge.service.formats.trainers import (
    LlamaFactory,
    NemoGym,
    NemoGymSession,
    OpenRLHF,
    Slime,
    SlimeWithParts,
)

__all__ = ["FORMATS", "Format", "NemoGym", "WireFormat", "load_formats"]

FORMATS: tuple[Format, ...] = (
    OpenRLHF(),
    Slime(),
    SlimeWithParts(),
    LlamaFactory(),
    NemoGym(),
    NemoGymSession(),
)
FORMAT_GROUP = "adjudge.service_formats"
"""The entry-point group of formats that packages bring."""


def load_formats(names: Sequence[str]) -> tuple[WireFormat, ...]:
    """The shipped formats, and those of the user: ``module:Class`` or a package's name for one.

    Raises :class:`ConfigError` for what cannot be imported or is no format.
    """
    return (*FORMATS, *map(_load_format, names))


def _load_format(name: str) -> WireFormat:
    where = f"--format {name}"
    found: Any = load_extension(FORMAT_GROUP, name, where=where)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(
                f"{where}: a format is made without arguments, and this one cannot be: "
                f"{type(error).__name__}: {error}"
            ) from error
    path = getattr(found, "path", None)
    if not isinstance(path, str) or not path.startswith("/"):
        raise ConfigError(f"{where}: path: must be text that begins with '/' (found {path!r:.80})")
    if not inspect.iscoroutinefunction(getattr(found, "answer", None)):
        raise ConfigError(f"{where}: must have a method `async def answer(self, body, score)`")
    return found  # type: ignore[no-any-return]
