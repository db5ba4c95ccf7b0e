"""Checks of the parameters that a reward spec sets; each raises ``ConfigError`` by name."""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from typing import Any, get_args

from adjudge.errors import ConfigError

__all__ = ["chosen", "flag", "integer", "needs", "number", "tag_name"]


def chosen(owner: str, parameter: str, value: Any, literal: Any) -> None:
    """``value`` is one of the strings of ``literal``, a ``Literal`` type."""
    allowed = get_args(literal)
    if not isinstance(value, str) or value not in allowed:
        raise _wrong(owner, parameter, value, "one of " + ", ".join(map(repr, allowed)))


def flag(owner: str, parameter: str, value: Any) -> None:
    """``value`` is true or false."""
    if not isinstance(value, bool):
        raise _wrong(owner, parameter, value, "true or false")


def integer(owner: str, parameter: str, value: Any, low: int, high: int = 10**9) -> None:
    """``value`` is a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(owner, parameter, value, f"a whole number from {low} to {high}")


def number(owner: str, parameter: str, value: Any, low: float, high: float) -> None:
    """``value`` is a finite number from ``low`` to ``high``."""
    fits = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and low <= value <= high
    )
    if not fits:
        raise _wrong(owner, parameter, value, f"a number from {low:g} to {high:g}")


def tag_name(owner: str, parameter: str, value: Any) -> None:
    """``value`` is the bare name of a tag, such as ``think``: letters, digits, ``_`` and ``-``."""
    plain = isinstance(value, str) and value.replace("_", "").replace("-", "").isalnum()
    if not plain:
        raise _wrong(owner, parameter, value, "a tag name without brackets, such as 'think'")


@cache
def needs(owner: str, module: str) -> None:
    """The optional package ``module`` is installed; once found, it is not looked for again."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{owner} needs the package {module}: pip install 'adjudge[rules]'")


def _wrong(owner: str, parameter: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{owner}: {parameter} must be {allowed}, got {value!r}")
