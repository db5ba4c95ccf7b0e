"""Files of rows, whatever they are packed in: each row's columns with its place.

=============  ====================================================================================
JSON lines     one object a line
JSON           an array of objects; or one object, which is one row
CSV, TSV       a header and cells, all of them text
Parquet        needs pyarrow
zip            inspect's ``.eval`` logs: each sample is a row
=============  ====================================================================================

All but Parquet and zip may be compressed (gzip; zstandard, which needs pyarrow). What a file is, is
seen in its content; its name decides only between JSON lines with a broken first line and the
rest.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from glob import glob
from hashlib import file_digest
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.datasets.sources import (
    MAX_ROW_BYTES,
    decode_line,
    number_lines,
    open_binary,
    reading,
    require_pyarrow,
)
from adjudge.errors import ConfigError, RolloutError
from adjudge.text import has_surrogates

RawColumns = dict[str, Any]
FileRow = tuple[str, "RawColumns | RolloutError"]
"""``FILE:ROW`` and the row's columns, or why there are none."""

MAX_DOCUMENT_BYTES = 1 << 30
"""A JSON array or object is read as a whole, unlike JSON lines; uncompressed."""

ROW_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".pq", ".traj", ".eval")
"""The names by which a folder's files of rows are known."""

_COMPRESSED = (".gz", ".zst")
_LINES = (".jsonl", ".ndjson")
_PARQUET = (".parquet", ".pq")
_MAX_CELL = 1 << 25
_MOST_HEADER = 1 << 16
_PICKLES = (".pt", ".pth", ".pkl", ".pickle")
_SLIME_COMMAND = (
    "python -c 'import json, sys, torch; dump = torch.load(sys.argv[1], weights_only=True); "
    'names = "group_index index prompt response label reward status metadata".split(); '
    '[print(json.dumps({"step": dump["rollout_id"]} | {name: sample.get(name) for name in names}, '
    'default=str)) for sample in dump["samples"]]\' DUMP.pt > DUMP.jsonl'
)
"""Makes JSON lines of ``--save-debug-rollout-data``; loads plain data and tensors only."""

Container = Literal["lines", "array", "document", "table", "parquet", "zip"]


def find_files(inputs: Iterable[Path | str]) -> list[Path]:
    """The files that ``inputs`` (files, folders, patterns such as ``logs/*.jsonl``) name.

    Those of a folder and of a pattern come in the order of their names, numbers in them by value.
    A folder gives its files of rows, with all below it; run folders of adjudge only their rollouts.
    Raises :class:`ConfigError` for what is not there, and where nothing is.
    """
    files = [file for one in inputs for file in _files_of(Path(one))]
    for file in files:
        if has_surrogates(str(file)):
            raise ConfigError(f"{file}: the file's name is not UTF-8. Give it another name.")
    return files


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return _files_in(path)
    if path.exists():
        return [path]
    matched = [Path(found) for found in glob(str(path), recursive=True)]  # noqa: PTH207  (absolute)
    if not (files := sorted(filter(Path.is_file, matched), key=_natural_order)):
        raise ConfigError(f"{path}: no such file")
    return files


_RUN_MANIFEST, _RUN_ROLLOUTS = "run.json", "rollouts.jsonl"
"""What a run folder of adjudge has, and where it keeps its rollouts, if it has any."""


def _files_in(folder: Path) -> list[Path]:
    if (own := folder / _RUN_ROLLOUTS).is_file():
        return [own]
    files = [path for path in folder.rglob("*") if path.is_file() and _holds_rows(path, folder)]
    runs = {path.parent for path in files if path.name == _RUN_MANIFEST}
    files = [path for path in files if path.name == _RUN_ROLLOUTS or runs.isdisjoint(path.parents)]
    pickles = (path for path in folder.rglob("*") if path.suffix.lower() in _PICKLES)
    if not files and (pickle := next(pickles, None)) is not None:
        check_files([pickle])
    if not files:
        raise ConfigError(
            f"{folder}: has no file of rollouts (looked for {', '.join(ROW_FILES)}; run folders "
            "of adjudge are left out)"
        )
    return sorted(files, key=_natural_order)


def _holds_rows(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and _suffix(path) in ROW_FILES


def _natural_order(path: Path) -> list[tuple[int, int, str]]:
    """``2.jsonl`` before ``10.jsonl``."""
    pieces = re.split(r"(\d+)", str(path))
    return [(1, int(one), "") if one.isdecimal() else (0, 0, one) for one in pieces]


def _suffix(path: Path) -> str:
    """The file's kind by its name, without that of its compression."""
    name = path.name.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return Path(name).suffix


def check_files(paths: Sequence[Path]) -> None:
    """Raise :class:`ConfigError` for a file that is not there or cannot be one of rows."""
    for path in paths:
        reason = "" if path.is_file() else "is no regular file" if path.exists() else "no such file"
        if not reason and path.suffix.lower() in _PICKLES:
            reason = (
                "is a pickle, which could run any code and is never loaded. Write its samples as "
                f"JSON lines where you trust it; of slime's dumps:\n  {_SLIME_COMMAND}"
            )
        if reason:
            raise ConfigError(f"{path}: {reason}")
        if find_container(path) == "parquet" or path.suffix.lower() == ".zst":
            require_pyarrow(path)


def is_parquet(path: Path) -> bool:
    """Whether a file is read as Parquet; one that is not there yet is known by its name."""
    if not path.is_file():
        return _suffix(path) in _PARQUET
    return find_container(path) == "parquet"


def find_container(path: Path) -> Container:
    """What a file's rows are packed in, by its content; raises :class:`ConfigError` for another."""
    suffix = _suffix(path)
    if suffix in _PARQUET:
        return "parquet"
    with open_binary(path) as file:
        head = file.read(32)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if suffix in _LINES:
        # JSON lines are the rule; an array has often the name too.
        return "array" if _begins_array(path) else "lines"
    return _find_text_container(path, suffix)


_ARRAY = re.compile(rb"\[\s*(\{|\]\s*\Z)")


def _begins_array(path: Path) -> bool:
    with open_binary(path) as file:
        if _ARRAY.match(decode_line(file.read(1 << 12))) is None:
            return False
    return not _begins_with_whole_line(path)


def _begins_with_whole_line(path: Path) -> bool:
    """Whether the first line is JSON by itself, and others follow: it is a line among lines."""
    first, more = _read_first_line(path)
    if not more:
        return False
    try:
        _array_decoder.decode(first)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _read_first_line(path: Path) -> tuple[bytes, bool]:
    """The first line that is not blank, and whether there are others."""
    with open_binary(path) as file:
        lines = (text for _, text in number_lines(file))
        first = next(lines, b"")
        return first, len(first) > MAX_ROW_BYTES or next(lines, None) is not None


def _find_text_container(path: Path, suffix: str) -> Container:
    if suffix in (".csv", ".tsv"):
        return "table"
    first, more = _read_first_line(path)
    if _ARRAY.match(first) or (first.startswith(b"[") and (suffix == ".json" or first == b"[")):
        return "lines" if more and _begins_with_whole_line(path) else "array"
    if first.startswith(b"{"):
        # An object in one line is a line; one that goes on below is a document.
        whole = not isinstance(parse_row(first, "")[1], RolloutError)
        return "lines" if whole or not more or len(first) > MAX_ROW_BYTES else "document"
    if suffix == ".json" or not first:
        return "lines"
    if more and _find_delimiter(first) is not None:
        return "table"
    raise ConfigError(
        f"{path}: is no file of rows (found a first line that is neither JSON nor a table's "
        "header; allowed: JSON lines, JSON, CSV, TSV, Parquet, each perhaps as .gz or .zst). "
        "Convert it to .jsonl, .csv or .parquet."
    )


def _find_delimiter(header: bytes) -> str | None:
    best = max(b"\t,;", key=header.count)
    return chr(best) if best in header else None


def read_rows(paths: Sequence[Path | str]) -> Iterator[FileRow]:
    """Every row of every file in order, one at a time; broken rows come as ``RolloutError``.

    ``ROW`` counts from 1: a line, an element of an array, a row of a table. Blank lines are no
    rows. Raises :class:`ConfigError` as :func:`check_files` does, and for a file that cannot be
    read to its end.
    """
    files = [Path(path) for path in paths]
    check_files(files)
    for path in files:
        yield from read_file(path, str(path))


def read_stdin() -> list[FileRow]:
    """All rows of standard input, which may be whatever a file may be."""
    with tempfile.NamedTemporaryFile(prefix="adjudge-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        try:
            return list(read_file(Path(copy.name), "stdin"))
        except ConfigError as error:
            raise ConfigError(str(error).replace(copy.name, "stdin")) from None


def read_file(path: Path, name: str) -> Iterator[FileRow]:
    """The rows of one file, which messages call ``name``."""
    readers = {
        "lines": _read_lines,
        "array": _read_array,
        "document": _read_document,
        "table": _read_table,
        "parquet": _read_parquet,
        "zip": _read_zip,
    }
    with reading(name):
        yield from readers[find_container(path)](path, name)


def _read_lines(path: Path, name: str) -> Iterator[FileRow]:
    with open_binary(path) as file:
        for number, text in number_lines(file):
            yield parse_row(text, f"{name}:{number}")


_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def _read_array(path: Path, name: str) -> Iterator[FileRow]:
    items = _decode_array(decode_line(_read_document_bytes(path)))
    for number, item in enumerate(items, start=1):
        yield parse_row(item, f"{name}:{number}")


def _decode_array(text: bytes) -> Sequence[bytes]:
    try:
        return list(map(bytes, _array_decoder.decode(text)))
    except msgspec.MsgspecError:
        if b"NaN" not in text and b"Infinity" not in text:
            raise
        return [json.dumps(item).encode() for item in json.loads(text)]  # each a row with NaN


def _read_document(path: Path, name: str) -> Iterator[FileRow]:
    row = parse_row(decode_line(_read_document_bytes(path)), f"{name}:1")
    if isinstance(row[1], RolloutError):  # lines, of which the first is broken
        yield from _read_lines(path, name)
    else:
        yield row


def _read_document_bytes(path: Path) -> bytes:
    with open_binary(path) as file:
        data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise OverflowError(
            f"a JSON array is read as a whole and must have at most {MAX_DOCUMENT_BYTES:,} "
            "bytes. Write one object per line instead (.jsonl)."
        )
    return data


def _read_table(path: Path, name: str) -> Iterator[FileRow]:
    """A CSV's rows; a cell without text is null."""
    csv.field_size_limit(_MAX_CELL)
    with open_binary(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        start = text.read(_MOST_HEADER)
        delimiter = _find_delimiter(start.partition("\n")[0].encode("utf-8", "replace")) or ","
    with open_binary(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        table = csv.reader(text, delimiter=delimiter, strict=True)
        line = 1
        try:
            columns = _table_columns(next(table, []), name)
            line = table.line_num + 1
            for cells in table:
                if cells:
                    yield _table_row(columns, cells, f"{name}:{line}")
                line = table.line_num + 1
        except csv.Error as error:
            where = f"{name}:{line}"
            if text.read(1) or "unexpected end" not in str(error):
                raise csv.Error(f"line {line} of a table: {error}") from error
            torn = "its last cell is not closed: a quote is missing, or the file was cut off"
            yield where, RolloutError(torn, where=where)


def _table_columns(columns: Sequence[str], name: str) -> Sequence[str]:
    if has_surrogates("".join(columns)):
        raise ValueError(f"its header {_NOT_UTF8}")
    twice = [one for one, count in Counter(columns).items() if one and count > 1]
    if twice:
        raise ConfigError(
            f"{name}: {twice[0]}: two columns have this name. Give each column its own name."
        )
    return columns


def _table_row(columns: Sequence[str], cells: Sequence[str], where: str) -> FileRow:
    if len(cells) > len(columns):
        error = f"has {len(cells)} cells; the header has {len(columns)}"
        return where, RolloutError(error, where=where)
    if any(map(has_surrogates, cells)):
        return where, RolloutError(_NOT_UTF8, where=where)
    filled = [cell or None for cell in cells] + [None] * (len(columns) - len(cells))
    return where, {name: cell for name, cell in zip(columns, filled, strict=True) if name}


# A large sample may be a folder: sample.json, and chunks of its messages and events.
_EVAL_SAMPLE = re.compile(r"samples/.+_epoch_\d+(/sample)?\.json\Z")


def _read_zip(path: Path, name: str) -> Iterator[FileRow]:
    found = False
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not _EVAL_SAMPLE.match(member.filename):
                continue
            found, where = True, f"{name}:{member.filename}"
            if member.file_size > MAX_ROW_BYTES:
                yield where, _too_long_row(where)
            else:
                yield parse_row(archive.read(member), where)
    if not found:
        raise ValueError(
            "is a zip file, and no .eval log of inspect (it has no samples/*.json). Unpack it, and "
            "give the files."
        )


def parse_row(text: bytes, where: str) -> FileRow:
    """One line of a JSONL file as a row; ``where`` is ``FILE:LINE``."""
    if len(text) > MAX_ROW_BYTES:
        return where, _too_long_row(where)
    try:
        try:
            return where, _object.decode(text)  # as most rows can be
        except msgspec.MsgspecError:
            return where, _decode_row(text)
    except UnicodeDecodeError:
        return where, RolloutError(_NOT_UTF8, where=where)
    except ValueError as error:
        return where, RolloutError(_reason(text, error), where=where)
    except RecursionError:
        return where, RolloutError("JSON nested too deeply", where=where)


_NOT_UTF8 = (
    "is not UTF-8. Convert the file from its encoding, such as CP1252 or SHIFT_JIS: "
    "iconv -f ENCODING -t UTF-8 OLD > NEW"
)  # a command with a guessed encoding would make wrong texts in silence


def _too_long_row(where: str) -> RolloutError:
    return RolloutError(f"has more than {MAX_ROW_BYTES:,} bytes, the most of a row", where=where)


_object = msgspec.json.Decoder(dict[str, Any])


def _decode_row(text: bytes) -> dict[str, Any]:
    """One row; a lone surrogate (half an emoji, escaped) becomes ``?`` instead of an error.

    ``NaN`` and ``Infinity``, which JSON does not have and Python writes, become null: trainers dump
    them for rewards that are missing.
    """
    try:
        return _object.decode(text)
    except msgspec.MsgspecError:
        if not any(sign in text for sign in (b"\\ud", b"\\uD", b"NaN", b"Infinity")):
            raise
        plain = json.loads(text, parse_constant=lambda _: None)
        return _object.decode(json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace"))


def _reason(text: bytes, error: Exception) -> str:
    if text.startswith(b"[") or text.strip() == b"{":
        return f"not one JSON object per line (is this a JSON array or indented JSON?): {error}"
    return f"not a JSON object: {error}"


def _read_parquet(path: Path, name: str) -> Iterator[FileRow]:
    import pyarrow.parquet  # noqa: PLC0415  (an extra, heavy)

    number, file = 0, pyarrow.parquet.ParquetFile(path)
    _table_columns(file.schema_arrow.names, name)
    exact = "decimal" in str(file.schema_arrow)
    for batch in file.iter_batches(batch_size=512):
        for columns in batch.to_pylist():
            number += 1
            yield f"{name}:{number}", _round_decimals(columns) if exact else columns


def _round_decimals(value: Any) -> Any:
    """A value with its decimals, which only databases write, as the numbers of JSON."""
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, dict):
        return {name: _round_decimals(one) for name, one in value.items()}
    return [_round_decimals(one) for one in value] if isinstance(value, list) else value


def hash_content(path: Path) -> dict[str, Any]:
    """``bytes`` and ``sha256`` of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": file_digest(file, "sha256").hexdigest()}
