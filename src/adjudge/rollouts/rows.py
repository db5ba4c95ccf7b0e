"""Files of rollouts as rows, each with its place for error messages: JSONL, and Parquet."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, RolloutError
from adjudge.rollouts.lists import LIST, is_listed

__all__ = [
    "Row",
    "check_files",
    "count_rows",
    "is_parquet",
    "line_text",
    "read_rows",
    "row_from_text",
]

Row = tuple[str, "dict[str, Any] | RolloutError"]
"""``FILE:LINE`` and the row's columns, or why there are none."""

_JSONL = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")


def check_files(paths: Sequence[Path]) -> None:
    """Raise :class:`ConfigError` for a file that does not exist or is of no known kind."""
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        if path.suffix.lower() in _PARQUET and importlib.util.find_spec("pyarrow") is None:
            raise ConfigError(f"{path}: Parquet needs pyarrow: pip install 'adjudge[parquet]'")
        if path.suffix.lower() not in _JSONL + _PARQUET:
            raise ConfigError(
                f"{path}: rollouts are read from {', '.join(_JSONL + _PARQUET)} files"
            )


def is_parquet(path: Path) -> bool:
    """Whether a file is read as Parquet."""
    return path.suffix.lower() in _PARQUET


def read_rows(paths: Sequence[Path]) -> Iterator[Row]:
    """Every row of every file in order, one at a time; broken rows come as ``RolloutError``.

    Blank lines are no rows. Raises :class:`ConfigError` as :func:`check_files` does.
    """
    check_files(paths)
    for path in paths:
        yield from _parquet(path) if is_parquet(path) else _jsonl(path)


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if text := line_text(line):
                yield row_from_text(text, f"{path}:{number}")


def line_text(line: bytes) -> bytes:
    """What a line of a JSONL file says; nothing: the line is no row."""
    # A crashed writer leaves NUL bytes before a line that is whole; editors leave a BOM.
    return line.lstrip(b"\x00").removeprefix(b"\xef\xbb\xbf").strip()


def row_from_text(text: bytes, where: str) -> Row:
    """One line of a JSONL file as a row; ``where`` is ``FILE:LINE``."""
    try:
        return where, _decoded(text)
    except ValueError as error:
        return where, RolloutError(_reason(text, error), where=where)
    except RecursionError:
        return where, RolloutError("JSON nested too deeply", where=where)


_object = msgspec.json.Decoder(dict[str, Any])


def _decoded(text: bytes) -> dict[str, Any]:
    """One row; a lone surrogate (half an emoji, escaped) becomes ``?`` instead of an error."""
    try:
        return _object.decode(text)
    except msgspec.MsgspecError:
        if b"\\ud" not in text.lower():
            raise
        cleaned = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
        return _object.decode(cleaned)


def _reason(text: bytes, error: Exception) -> str:
    if text.startswith(b"[") or text == b"{":
        return f"not one JSON object per line (is this a JSON array or indented JSON?): {error}"
    return f"not a JSON object: {error}"


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow  # noqa: PLC0415  (an extra, heavy)
    import pyarrow.parquet  # noqa: PLC0415

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=512):
            for columns in batch.to_pylist():
                number += 1
                yield f"{path}:{number}", columns
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as Parquet: {error}") from error


def count_rows(paths: Sequence[Path]) -> int:
    """About how many samples the files have (blank lines included), for progress and estimates.

    Where the first row has a list ``responses``, each response counts.
    """
    return sum(map(_count, paths))


def _count(path: Path) -> int:
    first = next(read_rows([path]), None)
    listed = first is not None and isinstance(first[1], dict) and is_listed(first[1])
    if is_parquet(path):
        return _count_parquet(path, listed=listed)
    if listed:
        return sum(_responses(row) for _, row in read_rows([path]))
    lines, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def _count_parquet(path: Path, *, listed: bool) -> int:
    import pyarrow  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    try:
        file = pyarrow.parquet.ParquetFile(path)
        if not listed:
            return int(file.metadata.num_rows)
        batches = file.iter_batches(batch_size=512, columns=[LIST])
        return sum(_responses(row) for batch in batches for row in batch.to_pylist())
    except (pyarrow.ArrowException, OSError):
        return 0  # reading it will say what is wrong


def _responses(row: dict[str, Any] | RolloutError) -> int:
    texts = row.get(LIST) if isinstance(row, dict) else None
    return len(texts) if isinstance(texts, list) and texts else 1
