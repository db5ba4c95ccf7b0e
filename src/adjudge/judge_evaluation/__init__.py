"""What says where a judge is wrong: benchmarks, probes and judge swaps.

Rows of files become records of one type here: labels, items of probes, judgements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from adjudge.datasets.files import RawColumns, read_rows
from adjudge.errors import ConfigError, RolloutError

_SHOWN_PROBLEMS = 10

_T = TypeVar("_T")


def read_records(paths: Iterable[Path], parse: Callable[[RawColumns, str], _T]) -> list[_T]:
    """What ``parse`` makes of each row and its ``FILE:ROW``, whatever the files are packed in.

    ``parse`` raises ``ValueError`` for a row that is none. Raises
    :class:`~adjudge.errors.ConfigError` that names every such row, up to ten.
    """
    found: list[_T] = []
    problems: list[str] = []
    for where, row in read_rows(list(paths)):
        if isinstance(row, RolloutError):
            problems.append(str(row))
            continue
        try:
            found.append(parse(row, where))
        except ValueError as error:
            problems.append(f"{where}: {error}")
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        shown = problems[:_SHOWN_PROBLEMS] + ([f"… and {more} more"] if more > 0 else [])
        raise ConfigError("\n".join(shown))
    return found


def convert_row(row: Any, kind: type[_T], *, strict: bool = True) -> _T:
    """A row as a struct; raises ``ValueError`` that begins with the column where one is wrong."""
    try:
        return msgspec.convert(row, kind, strict=strict)
    except msgspec.ValidationError as error:
        message, _, column = str(error).partition(" - at `$.")
        raise ValueError(f"{column.rstrip('`')}: {message}" if column else message) from None
