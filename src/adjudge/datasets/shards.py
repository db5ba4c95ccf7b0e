"""Files cut into shards that other processes read for themselves.

Cutting reads line ends (of JSON lines) or row groups (of Parquet), never rows, so it takes little
time and no memory; a shard is a few numbers and a path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.files import find_container, parse_row
from adjudge.datasets.sources import is_compressed, number_lines, reading
from adjudge.errors import ConfigError, RolloutError

_PARQUET_BATCH = 512


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows of one file, in order.

    ``first`` is the number of the first row, counted from 0 over all files, broken rows included;
    ``rows`` how many there are. JSONL: ``offset`` is where they begin, in bytes. Parquet: they
    begin after ``offset`` rows of row group ``row_group``.
    """

    number: int
    path: str
    offset: int
    first: int
    rows: int
    row_group: int | None = None


def cut_files(paths: Sequence[Path], rows: int, *, parts: int = 1) -> Iterator[Shard]:
    """Shards of about ``rows`` rows that together are what ``read_rows`` gives for ``paths``.

    A Parquet row group is read from its beginning whatever part of it is wanted, so it is cut in
    ``parts`` at most. Raises :class:`ConfigError` for a file that cannot be read.
    """
    number = first = 0
    for path in paths:
        cut = _cut_file(path, rows, parts)
        for row_group, offset, count in cut:
            yield Shard(
                number=number,
                path=str(path.absolute()),
                offset=offset,
                first=first,
                rows=count,
                row_group=row_group,
            )
            number += 1
            first += count


def _cut_file(path: Path, rows: int, parts: int) -> Iterator[tuple[int | None, int, int]]:
    match find_container(path):
        case "parquet":
            return _cut_parquet(path, rows, parts)
        case "lines" if not is_compressed(path):
            return _cut_lines(path, rows)
    raise ConfigError(
        f"{path}: only JSON lines and Parquet, not compressed, can be read in parts. Leave out "
        "--engine ray, or write the file as one of these."
    )


def _cut_lines(path: Path, rows: int) -> Iterator[tuple[None, int, int]]:
    begin = count = 0
    with path.open("rb") as file:
        for _ in number_lines(file):
            count += 1
            if count == rows:
                yield None, begin, count
                begin, count = file.tell(), 0
    if count:
        yield None, begin, count


def _cut_parquet(path: Path, rows: int, parts: int) -> Iterator[tuple[int, int, int]]:
    import pyarrow.parquet  # noqa: PLC0415  (an extra, heavy)

    with reading(path):
        metadata = pyarrow.parquet.ParquetFile(path).metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    for row_group, size in enumerate(sizes):
        step = max(rows, -(-size // parts))
        for offset in range(0, size, step):
            yield row_group, offset, min(step, size - offset)


def read_shard(shard: Shard) -> Iterator[tuple[int, dict[str, Any] | RolloutError]]:
    """Number and columns of each of a shard's rows, one at a time.

    Raises :class:`ConfigError` when the file is not there or can no longer be read.
    """
    path = Path(shard.path)
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file on a worker's machine. Put the files at the same path on every "
            "machine (a shared file system)."
        )
    rows = _read_jsonl_shard(shard) if shard.row_group is None else _read_parquet_shard(shard)
    yield from enumerate(islice(rows, shard.rows), shard.first)


def _read_jsonl_shard(shard: Shard) -> Iterator[dict[str, Any] | RolloutError]:
    with Path(shard.path).open("rb") as file:
        file.seek(shard.offset)
        for _, text in number_lines(file):
            yield parse_row(text, shard.path)[1]


def _read_parquet_shard(shard: Shard) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet  # noqa: PLC0415

    skip = shard.offset
    with reading(shard.path):
        file = pyarrow.parquet.ParquetFile(shard.path)
        for batch in file.iter_batches(batch_size=_PARQUET_BATCH, row_groups=[shard.row_group]):
            if skip < batch.num_rows:
                yield from batch.slice(skip).to_pylist()
            skip = max(0, skip - batch.num_rows)
