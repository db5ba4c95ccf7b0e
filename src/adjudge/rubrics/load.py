"""Rubric files: JSON, one row of JSONL, YAML, TOML; and rubrics by id, ``crafter/bundle@v1``."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.rubrics.bundle import GlobalRubric, RubricBundle
from adjudge.rubrics.criterion import check_text
from adjudge.rubrics.parse import AnyRubric, parse_rubric
from adjudge.rubrics.yaml_text import read_yaml

__all__ = ["SUFFIXES", "find_bundle", "load_bundle", "load_rubric"]

_MAX_BYTES = 2 << 20
_MAX_LISTED = 1_000
_ID = re.compile(r"[\w.-]{1,100}(?:/[\w.-]{1,100}){0,9}")


def load_rubric(path: Path | str, *, row: int | None = None) -> AnyRubric:
    """The rubric in a file; what shape it has is seen from its keys (:mod:`adjudge.rubrics.parse`).

    ``row``: which line of a ``.jsonl`` file that has several, from 1. YAML is read without tags,
    anchors and aliases; ``${NAME}`` stays as it is, since a rubric may speak of such things.
    Raises :class:`ConfigError` that names the file, the key, what was found and what is allowed.
    """
    path = Path(path)
    data = _data(path, row)
    return parse_rubric(data, where=str(path) if row is None else f"{path}:{row}")


def load_bundle(path: Path | str) -> RubricBundle:
    """The file's rubric as a bundle: a guide becomes ``global_rubric``, criteria ``outcome``.

    Raises :class:`ConfigError` as :func:`load_rubric` does.
    """
    rubric = load_rubric(path)
    if isinstance(rubric, RubricBundle):
        return rubric
    if isinstance(rubric, GlobalRubric):
        return RubricBundle(global_rubric=rubric)
    return RubricBundle(outcome=rubric)


def find_bundle(rubric_id: str, rubric_dir: Path | str) -> RubricBundle:
    """``crafter/bundle@v1`` is ``RUBRIC_DIR/crafter/bundle@v1.toml`` (or json, yaml, yml).

    The version after ``@`` is required: a rubric that changes without a new name makes rewards
    incomparable. An id inside the file must agree. Raises :class:`ConfigError`, with the nearest
    id that exists, also for an id or a link that leads out of the folder.
    """
    folder = Path(rubric_dir)
    check_text(rubric_id, "rubric_id", limit=1_000)
    name, at, version = rubric_id.rpartition("@")
    parts = name.split("/")
    if not (at and version and _ID.fullmatch(name) and re.fullmatch(r"[\w.-]{1,40}", version)):
        raise ConfigError(
            f"rubric_id {rubric_id[:100]!r}: must be NAME@VERSION such as crafter/bundle@v1"
            + _known(rubric_id, folder)
        )
    if any(part.strip(".") == "" for part in parts):
        raise ConfigError(f"rubric_id {rubric_id!r}: must stay inside {folder}")
    found = [p for suffix in SUFFIXES if (p := folder / f"{rubric_id}{suffix}").is_file()]
    if len(found) != 1:
        problem = "has more than one file: " + ", ".join(p.name for p in found)
        raise ConfigError(
            f"rubric_id {rubric_id!r}: "
            + (problem if found else f"no such file in {folder}{_known(rubric_id, folder)}")
        )
    if not found[0].resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"rubric_id {rubric_id!r}: {found[0]} leads out of {folder}")
    bundle = load_bundle(found[0])
    _check_id(bundle, rubric_id, found[0])
    return bundle


def _check_id(bundle: RubricBundle, rubric_id: str, path: Path) -> None:
    """Refuse a file that names itself otherwise; parts of a bundle may have names of their own."""
    rubric = bundle.global_rubric or (bundle.outcome if bundle.events is None else None)
    if rubric is None or not rubric.id or not (rubric.version or "@" in rubric.id):
        return
    named = rubric.id if "@" in rubric.id else f"{rubric.id}@{rubric.version}"
    if named != rubric_id:
        raise ConfigError(f"{path}: id: is {named[:100]!r} inside, {rubric_id!r} by its name")


def _known(rubric_id: str, folder: Path) -> str:
    """The nearest id in the folder, or the first few."""
    files = (p for p in folder.rglob("*@*") if p.suffix in SUFFIXES) if folder.is_dir() else ()
    ids = sorted(
        p.relative_to(folder).with_suffix("").as_posix() for p in islice(files, _MAX_LISTED)
    )
    if not ids:
        return f"; {folder} has no rubric (NAME@VERSION{' or '.join(SUFFIXES)})"
    return nearest(rubric_id[:100], ids) or f"; there are: {', '.join(ids[:10])}"


def _data(path: Path, row: int | None) -> Any:
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ConfigError(f"{path}: rubrics are read from {', '.join(_READERS)} files")
    try:
        if path.stat().st_size > _MAX_BYTES and path.suffix.lower() != ".jsonl":
            raise ConfigError(f"{path}: is larger than {_MAX_BYTES >> 20} MB")
        text = _line(path, row) if path.suffix.lower() == ".jsonl" else path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error.reason}") from error
    try:
        return read(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read as {path.suffix[1:]}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None


def _line(path: Path, row: int | None) -> str:
    with path.open(encoding="utf-8-sig") as file:
        numbered = ((n, line) for n, line in enumerate(file, start=1) if line.strip())
        if row is not None:
            found = next((line for n, line in numbered if n == row), None)
            if found is None:
                raise ConfigError(f"{path}: has no row {row}")
            return found
        lines = list(islice(numbered, 2))
    if len(lines) != 1:
        has = "several rows" if lines else "no row"
        raise ConfigError(f"{path}: has {has}; a rubric is one (row says which, from 1)")
    return lines[0][1]


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ConfigError(f"{key[:40]!r}: stands twice in one table; the last would win")
        table[key] = value
    return table


_READERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".json": _json,
    ".jsonl": _json,
    ".yaml": read_yaml,
    ".yml": read_yaml,
}
SUFFIXES = (".toml", ".json", ".yaml", ".yml")
"""Of rubric files that have an id."""
