"""Modules of trainers that are not installed here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest


def stand_in(monkeypatch: pytest.MonkeyPatch, modules: Mapping[str, Mapping[str, Any]]) -> None:
    """Put modules with these names in their place, and the packages above them."""
    for name, names in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            full = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, full, sys.modules.get(full) or ModuleType(full))
        vars(sys.modules[name]).update(names)
