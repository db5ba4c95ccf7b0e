"""The folder of an IFEval evaluation: claimed for its models and prompts, gone on with by them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import RunFolderError
from adjudge.runs.lock import locking
from adjudge.runs.whole import write_json

__all__ = ["IfevalFolder", "open_folder"]

_MANIFEST = "run.json"
_OTHERS = ("summary.json", "metrics.jsonl", "rewards.jsonl", "episodes.jsonl", "judgements.jsonl")
_SAME = {"models": "models or responses", "prompts": "prompts (--data)", "by": "--by"}
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")


class IfevalFolder:
    """``path``, claimed for what ``manifest`` says, or gone on with if it says the same."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        file = path / _MANIFEST
        if not file.exists():
            if taken := [name for name in _OTHERS if (path / name).exists()]:
                raise RunFolderError(
                    f"{path}: holds {taken[0]} of another run; give another folder with -o"
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
                    f"{path}: holds an evaluation with other {words}; give another folder with -o"
                )

    def of(self, place: int, name: str, count: int) -> Path:
        """Where the files of one model go: here, or with several in a folder each."""
        if count == 1:
            return self.path
        slug = _UNSAFE.sub("-", name)[-60:].strip("-.") or "model"
        return self.path / f"{place + 1}-{slug}"

    def write_json(self, name: str, value: Any) -> None:
        """Write ``value`` as indented JSON; readers see the old file or the new one."""
        write_json(self.path / name, value)


@contextmanager
def open_folder(path: Path, manifest: Mapping[str, Any]) -> Iterator[IfevalFolder]:
    """The folder of one evaluation, for this process alone.

    Raises :class:`~adjudge.errors.RunFolderError` where it holds anything else, and where another
    process is writing to it.
    """
    with locking(path):
        yield IfevalFolder(path, manifest)
