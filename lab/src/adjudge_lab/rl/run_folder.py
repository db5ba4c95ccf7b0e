"""The folder of a training run: what is written during it, and where a resumed run continues."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.datasets.files import hash_content
from adjudge.errors import RunFolderError
from adjudge.files import JsonlLog, iter_rows
from adjudge.runs.folder import RunFolder
from adjudge_lab.rl.held_out import EvaluatedEpisode
from adjudge_lab.rl.policy import hash_model_files, resolve_base_model
from adjudge_lab.rl.rollouts import FlushedJournal, RolloutStore
from adjudge_lab.rl.runfile import RunFile


class _StepRow(msgspec.Struct):
    step: int = 0


def truncate_after_step(log: JsonlLog, step: int) -> None:
    """Cut a log back to the rows of steps up to ``step``; a damaged row ends it, too."""
    log.truncate(_StepRow, lambda row: row.step <= step)


def compute_run_digest(*files: Path | None) -> str:
    """What makes a run this run: the content of its files, and adjudge's version."""
    said = sha256(adjudge.__version__.encode())
    for path in files:
        said.update(b"\0" if path is None else path.read_bytes())
    return said.hexdigest()[:16]


_EVALUATION_FILES = ("evaluation_rollouts.jsonl", "evaluation.jsonl")
_STEP_FILES = ("metrics.jsonl", "rollouts.jsonl", *_EVALUATION_FILES, "alarms.jsonl")
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


def check_base_model(folder: RunFolder, base: str) -> None:
    """Note the files of a run's base model in ``run.json``, and that this process does the run.

    Raises :class:`~adjudge.errors.RunFolderError` where a file has changed since the run began.
    Where the model is not on this disk, or was not when the run began, nothing can be said.
    """
    known, now = folder.facts.get("base_files") or {}, hash_model_files(base)
    if known and now and known != now:
        changes = {
            "changed": [name for name in known if name in now and now[name] != known[name]],
            "gone": [name for name in known if name not in now],
            "new": [name for name in now if name not in known],
        }
        named = "; ".join(f"{what}: {', '.join(names)}" for what, names in changes.items() if names)
        raise RunFolderError(
            f"{folder.path}: the base model has changed since the run began ({named}). Put the "
            "old files back, or give another output folder with -o."
        )
    folder.update_facts(base_files=known or now, pid=os.getpid())


def _list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """The trainer's checkpoints by their steps, torn ones included; not the first policy."""
    named = [
        (_CHECKPOINT.match(path.name), path) for path in (folder / "checkpoints").glob("check*")
    ]
    return sorted((int(match[1]), path) for match, path in named if match and int(match[1]))


class TrainingFolder(RunFolder):
    """``path``, claimed for ``run`` (read from ``source``), or taken up again.

    A folder that holds the same run, unfinished, is gone on with: ``step`` is where its policy was
    last saved, and rows of later steps are cut off (they will be written again, from the same
    rollouts and judgements). Raises :class:`~adjudge.errors.RunFolderError` as
    :class:`~adjudge.runs.folder.RunFolder`, and where the base model has changed.
    """

    def __init__(self, path: Path, run: RunFile, source: Path) -> None:
        self._base = resolve_base_model(run)
        cards: Sequence[Path | None] = run.judge_cards or [None]
        self.digest = compute_run_digest(source, run.rubric_file, *cards)
        super().__init__(
            path,
            _run_facts(run),
            {
                "seed": "another seed",
                "dataset": "another rollout.dataset, or its rows have changed",
                "report_spec": "another evaluation.report_spec",
            },
            config=source.read_bytes(),
            outputs=_STEP_FILES,
            once=True,
            leftovers=("state/journal.jsonl", "state", "checkpoints/checkpoint-0"),
        )

    def _prepare(self) -> None:
        check_base_model(self, self._base)
        self.step, self.checkpoint = find_newest_checkpoint(self.path)
        self._logs = {name: JsonlLog(self.path / name) for name in _STEP_FILES}
        for log in self._logs.values():
            truncate_after_step(log, self.step)
            log.append()  # an empty file, for who looks on

    @property
    def first_policy_folder(self) -> Path:
        """The policy before the first update."""
        return self.path / "checkpoints" / "checkpoint-0"

    @property
    def store(self) -> RolloutStore:
        """Rollouts of steps that are not saved yet."""
        return RolloutStore(self.path / "state")

    def journal(self, seed: int) -> FlushedJournal:
        """Every judgement of this run."""
        return FlushedJournal(self.path / "state" / "journal.jsonl", f"{self.digest}-{seed}")

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to one of the files that grow, in one piece."""
        self._logs[name].append(*rows)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a log, up to the first that is damaged."""
        return list(iter_rows(self.path / name, dict[str, Any]))

    def write_evaluation(self, step: int, found: Sequence[EvaluatedEpisode]) -> None:
        """Write the evaluation of ``step``, in place of one that was not written whole.

        The rows come last: an evaluation of which they are there is not done again.
        """
        for name in _EVALUATION_FILES:
            truncate_after_step(self._logs[name], step - 1)
        whole = [one.rollout_row(step, place) for place, one in enumerate(found)]
        for name, rows in zip(
            _EVALUATION_FILES, (whole, [one.row(step) for one in found]), strict=True
        ):
            self.append(name, rows)

    def on_policy_saved(self, step: int) -> None:
        """The policy of ``step`` is saved: drop what is only needed without it."""
        self.store.forget(step)
        for _, path in _list_checkpoints(self.path)[:-_KEPT_CHECKPOINTS]:
            shutil.rmtree(path, ignore_errors=True)


def _run_facts(run: RunFile) -> dict[str, Any]:
    training, report = run.training, run.report_spec_file
    return {
        "kind": "train",
        "label": run.model.label,
        "steps_planned": training.steps,
        "batch_size": training.rollouts_per_step,
        "group_size": training.group_size,
        "seed": training.seed,
        "dataset": _hash_dataset(run),
        "report_spec": None if report is None else sha256(report.read_bytes()).hexdigest()[:16],
        "beside": str(run.folder.resolve()),  # what the run file's relative paths start from
    }


def _hash_dataset(run: RunFile) -> str | None:
    """What the rows are known by; ``None`` without a dataset, and for a folder of files."""
    path = run.folder / (run.rollout.dataset or "")
    return hash_content(path)["sha256"][:16] if path.is_file() else None
