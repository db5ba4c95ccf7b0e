"""Benchmark files as items: RewardBench-2, LLMBar, JudgeBench and preference files.

==============  ==================================================================================
rewardbench2    ``id, prompt, chosen [..], rejected [..], subset`` (``num_correct`` is checked)
llmbar          ``input, output_1, output_2, label 1 | 2``, one JSON array a file, or a row a line
judgebench      ``pair_id, source, question, response_A, response_B, label "A>B" | "B>A"``
preference      ``chosen, rejected``: message lists, JSON strings of them, or texts and ``prompt``;
                ``margin``, ``subset`` and ``id`` where there are any
==============  ==================================================================================

Nothing is repaired: a row that is no item is a :class:`RowProblem` with its place and its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, RolloutError
from adjudge.judge_training.benchmarks.items import (
    KINDS,
    Benchmark,
    Item,
    Kind,
    RowProblem,
)
from adjudge.judge_training.benchmarks.shapes import (
    Broken,
    judgebench_item,
    llmbar_item,
    preference_item,
    rewardbench2_item,
)
from adjudge.rollouts.rows import Row, check_files, line_text, read_rows, row_from_text

__all__ = ["benchmark_of", "detect_kind", "read_benchmark"]

_READERS: dict[Kind, Callable[[Mapping[str, Any], str, str], Item]] = {
    "rewardbench2": rewardbench2_item,
    "llmbar": llmbar_item,
    "judgebench": judgebench_item,
    "preference": preference_item,
}
_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "llmbar": ("input", "output_1", "output_2", "label"),
    "judgebench": ("question", "response_A", "response_B", "label"),
    "preference": ("chosen", "rejected"),
}


def read_benchmark(
    paths: Sequence[Path], kind: Kind | None = None, *, subset: str | None = None
) -> Benchmark:
    """All items of ``paths``, and why the other rows are none.

    ``kind`` is told from the columns of the first whole row where it is not given. ``subset`` names
    the subset of rows that name none; by default the file does (``dataset.json`` of LLMBar: its
    folder). An id that its subset already has is a problem of the later row. Raises
    :class:`~adjudge.errors.ConfigError` for a file that cannot be read, for columns that fit no
    kind, and where no row is an item.
    """
    rows = ((where, row, subset or _named(path)) for path in paths for where, row in _rows(path))
    return benchmark_of(rows, kind, source=", ".join(map(str, paths)) or "no file")


def benchmark_of(
    rows: Iterable[tuple[str, dict[str, Any] | RolloutError, str]],
    kind: Kind | None = None,
    *,
    source: str = "rows",
) -> Benchmark:
    """Rows that are at hand as items: each with its place and the subset of rows that name none.

    Raises as :func:`read_benchmark` does; ``source`` is what the complaint calls them.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"benchmark: found {kind!r}, allowed: {', '.join(KINDS)}")
    items: list[Item] = []
    problems: list[RowProblem] = []
    seen: dict[tuple[str, str], str] = {}
    for where, row, subset in rows:
        if isinstance(row, RolloutError):
            problems.append(RowProblem(where, str(row).removeprefix(f"{where}: ")))
            continue
        kind = kind or detect_kind(row, where)
        try:
            item = _READERS[kind](row, where, subset)
            _unseen(item, seen)
        except Broken as broken:
            problems.append(RowProblem(where, str(broken)))
        else:
            items.append(item)
    if kind is None or not items:
        raise ConfigError(_none_usable(source, problems))
    return Benchmark(kind=kind, items=items, problems=problems, title=kind)


def detect_kind(row: Mapping[str, Any], where: str) -> Kind:
    """The kind whose columns ``row`` has; raises :class:`~adjudge.errors.ConfigError` for none.

    ``chosen`` is a list of texts in RewardBench-2 and anything else in a preference file.

    >>> detect_kind({"input": "", "output_1": "", "output_2": "", "label": 1}, "x:1")
    'llmbar'
    """
    if "chosen" in row and "rejected" in row and "subset" in row and _texts(row["chosen"]):
        return "rewardbench2"
    for kind, columns in _COLUMNS.items():
        if all(column in row for column in columns):
            return kind
    found = ", ".join(sorted(map(str, row))[:12])
    raise ConfigError(
        f"{where}: columns {found} fit no benchmark ({', '.join(KINDS)}); name the kind, or rename "
        "the columns"
    )


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value)


def _unseen(item: Item, seen: dict[tuple[str, str], str]) -> None:
    key = (item.subset, item.id)
    if key in seen:
        raise Broken(f"id: {item.id[:80]!r} was used before, at {seen[key]}")
    seen[key] = item.where


def _named(path: Path) -> str:
    return path.parent.name if path.stem == "dataset" and path.parent.name else path.stem


def _rows(path: Path) -> Iterator[Row]:
    """Rows of one file; a JSON array counts its elements from 1."""
    check_files([path])
    if path.suffix.lower() != ".json":
        return read_rows([path])
    data = line_text(path.read_bytes())
    return _elements(path, data) if data.startswith(b"[") else read_rows([path])


def _elements(path: Path, data: bytes) -> Iterator[Row]:
    try:
        elements: Iterable[msgspec.Raw] = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a JSON array of rows: {error}") from None
    for number, element in enumerate(elements, start=1):
        yield row_from_text(bytes(element), f"{path}:{number}")


def _none_usable(source: str, problems: Sequence[RowProblem]) -> str:
    first = f"; the first: {problems[0].where}: {problems[0].reason}" if problems else ""
    return f"{source}: no row is an item of a benchmark ({len(problems)} were unusable{first})"
