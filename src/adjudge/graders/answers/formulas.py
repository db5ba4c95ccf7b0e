r"""The value of a formula with names, at a few fixed points.

Each name has a value there, of 80 digits, and two formulas are equal where their values are. What
has no meaning here (``f'(x)``, ``\vec{a}``, ``A \cup B``, a word) is a name, or an unknown function
of its parts, so no part of a text is left out. ``i`` is the imaginary unit, ``e`` Euler's number.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from adjudge.graders.answers.expressions import (
    ExpressionSyntaxError,
    ExpressionTooLarge,
    Reader,
)
from adjudge.graders.answers.normal_text import as_text

_DIGITS = 80
_SAME = Fraction(1, 10**45)  # relative; equal values agree to this, whatever has cancelled
_NOTHING = 1e-60  # relative; a sum that cancels to this is zero
_ABSORBED = 1e-75  # relative; a term below this would be lost
_POINTS = 4
_MAX_BITS = 2**40  # of a value's magnitude
_MAX_ARGUMENT = 10**6  # of a factorial

_OPERATOR = re.compile(
    r"\\(?:cup|cap|land|lor|setminus|to|equiv|pmod|perp|parallel|subset(?:eq)?|supset(?:eq)?|sim"
    r"|cong|in|notin|implies|iff|circ|oplus|otimes|mid|le|ge|ne|approx|propto|choose)(?![A-Za-z])"
    r"|->|[:<>=|]"
)
_ANY_ORDER = {rf"\{one}" for one in "cup cap land lor oplus perp parallel iff ne =".split()} | {"="}
_NO_FACTOR = re.compile(
    r"\\(?:times|cdot|div|mod|pm|mp|rfloor|rceil|rangle|end)(?![A-Za-z])|" + _OPERATOR.pattern
)
_FACTOR = re.compile(r"[^\W\d_]|[(\[{|]|\\[A-Za-z]|\\\{")
_FUNCTION = re.compile(
    r"\\(arc(?:sin|cos|tan)|(?:sin|cos|tan)h?|cot|sec|csc|ln|lg|log|exp|max|min|gcd|lcm)(?![A-Za-z])"
)
_ACCENT = re.compile(
    r"\\(vec|hat|bar|tilde|overline|overarc|widehat|angle|triangle|neg|lnot|Delta|nabla|partial|det"
    r"|deg|arg|Re|Im)(?![A-Za-z])"
)
_GREEK = re.compile(
    r"\\((?:var)?(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|nu|xi|rho|sigma"
    r"|tau|phi|chi|psi|omega)|Gamma|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|ell|hbar|emptyset"
    r"|mathbb\s*\{\w\}|mathcal\s*\{\w\})"
)
_BASED = re.compile(r"(?=[0-9A-F]*\d)([0-9A-F]+)\s?_\s?(?:\{\s?(\d+)\s?\}|(\d+))")
_NAME = re.compile(r"[A-Za-z]{4,}|[A-Za-zα-ωΑ-Ω]|[^\W\d_a-zA-Zα-ωΑ-Ω]+")
_MARKS = re.compile(r"\s?(?:_\s?(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\\?\w))|('+))")
_TRANSPOSED = re.compile(r"\s*\^\s*(?:T|\*|\{\s*(?:T|\*|\\dagger|\\word\{T\})\s*\}|\\dagger)(?![A-Za-z])")
_INVERSE = re.compile(r"\s*\^\s*\{?\s*-\s*1\s*\}?(?=\s*\()")
_APPLIED = re.compile(r"[fghFGHP](?:$|[_'^])")


class Values(NamedTuple):
    """What a formula is worth at each point; one value where it has no names.

    ``outside``: the points that lie outside its real domain. ``ordered``: its factors may not
    change places, so it is equal only as text.
    """

    points: tuple[Any, ...]
    outside: frozenset[int]
    ordered: bool


@lru_cache(maxsize=4096)
def evaluate(formula: str) -> Values | None:
    r"""The values of all of a formula in normal form; ``None`` for what is none.

    Raises :class:`~adjudge.graders.answers.expressions.ExpressionTooLarge`.

    >>> evaluate(r"x\cdot(x+1)") == evaluate("x^2+x")
    False
    >>> are_equal(evaluate(r"x\cdot(x+1)"), evaluate("x^2+x"))
    True
    """
    readers = []
    for point in range(_POINTS):
        reader = _PointReader(formula, point)
        try:
            value = reader.enclosed()
        except (ExpressionSyntaxError, ValueError, ZeroDivisionError, TypeError, OverflowError) as error:
            if isinstance(error, ExpressionTooLarge):
                raise
            return None
        if reader.skipped() < len(formula):
            return None
        readers.append((value, reader))
        if not reader.names:
            break
    outside = frozenset(place for place, (_, reader) in enumerate(readers) if reader.outside)
    ordered = any(reader.ordered for _, reader in readers)
    return Values(tuple(value for value, _ in readers), outside, ordered)


def are_equal(first: Values, second: Values) -> bool:
    """Whether two formulas have the same values, where both have real ones."""
    if first.ordered or second.ordered:
        return False
    places = set(range(max(len(first.points), len(second.points))))
    places = places - first.outside - second.outside or places
    return all(are_close(at(first, place), at(second, place)) for place in places)


def at(values: Values, place: int) -> Any:
    """The value at a point, also of a formula without names."""
    return values.points[min(place, len(values.points) - 1)]


def are_close(first: Any, second: Any) -> bool:
    """Fractions exactly, other values to 45 digits."""
    if first == second or (isinstance(first, Fraction) and isinstance(second, Fraction)):
        return bool(first == second)
    first, second = wide(first), wide(second)
    if not (_context().isfinite(first) and _context().isfinite(second)):
        return False
    gap = abs(first - second)
    return bool(gap <= float(_SAME) * max(abs(first), abs(second)))


@cache
def _context() -> Any:
    import mpmath  # noqa: PLC0415  (comes with the library for maths)

    context = mpmath.mp.clone()
    context.dps = _DIGITS
    return context


def wide(number: Any) -> Any:
    """A number with 80 digits, from an exact one."""
    if isinstance(number, Fraction):
        return _context().mpf(number.numerator) / number.denominator
    return number


class _PointReader(Reader):
    """Formulas, at one point."""

    max_depth, max_steps = 40, 1_500
    products = re.compile(Reader.products.pattern + r"|\\mod(?![A-Za-z])")
    postfixes = re.compile(Reader.postfixes.pattern + r"|\s*\^\s*\{?\s*\\circ\s*\}?")

    def __init__(self, text: str, point: int) -> None:
        super().__init__(text)
        self.point = point
        self.context = _context()
        self.names = self.outside = self.ordered = False
        self.bars = 0

    def enclosed(self) -> Any:
        parts, operators = [self.total()], []
        while (operator := self.operator(_OPERATOR)) is not None:
            operators.append(operator[1])
            parts.append(self.total())
        if operators == [r"\choose"]:
            return self.chosen(*parts)
        if set(operators) <= _ANY_ORDER and len(set(operators)) == 1:
            parts.sort(key=self.key)
        return self.unknown(" ".join(operators), *parts) if operators else parts[0]

    def implied(self) -> bool:
        place = self.skipped()
        if _NO_FACTOR.match(self.text, place) and (self.text[place] != "|" or self.bars):
            return False
        return _FACTOR.match(self.text, place) is not None

    def atom(self) -> Any:
        self.step()
        place = self.at = self.skipped()
        if (based := _BASED.match(self.text, place)) is not None:
            self.at = based.end()
            return self.named(f"{based[1]}_{based[2] or based[3]}")
        if self.text.startswith("...", place):
            self.at += 3
            return self.named("...")
        sign = self.text[place : place + 1]
        if sign == "|":
            return self.absolute()
        if sign.isalpha():
            return self.name(_NAME.match(self.text, place))
        if sign == "\\" and (read := self.command(place)) is not None:
            return read
        return super().atom()

    def numeral(self) -> Any:
        try:
            return super().numeral()
        except ExpressionTooLarge:
            raise
        except ExpressionSyntaxError:
            if (digits := re.compile(r"\d+(?=,)").match(self.text, self.at)) is None:
                raise
            self.at = digits.end()  # a list in brackets
            return Fraction(digits[0])

    def absolute(self) -> Any:
        self.at += 1
        self.bars += 1
        number = self.total()
        self.bars -= 1
        self.at = self.skipped()
        if not self.text.startswith("|", self.at):
            raise ExpressionSyntaxError
        self.at += 1
        return abs(number)

    def command(self, place: int) -> Any:
        text = self.text
        for name, down in (("floor", True), ("ceil", False)):
            if text.startswith(rf"\l{name}", place):
                self.at = place + len(name) + 2
                number, close = self.total(), self.skipped()
                if not text.startswith(rf"\r{name}", close):
                    raise ExpressionSyntaxError
                self.at = close + len(name) + 2
                rounded = self.context.floor if down else self.context.ceil
                return Fraction(int(rounded(wide(number))))
        if text.startswith(r"\word{", place):
            self.at = text.index("}", place) + 1
            return self.named(as_text(text[place + 6 : self.at - 1]))
        if text.startswith(r"\infty", place):
            self.at = place + 6
            return self.context.inf
        if (function := _FUNCTION.match(text, place)) is not None:
            self.at = function.end()
            return self.function(function[1])
        if (accent := _ACCENT.match(text, place)) is not None:
            self.at = accent.end()
            return self.accented(accent[1])
        if (greek := _GREEK.match(text, place)) is not None:
            return self.name(greek)
        return None

    def accented(self, name: str) -> Any:
        """An accent over letters, ``\\angle ABC``: the letters keep their order."""
        place = self.skipped()
        over = re.compile(r"\{([^{}]*)\}|([A-Za-z]+'*)").match(self.text, place)
        if over is None:
            return self.unknown(name, self.power())
        self.at = over.end()
        return self.named(f"{name} {as_text(over[1] or over[2])}")

    def name(self, match: re.Match[str] | None) -> Any:
        if match is None:
            raise ExpressionSyntaxError
        self.at, name = match.end(), match[0].replace(" ", "")
        while (mark := _MARKS.match(self.text, self.at)) is not None:
            self.at = mark.end()
            name += mark[3] or "_" + as_text(mark[1] or mark[2])
        if name in ("e", "i"):
            return self.context.e if name == "e" else self.context.mpc(0, 1)
        if (transposed := _TRANSPOSED.match(self.text, self.at)) is not None and len(match[0]) == 1:
            self.at, self.ordered = transposed.end(), True
            return self.named(name + "^T")
        if _APPLIED.match(name):
            if (inverse := _INVERSE.match(self.text, self.at)) is not None:
                self.at, name = inverse.end(), name + "^-1"
            if self.text[self.skipped() : self.skipped() + 1] == "(":
                return self.unknown(name, *self.arguments())
        return self.named(name)

    def arguments(self) -> list[Any]:
        """``(a, b)``."""
        self.step()
        self.at, found = self.skipped() + 1, []
        while True:
            found.append(self.enclosed())
            self.at = self.skipped() + 1
            if self.text[self.at - 1 : self.at] != ",":
                break
        if self.text[self.at - 1 : self.at] not in (")", "}"):
            raise ExpressionSyntaxError
        return found

    def function(self, name: str) -> Any:
        base = power = None
        if self.text[self.skipped() : self.skipped() + 1] == "_":
            self.at = self.skipped() + 1
            base = self.argument()
        if self.text[self.skipped() : self.skipped() + 1] == "^":
            self.at = self.skipped() + 1
            power = self.signed_argument()
        if self.text[self.skipped() : self.skipped() + 1] in ("(", "{"):
            values = self.arguments()
        else:
            value = self.signed()
            while self.implied() and not _FUNCTION.match(self.text, self.skipped()):
                value = self.combined("", value, self.power())
            values = [value]
        if power == -1 and name in ("sin", "cos", "tan"):
            name, power = "arc" + name, None
        result = self.applied(name, base, values)
        return result if power is None else self.raised(result, power)

    def signed_argument(self) -> Any:
        return self.bracket("{") if self.text[self.skipped()] == "{" else self.argument()

    def argument(self) -> Any:
        self.at = self.skipped()
        if self.text[self.at : self.at + 1] in ("{", "(") or self.text[self.at : self.at + 1].isdigit():
            return super().argument()
        return self.atom()

    def applied(self, name: str, base: Any, values: list[Any]) -> Any:
        context, value = self.context, wide(values[0])
        if name in ("max", "min", "gcd", "lcm"):
            if name in ("max", "min"):
                return {"max": max, "min": min}[name](values, key=lambda one: wide(one).real)
            if not all(isinstance(one, Fraction) and one.denominator == 1 for one in values):
                return self.unknown(name, *sorted(values, key=self.key))
            return Fraction(getattr(math, name)(*map(int, values)))
        if len(values) > 1:
            raise ExpressionSyntaxError
        if name in ("ln", "log", "lg"):
            if value == 0:
                raise ExpressionSyntaxError
            self.left_domain(value.real < 0 or value.imag != 0)
            base = Fraction(10) if name == "lg" else base
            return context.ln(value) / (1 if base is None else context.ln(wide(base)))
        if name == "exp":
            return self.raised(context.e, values[0])
        if name in ("arcsin", "arccos"):
            self.left_domain(abs(value) > 1)
        if abs(value) > 10**30:
            raise ExpressionTooLarge
        result = getattr(context, name.replace("arc", "a"))(value)
        result = context.chop(result, tol=_NOTHING)
        if abs(result) > 1 / _NOTHING:  # tan 90°
            raise ExpressionSyntaxError
        return result

    def left_domain(self, left: bool) -> None:
        """A root or logarithm of something negative, of which the names are the cause."""
        self.outside |= bool(left) and self.names

    def after(self, number: Any, postfix: str) -> Any:
        if "circ" in postfix:
            return self.combined("", number, self.context.pi / 180)
        return super().after(number, postfix)

    def factorial(self, number: Any) -> Any:
        if isinstance(number, Fraction) and number.denominator == 1 and 0 <= number <= 1_000:
            return Fraction(math.factorial(int(number)))
        if abs(number) > _MAX_ARGUMENT:
            return self.unknown("!", number)
        return self.context.factorial(wide(number))

    def binomial(self) -> Any:
        return self.chosen(*self.pair())

    def chosen(self, above: Any, below: Any) -> Any:
        whole = all(isinstance(one, Fraction) and one.denominator == 1 for one in (above, below))
        if whole and 0 <= below <= above <= 1_000:
            return Fraction(math.comb(int(above), int(below)))
        if max(abs(wide(above)), abs(wide(below))) > _MAX_ARGUMENT:
            return self.unknown("binom", above, below)
        return self.context.binomial(wide(above), wide(below))

    def radical(self) -> Any:
        degree = self.bracket("[") if self.text[self.at : self.at + 1] == "[" else Fraction(2)
        number = self.argument()
        if isinstance(degree, Fraction) and degree.denominator == 1 and 1 < degree <= 10:
            return self.root(number, int(degree))
        return self.raised(number, self.divided(Fraction(1), degree))

    def root(self, number: Any, degree: int) -> Any:
        if isinstance(number, Fraction) and number >= 0:
            root = super().root(number, degree)
            return root if root**degree == number else wide(root)
        real = isinstance(number, Fraction) or number.imag == 0
        if real and number.real < 0 and degree % 2:
            return -self.root(-number.real, degree)
        self.left_domain(not real or number.real < 0)
        return self.context.root(wide(number), degree)

    def raised(self, number: Any, exponent: Any) -> Any:
        if isinstance(exponent, Fraction) and exponent.denominator == 1:
            power = int(exponent)
            if isinstance(number, Fraction):
                if not number and power <= 0:
                    raise ExpressionSyntaxError
                size = max(number.numerator.bit_length(), number.denominator.bit_length())
                if size * abs(power) <= 15_000:
                    return number**power
        elif isinstance(exponent, Fraction) and exponent.denominator <= 10 and isinstance(number, Fraction) and number >= 0:
            return self.raised(self.root(number, exponent.denominator), Fraction(exponent.numerator))
        else:
            self.left_domain(wide(number).imag != 0 or wide(number).real < 0)
        base, power = wide(number), wide(exponent)
        if not base:
            return Fraction(0)
        if abs(self.context.ln(base)) * abs(power) > _MAX_BITS:
            return self.unknown("^", number, exponent)
        return self.context.chop(self.context.power(base, power), tol=0) if power.imag == 0 else self.context.chop(
            self.context.power(base, power), tol=_NOTHING
        )

    def added(self, number: Any, other: Any) -> Any:
        if isinstance(number, Fraction) and isinstance(other, Fraction):
            return self.within_limits(number + other)
        number, other = wide(number), wide(other)
        result, sizes = number + other, sorted((abs(number), abs(other)))
        if sizes[1] == self.context.inf:
            return result
        if abs(result) <= sizes[1] * _NOTHING:
            return Fraction(0)
        if 0 < sizes[0] < sizes[1] * _ABSORBED:
            raise ExpressionTooLarge
        return result

    def combined(self, operator: str, number: Any, other: Any) -> Any:
        if operator == r"\mod":
            if not (isinstance(number, Fraction) and isinstance(other, Fraction) and other):
                return self.unknown("mod", number, other)
            return number % other
        if operator in ("/", r"\div"):
            return self.divided(number, other)
        if isinstance(number, Fraction) and isinstance(other, Fraction):
            return self.within_limits(number * other)
        return wide(number) * wide(other)

    def divided(self, number: Any, other: Any) -> Any:
        if not other:
            return self.unknown("/0", number)
        if isinstance(number, Fraction) and isinstance(other, Fraction):
            return self.within_limits(number / other)
        return wide(number) / wide(other)

    def within_limits(self, number: Any) -> Any:
        size = max(number.numerator.bit_length(), number.denominator.bit_length())
        return number if size < 20_000 else wide(number)

    def named(self, name: str) -> Any:
        self.names = True
        return self.unknown(f"{name}@{self.point}")

    def unknown(self, name: str, *parts: Any) -> Any:
        """Some value that is another one for every other function and for other parts."""
        text = f"{name}({','.join(map(self.key, parts))})"
        drawn = int.from_bytes(sha256(text.encode()).digest(), "big")
        value = self.context.mpf(drawn) / 2**256 * self.context.mpf("0.3") + self.context.mpf("0.85")
        return -value if self.point == 2 or (self.point == 3 and drawn % 2) else value

    def key(self, number: Any) -> str:
        return str(self.context.nstr(self.context.mpc(wide(number)), 40))


def infinity() -> Any:
    """The value of ``\\infty``."""
    return _context().inf
