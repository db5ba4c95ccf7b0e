r"""Whether two mathematical answers are one: every step that decides it, in order.

1. The same text, after normalising, whatever it is.
2. Two numbers, exactly, with their units.
3. Two structures (lists, intervals, equations, formulas), part by part.
4. The library for symbols (:func:`verify`), and only for sums, integrals and limits that are read
   in full.

What no step decides is ``undecided``: a wrong answer where the reference was read, else a failure.

The library runs in a killable process: it can take for ever. Its own timeouts are off, because they
need the main thread and fail silently elsewhere. It reads an expression without computing it, so
each is computed alone first, reference before answer, each in its phase of the worker's processor
time. The phase shows which of the two used up the time.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from functools import lru_cache
from math import log10
from typing import Any, NamedTuple

from adjudge.engine.worker import InputTooLarge, WorkerPhase, enter_phase
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.answers import structures
from adjudge.graders.answers.answer_text import (
    MarkedText,
    comparable_text,
    find_last_math,
    normalize,
    strip_wrappers,
    to_latex,
)
from adjudge.graders.answers.numerals import ExpressionTooLarge
from adjudge.graders.answers.quantities import find_last_number, numbers_match, read_number
from adjudge.installation import install_command

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


_MAX_DIGITS = 1_000_000


def warm_up() -> None:
    """Load the library and its parser tables, which takes half a second."""
    verify({"answer": r"\frac{x+1}{2}", "references": [r"\frac{1+x}{2}"]})


def verify(payload: dict[str, Any]) -> bool | None:
    """Whether ``answer`` equals any of ``references``, all in normal form.

    ``None``: the library does not read the answer, or none of the references.
    """
    enter_phase(WorkerPhase.REFERENCE)
    references = [one for one in map(_reference, payload["references"]) if one]
    enter_phase(WorkerPhase.CANDIDATE)
    answer = _parsed(payload["answer"])
    if not answer or not references:
        return None
    _compute(answer[0])
    enter_phase(WorkerPhase.COMPARISON)
    same = _library().verify
    return any(same(one, answer, timeout_seconds=None) for one in references)


@lru_cache(maxsize=256)
def _reference(text: str) -> list[Any]:
    """A reference as expressions; one is shared by all samples of a group, hence the cache."""
    expressions = _parsed(text)
    if expressions:
        _compute(expressions[0])
    return expressions


def _compute(expression: Any) -> None:
    """Do with an expression alone the largest part of what a comparison does with it.

    Raises ``InputTooLarge`` where it is foreseen that it ends only after a long computation.
    """
    sympy: Any = importlib.import_module("sympy")  # comes with the library
    nodes = sympy.preorder_traversal(expression)
    if any(_digits(node) > _MAX_DIGITS for node in nodes if isinstance(node, sympy.Basic)):
        raise InputTooLarge(f"a number of more than {_MAX_DIGITS} digits")
    expression.doit()


def _digits(node: Any) -> float:
    """About how many digits the number has that ``node`` stands for; 0 for a symbol.

    >>> import sympy
    >>> round(_digits(sympy.Pow(10, sympy.Pow(10, 10, evaluate=False), evaluate=False)))
    10000000000
    """
    if node.is_Rational:
        return log10(max(abs(node.p), node.q))
    inner = list(map(_digits, node.args))
    if node.is_Pow:
        base, exponent = inner
        return min(base * 10 ** min(exponent, 300.0), 1e300)
    if type(node).__name__ == "factorial":
        return inner[0] * 10 ** min(*inner, 290.0)
    return sum(inner)


def _parsed(text: str) -> list[Any]:
    """What the library reads in ``text``; empty when it reads nothing."""
    library = _library()
    expressions: list[Any] = library.parse(
        f"${text}$",
        [library.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return expressions


def _library() -> Any:
    try:
        import math_verify  # noqa: PLC0415  (optional, and half a second to import)
    except ImportError:
        message = f"symbolic maths needs the package math-verify. Run: {install_command('full')}"
        raise GradingFailure(ErrorKind.UNSUPPORTED, message) from None
    return math_verify
