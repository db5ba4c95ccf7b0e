"""Are two mathematical expressions equal. Runs in a killable process: it can take for ever.

By the ``math-verify`` library with its own timeouts off, because they need the main thread and
fail silently elsewhere. Only its LaTeX reader is used; the reader for plain expressions evaluates
text as Python and so has no place near a policy's output. What the library would take too easily
is settled before it is asked: an equation stands for its last side only where all sides say it.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.rules.arithmetic import latex
from adjudge.graders.rules.extraction import plain

__all__ = ["verify", "warm_up"]

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
_MATRIX = re.compile(r"\\begin\{[pbv]?matrix\}(.*)\\end\{[pbv]?matrix\}", re.DOTALL)


def warm_up() -> None:
    """Load the library and its parser tables, which takes half a second."""
    verify({"answer": r"\frac{x+1}{2}", "references": [r"\frac{1+x}{2}"]})


def verify(payload: dict[str, Any]) -> dict[str, bool]:
    """``{answer, references}``, LaTeX or plain, to ``{correct, parsed}``: does it equal any.

    ``parsed`` is False when the answer is no expression. A reference that is none raises
    ``GradingFailure(invalid_input)``.
    """
    answer = _written(payload["answer"])
    if answer.lower() == "nan":  # no value, not even its own
        return {"correct": False, "parsed": False}
    parsed = _parsed(answer)
    correct = any(_equal(answer, parsed, _written(text)) for text in payload["references"])
    return {"correct": correct, "parsed": bool(parsed)}


def _written(text: str) -> str:
    """``text`` as the library reads it best: LaTeX, without wrappers, "about" and a full stop."""
    text = _DELIMITERS.sub(" ", latex(plain(text)))  # one expression, however it is cut up
    text = _ABOUT.sub("", " ".join(_VALUES_IN_TEXT.sub(r" \1 ", text).split()))
    text = text.replace(r"\approx", "=").rstrip(" .?,;")
    return _FUNCTION.sub(r"\\\1", plain(text))


def _equal(answer_text: str, answer: list[Any], text: str) -> bool:
    reference = _reference(text)
    if _WORDS.fullmatch(text) and _WORDS.fullmatch(answer_text):
        return text.casefold().split() == answer_text.casefold().split()
    if ("matrix}" in answer_text) != ("matrix}" in text):
        answer, reference = _parsed(_tuple(answer_text)), _parsed(_tuple(text))
    return bool(answer) and _consistent(answer[0], reference[0]) and _same(reference, answer)


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
    applied: Any = importlib.import_module("sympy.core.function").AppliedUndef
    factors = side.args if side.is_Mul else (side,)
    return all(isinstance(factor, applied) or factor.is_Symbol for factor in factors)


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
        message = "symbolic maths needs the package math-verify: pip install 'adjudge[rules]'"
        raise GradingFailure(ErrorKind.UNSUPPORTED, message) from None
    return math_verify
