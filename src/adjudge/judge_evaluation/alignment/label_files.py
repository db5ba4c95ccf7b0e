"""People's labels in files.

A file has rows in any packing (JSON lines, CSV, TSV, Parquet), of the columns of
:data:`LABEL_COLUMNS`. A row names its sample by ``key``, by ``where`` (``FILE:ROW``), or by
``index`` (and ``step`` in a training run), and says one thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from adjudge.datasets.files import read_rows
from adjudge.errors import ConfigError, RolloutError
from adjudge.runs.labels import Label, select_current, stamp_label
from adjudge.runs.records import RunRecord, RunRecords
from adjudge.text import shorten_text

WHOLE_REWARD = "reward"
"""What the reward as a whole is called beside graders."""

LABEL_COLUMNS = (*Label.__struct_fields__, "where")
"""The columns of a file of labels: those of ``labels.jsonl``, and a sample's ``FILE:ROW``."""

_JOINING_COLUMNS = ("key", "where", "index")
_SHOWN_PROBLEMS = 10


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


def read_label_files(paths: Sequence[Path]) -> list[tuple[str, Label, Mapping[str, Any]]]:
    """The labels of files in their order, each with its ``FILE:ROW`` and its raw columns.

    Raises :class:`~adjudge.errors.ConfigError` that names every row that cannot be read, up to ten.
    """
    found: list[tuple[str, Label, Mapping[str, Any]]] = []
    problems: list[str] = []
    for where, row in read_rows(paths):
        if isinstance(row, RolloutError):
            problems.append(f"{where}: {row}")
            continue
        try:
            found.append((where, _parse_label(row, where), row))
        except ValueError as error:
            problems.append(f"{where}: {error}")
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        shown = problems[:_SHOWN_PROBLEMS] + ([f"… and {more} more"] if more > 0 else [])
        raise ConfigError("\n".join(shown))
    return found


def join_labels(
    labels: Iterable[tuple[str, Label, Mapping[str, Any]]], records: RunRecords
) -> JoinedLabels:
    """Labels with the samples of a run that they are about; what was replaced is left out.

    By key; of several samples with one key, the one at the label's index. Without a key by
    ``where``, else by index. Raises :class:`~adjudge.errors.ConfigError` for a label that could be
    of several samples with different scores, and for one of a grader that the run does not have.
    """
    places = _SamplePlaces(records)
    found: dict[int, JoinedLabel] = {}
    rows, unknown = [], []
    for where, label, row in labels:
        if label.withdrawn is not None:
            rows.append(label)
            continue
        if label.grader is not None and label.grader not in places.graders:
            raise ConfigError(
                f"{where}: grader: is not of this run (found {label.grader!r:.80}; allowed: "
                f"{', '.join([WHOLE_REWARD, *places.graders])}). Name the grader whose scores "
                "were labelled."
            )
        at = label.step, label.index
        record = places.find(where, label.key, row.get("where") or "", *at)
        other = None
        if record is not None and label.kind == "preferred":
            over = label.preferred_over or ""
            other = places.find(where, over, "", label.step, label.over_index)
            if other is not None and other.group_key != record.group_key:
                raise ConfigError(
                    f"{where}: preferred_over: must be of the same group (found a sample of group "
                    f"{shorten_text(other.group, 40)}; allowed: {shorten_text(record.group, 40)}). "
                    "Compare samples that answer one prompt."
                )
            if other is record:
                raise ConfigError(
                    f"{where}: preferred_over: is the sample itself (found index {record.index}; "
                    "allowed: another sample of its group). Name the sample that is worse."
                )
        if record is None or (label.kind == "preferred" and other is None):
            unknown.append(where)
            continue
        # One sample may be named in several ways.
        step = record.step if records.is_training else None
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

    def __init__(self, records: RunRecords) -> None:
        self._has_steps = records.is_training
        self._by_key: dict[str, list[RunRecord]] = {}
        self._by_where: dict[str, list[RunRecord]] = {}
        self._by_index: dict[tuple[int | None, int], RunRecord] = {}
        graders: dict[str, None] = {}
        for one in records:
            if one.key:
                self._by_key.setdefault(one.key, []).append(one)
            if one.where:
                self._by_where.setdefault(one.where, []).append(one)
            self._by_index[one.step if self._has_steps else None, one.index] = one
            graders |= dict.fromkeys(one.scores)
        self.graders = list(graders)

    def find(
        self, label: str, key: str, where: str, step: int | None, index: int | None
    ) -> RunRecord | None:
        """The sample that a label names; ``label``: where the label stands."""
        if key and self._by_key:
            return _choose_sample(self._by_key.get(key, []), f"{label}: key", index)
        if where and self._by_where:
            return _choose_sample(self._by_where.get(where, []), f"{label}: where", index)
        if index is None:
            return None
        return self._by_index.get((step if self._has_steps else None, index))


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


def _parse_label(row: Mapping[str, Any], where: str) -> Label:
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
    cells.pop("where", None)
    if cells.get("grader") == WHOLE_REWARD:
        del cells["grader"]
    file = Path(where.rpartition(":")[0]).name
    fields = {**stamp_label(), "author": file[:80], "index": -1, **cells}
    try:
        return msgspec.convert(fields, Label, strict=False)
    except msgspec.ValidationError as error:
        message, _, column = str(error).partition(" - at `$.")
        named = f"{column.rstrip('`')}: {message}" if column else message
        raise ValueError(named) from None
