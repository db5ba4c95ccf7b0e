r"""The reader of expressions in the text of a policy, within limits that are checked beforehand.

A recursive-descent reader of its own: no text reaches ``eval`` or a symbolic library. It knows
numerals (``1,234``, ``1 000``, ``3e5``, ``0.\overline{3}``), ``+ - * / ^ ! %``, brackets, mixed
numbers, ``\frac``, ``\sqrt``, ``\binom`` and π; with names also functions, absolute values,
accents, subscripts and primes. A name has some value at each point. What has no meaning here
(``f'(x)``, ``\vec{a}``, ``A \cup B``, a word) is a name, or an unknown function of its parts, so no
part of a text is left out. ``i`` is the imaginary unit, ``e`` Euler's number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from hashlib import sha256
from typing import Any

from adjudge.graders.answers.answer_text import FUNCTIONS, comparable_text
from adjudge.graders.answers.numerals import (
    FRACTION,
    MAX_BITS,
    MAX_EXPONENT,
    ExpressionSyntaxError,
    ExpressionTooLarge,
    NumeralReader,
    context,
    size_of,
    wide,
)

_MAX_COUNT = 1_000
_MAX_MAGNITUDE = 2**40  # of the exponent of a value at a point
_ROOT_DIGITS = 100  # of an irrational root in arithmetic
_NOTHING = 10**60  # times a sum that is zero is less than its terms
_ABSORBED = 10**75  # times a term that would be lost is less than the other
_PI = Fraction(
    "3.141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825"
    "342117067982148086513282306647"
)

_PRODUCT = re.compile(
    r"\*(?!\*)|/|\\(?:times|cdot|div|ast|mod)(?![A-Za-z])"
    r"|(?<=\s)x\s(?=\d)|x(?=\s?10\s?(?:\^|\*\*))"  # 3 x 10^8
)
_IMPLIED = re.compile(r"\\(?:sqrt|pi|[dtc]?frac|binom)(?![A-Za-z])")
_POWER = re.compile(r"(?:\^|\*\*)(?!\s*\{?\s*\\circ)")
_POSTFIX = re.compile(r"!(?![=!])|!!+|\\?%|per\s?cent\b(?!age)")
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?")
_SHORT = re.compile(r"(?a)\s*(\d)(?!\d*[.,]?\d)")
_TWO_SHORT = re.compile(r"(?a)\s*(\d)\s?(\d)(?!\d|[.,]\d)")
_CLOSE = {"(": ")", "[": "]", "{": "}"}

# With names.
_RELATION = re.compile(
    r"\\(?:cup|cap|land|lor|setminus|to|equiv|pmod|perp|parallel|su[bp]set(?:eq)?|sim|cong|in|notin"
    r"|implies|iff|circ|oplus|otimes|mid|le|ge|ne|approx|propto|choose)(?![A-Za-z])|->|[:<>=|]"
)
_ANY_ORDER = re.findall(r"\S+", r"= \cup \cap \land \lor \oplus \perp \parallel \iff \ne")
_NO_FACTOR = re.compile(
    rf"\\(?:times|cdot|div|mod|pm|mp|r(?:floor|ceil|angle)|end)(?![A-Za-z])|{_RELATION.pattern}"
)
_FACTOR = re.compile(r"[^\W\d_]|[(\[{|]|\\[A-Za-z]")
_ATOM = re.compile(
    r"""(?P<based>(?=[0-9A-F]*\d)[0-9A-F]+\s?_\s?(?:\{\s?\d+\s?\}|\d+))
      | (?P<word>\\word\{[^{}]*\}|\.\.\.)
      | (?P<bars>\|)
      | \\l(?P<rounded>floor|ceil)
      | (?P<infinity>\\infty)
      | \\(?P<function>"""
    + FUNCTIONS
    + r""")(?![A-Za-z])
      | (?P<accent>\\(?:vec|hat|bar|tilde|over\w+|wide\w+|angle|triangle|neg|lnot|Delta|nabla
        |partial|det|deg|arg|Re|Im)(?![A-Za-z])\s*(?:\{[^{}]*\}|[A-Za-z]+'*)?)
      | (?P<name>\\(?:math(?:bb|cal)\s*\{\w\}|(?:var)?[a-z]{2,6}ta|(?:var)?phi|[Gg]amma|alpha|kappa
        |[Ll]ambda|nu|[Xx]i|rho|[Ss]igma|tau|Phi|chi|[Pp]si|[Oo]mega|epsilon|varepsilon|ell|hbar
        |emptyset|sum|prod|i?int|lim)(?![A-Za-z])|[A-Za-z]{4,}|[A-Za-zα-ωΑ-Ω]|[^\W\d_a-zA-Zα-ωΑ-Ω]+)""",
    re.VERBOSE,
)
_MARKS = re.compile(r"\s?(?:_\s?(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\\?\w))|('+))")
_TRANSPOSED = re.compile(r"\s*\^\s*(?:T|\*|\\dagger|\{\s*(?:T|\*|\\dagger)\s*\})(?![A-Za-z])")
_BELOW, _ABOVE, _CALL = re.compile("_"), re.compile(r"\^"), re.compile(r"\\(?:sin|cos|tan|ln|log)")
_OF_SEVERAL: dict[str, Any] = {"max": max, "min": min, "gcd": math.gcd, "lcm": math.lcm}
_INVERSE = re.compile(r"\s*\^\s*\{?\s*-\s*1\s*\}?(?=\s*\()")
_APPLIED = re.compile(r"[fghFGHP](?![A-Za-z])")


class Reader(NumeralReader):
    """Arithmetic alone (a name ends it), or with names, at one ``point``."""

    def enclosed(self) -> Any:
        r"""A total, or several that ``\cup``, ``\equiv`` and their like relate."""
        parts, signs = [self.total()], []
        while self.point is not None and (found := self.operator(_RELATION)) is not None:
            signs.append(found[1])
            parts.append(self.total())
        if signs == [r"\choose"]:
            return self.counted("binomial", math.comb, *parts)
        if len(set(signs)) == 1 and signs[0] in _ANY_ORDER:
            parts.sort(key=self.key)
        return self.unknown(" ".join(signs), *parts) if signs else parts[0]

    def total(self) -> Any:
        """Terms, added and subtracted."""
        number = self.product()
        while (found := self.operator(re.compile("[-+]"))) is not None:
            place, sign = found
            other = self.attempt(self.product, place)
            if other is None:
                break
            number = self.combined(sign, number, other)
        return number

    def product(self) -> Any:
        """Factors, multiplied and divided; side by side they are multiplied."""
        number, slashes = self.signed(), 0
        while True:
            place, sign = self.operator(_PRODUCT) or (self.at, "")
            slashes += sign == "/"
            self.listed |= slashes > 1
            if not sign and not self.implied():
                return number
            self.operators += not sign
            other = self.attempt(self.signed if sign else self.power, place)
            if other is None:
                return number
            number = self.combined(sign, number, other)

    def implied(self) -> bool:
        """Whether a factor follows without a sign; "5 (6)" is two numbers, not a product."""
        place = self.skipped()
        if self.point is None:
            return self.text.startswith("(", self.at) or bool(_IMPLIED.match(self.text, place))
        if _NO_FACTOR.match(self.text, place) and (self.text[place] != "|" or self.bars):
            return False
        return _FACTOR.match(self.text, place) is not None

    def signed(self) -> Any:
        """A factor with its signs."""
        self.step()
        place = self.skipped()
        if self.text[place : place + 1] not in ("-", "+"):
            return self.power()
        self.at = place + 1
        number = self.signed()
        return -number if self.text[place] == "-" else number

    def power(self) -> Any:
        """A factor with the signs after it and its exponent."""
        number = self.atom()
        while (postfix := _POSTFIX.match(self.text, self.skipped())) is not None:
            self.at = postfix.end()
            if postfix[0] == "!":
                self.operators += 1
                number = self.counted("factorial", math.factorial, number)
            elif postfix[0][0] == "!":
                raise ExpressionSyntaxError
            else:
                self.percent, number = True, self.combined("/", number, Fraction(100))
        if self.point is not None and (degrees := _DEGREES.match(self.text, self.at)) is not None:
            self.at, self.exact = degrees.end(), False
            number = self.combined("", number, _PI / 180)
        if (found := self.operator(_POWER)) is not None:
            exponent = self.attempt(self.signed, found[0])
            if exponent is not None:
                number = self.raised(number, exponent)
        return number

    def atom(self) -> Any:  # noqa: PLR0911  (a kind each)
        """A number, a bracket, a command or a name."""
        self.step()
        place = self.at = self.skipped()
        sign = self.text[place : place + 1]
        if self.point is not None and (found := _ATOM.match(self.text, place)) is not None:
            self.at = found.end()
            return getattr(self, f"_{found.lastgroup}")(found[str(found.lastgroup)])
        if sign and sign in _CLOSE:
            return self.bracket(sign)
        if sign != "\\":
            return self.numeral()
        self.operators += 1
        if (fraction := FRACTION.match(self.text, place)) is not None:
            self.at = fraction.end()
            return self.combined("/", *self.pair())
        if self.text.startswith(r"\sqrt", place):
            self.at = place + 5
            degree = self.bracket("[") if self.text.startswith("[", self.at) else Fraction(2)
            return self.raised(self.argument(), self.combined("/", Fraction(1), degree))
        if self.text.startswith(r"\binom", place):
            self.at = place + 6
            return self.counted("binomial", math.comb, *self.pair())
        if self.text.startswith(r"\pi", place) and not self.text[place + 3 : place + 4].isalpha():
            self.at, self.exact = place + 3, False
            return _PI
        raise ExpressionSyntaxError

    def bracket(self, opening: str) -> Any:
        """The value of what is between two brackets."""
        self.depth += 1
        if self.depth > 20:
            raise ExpressionTooLarge
        self.at += 1
        number = self.enclosed()
        self.expect(_CLOSE[opening])
        self.depth -= 1
        return number

    def expect(self, sign: str) -> None:
        """Consume a sign that must follow."""
        self.at = self.skipped()
        if not self.text.startswith(sign, self.at):
            raise ExpressionSyntaxError
        self.at += len(sign)

    def pair(self) -> tuple[Any, Any]:
        """The two arguments of a command."""
        if (digits := _TWO_SHORT.match(self.text, self.at)) is not None:  # \frac12
            self.at = digits.end()
            return Fraction(digits[1]), Fraction(digits[2])
        return self.argument(), self.argument()

    def argument(self) -> Any:
        """One argument of a command."""
        self.step()
        self.at = self.skipped()
        sign = self.text[self.at : self.at + 1]
        if sign in ("{", "("):
            return self.bracket(sign)
        if (digit := _SHORT.match(self.text, self.at)) is not None:
            self.at = digit.end()
            return Fraction(digit[1])
        if self.point is None or sign.isdigit():
            raise ExpressionSyntaxError
        return self.atom()

    def counted(self, name: str, exact: Callable[..., int], *numbers: Any) -> Any:
        """``n!`` and n over k; with names by the gamma function."""
        whole = all(
            isinstance(one, Fraction) and one.denominator == 1 and one >= 0 for one in numbers
        )
        if whole and max(numbers) <= _MAX_COUNT:
            return self.within_limits(Fraction(exact(*map(int, numbers))))
        if self.point is None:
            raise ExpressionTooLarge if whole else ExpressionSyntaxError
        self.exact = False
        if max(abs(wide(one)) for one in numbers) > 10**6:
            return self.unknown(name, *numbers)
        return getattr(context(), name)(*map(wide, numbers))

    def root(self, number: Any, degree: int) -> Any:
        """The real root of what is not negative, else the principal one."""
        real = isinstance(number, Fraction) or number.imag == 0
        if isinstance(number, Fraction) and number >= 0:
            above, below = _root(number.numerator, degree), _root(number.denominator, degree)
            if above**degree == number.numerator and below**degree == number.denominator:
                return self.within_limits(Fraction(above, below))
            self.exact = False
            if size_of(number) <= MAX_BITS // 10:
                scale = 10 ** (_ROOT_DIGITS + number.denominator.bit_length() // 3)
                scaled = number.numerator * scale**degree // number.denominator
                return self.within_limits(Fraction(_root(scaled, degree), scale))
        if self.point is None:
            raise ExpressionSyntaxError if number < 0 else ExpressionTooLarge
        self.exact = False
        if real and number.real < 0 and degree % 2:
            return -self.root(-number.real, degree)
        self.note_outside_domain(not real or number.real < 0)
        return context().root(wide(number), degree)

    def raised(self, number: Any, exponent: Any) -> Any:
        """A power; a root where the exponent is a fraction."""
        if isinstance(exponent, Fraction) and exponent.denominator <= 10:
            if exponent.denominator > 1:
                number = self.root(number, exponent.denominator)
                exponent = Fraction(exponent.numerator)
            if isinstance(number, Fraction):
                power = int(exponent)
                if not number and power <= 0:
                    raise ExpressionSyntaxError
                if abs(power) <= MAX_EXPONENT and size_of(number) * abs(power) <= MAX_BITS:
                    return self.within_limits(number**power)
        if self.point is None:
            raise ExpressionTooLarge if isinstance(exponent, Fraction) else ExpressionSyntaxError
        self.exact, base, power = False, wide(number), wide(exponent)
        if not base:
            return Fraction(0)
        whole = isinstance(exponent, Fraction) and exponent.denominator == 1
        self.note_outside_domain(not whole and (base.imag != 0 or base.real < 0))
        if abs(context().ln(base)) * abs(power) > _MAX_MAGNITUDE:
            return self.unknown("^", number, exponent)
        return context().power(base, power)

    def combined(self, sign: str, number: Any, other: Any) -> Any:
        r"""The result of ``+``, ``-``, ``/``, ``\mod`` or a product."""
        exact = isinstance(number, Fraction) and isinstance(other, Fraction)
        if not exact:
            number, other = wide(number), wide(other)
        if sign in ("/", r"\div", r"\mod"):
            if not other or (sign == r"\mod" and not exact):
                return self.unknown(sign, number, other)
            return self.within_limits(number % other if sign == r"\mod" else number / other)
        if sign not in ("+", "-"):
            return self.within_limits(number * other)
        low, high = sorted((abs(number), abs(other)))
        number = number + other if sign == "+" else number - other
        if not self.exact and high != math.inf:
            if abs(number) * _NOTHING <= high:
                return Fraction(0)
            if not exact and 0 < low * _ABSORBED < high:
                raise ExpressionTooLarge
        return self.within_limits(number)

    # With names.
    def note_outside_domain(self, left: bool) -> None:
        """A root or logarithm of something negative, of which the names are the cause."""
        self.outside |= bool(left) and self.names

    def unknown(self, name: str, *parts: Any) -> Any:
        """Some value that is another one for every other function and for other parts."""
        if self.point is None:
            raise ZeroDivisionError
        drawn = sha256(f"{name}({','.join(map(self.key, parts))})".encode()).digest()
        value = Fraction(
            17 * 2**48 + 6 * int.from_bytes(drawn[:6], "big"), 20 * 2**48
        )  # 0.85 to 1.15
        return -value if self.point == 2 or (self.point == 3 and drawn[6] % 2) else value

    def key(self, number: Any) -> str:
        """A value as text, the same for the same value."""
        return str(context().nstr(context().mpc(wide(number)), 40))

    def _word(self, text: str) -> Any:
        self.names = True
        return self.unknown(f"{comparable_text(text)}@{self.point}")

    _based = _word

    def _accent(self, text: str) -> Any:
        """An accent over letters keeps their order; over anything else it is a function."""
        over = re.sub(r"\\\w+|\s", "", text)
        return self._word(re.sub(r"[\s{}]", "", text)) if over else self.unknown(text, self.power())

    def _infinity(self, _: str) -> Any:
        self.exact = False
        return context().inf

    def _bars(self, _: str) -> Any:
        self.bars += 1
        number = self.total()
        self.bars -= 1
        self.expect("|")
        return abs(number)

    def _rounded(self, name: str) -> Any:
        number = self.total()
        self.expect(rf"\r{name}")
        return Fraction(int(getattr(context(), name)(wide(number))))

    def _name(self, name: str) -> Any:
        name = name.replace(" ", "")
        single = len(name) == 1
        while (mark := _MARKS.match(self.text, self.at)) is not None:
            self.at = mark.end()
            name += mark[3] or "_" + comparable_text(mark[1] or mark[2])
        self.ordered |= name[1:4] in ("sum", "pro", "int", "iin", "lim")
        if name in ("e", "i"):
            self.exact = self.exact and name == "i"
            return context().e + 0 if name == "e" else context().mpc(0, 1)
        if single and (transposed := _TRANSPOSED.match(self.text, self.at)) is not None:
            self.at, self.ordered = transposed.end(), True
            return self._word(name + "^T")
        if _APPLIED.match(name):
            if (inverse := _INVERSE.match(self.text, self.at)) is not None:
                self.at, name = inverse.end(), name + "^-1"
            if self.text.startswith("(", self.skipped()):
                return self.unknown(name, *self.arguments())
        return self._word(name)

    def arguments(self) -> list[Any]:
        """``(a, b)``."""
        self.step()
        found: list[Any] = []
        self.at = self.skipped() + 1
        while not found or self.text.startswith(",", self.skipped()):
            self.at = self.skipped() + 1 if found else self.at
            found.append(self.enclosed())
        self.expect("}" if self.text.startswith("}", self.skipped()) else ")")
        return found

    def _function(self, name: str) -> Any:
        base = self.argument() if self.operator(_BELOW) else None
        power = self.argument() if self.operator(_ABOVE) else None
        if self.text.startswith(("(", "{"), self.skipped()):
            values = self.arguments()
        else:
            values = [self.signed()]
            while self.implied() and not _CALL.match(self.text, self.skipped()):
                values = [self.combined("", values[0], self.power())]
        if power == -1 and name in ("sin", "cos", "tan"):
            name, power = "arc" + name, None
        if name not in _OF_SEVERAL:
            result = self.applied(name, base, wide(values[0]))
            return result if power is None else self.raised(result, power)
        if all(
            isinstance(one, Fraction) and (name[0] == "m" or one.denominator == 1) for one in values
        ):
            return Fraction(_OF_SEVERAL[name](*(values if name[0] == "m" else map(int, values))))
        return self.unknown(name, *sorted(values, key=self.key))

    def applied(self, name: str, base: Any, value: Any) -> Any:
        """The value of a function of one argument."""
        self.exact, own = False, context()
        if name == "exp":
            return self.raised(own.e + 0, value)
        if name in ("ln", "log", "lg"):
            self.note_outside_domain(value.real < 0 or value.imag != 0)
            base = Fraction(10) if name == "lg" else base
            return own.ln(value) / (1 if base is None else own.ln(wide(base)))
        self.note_outside_domain(name in ("arcsin", "arccos") and abs(value) > 1)
        if abs(value) > 10**30:
            raise ExpressionTooLarge
        result = own.chop(getattr(own, name.replace("arc", "a"))(value), tol=own.mpf(1) / _NOTHING)
        if abs(result) > _NOTHING:  # tan 90°
            raise ExpressionSyntaxError
        return result


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


def read_value(text: str, start: int = 0) -> tuple[Fraction, Reader] | None:
    r"""The longest arithmetic that begins at ``start``, and its reader; ``None`` where none does.

    The reader stands at its end. Its ``exact`` says that there is no irrational root and no π in
    the number, else the first 60 digits hold; its ``percent``, that there is a percent sign, which
    the number includes; its ``operators``, whether it had to be computed.

    ``text`` as :func:`~adjudge.graders.answers.answer_text.to_latex` returns it. Raises
    :class:`ExpressionTooLarge` for what is beyond a limit.

    >>> number, reader = read_value(r"2^{10} apples")
    >>> number, reader.at
    (Fraction(1024, 1), 6)
    """
    reader = Reader(text, start)
    try:
        number = reader.total()
    except (ExpressionSyntaxError, ZeroDivisionError):
        return None
    if reader.listed and reader.operators:
        return None
    return number, reader
