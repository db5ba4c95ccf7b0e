"""Single fields of rubric data: each as what it must be, or a complaint that names the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from adjudge.errors import ConfigError
from adjudge.rubrics.criterion import Category, check_text, kind_of, nearest_to
from adjudge.rubrics.rubric import SCHEMES

__all__ = [
    "category_of",
    "check_keys",
    "either",
    "flag",
    "made",
    "scheme_of",
    "table",
    "tags_of",
    "text_of",
    "written",
]

T = TypeVar("T")

_AGGREGATIONS = {"weighted_sum": "weights"}
_PREFIX = re.compile(r"\s{0,9}(Essential|Important|Optional|Pitfall) Criteria ?: ?", re.IGNORECASE)
_MAX_TAGS = 50
_MAX_TAG = 500


def made(where: str, make: Callable[[], T]) -> T:
    """What ``make`` gives, its complaint opened by ``where``."""
    try:
        return make()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def table(data: Any, where: str) -> dict[str, Any]:
    """A mapping without its nulls."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: must be a table or a list, not {kind_of(data)}")
    return {str(key): value for key, value in data.items() if value is not None}


def check_keys(found: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    """Refuse keys that are not ``allowed``."""
    for key in found:
        if key not in allowed:
            raise ConfigError(
                f"{where}: {key[:40]!r}: unknown key{nearest_to(key, allowed)} "
                f"(allowed: {', '.join(allowed)})"
            )


def text_of(value: Any, key: str, where: str) -> str:
    """A text; absent, it is empty."""
    if value is None:
        return ""
    check_text(value, f"{where}: {key}")
    return str(value)


def written(value: Any) -> Any:
    """Versions, ids and keys that YAML or JSON made numbers of, as text; all else as it is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number and abs(value) < 1e15 else value


def flag(found: Mapping[str, Any], key: str, where: str) -> bool:
    """True or false; absent, it is false."""
    value = found.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {key}: must be true or false, not {kind_of(value)}")
    return value


def either(found: Mapping[str, Any], first: str, second: str, where: str) -> Any:
    """The value of one of two keys that mean the same."""
    if first in found and second in found:
        raise ConfigError(f"{where}: has {first} and {second}, which mean the same; keep one")
    return found.get(first, found.get(second))


def scheme_of(found: Mapping[str, Any], where: str) -> Any:
    """``scheme``, or an ``aggregation`` by another name."""
    if "aggregation" not in found:
        return found.get("scheme", "auto")
    aggregation = either(found, "scheme", "aggregation", where)
    if not isinstance(aggregation, str) or aggregation not in _AGGREGATIONS:
        raise ConfigError(
            f"{where}: aggregation: only {', '.join(_AGGREGATIONS)} has a formula here; "
            f"use scheme, one of {', '.join(SCHEMES)}"
        )
    return _AGGREGATIONS[aggregation]


def category_of(found: Mapping[str, Any], text: str, where: str) -> tuple[Category | None, str]:
    """The category, and the text without it: from the key, a prefix as RaR has it, ``required``."""
    if "category" in found:
        return made(where, lambda: Category.named(found["category"])), text
    if (prefix := _PREFIX.match(text)) is not None:
        return Category.named(prefix[1]), text[prefix.end() :]
    return (Category.ESSENTIAL if flag(found, "required", where) else None), text


def tags_of(given: Any, where: str) -> dict[str, str]:
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
        raise ConfigError(f"{where}: tags: there are {len(pairs):,}, at most {_MAX_TAGS} go")
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
        raise ConfigError(f"{where}: tags: one cannot be written as JSON") from None
    check_text(text, f"{where}: tags", limit=_MAX_TAG)
    return text
