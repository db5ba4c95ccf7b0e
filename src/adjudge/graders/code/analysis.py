"""A test read without running it: what it needs of the code that it judges.

Which names of the code it uses, what no other process can have, and where both would change one
object, of which they only have copies.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from adjudge.text import shorten_text

# warnings.catch_warnings swaps process-wide state; two of ours must not interleave.
_warnings_lock = threading.Lock()


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Warnings are off: an odd escape sequence is not an error."""
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parse_python(source: str) -> ast.Module | str:
    """The syntax tree, or why the source cannot be parsed.

    CPython bounds the parser's depth, so hostile nesting ends in one of these exceptions and not
    in a crash (tested with 3.11 to 3.13); the tree's own depth is bounded by the recursion limit.
    """
    try:
        with without_warnings():
            return ast.parse(source)
    except SyntaxError as error:
        return shorten_text(f"{type(error).__name__}: {error.msg} (line {error.lineno})")
    except (ValueError, OverflowError) as error:
        return shorten_text(f"{type(error).__name__}: {error}")
    except (MemoryError, RecursionError) as error:
        return f"{type(error).__name__}: too deeply nested to parse"


CHANGES = frozenset(
    {
        *("append", "appendleft", "add", "clear", "discard", "extend", "extendleft", "insert"),
        *("pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort"),
        "update",
    }
)


def collect_names(*nodes: ast.AST | None) -> set[str]:
    """The names anywhere in the nodes."""
    inside = [one for node in nodes if node is not None for one in ast.walk(node)]
    return {node.id for node in inside if isinstance(node, ast.Name)}


def find_root_name(node: ast.AST) -> str:
    """The name that a chain of attributes, items and calls starts with, or ''."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def computes_with_arguments(nodes: list[ast.AST], theirs: set[str]) -> bool:
    """Whether a test does more with what it gave the code than compare it with something else.

    If the code has changed it by then, the code has a say in what the test expects.

    >>> tree = ast.parse("x = [1, 2]; assert f(x) == sum(x)")
    >>> computes_with_arguments(list(ast.walk(tree)), {"f"})
    True
    """
    code = _candidate_names(nodes, theirs)
    calls = [
        node for node in nodes if isinstance(node, ast.Call) and find_root_name(node.func) in code
    ]
    arguments = [one for call in calls for one in call_arguments(call)]
    given = collect_names(*arguments) - code
    fine = {id(node) for one in arguments for node in ast.walk(one)}
    for node in nodes:
        harmless: list[ast.AST | None] = []
        if isinstance(node, ast.Assert):
            harmless = [node.msg]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
            harmless = [*node.args]
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            views = [one for one in operands if _is_view(one, given)]
            others = [one for one in operands if one not in views]
            if len(views) == 1 and not collect_names(*others) & (given | theirs):
                harmless = [*views]
        fine |= {id(inside) for one in harmless if one is not None for inside in ast.walk(one)}
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in given
        and id(node) not in fine
        for node in nodes
    )


def find_shared_changes(nodes: list[ast.AST], theirs: set[str]) -> Iterator[str]:
    """Why a test that changes values in place cannot run apart."""
    code = _candidate_names(nodes, theirs)
    parts = {
        name
        for target, value in _bindings(nodes)
        if isinstance(value, ast.Attribute) and find_root_name(value) in code
        for name in collect_names(target)
    }
    kept: dict[str, tuple[int, int]] = {}
    objects = {
        name
        for target, value in _bindings(nodes)
        if isinstance(value, ast.Call) and _constructs(value, theirs)
        for name in collect_names(target)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and (
            _constructs(node, theirs)
            or (isinstance(node.func, ast.Attribute) and find_root_name(node.func) in objects)
        ):
            for one in call_arguments(node):
                if isinstance(one, ast.Name):
                    kept.setdefault(one.id, (node.lineno, node.col_offset))
    for value in _changed(nodes):
        name = value.id if isinstance(value, ast.Name) else ""
        if name in parts or (isinstance(value, ast.Attribute) and find_root_name(value) in code):
            yield "changes a part of the code's object in place"
        elif name in kept and (value.lineno, value.col_offset) > kept[name]:
            yield "changes what the code's object may hold"


def _constructs(call: ast.Call, theirs: set[str]) -> bool:
    """``Name(...)`` of the code; a ``Solution`` keeps nothing."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    return name in theirs and name[0].isupper() and name != "Solution"


def call_arguments(call: ast.Call) -> list[ast.expr]:
    """All arguments of a call, by place and by name."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_view(node: ast.AST, given: set[str]) -> bool:
    """A name of ``given``, its length, an item or a slice of it."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len" and len(node.args) == 1:
        node = node.args[0]
    while isinstance(node, ast.Subscript) and not collect_names(node.slice) & given:
        node = node.value
    return isinstance(node, ast.Name) and node.id in given


def _changed(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """The values, without indices, that the nodes change in place."""
    for node in nodes:
        match node:
            case ast.Call(ast.Attribute(value, name)) if name in CHANGES:
                whole = value
            case ast.Subscript(value, ctx=ast.Store() | ast.Del()):
                whole = value
            case ast.AugAssign(ast.Name() as whole):
                pass
            case _:
                continue
        while isinstance(whole, ast.Subscript):
            whole = whole.value
        yield whole


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, ast.NamedExpr):
            yield node.target, node.value
        elif isinstance(node, ast.For | ast.comprehension):
            yield node.target, node.iter


def _candidate_names(nodes: list[ast.AST], theirs: set[str]) -> set[str]:
    """The names of the code, what was made of it, and the parameters that a test calls."""
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    found = theirs | {n.arg for n in nodes if isinstance(n, ast.arg) and n.arg in called}
    bindings = list(_bindings(nodes))
    before = -1
    while len(found) != before:
        before = len(found)
        for target, value in bindings:
            if find_root_name(value) in found:
                found |= collect_names(target)
    return found


_PYTHON_NAMES = frozenset({*vars(builtins), "__builtins__"})

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

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTABLE = frozenset({"sys", "unittest", "contextlib", "typing"})

# What tests use and forget to import. The code would have to lend it, and could lend another.
_BORROWED = frozenset(
    {"allclose", "approx", "isclose", "np", "numpy", "pandas", "pd", "pytest", "torch"}
)


@dataclass(frozen=True)
class CaseRequirements:
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


def find_requirements(tree: ast.Module, function: str) -> CaseRequirements:
    """The needs of a test; ``function`` is the name that the row gives, or ''.

    A test that only defines ``check(candidate)`` gets its call, with the function of that name.

    >>> find_requirements(ast.parse("assert abs(f(3) - 9) < 1e-6"), "f").refusal
    ''
    >>> find_requirements(ast.parse("assert f(3, key=lambda x: x) in (3, 4)"), "f").refusal
    'gives the code a function of its own'
    """
    nodes = list(_nodes(tree))
    loaded = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    defined = {n.name for n in nodes if isinstance(n, _DEFINITIONS)}
    added = ""
    checks = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.args.args]
    if "check" in checks and "check" not in loaded and function.isidentifier():
        added = f"\ncheck({function})\n"
        loaded.add(function)
    free = loaded - defined - _bound(nodes)
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    own = ({function} | (called & sys.stdlib_module_names)) & free
    theirs = free - (_PYTHON_NAMES - own) - (sys.stdlib_module_names - own)
    refusal = next(_refusals(nodes, theirs, free - theirs, defined), "")
    return CaseRequirements(
        tuple(sorted(own)), added, computes_with_arguments(nodes, theirs), refusal
    )


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
            tree = parse_python(text.strip())
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
        elif isinstance(node, ast.ExceptHandler) and collect_names(node.type) & theirs:
            yield "catches an exception that the code defines"
        elif isinstance(node, ast.ClassDef) and collect_names(*node.bases) & theirs:
            yield "derives from a class of the code"
        elif isinstance(node, ast.Call):
            yield from _refusals_of_call(node, theirs, defined)
    yield from find_shared_changes(nodes, theirs)


def _refusals_of_call(node: ast.Call, theirs: set[str], defined: set[str]) -> Iterator[str]:
    given = call_arguments(node)
    name = _called(node)
    if name in ("isinstance", "issubclass") and collect_names(*given[1:]) & theirs:
        yield "asks for a class of the code"
    if name.startswith(("assertRaises", "raises")) and collect_names(*given[:1]) & theirs:
        yield "expects an exception that the code defines"
    functions = [
        one
        for one in given
        if isinstance(one, ast.Lambda | ast.GeneratorExp) or getattr(one, "id", "") in defined
    ]
    if functions and find_root_name(node.func) in theirs:
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
            isinstance(value, ast.Constant)
            or (isinstance(value, ast.Name) and value.id in _PYTHON_NAMES)
            for value in pair
        )
        for operator, pair in zip(node.ops, pairwise(values), strict=True)
    )


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
