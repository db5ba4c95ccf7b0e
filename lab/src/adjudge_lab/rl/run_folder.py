"""The folder of a training run: what is written during it, and where a resumed run continues."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.errors import RunFolderError
from adjudge.judges.models.local_loading import hash_model_files
from adjudge.runs.folder import acquire_lock, atomic_write, write_json
from adjudge_lab.rl.held_out import EvaluatedEpisode
from adjudge_lab.rl.policy import resolve_base_model
from adjudge_lab.rl.rollouts import FlushedJournal, RolloutStore
from adjudge_lab.rl.runfile import RunFile

__all__ = ["TrainingFolder", "check_base_files", "find_newest_checkpoint"]


class _StepRow(msgspec.Struct):
    step: int = 0


_step_row_decoder = msgspec.json.Decoder(_StepRow)


def truncate_after_step(path: Path, step: int) -> None:
    """Cut a file of rows back to those of steps up to ``step``, and a torn last line off.

    A file that is not there is left alone.
    """
    end = 0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    keep = line.endswith(b"\n") and _step_row_decoder.decode(line).step <= step
                except msgspec.MsgspecError:
                    break
                if not keep:
                    break
                end += len(line)
        os.truncate(path, end)
    except FileNotFoundError:
        return


def read_intact_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a file; none where there is no file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for line in lines:
        try:
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.MsgspecError:
            break
    return rows


def compute_run_digest(*files: Path | None) -> str:
    """What makes a run this run: the content of its files, and adjudge's version."""
    said = sha256(adjudge.__version__.encode())
    for path in files:
        said.update(b"\0" if path is None else path.read_bytes())
    return said.hexdigest()[:16]


_EVALUATION_FILES = ("evaluation_rollouts.jsonl", "evaluation.jsonl")
_STEP_FILES = ("metrics.jsonl", "rollouts.jsonl", *_EVALUATION_FILES, "alarms.jsonl")
_OTHER_RUN_FILES = ("rewards.jsonl", "journal.jsonl", "summary.json")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)\Z")
_KEPT_CHECKPOINTS = 2
"""How many of the trainer's checkpoints are left, besides the first policy."""


class _TrainerState(msgspec.Struct):
    global_step: int


_trainer_state = msgspec.json.Decoder(_TrainerState)


def find_newest_checkpoint(folder: Path) -> tuple[int, Path | None]:
    """The step and folder of the newest whole checkpoint in a run folder; 0 and ``None``."""
    for step, path in reversed(_list_checkpoints(folder)):
        try:  # the trainer's state is what it writes last
            state = _trainer_state.decode((path / "trainer_state.json").read_bytes())
        except (OSError, msgspec.MsgspecError):
            continue
        if state.global_step == step:
            return step, path
    return 0, None


def check_base_files(folder: Path, known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise :class:`~adjudge.errors.RunFolderError` where a run's base model has changed.

    ``known`` and ``now``: :func:`~adjudge.judges.models.local_loading.hash_model_files` when the
    run began and today. Where one of them is empty (the model is not on this disk, or an earlier
    version of adjudge began the run) nothing can be said.
    """
    if not known or not now or known == now:
        return
    changes = {
        "changed": [name for name in known if name in now and now[name] != known[name]],
        "gone": [name for name in known if name not in now],
        "new": [name for name in now if name not in known],
    }
    said = "; ".join(f"{what}: {', '.join(names)}" for what, names in changes.items() if names)
    raise RunFolderError(
        f"{folder}: the base model has changed since the run began ({said}). Put the old files "
        "back, or give another output folder with -o."
    )


def _list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """The trainer's checkpoints by their steps, torn ones included; not the first policy."""
    named = [
        (_CHECKPOINT.match(path.name), path) for path in (folder / "checkpoints").glob("check*")
    ]
    return sorted((int(match[1]), path) for match, path in named if match and int(match[1]))


class TrainingFolder:
    """``folder``, claimed for ``run`` (read from ``source``), or taken up again.

    A folder that holds the same run, unfinished, is gone on with: ``step`` is where its policy was
    last saved, and rows of later steps are cut off (they will be written again, from the same
    rollouts and judgements). The folder is locked until :meth:`close`. Raises
    :class:`~adjudge.errors.RunFolderError` for another run's folder, for one whose run is over,
    and for one that another process is writing to.
    """

    def __init__(self, folder: Path, run: RunFile, source: Path) -> None:
        self.folder = folder
        self.step = 0
        self.checkpoint: Path | None = None
        self._text = source.read_bytes()
        cards: Sequence[Path | None] = run.judge_cards or [None]
        self.digest = compute_run_digest(source, run.rubric_file, *cards)
        self._lock = acquire_lock(folder)
        try:
            self._claim(run)
            self._logs = {name: (folder / name).open("ab") for name in _STEP_FILES}
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def resumed(self) -> bool:
        """Whether a run is gone on with."""
        return self._resumed

    @property
    def first_policy_folder(self) -> Path:
        """The policy before the first update."""
        return self.folder / "checkpoints" / "checkpoint-0"

    @property
    def store(self) -> RolloutStore:
        """Rollouts of steps that are not saved yet."""
        return RolloutStore(self.folder / "state")

    def journal(self, seed: int) -> FlushedJournal:
        """Every judgement of this run."""
        path = self.folder / "state" / "journal.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        return FlushedJournal(path, f"{self.digest}-{seed}")

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to one of the files that grow, in one piece."""
        log = self._logs[name]
        log.write(b"".join(msgspec.json.encode(row, enc_hook=str) + b"\n" for row in rows))
        log.flush()

    def write_json(self, name: str, value: Any) -> None:
        """A file of its own, in one piece."""
        write_json(self.folder / name, value)

    def write_lines(self, name: str, values: Iterable[Any]) -> None:
        """A file of a line each, in one piece."""
        atomic_write(self.folder / name, (msgspec.json.encode(value) + b"\n" for value in values))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """What one of the files that grow holds."""
        return read_intact_rows(self.folder / name)

    def write_evaluation(self, step: int, found: Sequence[EvaluatedEpisode]) -> None:
        """Write the evaluation of ``step``, in place of one that was not written whole.

        The rows come last: an evaluation of which they are there is not done again.
        """
        for name in _EVALUATION_FILES:
            truncate_after_step(self.folder / name, step - 1)
        whole = [one.rollout_row(step, place) for place, one in enumerate(found)]
        for name, rows in zip(
            _EVALUATION_FILES, (whole, [one.row(step) for one in found]), strict=True
        ):
            self.append(name, rows)

    def on_policy_saved(self, step: int) -> None:
        """The policy of ``step`` is saved: drop what is only needed without it."""
        self.store.forget(step)
        for _, path in _list_checkpoints(self.folder)[:-_KEPT_CHECKPOINTS]:
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Close the files, and let others have the folder."""
        for log in self._logs.values():
            log.close()
        os.close(self._lock)

    def _claim(self, run: RunFile) -> None:
        folder, config = self.folder, self.folder / "config.toml"
        self._resumed = config.exists()
        if not self._resumed:
            if taken := [
                name for name in (*_STEP_FILES, *_OTHER_RUN_FILES) if (folder / name).exists()
            ]:
                raise RunFolderError(
                    f"{folder}: holds {taken[0]} of another run. Give another output folder "
                    "with -o."
                )
            self.write_json("run.json", _run_facts(run))
            atomic_write(config, self._text)  # with this the folder is the run's
            return
        known = self._check(config, run)
        base = known.get("base_files") or hash_model_files(resolve_base_model(run))
        self.write_json("run.json", {**known, "base_files": base, "pid": os.getpid()})
        self.step, self.checkpoint = find_newest_checkpoint(folder)
        for name in _STEP_FILES:
            truncate_after_step(folder / name, self.step)

    def _check(self, config: Path, run: RunFile) -> dict[str, Any]:
        folder = self.folder
        if config.read_bytes() != self._text:
            raise RunFolderError(
                f"{folder}: holds a run of another run file (its config.toml differs). Give "
                "another output folder with -o."
            )
        try:
            known = msgspec.json.decode((folder / "run.json").read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError) as error:
            raise RunFolderError(f"{folder}: run.json: cannot be read: {error}") from None
        if known.get("seed") != run.training.seed:
            raise RunFolderError(
                f"{folder}: holds the run of another seed (found {known.get('seed')}, now "
                f"{run.training.seed}). Give another output folder with -o."
            )
        if (folder / "summary.json").exists():
            raise RunFolderError(
                f"{folder}: the run there is complete (adjudge view {folder}). Give another "
                "output folder with -o."
            )
        check_base_files(
            folder, known.get("base_files") or {}, hash_model_files(resolve_base_model(run))
        )
        return known


def _run_facts(run: RunFile) -> dict[str, Any]:
    training = run.training
    return {
        "kind": "train",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "label": run.model.label,
        "steps_planned": training.steps,
        "batch_size": training.rollouts_per_step,
        "group_size": training.group_size,
        "seed": training.seed,
        "beside": str(run.folder.resolve()),  # what the run file's relative paths start from
        "base_files": hash_model_files(resolve_base_model(run)),
        "pid": os.getpid(),
    }
