"""The folder of a run: what it is, its lock, and resuming the same run.

A folder is made and claimed by one command, has one writer at a time, is gone on with by the same
command after a kill, and is refused to any other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from adjudge.errors import RunFolderError
from adjudge.files import atomic_write, write_json
from adjudge.rewards.function import compute_fingerprint
from adjudge.rewards.spec import RewardSpec
from adjudge.version import describe_writer

JOURNAL_FILE, LOCK_FILE = "journal.jsonl", ".lock"
SPEC_IDENTITY = {"spec_hash": "another spec", "inputs": "other inputs", "map": "another column map"}
"""What makes a run over a reward spec that run; see :func:`spec_facts`."""

_MANIFEST, _CONFIG, _SUMMARY = "run.json", "config.toml", "summary.json"
_RESULT_FILES = (
    _SUMMARY,
    "metrics.jsonl",
    "rewards.jsonl",
    JOURNAL_FILE,
    "episodes.jsonl",
    "judgements.jsonl",
    "judge.json",
)
"""What runs of any kind leave: a folder that has one and says nothing of its run is another's."""
_OTHER_FOLDER = "Give another output folder with -o."
_LONGEST_VALUES = 240


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """``folder``, made if need be, for this process alone; the lock ends with the process.

    Raises :class:`~adjudge.errors.RunFolderError` for a folder that another process is writing to,
    and for one that cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"{folder}: another process is writing to it") from None
        yield
    finally:
        os.close(lock)


def read_json_object(path: Path) -> dict[str, Any] | None:
    """A JSON object that a run left; ``None`` where there is none.

    Raises :class:`~adjudge.errors.RunFolderError` for a file that is broken.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunFolderError(f"{path}: cannot be read: {error}") from None


def spec_facts(
    spec: RewardSpec, graders: Mapping[str, Any], inputs: Sequence[Path], mapping: Mapping[str, str]
) -> dict[str, Any]:
    """What a run over a reward spec is: the spec with its built ``graders``, inputs, columns."""
    return {
        "spec_path": spec.where,
        "spec_hash": compute_fingerprint(spec, graders),
        "inputs": [str(path.resolve()) for path in inputs],
        "map": dict(sorted(mapping.items())),
    }


class RunFolder:
    """``path``, claimed for the run that ``facts`` describe, or gone on with if it holds that run.

    A new folder gets ``run.json``: ``facts`` with the version and the time. It holds the same run
    if its ``kind`` and all that ``identity`` names are the same in both; the values of
    ``identity`` are the words of a message, as "another spec". ``config``: the text of the run's
    file, kept as ``config.toml``; it too must be the same. ``outputs``: files that this run writes
    and that are another's in a folder without ``run.json``, besides those of all runs. With
    ``once`` a run whose ``summary.json`` is there is refused. ``journal``: the log of this run's
    results; where it has no more than its head and nothing else was written, the folder is claimed
    anew: a first try with a mistake burns no folder. ``leftovers``: what else a run leaves that has
    no result yet, for :meth:`releases_failed_start`.

    ``resumed`` says whether a run is gone on with; ``facts`` are then what ``run.json`` has. The
    folder is locked until :meth:`close`, and a context manager. Raises
    :class:`~adjudge.errors.RunFolderError` for the folder of another run, of one that is over, and
    for one that another process is writing to.
    """

    manifest_name = _MANIFEST

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        identity: Mapping[str, str],
        *,
        config: bytes | None = None,
        outputs: Sequence[str] = (),
        once: bool = False,
        journal: str | None = None,
        leftovers: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.facts: dict[str, Any] = msgspec.to_builtins({**describe_writer(), **facts})
        self._identity = {"kind": "another kind", **identity}
        self._config, self._once, self._journal = config, once, journal
        self._leftovers = leftovers
        self._outputs = dict.fromkeys((*_RESULT_FILES, *outputs))
        with ExitStack() as held:
            held.enter_context(hold_lock(path))
            self.resumed = self._claim()
            self._prepare()
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def created(self) -> str:
        """When the run was first started, in UTC."""
        return str(self.facts.get("created"))

    def close(self) -> None:
        """Let others have the folder."""
        self._held.close()

    @contextmanager
    def releases_failed_start(self) -> Iterator[None]:
        """Give the folder up where the block fails before the run has a result."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Take the claim back, unless the folder has a result."""
        outputs = [self.path / name for name in (*self._outputs, "checkpoints")]
        left = [self.path / name for name in self._leftovers]
        logs = [path for path in left if path.suffix == ".jsonl"]
        if any(_has_result(path, left) for path in (*outputs, *logs)):
            return
        claim = (self.path / self.manifest_name, self.path / _CONFIG)
        for path in (*claim, *left, *outputs):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> Path:
        """Write a file whole: readers see the old one or the new one."""
        return atomic_write(self.path / name, data)

    def write_json(self, name: str, value: Any) -> Path:
        """Write ``value`` as indented JSON."""
        return write_json(self.path / name, value)

    def update_facts(self, **facts: Any) -> None:
        """Write ``facts`` to ``run.json``, besides what it has."""
        self.facts = {**self.facts, **msgspec.to_builtins(facts)}
        self.write_json(self.manifest_name, self.facts)

    def _prepare(self) -> None:
        """What a kind of run does first in its folder; what this raises unlocks the folder."""

    def _claim(self) -> bool:
        """Whether a run is gone on with."""
        config = self.path / _CONFIG
        mark = self.path / self.manifest_name if self._config is None else config
        if not mark.exists():
            if taken := self._written_files():
                raise RunFolderError(
                    f"{self.path}: holds {taken[0]} of another run. {_OTHER_FOLDER}"
                )
            self._write_claim()
            return False
        if self._config is not None and config.read_bytes() != self._config:
            raise RunFolderError(
                f"{self.path}: holds a run of another run file (its {_CONFIG} differs). "
                f"{_OTHER_FOLDER}"
            )
        known = read_json_object(self.path / self.manifest_name)
        if known is None:
            raise RunFolderError(f"{self.path / self.manifest_name}: is not there. {_OTHER_FOLDER}")
        if self._journal is not None and self._written_files() in ([], [self._journal]):
            journal = self.path / self._journal
            if not _has_rows(journal):
                journal.unlink(missing_ok=True)
                self._write_claim()
                return False
        self._check(known)
        if self._once and (self.path / _SUMMARY).exists():
            raise RunFolderError(f"{self.path}: its run is complete. {_OTHER_FOLDER}")
        self.facts = known
        return True

    def _written_files(self) -> list[str]:
        """Which files of results the folder has."""
        return [name for name in self._outputs if (self.path / name).exists()]

    def _write_claim(self) -> None:
        self.write_json(self.manifest_name, self.facts)
        if self._config is not None:
            self.write(_CONFIG, self._config)  # with this the folder is the run's

    def _check(self, known: Mapping[str, Any]) -> None:
        """Raise where ``known``, the folder's manifest, is not of this run."""
        for key, words in self._identity.items():
            theirs, ours = known.get(key), self.facts.get(key)
            if theirs != ours:
                values = f" (found {theirs}; now {ours})"
                raise RunFolderError(
                    f"{self.path}: holds a run of {words}"
                    f"{values if len(values) < _LONGEST_VALUES else ''}. {_OTHER_FOLDER}"
                )


def _has_result(path: Path, leftovers: Sequence[Path]) -> bool:
    """Whether a file has content, a journal more than its head, a folder other than leftovers."""
    if path.is_dir():
        return any(one not in leftovers for one in path.iterdir())
    if path.name == JOURNAL_FILE:
        return _has_rows(path)
    return path.exists() and path.stat().st_size > 0


def _has_rows(log: Path) -> bool:
    """Whether a log has more than its first line."""
    if not log.exists():
        return False
    with log.open("rb") as file:
        return next(file, b"").endswith(b"\n") and next(file, b"").endswith(b"\n")
