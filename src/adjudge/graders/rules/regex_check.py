"""Does a pattern occur in a text. Runs in a killable process: a pattern may backtrack for ever."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure

__all__ = ["FLAGS", "compiled", "search"]

FLAGS = {
    "a": re.ASCII,
    "i": re.IGNORECASE,
    "m": re.MULTILINE,
    "s": re.DOTALL,
    "x": re.VERBOSE,
}
"""The letters that a ``flags`` parameter may hold, as in ``(?aimsx)``."""


def search(payload: dict[str, Any]) -> str | None:
    """``{patterns, flags, text, start}`` to what the first pattern found matches, else ``None``.

    A match may not begin before ``start``; ``^`` still means the beginning of ``text``. A pattern
    that is not one raises ``GradingFailure(invalid_input)``.
    """
    patterns = [_usable(pattern, payload["flags"]) for pattern in payload["patterns"]]
    for pattern in patterns:
        if (match := pattern.search(payload["text"], payload["start"])) is not None:
            return match[0][:1000]
    return None


@lru_cache(maxsize=256)
def compiled(pattern: str, flags: str = "") -> re.Pattern[str]:
    """``pattern`` with ``flags``; raises ``re.error``.

    >>> compiled("paris", "i").search("in Paris") is not None
    True
    """
    return re.compile(pattern, sum(FLAGS[letter] for letter in set(flags)))


def _usable(pattern: str, flags: str) -> re.Pattern[str]:
    try:
        return compiled(pattern, flags)
    except (re.error, OverflowError) as error:
        message = f"the reference is not a pattern: {error}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, message) from None
