"""What code returned or printed, compared with what its tests expect."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any


def same_value(produced: Any, expected: Any, *, as_json: bool, tolerance: float) -> bool:
    """Whether two encoded trees are equal; never raises, whatever was produced.

    ``as_json``: a boolean equals no number, and NaN equals NaN; otherwise as Python's ``==``.
    Where a float is expected, a number may differ by ``tolerance``, relative or absolute, whichever
    allows more; where an integer is, it may not.

    >>> same_value(["list", 0.30000000000000004], ["list", 0.3], as_json=True, tolerance=1e-9)
    True
    """
    stack = [(produced, expected)]
    while stack:
        one, other = stack.pop()
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            stack.extend(zip(one, other, strict=True))
        elif not _same_leaf(one, other, as_json, tolerance):
            return False
    return True


def _same_leaf(one: Any, other: Any, as_json: bool, tolerance: float) -> bool:
    if as_json and isinstance(one, bool) != isinstance(other, bool):
        return False
    # Lists arrive here only beside something else or at unequal lengths, and then differ at once.
    return bool(one == other) or _close(one, other, as_json, tolerance)


def _close(one: Any, other: Any, as_json: bool, tolerance: float) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return False
    if not isinstance(other, float):
        return False
    try:
        both_nan = as_json and math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an integer beyond the floats
        return False


_TOLERANCE = Decimal("1e-6")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?P<decimals>\.\d+)?(?:[eE](?P<exponent>[+-]?\d{1,3}))?")


def same_output(produced: str, expected: str) -> bool:
    r"""Whether two outputs agree up to white space at line ends and around the whole.

    Where both hold nothing but numbers, the numbers are compared by value. A whole number must be
    equal. A decimal may differ by 1e-6 (in proportion where it is below 1), and by half a unit of
    its last expected digit where that is less.

    >>> same_output("1 2 \n3\n\n", "1 2\n3")
    True
    >>> same_output("0.30000000000000004 1", "0.3 1"), same_output("0.3 1", "0.3 2")
    (True, False)
    """
    ours, theirs = _lines(produced), _lines(expected)
    if ours == theirs or len(ours) != len(theirs):
        return ours == theirs
    split = [re.split(r"(\s+)", "\n".join(lines)) for lines in (ours, theirs)]
    return len(split[0]) == len(split[1]) and all(map(_same_token, *split))


def _same_token(produced: str, expected: str) -> bool:
    one, other = _NUMBER.fullmatch(produced), _NUMBER.fullmatch(expected)
    if not one or not other:
        return produced == expected and not expected.strip()
    ours, theirs = Decimal(produced), Decimal(expected)
    if not (other["decimals"] or other["exponent"]):
        return ours == theirs
    places = len(other["decimals"] or ".") - 1 - int(other["exponent"] or 0)
    allowed = max(
        _TOLERANCE * min(Decimal(1), abs(theirs)),
        min(_TOLERANCE, Decimal(5).scaleb(-places - 1)),
        abs(theirs).scaleb(-10),  # what sums of doubles differ by
    )
    return abs(ours - theirs) <= allowed


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
