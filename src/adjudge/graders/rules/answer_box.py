"""Bounding boxes: four numbers in any writing, and the overlap of two of them."""

from __future__ import annotations

import math
import re
from typing import Any

__all__ = ["Box", "iou", "last_box", "read_box"]

Box = tuple[float, float, float, float]
"""Corners x1, y1, x2, y2."""

_NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?\d++)?+"
_NUMBERS = re.compile(rf"(?<![\w.]){_NUMBER}(?![\w.])", re.ASCII)
_GROUP = re.compile(
    rf"[\[(]\s*+({_NUMBER})(?:\s*+[,;\s]\s*+)({_NUMBER})"
    rf"(?:\s*+[,;\s]\s*+|\s*+[)\]]\s*+,?\s*+[(\[]\s*+)"
    rf"({_NUMBER})(?:\s*+[,;\s]\s*+)({_NUMBER})\s*+[\])]",
    re.ASCII,
)


def last_box(text: str) -> Box | None:
    """The last box in ``text``: four bracketed numbers, or the four numbers that it has in all.

    >>> last_box('{"bbox_2d": [10, 20, 30.5, 4e1]}')
    (10.0, 20.0, 30.5, 40.0)
    >>> last_box("<box>(1,2),(3,4)</box>")
    (1.0, 2.0, 3.0, 4.0)
    >>> last_box("between 3 and 5") is None
    True
    """
    last = None
    for last in _GROUP.finditer(text):  # noqa: B007  only the last one counts
        pass
    if last is not None:
        return _finite(list(last.groups()))
    return _finite(_NUMBERS.findall(text))


def read_box(reference: Any) -> Box | None:
    """A box given as four numbers, or as text that holds one; ``None`` for anything else."""
    if isinstance(reference, str):
        return last_box(reference)
    if not isinstance(reference, list | tuple):
        return None
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in reference):
        return None
    return _finite(reference)


def iou(first: Box, second: Box) -> float:
    """Intersection over union of two boxes, in [0, 1]; 0 for a box without area.

    >>> iou((0, 0, 2, 2), (1, 0, 3, 2))
    0.3333333333333333
    """
    # Scaled to at most 1, so that no product overflows.
    scale = max(map(abs, (*first, *second))) or 1.0
    ax1, ay1, ax2, ay2 = (value / scale for value in first)
    bx1, by1, bx2, by2 = (value / scale for value in second)
    if ax2 <= ax1 or ay2 <= ay1 or bx2 <= bx1 or by2 <= by1:
        return 0.0
    width, height = min(ax2, bx2) - max(ax1, bx1), min(ay2, by2) - max(ay1, by1)
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared
    return min(1.0, shared / union) if union > 0 else 0.0


def _finite(values: Any) -> Box | None:
    try:
        numbers = [float(value) for value in values]
    except OverflowError:  # an integer beyond the floats
        return None
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        return None
    return numbers[0], numbers[1], numbers[2], numbers[3]
