"""Tables of a run file laid over each other, and their keys as dotted names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["changed", "covers", "dotted", "leaves", "merged"]

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def dotted(*parts: str) -> str:
    """A key as TOML would write it.

    >>> dotted("graders", "a.b", "weight")
    'graders."a.b".weight'
    """
    return ".".join(
        one if _BARE.match(one) else json.dumps(one, ensure_ascii=False) for one in parts
    )


def covers(declared: str, key: str) -> bool:
    """Whether ``declared`` is ``key`` or a table that has it.

    >>> covers("judge", "judge.mock.seed"), covers("judge", "judges")
    (True, False)
    """
    return key == declared or key.startswith(f"{declared}.")


def changed(tables: Mapping[str, Any]) -> Iterator[str]:
    """The keys of tables, graders apart; a table in a table is one key.

    It may be there to be turned on, with all its defaults.

    >>> list(changed({"rollout": {"scaffold": {}, "temperature": 1.0}, "graders": []}))
    ['rollout.scaffold', 'rollout.temperature']
    """
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from (dotted(name, key) for key in value)
        elif name != "graders":
            yield dotted(name)


def leaves(data: Mapping[str, Any], *above: str) -> Iterator[tuple[str, Any]]:
    """Every value by its dotted key; a list is a value, an empty table is nothing."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, *above, str(name))
        else:
            yield dotted(*above, str(name)), value


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, table by table.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}, "b": 4})
    {'a': {'x': 1, 'y': 3}, 'b': 4}
    """
    found = dict(base)
    for name, value in over.items():
        known = found.get(name)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        found[name] = merged(known, value) if both else value  # type: ignore[arg-type]  # both
    return found
