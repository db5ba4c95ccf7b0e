"""Answers that are alike in part: bounding boxes, recognised text, patterns.

A comparison of long texts and a search for a pattern run in killable processes: they may take for
ever.
"""

from __future__ import annotations

import math
import re
from typing import Any

from rapidfuzz.distance import Levenshtein

from adjudge.errors import ErrorKind, GradingFailure

Box = tuple[float, float, float, float]
"""Corners x1, y1, x2, y2."""

_NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?\d++)?+"
_NUMBERS = re.compile(rf"(?<![\w.]){_NUMBER}(?![\w.])", re.ASCII)
_BOX_PATTERN = re.compile(
    rf"[\[(]\s*+({_NUMBER})(?:\s*+[,;\s]\s*+)({_NUMBER})"
    rf"(?:\s*+[,;\s]\s*+|\s*+[)\]]\s*+,?\s*+[(\[]\s*+)"
    rf"({_NUMBER})(?:\s*+[,;\s]\s*+)({_NUMBER})\s*+[\])]",
    re.ASCII,
)


def find_last_box(text: str) -> Box | None:
    """The last box in ``text``: four bracketed numbers, or the four numbers that it has in all.

    >>> find_last_box('{"bbox_2d": [10, 20, 30.5, 4e1]}')
    (10.0, 20.0, 30.5, 40.0)
    >>> find_last_box("<box>(1,2),(3,4)</box>")
    (1.0, 2.0, 3.0, 4.0)
    >>> find_last_box("between 3 and 5") is None
    True
    """
    last = None
    for last in _BOX_PATTERN.finditer(text):  # noqa: B007  only the last one counts
        pass
    if last is not None:
        return _finite(list(last.groups()))
    return _finite(_NUMBERS.findall(text))


def read_box(reference: Any) -> Box | None:
    """A box given as four numbers, or as text that holds one; ``None`` for anything else."""
    if isinstance(reference, str):
        return find_last_box(reference)
    if not isinstance(reference, list | tuple):
        return None
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in reference):
        return None
    return _finite(reference)


def intersection_over_union(first: Box, second: Box) -> float:
    """Intersection over union of two boxes, in [0, 1]; 0 for a box without area.

    >>> intersection_over_union((0, 0, 2, 2), (1, 0, 3, 2))
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


def ocr_similarity(answer: str, reference: str) -> float:
    """1 − Levenshtein distance / length of the longer text; 0 where that is below 0.5.

    >>> ocr_similarity("Hall0 World", "Hello World"), ocr_similarity("xyz", "Hello")
    (0.8181818181818181, 0.0)
    """
    return Levenshtein.normalized_similarity(answer.strip(), reference.strip(), score_cutoff=0.5)


def best_ocr_similarity(payload: dict[str, Any]) -> float:
    """The best :func:`ocr_similarity` of ``answer`` with any of ``references``."""
    return max(ocr_similarity(payload["answer"], one) for one in payload["references"])


def search_patterns(payload: dict[str, Any]) -> str | None:
    """``{patterns, text, start}`` to what the first pattern found matches, else ``None``.

    A match may not begin before ``start``; ``^`` still means the beginning of ``text``. A pattern
    that is not one raises ``GradingFailure(invalid_input)``.
    """
    patterns = [_usable(pattern) for pattern in payload["patterns"]]
    for pattern in patterns:
        if (match := pattern.search(payload["text"], payload["start"])) is not None:
            return match[0][:1000]
    return None


def _usable(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError) as error:
        message = f"the reference is not a pattern: {error}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, message) from None
