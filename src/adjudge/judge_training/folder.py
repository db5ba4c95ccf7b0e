"""The folder of a judge's training: claimed, written as it goes, gone on with after a kill."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import RunFolderError
from adjudge.judge_training.distributed import leads, wait
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judges.local.loading import model_files
from adjudge.runs.lock import locked
from adjudge.runs.whole import write_json, write_whole
from adjudge.training.rundir import check_base, newest_checkpoint
from adjudge.training.state import cut_after, read_rows

__all__ = ["Followed", "JudgeFolder", "open_folder"]

_METRICS = "metrics.jsonl"
_RUN = "run.json"


def open_folder(path: Path, judge: JudgeFile, source: Path) -> JudgeFolder:
    """The folder of a run; of several processes the first one claims it.

    Raises as :class:`JudgeFolder`, in the first process.
    """
    if leads():
        folder = JudgeFolder(path, judge, source)
        wait()
        return folder
    wait()
    return Followed(path)


class JudgeFolder:
    """``path``, claimed for a run (its file is ``source``), or taken up again where it stopped.

    The trained judge lies in the folder itself, so that the folder is what others are given.
    ``step`` is where it was last saved; rows of later steps are cut off (all of them where it was
    not saved). The folder is locked until
    :meth:`close`. Raises :class:`~adjudge.errors.RunFolderError` for another run's folder, for one
    whose run is over, and for one that another process is writing to.
    """

    def __init__(self, path: Path, judge: JudgeFile, source: Path) -> None:
        self.path = path
        self._lock = locked(path)
        try:
            self.resumed = self._claim(judge, source.read_bytes())
            self.step, self.checkpoint = newest_checkpoint(path)
            if self.resumed:
                # Without a checkpoint all begins anew, the validation before any step, too.
                cut_after(path / _METRICS, self.step if self.checkpoint else -1)
            self._metrics = (path / _METRICS).open("ab")
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def checkpoints(self) -> Path:
        """Where the trainer saves."""
        return self.path / "checkpoints"

    def learns_from(self, digests: Mapping[str, str]) -> None:
        """Note what the run learns from, by hashes of its rows.

        Raises :class:`~adjudge.errors.RunFolderError` where it has learned from something else.
        """
        path = self.path / _RUN
        known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if self.checkpoint is not None and known.get("rows", digests) != digests:
            raise RunFolderError(
                f"{self.path}: its run began with other rows: the data has changed; give another "
                "output folder with -o"
            )
        self.write_json(_RUN, {**known, "rows": digests})

    def rows(self) -> list[dict[str, float]]:
        """The metrics that are written."""
        return read_rows(self.path / _METRICS)

    def append(self, row: Mapping[str, float]) -> None:
        """One step's metrics."""
        self._metrics.write(msgspec.json.encode(row) + b"\n")
        self._metrics.flush()

    def write_json(self, name: str, value: Any) -> None:
        """A file of its own, in one piece."""
        write_json(self.path / name, value)

    def write(self, name: str, data: bytes) -> None:
        """A file of its own, in one piece."""
        write_whole(self.path / name, data)

    def save_judge(self, model: Any, tokenizer: Any) -> None:
        """Model and tokenizer into the folder, each file whole or not at all."""
        part = self.path / ".judge.part"
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(str(part))
        tokenizer.save_pretrained(str(part))
        for file in part.iterdir():
            os.replace(file, self.path / file.name)  # noqa: PTH105  (atomic)
        part.rmdir()

    def close(self) -> None:
        """Close the files, and let others have the folder."""
        self._metrics.close()
        os.close(self._lock)

    def _claim(self, judge: JudgeFile, text: bytes) -> bool:
        """Whether a run is gone on with."""
        config, asked = self.path / "config.toml", _asked(judge)
        if not config.exists():
            names = (_METRICS, "summary.json", "config.json")
            if taken := [name for name in names if (self.path / name).exists()]:
                raise RunFolderError(
                    f"{self.path}: holds {taken[0]} of something else; give another output folder "
                    "with -o"
                )
            self.write_json(_RUN, {**_facts(judge), "asked": asked})
            self.write("config.toml", text)  # with this the folder is the run's
            return False
        try:
            known = msgspec.json.decode((self.path / _RUN).read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError) as error:
            raise RunFolderError(f"{self.path}: {_RUN}: cannot be read: {error}") from None
        if config.read_bytes() != text or known.get("asked") != asked:
            raise RunFolderError(
                f"{self.path}: holds another run (its file, seed or environment variables differ); "
                "give another output folder with -o"
            )
        if (self.path / "summary.json").exists():
            raise RunFolderError(
                f"{self.path}: its run is over; give another output folder with -o"
            )
        now = model_files(judge.base)
        base = known.get("base_files") or {}
        check_base(self.path, base, now)
        self.write_json(_RUN, {**known, "base_files": base or now, "pid": os.getpid()})
        return True


class Followed(JudgeFolder):
    """The folder for a process that trains along: read, never written to."""

    def __init__(self, path: Path) -> None:
        self.path, self.resumed = path, False
        self.step, self.checkpoint = newest_checkpoint(path)

    def rows(self) -> list[dict[str, float]]:
        """None: the first process has them."""
        return []

    def learns_from(self, digests: Mapping[str, str]) -> None:
        """Nothing: as :meth:`rows`."""

    def append(self, row: Mapping[str, float]) -> None:
        """Nothing: as :meth:`rows`."""

    def close(self) -> None:
        """Nothing is open."""


def _asked(judge: JudgeFile) -> dict[str, Any]:
    """All that the run depends on, as plain data."""
    asked: dict[str, Any] = msgspec.json.decode(judge.model_dump_json())
    return asked


def _facts(judge: JudgeFile) -> dict[str, Any]:
    return {
        "kind": "judge",
        "method": judge.method,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "label": judge.model.label,
        "seed": judge.trainer.seed,
        "overrides": judge.overrides,
        "base_files": model_files(judge.base),
        "pid": os.getpid(),
    }
