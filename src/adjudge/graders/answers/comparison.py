r"""Whether two mathematical answers are one: every step that decides it, in order.

1. The same text, after normalising, whatever it is.
2. Two numbers, exactly, with their units.
3. Two structures (lists, intervals, equations, formulas), part by part.
4. The library for symbols, and only for sums, integrals and limits that are read in full.

What no step decides is ``undecided``: a wrong answer where the reference was read, else a failure.
"""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

from adjudge.graders.answers import structures
from adjudge.graders.answers.finding import MarkedText, find_last_math, strip_wrappers
from adjudge.graders.answers.normal_text import comparable_text, normalize, to_latex
from adjudge.graders.answers.numerals import ExpressionTooLarge
from adjudge.graders.answers.quantities import find_last_number, numbers_match, read_number

_LABEL = re.compile(r"\(?([A-J])\)?")
_LABELLED = re.compile(r"(?s)\(?([A-J])(?:[).:]|\s*\\word\{).*")
# What the library may be asked about: nothing that it drops or reads as something else.
_SYMBOLIC = re.compile(r"\\(?:sum|prod|int|lim)(?![A-Za-z])|\w\s*\\begin\{matrix\}")
_KNOWN = re.compile(
    r"(?:[\s\d+*/^_=<>().,|{}\[\]&-]|!|\\\\|\\(?:begin|end)\{matrix\}|(?<![A-Za-z])[A-Za-z]{1,3}(?![A-Za-z_])"
    r"|\\(?:frac|sqrt|sum|prod|int|iint|lim|to|infty|pi|sin|cos|tan|cot|sec|csc|ln|log|exp|cdot"
    r"|times|binom|le|ge|alpha|beta|theta|lambda)(?![A-Za-z]))*"
)


class AnswerDecision(NamedTuple):
    """How two answers compare: a decision (``None``: ask the library) and what each was read as."""

    decision: str | None
    kind: str = ""
    reference_kind: str = ""


def compare(answer: str, reference: str) -> AnswerDecision:  # noqa: PLR0911  (a step each)
    """The decision about two mathematical answers that needs no library.

    Raises ``ExpressionTooLarge`` for an answer beyond the limits.
    """
    said, wanted = normalize(answer), normalize(reference)
    text = comparable_text(said)
    if text.lower() == "nan":  # no value, not even its own
        return AnswerDecision("differs", "nan", "nan")
    if text and text == comparable_text(wanted):
        return AnswerDecision("equal_text", "text", "text")
    numbers = read_number(answer, symbols=True), read_number(reference, symbols=True)
    if numbers[0] and numbers[1] and not ("=" in answer and "=" in reference):
        equal = numbers_match(numbers[0], numbers[1], 0.0, 0.0)
        if equal or "." not in numbers[1].text or not numbers[0].computed:
            return AnswerDecision("equal_value" if equal else "differs", "number", "number")
    label, labelled = _LABEL.fullmatch(comparable_text(wanted)), _LABELLED.fullmatch(said)
    if label and labelled:
        return AnswerDecision(
            "equal_value" if labelled[1] == label[1] else "differs", "label", "label"
        )
    other = one = None
    with contextlib.suppress(ExpressionTooLarge, RecursionError):
        other = structures.read(wanted)
    try:
        one = structures.read(said)
    except RecursionError:
        raise ExpressionTooLarge from None
    read = zip((one, other), numbers, strict=True)
    kinds = [one.kind if one else "number" if number else "" for one, number in read]
    if one and other and structures.match_structures(other, one):
        return AnswerDecision("equal_value", *kinds)
    both = (said, wanted)
    if any(map(_SYMBOLIC.search, both)) and all(map(_KNOWN.fullmatch, both)):
        return AnswerDecision(None, *kinds)
    return AnswerDecision("differs" if all(kinds) else "undecided", *kinds)


_EXPRESSION_CHARS = 200
_PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:sqrt|sinh|cosh|tanh|arc[a-z]{3})\b)[A-Za-z]{4,}|\n|: ")
_BOLD = re.compile(r"\*\*([^*\n]{1,200}?)[.:]?\*\*")
# Before a formula: it is not the answer, or only one of several.
_DENIED = re.compile(r"(?:\b(?:not|nor|or|versus|vs|rather than|instead of)|n['’]t)\W*\Z")
_DENIED_CHARS = 20


def find_last_expression(text: str) -> str | None:
    """The expression in a text without marker: all of it, its last formula or its last number."""
    text = to_latex(strip_wrappers(text))
    formula, digits = find_last_math(text), find_last_number(text)
    for bold in _BOLD.finditer(text):
        if not _PROSE.search(bold[1]) and (formula is None or bold.start(1) > formula.start):
            formula = MarkedText(bold.start(1), bold[1])
    if formula is None and len(text) <= _EXPRESSION_CHARS and not _PROSE.search(text):
        return text
    if formula is not None and read_number(formula.text, symbols=True) is None:
        if _DENIED.search(text, max(0, formula.start - _DENIED_CHARS), formula.start):
            return None
        if digits is None or formula.start + len(formula.text) > digits.start:
            return formula.text
    return digits.text if digits else None
