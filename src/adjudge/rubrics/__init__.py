"""Rubrics as data: criteria with signed points or weights; reading and scoring them.

Read are the shapes in which the field writes them, recognised by their keys, and files:

========================================================  ========================================
``[{"criterion", "points", "tags"}, …]``                  HealthBench: signed points
``[{"title", "description", "weight"}, …]``               Rubrics as Rewards: "Pitfall Criteria: …"
``["a sentence", …]``                                     a checklist, every weight 1
``{"criteria": […], "id", "version", "goal_text", …}``    a rubric with a name and settings
``{"criteria": ["…"], "scoring_guide": {"0.9-1.0": …}}``  one score with a scoring guide
``{"global_rubric": …, "outcome": …, "events": …}``       a bundle
========================================================  ========================================

Each field is what it must be, or a complaint names its key. Files are TOML or JSON; rubrics also go
by id, ``crafter/bundle@v1``. Of a key that is twice in a table nothing is kept: that is refused.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from adjudge.config import suggest_name, unknown_key
from adjudge.errors import ConfigError, InvalidInput, Metadata
from adjudge.rubrics.rubric import (
    MAX_CRITERIA,
    Category,
    Criterion,
    Example,
    GlobalRubric,
    Mark,
    Rubric,
    RubricBundle,
    Scheme,
    rubric_digest,
)
from adjudge.rubrics.scoring import (
    Incomplete,
    NotEvaluable,
    RubricScore,
    score,
    score_range,
    subscores,
)

__all__ = [
    "RUBRIC_SUFFIXES",
    "AnyRubric",
    "Category",
    "Criterion",
    "GlobalRubric",
    "Incomplete",
    "Mark",
    "NotEvaluable",
    "Rubric",
    "RubricBundle",
    "RubricScore",
    "Scheme",
    "find_bundle",
    "load_bundle",
    "load_rubric",
    "parse_rubric",
    "rubric_digest",
    "rubric_from",
    "score",
    "score_range",
    "subscores",
]

_T = TypeVar("_T")

_AGGREGATIONS = {"weighted_sum": "weights"}
_PREFIX = re.compile(r"\s{0,9}(Essential|Important|Optional|Pitfall) Criteria ?: ?", re.IGNORECASE)

AnyRubric = Rubric | GlobalRubric | RubricBundle

_RUBRIC = {
    "criteria": ("criteria", "rubrics", "rubric", "checklist"),
    "id": ("id",),
    "version": ("version",),
    "description": ("description", "goal_text"),
    "examples": ("examples",),
}
"""By field, the keys that it goes by; the first list has those of what every rubric has."""
_KEYS: dict[type, dict[str, tuple[str, ...]]] = {
    Rubric: {**_RUBRIC, "scheme": ("scheme", "aggregation")},
    GlobalRubric: _RUBRIC,
    # Some files name the whole bundle; each rubric has its own id, which is the one kept.
    RubricBundle: {"events": ("events", "event")},
    Criterion: {"text": ("criterion", "text", "description"), "points": ("points", "weight")},
    Example: {"text": ("text", "response", "trajectory")},
}
_OTHER_KEYS: dict[type, tuple[str, ...]] = {
    RubricBundle: ("id", "version", "description"),
    Criterion: ("title", "required"),
}
_PARTS = ("global_rubric", "outcome", "events", "event")
_MAX_COLUMN = 4_000_000


def parse_rubric(data: object, *, where: str = "rubric", strict: bool = True) -> AnyRubric:
    """Data of any of the shapes above as the rubric that it is.

    ``where`` opens every complaint. ``strict``: a key that no shape has is an error; otherwise it
    is passed over, because data sets carry columns of their own. ``null`` is the same as absent.
    Raises :class:`ConfigError` that names the key, what was found and what is allowed.

    >>> parse_rubric([{"criterion": "Names a dose", "points": 5}]).criteria[0].worth
    5.0
    """
    return _Parser(strict).parse(data, where)


def rubric_from(value: object, *, where: str = "rubric") -> Rubric:
    """The rubric in a sample's own column: hostile data, so limits hold and nothing is assumed.

    ``value`` is a list of criteria or a rubric with settings, or either as JSON text; at most 200
    criteria of at most 4,000 characters. Raises ``GradingFailure(invalid_input)``.

    >>> len(rubric_from(["Names a dose", "Says when to call a doctor"]).criteria)
    2
    """
    try:
        rubric = parse_rubric(_decoded(value, where), where=where, strict=False)
    except ConfigError as error:
        raise InvalidInput(str(error)) from None
    if isinstance(rubric, Rubric):
        return rubric
    raise InvalidInput(f"{where}: a sample's own rubric is a list of criteria, no bundle or guide")


def _decoded(value: object, where: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        if len(value) <= _MAX_COLUMN:
            return msgspec.json.decode(value)
    except (ValueError, RecursionError):
        pass
    raise ConfigError(
        f"{where}: must be a list of criteria or its JSON (found a text of {len(value):,} "
        f"characters; allowed: JSON of up to {_MAX_COLUMN:,})"
    )


class _Parser:
    """Reads shapes; ``strict`` says what an unknown key is."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def parse(self, data: object, where: str) -> AnyRubric:
        if isinstance(data, Mapping) and any(data.get(key) is not None for key in _PARTS):
            found = self._fields(RubricBundle, data, where)
            for part in ("global_rubric", "outcome", "events"):
                if part in found:
                    given, inside = found[part], f"{where}: {part}"
                    kind = GlobalRubric if part == "global_rubric" else None
                    found[part] = self._part(given, inside, kind)
            return _make(RubricBundle, found, where)
        return self._part(data, where)

    def _part(
        self, data: object, where: str, kind: type[Rubric | GlobalRubric] | None = None
    ) -> Rubric | GlobalRubric:
        if isinstance(data, list | tuple):
            data = {"criteria": data}
        if kind is None:
            has_guide = isinstance(data, Mapping) and data.get("scoring_guide") is not None
            kind = GlobalRubric if has_guide else Rubric
        found = self._fields(kind, data, where)
        self._read_each(found, "examples", self._example, where)
        for key in ("id", "version"):
            if key in found:
                found[key] = _stringify(found[key])
        if kind is Rubric:
            self._read_each(found, "criteria", self._criterion, where)
            if isinstance(scheme := found.get("scheme"), str):
                found["scheme"] = _AGGREGATIONS.get(scheme, scheme)
        elif isinstance(guide := found.get("scoring_guide"), Mapping):
            found["scoring_guide"] = {_stringify(key): text for key, text in guide.items()}
        return _make(kind, found, where)

    def _read_each(
        self, found: Metadata, key: str, read: Callable[[object, str, int], object], where: str
    ) -> None:
        """Read the tables of a list; one that is no list, or too long, is refused as a whole."""
        given = found.get(key)
        if isinstance(given, list | tuple) and len(given) <= MAX_CRITERIA:
            found[key] = [
                one if isinstance(one, str) else read(one, f"{where}: {key}.{place}", place)
                for place, one in enumerate(given, start=1)
            ]

    def _example(self, data: object, where: str, _place: int) -> Example:
        return _make(Example, self._fields(Example, data, where), where)

    def _criterion(self, data: object, where: str, place: int) -> Criterion:
        found = self._fields(Criterion, data, where)
        title, required = found.pop("title", None), found.pop("required", False)
        if not isinstance(required, bool):
            raise ConfigError(f"{where}: required: must be true or false (found {required!r:.80})")
        name = _stringify(found.get("id", ""))
        found["id"] = str(place) if name == "" else name
        text = found.get("text")
        if "category" not in found and isinstance(text, str) and (prefix := _PREFIX.match(text)):
            found |= {"category": prefix[1], "text": text[prefix.end() :]}
        if title is not None:
            tags = found.get("tags", {})
            is_list = isinstance(tags, list | tuple)
            found["tags"] = [*tags, f"title:{title}"] if is_list else {"title": title, **tags}
        if required:
            found.setdefault("category", Category.ESSENTIAL)
        return _make(Criterion, found, where)

    def _fields(self, kind: type, data: object, where: str) -> Metadata:
        """A table's values by field, without nulls."""
        if not isinstance(data, Mapping):
            other = "sentence" if kind in (Criterion, Example) else "list"
            raise ConfigError(f"{where}: must be a table or a {other} (found {data!r:.80})")
        fields = _list_keys(kind)
        found: dict[str, tuple[str, object]] = {}
        for key, value in data.items():
            if key not in fields:
                if self._strict and value is not None:
                    short = str(key)[:40]
                    raise ConfigError(f"{where}: {short}: {unknown_key(short, list(fields))}")
            elif value is not None:
                other, _ = found.setdefault(fields[key], (key, value))
                if other != key:
                    raise ConfigError(f"{where}: {key}: means the same as {other}. Keep one.")
        return {name: value for name, (_, value) in found.items()}


@cache
def _list_keys(kind: type) -> dict[str, str]:
    """Every key of a table, and the field that it sets."""
    names = {one.name: (one.name,) for one in dataclasses.fields(kind)} | _KEYS[kind]
    fields = {key: name for name, keys in names.items() for key in keys}
    return fields | {key: key for key in _OTHER_KEYS.get(kind, ())}


def _make(kind: type[_T], found: Metadata, where: str) -> _T:
    """What ``kind`` makes of its fields, its complaint opened by ``where``."""
    try:
        return kind(**found)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _stringify(value: object) -> object:
    """Versions, ids and keys that JSON made numbers of, as text; all else as it is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return str(value) if is_number else value


_MAX_BYTES = 2 << 20
_MAX_LISTED = 1_000
_ID = re.compile(r"[\w.-]{1,100}(?:/[\w.-]{1,100}){0,9}")


def load_rubric(path: Path | str) -> AnyRubric:
    """The rubric in a TOML or JSON file; its keys tell what shape it has (top of this module).

    ``${NAME}`` stays as it is, since a rubric may speak of such things. Raises
    :class:`ConfigError` that names the file, the key, what was found and what is allowed.
    """
    return parse_rubric(_data(Path(path)), where=str(path))


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
    """``crafter/bundle@v1`` is ``RUBRIC_DIR/crafter/bundle@v1.toml`` (or json).

    The version after ``@`` is required: a rubric that changes without a new name makes rewards
    incomparable. An id inside the file must agree. Raises :class:`ConfigError`, with the nearest
    id that exists, also for an id or a link that leads out of the folder.
    """
    folder = Path(rubric_dir)
    name, at, version = rubric_id.rpartition("@")
    if not (at and _ID.fullmatch(name) and _ID.fullmatch(version)):
        problem = "must be NAME@VERSION such as crafter/bundle@v1"
        raise ConfigError(f"rubric_id: {rubric_id[:100]!r} {problem}{_known(rubric_id, folder)}")
    files = [folder / f"{rubric_id}{suffix}" for suffix in RUBRIC_SUFFIXES]
    found = [file for file in files if file.resolve().is_relative_to(folder.resolve())]
    found = [file for file in found if file.is_file()]
    if len(found) != 1:
        problem = f"must be one file in {folder}, and no way out of it (found {len(found)})"
        raise ConfigError(f"rubric_id: {rubric_id[:100]!r} {problem}{_known(rubric_id, folder)}")
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
        raise ConfigError(
            f"{path}: id: must be that of the file name (found {named[:100]!r}; "
            f"allowed: {rubric_id!r})"
        )


def _known(rubric_id: str, folder: Path) -> str:
    """The nearest id in the folder, or the first few."""
    files = (
        (p for p in folder.rglob("*@*") if p.suffix in RUBRIC_SUFFIXES) if folder.is_dir() else ()
    )
    ids = sorted(
        p.relative_to(folder).with_suffix("").as_posix() for p in islice(files, _MAX_LISTED)
    )
    if not ids:
        return f"; {folder} has no rubric (NAME@VERSION{' or '.join(RUBRIC_SUFFIXES)})"
    return suggest_name(rubric_id[:100], ids) or f" (allowed: {', '.join(ids[:10])})"


def _data(path: Path) -> object:
    try:
        read = _READERS.get(path.suffix.lower())
        if read is None:
            problem = f"is not a rubric file (allowed: {', '.join(_READERS)})"
        elif path.stat().st_size > _MAX_BYTES:
            problem = f"is too large (allowed: up to {_MAX_BYTES >> 20} MB)"
        else:
            return read(path.read_text("utf-8-sig"))
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text: {error.reason}"
    except (ValueError, RecursionError) as error:
        problem = f"cannot be read as {path.suffix[1:]}: {error}"
    raise ConfigError(f"{path}: {problem}")


def _json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, object]]) -> Metadata:
    table: Metadata = {}
    for key, value in pairs:
        if key in table:
            raise ConfigError(f"{key[:40]!r}: is twice in one table. Keep one of them.")
        table[key] = value
    return table


_READERS: dict[str, Callable[[str], object]] = {".toml": tomllib.loads, ".json": _json}
RUBRIC_SUFFIXES = tuple(_READERS)
"""Of rubric files."""
