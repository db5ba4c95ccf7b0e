"""The folder of a validation: claimed for one set of judges and items, gone on with by the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import RunFolderError
from adjudge.runs.lock import locking
from adjudge.runs.whole import write_json, write_whole

__all__ = ["ValidationFolder", "open_folder"]

_MANIFEST = "run.json"
_OTHERS = ("summary.json", "metrics.jsonl", "rewards.jsonl", "episodes.jsonl", "judgements.jsonl")
_SAME = {"judges": "judges", "items": "items (--data, --benchmark)", "asked": "settings (--mode)"}


class ValidationFolder:
    """``path``, claimed for what ``manifest`` says, or gone on with if it says the same."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        file = path / _MANIFEST
        if not file.exists():
            if taken := [name for name in _OTHERS if (path / name).exists()]:
                raise RunFolderError(
                    f"{path}: holds {taken[0]} of another run; give another output folder with -o"
                )
            self.write_json(_MANIFEST, manifest)
            return
        try:
            found = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise RunFolderError(f"{file}: is not a run of adjudge: {error}") from error
        if found.get("kind") != manifest["kind"]:
            raise RunFolderError(f"{path}: holds another run; give another folder with -o")
        for key, words in _SAME.items():
            if found.get(key) != msgspec.to_builtins(manifest[key]):
                raise RunFolderError(
                    f"{path}: holds a validation with other {words}; give another output folder "
                    "with -o"
                )

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole: readers see the old one or the new one."""
        write_whole(self.path / name, data)

    def write_json(self, name: str, value: Any) -> None:
        """Write ``value`` as indented JSON."""
        write_json(self.path / name, value)


@contextmanager
def open_folder(path: Path, manifest: Mapping[str, Any]) -> Iterator[ValidationFolder]:
    """The folder of one validation, for this process alone.

    Raises :class:`~adjudge.errors.RunFolderError` where it holds anything else, and where another
    process is writing to it.
    """
    with locking(path):
        yield ValidationFolder(path, manifest)
