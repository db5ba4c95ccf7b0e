"""The value of an expression: exactly, or at a few fixed points.

Arithmetic is computed exactly (:func:`read_value`). With names an expression is computed at points
where every name has a value, to 80 digits (:func:`evaluate`); two are equal where their values are.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from adjudge.graders.answers.numerals import ExpressionSyntaxError, context, wide
from adjudge.graders.answers.reader import Reader

_POINTS = 4
# Times the difference of two equal values is less than they are, whatever has cancelled.
_SAME = 10**45


class ParsedValue(NamedTuple):
    """A number and where it ends in the text.

    ``exact``: no irrational root and no π in it; else the first 60 digits hold.
    ``percent``: written with a percent sign, which ``number`` includes.
    ``plain``: a numeral, signed or not; false for what had to be computed.
    """

    number: Fraction
    exact: bool
    percent: bool
    plain: bool
    end: int


class Values(NamedTuple):
    """What an expression is worth at each point; one value where it has no names.

    ``exact``: as above. ``outside``: the points that lie outside its real domain. ``ordered``: its
    factors may not change places, so it is equal only as text.
    """

    points: tuple[Any, ...]
    exact: bool
    outside: frozenset[int]
    ordered: bool

    def at(self, place: int) -> Any:
        """The value at a point, also of an expression without names."""
        return self.points[min(place, len(self.points) - 1)]


def read_value(text: str, start: int = 0) -> ParsedValue | None:
    r"""The longest arithmetic that begins at ``start``; ``None`` where none does.

    ``text`` as :func:`~adjudge.graders.answers.normal_text.to_latex` returns it. Raises
    :class:`ExpressionTooLarge` for what is beyond a limit.

    >>> read_value(r"2^{10} apples").number
    Fraction(1024, 1)
    """
    reader = Reader(text, start)
    try:
        number = reader.total()
    except (ExpressionSyntaxError, ZeroDivisionError):
        return None
    if reader.listed and reader.operators:
        return None
    return ParsedValue(number, reader.exact, reader.percent, reader.operators == 0, reader.at)


@lru_cache(maxsize=512)
def evaluate(text: str) -> Values | None:
    r"""The values of all of an expression in normal form; ``None`` for other text.

    Raises :class:`ExpressionTooLarge`.

    >>> have_equal_values(evaluate(r"x\cdot(x+1)"), evaluate("x^2+x"))
    True
    """
    points: list[Any] = []
    outside: set[int] = set()
    for point in range(_POINTS):
        reader = Reader(text, 0, point)
        try:
            points.append(reader.enclosed())
        except (ValueError, ArithmeticError, TypeError):
            return None
        if reader.skipped() < len(text):
            return None
        outside |= {point} if reader.outside else set()
        if not reader.names:
            break
    return Values(tuple(points), reader.exact, frozenset(outside), reader.ordered)


def have_equal_values(first: Values, second: Values) -> bool:
    """Whether two expressions have the same values, where both have real ones."""
    if first.ordered or second.ordered:
        return False
    places = set(range(max(len(first.points), len(second.points))))
    places = places - first.outside - second.outside or places
    exact = first.exact and second.exact
    return all(are_close(first.at(one), second.at(one), exact) for one in places)


def are_close(first: Any, second: Any, exact: bool = False) -> bool:
    """Whether two values agree to 45 digits; to all where they are exact."""
    if first == second or exact:
        return bool(first == second)
    first, second = wide(first), wide(second)
    finite = map(context().isfinite, (first, second))
    return all(finite) and bool(abs(first - second) * _SAME <= max(abs(first), abs(second)))
