"""Are two mathematical expressions equal. Runs in a killable process: it can take for ever.

By the ``math-verify`` library with its own timeouts off, because they need the main thread and
fail silently elsewhere. Only its LaTeX reader is used; the reader for plain expressions evaluates
text as Python and so has no place near a policy's output. What the library would take too easily
is settled before it is asked: an equation stands for its last side only where all sides say it.

The library reads an expression without computing it, so ``10^{10^{10}}`` would explode only in the
comparison, and nobody could say by whose doing. What is not simple at sight is therefore computed
alone first, reference before answer, each in its phase of the worker's processor time.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from itertools import islice
from math import comb, log10
from typing import Any, NamedTuple

from adjudge.engine.phases import InputTooLarge, WorkerPhase, enter_phase
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.answers.arithmetic import to_latex
from adjudge.graders.answers.extraction import strip_wrappers
from adjudge.installation import install_command

_DELIMITERS = re.compile(r"(?<!\\)(?:\$+|\\[()\[\]]|\\(?:boxed|fbox)(?=\s*\{))")
# Read as LaTeX, a word is the product of its letters, and "listen" would equal "silent".
_WORDS = re.compile(r"(?=.*[A-Za-z]{4})[A-Za-z][A-Za-z ,.'-]*+", re.DOTALL)
_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])((?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|max|min|gcd)(?![A-Za-z])"
)
# The library drops words behind a value, whatever they say.
_VALUES_IN_TEXT = re.compile(r"\\(?:text|mathrm)\s*\{([^{}]*\d[^{}]*)\}")
_ABOUT = re.compile(
    r"\A(?:approximately|about|roughly|around|\\approx|\\sim|~)\s*+|\s*\\text\s*\{[\s(]*approx\w*[\s)]*\}"
)
_MAX_DIGITS = 1_000_000
# What is computed at once, however it is compared; see _simple.
_SIMPLE_NODES = 60
_FEW_NODES = 12
_SIMPLE_TERMS = 100
_SIMPLE_NUMBER = 10**50
_SIMPLE_EXPONENT = 1_000
_SIMPLE_EXPONENT_OF_SUMS = 12
_SIMPLE_COUNTS = {"factorial", "binomial"}
_SIMPLE_TYPES = (
    *("Symbol", "Add", "Mul", "UnevaluatedExpr", "Pi", "Exp1", "ImaginaryUnit", "Tuple", "And"),
    *("FiniteSet", "Interval", "Union", "EmptySet", "Reals", "Integers", "Naturals", "Equality"),
    *("BooleanTrue", "BooleanFalse"),
    *("StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan", "Unequality"),
    *("exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "Abs", "floor", "ceiling"),
)
_MATRIX = re.compile(r"\\begin\{[pbv]?matrix\}(.*)\\end\{[pbv]?matrix\}", re.DOTALL)


def warm_up() -> None:
    """Load the library and its parser tables, which takes half a second."""
    verify({"answer": r"\frac{x+1}{2}", "references": [r"\frac{1+x}{2}"]})


def verify(payload: dict[str, Any]) -> dict[str, bool]:
    """``{answer, references}``, LaTeX or plain, to ``{correct, parsed}``: does it equal any.

    ``parsed`` is False when the answer is no expression. A reference that is none raises
    ``GradingFailure(invalid_input)``.
    """
    enter_phase(WorkerPhase.REFERENCE)
    references = [
        _Expression(text, _reference(text)) for text in map(_written, payload["references"])
    ]
    enter_phase(WorkerPhase.CANDIDATE)
    text = _written(payload["answer"])
    if text.lower() == "nan":  # no value, not even its own
        return {"correct": False, "parsed": False}
    answer = _Expression(text, _parsed(text))
    correct = any(_identical(answer, one) for one in references) or any(
        _equal(answer, one) for one in references
    )
    return {"correct": correct, "parsed": bool(answer.parsed)}


def _written(text: str) -> str:
    """``text`` as the library reads it best: LaTeX, without wrappers, "about" and a full stop."""
    text = _DELIMITERS.sub(
        " ", to_latex(strip_wrappers(text))
    )  # one expression, however it is cut up
    text = _ABOUT.sub("", " ".join(_VALUES_IN_TEXT.sub(r" \1 ", text).split()))
    text = text.replace(r"\approx", "=").rstrip(" .?,;")
    return _FUNCTION.sub(r"\\\1", strip_wrappers(text))


class _Expression(NamedTuple):
    """A text as it was prepared, and what the library reads in it; empty when it reads nothing."""

    text: str
    parsed: list[Any]


def _identical(answer: _Expression, reference: _Expression) -> bool:
    """Whether they are one expression as they stand, which needs no computing.

    An equation is not looked at as a whole, since it may contradict itself.
    """
    if not answer.parsed or "=" in answer.text:
        return False
    words = _WORDS.fullmatch(answer.text) and _WORDS.fullmatch(reference.text)
    return not words and bool(answer.parsed[0] == reference.parsed[0])


def _equal(answer: _Expression, reference: _Expression) -> bool:
    if _WORDS.fullmatch(reference.text) and _WORDS.fullmatch(answer.text):
        return reference.text.casefold().split() == answer.text.casefold().split()
    read, wanted = answer.parsed, reference.parsed
    if ("matrix}" in answer.text) != ("matrix}" in reference.text):
        reference = reference._replace(text=_tuple(reference.text))
        enter_phase(WorkerPhase.REFERENCE)
        wanted = _reference(reference.text)
        enter_phase(WorkerPhase.CANDIDATE)
        read = _parsed(_tuple(answer.text))
    if not read:
        return False
    enter_phase(WorkerPhase.REFERENCE)
    _compute_reference(reference.text)
    enter_phase(WorkerPhase.CANDIDATE)
    _compute(read[0])
    if not _consistent(read[0], wanted[0]):
        return False
    enter_phase(WorkerPhase.COMPARISON)
    return _same(wanted, read)


def _tuple(text: str) -> str:
    """``(1, 2)`` for a matrix of one row or one column, which people write for a tuple."""
    matrix = _MATRIX.fullmatch(text)
    entries = re.split(r"&|\\\\", matrix[1]) if matrix else []
    one_line = matrix is not None and ("&" not in matrix[1] or r"\\" not in matrix[1])
    return f"({', '.join(entries)})" if one_line else text


def _consistent(answer: Any, reference: Any) -> bool:
    """False for an equation whose sides are neither a name nor equal: ``1=2=3`` says nothing.

    One equation is compared with another by the library.
    """
    sympy: Any = importlib.import_module("sympy")  # comes with math-verify
    parts = answer.args if isinstance(answer, sympy.And) else (answer,)
    if not all(isinstance(part, sympy.Eq) for part in parts):
        return True
    if len(parts) == 1 and isinstance(reference, sympy.Eq):
        return True
    names = [side for part in parts for side in part.args[:1] if _is_name(side)]
    values = [side for part in parts for side in part.args if side not in names]
    return all(_same([values[0]], [value]) for value in values[1:])


def _is_name(side: Any) -> bool:
    """Whether an expression is what a value is given to: ``x``, ``f(x)``, ``AB``."""
    factors = side.args if side.is_Mul else (side,)
    return all(factor.is_Symbol or _is_applied(factor) for factor in factors)


def _is_applied(node: Any) -> bool:
    """Whether it is ``f(x)``, of a function that has no meaning."""
    applied: Any = importlib.import_module("sympy.core.function").AppliedUndef
    return isinstance(node, applied)


@lru_cache(maxsize=256)
def _compute_reference(text: str) -> None:
    _compute(_reference(text)[0])


def _compute(expression: Any) -> None:
    """Do with an expression alone what a comparison would do with it, unless that is little.

    Nothing comes of it but the time that it takes; raises ``InputTooLarge`` where that is foreseen.
    """
    if _simple(expression):
        return
    sympy: Any = importlib.import_module("sympy")
    nodes = sympy.preorder_traversal(expression)
    if any(_digits(node) > _MAX_DIGITS for node in nodes if isinstance(node, sympy.Basic)):
        # What would happen, at the end of a long computation.
        raise InputTooLarge(f"a number of more than {_MAX_DIGITS} digits")
    unequal: Any = sympy.pi
    if isinstance(expression, sympy.core.relational.Relational):
        unequal = sympy.Eq(sympy.Symbol("x", real=True), sympy.pi, evaluate=False)
    _same([unequal], [expression])
    for part in _parts(expression):
        _same([sympy.pi], [part])


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
    if node.is_Add or node.is_Mul:
        return max(inner) if node.is_Add else sum(inner)
    if type(node).__name__ in _SIMPLE_COUNTS:  # n! and n over k
        return inner[0] * 10 ** min(*inner, 290.0)
    return 0.0


def _parts(expression: Any) -> list[Any]:
    """What stands in a matrix, a set, a tuple, an interval, a chain of equations."""
    sympy: Any = importlib.import_module("sympy")
    if isinstance(expression, sympy.MatrixBase):
        return list(expression.flat())
    whole = (sympy.Set, sympy.Tuple, sympy.And, sympy.core.relational.Relational)
    if not isinstance(expression, whole):
        return []
    parts = [part for part in expression.args if isinstance(part, sympy.Basic)]
    return [*parts, *(inner for part in parts for inner in _parts(part))]


def _simple(expression: Any) -> bool:
    """Whether an expression is certainly computed at once: few terms, small powers, no sums."""
    sympy: Any = importlib.import_module("sympy")
    if isinstance(expression, sympy.MatrixBase):
        cells = list(expression.flat())
        return len(cells) <= _SIMPLE_NODES and all(map(_simple, cells))
    if not isinstance(expression, sympy.Basic):
        return True
    nodes = list(islice(sympy.preorder_traversal(expression), _SIMPLE_NODES))
    if len(nodes) == _SIMPLE_NODES or not all(map(_simple_node, nodes)):
        return False
    roots = sum(node.is_Pow and not node.exp.is_Integer for node in nodes)
    functions = sum(isinstance(node, sympy.Function) and not _is_applied(node) for node in nodes)
    if any(isinstance(node, sympy.core.relational.Relational) for node in nodes):
        # Equations are solved.
        high = any(node.is_Pow and node.exp.is_number and abs(node.exp) > 2 for node in nodes)
        return not (roots or functions or high or len(nodes) > _SIMPLE_NODES // 2)
    high = any(map(_is_high, nodes))
    if roots or functions:
        fits = roots + functions <= 2 and len(nodes) <= _SIMPLE_NODES // 2 and not high
    else:
        fits = len(nodes) <= _FEW_NODES or not high
    return fits and _terms(expression) <= _SIMPLE_TERMS


def _is_high(node: Any) -> bool:
    return bool(node.is_Pow and node.exp.is_Rational and abs(node.exp) > _SIMPLE_EXPONENT_OF_SUMS)


def _simple_node(node: Any) -> bool:
    """``x^{100}``, ``2^{n+1}`` and ``(x+1)^5``; not ``10^{10^{10}}``, not ``99999999!``."""
    name = type(node).__name__
    if node.is_Number:
        return not node.is_finite or bool(abs(node) < _SIMPLE_NUMBER)
    if name in _SIMPLE_COUNTS:
        return all(arg.is_Symbol or (arg.is_Integer and abs(arg) <= 1_000) for arg in node.args)
    if not node.is_Pow:
        return name in _SIMPLE_TYPES or _is_applied(node)
    if node.exp.is_Rational:
        most = _SIMPLE_EXPONENT if node.base.is_Atom else _SIMPLE_EXPONENT_OF_SUMS
        return bool(abs(node.exp) <= most)
    parts = importlib.import_module("sympy").preorder_traversal(node.exp)
    return not any(part.is_Pow or (part.is_Number and abs(part) > 100) for part in parts)


def _terms(expression: Any) -> int:
    """About how many terms it has when all is multiplied out."""
    parts = [_terms(part) for part in expression.args]
    if expression.is_Mul:
        product = 1
        for part in parts:
            product = min(product * part, _SIMPLE_TERMS + 1)
        return product
    if expression.is_Pow and expression.exp.is_Integer and parts[0] > 1:
        return comb(parts[0] + abs(int(expression.exp)) - 1, abs(int(expression.exp)))
    return max(1, sum(parts)) if parts else 1


def _same(reference: list[Any], answer: list[Any]) -> bool:
    return bool(_library().verify(reference, answer, timeout_seconds=None))


@lru_cache(maxsize=256)
def _reference(text: str) -> list[Any]:
    """A reference as expressions; one is shared by all samples of a group, hence the cache."""
    expressions = _parsed(text)
    if not expressions:
        message = f"the reference is not a mathematical expression: {text[:100]!r}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, message)
    return expressions


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
