"""Where stored rollouts come from: files as ``adjudge grade`` takes them, and trainers' dumps.

=================  =============================================================================
a run folder       of ``adjudge train``: its ``rollouts.jsonl``
verl               ``rollout_data_dir`` or files of it, ``STEP.jsonl``: ``input, output, score,
                   step``
TRL                ``completions/`` or files of it, ``completions_STEP.parquet``: ``step, prompt,
                   completion``, a column per reward function, ``advantage``
LLMBar             ``dataset.json`` of a subset: a pair is a group of two answers
=================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from adjudge.errors import ConfigError, RolloutError
from adjudge.rollouts.rows import check_files, read_rows

__all__ = ["Shape", "Source", "find_sources"]

Shape = Literal["plain", "verl", "trl", "llmbar"]

_COLUMNS: Mapping[Shape, Mapping[str, str]] = {
    "verl": {"prompt": "input", "response": "output", "reference": "gts"},
    "trl": {"prompt": "prompt", "response": "completion"},
}
_PAIR = b'"output_1"'
_LOOKED_AT = 65_536


class Source(msgspec.Struct, frozen=True):
    """One file: how its rows are read, and which columns are which."""

    path: Path
    shape: Shape
    mapping: dict[str, str]


def find_sources(paths: Sequence[Path], mapping: Mapping[str, str]) -> list[Source]:
    """The files that ``paths`` (files, folders of dumps, run folders) stand for, in order.

    ``mapping`` goes before what a dump's shape says. Raises :class:`ConfigError`.
    """
    files = [file for path in paths for file in (_inside(path) if path.is_dir() else [path])]
    check_files(files)
    return [_source(file, mapping) for file in files]


def _inside(folder: Path) -> list[Path]:
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
        hint = "; a folder of `adjudge grade` has rewards, no rollouts: give the files it graded"
    raise ConfigError(
        f"{folder}: no rollouts in it (looked for rollouts.jsonl of a training, STEP.jsonl of "
        f"verl, completions_STEP.parquet of TRL, dataset.json of LLMBar){hint}"
    )


def _source(file: Path, mapping: Mapping[str, str]) -> Source:
    shape, columns = _shape(file)
    known = _COLUMNS.get(shape, {})
    # A dump that also has the messages says more in them.
    known = {} if "messages" in columns else known
    fitting = {field: name for field, name in known.items() if name in columns}
    return Source(file, shape, {**fitting, **mapping})


def _shape(file: Path) -> tuple[Shape, set[str]]:
    if file.suffix.lower() == ".json":
        with file.open("rb") as opened:
            start = opened.read(_LOOKED_AT)
        if start.lstrip().startswith(b"[") and _PAIR in start:
            return "llmbar", set()
    columns: set[str] = set()
    for _, row in islice(read_rows([file]), 1):
        if not isinstance(row, RolloutError):
            columns = set(row)
    if {"input", "output", "step", "score"} <= columns:
        return "verl", columns
    if {"step", "prompt", "completion", "advantage"} <= columns:
        return "trl", columns
    return "plain", columns
