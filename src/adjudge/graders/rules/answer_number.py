r"""Numbers as people and models write them: found in text, read exactly, compared.

A number is a maximal run: "14" does not contain "4", and neither do ``2^{4}``, ``\sqrt{4}``, "x4"
or the operands of "3*4". Understood are signs, decimals, thousands separators (``1,234``,
``1{,}234``, ``1\,234``), scientific notation (``3e5``, ``3 \times 10^5``), fractions (``3/4``,
``\frac{3}{4}``, ``1\frac{1}{2}``), percent signs and currency signs.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import NamedTuple

from adjudge.graders.rules.extraction import plain

__all__ = ["Number", "last_number", "numbers_match", "read_number"]

_MAX_CHARS = 300
# Wide enough to hold every digit of a run that is read, so equality is exact. Division rounds
# correctly, so equal fractions stay equal.
_EXACT = Context(prec=400, Emax=5000, Emin=-5000, traps=[])

_RUN = r"(?:\d|\.(?=\d)|(?:,|\{,\}|\\[,!]|[\u00a0\u202f])(?=\d))"
# Groups that capture are never possessive: Python before 3.11.5 then loses what they captured.
_TOKEN = re.compile(
    rf"""
    (?P<sign>[-+−])? (?P<currency>\\?[$€£¥₹])? (?P<inner_sign>[-+−])?
    (?:
        (?P<whole>\d++)? \\[dt]?frac\s*+
        \{{\s*+(?P<above>{_RUN}++)\s*+\}}\s*+\{{\s*+(?P<below>{_RUN}++)\s*+\}}
      | (?:(?P<units>\d{{1,3}})\s(?=\d{{1,3}}/\d))? (?P<run>{_RUN}++)
        (?: [eE](?P<exponent>[-+−]?\d++)
          | \s*+(?:\\times|\\cdot|[×*·])\s*+10\s*+(?:\^|\*\*)\s*+\{{?(?P<power>[-+−]?\d++)\}}?+
          | \s?+/\s?+(?P<under>{_RUN}++)
        )?
    )
    (?P<percent>\s*+(?:\\?%|per\s?+cent\b))?
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
# What makes a number part of something larger: directly before it (signs are seen to separately),
_BEFORE = re.compile(
    r"""(?: [^\W_] | [.^√/×·÷±] | [\^√]\{ | (?:sqrt|frac|[}\]])\{          # H2, x^{2}, \\sqrt{2}
          | [\w}]_\{? | [\w)\]}]\* | [\d)\]}]\*\* | \d:                     # x_2, 3*4, 2**4, 10:30
          | \\(?:cdot|times|div|pm|mp)\s? | [\d)\]}]\s[-+−*×·÷/]\s )\Z""",
    re.VERBOSE,
)
# and directly after it.
_AFTER = re.compile(
    r"""[-+−*×·÷/:]\(?[\d\\] | \^ | \*\*\d | \s?[π√] | [ijknxyz](?![^\W_])
      | \s?\\(?:pi|sqrt|[dt]?frac|cdot|times|div|pm|mp)(?![A-Za-z]) | \s[-+−*×·÷/]\s\(?[\d\\]""",
    re.VERBOSE,
)
_OPERAND = re.compile(r"[\w)\]}]\Z")
_LOOK_BACK = 8
_TAIL = 2_000
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})++(?:\.\d++)?+|\d*+\.\d++|\d++", re.ASCII)
_SEPARATORS = re.compile(r"\{,\}|\\[,!]|[\u00a0\u202f]")
_SIMPLE = re.compile(r"-?\d{1,150}(?:\.\d{1,150})?", re.ASCII)
_LOOSE_SIGN = re.compile(r"\A([-+−])\s+")


class Number(NamedTuple):
    """An exact value. ``percent``: written with a percent sign, which ``value`` includes."""

    value: Decimal
    percent: bool
    start: int
    text: str

    @property
    def bare(self) -> Decimal:
        """The value without its percent sign: 50 for "50%"."""
        return self.value.scaleb(2, _EXACT) if self.percent else self.value


def last_number(text: str) -> Number | None:
    """The last number in ``text``; ``None`` without one.

    >>> last_number("17 apples cost $1,234.50.").value
    Decimal('1234.50')
    >>> last_number("2^{10} and x14") is None
    True
    """
    # The end first: that is where answers stand, and long responses are full of numbers.
    for cut in dict.fromkeys((max(0, len(text) - _TAIL), 0)):
        for token in reversed(list(_TOKEN.finditer(text, cut))):
            if cut and token.start() < cut + _MAX_CHARS:
                break  # it may begin before the cut
            number = _token_number(token, text)
            if number is not None:
                return number
    return None


def read_number(text: str) -> Number | None:
    r"""``text`` as one number and nothing else but wrappers, a currency sign and a full stop.

    >>> read_number(r"$-\frac{3}{4}$").value
    Decimal('-0.75')
    >>> read_number("about 3") is None
    True
    """
    text = text.strip()
    if _SIMPLE.fullmatch(text):
        return Number(Decimal(text), False, 0, text)
    text = _LOOSE_SIGN.sub(r"\1", plain(text).rstrip("."))
    token = _TOKEN.fullmatch(text)
    return _token_number(token, text) if token else None


def numbers_match(answer: Number, reference: Number, rel_tol: float, abs_tol: float) -> bool:
    """True when ``|answer − reference| ≤ max(abs_tol, rel_tol · |reference|)``.

    When only one of the two carries a percent sign, it may be meant or not: 50% matches 0.5 and 50.
    """
    pairs = [(answer.value, reference.value)]
    if answer.percent != reference.percent:
        pairs.append((answer.bare, reference.bare))
    return any(_close(a, b, rel_tol, abs_tol) for a, b in pairs)


def _close(answer: Decimal, reference: Decimal, rel_tol: float, abs_tol: float) -> bool:
    if answer == reference:
        return True
    if rel_tol == 0.0 and abs_tol == 0.0:
        return False
    gap = _EXACT.subtract(answer, reference).copy_abs()
    allowed = _EXACT.multiply(Decimal(repr(rel_tol)), reference.copy_abs())
    return gap <= max(Decimal(repr(abs_tol)), allowed)


def _token_number(token: re.Match[str], text: str) -> Number | None:
    start, end = token.span()
    if end - start > _MAX_CHARS:
        return None
    before = text[max(0, start - _LOOK_BACK) : start]
    if token["sign"]:
        if _OPERAND.search(before):  # the sign is a minus between two things
            return None
    elif not token["currency"] and _BEFORE.search(before):
        return None
    if _AFTER.match(text, end):
        return None
    value = _value(token)
    if value is None:
        return None
    if "-" in _ascii_sign(token["sign"]) + _ascii_sign(token["inner_sign"]):
        value = value.copy_negate()
    percent = token["percent"] is not None
    return Number(value.scaleb(-2, _EXACT) if percent else value, percent, start, token[0].strip())


def _value(token: re.Match[str]) -> Decimal | None:
    above, below = token["above"] or token["run"], token["below"] or token["under"]
    if below is not None:
        value = _quotient(above, below)
        units = token["whole"] or token["units"]
        return _EXACT.add(Decimal(units), value) if units and value is not None else value
    value = _decimal(token["run"])
    exponent = token["exponent"] or token["power"]
    if value is None or exponent is None:
        return value
    return _finite(value.scaleb(int(_ascii_sign(exponent)), _EXACT), value)


def _quotient(above: str, below: str) -> Decimal | None:
    numerator, denominator = _decimal(above), _decimal(below)
    if numerator is None or not denominator:
        return None
    return _finite(_EXACT.divide(numerator, denominator), numerator)


def _decimal(run: str) -> Decimal | None:
    run = _SEPARATORS.sub(",", run)
    if not _GROUPED.fullmatch(run):
        return None
    return _EXACT.create_decimal(run.replace(",", ""))


def _finite(value: Decimal, source: Decimal) -> Decimal | None:
    """``None`` for what is too large or too small to hold."""
    return value if value.is_finite() and bool(value) == bool(source) else None


def _ascii_sign(text: str | None) -> str:
    return (text or "").replace("−", "-")
