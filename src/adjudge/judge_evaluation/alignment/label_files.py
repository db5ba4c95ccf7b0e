"""People's labels in files: our own and those of other tools.

A file has rows in any packing (JSON lines, CSV, TSV, Parquet). A row names its sample by ``key``,
by ``where`` (``FILE:ROW``), or by ``index`` (and ``step`` in a training run), and says what a
person thinks by one or more of the columns of :data:`SAYING_COLUMNS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from adjudge.datasets.files import read_rows
from adjudge.errors import ConfigError, RolloutError
from adjudge.runs.labels import Label, select_current, stamp_label
from adjudge.runs.records import RunRecord, RunRecords
from adjudge.text import shorten_text

SAYING_COLUMNS = (
    "verdict",
    "label",
    "human_score",
    "score",
    "rating",
    "preferred",
    "preferred_over",
)
"""The columns that say what a person thinks. ``human_score`` goes before ``score``: a file with
both has the judge's in the other."""

JOINING_COLUMNS = ("key", "where", "index")
"""The columns that name a sample, the surest first."""

_AUTHORS = ("author", "annotator", "rater", "labeler")
_GRADERS = ("grader", "metric")
_NOTES = ("note", "comment", "reason")
_RIGHT = frozenset({"right", "agree", "judge right"})
_WRONG = frozenset({"wrong", "disagree", "judge wrong"})
_GOOD = frozenset({"1", "true", "yes", "good", "pass", "passed", "correct", "positive"})
_BAD = frozenset({"0", "false", "no", "bad", "fail", "failed", "incorrect", "negative"})
_OVER = "this over "
_WHOLE_REWARD = frozenset({"reward", "overall"})
_SHOWN_PROBLEMS = 10


class JoinedLabel(NamedTuple):
    """A label and the sample that it is about; ``other`` is the one that was found worse."""

    label: Label
    record: RunRecord
    other: RunRecord | None = None


class JoinedLabels(NamedTuple):
    """Labels that count, with their samples.

    ``unknown``: where labels stand whose sample the run does not have; ``rows`` were read.
    """

    joined: list[JoinedLabel]
    unknown: list[str]
    rows: int


class _LabelError(Exception):
    """What is wrong with a row, from its column on."""


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
            found += [(where, label, row) for label in _parse_labels(row, where)]
        except _LabelError as error:
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

    By key; of several samples with one key, the one at the label's index, else the first. Without a
    key by ``where``, else by index.
    """
    places = _SamplePlaces(records)
    found: dict[int, JoinedLabel] = {}
    rows, unknown = [], []
    for where, label, row in labels:
        if label.withdrawn is not None:
            rows.append(label)
            continue
        record = places.find(label.key, _text(row.get("where")), label.step, label.index)
        other = None
        if record is not None and label.kind == "preferred":
            other = places.find(label.preferred_over or "", "", label.step, label.over_index)
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
    return JoinedLabels(current, unknown, len(rows) + len(unknown))


class _SamplePlaces:
    """The samples of a run by what may name them."""

    def __init__(self, records: RunRecords) -> None:
        self._has_steps = records.is_training
        self._by_key: dict[str, list[RunRecord]] = {}
        self._by_where: dict[str, RunRecord] = {}
        self._by_index: dict[tuple[int | None, int], RunRecord] = {}
        for one in records:
            if one.key:
                self._by_key.setdefault(one.key, []).append(one)
            if one.where:
                self._by_where.setdefault(one.where, one)
            self._by_index[one.step if self._has_steps else None, one.index] = one

    def find(self, key: str, where: str, step: int | None, index: int | None) -> RunRecord | None:
        if key and self._by_key:
            same = self._by_key.get(key, [])
            return next((one for one in same if one.index == index), same[0] if same else None)
        if where and self._by_where:
            return self._by_where.get(where)
        if index is None:
            return None
        return self._by_index.get((step if self._has_steps else None, index))


# --- one row ------------------------------------------------------------------------------------


def _parse_labels(cells: Mapping[str, Any], where: str) -> Iterator[Label]:
    """Every label of a row: a row of another tool may say several things at once."""
    if not any(cells.get(name) not in (None, "") for name in JOINING_COLUMNS):
        raise _LabelError(
            f"{', '.join(cells) or 'no column'}: names no sample (allowed: key, where, or index "
            "with step in a training run). Add one of these columns."
        )
    base = _base_fields(cells, where)
    opinions = list(_parse_opinions(cells))
    note = _first_text(cells, _NOTES) if opinions else _text(cells.get("note"))
    if withdrawn := _text(cells.get("withdrawn")):
        opinions = [{"withdrawn": withdrawn}]
    if not opinions and not note:
        raise _LabelError(
            f"{', '.join(cells)}: says nothing (allowed: a value in one of "
            f"{', '.join(SAYING_COLUMNS)}, or a note). Fill one of these columns, or leave the row "
            "out."
        )
    for number, fields in enumerate(opinions or [{}]):
        one = base | fields | {"note": note}
        if number:
            one["id"] = f"{one['id']}.{number}"
        try:
            yield Label(**one)
        except ValueError as error:
            raise _LabelError(str(error)) from None


def _base_fields(cells: Mapping[str, Any], where: str) -> dict[str, Any]:
    stamp = stamp_label()
    grader = _first_text(cells, _GRADERS)
    file = Path(where.rpartition(":")[0]).name
    blind = _text(cells.get("blind")).lower() or "false"
    queue = _text(cells.get("queue")) or None
    _check("blind", blind, ("true", "false"))
    if queue is not None:
        _check("queue", queue, ("random", "disagreement", "near tie"))
    index = _parse_integer(cells, "index")
    return {
        "id": _text(cells.get("id")) or stamp["id"],
        "time": _text(cells.get("time")) or stamp["time"],
        "author": _first_text(cells, _AUTHORS).strip() or file[:80] or "unknown",
        "index": -1 if index is None else index,
        "key": _text(cells.get("key")),
        "step": _parse_integer(cells, "step"),
        "group": _text(cells.get("group")) or None,
        "grader": None if grader.lower() in _WHOLE_REWARD else grader or None,
        "judge_score": _number_of("judge_score", cells.get("judge_score")),
        "blind": blind == "true",
        "queue": queue,
    }


def _parse_opinions(cells: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What a row says, one thing each."""
    if verdict := _text(cells.get("verdict")).lower():
        yield {"verdict": _verdict("verdict", verdict)}
    scored = next(
        (one for one in ("human_score", "score", "rating") if _text(cells.get(one))), None
    )
    if scored is not None:
        yield {"score": _number_of(scored, cells[scored])}
    if label := _text(cells.get("label")).lower():
        if label in _RIGHT | _WRONG and not verdict:
            yield {"verdict": _verdict("label", label)}
        elif scored is None:
            yield {"score": _class_score("label", label)}
    over = _text(cells.get("preferred_over"))
    if preferred := _text(cells.get("preferred")):
        if not preferred.startswith(_OVER):
            raise _LabelError(
                f"preferred: cannot be read (found {shorten_text(preferred, 40)!r}; allowed: "
                f"'{_OVER}KEY' or '{_OVER}INDEX'). Name the sample that is worse."
            )
        over = preferred.removeprefix(_OVER).strip()
    if over or cells.get("over_index") not in (None, ""):
        index = _parse_integer(cells, "over_index")
        if index is None and over.isascii() and over.isdigit() and len(over) < 20:
            over, index = "", int(over)
        yield {"preferred_over": over, "over_index": index}


def _verdict(column: str, text: str) -> str:
    if text in _RIGHT:
        return "right"
    if text in _WRONG:
        return "wrong"
    raise _LabelError(
        f"{column}: is no verdict (found {shorten_text(text, 40)!r}; allowed: right, wrong). Use "
        "score for a person's own score."
    )


def _class_score(column: str, text: str) -> float:
    """A class as a score: what is good is 1 and what is bad is 0."""
    if text in _GOOD:
        return 1.0
    if text in _BAD:
        return 0.0
    try:
        return _finite(float(text))
    except ValueError:
        raise _LabelError(
            f"{column}: is no label (found {shorten_text(text, 40)!r}; allowed: right, wrong, a "
            "number, or pass, fail, true, false, yes, no, good, bad, correct, incorrect)"
        ) from None


def _number_of(column: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        return _finite(float(value))
    except (TypeError, ValueError, OverflowError):
        raise _LabelError(
            f"{column}: is no finite number (found {shorten_text(str(value), 40)!r})"
        ) from None


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError
    return number


def _parse_integer(cells: Mapping[str, Any], column: str) -> int | None:
    value = cells.get(column)
    if value is None or value == "":
        return None
    number = _number_of(column, value)
    if number is None or not number.is_integer() or isinstance(value, bool):
        raise _LabelError(f"{column}: is no whole number (found {shorten_text(str(value), 40)!r})")
    return int(number)


def _check(column: str, found: str, allowed: Sequence[str]) -> None:
    if found not in allowed:
        raise _LabelError(
            f"{column}: unknown (found {shorten_text(found, 40)!r}; allowed: {', '.join(allowed)})"
        )


def _first_text(cells: Mapping[str, Any], columns: Iterable[str]) -> str:
    return next((text for one in columns if (text := _text(cells.get(one)))), "")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
