r"""Numerals, and what readers of expressions share: a place in a text, limits, values.

Nothing is computed before it is known to be within the limits.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

MAX_DIGITS = 1_000
"""A numeral with more digits is not read."""

MAX_EXPONENT = 5_000
"""Nor is a power or a scientific exponent beyond this; ``n!`` and ``\\binom`` end at 1,000."""

MAX_BITS = 20_000  # of a numerator or denominator
_ALL_BITS = 200_000  # of all results of one expression together: bounds the time it takes
_DIGITS = 80  # of a value at a point

_RUN = re.compile(
    r"""(?: (?P<spaced>\d{1,3}(?:[ ]\d{3})++(?:\.\d++)?+(?![\d,]|\.\d))
          | (?P<run>(?:\d|\.(?=[\d\\])|(?:,|\{,\}|['’](?=\d{3}))(?=\d))++) )
        (?:\\(?:overline|dot|bar)\s?\{?(?P<period>(?<=\{)\d++(?=\})|\d)\}?|(?P<dots>\.\.\.|\\l?dots))?+
        (?:[eE](?P<exponent>[-+]?\d++)(?![A-Za-z]))?+""",
    re.VERBOSE | re.ASCII,
)
_DECIMAL_COMMA = re.compile(r"(?a)(\d++)\{,\}(?!\d{3}\Z)(\d++)")
_GROUPED = re.compile(r"(?a)(?:\d{1,3}(?:,\d{3})++|\d*+)(?:\.\d*+)?+")
_REPEATED = re.compile(r"(?a)(\d{1,9}?)\1{2,}\Z")
_MIXED = re.compile(r"(?a)\s?\\[dtc]?frac\s*\{?\d|\s{1,6}(?=\d{1,3}/\d{1,3}(?![\d/.]))\d")
_SPACE = re.compile(r"(?:\s|\\[;:! ]|\\?[$€£¥₹](?=\s?[\d.])|\\(?:left|right|q?quad)(?![A-Za-z]))*")
FRACTION = re.compile(r"\\[dtc]?frac(?![A-Za-z])")


class ExpressionSyntaxError(ValueError):
    """The text at this place is no expression."""


class ExpressionTooLarge(Exception):
    """A number, or the work of computing it, is beyond the limits."""


@cache
def context() -> Any:
    """Mpmath with 80 digits."""
    mpmath: Any = importlib.import_module("mpmath")  # comes with the library for maths
    own = mpmath.mp.clone()
    own.dps = _DIGITS
    return own


def wide(number: Any) -> Any:
    """A number with 80 digits, from an exact one."""
    if isinstance(number, Fraction):
        return context().mpf(number.numerator) / number.denominator
    return number


def size_of(number: Fraction) -> int:
    """The bits of the larger of numerator and denominator."""
    return max(number.numerator.bit_length(), number.denominator.bit_length())


class NumeralReader:
    """A place in a text, and the numerals there."""

    atom: Any

    def __init__(self, text: str, start: int = 0, point: int | None = None) -> None:
        self.text, self.at, self.point = text, start, point
        self.exact, self.percent = True, False
        self.listed = False  # a date or a list: 2024-05-14, 5/6/7
        self.names = self.outside = self.ordered = False
        self.operators = self.steps = self.depth = self.bits = self.bars = 0

    def numeral(self) -> Any:
        """The numeral at this place."""
        match = _RUN.match(self.text, self.at)
        if match is None:
            raise ExpressionSyntaxError
        run = match["run"] or match["spaced"].replace(" ", ",")
        run = re.sub(r"\{,\}|['’]", ",", _DECIMAL_COMMA.sub(r"\1.\2", run))
        exponent = int((match["exponent"] or "0")[:8])
        self.at = match.end()
        if not _GROUPED.fullmatch(run):
            if self.point is None or "," not in run[1:]:
                raise ExpressionSyntaxError
            run = run.partition(",")[0]  # a list in brackets
            self.at = match.start() + len(run)
        digits = run.replace(",", "")
        if len(digits.replace(".", "")) > MAX_DIGITS or abs(exponent) > MAX_EXPONENT:
            raise ExpressionTooLarge
        self.listed |= len(digits) > 1 and digits[0] == "0" and digits[1] != "."
        number = Fraction(digits) + self.repeated(digits.partition(".")[2], match)
        if exponent:
            number = self.within_limits(number * Fraction(10) ** exponent)
        if number.denominator == 1 and run.isdigit() and _MIXED.match(self.text, self.at):
            return self.mixed(number)
        return number

    def repeated(self, places: str, match: re.Match[str]) -> Fraction:
        r"""What ``0.8\overline{3}`` adds to 0.8, and ``0.666...``: a period that is seen thrice."""
        seen = _REPEATED.search(places) if match["dots"] else None
        period = match["period"] or (seen and seen[1])
        if match["dots"] and not seen:
            self.at = match.start("dots")
        scale = 10 ** len(places) * (10 ** len(period) - 1) if period else 1
        return Fraction(int(period or 0), scale)

    def mixed(self, whole: Fraction) -> Any:
        r"""``1 1/2`` and ``1\frac{1}{2}``: a whole number and a proper fraction are a sum."""
        place = self.at
        self.step()
        self.at = self.skipped()
        if FRACTION.match(self.text, self.at):
            part = self.atom()
        else:
            above = self.numeral()
            self.at += 1  # the slash
            part = above / self.numeral()
        if isinstance(part, Fraction) and 0 < part < 1:
            self.operators += 1
            return self.within_limits(whole + part)
        self.at = place
        return whole

    def operator(self, pattern: re.Pattern[str]) -> tuple[int, str] | None:
        """Consume an operator; where reading stood before it, and the operator."""
        match = pattern.match(self.text, self.skipped())
        if match is None:
            return None
        place, self.at = self.at, match.end()
        self.operators += 1
        return place, match[0]

    def attempt(self, read: Callable[[], Any], place: int) -> Any:
        """What ``read`` finds behind an operator; without any, reading goes back to ``place``."""
        before = self.exact, self.percent, self.listed, self.operators - 1, self.depth
        try:
            return read()
        except ExpressionSyntaxError:
            self.exact, self.percent, self.listed, self.operators, self.depth = before
            self.at = place
            return None

    def skipped(self) -> int:
        """The next place that is no space."""
        match = _SPACE.match(self.text, self.at)
        return match.end() if match else self.at

    def step(self) -> None:
        """Count a step; too many are too much."""
        self.steps += 1
        if self.steps > (200 if self.point is None else 1_000):
            raise ExpressionTooLarge

    def within_limits(self, number: Any) -> Any:
        """``number``, if it is no larger than an operand of the next step may be."""
        if not isinstance(number, Fraction):
            return number
        self.bits += size_of(number)
        if size_of(number) > MAX_BITS or self.bits > _ALL_BITS:
            if self.point is None:
                raise ExpressionTooLarge
            self.exact = False
            return wide(number)
        return number
