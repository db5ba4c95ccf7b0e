"""Files of rollouts as rows, each with its place for error messages: JSONL, and Parquet.

A row may hold several responses to one prompt, as verl's generation writes them. Its columns are
named by dotted paths (``traj``, ``info.answer``, ``choices.0.text``).

Files can be cut into shards that other processes read for themselves. Cutting reads line ends (of
JSONL) or row groups (of Parquet), never rows, so it takes little time and no memory; a shard is a
few numbers and a path.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, RolloutError
from adjudge.messages import last_question, parse_conversation


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""What :func:`get_path` returns where there is nothing; a stored ``null`` is ``None``."""


def get_path(data: Any, path: str) -> Any:
    """The value at ``path`` in nested mappings and lists, or :data:`MISSING`.

    A key that contains dots is found first, so flat columns named ``a.b`` work too.

    >>> get_path({"choices": [{"text": "hi"}]}, "choices.0.text")
    'hi'
    """
    if isinstance(data, Mapping) and path in data:
        return data[path]
    here = data
    for step in path.split("."):
        if isinstance(here, Mapping):
            here = here.get(step, MISSING)
        elif isinstance(here, list | tuple) and step.lstrip("-").isdigit():
            position = int(step)
            here = here[position] if -len(here) <= position < len(here) else MISSING
        else:
            return MISSING
        if here is MISSING:
            return MISSING
    return here


RESPONSES_COLUMN = "responses"
"""The column that verl's ``main_generation`` adds: a list of texts, one a sample."""


def has_response_list(row: Mapping[str, Any], mapping: Mapping[str, str] | None = None) -> bool:
    """Whether a row's responses are its list.

    They are not where the row has ``response`` or ``messages``, or ``mapping`` says where those
    come from, and not where the list holds anything else than texts and nulls.
    """
    texts = row.get(RESPONSES_COLUMN)
    if not isinstance(texts, list) or not texts:
        return False
    if any(
        name in (mapping or ()) or row.get(name) is not None for name in ("response", "messages")
    ):
        return False
    return all(text is None or isinstance(text, str) for text in texts)


def split_responses(row: Mapping[str, Any], group: str) -> Iterator[dict[str, Any] | RolloutError]:
    """A row for each text of the list: ``response``, ``sample`` (from 0), ``group``, ``messages``.

    ``group`` is used where the row has none of its own. A prompt in chat form becomes the
    conversation with the response at its end, and its last user message the prompt. A null (a
    response that could not be made) comes as :class:`RolloutError`.
    """
    common = {name: value for name, value in row.items() if name != RESPONSES_COLUMN}
    if common.get("group") is None:
        common["group"] = group
    chat = parse_conversation(row.get("prompt"))
    if chat is not None:
        common["prompt"] = last_question(chat)
    for number, text in enumerate(row[RESPONSES_COLUMN]):
        if text is None:
            yield RolloutError(f"{RESPONSES_COLUMN}.{number}: is null: no response was made")
            continue
        one = {**common, "response": text, "sample": number}
        if chat is not None:
            one["messages"] = [*chat, {"role": "assistant", "content": text}]
        yield one


FileRow = tuple[str, "dict[str, Any] | RolloutError"]
"""``FILE:LINE`` and the row's columns, or why there are none."""

_JSONL = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")


def check_files(paths: Sequence[Path]) -> None:
    """Raise :class:`ConfigError` for a file that does not exist or is of no known kind."""
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        if path.suffix.lower() in _PARQUET and importlib.util.find_spec("pyarrow") is None:
            raise ConfigError(f"{path}: Parquet needs pyarrow. Run: pip install 'adjudge[parquet]'")
        if path.suffix.lower() not in _JSONL + _PARQUET:
            raise ConfigError(
                f"{path}: has an unknown file type (allowed: {', '.join(_JSONL + _PARQUET)})"
            )


def is_parquet(path: Path) -> bool:
    """Whether a file is read as Parquet."""
    return path.suffix.lower() in _PARQUET


def read_rows(paths: Sequence[Path]) -> Iterator[FileRow]:
    """Every row of every file in order, one at a time; broken rows come as ``RolloutError``.

    Blank lines are no rows. Raises :class:`ConfigError` as :func:`check_files` does.
    """
    check_files(paths)
    for path in paths:
        yield from _read_parquet(path) if is_parquet(path) else _read_jsonl(path)


def _read_jsonl(path: Path) -> Iterator[FileRow]:
    with path.open("rb") as file:
        yield from parse_lines(file, str(path))


def parse_lines(lines: Iterable[bytes], name: str) -> Iterator[FileRow]:
    """The rows of JSON lines that come from ``name``."""
    for number, line in enumerate(lines, start=1):
        if text := decode_line(line):
            yield parse_row(text, f"{name}:{number}")


def decode_line(line: bytes) -> bytes:
    """What a line of a JSONL file says; nothing: the line is no row."""
    # A crashed writer leaves NUL bytes before a line that is whole; editors leave a BOM.
    return line.lstrip(b"\x00").removeprefix(b"\xef\xbb\xbf").strip()


def parse_row(text: bytes, where: str) -> FileRow:
    """One line of a JSONL file as a row; ``where`` is ``FILE:LINE``."""
    try:
        return where, _decode_row(text)
    except ValueError as error:
        return where, RolloutError(_reason(text, error), where=where)
    except RecursionError:
        return where, RolloutError("JSON nested too deeply", where=where)


_object = msgspec.json.Decoder(dict[str, Any])


def _decode_row(text: bytes) -> dict[str, Any]:
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


def _read_parquet(path: Path) -> Iterator[FileRow]:
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
        cut = _cut_parquet(path, rows, parts) if is_parquet(path) else _cut_lines(path, rows)
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


def _cut_lines(path: Path, rows: int) -> Iterator[tuple[None, int, int]]:
    begin = offset = count = 0
    with path.open("rb") as file:
        for line in file:
            offset += len(line)
            if decode_line(line):
                count += 1
            if count == rows:
                yield None, begin, count
                begin, count = offset, 0
    if count:
        yield None, begin, count


def _cut_parquet(path: Path, rows: int, parts: int) -> Iterator[tuple[int, int, int]]:
    import pyarrow  # noqa: PLC0415  (an extra, heavy)
    import pyarrow.parquet  # noqa: PLC0415

    try:
        metadata = pyarrow.parquet.ParquetFile(path).metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as Parquet: {error}") from error
    for row_group, size in enumerate(sizes):
        step = max(rows, -(-size // parts))
        for offset in range(0, size, step):
            yield row_group, offset, min(step, size - offset)


def read_shard(shard: Shard) -> Iterator[tuple[int, dict[str, Any] | RolloutError]]:
    """Number and columns of each of a shard's rows, one at a time.

    Raises :class:`ConfigError` when the file is not there or can no longer be read, and for rows
    that hold a list of responses.
    """
    path = Path(shard.path)
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file on a worker's machine. Put the files at the same path on every "
            "machine (a shared file system)."
        )
    rows = _read_jsonl_shard(shard) if shard.row_group is None else _read_parquet_shard(shard)
    for number, row in enumerate(islice(rows, shard.rows), shard.first):
        if isinstance(row, dict) and has_response_list(row):
            raise ConfigError(
                f"{path}: rows with a list {RESPONSES_COLUMN!r} are split into samples by the "
                "local engine only. Leave out --engine ray, or write a row for each response."
            )
        yield number, row


def _read_jsonl_shard(shard: Shard) -> Iterator[dict[str, Any] | RolloutError]:
    with Path(shard.path).open("rb") as file:
        file.seek(shard.offset)
        for line in file:
            if text := decode_line(line):
                yield parse_row(text, shard.path)[1]


def _read_parquet_shard(shard: Shard) -> Iterator[dict[str, Any]]:
    import pyarrow  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    skip = shard.offset
    try:
        file = pyarrow.parquet.ParquetFile(shard.path)
        for batch in file.iter_batches(batch_size=_PARQUET_BATCH, row_groups=[shard.row_group]):
            if skip < batch.num_rows:
                yield from batch.slice(skip).to_pylist()
            skip = max(0, skip - batch.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{shard.path}: cannot be read as Parquet: {error}") from error
