"""What a stage takes from an earlier one: ``@NAME`` for its folder, ``@NAME/PATH`` for a part."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.config import nearest
from adjudge.errors import ConfigError

__all__ = ["refers", "resolved", "say_which"]

Places = Mapping[str, tuple[str, str]]
"""Of each earlier stage its folder, and what it leaves: a key of :data:`_LEFT`."""

_LEFT: Mapping[str, str] = {
    "scalar": "a scalar judge",
    "generative": "a generative judge",
    "answers": "a model taught to answer",
    "evaluate": "an evaluation, no model",
    "run": "a run (its policy is @{}/model)",
}

_KEYS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "judge": (("model", "path"), ("data", "train"), ("data", "val")),
    "evaluate": (("judge",), ("files",)),
    "run": (("model", "base"), ("judge", "folder"), ("rollout", "dataset")),
}
"""By kind of stage the keys that may refer; elsewhere an @ is an @."""

_TAKES: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("model", "path"): ("scalar", "generative", "answers"),
    ("model", "base"): ("generative", "answers"),
    ("judge",): ("scalar", "generative"),
    ("judge", "folder"): ("scalar", "generative"),
}
"""What a key takes where it refers to a whole stage; the others take files."""


def resolved(
    data: Mapping[str, Any], kind: str, places: Places, later: Sequence[str], where: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A stage's table with paths instead of references, and the stages that it refers to.

    Raises :class:`ConfigError` for a stage that does not exist, comes later (``later``), or leaves
    something else than is needed.
    """
    filled = copy.deepcopy(dict(data))
    after: list[str] = []

    def path(text: Any, key: tuple[str, ...]) -> Any:
        if not isinstance(text, str) or not text.startswith("@"):
            return text
        name, _, rest = text[1:].partition("/")
        complaint = f"{where}: {'.'.join(key)}: "
        if name not in places:
            why = "comes later" if name in later else f"does not exist{nearest(name, places)}"
            known = ", ".join(f"@{one}" for one in places) or "none"
            raise ConfigError(f"{complaint}stage @{name} {why} (before this one: {known})")
        folder, what = places[name]
        if not rest and key not in _TAKES:
            raise ConfigError(
                f"{complaint}stage @{name} is a folder; name a file in it, as in "
                f"'@{name}/rows.jsonl'"
            )
        if not rest and what not in _TAKES[key]:
            wanted = " or ".join(_LEFT[one] for one in _TAKES[key])
            left = _LEFT[what].format(name)
            raise ConfigError(f"{complaint}stage @{name} leaves {left}; this takes {wanted}")
        after.append(name)
        return f"{folder}/{rest}" if rest else folder

    for key in _KEYS[kind]:
        table = _table_of(filled, key)
        if table is None or key[-1] not in table:
            continue
        value = table[key[-1]]
        table[key[-1]] = (
            [path(one, key) for one in value] if isinstance(value, list) else path(value, key)
        )
    return filled, tuple(dict.fromkeys(after))


def refers(data: Mapping[str, Any] | None, key: tuple[str, ...]) -> bool:
    """Whether what a stage's table says under ``key`` is a reference."""
    table = _table_of(data, key)
    value = None if table is None else table.get(key[-1])
    return isinstance(value, str) and value.startswith("@")


def _table_of(data: Any, key: tuple[str, ...]) -> dict[str, Any] | None:
    """The table in which the last part of ``key`` stands."""
    for part in key[:-1]:
        data = data.get(part) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else None


def say_which(kinds: Sequence[str]) -> str:
    """The tables by name, for a complaint."""
    return ", ".join(f"[stages.{kind}]" for kind in kinds)
