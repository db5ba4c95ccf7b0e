"""Raw rows of data files: JSONL, a JSON array or Parquet, here or on the Hugging Face hub.

A data set of the hub goes by name: ``hf:OWNER/NAME[/FOLDER][#SPLIT]``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, RolloutError
from adjudge.rollouts.rows import check_files, decode_line, parse_row, read_rows

RawColumns = dict[str, Any]
RawRow = tuple[str, "RawColumns | RolloutError"]
"""``FILE:ROW`` and the row's columns, or why there are none."""

MAX_ARRAY_BYTES = 1 << 30
"""A JSON array is read as a whole, unlike JSON lines."""

_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def read_raw_rows(paths: Sequence[Path | str]) -> Iterator[RawRow]:
    """Every row of every file in order; ``ROW`` counts from 1 (a JSONL file's rows are its lines).

    Raises :class:`ConfigError` for a file that is missing, of no known kind, or cannot be read to
    its end.
    """
    files = [Path(path) for path in paths]
    check_files(files)
    for path in files:
        yield from _array_rows(path) if _is_json_array(path) else _file_rows(path)


def _file_rows(path: Path) -> Iterator[RawRow]:
    rows = read_rows([path])
    while True:
        try:
            row = next(rows, None)
        except ConfigError:
            raise
        except (ValueError, OverflowError) as error:
            # A Parquet file whose text is not UTF-8, or whose times no Python object can hold.
            reason = type(error).__name__
            raise ConfigError(f"{path}: cannot be read to its end: {reason}") from error
        if row is None:
            return
        yield row


def _is_json_array(path: Path) -> bool:
    if path.suffix.lower() != ".json":
        return False
    with path.open("rb") as file:
        return decode_line(file.read(1 << 12)).startswith(b"[")


def _array_rows(path: Path) -> Iterator[RawRow]:
    if (size := path.stat().st_size) > MAX_ARRAY_BYTES:
        raise ConfigError(
            f"{path}: a JSON array is read as a whole and must have at most {MAX_ARRAY_BYTES:,} "
            f"bytes (found {size:,}). Write one object per line instead (.jsonl)."
        )
    try:
        items = _array_decoder.decode(decode_line(path.read_bytes()))
    except (msgspec.MsgspecError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{path}: is not a JSON array of rows: {reason}") from None
    for number, item in enumerate(items, start=1):
        yield parse_row(bytes(item), f"{path}:{number}")


def hash_content(path: Path) -> dict[str, Any]:
    """``bytes`` and ``sha256`` of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": file_digest(file, "sha256").hexdigest()}


_PREFIX = "hf:"
_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}\Z")


def is_on_hub(name: str) -> bool:
    """Whether ``name`` is one of the hub's, not a file's."""
    return name.startswith(_PREFIX)


def resolve_data_file(name: str, beside: Path) -> Path:
    """The file of ``name``: relative to ``beside``, or what the hub has under it, as Parquet.

    ``hf:owner/name`` is the split ``train``, ``hf:owner/name#test`` another; what follows the name
    (``hf:owner/name/some/folder``) is a folder in it. It is fetched once and kept in the cache by
    its content. Raises :class:`ConfigError` for a name that is none,
    for one that cannot be fetched, and where ``datasets`` is not installed.
    """
    if not is_on_hub(name):
        return beside / name
    place, _, split = name.removeprefix(_PREFIX).partition("#")
    parts = place.split("/")
    repository, folder = "/".join(parts[:2]), "/".join(parts[2:])
    if not _NAME.match(repository) or ".." in parts:
        raise ConfigError(f"{name[:200]!r}: must be hf:OWNER/NAME, hf:OWNER/NAME/FOLDER#SPLIT, …")
    try:
        import datasets  # noqa: PLC0415  (heavy)
    except ImportError:
        raise ConfigError(
            f"{name}: fetching a dataset needs the package datasets, which is not installed. Give "
            "a file, or run: pip install 'adjudge[hub]'"
        ) from None
    try:
        found = datasets.load_dataset(repository, data_dir=folder or None, split=split or "train")
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        # Files whose columns differ: the error itself says no more than that there was one.
        why = error.__cause__ or error
        first = (str(why).strip().splitlines() or [type(why).__name__])[0][:300]
        raise ConfigError(
            f"{name}: cannot be fetched: {first} (HF_HUB_OFFLINE=1 forbids fetching; gated "
            "datasets need HF_TOKEN)"
        ) from error
    return _cache_dataset(found, repository, split or "train")


def _cache_dataset(found: Any, repository: str, split: str) -> Path:
    """The rows in the cache, written whole or not at all."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adjudge" / "hub"
    name = f"{repository.replace('/', '--')}-{re.sub(r'[^0-9A-Za-z]', '_', split)}"
    path = cache / f"{name}-{found._fingerprint}.parquet"  # noqa: SLF001  (its public name is none)
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        found.to_parquet(str(part))
        part.rename(path)
    return path
