"""People's labels of a run's samples, as ``align`` and ``diff`` read them.

A file has rows in any packing (JSON lines, CSV, TSV, Parquet), of the columns of
:data:`LABEL_COLUMNS`. A row names its sample by ``key``, by ``where`` (``FILE:ROW``), or by
``index`` (and ``step`` in a training run), and says one thing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from adjudge.datasets.files import RawColumns
from adjudge.errors import ConfigError
from adjudge.judge_evaluation import convert_row, read_records
from adjudge.runs.labels import LABELS_FILE, Label, select_current, stamp_label
from adjudge.runs.records import RunRecord
from adjudge.text import shorten_text

WHOLE_REWARD = "reward"
"""What the reward as a whole is called beside graders."""

LABEL_COLUMNS = (*Label.__struct_fields__, "where")
"""The columns of a file of labels: those of ``labels.jsonl``, and a sample's ``FILE:ROW``."""

_JOINING_COLUMNS = ("key", "where", "index")


class LabelledRun(Protocol):
    """The samples of a run, by which labels find them."""

    @property
    def is_training(self) -> bool:
        """Whether samples are counted anew in each step."""

    def __iter__(self) -> Iterator[RunRecord]: ...


class PlacedLabel(NamedTuple):
    """A label with its ``FILE:ROW``, and the ``FILE:ROW`` of its sample, if the row says one."""

    where: str
    label: Label
    sample: str


class JoinedLabel(NamedTuple):
    """A label and the sample that it is about; ``other`` is the one that was found worse."""

    label: Label
    record: RunRecord
    other: RunRecord | None = None


class JoinedLabels(NamedTuple):
    """Labels that count, with their samples.

    ``unknown``: where labels stand whose sample the run does not have; ``rows`` were read.
    ``replaced``: labels of a sample of the run after which the same author said something else
    about the same, or took them back.
    """

    joined: list[JoinedLabel]
    unknown: list[str]
    rows: int
    replaced: int


def read_label_files(paths: Sequence[Path]) -> list[PlacedLabel]:
    """The labels of files in their order.

    Raises :class:`~adjudge.errors.ConfigError` that names every row that cannot be read, up to ten.
    """
    return read_records(paths, _parse_label, log=LABELS_FILE)


def join_labels(labels: Iterable[PlacedLabel], run: LabelledRun) -> JoinedLabels:
    """Labels with the samples of a run that they are about; what was replaced is left out.

    By key; of several samples with one key, the one at the label's index. Without a key by
    ``where``, else by index. Raises :class:`~adjudge.errors.ConfigError` for a label that could be
    of several samples with different scores, and for one of a grader that the run does not have.
    """
    places = _SamplePlaces(run)
    found: dict[int, JoinedLabel] = {}
    rows, unknown = [], []
    for where, label, sample in labels:
        if label.withdrawn is not None:
            rows.append(label)
            continue
        at = label.step, label.index
        record = places.find(where, label.key, sample, *at)
        other = None
        if record is not None and label.kind == "preferred":
            over = label.preferred_over or ""
            other = places.find(where, over, "", label.step, label.over_index)
        if why := places.refusal(label, record, other):
            raise ConfigError(f"{where}: {why}")
        if record is None or (label.kind == "preferred" and other is None):
            unknown.append(where)
            continue
        # One sample may be named in several ways.
        step = record.step if run.is_training else None
        named = {"key": record.key, "index": record.index, "step": step}
        if other is not None:
            named |= {"preferred_over": other.key, "over_index": other.index}
        same = msgspec.structs.replace(label, **named)
        rows.append(same)
        found[id(same)] = JoinedLabel(same, record, other)
    current = [found[id(one)] for one in select_current(rows)]
    replaced = len(found) - len(current)
    return JoinedLabels(current, unknown, len(rows) + len(unknown), replaced)


class _SamplePlaces:
    """The samples of a run by what may name them; and its graders."""

    def __init__(self, run: LabelledRun) -> None:
        self._has_steps = run.is_training
        self._named: dict[str, dict[Hashable, list[RunRecord]]] = {
            column: {} for column in _JOINING_COLUMNS
        }
        graders: dict[str, None] = {}
        for one in run:
            for column, name in self._names(one.key, one.where, one.step, one.index):
                self._named[column].setdefault(name, []).append(one)
            graders |= dict.fromkeys(one.scores)
        self.graders = list(graders)

    def _names(
        self, key: str, where: str, step: int | None, index: int | None
    ) -> Iterator[tuple[str, Hashable]]:
        """What names a sample, the column that counts most first."""
        place = None if index is None else (step if self._has_steps else None, index)
        names = zip(_JOINING_COLUMNS, (key, where, place), strict=True)
        return ((column, name) for column, name in names if name)

    def refusal(self, label: Label, record: RunRecord | None, other: RunRecord | None) -> str:
        """What is wrong with a label of these samples; empty where nothing is."""
        if label.grader is not None and label.grader not in self.graders:
            return (
                f"grader: is not of this run (found {label.grader!r:.80}; allowed: "
                f"{', '.join([WHOLE_REWARD, *self.graders])}). Name the grader whose scores were "
                "labelled."
            )
        if (
            record is None
            or other is None
            or (other is not record and other.group_key == record.group_key)
        ):
            return ""
        return (
            "preferred_over: must be another sample of the same group (found index "
            f"{other.index} of group {shorten_text(other.group, 40)}; allowed: "
            f"{shorten_text(record.group, 40)}). Compare samples that answer one prompt."
        )

    def find(
        self, label: str, key: str, where: str, step: int | None, index: int | None
    ) -> RunRecord | None:
        """The sample that a label names; ``label``: where the label stands."""
        for column, name in self._names(key, where, step, index):
            if known := self._named[column]:
                return _choose_sample(known.get(name, []), f"{label}: {column}", index)
        return None


def _choose_sample(same: Sequence[RunRecord], label: str, index: int | None) -> RunRecord | None:
    """The sample at ``index``, else any where all have the same scores."""
    if found := next((one for one in same if one.index == index), None):
        return found
    if any((one.reward, one.scores) != (same[0].reward, same[0].scores) for one in same):
        places = ", ".join(str(one.index) for one in same[:8])
        raise ConfigError(
            f"{label}: names {len(same)} samples with different scores (found index {places}). "
            "Add the column index."
        )
    return same[0] if same else None


def _parse_label(row: RawColumns, where: str) -> PlacedLabel:
    """The label of a row; raises ``ValueError`` that begins with the column."""
    cells = {
        name: value.strip() if isinstance(value, str) else value for name, value in row.items()
    }
    cells = {name: value for name, value in cells.items() if value not in (None, "")}
    if unknown := [name for name in cells if name not in LABEL_COLUMNS]:
        raise ValueError(
            f"{', '.join(unknown)}: not a column of labels (allowed: {', '.join(LABEL_COLUMNS)}). "
            "Rename these columns, or leave them out."
        )
    if not any(name in cells for name in _JOINING_COLUMNS):
        raise ValueError(
            f"{', '.join(cells) or 'no column'}: names no sample (allowed: key, where, or index "
            "with step in a training run). Add one of these columns."
        )
    sample = cells.pop("where", "")
    if cells.get("grader") == WHOLE_REWARD:
        del cells["grader"]
    file = Path(where.rpartition(":")[0]).name
    fields = {**stamp_label(), "author": file[:80], "index": -1, **cells}
    return PlacedLabel(where, convert_row(fields, Label, strict=False), sample)
