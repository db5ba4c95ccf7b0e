"""The folder of a study: claimed for one file, and for what that file still means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import adjudge
from adjudge.errors import RunFolderError
from adjudge.judge_training.chain.folder import summary_of
from adjudge.runs.lock import locked
from adjudge.runs.whole import write_json, write_whole
from adjudge.studies.matrix.manifest import check_manifest
from adjudge.training.served import toml_text

__all__ = ["StudyFolder"]

_MANIFEST = "manifest.json"
_OF_OTHERS = ("config.toml", "metrics.jsonl", "judge.json", "summary.json")


class StudyFolder:
    """``path``, claimed for the study of ``source`` that ``manifest`` describes, or taken up again.

    Locked until it is closed. ``warnings``: what is worth saying where a study is gone on with.
    Raises :class:`~adjudge.errors.RunFolderError` for the folder of something else, or of a study
    whose arms meant something else.
    """

    def __init__(self, path: Path, source: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.warnings: list[str] = []
        path.mkdir(parents=True, exist_ok=True)
        self._lock = locked(path)
        try:
            self._claim(source, manifest)
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def write_toml(self, name: str, data: Mapping[str, Any]) -> Path:
        """Plain tables as a file below the folder; its path."""
        return write_whole(self.path / name, toml_text(dict(data)).encode())

    def write_json(self, name: str, value: Any) -> Path:
        """A file of its own, in one piece."""
        return write_json(self.path / name, value)

    def _claim(self, source: Path, manifest: Mapping[str, Any]) -> None:
        known = summary_of(self.path / _MANIFEST)
        if known is None:
            if taken := [name for name in _OF_OTHERS if (self.path / name).exists()]:
                raise RunFolderError(
                    f"{self.path}: holds {taken[0]} of something else; give another output folder "
                    "with -o"
                )
            created = datetime.now(UTC).isoformat(timespec="seconds")
        else:
            self.warnings = check_manifest(known, manifest)
            created = str(known.get("created"))
        self._created = created
        write_whole(self.path / "study.toml", source.read_bytes())
        self.describe(manifest)

    def describe(self, manifest: Mapping[str, Any]) -> None:
        """Write ``manifest``, of what is there by now."""
        told = {"adjudge": adjudge.__version__, "created": self._created, **manifest}
        self.write_json(_MANIFEST, told)
