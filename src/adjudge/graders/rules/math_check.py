"""Are two mathematical expressions equal. Runs in a killable process: it can take for ever.

By the ``math-verify`` library with its own timeouts off, because they need the main thread and
fail silently elsewhere. Only its LaTeX reader is used; the reader for plain expressions evaluates
text as Python and so has no place near a policy's output.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.rules.extraction import plain

__all__ = ["verify", "warm_up"]

_DELIMITED = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed")
# Read as LaTeX, a word is the product of its letters, and "listen" would equal "silent".
_WORDS = re.compile(r"(?=.*[A-Za-z]{4})[A-Za-z][A-Za-z ,.'-]*+", re.DOTALL)


def warm_up() -> None:
    """Load the library and its parser tables, which takes half a second."""
    verify({"answer": r"\frac{x+1}{2}", "references": [r"\frac{1+x}{2}"]})


def verify(payload: dict[str, Any]) -> dict[str, bool]:
    """``{answer, references}``, LaTeX or plain, to ``{correct, parsed}``: does it equal any.

    ``parsed`` is False when the answer is no expression. A reference that is none raises
    ``GradingFailure(invalid_input)``.
    """
    references = [(plain(text), _reference(text)) for text in payload["references"]]
    answer_text = plain(payload["answer"])
    answer = _parsed(answer_text)
    correct = any(_equal(answer_text, answer, *reference) for reference in references)
    return {"correct": correct, "parsed": bool(answer)}


def _equal(answer_text: str, answer: list[Any], text: str, reference: list[Any]) -> bool:
    if _WORDS.fullmatch(text) and _WORDS.fullmatch(answer_text):
        return text.casefold().split() == answer_text.casefold().split()
    library = _library()
    return bool(answer) and bool(library.verify(reference, answer, timeout_seconds=None))


@lru_cache(maxsize=256)
def _reference(text: str) -> list[Any]:
    """A reference as expressions; one is shared by all samples of a group, hence the cache."""
    expressions = _parsed(plain(text))
    if not expressions:
        message = f"the reference is not a mathematical expression: {text[:100]!r}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, message)
    return expressions


def _parsed(text: str) -> list[Any]:
    """What the library reads in ``text``; empty when it reads nothing."""
    library = _library()
    if not _DELIMITED.search(text):
        text = f"${' '.join(text.split())}$"
    expressions: list[Any] = library.parse(
        text,
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
