"""Dotted paths into rows: ``traj``, ``info.answer``, ``choices.0.text``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MISSING", "get_path"]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""What :func:`get_path` returns where there is nothing; a stored ``null`` is ``None``."""


def get_path(data: Any, path: str) -> Any:
    """The value at ``path`` in nested mappings and lists, or :data:`MISSING`.

    A key that contains dots is found first, so flat columns named ``a.b`` work too.

    >>> get_path({"choices": [{"text": "hi"}]}, "choices.0.text")
    'hi'
    """
    if isinstance(data, Mapping) and path in data:
        return data[path]
    here = data
    for step in path.split("."):
        if isinstance(here, Mapping):
            here = here.get(step, MISSING)
        elif isinstance(here, list | tuple) and step.lstrip("-").isdigit():
            position = int(step)
            here = here[position] if -len(here) <= position < len(here) else MISSING
        else:
            return MISSING
        if here is MISSING:
            return MISSING
    return here
