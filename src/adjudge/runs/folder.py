"""The folder of a run: its lock, files that are written whole, and resuming the same run.

It has one writer at a time. Readers of a file see the old one or the new one, whenever the writer
is killed. A folder is made, locked, resumed by the same command, and refused to any other.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from adjudge.errors import RunFolderError

__all__ = ["RunFolder", "acquire_lock", "atomic_write", "hold_lock", "write_json"]


def acquire_lock(folder: Path) -> int:
    """The lock of ``folder``, made if need be: a file handle that :func:`os.close` lets go of.

    It ends with the process if nobody closes it. Raises
    :class:`~adjudge.errors.RunFolderError` for a folder that another process is writing to, and for
    one that cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise RunFolderError(f"{folder}: another process is writing to it") from None
    return lock


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """``folder`` for this process alone; raises as :func:`acquire_lock` does."""
    lock = acquire_lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def atomic_write(path: Path, data: bytes | Iterable[bytes]) -> Path:
    """Write ``data``, or its pieces one after the other, to ``path``; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)
    os.replace(part, path)  # noqa: PTH105  (atomic)
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write ``value`` as indented JSON."""
    return atomic_write(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


_MANIFEST = "run.json"
_JOURNAL = "journal.jsonl"
_RUN_FILES = ("rewards.jsonl", "summary.json", "report.html", _JOURNAL)


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
        self._lock = acquire_lock(self.path)
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
            if taken := [name for name in _RUN_FILES if (self.path / name).exists()]:
                raise RunFolderError(
                    f"{self.path}: has a {taken[0]} but no {_MANIFEST}. Give another output folder."
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
                    f"{self.path}: has a run with another {what} (found {theirs}; now {ours}). "
                    "Give another output folder with -o."
                )

    def write(self, name: str, data: bytes) -> Path:
        """Write a file whole: readers see the old one or the new one."""
        return atomic_write(self.path / name, data)

    def write_json(self, name: str, value: Any) -> Path:
        """Write ``value`` as indented JSON."""
        return write_json(self.path / name, value)
