"""Files that survive a kill: written in one piece, or grown by whole lines.

A log is a file of JSON objects, a line each. A kill may tear its last line, and a disk may damage
any line: what is torn is cut off before the log grows again, what is damaged is named and passed
over, or ends the reading. Lines that cost money carry a checksum.
"""

from __future__ import annotations

import errno
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from adjudge.errors import ConfigError, Fields
from adjudge.text import encode_json

RowT = TypeVar("RowT")

_log = logging.getLogger("adjudge")

UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""What encoding raises for a value that JSON cannot hold."""

_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_CHECKSUM = b',"c":"%08x"}'
_CHECKSUM_MARK, _CHECKSUM_BYTES = b',"c":"', len(_CHECKSUM % 0)
_NAMED_LINES = 5
_BLOCK = 1 << 16


@contextmanager
def full_disk_names(path: Path) -> Iterator[None]:
    """Let an error of writing that names no file, as that of a full disk, name ``path``."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _WRITE_ERRORS:
            error.filename = str(path)
        raise


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A place beside ``path`` to write a file or folder to; at the end it takes ``path``'s place.

    Readers see the old one or the new one, whenever the writer is killed (of a folder: none, for a
    moment). What fails on the way leaves the old one alone. Makes the folder of ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    _remove(part)
    try:
        with full_disk_names(path):
            yield part
    except BaseException:  # an interruption, too
        _remove(part)
        raise
    if path.is_dir():
        import shutil  # noqa: PLC0415  (a folder is rarely replaced, and most programs need none)

        shutil.rmtree(path)
    part.replace(path)


def atomic_write(path: Path, data: bytes | Iterable[bytes]) -> Path:
    """Write ``data``, or its pieces one after the other, to ``path``, as :func:`atomic_path`.

    Raises :class:`~adjudge.errors.ConfigError` where there is a folder: a file never replaces one.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder. Give the name of a file.")
    with atomic_path(path) as part, part.open("wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        import shutil  # noqa: PLC0415

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> Path:
    """Write ``value`` as indented JSON, in one piece."""
    return atomic_write(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def is_intact(line: bytes) -> bool:
    """Whether ``line`` is as :func:`encode_checked_line` wrote it."""
    found = line[-_CHECKSUM_BYTES:]
    return found == _CHECKSUM % zlib.crc32(line[:-_CHECKSUM_BYTES])


_encoder = msgspec.json.Encoder()


def encode_checked_line(row: object) -> bytes:
    """``row``, an object, as a line with the CRC-32 of all before it as its last key ``c``.

    Raises one of :data:`UNENCODABLE`.
    """
    body = _encoder.encode(row)[:-1]
    return body + _CHECKSUM % zlib.crc32(body) + b"\n"


def iter_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a file without their ends, each with its number, from 1.

    A last line that does not end was torn and is left out. A file that is not there has none.
    """
    if path.exists():
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield number, line[:-1]


def iter_rows(
    path: Path,
    row_type: type[RowT],
    *,
    first: int = 1,
    checked: bool = False,
    damaged: list[int] | None = None,
    keep: Callable[[RowT], bool] = lambda _: True,
) -> Iterator[RowT]:
    """The rows of a log from line ``first`` on, each as ``row_type``.

    A line is damaged if it is no such row, or one that ``keep`` refuses, or, where lines are
    ``checked``, if its checksum is wrong. Reading ends at the first damaged line; with ``damaged``
    it goes on, and the list gets the line's number.
    """
    placed = iter_placed_rows(
        path, row_type, first=first, checked=checked, damaged=damaged, keep=keep
    )
    return (row for _, row in placed)


def iter_placed_rows(
    path: Path,
    row_type: type[RowT],
    *,
    first: int = 1,
    checked: bool = False,
    damaged: list[int] | None = None,
    keep: Callable[[RowT], bool] = lambda _: True,
) -> Iterator[tuple[int, RowT]]:
    """:func:`iter_rows`, each with the place of its line in the file, in bytes."""
    decoder = msgspec.json.Decoder(row_type)
    after = 0
    for number, line in iter_lines(path):
        place, after = after, after + len(line) + 1
        if number < first:
            continue
        row = _decode_row(decoder, line) if not checked or is_intact(line) else None
        if row is not None and keep(row):
            yield place, row
        elif damaged is None:
            return
        else:
            damaged.append(number)


def _decode_row(decoder: msgspec.json.Decoder[RowT], line: bytes) -> RowT | None:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def warn_damaged_lines(path: Path, numbers: Sequence[int], remedy: str) -> None:
    """Name the first damaged lines of ``path`` in warnings, and count the others.

    ``remedy``: what becomes of such a line, as a sentence.
    """
    for number in numbers[:_NAMED_LINES]:
        _log.warning(
            "%s:%d: the line is damaged (its checksum or form is wrong). %s", path, number, remedy
        )
    if (more := len(numbers) - _NAMED_LINES) > 0:
        _log.warning("%s: %d more lines are damaged. %s", path, more, remedy)


def cut_torn_line(file: IO[bytes]) -> int:
    """Cut off a last line that a killed process did not end; the size of what is left."""
    size = end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        if (newline := file.read(end - start).rfind(b"\n")) >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        file.truncate(end)
    return end


class JsonlLog:
    """``path``, a log that grows: rows are appended in one piece each time.

    Opening it cuts off a last line that was torn, so that what is appended starts on a line. A log
    is read by :func:`iter_rows`. It has one writer; the run folder's lock sees to that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with path.open("r+b") as file:
                cut_torn_line(file)

    def append(self, *rows: Fields | msgspec.Struct) -> None:
        """Append a line a row; what JSON does not know is written as text. Makes the file."""
        self.append_lines(b"".join(encode_json(row, str) + b"\n" for row in rows))

    def append_lines(self, lines: bytes) -> None:
        """Append whole lines that are encoded already, as :func:`encode_checked_line` does."""
        with full_disk_names(self.path), self.path.open("ab") as file:
            file.write(lines)

    def rewrite(self, rows: Iterable[Fields | msgspec.Struct]) -> None:
        """Write the log anew; readers see the old one or the new one."""
        atomic_write(self.path, (encode_json(row, str) + b"\n" for row in rows))

    def truncate(self, row_type: type[RowT], keep: Callable[[RowT], bool]) -> None:
        """Cut the log before the first line that is damaged, or whose row ``keep`` refuses."""
        decoder, end = msgspec.json.Decoder(row_type), 0
        for _, line in iter_lines(self.path):
            row = _decode_row(decoder, line)
            if row is None or not keep(row):
                break
            end += len(line) + 1
        if self.path.exists():
            os.truncate(self.path, end)
