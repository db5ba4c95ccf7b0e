"""Stored rollouts: which files they are, in which format, and gathered into one file of groups.

Rows are read as ``adjudge grade`` reads them, dumps of trainers included
(:mod:`adjudge.rollouts.formats`). A folder is a run folder of ``adjudge train``, dumps by step of
verl or TRL, or LLMBar's ``dataset.json`` of a subset: a pair is a group of two answers.

Every judge is asked about the one file that they become.
"""

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

from adjudge.datasets.files import check_files, read_rows
from adjudge.datasets.published import match_formats
from adjudge.errors import ConfigError, RolloutError, RunFolderError
from adjudge.judge_evaluation.benchmarks.items import PairItem
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark
from adjudge.judge_evaluation.swap.judgements import (
    JudgeRewards,
    SampleRow,
    SwapTable,
    compute_features,
    read_criterion_marks,
)
from adjudge.rollouts.formats.recognition import FORMATS
from adjudge.rollouts.samples import BrokenInputRow, GroupNames, SampleReader, check_mapping
from adjudge.runs.folder import LOCK_FILE
from adjudge.types import MISSING, Sample, get_path


class RolloutSource(msgspec.Struct, frozen=True):
    """One file, the name of its rows' format, and which columns are which."""

    path: Path
    shape: str
    mapping: dict[str, str]


def find_rollout_sources(paths: Sequence[Path], mapping: Mapping[str, str]) -> list[RolloutSource]:
    """The files that ``paths`` (files, folders of dumps, run folders) stand for, in order.

    ``mapping`` goes before what a dump's format says. Raises :class:`ConfigError`.
    """
    files = [file for path in paths for file in (_files_in(path) if path.is_dir() else [path])]
    check_files(files)
    return [RolloutSource(file, _find_shape(file), dict(mapping)) for file in files]


def _files_in(folder: Path) -> list[Path]:
    """The files of rollouts in a folder; dumps in the order of their steps."""
    if (folder / "rollouts.jsonl").is_file():
        return [folder / "rollouts.jsonl"]
    if (folder / "dataset.json").is_file():
        return [folder / "dataset.json"]
    for below in (folder, folder / "completions"):
        numbered = [path for path in below.glob("*.jsonl") if path.stem.isdecimal()]
        if numbered:
            return sorted(numbered, key=lambda path: int(path.stem))
        if tables := sorted(below.glob("completions_*.parquet")):
            return tables
    hint = ""
    if (folder / "rewards.jsonl").is_file():
        hint = (
            ". Give the files that `adjudge grade` graded: its own folder has rewards, no rollouts."
        )
    raise ConfigError(
        f"{folder}: there are no rollouts in the folder (looked for rollouts.jsonl of a training, "
        f"STEP.jsonl of verl, completions_STEP.parquet of TRL, dataset.json of LLMBar){hint}"
    )


def _find_shape(file: Path) -> str:
    """The name of the format of a file's first row; ``plain`` where columns are read by name."""
    _, row = next(read_rows([file]), ("", RolloutError("")))
    if isinstance(row, RolloutError):
        return "plain"
    if "llmbar" in match_formats(row):
        return "llmbar"
    return next((one.name for one in FORMATS if one.matches(row)), "plain")


NOT_STORED_KIND = "not_stored"
"""The kind of a stored reward that is not there and does not say why."""

_encoder = msgspec.json.Encoder(enc_hook=str)


@dataclass
class GatheredRollouts:
    """What reading gave: the sheet, the rows that are none, and where the groups came from."""

    table: SwapTable
    broken: list[BrokenInputRow] = field(default_factory=list)
    grouped_by: str = ""


def gather_rollouts(
    sources: Sequence[RolloutSource],
    target: Path,
    *,
    group: Sequence[str] = (),
    stored: Mapping[str, str] | None = None,
) -> GatheredRollouts:
    """Read all sources and write ``target``, a file that ``adjudge grade`` takes.

    A sample's group: the values of the columns ``group``; else the column ``group``, or what the
    format of a dump says (equal prompts of one step); else equal prompts. ``stored``: judges whose
    rewards are a column, by name. Raises :class:`ConfigError`, ``RolloutError`` where no row is a
    sample, and ``RunFolderError`` where ``target`` holds other rollouts.
    """
    for source in sources:
        if source.shape != "llmbar":
            check_mapping(read_rows([source.path]), source.mapping)
    groups, found = GroupNames(), GatheredRollouts(SwapTable([]))
    columns = dict(stored or {})
    judges = [JudgeRewards(name, "stored", f"column {columns[name]}", [], []) for name in columns]
    fresh = target.with_name(f".{target.name}.tmp")
    with fresh.open("wb") as file:
        for one in _iter_samples(sources, found.broken):
            try:
                name = _group_name(one, group, groups)
                values = [_stored_reward(one.sample, column) for column in columns.values()]
                row = _rollout_row(one.sample, name)
            except RolloutError as error:
                found.broken.append(BrokenInputRow(one.where, str(error)))
                continue
            file.write(row + b"\n")
            found.table.samples.append(_sample_row(one, len(found.table.samples), name))
            for judge, value in zip(judges, values, strict=True):
                _keep_stored(judge, one.sample, value)
    if not found.table.samples:
        fresh.unlink()
        first = f": {found.broken[0].where}: {found.broken[0].message}" if found.broken else ""
        raise RolloutError(f"no usable row ({len(found.broken)} broken){first}")
    _replace_rollouts(fresh, target)
    found.grouped_by = ", ".join(group) or groups.source
    found.table.judges += judges
    return found


def _replace_rollouts(fresh: Path, target: Path) -> None:
    """``fresh`` becomes ``target``, unless the folder is that of something else.

    A folder in which no judge was asked yet is none: a first try with a mistake burns no folder.
    """
    others = {path.name for path in target.parent.iterdir()} - {fresh.name, target.name, LOCK_FILE}
    same = target.exists() and target.read_bytes() == fresh.read_bytes()
    if others and not same:
        fresh.unlink()
        raise RunFolderError(
            f"{target.parent}: holds a study of other rollouts (or with another --map or --group), "
            "or something else. Give another output folder with -o."
        )
    fresh.replace(target)


class _SourceSample(NamedTuple):
    """A sample and its place, and its side of a benchmark's pair, if any."""

    where: str
    sample: Sample
    pair: tuple[str, str, str] | None = None


def _iter_samples(
    sources: Sequence[RolloutSource], broken: list[BrokenInputRow]
) -> Iterator[_SourceSample]:
    for source in sources:
        if source.shape == "llmbar":
            yield from _llmbar_samples(source.path, broken)
            continue
        for where, sample in SampleReader([source.path], source.mapping).read():
            if isinstance(sample, RolloutError):
                broken.append(BrokenInputRow(where, str(sample).removeprefix(f"{where}: ")))
            else:
                yield _SourceSample(where, sample)


def _llmbar_samples(path: Path, broken: list[BrokenInputRow]) -> Iterator[_SourceSample]:
    """Each pair as a group of two; ``env_reward`` is 1 for the better answer by the label."""
    benchmark = read_benchmark([path], "llmbar")
    broken += [BrokenInputRow(one.where, one.reason) for one in benchmark.problems]
    for item in benchmark.items:
        if not isinstance(item, PairItem) or item.texts is None:
            continue
        for side, text in zip(("A", "B"), item.texts, strict=True):
            sample = Sample(
                prompt=str(item.prompt[-1]["content"]),
                response=text,
                group=f"{item.subset}/{source_row_number(item.where)}",
                extra={"subset": item.subset, "env_reward": float(side == item.label)},
            )
            pair = (item.subset, source_row_number(item.where), side)
            yield _SourceSample(item.where, sample, pair)


def source_row_number(where: str) -> str:
    """The row of ``FILE:ROW``, which a benchmark's judges share."""
    return where.rpartition(":")[2]


def digest_answer(prompt: str | None, response: str | None) -> str:
    """A digest of a question and an answer."""
    text = msgspec.json.encode([prompt, response])
    return blake2b(text, digest_size=12).hexdigest()


def _group_name(one: _SourceSample, wanted: Sequence[str], groups: GroupNames) -> str:
    """The group's name: its columns' values, else as ``adjudge grade`` names it."""
    sample = one.sample
    if not wanted:
        return groups.name(sample)
    fields = {**sample.extra, "group": sample.group, "prompt": sample.prompt}
    values = []
    for column in wanted:
        value = get_path(fields, column)
        if value is MISSING or not isinstance(value, str | int | float):
            columns = ", ".join(sorted(sample.extra))[:200]
            raise RolloutError(f"--group {column}: no text or number there (columns: {columns})")
        values.append(str(value))
    if len(values) > 1:  # or ("a/b", "c") and ("a", "b/c") were one group
        values = [value.replace("\\", "\\\\").replace("/", "\\/") for value in values]
    return "/".join(values)


def _rollout_row(sample: Sample, group: str) -> bytes:
    row: dict[str, Any] = {**sample.extra, "group": group}
    for name in ("messages", "prompt", "response", "reference", "env_reward"):
        if (value := getattr(sample, name)) is not None:
            row[name] = value
    try:
        return _encoder.encode(row)
    except (TypeError, ValueError, RecursionError) as error:
        raise RolloutError(f"cannot be written as JSON: {error}") from None


def _sample_row(one: _SourceSample, index: int, group: str) -> SampleRow:
    sample, step = one.sample, one.sample.extra.get("step")
    return SampleRow(
        index=index,
        group=group,
        step=step if isinstance(step, int) else None,
        env_reward=sample.env_reward,
        features=compute_features(sample.response or ""),
        pair=one.pair,
        digest="" if one.pair is None else digest_answer(sample.prompt, sample.response),
    )


def _stored_reward(sample: Sample, column: str) -> float | None:
    """The number in a column, or null for missing; raises ``RolloutError`` for anything else."""
    fields = {**sample.extra, "env_reward": sample.env_reward, "reference": sample.reference}
    value = get_path(fields, column)
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
    columns = ", ".join(sorted(sample.extra))[:200]
    raise RolloutError(
        f"--stored {column}: must be a finite number or null, got {found} (columns: {columns})"
    )


def _keep_stored(judge: JudgeRewards, sample: Sample, value: float | None) -> None:
    """Add a stored reward to its judge's, and what else the row says about it."""
    missing = sample.extra.get("missing")
    kind = missing.get("kind") if isinstance(missing, dict) else None
    judge.rewards.append(value)
    judge.kinds.append(None if value is not None else str(kind or NOT_STORED_KIND))
    judge.marks.append(read_criterion_marks(sample.extra.get("details")))
