"""The file of a model's responses: kept as they come, gone on with by the same model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, GradingFailure, RunFolderError
from adjudge.judges.base import Reply
from adjudge.runs.whole import write_whole
from adjudge.studies.ifeval.files import Problem, tolerant_rows
from adjudge.studies.ifeval.generating import Wanted

__all__ = ["ResponsesFile"]


class ResponsesFile:
    """``path``, where responses made under ``identity`` are kept, a line each.

    Lines that a crash left are passed over and named in ``problems``: their responses are made
    again. Raises :class:`~adjudge.errors.RunFolderError` for a file with responses of something
    else, which would pass for this model's.
    """

    def __init__(self, path: Path, identity: str) -> None:
        if path.suffix.lower() not in (".jsonl", ".ndjson"):
            raise ConfigError(f"{path}: responses are written to a .jsonl file")
        self.path = path
        self.problems: list[Problem] = []
        self.made_by = sha256(identity.encode()).hexdigest()[:16]
        self._rows: dict[Wanted, dict[str, Any]] = {}
        if path.exists():
            for line, row in tolerant_rows(path, self.problems):
                self._take(line, row)
            _cut_torn(path)
        path.parent.mkdir(parents=True, exist_ok=True)

    def _take(self, line: int, row: dict[str, Any]) -> None:
        prompt, sample = row.get("prompt"), row.get("sample")
        if row.get("generated_by") != self.made_by:
            raise RunFolderError(
                f"{self.path}: line {line} is of another model, or drawn in another way; give "
                "another file, or another folder with -o"
            )
        if isinstance(prompt, str) and type(sample) is int:
            self._rows[prompt, sample] = row

    def has(self, wanted: Wanted) -> bool:
        """Whether this response was made; one that failed was not."""
        return "response" in self._rows.get(wanted, {})

    def keep(self, key: Any, wanted: Wanted, said: Reply | GradingFailure) -> None:
        """Append a response, or what kept it from being made."""
        prompt, sample = wanted
        row: dict[str, Any] = {"key": key, "prompt": prompt, "sample": sample}
        if isinstance(said, GradingFailure):
            row["error"] = {"kind": said.kind.value, "message": str(said)}
        else:
            row |= {"response": said.text, "finish_reason": said.finish_reason}
        row["generated_by"] = self.made_by
        self._rows[wanted] = row
        with self.path.open("ab") as file:
            file.write(_line(row))

    def sort(self, order: Iterable[Wanted]) -> None:
        """Write the file again, whole: ``order`` first, then whatever else it has."""
        places = dict.fromkeys([*order, *self._rows])
        write_whole(self.path, (_line(self._rows[one]) for one in places if one in self._rows))

    def failures(self, wanted: Iterable[Wanted]) -> list[Mapping[str, Any]]:
        """The errors of those that could not be made."""
        rows = (self._rows.get(one, {}) for one in wanted)
        return [row["error"] for row in rows if "error" in row]


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(row) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate of a response has no UTF-8
        mended = {
            name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            for name, value in row.items()
        }
        return msgspec.json.encode(mended) + b"\n"


def _cut_torn(path: Path) -> None:
    """End the file at its last whole line, so that appending starts on a line."""
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
