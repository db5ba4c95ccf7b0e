"""The Python code in a response: fenced blocks, or the whole text, and whether it parses."""

from __future__ import annotations

import ast
import threading
import warnings
from typing import Any, Literal

from adjudge.engine.processes import Phase, get_pool
from adjudge.graders.rules.text import shown

__all__ = ["Blocks", "fenced", "looks_like_code", "parsed", "python_sources", "syntax_fault"]

Blocks = Literal["last", "all"]

_PYTHON = frozenset({"python", "python3", "py", "py3"})
_INLINE_CHARS = 20_000
"""About 50 ms of parsing; longer text goes to a worker process."""
_PARSE_DEADLINE_S = 30.0

# warnings.catch_warnings swaps process-wide state; two of ours must not interleave.
_warnings_lock = threading.Lock()


def fenced(text: str) -> list[tuple[str, str]]:
    r"""The fenced code blocks of Markdown ``text`` as (language, code), in order, in linear time.

    As CommonMark has it: backticks or tildes, at least three, closed by at least as many of the
    same, or by the end of the text. Any indentation is allowed, and removed from the code.

    >>> fenced("Here:\n```Python\nx = 1\n```\nand ~~~ not")
    [('python', 'x = 1\n')]
    """
    blocks: list[tuple[str, str]] = []
    lines: list[str] = []
    fence, indent, language = "", 0, ""
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if not fence:
            fence = _opening(stripped)
            if fence:
                indent = len(line) - len(line.lstrip())
                info = stripped[len(fence) :].split(maxsplit=1)
                language = info[0].lower() if info else ""
        elif len(stripped) >= len(fence) and not stripped.strip(fence[0]):
            blocks.append((language, "".join(lines)))
            fence, lines = "", []
        else:
            lines.append(line[min(indent, len(line) - len(line.lstrip(" \t"))) :])
    if fence:
        blocks.append((language, "".join(lines)))
    return blocks


def _opening(line: str) -> str:
    for sign in "`~":
        if line.startswith(sign * 3):
            rest = line.lstrip(sign)
            return "" if sign == "`" and "`" in rest else sign * (len(line) - len(rest))
    return ""


async def python_sources(text: str, blocks: Blocks) -> list[str]:
    """The Python code in ``text``: one source with ``last``, else all; empty when there is none.

    Blocks marked as Python; where there are none, blocks without a language; where there are no
    blocks at all, the whole text if it is code (:func:`looks_like_code`).
    """
    found = fenced(text)
    sources = [code for language, code in found if language in _PYTHON]
    sources = sources or [code for language, code in found if not language]
    sources = [code for code in sources if code.strip()]
    if not found and text.strip() and await _in_place_or_worker("looks_like_code", text):
        sources = [text]
    return sources[-1:] if blocks == "last" else sources


async def syntax_fault(source: str) -> str:
    """Why ``source`` is not Python for this interpreter; '' when it is. Nothing is executed.

    Long sources are parsed in a worker process and may raise ``GradingFailure`` as its calls do,
    :class:`~adjudge.engine.processes.CandidateLimitExceeded` where it takes too long.
    """
    fault: str = await _in_place_or_worker("parse_fault", source)
    return fault


def looks_like_code(source: str) -> bool:
    """Whether ``source`` parses and does something: prose of one word parses too.

    >>> looks_like_code("print(1)"), looks_like_code("Paris"), looks_like_code("I do not know.")
    (True, False, False)
    """
    tree = parsed(source)
    return isinstance(tree, ast.Module) and any(not _idle(statement) for statement in tree.body)


def parse_fault(source: str) -> str:
    """:func:`syntax_fault` at once, whatever the length."""
    tree = parsed(source)
    return tree if isinstance(tree, str) else ""


def parsed(source: str) -> ast.Module | str:
    """The syntax tree, or why there is none.

    CPython bounds the parser's depth, so hostile nesting ends in one of these exceptions and not
    in a crash (tested with 3.11 to 3.13); the tree's own depth is bounded by the recursion limit.
    """
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape sequence is not an error
            return ast.parse(source)
    except SyntaxError as error:
        return shown(f"{type(error).__name__}: {error.msg} (line {error.lineno})")
    except (ValueError, OverflowError) as error:
        return shown(f"{type(error).__name__}: {error}")
    except (MemoryError, RecursionError) as error:
        return f"{type(error).__name__}: too deeply nested to parse"


def _idle(statement: ast.stmt) -> bool:
    """Whether a statement only names or adds up things, as a word or a number does."""
    return isinstance(statement, ast.Expr) and isinstance(
        statement.value, ast.Name | ast.Constant | ast.Attribute | ast.BinOp | ast.Tuple
    )


async def _in_place_or_worker(
    function: Literal["looks_like_code", "parse_fault"], text: str
) -> Any:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"not Unicode text: {error.reason}" if function == "parse_fault" else False
    if len(text) <= _INLINE_CHARS:
        return globals()[function](text)
    return await get_pool().call(
        f"{__name__}:{function}", text, deadline_s=_PARSE_DEADLINE_S, phase=Phase.CANDIDATE
    )
