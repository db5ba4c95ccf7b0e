r"""Exact arithmetic on the text of a policy, within limits that are checked before computing.

A recursive-descent reader of its own: no text reaches ``eval`` or a symbolic library. It knows
numerals (``1,234``, ``1 000``, ``3e5``), ``+ - * / ^ ! %``, brackets, mixed numbers, ``\frac``,
``\sqrt``, ``\binom`` and π, in LaTeX, in Unicode (½, √2, 5², ３) and as people type them.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

MAX_DIGITS = 1_000
"""A numeral with more digits is not read."""

MAX_EXPONENT = 5_000
"""Nor is a power or a scientific exponent beyond this; ``n!`` and ``\\binom`` end at 1,000."""

_MAX_COUNT = 1_000
_MAX_BITS = 20_000  # of a numerator or denominator
_ALL_BITS = 200_000  # of all results of one expression together: bounds the time it takes
_MAX_DEPTH = 20
_MAX_STEPS = 200
_ROOT_DIGITS = 60  # an irrational root is held to this many digits after the point
_PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494459")

_SIGNS = {
    "−": "-",
    "⁄": "/",
    "×": r"\times ",
    "✕": r"\times ",
    "∗": "*",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∙": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "±": r"\pm ",
    "≈": r"\approx ",
    "≅": r"\approx ",
    "°": r"^\circ ",
    "√": r"\sqrt",
    "∛": r"\sqrt[3]",
    "。": ".",
    "、": ",",
}
# Not CJK, kana or Hangul letters, which long responses are full of.
_NOT_ASCII = re.compile(r"[^\x00-\x7f\u3041-\u9fff\uac00-\ud7a3]")
_UNSEEN = "\u200b\u200c\u200d\u2060\ufeff"
_RAISED = re.compile(r"(?:\^\{[-+\d]\})+")
_DASH = re.compile(r"(\A|[=(,{+*/^:])(\s*)[–‒—](?=\s?[\d.\\$(])")
_BARE_ROOT = re.compile(r"(?<![A-Za-z])\\?sqrt(\[\d+\])?\s*(?:(\d+(?:\.\d+)?)|\(([^()]*)\))")


class ParsedValue(NamedTuple):
    """A number and where it ends in the text.

    ``exact``: no irrational root and no π in it; else the first 40 digits hold.
    ``percent``: written with a percent sign, which ``number`` includes.
    ``plain``: a numeral, signed or not; false for what had to be computed.
    """

    number: Fraction
    exact: bool
    percent: bool
    plain: bool
    end: int


def to_latex(text: str) -> str:
    r"""``text`` with Unicode digits, fractions, powers, roots and signs written as LaTeX has them.

    >>> to_latex("½ × √16 − ３²")
    '\\frac{1}{2} \\times  \\sqrt{16} - 3^{2}'
    """
    if not text.isascii():
        text = _RAISED.sub(_one_power, _NOT_ASCII.sub(lambda match: _sign(match[0]), text))
        text = _DASH.sub(r"\1\2-", text)
    return _BARE_ROOT.sub(r"\\sqrt\1{\2\3}", text) if "sqrt" in text else text


def _one_power(match: re.Match[str]) -> str:
    return "^{" + re.sub(r"[^-+\d]", "", match[0]) + "}"


@lru_cache(maxsize=1024)
def _sign(sign: str) -> str:
    kind, *parts = unicodedata.decomposition(sign).split() or [""]
    written = "".join(chr(int(part, 16)) for part in parts).replace("−", "-")
    if sign in _SIGNS or sign in _UNSEEN:
        return _SIGNS.get(sign, "")
    if kind == "<super>" and written in tuple("0123456789+-"):
        return f"^{{{written}}}"
    if kind == "<fraction>" and written[-1] != "⁄":
        return r"\frac{%s}{%s}" % (*written.split("⁄"),)  # noqa: UP031  braces abound
    if kind in ("<wide>", "<small>"):  # full-width forms and their like
        return written
    if kind == "<noBreak>" or unicodedata.category(sign) == "Zs":
        return " "
    return str(unicodedata.decimal(sign, sign))


_SPACE = re.compile(r"(?:\s|\\[;:! ]|\\?[$€£¥₹](?=\s?[\d.])|\\(?:left|right|q?quad)(?![A-Za-z]))*")
_RUN = re.compile(
    r"""(?: (?P<spaced>\d{1,3}(?:[ ]\d{3})++(?:\.\d++)?+(?![\d,]|\.\d))
          | (?P<run>(?:\d|\.(?=\d)|(?:,|\{,\}|\\[,!])(?=\d))++) )
        (?:[eE](?P<exponent>[-+]?\d++)(?![A-Za-z]))?+""",
    re.VERBOSE | re.ASCII,
)
_SEPARATORS = re.compile(r"\{,\}|\\[,!]")
_GROUPED = re.compile(r"(?:\d{1,3}(?:,\d{3})++|\d*+)(?:\.\d++)?+", re.ASCII)
_FRACTION = re.compile(r"\\[dtc]?frac(?![A-Za-z])")
_MIXED = re.compile(r"\s?\\[dtc]?frac\s*\{?\d|\s(?=\d{1,3}/\d{1,3}(?![\d/.]))\d", re.ASCII)
_SUM = re.compile(r"[-+]")
_PI_NAME = re.compile(r"\\pi(?![A-Za-z])")
_PRODUCT = re.compile(
    r"\*(?!\*)|/|\\(?:times|cdot|div|ast)(?![A-Za-z])"
    r"|(?<=\s)x\s(?=\d)|x(?=\s?10\s?(?:\^|\*\*))"  # 3 x 10^8
)
_IMPLIED = re.compile(r"\\(?:sqrt|pi|[dtc]?frac|binom)(?![A-Za-z])")
_POWER = re.compile(r"(?:\^|\*\*)(?!\s*\{?\s*\\circ)")
_POSTFIX = re.compile(r"!(?![=!])|!!+|\\?%|per\s?cent\b(?!age)")
_SHORT = re.compile(r"\s*(\d)(?!\d*[.,]?\d)", re.ASCII)
_TWO_SHORT = re.compile(r"\s*(\d)(\d)(?!\d|[.,]\d)", re.ASCII)
_CLOSE = {"(": ")", "[": "]", "{": "}"}


class ArithmeticSyntaxError(ValueError):
    """The text at this place is no arithmetic."""


class ArithmeticLimitExceeded(ValueError):
    """A number, or the work of computing it, is beyond the limits."""


def read_value(text: str, start: int = 0) -> ParsedValue | None:
    r"""The longest expression that begins at ``start``; ``None`` where none does.

    ``text`` as :func:`to_latex` returns it. Raises :class:`ArithmeticLimitExceeded` for what is
    beyond a limit.

    >>> read_value(r"2^{10} apples").number
    Fraction(1024, 1)
    """
    reader = _Reader(text, start)
    try:
        number = reader.total()
    except (ArithmeticSyntaxError, ZeroDivisionError):
        return None
    if reader.listed and reader.operators:
        return None
    return ParsedValue(number, reader.exact, reader.percent, reader.operators == 0, reader.at)


class _Reader:
    def __init__(self, text: str, start: int) -> None:
        self.text, self.at = text, start
        self.exact, self.percent = True, False
        self.listed = False  # a date or a list: 2024-05-14, 5/6/7
        self.operators = self.steps = self.depth = self.bits = 0

    def total(self) -> Fraction:
        """Terms, added and subtracted."""
        number = self.product()
        while (operator := self.operator(_SUM)) is not None:
            place, sign = operator
            other = self.attempt(self.product, place)
            if other is None:
                break
            number = self.within_limits(number + other if sign == "+" else number - other)
        return number

    def product(self) -> Fraction:
        """Factors, multiplied and divided; side by side they are multiplied."""
        number, slashes = self.signed(), 0
        while True:
            place, operator = self.operator(_PRODUCT) or (self.at, "")
            slashes += operator == "/"
            self.listed |= slashes > 1
            if not operator and not self.implied():
                return number
            self.operators += not operator
            other = self.attempt(self.signed if operator else self.power, place)
            if other is None:
                return number
            number = self.within_limits(
                number / other if operator in ("/", r"\div") else number * other
            )

    def implied(self) -> bool:
        """Whether a factor follows without a sign; "5 (6)" is two numbers, not a product."""
        return self.text[self.at : self.at + 1] == "(" or bool(
            _IMPLIED.match(self.text, self.skipped())
        )

    def signed(self) -> Fraction:
        self.step()
        place = self.skipped()
        if self.text[place : place + 1] not in ("-", "+"):
            return self.power()
        self.at = place + 1
        number = self.signed()
        return -number if self.text[place] == "-" else number

    def power(self) -> Fraction:
        number = self.atom()
        while (postfix := _POSTFIX.match(self.text, self.skipped())) is not None:
            number = self.after(number, postfix[0])
            self.at = postfix.end()
        if (operator := self.operator(_POWER)) is not None:
            exponent = self.attempt(self.signed, operator[0])
            if exponent is not None:
                number = self.raised(number, exponent)
        return number

    def after(self, number: Fraction, postfix: str) -> Fraction:
        if postfix.startswith("!"):
            self.operators += 1
            return self.within_limits(Fraction(math.factorial(self.count(number, postfix == "!"))))
        self.percent = True
        return self.within_limits(number / 100)

    def raised(self, number: Fraction, exponent: Fraction) -> Fraction:
        if exponent.denominator != 1:
            number = self.root(number, exponent.denominator)
        power = exponent.numerator
        size = max(number.numerator.bit_length(), number.denominator.bit_length())
        if abs(power) > MAX_EXPONENT or size * abs(power) > _MAX_BITS:
            raise ArithmeticLimitExceeded
        if not number and power <= 0:
            raise ArithmeticSyntaxError
        return self.within_limits(number**power)

    def atom(self) -> Fraction:
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
            return self.within_limits(above / below)
        for name, read in ((r"\sqrt", self.radical), (r"\binom", self.binomial)):
            if self.text.startswith(name, place):
                self.at = place + len(name)
                self.operators += 1
                return read()
        if _PI_NAME.match(self.text, place):
            self.at, self.exact = place + 3, False
            self.operators += 1
            return _PI
        raise ArithmeticSyntaxError

    def bracket(self, opening: str) -> Fraction:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ArithmeticLimitExceeded
        self.at += 1
        number = self.total()
        self.at = self.skipped()
        if self.text[self.at : self.at + 1] != _CLOSE[opening]:
            raise ArithmeticSyntaxError
        self.at += 1
        self.depth -= 1
        return number

    def numeral(self) -> Fraction:
        match = _RUN.match(self.text, self.at)
        if match is None:
            raise ArithmeticSyntaxError
        run = _SEPARATORS.sub(",", match["run"] or match["spaced"].replace(" ", ","))
        exponent = int((match["exponent"] or "0")[:8])
        if not _GROUPED.fullmatch(run):
            raise ArithmeticSyntaxError
        digits = run.replace(",", "")
        if len(digits.replace(".", "")) > MAX_DIGITS or abs(exponent) > MAX_EXPONENT:
            raise ArithmeticLimitExceeded
        self.listed |= len(digits) > 1 and digits[0] == "0" and digits[1] != "."
        self.at = match.end()
        number = Fraction(digits)
        if exponent:
            number = self.within_limits(number * Fraction(10) ** exponent)
        if number.denominator == 1 and run.isdigit() and _MIXED.match(self.text, self.at):
            return self.mixed(number)
        return number

    def mixed(self, whole: Fraction) -> Fraction:
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
        if 0 < part < 1:
            self.operators += 1
            return self.within_limits(whole + part)
        self.at = place
        return whole

    def pair(self) -> tuple[Fraction, Fraction]:
        if (digits := _TWO_SHORT.match(self.text, self.at)) is not None:  # \frac12
            self.at = digits.end()
            return Fraction(digits[1]), Fraction(digits[2])
        return self.argument(), self.argument()

    def argument(self) -> Fraction:
        self.step()
        self.at = self.skipped()
        if self.text[self.at : self.at + 1] in ("{", "("):
            return self.bracket(self.text[self.at])
        if (digit := _SHORT.match(self.text, self.at)) is None:
            raise ArithmeticSyntaxError
        self.at = digit.end()
        return Fraction(digit[1])

    def radical(self) -> Fraction:
        degree = self.bracket("[") if self.text[self.at : self.at + 1] == "[" else Fraction(2)
        return self.root(self.argument(), self.count(degree))

    def binomial(self) -> Fraction:
        above, below = (self.count(number) for number in self.pair())
        return self.within_limits(Fraction(math.comb(above, below)))

    def root(self, number: Fraction, degree: int) -> Fraction:
        if number < 0 or not 1 < degree <= 10:
            raise ArithmeticSyntaxError
        above, below = _root(number.numerator, degree), _root(number.denominator, degree)
        if above**degree == number.numerator and below**degree == number.denominator:
            return self.within_limits(Fraction(above, below))
        self.exact = False
        if max(number.numerator, number.denominator).bit_length() > _MAX_BITS // 10:
            raise ArithmeticLimitExceeded
        scale = 10**_ROOT_DIGITS
        scaled = number.numerator * scale**degree // number.denominator
        return self.within_limits(Fraction(_root(scaled, degree), scale))

    def count(self, number: Fraction, allowed: bool = True) -> int:
        if not allowed or number.denominator != 1 or number < 0:
            raise ArithmeticSyntaxError
        if number > _MAX_COUNT:
            raise ArithmeticLimitExceeded
        return number.numerator

    def operator(self, pattern: re.Pattern[str]) -> tuple[int, str] | None:
        """Consume an operator; where reading stood before it, and the operator."""
        match = pattern.match(self.text, self.skipped())
        if match is None:
            return None
        place, self.at = self.at, match.end()
        self.operators += 1
        return place, match[0]

    def attempt(self, read: Callable[[], Fraction], place: int) -> Fraction | None:
        """What ``read`` finds behind an operator; without any, reading goes back to ``place``."""
        before = self.exact, self.percent, self.listed, self.operators - 1, self.depth
        try:
            return read()
        except ArithmeticSyntaxError:
            self.exact, self.percent, self.listed, self.operators, self.depth = before
            self.at = place
            return None

    def skipped(self) -> int:
        match = _SPACE.match(self.text, self.at)
        return match.end() if match else self.at

    def step(self) -> None:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise ArithmeticLimitExceeded

    def within_limits(self, number: Fraction) -> Fraction:
        """``number``, if it is no larger than an operand of the next step may be."""
        size = max(number.numerator.bit_length(), number.denominator.bit_length())
        self.bits += size
        if size > _MAX_BITS or self.bits > _ALL_BITS:
            raise ArithmeticLimitExceeded
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
