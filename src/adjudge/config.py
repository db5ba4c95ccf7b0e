"""Reading the TOML that users write, with errors that say what to do.

Every complaint names the file, the key, what was found, what is allowed and the nearest key.
``${NAME}`` in a string is replaced by that environment variable; a missing one is an error.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from adjudge.errors import ConfigError, Fields, Metadata

_NameT = TypeVar("_NameT", bound=str)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class InterpolatedText(str):
    """Text with environment variables filled in; ``written`` is what the file says instead.

    What is derived from a file is written with ``${NAME}`` again: the value may be a secret.
    """

    __slots__ = ("written",)
    written: str

    @classmethod
    def of(cls, text: str, written: str) -> InterpolatedText:
        """``text``, which stands as ``written`` in its file."""
        found = cls(text)
        found.written = written
        return found


def load_toml(path: Path | str, *, keep_references: bool = False) -> Metadata:
    """The parsed file with environment variables filled in; raises :class:`ConfigError`.

    ``keep_references``: texts that had one are :class:`InterpolatedText`, for files made from this
    one.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None  # it may be secret
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error.reason}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    return {
        key: interpolate(value, str(path), key, keep_references=keep_references)
        for key, value in data.items()
    }


def interpolate(value: object, file: str, key: str, *, keep_references: bool = False) -> object:
    """``value`` with every ``${NAME}`` in its strings filled in; a complaint names file and key."""

    def fill(inner: object, name: object) -> object:
        return interpolate(inner, file, f"{key}.{name}", keep_references=keep_references)

    if isinstance(value, dict):
        return {name: fill(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, place) for place, inner in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigError(f"{file}: {key}: environment variable {match[1]!r} is not set")
        return found

    filled_in = _VARIABLE.sub(variable, value)
    return (
        InterpolatedText.of(filled_in, value)
        if keep_references and filled_in != value
        else filled_in
    )


def suggest_name(name: str, allowed: Iterable[str]) -> str:
    """A hint ``; did you mean 'x'?`` for a misspelt ``name``, or nothing."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_allowed(
    key: str, found: object, allowed: Collection[_NameT], problem: str = "is unknown"
) -> _NameT:
    """``found``, which must be one of ``allowed``; raises :class:`ConfigError` about ``key``."""
    for one in allowed:
        if one == found:
            return one
    hint = suggest_name(str(found)[:80], allowed)
    raise ConfigError(
        f"{key}: {problem}{hint} (found {found!r:.80}; allowed: {', '.join(allowed)})"
    )


def check_keys(given: Iterable[object], allowed: Collection[str], where: str) -> None:
    """Raise :class:`ConfigError` for the first key that is not ``allowed``, after ``where``."""
    for key in given:
        if key not in allowed:
            raise ConfigError(f"{where}{key}: {unknown_key(str(key), allowed)}")


def unknown_key(key: str, allowed: Collection[str]) -> str:
    """What is wrong with a key that is not ``allowed``, with the nearest one that is."""
    return f"unknown key{suggest_name(key, allowed)} (allowed: {', '.join(allowed)})"


_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def dotted_key(*parts: str) -> str:
    """A key as TOML would write it.

    >>> dotted_key("graders", "a.b", "weight")
    'graders."a.b".weight'
    """
    return ".".join(
        one if _BARE.match(one) else json.dumps(one, ensure_ascii=False) for one in parts
    )


def flatten(data: Fields, *above: str) -> Iterator[tuple[str, object]]:
    """Every value by its dotted key; a list is a value, an empty table is nothing."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from flatten(value, *above, str(name))
        else:
            yield dotted_key(*above, str(name)), value


class SettingDifference(NamedTuple):
    """A key in which two runs differ; ``None`` where a run does not have it."""

    key: str
    left: object
    right: object

    def __str__(self) -> str:
        return f"{self.key} ({format_setting(self.left)}, {format_setting(self.right)})"


def compare_settings(left: Fields, right: Fields) -> list[SettingDifference]:
    """The dotted keys in which two runs differ, sorted."""
    return [
        SettingDifference(key, left.get(key), right.get(key))
        for key in sorted({*left, *right})
        if not is_same_setting(left.get(key), right.get(key))
    ]


def is_same_setting(left: object, right: object) -> bool:
    """Whether two values are equal; ``True`` is not 1."""
    return type(left) is type(right) and bool(left == right)


def format_setting(value: object) -> str:
    """A setting's value for people, in short."""
    return "not set" if value is None else repr(value)[:80]


def find_references(path: Path) -> dict[str, str]:
    """Texts of a TOML file that had ``${NAME}``: the filled-in text, and what the file says."""
    found: dict[str, str] = {}

    def visit(value: object) -> None:
        if isinstance(value, InterpolatedText):
            found[str(value)] = value.written
        elif isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                visit(inner)

    visit(load_toml(path, keep_references=True))
    return found
