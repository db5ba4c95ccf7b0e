"""What a test needs of the code that it judges: its names, and what no other process can have."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from adjudge.graders.rules.code_blocks import parsed
from adjudge.graders.rules.code_changes import (
    arguments_of,
    computes_with_given,
    names_of,
    root_of,
    shared_changes,
)

__all__ = ["Needs", "find_needs"]

_PYTHON = frozenset({*vars(builtins), "__builtins__"})

# What a test changes or reads through these belongs to one process, and the code runs in another.
_SHARED = frozenset(
    {
        *("asyncio", "builtins", "candidate", "concurrent", "gc", "inspect", "io", "logging", "os"),
        *("multiprocessing", "pathlib", "shutil", "signal", "subprocess", "tempfile", "threading"),
        *("types", "unittest.mock", "warnings", "globals", "input", "locals", "open"),
        *("contextlib.redirect_stderr", "contextlib.redirect_stdout", "sys.argv", "sys.modules"),
        *("sys.setrecursionlimit", "sys.stderr", "sys.stdin", "sys.stdout"),
    }
)

# What runs text or bytes: what the code returned, it would run as a part of the test.
_RUNS = frozenset(
    {
        *("__builtins__", "__import__", "compile", "eval", "exec", "typing.get_type_hints"),
        *("_imp", "_pickle", "bdb", "cProfile", "code", "codeop", "ctypes", "doctest", "importlib"),
        *("marshal", "pdb", "pickle", "pickletools", "pkgutil", "profile", "pydoc", "runpy"),
        *("shelve", "timeit", "trace", "zipimport", "cloudpickle", "dill", "joblib"),
    }
)

_IMPORTABLE = frozenset({"sys", "unittest", "contextlib", "typing"})

# What tests use and forget to import. The code would have to lend it, and could lend another.
_BORROWED = frozenset(
    {"allclose", "approx", "isclose", "np", "numpy", "pandas", "pd", "pytest", "torch"}
)


@dataclass(frozen=True)
class Needs:
    """What a test needs to run apart from the code.

    ``own``: names that are the code's although Python has them too; ``added``: statements without
    which the test would do nothing; ``computes``: with what it gave the code, so that code which
    changed that and returned a value has a say in what is expected; ``refusal``: why it cannot run
    apart, or ''.
    """

    own: tuple[str, ...]
    added: str
    computes: bool
    refusal: str


def find_needs(tree: ast.Module, function: str) -> Needs:
    """The needs of a test; ``function`` is the name that the row gives, or ''.

    A test that only defines ``check(candidate)`` gets its call, with the function of that name.

    >>> find_needs(ast.parse("assert abs(f(3) - 9) < 1e-6"), "f").refusal
    ''
    >>> find_needs(ast.parse("assert f(3, key=lambda x: x) in (3, 4)"), "f").refusal
    'gives the code a function of its own'
    """
    nodes = list(_nodes(tree))
    loaded = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    defined = _definitions(nodes)
    added = ""
    checks = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.args.args]
    if "check" in checks and "check" not in loaded and function.isidentifier():
        added = f"\ncheck({function})\n"
        loaded.add(function)
    free = loaded - defined - _bound(nodes)
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    own = ({function} | (called & sys.stdlib_module_names)) & free
    theirs = free - (_PYTHON - own) - (sys.stdlib_module_names - own)
    refusal = next(_refusals(nodes, theirs, free - theirs, defined), "")
    return Needs(tuple(sorted(own)), added, computes_with_given(nodes, theirs), refusal)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes; of ``eval("a constant")`` those of the constant, and not the name."""
    for node in ast.iter_child_nodes(tree):
        inside = _constant_code(node)
        if inside is None:
            yield node
        yield from _nodes(node if inside is None else inside)


def _constant_code(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.Call(ast.Name("eval" | "exec"), [ast.Constant(str() as text)], []):
            tree = parsed(text.strip())
            return None if isinstance(tree, str) else tree
    return None


def _refusals(
    nodes: list[ast.AST], theirs: set[str], python: set[str], defined: set[str]
) -> Iterator[str]:
    """Why the test cannot run apart; ``theirs`` are the names of the code that it uses."""
    if not theirs:
        yield "uses no name of the code"
    for name in sorted(theirs & _BORROWED):
        yield f"uses {name}, which it does not import"
    for node in nodes:
        for name in sorted(_shared(node, python)):
            runs = "could run what the code returns" if name in _RUNS else "the code does not share"
            yield f"uses {name}, which {runs}"
        if isinstance(node, ast.Await | ast.AsyncFunctionDef):
            yield "runs the code on an event loop"
        elif isinstance(node, ast.Compare) and _compares_identity(node):
            yield "asks whether two values are the same object"
        elif isinstance(node, ast.ExceptHandler) and names_of(node.type) & theirs:
            yield "catches an exception that the code defines"
        elif isinstance(node, ast.ClassDef) and names_of(*node.bases) & theirs:
            yield "derives from a class of the code"
        elif isinstance(node, ast.Call):
            yield from _refusals_of_call(node, theirs, defined)
    yield from shared_changes(nodes, theirs)


def _refusals_of_call(node: ast.Call, theirs: set[str], defined: set[str]) -> Iterator[str]:
    given = arguments_of(node)
    name = _called(node)
    if name in ("isinstance", "issubclass") and names_of(*given[1:]) & theirs:
        yield "asks for a class of the code"
    if name.startswith(("assertRaises", "raises")) and names_of(*given[:1]) & theirs:
        yield "expects an exception that the code defines"
    if root_of(node.func) in theirs and any(_is_function(one, defined) for one in given):
        yield "gives the code a function of its own"


def _shared(node: ast.AST, python: set[str]) -> set[str]:
    """What a node names of ``_SHARED``."""
    used: list[str] = []
    if isinstance(node, ast.Import):
        used = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        used = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        used = [f"{node.value.id}.{node.attr}"] if node.value.id in _IMPORTABLE else []
    elif isinstance(node, ast.Name) and node.id in python:
        used = [node.id]
    parts = [name.split(".") for name in used]
    return {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)} & (
        _SHARED | _RUNS
    )


def _compares_identity(node: ast.Compare) -> bool:
    """Whether ``is`` stands between two values, none of them a constant or a built-in type."""
    values = [node.left, *node.comparators]
    return any(
        isinstance(operator, ast.Is | ast.IsNot)
        and not any(
            isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and value.id in _PYTHON)
            for value in pair
        )
        for operator, pair in zip(node.ops, pairwise(values), strict=True)
    )


def _definitions(nodes: Iterable[ast.AST]) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in nodes if isinstance(node, kinds)}


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that a test gives a value, wherever."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
    return found


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_function(node: ast.AST, defined: set[str]) -> bool:
    is_one = isinstance(node, ast.Lambda | ast.GeneratorExp)
    return is_one or (isinstance(node, ast.Name) and node.id in defined)
