"""The samples of a run folder as later commands read them: rewards, verdicts, rollouts.

A folder of ``adjudge grade`` has ``rewards.jsonl`` beside the rollouts that its ``run.json`` names;
one of ``adjudge train``, or of a flight recorder, has both in ``rollouts.jsonl``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import RolloutError, RunFolderError
from adjudge.files import iter_rows, warn_damaged_lines
from adjudge.rollouts.samples import SampleReader, compute_rollout_key, sample_from_row
from adjudge.runs.folder import read_json_object
from adjudge.runs.sample_index import RowIndex, SampleRow
from adjudge.runs.transcripts import FILE as TRANSCRIPTS_FILE
from adjudge.runs.transcripts import TranscriptStore
from adjudge.types import Sample

_GRADED, _TRAINED = "rewards.jsonl", "rollouts.jsonl"
_SCORE = "_score"

_log = logging.getLogger("adjudge")

RECORDER_FILE = "recorder.jsonl"
"""What each process that records says of itself, last counts last."""

STOP_FILE = "stop.json"
"""What ``adjudge watch --stop`` leaves in a recorded run: the run ends before its next step."""


class RecorderRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has recorded so far: ``dropped`` counts samples that it did not write.

    ``writer`` names it; ``error`` is the last thing that went wrong.
    """

    writer: str
    rank: int | None = None
    pid: int = 0
    host: str = ""
    time: float = 0.0
    rows: int = 0
    dropped: dict[str, int] = {}
    error: str = ""


class RunRecord(SampleRow, frozen=True, kw_only=True):
    """One sample of a run: a row of ``rewards.jsonl`` or ``rollouts.jsonl``.

    ``index`` counts the samples of the run (of a step, in a training run); ``key`` is what was
    judged; ``where`` is the ``FILE:ROW`` of the rollout.
    ``reward`` is ``None`` where it is missing, and ``missing`` says why. ``reward_info`` has the
    parts of the reward, ``details`` what each grader said. ``advantage`` is what the run recorded.
    A training run has the rollout here: ``messages``, and of a recorded one ``prompt`` and
    ``response``.
    """

    index: RowIndex
    reward: float | None
    key: str = ""
    where: str = ""
    reward_info: dict[str, float | None] = msgspec.field(default_factory=dict)
    details: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    response: str | None = None

    @property
    def group_key(self) -> tuple[int | None, str]:
        """What its group is: samples of two steps are never in one group of a training run."""
        return self.step, str(self.group)

    @property
    def scores(self) -> dict[str, float | None]:
        """Each grader's score by its name; ``None`` where it failed."""
        info = self.reward_info
        return {key.removesuffix(_SCORE): info[key] for key in info if key.endswith(_SCORE)}


class _Source(msgspec.Struct):
    """What ``run.json`` says of the rollouts, whatever else it says."""

    inputs: list[str] | None = None
    map: dict[str, str] | None = None


class RunRecords:
    """The samples of the run in ``path``, read as often as they are needed.

    ``facts`` is the folder's ``run.json``, ``summary`` its ``summary.json``, empty where it has
    none. Raises :class:`~adjudge.errors.RunFolderError` for a folder without samples.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        names = [name for name in (_GRADED, _TRAINED) if (path / name).is_file()]
        if not names:
            raise RunFolderError(
                f"{path}: has neither {_GRADED} nor {_TRAINED}. Give the folder of a finished run "
                "of `adjudge grade` or `adjudge train`, or one that a trainer recorded."
            )
        self.file = path / names[0]
        self.facts: Mapping[str, Any] = read_json_object(path / "run.json") or {}
        self.summary: Mapping[str, Any] = read_json_object(path / "summary.json") or {}

    @property
    def is_training(self) -> bool:
        """Whether the rollouts stand in the same file, as a training run writes them."""
        return self.file.name == _TRAINED

    def __iter__(self) -> Iterator[RunRecord]:
        damaged: list[int] = []
        seen: set[int] = set()

        def is_own(record: RunRecord) -> bool:
            if self.is_training:  # processes that record number their rows together
                return record.messages is not None or record.response is not None
            if not record.key or record.index in seen:
                return False
            seen.add(record.index)
            return True

        yield from iter_rows(self.file, RunRecord, damaged=damaged, keep=is_own)
        warn_damaged_lines(self.file, damaged, "The sample is left out.")

    def with_samples(self) -> Iterator[tuple[RunRecord, Sample]]:
        """Each record with its rollout, read again from where the run read it.

        Where those files are gone, from what the run kept of its rollouts. Raises
        :class:`~adjudge.errors.RunFolderError` where the rollouts are not what was graded, and for
        one that was not kept.
        """
        if self.is_training:
            for record in self:
                try:
                    yield record, _sample_of(record)
                except RolloutError as error:
                    place = f"{self.file}: index {record.index}"
                    _log.warning("%s: %s. The sample is left out.", place, error)
            return
        is_gone = not all(one.exists() for one in self.inputs)
        if is_gone and (self.path / TRANSCRIPTS_FILE).is_file():
            for record, sample in self.with_kept_samples():
                if sample is None:
                    self.find_inputs()  # says which files would be needed
                else:
                    yield record, sample
            return
        samples = iter(SampleReader(self.find_inputs(), self._source.map or {}))
        for record in self:
            sample = next((one for one in samples if one.original_index == record.index), None)
            if sample is None or (record.key and compute_rollout_key(sample) != record.key):
                raise RunFolderError(
                    f"{record.where or self.path}: is not what was graded any more. Run "
                    "`adjudge grade` again, or restore the rollouts."
                )
            yield record, sample

    def with_kept_samples(self) -> Iterator[tuple[RunRecord, Sample | None]]:
        """Each record with what the run folder itself kept of its rollout; ``None``: nothing."""
        with TranscriptStore(self.path, read_only=True) as store:
            for record in self:
                yield record, store.read_sample(record.index)

    def count_dropped(self) -> dict[str, int]:
        """How many samples a flight recorder did not write, by the reason, over all processes."""
        last = {row.writer: row for row in iter_rows(self.path / RECORDER_FILE, RecorderRow)}
        found: Counter[str] = Counter()
        for row in last.values():
            found.update(row.dropped)
        return dict(found)

    @property
    def inputs(self) -> list[Path]:
        """The files and folders that were graded."""
        return [Path(one) for one in self._source.inputs or ()]

    @property
    def _source(self) -> _Source:
        try:
            return msgspec.convert(self.facts, _Source)
        except msgspec.ValidationError as error:
            raise RunFolderError(f"{self.path / 'run.json'}: cannot be read: {error}") from None

    def find_inputs(self) -> list[Path]:
        """:attr:`inputs`; raises :class:`~adjudge.errors.RunFolderError` where some are gone."""
        inputs = self.inputs
        gone = [str(one) for one in inputs if not one.exists()]
        if gone or not inputs:
            raise RunFolderError(
                f"{self.path}: needs the rollouts that were graded, and they are not there: "
                f"{', '.join(gone) or 'its run.json names none'}. Put them back."
            )
        return inputs


def _sample_of(record: RunRecord) -> Sample:
    fields = {"messages": record.messages, "prompt": record.prompt, "response": record.response}
    return sample_from_row(fields, record.index)
