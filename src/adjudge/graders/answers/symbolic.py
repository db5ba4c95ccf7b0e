"""Are two sums, integrals or limits equal. Runs in a killable process: it can take for ever.

By the ``math-verify`` library with its own timeouts off, because they need the main thread and
fail silently elsewhere. It is asked only about what it reads in full. It reads an expression
without computing it, so each is computed alone first, reference before answer, each in its phase
of the worker's processor time. The phase shows which of the two used up the time.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from math import log10
from typing import Any

from adjudge.engine.worker import InputTooLarge, WorkerPhase, enter_phase
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.installation import install_command

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
    return any(_same(one, answer) for one in references)


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


def _same(reference: list[Any], answer: list[Any]) -> bool:
    return bool(_library().verify(reference, answer, timeout_seconds=None))


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
