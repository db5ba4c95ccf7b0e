"""Judge results read from a file: for demonstrations, tests and re-runs of aggregation."""

from __future__ import annotations

import math
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.types import GraderScore

__all__ = ["RecordedGrader"]


class _Failure(msgspec.Struct):
    kind: ErrorKind
    message: str = ""


class _Row(msgspec.Struct):
    id: str | int | float
    score: float | None = None
    reason: str = ""
    error: _Failure | None = None


class RecordedGrader(RuleGrader):
    """Gives back recorded judge results, failures included.

    ``path`` is a JSONL file with one row per sample: ``{"id", "score", "reason"}`` or
    ``{"id", "error": {"kind", "message"}}``. ``id`` is matched with the sample's column ``key``
    (``"id"`` by default). A recorded failure fails again with its kind; a sample without a row is
    ``invalid_input``. The range is ``low`` to ``high``. The file is read once, at construction;
    a broken row raises :class:`~adjudge.errors.ConfigError` with its line.
    """

    type_name = "recorded"
    is_rule = False

    def __init__(
        self, path: Path, key: str = "id", low: float = 0.0, high: float = 1.0, name: str = ""
    ) -> None:
        super().__init__(name)
        self.path = Path(path)
        self.key = key
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"low and high must be finite, low below high; found {low}, {high}")
        self.score_range = (low, high)
        data = _bytes(self.path)
        self.fingerprint = sha256(data).hexdigest()
        self._rows = _read(self.path, data)

    def evaluate(self, **fields: Any) -> GraderScore:
        """The recorded result of the sample whose ``key`` column matches."""
        wanted = fields.get(self.key)
        row = self._rows.get(_key(wanted))
        if row is None:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT, f"no recorded result for {self.key} = {wanted!r}"
            )
        if row.error is not None or row.score is None:
            error = row.error or _Failure(ErrorKind.INVALID_INPUT, "neither score nor error")
            raise GradingFailure(error.kind, error.message or f"recorded {error.kind}")
        return self._score(row.score, row.reason)


def _key(value: Any) -> str:
    """1, 1.0 and "1" are one id: columns change type between tools."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"path: {path} cannot be read: {error.strerror}") from error


def _read(path: Path, data: bytes) -> dict[str, _Row]:
    decoder = msgspec.json.Decoder(_Row)
    rows: dict[str, _Row] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"path: {path}:{number}: {error}") from error
        if _key(row.id) in rows:
            raise ConfigError(f"path: {path}:{number}: id {row.id!r} was recorded before")
        rows[_key(row.id)] = row
    return rows
