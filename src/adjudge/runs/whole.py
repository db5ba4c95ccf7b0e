"""Files written whole: readers see the old one or the new one, whenever the writer is killed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["write_json", "write_whole"]


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> Path:
    """Write ``data``, or its pieces one after the other, to ``path``; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)
    os.replace(part, path)  # noqa: PTH105  (atomic)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write ``value`` as indented JSON."""
    return write_whole(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
