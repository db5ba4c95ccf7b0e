"""The key of a run's fences: drawn once, kept with the run, shown to nobody else."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from adjudge.errors import RunFolderError

__all__ = ["KEY", "fence_key"]

KEY = ".fence_key"
"""Its file in the run's folder; only its owner may read it."""

_BYTES = 32


def fence_key(folder: Path) -> bytes:
    """The run's key, made where there is none; a run that goes on asks with the same one.

    Who knows it could write an answer that closes its own fence. Raises
    :class:`~adjudge.errors.RunFolderError` for a file that holds no key.
    """
    path = folder / KEY
    if path.exists():
        key = path.read_bytes()
        if len(key) != _BYTES:
            raise RunFolderError(
                f"{path}: holds {len(key)} bytes, a key has {_BYTES}; give another output folder "
                "with -o"
            )
        return key
    key = secrets.token_bytes(_BYTES)
    part = folder / f"{KEY}.part"
    part.unlink(missing_ok=True)
    file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(file, key)
    finally:
        os.close(file)
    os.replace(part, path)  # noqa: PTH105  (atomic)
    return key
