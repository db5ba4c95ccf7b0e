"""What says where a judge is wrong: benchmarks, probes and judge swaps.

Rows of files become records of one type here: labels, items of probes, judgements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from adjudge.datasets.files import RawColumns, read_rows
from adjudge.errors import ConfigError, RolloutError
from adjudge.files import warn_damaged_lines

_SHOWN_PROBLEMS = 10

_T = TypeVar("_T")


def read_records(
    paths: Iterable[Path], parse: Callable[[RawColumns, str], _T], *, log: str = ""
) -> list[_T]:
    """What ``parse`` makes of each row and its ``FILE:ROW``, whatever the files are packed in.

    ``parse`` raises ``ValueError`` for a row that is none. In files of the name ``log`` half a row,
    which a killed writer left, is passed over with a warning. Raises
    :class:`~adjudge.errors.ConfigError` with up to ten problems, each with its first row.
    """
    found: list[_T] = []
    torn: dict[Path, list[int]] = {}
    problems: dict[str, list[str]] = {}
    for where, row in read_rows(list(paths)):
        file, _, number = where.rpartition(":")
        if isinstance(row, RolloutError) and Path(file).name == log:
            torn.setdefault(Path(file), []).append(int(number))
            continue
        if isinstance(row, RolloutError):
            problems.setdefault(str(row).removeprefix(f"{where}: "), []).append(where)
            continue
        try:
            found.append(parse(row, where))
        except ValueError as error:
            problems.setdefault(str(error), []).append(where)
    if problems:
        lines = [
            f"{where}{f' and {len(others):,} more rows' if others else ''}: {why}"
            for why, (where, *others) in islice(problems.items(), _SHOWN_PROBLEMS)
        ]
        more = len(problems) - len(lines)
        raise ConfigError("\n".join(lines + ([f"… and {more} more"] if more else [])))
    for path, numbers in torn.items():
        warn_damaged_lines(path, numbers, "The row is left out.")
    return found


def convert_row(row: Any, kind: type[_T], *, strict: bool = True) -> _T:
    """A row as a struct; raises ``ValueError`` that begins with the column where one is wrong."""
    try:
        return msgspec.convert(row, kind, strict=strict)
    except msgspec.ValidationError as error:
        message, _, column = str(error).partition(" - at `$.")
        raise ValueError(f"{column.rstrip('`')}: {message}" if column else message) from None
