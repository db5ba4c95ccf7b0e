"""A run's folder: made, locked, resumed by the same command, refused to any other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from adjudge.errors import RunFolderError
from adjudge.runs.lock import locked
from adjudge.runs.whole import write_json, write_whole

__all__ = ["RunFolder"]

_MANIFEST = "run.json"
_JOURNAL = "journal.jsonl"
_OURS = ("rewards.jsonl", "summary.json", "report.html", _JOURNAL)


class _Manifest(msgspec.Struct):
    adjudge: str
    created: str
    spec_path: str
    spec_hash: str
    inputs: list[str]
    map: dict[str, str]
    reward: dict[str, Any] = {}


class RunFolder:
    """Files of one run; a context manager that holds the folder's lock.

    A new folder gets ``run.json``, which says what the run is: spec, inputs and column map, and the
    spec's table ``reward`` for ``adjudge view``. The same run finds its ``journal.jsonl`` there and
    resumes; anything else is refused with :class:`RunFolderError`, as is a folder that another
    process is writing to.
    """

    def __init__(
        self,
        path: Path,
        *,
        version: str,
        spec_path: str,
        spec_hash: str,
        inputs: Sequence[Path],
        mapping: Mapping[str, str],
        reward: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self._manifest = _Manifest(
            adjudge=version,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            spec_path=spec_path,
            spec_hash=spec_hash,
            inputs=[str(item.resolve()) for item in inputs],
            map=dict(sorted(mapping.items())),
            reward=dict(reward or {}),
        )
        self._lock: int | None = None

    def __enter__(self) -> RunFolder:
        self._lock = locked(self.path)
        try:
            self._claim()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)

    @property
    def created(self) -> str:
        """When the run was first started, in UTC."""
        return self._manifest.created

    @property
    def spec_hash(self) -> str:
        """The fingerprint of the run's spec."""
        return self._manifest.spec_hash

    def _claim(self) -> None:
        file = self.path / _MANIFEST
        if not file.exists():
            if taken := [name for name in _OURS if (self.path / name).exists()]:
                raise RunFolderError(
                    f"{self.path}: has a {taken[0]} but no {_MANIFEST}; give another output folder"
                )
            self.write_json(_MANIFEST, self._manifest)
            return
        try:
            found = msgspec.json.decode(file.read_bytes(), type=_Manifest)
        except msgspec.MsgspecError as error:
            raise RunFolderError(f"{file}: is not a run of adjudge: {error}") from error
        if self._is_empty():  # nothing was graded yet: a first try with a mistake burns no folder
            self.write_json(_MANIFEST, self._manifest)
            (self.path / _JOURNAL).unlink(missing_ok=True)
            return
        self._check(found)
        self._manifest = found

    def _is_empty(self) -> bool:
        journal = self.path / _JOURNAL
        if (self.path / "rewards.jsonl").exists():
            return False
        return not journal.exists() or journal.read_bytes().count(b"\n") <= 1

    def _check(self, found: _Manifest) -> None:
        for what, key in (("spec", "spec_hash"), ("input", "inputs"), ("column map", "map")):
            theirs, ours = getattr(found, key), getattr(self._manifest, key)
            if theirs != ours:
                raise RunFolderError(
                    f"{self.path}: holds a run with another {what} ({theirs}, now {ours}); "
                    "give another output folder with -o"
                )

    def write(self, name: str, data: bytes) -> Path:
        """Write a file whole: readers see the old one or the new one."""
        return write_whole(self.path / name, data)

    def write_json(self, name: str, value: Any) -> Path:
        """Write ``value`` as indented JSON."""
        return write_json(self.path / name, value)
