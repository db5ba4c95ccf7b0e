r"""Numerals, numbers in words and units: what readers of numbers and expressions share.

A :class:`NumeralReader` is a place in a text with limits: nothing is computed before it is known
to be within them. Below it is what is written beside a numeral: units of measure and money, scales,
and numbers in words.
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


_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_COUNTS = {word: value for value, word in enumerate(_ONES.split())}
_COUNTS |= {word: 10 * value for value, word in enumerate(_TENS.split(), 2)}
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "dozen": 12}
_SCALES |= {"trillion": 10**12, "lakh": 10**5, "crore": 10**7}
_SHORT_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "mn": 10**6, "mln": 10**6, "B": 10**9}
_SHORT_SCALES |= {"bn": 10**9, "tn": 10**12, "百": 100, "千": 10**3, "万": 10**4, "萬": 10**4}
_SHORT_SCALES |= {"亿": 10**8, "億": 10**8}
_PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6}
_PARTS |= {"seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10}
_COUNT, _PART = "|".join([*_COUNTS, *_SCALES]), "|".join(_PARTS)
_COUNTING = re.compile(
    r"(?<!\w)(?P<less>(?:minus|negative)\s)?"
    rf"(?P<words>(?:(?:a|an|{_COUNT})[-\s](?:and\s)?(?=(?:{_COUNT})\b))*+(?:{_COUNT})\b)",
    re.IGNORECASE,
)
_WORDED_FRACTION = re.compile(
    rf"(\sand\s|(?<!\w))(an?|{'|'.join(_COUNTS)})[-\s]({_PART})s?\b(?!\s+(?:of|an?|the)\b)",
    re.IGNORECASE,
)
_SCALE = re.compile(rf"[-\s]*({'|'.join(_SCALES)})s?\b", re.IGNORECASE)
_SHORT_SCALE = re.compile(rf"({'|'.join(_SHORT_SCALES)})(?![A-Za-z0-9])")
_SPELLINGS = """mm millimeter millimetre|cm centimeter centimetre|m meter metre
|km kilometer kilometre|inch inches in|ft foot feet|yd yard|mi mile|mg milligram|g gram gramme
|kg kilogram kilo|lb lbs pound|oz ounce|ml mL milliliter millilitre|L l liter litre|ms millisecond
|s sec second|min minute|h hr hrs hour|day|week|month|year yr yrs|Hz hertz|J joule|kJ kilojoule
|W watt|kW kilowatt|V volt|N newton|Pa pascal|mol mole|GB gigabyte|MB megabyte|kB KB kilobyte
|° degree deg|rad radian|$ dollar USD|€ euro EUR|£ GBP|¥ yen JPY|cent ¢|ha hectare|acre
|mi*h^-1 mph|km*h^-1 kph kmh|px pixel|dB decibel|eV|K kelvin|C coulomb|T tesla|F farad fahrenheit
|A amp ampere|H henry|Ω ohm|kΩ kilohm|Wb weber|lm lumen|lx lux|cd candela|bar|atm|cal calorie
|kcal kilocalorie|rpm|ppm|knot kn|u|Bq|Sv|Gy|S siemens|unit"""
_UNITS = {name: names.split()[0] for names in _SPELLINGS.split("|") for name in names.split()}
_METRIC = re.compile(r"[kMGTdcmµμnp](?:[msglLWJVNABbFCKTHΩ]|Pa|Hz|eV|mol|cal|Wb|Sv)")
_DEGREES = re.compile(
    r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|degrees?\b)(?:\s*([CF])(?:elsius|ahrenheit)?\b)?"
)
_UNIT = re.compile(
    r"\s*-?(square|cubic|sq)?\.?\s*([kMmμµn]\s*Ω|[μµ]\s*[A-Za-z]+|[A-Za-z]+|Ω|[$€£¥₹¢])(?![\w(])",
    re.IGNORECASE,
)
_POWER = re.compile(r"[\s}]*(?:\^\s*\{?\s*(-?\d)\s*\}?|(squared|cubed)\b)|(?<=[a-z])([23])(?!\w)")
_POWERS = {"squared": 2, "square": 2, "sq": 2, "cubed": 3, "cubic": 3}
_JOIN = re.compile(r"\s*(?:(/\s*\(?|per\b)|\*|\\cdot(?![A-Za-z]))|(?=\s+(?:[A-Z]|[a-z]{1,3})\b)")


def words_at(text: str, at: int) -> tuple[Fraction | None, int] | None:
    """The number in words at a place and its end; a number of ``None``: words that make none.

    >>> words_at("one and a half", 0), words_at("three quarters of it", 0)
    ((Fraction(3, 2), 14), (Fraction(3, 1), 5))
    """
    if (part := _WORDED_FRACTION.match(text, at)) is not None and not part[1]:
        return _fraction(part), part.end()
    words = _COUNTING.match(text, at)
    if words is None:
        return None
    count, end = _counted(words["words"].lower()), words.end()
    value = None if count is None else Fraction(count)
    if value is not None and (part := _WORDED_FRACTION.match(text, end)) is not None and part[1]:
        value, end = value + _fraction(part), part.end()
    return -value if value is not None and words["less"] else value, end


def _fraction(match: re.Match[str]) -> Fraction:
    return Fraction(_COUNTS.get(match[2].lower(), 1), _PARTS[match[3].lower()])


def _counted(words: str) -> int | None:
    """The number that counting words say; ``None`` for words that do not make one."""
    total, group, last, largest = 0, 0, 100, 10**15
    for word in re.split(r"[-\s]+(?:and\s+)?", words):
        scale, count = _SCALES.get(word), _COUNTS.get(word, 1)
        if scale == 100:
            group, last = (group or 1) * 100, 100
        elif scale is not None:
            if scale >= largest:
                return None
            total, group, last, largest = total + (group or 1) * scale, 0, 100, scale
        elif word not in ("a", "an") and (
            count >= last or (last < 100 and (last < 20 or count > 9))
        ):
            return None
        else:
            group, last = group + count, count
    return total + group if words[:2] != "a " or total + group > 1 else None


def scaled(value: Fraction, text: str, end: int, short: bool) -> tuple[Fraction, int]:
    """A value times the scale words behind it ("million"), or a ``short`` one ("k")."""
    while (scale := _SCALE.match(text, end)) and abs(value) < 10**5_000:
        value, end = value * _SCALES[scale[1].lower()], scale.end()
    if short and (scale := _SHORT_SCALE.match(text, end)) is not None:
        value, end = value * _SHORT_SCALES[scale[1]], scale.end()
    return value, end


def known_unit(word: str) -> str | None:
    """The short form of a unit; ``None`` for any other word."""
    lower = word.lower() if len(word) > 2 else word
    known = _UNITS.get(word) or _UNITS.get(lower) or _UNITS.get(lower.removesuffix("s"))
    return known or (word if _METRIC.fullmatch(word) else None)


def unit_at(text: str, end: int, money: bool) -> tuple[str, int]:
    """The known unit at a place, such as ``m*s^-2``, and its end; empty without one."""
    if (degrees := _DEGREES.match(text, end)) is not None:
        return "°" + (degrees[1] or ""), degrees.end()
    powers: dict[str, int] = {}
    place, sign, grouped = end, 1, False
    while (word := _UNIT.match(text, place)) is not None:
        short = known_unit(re.sub(r"\s", "", word[2]))
        if short is None or (word[2] == "$" and not money):
            break
        end = word.end()
        power = _POWER.match(text, end)
        written = word[1] or (power and next(filter(None, power.groups()))) or "1"
        exponent = sign * (_POWERS.get(written.lower()) or int(written))
        for name in short.split("*"):
            unit, _, own = name.partition("^")
            powers[unit] = powers.get(unit, 0) + exponent * int(own or 1)
        end = power.end() if power else end
        if grouped and text[end : end + 1] == ")":
            end, grouped = end + 1, False
        if (joined := _JOIN.match(text, end)) is None:
            break
        sign = -1 if joined[1] or grouped else 1
        grouped |= (joined[1] or "").endswith("(")
        place = joined.end()
    names = [name + (f"^{power}" if power != 1 else "") for name, power in sorted(powers.items())]
    return "*".join(names), end


def read_unit(text: str) -> str:
    """The unit that all of ``text`` is; empty for anything else.

    >>> read_unit("m/s^2") == read_unit("m s^{-2}") == "m*s^-2"
    True
    """
    text = text.strip(" .")
    unit, end = unit_at(text, 0, True)
    return unit if end and not text[end:].strip(" {}") else ""
