"""A Python file as the rules read it: its tree, who stands inside whom, and the text of a node."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator

from adjudge.errors import ConfigError

__all__ = ["FUNCTIONS", "Function", "Source", "inside"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
_MAX_BYTES = 4_000_000
_MAX_TEXT = 2_000


class Source:
    """A parsed file; ``where`` is its name in messages.

    Raises :class:`~adjudge.errors.ConfigError`, which names the line, where it is not Python.
    """

    def __init__(self, code: bytes, where: str = "<code>") -> None:
        text, self.tree = _parsed(code, where)
        # Columns of the tree count bytes of UTF-8, whatever the file's own encoding is.
        self._lines = text.encode("utf-8", "surrogatepass").splitlines()
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        self._blocks: dict[ast.AST, tuple[list[ast.stmt], int]] = {}
        self._functions: dict[ast.AST, Function | None] = {self.tree: None}
        for node in ast.walk(self.tree):
            self.nodes.append(node)
            here = node if isinstance(node, FUNCTIONS) else self._functions[node]
            for name in ("body", "orelse", "finalbody"):
                if isinstance(block := getattr(node, name, None), list):
                    self._blocks.update({one: (block, i) for i, one in enumerate(block)})
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                self._functions[child] = here

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What ``node`` stands in, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def function(self, node: ast.AST) -> Function | None:
        """The function that ``node`` stands in."""
        return self._functions.get(node)

    def scope_names(self, node: ast.AST) -> list[str]:
        """The names of the functions and classes that ``node`` stands in, innermost first."""
        kinds = (*FUNCTIONS, ast.ClassDef)
        return [one.name for one in self.ancestors(node) if isinstance(one, kinds)]

    def text(self, node: ast.AST) -> str:
        """The node as it is written, on one line; the start of it where it is very long."""
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if not 0 < first <= last <= len(self._lines):
            return ""
        start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        if first == last:
            parts = [self._lines[first - 1][start:end]]
        else:
            between = self._lines[first : min(last - 1, first + 30)]
            parts = [self._lines[first - 1][start:], *between, self._lines[last - 1][:end]]
        joined = b" ".join(part[:_MAX_TEXT].strip() for part in parts)
        return " ".join(joined.decode("utf-8", "replace").split())

    def line(self, number: int) -> str:
        """Line ``number``, counted from 1; empty where there is none."""
        if not 0 < number <= len(self._lines):
            return ""
        return self._lines[number - 1].decode("utf-8", "replace")

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement that ``node`` is or stands in."""
        if isinstance(node, ast.stmt):
            return node
        return next((one for one in self.ancestors(node) if isinstance(one, ast.stmt)), None)

    def after(self, statement: ast.stmt) -> list[ast.stmt]:
        """The next few statements that follow ``statement`` in its block."""
        block, place = self._blocks.get(statement, ([], 0))
        return block[place + 1 : place + 9]


def inside(*roots: ast.AST) -> Iterator[ast.AST]:
    """The nodes of ``roots``, without what stands in functions and classes defined there."""
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _SCOPES) and node not in roots:
            continue
        waiting.extend(ast.iter_child_nodes(node))


def _parsed(code: bytes, where: str) -> tuple[str, ast.Module]:
    if len(code) > _MAX_BYTES:
        raise ConfigError(f"{where}: {len(code):,} bytes; at most {_MAX_BYTES:,} are read")
    line = 1
    try:
        text = code.decode(tokenize.detect_encoding(io.BytesIO(code).readline)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in somebody's string is not our matter
            return text, ast.parse(text)
    except SyntaxError as error:
        line, reason = error.lineno or 1, error.msg
    except UnicodeDecodeError as error:
        line = code.count(b"\n", 0, error.start) + 1
        reason = f"not {error.encoding}; save it as UTF-8"
    except (ValueError, LookupError, RecursionError, MemoryError) as error:
        reason = str(error) or type(error).__name__
    raise ConfigError(f"{where}:{line}: not Python: {reason}") from None
