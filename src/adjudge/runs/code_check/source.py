"""A Python file as the rules read it: its tree, who stands inside whom, and the text of a node."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from adjudge.errors import ConfigError

__all__ = ["FUNCTIONS", "Function", "Source", "inside"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
_ENCODINGS = ("utf-8", "utf-8-sig", "iso-8859-1", "ascii")
_MAX_BYTES = 4_000_000
_MAX_TEXT = 2_000

N = TypeVar("N", bound=ast.AST)
T = TypeVar("T")


class Source:
    """A parsed file; ``where`` is its name in messages.

    Raises :class:`~adjudge.errors.ConfigError`, which names the line, where it is not Python.
    """

    def __init__(self, code: bytes, where: str = "<code>") -> None:
        text = _decoded(code, where)
        self.tree = _parsed(text, where)
        # Columns of the tree count bytes of UTF-8, whatever the file's own encoding is.
        self._lines = text.encode("utf-8", "surrogatepass").splitlines()
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        self._cache: dict[tuple[str, ast.AST], Any] = {}
        self._blocks: dict[ast.AST, list[ast.stmt]] = {}
        for node in ast.walk(self.tree):
            self.nodes.append(node)
            for name in ("body", "orelse", "finalbody"):
                if isinstance(block := getattr(node, name, None), list):
                    self._blocks.update(dict.fromkeys(block, block))
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node

    def all(self, kind: type[N]) -> Iterator[N]:
        """Every node of this kind."""
        return (node for node in self.nodes if isinstance(node, kind))

    def functions(self) -> Iterator[Function]:
        """Every function and method."""
        return (node for node in self.nodes if isinstance(node, FUNCTIONS))

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What ``node`` stands in, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def function(self, node: ast.AST) -> Function | None:
        """The function that ``node`` stands in."""
        return next((one for one in self.ancestors(node) if isinstance(one, FUNCTIONS)), None)

    def cached(self, what: str, node: N, compute: Callable[[N], T]) -> T:
        """``compute(node)``, once per node: a rule may ask for each of a thousand branches."""
        key = (what, node)
        if key not in self._cache:
            self._cache[key] = compute(node)
        found: T = self._cache[key]
        return found

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
            parts = [
                self._lines[first - 1][start:],
                *self._lines[first : min(last - 1, first + 30)],
            ]
            parts.append(self._lines[last - 1][:end])
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

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements among which this one stands."""
        return self._blocks.get(statement, [statement])


def inside(*roots: ast.AST) -> Iterator[ast.AST]:
    """The nodes of ``roots``, without what stands in functions and classes defined there."""
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _SCOPES) and node not in roots:
            continue
        waiting.extend(ast.iter_child_nodes(node))


def _decoded(code: bytes, where: str) -> str:
    if len(code) > _MAX_BYTES:
        raise ConfigError(f"{where}: {len(code):,} bytes; at most {_MAX_BYTES:,} are read")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(code).readline)
    except SyntaxError as error:
        raise ConfigError(f"{where}:1: not Python: {error.msg}; save it as UTF-8") from None
    if encoding not in _ENCODINGS:
        raise ConfigError(f"{where}:1: is encoded as {encoding!r}; save it as UTF-8")
    try:
        return code.decode(encoding)
    except UnicodeDecodeError as error:
        line = code.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{where}:{line}: not {encoding}: save it as UTF-8") from None


def _parsed(text: str, where: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in somebody's string is not our matter
            return ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"{where}:{error.lineno or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise ConfigError(f"{where}:1: not Python that can be read: {reason}") from None
