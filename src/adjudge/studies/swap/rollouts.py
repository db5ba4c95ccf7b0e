"""Stored rollouts of any shape as one file with a group each: what every judge is asked about."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from adjudge.errors import RolloutError, RunFolderError
from adjudge.judge_training.benchmarks.items import PairItem
from adjudge.judge_training.benchmarks.read import read_benchmark
from adjudge.rollouts.mapping import MISSING, get_path
from adjudge.rollouts.rows import read_rows
from adjudge.rollouts.samples import check_mapping, read_samples, sample_from_row
from adjudge.runs.grading import BrokenRow, Groups
from adjudge.studies.swap.features import features_of
from adjudge.studies.swap.shapes import Source
from adjudge.studies.swap.sheet import Judgements, Line, Marks, Sheet, marks_of
from adjudge.types import Sample

__all__ = ["ABSENT", "Gathered", "gather", "row_number", "shown"]

ABSENT = "not_stored"
"""The kind of a stored reward that is not there and does not say why."""

_encoder = msgspec.json.Encoder(enc_hook=str)


@dataclass
class Gathered:
    """What reading gave: the sheet, the rows that are none, and where the groups came from."""

    sheet: Sheet
    broken: list[BrokenRow] = field(default_factory=list)
    grouped_by: str = ""


def gather(
    sources: Sequence[Source],
    target: Path,
    *,
    group: Sequence[str] = (),
    stored: Mapping[str, str] | None = None,
) -> Gathered:
    """Read all sources and write ``target``, a file that ``adjudge grade`` takes.

    A sample's group: the values of the columns ``group``; else the column ``group``; else equal
    prompts, of the same training step where a dump has steps. ``stored``: judges whose rewards are
    a column, by name. Raises :class:`ConfigError`, ``RolloutError`` where no row is a sample, and
    ``RunFolderError`` where ``target`` holds other rollouts.
    """
    for source in sources:
        if source.shape != "llmbar":
            check_mapping([source.path], source.mapping)
    groups, found = Groups(), Gathered(Sheet([]))
    columns = [_Stored(name, column) for name, column in (stored or {}).items()]
    fresh = target.with_name(f".{target.name}.tmp")
    with fresh.open("wb") as file:
        for one in _found(sources, found.broken):
            try:
                name = _group(one, group, groups)
                values = [column.value(one.sample) for column in columns]
                row = _row(one.sample, name)
            except RolloutError as error:
                found.broken.append(BrokenRow(one.where, str(error)))
                continue
            file.write(row + b"\n")
            found.sheet.lines.append(_line(one, len(found.sheet.lines), name))
            for column, value in zip(columns, values, strict=True):
                column.take(one.sample, value)
    if not found.sheet.lines:
        fresh.unlink()
        first = f": {found.broken[0].where}: {found.broken[0].message}" if found.broken else ""
        raise RolloutError(f"no usable row ({len(found.broken)} broken){first}")
    _settle(fresh, target)
    stepped = "step and " if any(line.step is not None for line in found.sheet.lines) else ""
    found.grouped_by = ", ".join(group) if group else f"{stepped}{groups.source}"
    found.sheet.judges += [column.judgements() for column in columns]
    return found


def _settle(fresh: Path, target: Path) -> None:
    """``fresh`` becomes ``target``, unless the folder is that of something else.

    A folder in which no judge was asked yet is none: a first try with a mistake burns no folder.
    """
    others = {path.name for path in target.parent.iterdir()} - {fresh.name, target.name}
    same = target.exists() and target.read_bytes() == fresh.read_bytes()
    if others and not same:
        fresh.unlink()
        raise RunFolderError(
            f"{target.parent}: holds a study of other rollouts (or with another --map or --group), "
            "or something else; give another output folder with -o"
        )
    fresh.replace(target)


class _Found(NamedTuple):
    """A sample and its place; its training step, and its side of a benchmark's pair, if any."""

    where: str
    sample: Sample
    step: int | None = None
    pair: tuple[str, str, str] | None = None


def _found(sources: Sequence[Source], broken: list[BrokenRow]) -> Iterator[_Found]:
    for source in sources:
        if source.shape == "llmbar":
            yield from _llmbar(source.path, broken)
            continue
        read = _conversations if source.shape == "trl" else read_samples
        for where, sample in read([source.path], source.mapping):
            if isinstance(sample, RolloutError):
                broken.append(BrokenRow(where, str(sample).removeprefix(f"{where}: ")))
                continue
            step = sample.extras.get("step") if source.shape in ("verl", "trl") else None
            yield _Found(where, sample, step if isinstance(step, int) else None)


def _conversations(
    paths: Sequence[Path], mapping: Mapping[str, str]
) -> Iterator[tuple[str, Sample | RolloutError]]:
    """TRL's rows; where prompt and completion are messages, they are one conversation."""
    for index, (where, row) in enumerate(read_rows(paths)):
        if isinstance(row, RolloutError):
            yield where, row
            continue
        whole, prompt, completion = row, row.get("prompt"), row.get("completion")
        if isinstance(prompt, list) and isinstance(completion, list):
            whole = {name: row[name] for name in row if name not in ("prompt", "completion")}
            whole["messages"] = [*prompt, *completion]
        fields = {field: column for field, column in mapping.items() if column in whole}
        try:
            yield where, sample_from_row(whole, index, fields)
        except RolloutError as error:
            yield where, RolloutError(str(error), where=where)


def _llmbar(path: Path, broken: list[BrokenRow]) -> Iterator[_Found]:
    """Each pair as a group of two; ``env_reward`` is 1 for the better answer by the label."""
    benchmark = read_benchmark([path], "llmbar")
    broken += [BrokenRow(one.where, one.reason) for one in benchmark.problems]
    for item in benchmark.items:
        if not isinstance(item, PairItem) or item.texts is None:
            continue
        for side, text in zip(("A", "B"), item.texts, strict=True):
            sample = Sample(
                prompt=str(item.prompt[-1]["content"]),
                response=text,
                group=f"{item.subset}/{row_number(item.where)}",
                env_reward=float(side == item.label),
                extras={"subset": item.subset},
            )
            yield _Found(item.where, sample, None, (item.subset, row_number(item.where), side))


def row_number(where: str) -> str:
    """The row of ``FILE:ROW``, which a benchmark's judges share."""
    return where.rpartition(":")[2]


def shown(prompt: str | None, response: str | None) -> str:
    """A digest of a question and an answer."""
    text = msgspec.json.encode([prompt, response])
    return blake2b(text, digest_size=12).hexdigest()


def _group(one: _Found, wanted: Sequence[str], groups: Groups) -> str:
    """The group's name; the same prompt in two training steps is two groups."""
    sample = one.sample
    if not wanted:
        name = groups.name(sample)
        return name if one.step is None else f"{one.step}/{name}"
    fields = {**sample.extras, "group": sample.group, "prompt": sample.prompt}
    values = []
    for column in wanted:
        value = get_path(fields, column)
        if value is MISSING or not isinstance(value, str | int | float):
            columns = ", ".join(sorted(sample.extras))[:200]
            raise RolloutError(f"--group {column}: no text or number there (columns: {columns})")
        values.append(str(value))
    if len(values) > 1:  # or ("a/b", "c") and ("a", "b/c") were one group
        values = [value.replace("\\", "\\\\").replace("/", "\\/") for value in values]
    return "/".join(values)


def _row(sample: Sample, group: str) -> bytes:
    row: dict[str, Any] = {**sample.extras, "group": group}
    for name in ("messages", "prompt", "response", "reference", "env_reward"):
        if (value := getattr(sample, name)) is not None:
            row[name] = value
    try:
        return _encoder.encode(row)
    except (TypeError, ValueError, RecursionError) as error:
        raise RolloutError(f"cannot be written as JSON: {error}") from None


def _line(one: _Found, index: int, group: str) -> Line:
    sample, step = one.sample, one.sample.extras.get("step")
    return Line(
        index=index,
        group=group,
        step=step if isinstance(step, int) else None,
        env_reward=sample.env_reward,
        features=features_of(sample.response or ""),
        pair=one.pair,
        digest="" if one.pair is None else shown(sample.prompt, sample.response),
    )


class _Stored:
    """A judge whose rewards are a column of the rollouts: a number, or null for missing."""

    def __init__(self, name: str, column: str) -> None:
        self.name, self.column = name, column
        self._rewards: list[float | None] = []
        self._kinds: list[str | None] = []
        self._marks: list[Marks] = []

    def value(self, sample: Sample) -> float | None:
        """The stored reward; raises ``RolloutError`` for what is neither number nor null."""
        fields = {**sample.extras, "env_reward": sample.env_reward, "reference": sample.reference}
        value = get_path(fields, self.column)
        if value is None:
            return None
        with suppress(OverflowError):
            if isinstance(value, bool | int | float | Decimal):
                number = float(value)
                if math.isnan(number):  # how trainers' tables write "none"
                    return None
                if math.isfinite(number):
                    return number
        found = "nothing" if value is MISSING else type(value).__name__
        columns = ", ".join(sorted(sample.extras))[:200]
        raise RolloutError(
            f"--stored {self.column}: must be a finite number or null, got {found} "
            f"(columns: {columns})"
        )

    def take(self, sample: Sample, value: float | None) -> None:
        """Keep a reward, and what else the row says about it."""
        missing = sample.extras.get("missing")
        kind = missing.get("kind") if isinstance(missing, dict) else None
        self._rewards.append(value)
        self._kinds.append(None if value is not None else str(kind or ABSENT))
        self._marks.append(marks_of(sample.extras.get("details")))

    def judgements(self) -> Judgements:
        """The judge."""
        source = f"column {self.column}"
        return Judgements(self.name, "stored", source, self._rewards, self._kinds, self._marks)
