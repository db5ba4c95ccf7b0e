r"""Exact arithmetic on the text of a policy, within limits that are checked before computing.

A recursive-descent reader of its own: no text reaches ``eval`` or a symbolic library. It knows
numerals (``1,234``, ``1 000``, ``3e5``, ``0.\overline{3}``), ``+ - * / ^ ! %``, brackets, mixed
numbers, ``\frac``, ``\sqrt``, ``\binom`` and π.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

MAX_DIGITS = 1_000
"""A numeral with more digits is not read."""

MAX_EXPONENT = 5_000
"""Nor is a power or a scientific exponent beyond this; ``n!`` and ``\\binom`` end at 1,000."""

_MAX_COUNT = 1_000
_MAX_BITS = 20_000  # of a numerator or denominator
_ALL_BITS = 200_000  # of all results of one expression together: bounds the time it takes
_ROOT_DIGITS = 100  # an irrational value is held to this many digits
_PI = Fraction(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534"
    "21170679821480865132823066470938446095505822317253594081284811174502841"
)

_SPACE = re.compile(r"(?:\s|\\[;:! ]|\\?[$€£¥₹](?=\s?[\d.])|\\(?:left|right|q?quad)(?![A-Za-z]))*")
_RUN = re.compile(
    r"""(?: (?P<spaced>\d{1,3}(?:[ ]\d{3})++(?:\.\d++)?+(?![\d,]|\.\d))
          | (?P<run>(?:\d|\.(?=[\d\\])|(?:,|\{,\}|['’](?=\d{3}))(?=\d))++) )
        (?:\\(?:overline|dot|bar)\s?\{?(?P<period>(?<=\{)\d++(?=\})|\d)\}?|(?P<dots>\.\.\.|\\l?dots))?+
        (?:[eE](?P<exponent>[-+]?\d++)(?![A-Za-z]))?+""",
    re.VERBOSE | re.ASCII,
)
_DECIMAL_COMMA = re.compile(r"(\d++)\{,\}(?!\d{3}\Z)(\d++)", re.ASCII)
_SEPARATORS = re.compile(r"\{,\}|['’]")
_GROUPED = re.compile(r"(?:\d{1,3}(?:,\d{3})++|\d*+)(?:\.\d*+)?+", re.ASCII)
_REPEATED = re.compile(r"(\d{1,9}?)\1{2,}\Z", re.ASCII)
_FRACTION = re.compile(r"\\[dtc]?frac(?![A-Za-z])")
_MIXED = re.compile(r"\s?\\[dtc]?frac\s*\{?\d|\s{1,6}(?=\d{1,3}/\d{1,3}(?![\d/.]))\d", re.ASCII)
_SUM = re.compile(r"[-+]")
_PRODUCT = re.compile(
    r"\*(?!\*)|/|\\(?:times|cdot|div|ast)(?![A-Za-z])"
    r"|(?<=\s)x\s(?=\d)|x(?=\s?10\s?(?:\^|\*\*))"  # 3 x 10^8
)
_IMPLIED = re.compile(r"\\(?:sqrt|pi|[dtc]?frac|binom)(?![A-Za-z])")
_POWER = re.compile(r"(?:\^|\*\*)(?!\s*\{?\s*\\circ)")
_POSTFIX = re.compile(r"!(?![=!])|!!+|\\?%|per\s?cent\b(?!age)")
_SHORT = re.compile(r"\s*(\d)(?!\d*[.,]?\d)", re.ASCII)
_TWO_SHORT = re.compile(r"\s*(\d)\s?(\d)(?!\d|[.,]\d)", re.ASCII)
_CLOSE = {"(": ")", "[": "]", "{": "}"}


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


class ExpressionSyntaxError(ValueError):
    """The text at this place is no expression."""


class ExpressionTooLarge(ValueError):
    """A number, or the work of computing it, is beyond the limits."""


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


class Reader:
    """Arithmetic alone: a name ends it."""

    max_depth, max_steps = 20, 200
    products, postfixes = _PRODUCT, _POSTFIX

    def __init__(self, text: str, start: int = 0) -> None:
        self.text, self.at = text, start
        self.exact, self.percent = True, False
        self.listed = False  # a date or a list: 2024-05-14, 5/6/7
        self.operators = self.steps = self.depth = self.bits = 0

    def total(self) -> Any:
        """Terms, added and subtracted."""
        number = self.product()
        while (operator := self.operator(_SUM)) is not None:
            place, sign = operator
            other = self.attempt(self.product, place)
            if other is None:
                break
            number = self.added(number, other if sign == "+" else -other)
        return number

    def product(self) -> Any:
        """Factors, multiplied and divided; side by side they are multiplied."""
        number, slashes = self.signed(), 0
        while True:
            place, operator = self.operator(self.products) or (self.at, "")
            slashes += operator == "/"
            self.listed |= slashes > 1
            if not operator and not self.implied():
                return number
            self.operators += not operator
            other = self.attempt(self.signed if operator else self.power, place)
            if other is None:
                return number
            number = self.combined(operator, number, other)

    def implied(self) -> bool:
        """Whether a factor follows without a sign; "5 (6)" is two numbers, not a product."""
        return self.text[self.at : self.at + 1] == "(" or bool(
            _IMPLIED.match(self.text, self.skipped())
        )

    def signed(self) -> Any:
        self.step()
        place = self.skipped()
        if self.text[place : place + 1] not in ("-", "+"):
            return self.power()
        self.at = place + 1
        number = self.signed()
        return -number if self.text[place] == "-" else number

    def power(self) -> Any:
        number = self.atom()
        while (postfix := self.postfixes.match(self.text, self.skipped())) is not None:
            number = self.after(number, postfix[0])
            self.at = postfix.end()
        if (operator := self.operator(_POWER)) is not None:
            exponent = self.attempt(self.signed, operator[0])
            if exponent is not None:
                number = self.raised(number, exponent)
        return number

    def after(self, number: Any, postfix: str) -> Any:
        if postfix.startswith("!"):
            self.operators += 1
            if postfix != "!":
                raise ExpressionSyntaxError
            return self.factorial(number)
        self.percent = True
        return self.divided(number, Fraction(100))

    def factorial(self, number: Any) -> Any:
        return self.within_limits(Fraction(math.factorial(self.count(number))))

    def raised(self, number: Any, exponent: Any) -> Any:
        if exponent.denominator != 1:
            number = self.root(number, exponent.denominator)
        power = exponent.numerator
        size = max(number.numerator.bit_length(), number.denominator.bit_length())
        if abs(power) > MAX_EXPONENT or size * abs(power) > _MAX_BITS:
            raise ExpressionTooLarge
        if not number and power <= 0:
            raise ExpressionSyntaxError
        return self.within_limits(number**power)

    def atom(self) -> Any:
        self.step()
        place = self.at = self.skipped()
        sign = self.text[place : place + 1]
        if sign and sign in _CLOSE:
            return self.bracket(sign)
        if sign != "\\":
            return self.numeral()
        if (fraction := _FRACTION.match(self.text, place)) is not None:
            self.at = fraction.end()
            above, below = self.pair()
            self.operators += 1
            return self.divided(above, below)
        for name, read in ((r"\sqrt", self.radical), (r"\binom", self.binomial)):
            if self.text.startswith(name, place):
                self.at = place + len(name)
                self.operators += 1
                return read()
        if self.text.startswith(r"\pi", place) and not self.text[place + 3 : place + 4].isalpha():
            self.at, self.exact = place + 3, False
            self.operators += 1
            return _PI
        raise ExpressionSyntaxError

    def bracket(self, opening: str) -> Any:
        self.depth += 1
        if self.depth > self.max_depth:
            raise ExpressionTooLarge
        self.at += len(opening)
        number = self.enclosed()
        self.at = self.skipped()
        if not self.text.startswith(_CLOSE[opening], self.at):
            raise ExpressionSyntaxError
        self.at += len(opening)
        self.depth -= 1
        return number

    def enclosed(self) -> Any:
        return self.total()

    def numeral(self) -> Fraction:
        match = _RUN.match(self.text, self.at)
        if match is None:
            raise ExpressionSyntaxError
        run = match["run"] or match["spaced"].replace(" ", ",")
        run = _SEPARATORS.sub(",", _DECIMAL_COMMA.sub(r"\1.\2", run))
        exponent = int((match["exponent"] or "0")[:8])
        if not _GROUPED.fullmatch(run):
            raise ExpressionSyntaxError
        digits = run.replace(",", "")
        if len(digits.replace(".", "")) > MAX_DIGITS or abs(exponent) > MAX_EXPONENT:
            raise ExpressionTooLarge
        self.listed |= len(digits) > 1 and digits[0] == "0" and digits[1] != "."
        self.at = match.end()
        number = Fraction(digits)
        if match["period"] or match["dots"]:
            number = self.repeating(digits, match)
        if exponent:
            number = self.within_limits(number * Fraction(10) ** exponent)
        if number.denominator == 1 and run.isdigit() and _MIXED.match(self.text, self.at):
            return self.mixed(number)
        return number

    def repeating(self, digits: str, match: re.Match[str]) -> Fraction:
        r"""``0.8\overline{3}``, and ``0.666...`` where a period is seen three times."""
        whole, _, places = digits.partition(".")
        period = match["period"]
        if period is None:
            repeated = _REPEATED.search(places)
            if repeated is None:
                self.at = match.start("dots")
                return Fraction(digits)
            period = repeated[1]
        scale = 10 ** len(places) * (10 ** len(period) - 1)
        return Fraction(f"{whole or 0}.{places or 0}") + Fraction(int(period), scale)

    def mixed(self, whole: Fraction) -> Any:
        r"""``1 1/2`` and ``1\frac{1}{2}``: a whole number and a proper fraction are a sum."""
        place = self.at
        self.step()
        self.at = self.skipped()
        if _FRACTION.match(self.text, self.at):
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

    def pair(self) -> tuple[Any, Any]:
        if (digits := _TWO_SHORT.match(self.text, self.at)) is not None:  # \frac12
            self.at = digits.end()
            return Fraction(digits[1]), Fraction(digits[2])
        return self.argument(), self.argument()

    def argument(self) -> Any:
        self.step()
        self.at = self.skipped()
        if self.text[self.at : self.at + 1] in ("{", "("):
            return self.bracket(self.text[self.at])
        if (digit := _SHORT.match(self.text, self.at)) is None:
            raise ExpressionSyntaxError
        self.at = digit.end()
        return Fraction(digit[1])

    def radical(self) -> Any:
        degree = self.bracket("[") if self.text[self.at : self.at + 1] == "[" else Fraction(2)
        return self.root(self.argument(), self.count(degree))

    def binomial(self) -> Any:
        above, below = (self.count(number) for number in self.pair())
        return self.within_limits(Fraction(math.comb(above, below)))

    def root(self, number: Any, degree: int) -> Any:
        if number < 0 or not 1 < degree <= 10:
            raise ExpressionSyntaxError
        above, below = _root(number.numerator, degree), _root(number.denominator, degree)
        if above**degree == number.numerator and below**degree == number.denominator:
            return self.within_limits(Fraction(above, below))
        self.exact = False
        if max(number.numerator, number.denominator).bit_length() > _MAX_BITS // 10:
            raise ExpressionTooLarge
        scale = 10 ** (_ROOT_DIGITS + number.denominator.bit_length() // 3)
        scaled = number.numerator * scale**degree // number.denominator
        return self.within_limits(Fraction(_root(scaled, degree), scale))

    def count(self, number: Any) -> int:
        if number.denominator != 1 or number < 0:
            raise ExpressionSyntaxError
        if number > _MAX_COUNT:
            raise ExpressionTooLarge
        return int(number)

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
        match = _SPACE.match(self.text, self.at)
        return match.end() if match else self.at

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.max_steps:
            raise ExpressionTooLarge

    def added(self, number: Any, other: Any) -> Any:
        return self.within_limits(number + other)

    def combined(self, operator: str, number: Any, other: Any) -> Any:
        if operator in ("/", r"\div"):
            return self.divided(number, other)
        return self.within_limits(number * other)

    def divided(self, number: Any, other: Any) -> Any:
        return self.within_limits(number / other)

    def within_limits(self, number: Any) -> Any:
        """``number``, if it is no larger than an operand of the next step may be."""
        size = max(number.numerator.bit_length(), number.denominator.bit_length())
        self.bits += size
        if size > _MAX_BITS or self.bits > _ALL_BITS:
            raise ExpressionTooLarge
        return number


def _root(number: int, degree: int) -> int:
    """The whole part of the root of ``number``, by Newton's method."""
    if degree == 2:
        return math.isqrt(number)
    root = 1 << -(-number.bit_length() // degree)
    while (
        root and (better := ((degree - 1) * root + number // root ** (degree - 1)) // degree) < root
    ):
        root = better
    return root
