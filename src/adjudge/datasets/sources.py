"""Where rows come from: data sets of the Hugging Face hub, and the bytes and lines of files.

A data set of the hub is named ``hf:OWNER/NAME[/FOLDER][#SPLIT]``. Files are read without what packs
them, and with a bound on each line.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from adjudge.errors import AdjudgeError, ConfigError
from adjudge.installation import install_command

_PREFIX = "hf:"
_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}\Z")


def is_on_hub(name: str) -> bool:
    """Whether ``name`` is one of the hub's, not a file's."""
    return name.startswith(_PREFIX)


def resolve_data_file(name: str, beside: Path) -> Path:
    """The file of ``name``: relative to ``beside``, or what the hub has under it, as Parquet.

    ``hf:owner/name`` is the split ``train``, ``hf:owner/name#test`` another; what follows the name
    (``hf:owner/name/some/folder``) is a folder in it. It is fetched once and kept in the cache by
    its content. Raises :class:`ConfigError` for a name that is invalid,
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
            f"a file, or run: {install_command('hub')}"
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


# ── bytes and lines ──────────────────────────────────────────────────────────────────────────────

MAX_ROW_BYTES = 1 << 27
"""A row, such as a line of JSON, is read as a whole; a longer one is a broken row."""

_BLOCK = 1 << 16
_OBJECT = ord("{")


def require_pyarrow(path: Path) -> None:
    """Raise :class:`ConfigError` where pyarrow, which a file needs, is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        kind = "zstandard" if path.suffix.lower() == ".zst" else "Parquet"
        raise ConfigError(f"{path}: {kind} needs pyarrow. Run: {install_command('full')}")


_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

_BROKEN = (
    *(EOFError, OverflowError, RecursionError, NotImplementedError, RuntimeError, ValueError),
    *(zlib.error, lzma.LZMAError, struct.error, csv.Error, zipfile.BadZipFile, OSError),
)
"""What the libraries raise that read broken files, pyarrow among them."""


@contextmanager
def reading(name: Path | str) -> Iterator[None]:
    """Make one :class:`ConfigError` of what a library raises in reading a broken file."""
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, AdjudgeError):
            raise
        said = str(error) or type(error).__name__
        raise ConfigError(f"{name}: cannot be read: {said}") from error


@contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes, without their compression.

    Raises :class:`ConfigError` where they cannot be decompressed to their end.
    """
    with path.open("rb") as raw, reading(path):
        magic = raw.read(4)
        if magic.startswith(_GZIP):
            with gzip.open(path, "rb") as file:
                yield cast("BinaryIO", file)
        elif magic == _ZSTANDARD:
            import pyarrow  # noqa: PLC0415  (an extra, heavy)

            with io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd")) as file:
                yield cast("BinaryIO", file)
        else:
            with path.open("rb") as file:
                yield file


def number_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, each with its number, from 1.

    None fills the memory: of one that is longer than :data:`MAX_ROW_BYTES` comes the beginning,
    which is longer, too.
    """
    for number, line in enumerate(map(file.readline, repeat(MAX_ROW_BYTES + 1)), start=1):
        if not line:
            return
        if len(line) > MAX_ROW_BYTES:
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(min(_BLOCK, MAX_ROW_BYTES))
            text = line
        else:  # as most lines are: without a look for what may stand before an object
            text = line if line[0] == _OBJECT else decode_line(line)
        if text:
            yield number, text


def decode_line(line: bytes) -> bytes:
    """What a line of a JSONL file says; nothing: the line is no row."""
    # A crashed writer leaves NUL bytes before a line that is whole; editors leave a BOM.
    return line.lstrip(b"\x00").removeprefix(b"\xef\xbb\xbf").strip()
