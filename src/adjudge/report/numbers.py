"""Numbers as people read them: on pages and in terminals."""

from __future__ import annotations

import math

__all__ = ["format_integer", "format_number", "format_percent", "format_range"]


def format_integer(value: float) -> str:
    """A whole number with thousands separators.

    >>> format_integer(12345.0)
    '12,345'
    """
    return f"{round(value):,}"


def format_number(value: float | None, digits: int = 3) -> str:
    """A number for reading: ``digits`` decimals, fewer for large ones; "–" for none.

    >>> format_number(0.12345), format_number(123.45), format_number(None)
    ('0.123', '123.5', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−")
    text = f"{value:.{1 if abs(value) >= 100 else digits}f}"
    if float(text) == 0 and value != 0:
        text = f"{value:.1e}"
    return text.replace("-", "−")


def format_percent(part: float, whole: float = 1.0) -> str:
    """``part`` of ``whole`` with a unit; "–" of nothing. Never rounds something to 0 % or 100 %."""
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1\u202f%"
    if 99.9 < share < 100:
        return "> 99.9\u202f%"
    digits = 0 if share in (0, 100) else 1
    return f"{share:.{digits}f}\u202f%"


def format_range(low: float | None, high: float | None, why: str = "") -> str:
    """``low to high``; ``why`` there is no interval where one of them is missing.

    >>> format_range(0.25, 0.5), format_range(None, None, "one group")
    ('0.250 to 0.500', 'one group')
    """
    if low is None or high is None:
        return why
    return f"{format_number(low)} to {format_number(high)}"
