"""Rubrics read: the shapes in which the field writes them, recognised by their keys, and files.

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

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from adjudge.config import suggest_name, unknown_key
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.rubrics.rubric import (
    MAX_CRITERIA,
    SCHEMES,
    Category,
    Criterion,
    GlobalRubric,
    Rubric,
    RubricBundle,
    check_text,
    describe_type,
)

_T = TypeVar("_T")

_AGGREGATIONS = {"weighted_sum": "weights"}
_PREFIX = re.compile(r"\s{0,9}(Essential|Important|Optional|Pitfall) Criteria ?: ?", re.IGNORECASE)
_MAX_TAGS = 50
_MAX_TAG = 500


def _with_location(where: str, make: Callable[[], _T]) -> _T:
    """What ``make`` gives, its complaint opened by ``where``."""
    try:
        return make()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _read_table(data: Any, where: str) -> dict[str, Any]:
    """A mapping without its nulls."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: must be a table or a list (found {describe_type(data)})")
    return {str(key): value for key, value in data.items() if value is not None}


def _read_text(value: Any, key: str, where: str) -> str:
    """A text; absent, it is empty."""
    if value is None:
        return ""
    check_text(value, f"{where}: {key}")
    return str(value)


def _stringify(value: Any) -> Any:
    """Versions, ids and keys that YAML or JSON made numbers of, as text; all else as it is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number and abs(value) < 1e15 else value


def _read_flag(found: Mapping[str, Any], key: str, where: str) -> bool:
    """True or false; absent, it is false."""
    value = found.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {key}: must be true or false (found {describe_type(value)})")
    return value


def _read_either(found: Mapping[str, Any], first: str, second: str, where: str) -> Any:
    """The value of one of two keys that mean the same."""
    if first in found and second in found:
        raise ConfigError(f"{where}: {first} and {second} mean the same. Keep one of them.")
    return found.get(first, found.get(second))


def _read_scheme(found: Mapping[str, Any], where: str) -> Any:
    """``scheme``, or an ``aggregation`` by another name."""
    if "aggregation" not in found:
        return found.get("scheme", "auto")
    aggregation = _read_either(found, "scheme", "aggregation", where)
    if not isinstance(aggregation, str) or aggregation not in _AGGREGATIONS:
        raise ConfigError(
            f"{where}: aggregation: has no known formula (allowed: {', '.join(_AGGREGATIONS)}). "
            f"Use scheme with one of {', '.join(SCHEMES)}."
        )
    return _AGGREGATIONS[aggregation]


def _read_category(found: Mapping[str, Any], text: str, where: str) -> tuple[Category | None, str]:
    """The category, and the text without it: from the key, a prefix as RaR has it, ``required``."""
    if "category" in found:
        return _with_location(where, lambda: Category.named(found["category"])), text
    if (prefix := _PREFIX.match(text)) is not None:
        return Category.named(prefix[1]), text[prefix.end() :]
    return (Category.ESSENTIAL if _read_flag(found, "required", where) else None), text


def _read_tags(given: Any, where: str) -> dict[str, str]:
    """Tags from a table or from ``["axis:accuracy", …]``; a repeated key joins its values."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        pairs = [(str(key), value) for key, value in given.items() if value is not None]
    elif isinstance(given, list | tuple) and all(isinstance(one, str) for one in given):
        pairs = [(one.partition(":")[0], one.partition(":")[2]) for one in given]
    else:
        raise ConfigError(f"{where}: tags: must be a table, or a list such as ['axis:accuracy']")
    if len(pairs) > _MAX_TAGS:
        raise ConfigError(
            f"{where}: tags: are too many (found {len(pairs):,}; allowed: up to {_MAX_TAGS})"
        )
    tags: dict[str, str] = {}
    for key, value in pairs:
        check_text(key, f"{where}: tags", limit=_MAX_TAG)
        text = _tag_text(value, where)
        tags[key] = f"{tags[key]}, {text}" if key in tags else text
    return tags


def _tag_text(value: Any, where: str) -> str:
    """A tag's value: text as it is, anything else as JSON."""
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(f"{where}: tags: a value cannot be written as JSON") from None
    check_text(text, f"{where}: tags", limit=_MAX_TAG)
    return text


AnyRubric = Rubric | GlobalRubric | RubricBundle

_LISTS = ("criteria", "rubrics", "rubric", "checklist")
_NAMES = ("id", "version", "description", "goal_text", "examples")
_RUBRIC = (*_LISTS, *_NAMES, "scheme", "aggregation", "clip", "veto_score")
_GLOBAL = (*_LISTS, *_NAMES, "scoring_guide")
_PARTS = ("global_rubric", "outcome", "events", "event")
_TEXTS = ("criterion", "text", "description")
_CRITERION = (
    *_TEXTS, "id", "title", "points", "weight", "category", "required", "veto", "na_allowed",
    "scale", "tags",
)  # fmt: skip
_MAX_COLUMN = 4_000_000


def parse_rubric(data: Any, *, where: str = "rubric", strict: bool = True) -> AnyRubric:
    """Data of any of the shapes above as the rubric that it is.

    ``where`` opens every complaint. ``strict``: a key that no shape has is an error; otherwise it
    is passed over, because data sets carry columns of their own. ``null`` is the same as absent.
    Raises :class:`ConfigError` that names the key, what was found and what is allowed.

    >>> parse_rubric([{"criterion": "Names a dose", "points": 5}]).criteria[0].worth
    5.0
    """
    return _Parser(strict).parse(data, where)


def rubric_from(value: Any, *, where: str = "rubric") -> Rubric:
    """The rubric in a sample's own column: hostile data, so limits hold and nothing is assumed.

    ``value`` is a list of criteria or a rubric with settings, or either as JSON text; at most 200
    criteria of at most 4,000 characters. Raises ``GradingFailure(invalid_input)``.

    >>> len(rubric_from(["Names a dose", "Says when to call a doctor"]).criteria)
    2
    """
    try:
        rubric = parse_rubric(_decoded(value, where), where=where, strict=False)
    except ConfigError as error:
        raise GradingFailure(ErrorKind.INVALID_INPUT, str(error)) from None
    if isinstance(rubric, Rubric):
        return rubric
    raise GradingFailure(
        ErrorKind.INVALID_INPUT,
        f"{where}: a sample's own rubric is a list of criteria, not a bundle or a scoring guide",
    )


def _decoded(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    if len(value) > _MAX_COLUMN:
        raise ConfigError(
            f"{where}: is too long (found {len(value):,} characters; "
            f"allowed: up to {_MAX_COLUMN:,})"
        )
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{where}: must be a list of criteria or its JSON "
            f"(found a text of {len(value):,} characters that is not JSON)"
        ) from None


class _Parser:
    """Reads shapes; ``strict`` says what an unknown key is."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def parse(self, data: Any, where: str) -> AnyRubric:
        if isinstance(data, list | tuple):
            return self._rubric({"criteria": data}, where)
        found = _read_table(data, where)
        if any(key in found for key in _PARTS):
            return self._bundle(found, where)
        return self._part(found, where)

    def _bundle(self, found: dict[str, Any], where: str) -> RubricBundle:
        # Some files name the whole bundle; each rubric has its own id, which is the one kept.
        self._check(found, (*_PARTS, "id", "version", "description"), where)
        events = _read_either(found, "events", "event", where)
        given = found.get("global_rubric")
        inside = f"{where}: global_rubric"
        return RubricBundle(
            None if given is None else self._global(_read_table(given, inside), inside),
            self._optional(found.get("outcome"), f"{where}: outcome"),
            self._optional(events, f"{where}: events"),
        )

    def _optional(self, data: Any, where: str) -> Rubric | GlobalRubric | None:
        if isinstance(data, list | tuple):
            return self._rubric({"criteria": data}, where)
        return None if data is None else self._part(_read_table(data, where), where)

    def _part(self, found: dict[str, Any], where: str) -> Rubric | GlobalRubric:
        if "scoring_guide" in found:
            return self._global(found, where)
        return self._rubric(found, where)

    def _global(self, found: dict[str, Any], where: str) -> GlobalRubric:
        self._check(found, _GLOBAL, where)
        criteria = _list_in(found, where)
        if any(isinstance(one, Mapping) for one in criteria):
            raise ConfigError(
                f"{where}: with a scoring guide all criteria share one score, so they must be "
                "plain texts. Leave the guide out to have each of them judged."
            )
        guide = found.get("scoring_guide", {})
        if isinstance(guide, Mapping):
            guide = {_stringify(key): text for key, text in guide.items()}
        names = _names(found, where)
        return _with_location(
            where, lambda: GlobalRubric(criteria=criteria, scoring_guide=guide, **names)
        )

    def _rubric(self, found: dict[str, Any], where: str) -> Rubric:
        self._check(found, _RUBRIC, where)
        given = _list_in(found, where)
        criteria = tuple(
            self._criterion(one, f"{where}: criterion {place}")
            for place, one in enumerate(given, start=1)
        )
        settings: dict[str, Any] = {
            **_names(found, where),
            "scheme": _read_scheme(found, where),
            "clip": _read_flag(found, "clip", where),
        }
        if "veto_score" in found:
            settings["veto_score"] = found["veto_score"]
        return _with_location(where, lambda: Rubric(criteria, **settings))

    def _criterion(self, data: Any, where: str) -> Criterion:
        found = {"criterion": data} if isinstance(data, str) else _read_table(data, where)
        name = _stringify(found.get("id", ""))
        if isinstance(name, str) and 1 <= len(name) <= 64:
            where = f"{where} ({name!r})"
        self._check(found, _CRITERION, where)
        texts = [key for key in _TEXTS if key in found]
        if len(texts) != 1:
            listed = " and ".join(texts) or "none"
            raise ConfigError(f"{where}: needs one of {', '.join(_TEXTS)} (found: {listed})")
        category, text = _read_category(found, _read_text(found[texts[0]], texts[0], where), where)
        scale: Any = found.get("scale", "binary")
        tags = _read_tags(found.get("tags"), where)
        if "title" in found:
            tags.setdefault("title", _read_text(found["title"], "title", where))
        return _with_location(
            where,
            lambda: Criterion(
                text,
                name,
                _read_either(found, "points", "weight", where),
                category,
                veto=_read_flag(found, "veto", where),
                na_allowed=_read_flag(found, "na_allowed", where),
                scale=scale,
                tags=tags,
            ),
        )

    def _check(self, found: dict[str, Any], allowed: tuple[str, ...], where: str) -> None:
        for key in found if self._strict else ():
            if key not in allowed:
                raise ConfigError(f"{where}: {key[:40]!r}: {unknown_key(key[:40], allowed)}")


def _list_in(found: dict[str, Any], where: str) -> tuple[Any, ...]:
    keys = [key for key in _LISTS if key in found]
    if len(keys) != 1:
        listed = " and ".join(keys) or "none"
        raise ConfigError(
            f"{where}: needs one list of criteria in the key criteria (found: {listed})"
        )
    criteria = found[keys[0]]
    if not isinstance(criteria, list | tuple):
        raise ConfigError(f"{where}: {keys[0]}: must be a list (found {describe_type(criteria)})")
    if len(criteria) > MAX_CRITERIA:
        raise ConfigError(
            f"{where}: has too many criteria (found {len(criteria):,}; "
            f"allowed: up to {MAX_CRITERIA})"
        )
    return tuple(criteria)


def _names(found: dict[str, Any], where: str) -> dict[str, Any]:
    return {
        "examples": found.get("examples", ()),
        "id": _read_text(_stringify(found.get("id")), "id", where),
        "version": _read_text(_stringify(found.get("version")), "version", where),
        "description": _read_text(
            _read_either(found, "description", "goal_text", where), "description", where
        ),
    }


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
    found = [p for suffix in RUBRIC_SUFFIXES if (p := folder / f"{rubric_id}{suffix}").is_file()]
    if len(found) != 1:
        names = ", ".join(p.name for p in found)
        raise ConfigError(
            f"rubric_id {rubric_id!r}: has more than one file (found: {names}). Keep one of them."
            if found
            else f"rubric_id {rubric_id!r}: no such file in {folder}{_known(rubric_id, folder)}"
        )
    if not found[0].resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"rubric_id {rubric_id!r}: {found[0]} is a link out of {folder}")
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


def _data(path: Path) -> Any:
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ConfigError(f"{path}: is not a rubric file (allowed: {', '.join(_READERS)})")
    try:
        if path.stat().st_size > _MAX_BYTES:
            limit = f"up to {_MAX_BYTES >> 20} MB"
            raise ConfigError(f"{path}: is too large (allowed: {limit})")  # noqa: TRY301
        return read(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error.reason}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read as {path.suffix[1:]}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ConfigError(f"{key[:40]!r}: is twice in one table. Keep one of them.")
        table[key] = value
    return table


_READERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": _json}
RUBRIC_SUFFIXES = tuple(_READERS)
"""Of rubric files."""
