"""Where a test and the code that it judges would change one object: they only have copies."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

__all__ = ["arguments_of", "computes_with_given", "names_of", "root_of", "shared_changes"]

_CHANGES = frozenset(
    {
        *("append", "appendleft", "add", "clear", "discard", "extend", "extendleft", "insert"),
        *("pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort"),
        "update",
    }
)


def names_of(*nodes: ast.AST | None) -> set[str]:
    """The names anywhere in the nodes."""
    inside = [one for node in nodes if node is not None for one in ast.walk(node)]
    return {node.id for node in inside if isinstance(node, ast.Name)}


def root_of(node: ast.AST) -> str:
    """The name that a chain of attributes, items and calls starts with, or ''."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def computes_with_given(nodes: list[ast.AST], theirs: set[str]) -> bool:
    """Whether a test does more with what it gave the code than compare it with something else.

    If the code has changed it by then, the code has a say in what the test expects.

    >>> tree = ast.parse("x = [1, 2]; assert f(x) == sum(x)")
    >>> computes_with_given(list(ast.walk(tree)), {"f"})
    True
    """
    code = _of_the_code(nodes, theirs)
    calls = [node for node in nodes if isinstance(node, ast.Call) and root_of(node.func) in code]
    arguments = [one for call in calls for one in arguments_of(call)]
    given = names_of(*arguments) - code
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
            if len(views) == 1 and not names_of(*others) & (given | theirs):
                harmless = [*views]
        fine |= {id(inside) for one in harmless if one is not None for inside in ast.walk(one)}
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in given
        and id(node) not in fine
        for node in nodes
    )


def shared_changes(nodes: list[ast.AST], theirs: set[str]) -> Iterator[str]:
    """Why a test that changes values in place cannot run apart."""
    code = _of_the_code(nodes, theirs)
    parts = {
        name
        for target, value in _bindings(nodes)
        if isinstance(value, ast.Attribute) and root_of(value) in code
        for name in names_of(target)
    }
    kept: dict[str, tuple[int, int]] = {}
    objects = {
        name
        for target, value in _bindings(nodes)
        if isinstance(value, ast.Call) and _constructs(value, theirs)
        for name in names_of(target)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and (
            _constructs(node, theirs)
            or (isinstance(node.func, ast.Attribute) and root_of(node.func) in objects)
        ):
            for one in arguments_of(node):
                if isinstance(one, ast.Name):
                    kept.setdefault(one.id, (node.lineno, node.col_offset))
    for value in _changed(nodes):
        name = value.id if isinstance(value, ast.Name) else ""
        if name in parts or (isinstance(value, ast.Attribute) and root_of(value) in code):
            yield "changes a part of the code's object in place"
        elif name in kept and (value.lineno, value.col_offset) > kept[name]:
            yield "changes what the code's object may hold"


def _constructs(call: ast.Call, theirs: set[str]) -> bool:
    """``Name(...)`` of the code; a ``Solution`` keeps nothing."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    return name in theirs and name[0].isupper() and name != "Solution"


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """All arguments of a call, by place and by name."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_view(node: ast.AST, given: set[str]) -> bool:
    """A name of ``given``, its length, an item or a slice of it."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len" and len(node.args) == 1:
        node = node.args[0]
    while isinstance(node, ast.Subscript) and not names_of(node.slice) & given:
        node = node.value
    return isinstance(node, ast.Name) and node.id in given


def _changed(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """The values, without indices, that the nodes change in place."""
    for value in _changed_or_item(nodes):
        whole = value
        while isinstance(whole, ast.Subscript):
            whole = whole.value
        yield whole


def _changed_or_item(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _CHANGES:
                yield node.func.value
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, ast.NamedExpr):
            yield node.target, node.value
        elif isinstance(node, ast.For | ast.comprehension):
            yield node.target, node.iter


def _of_the_code(nodes: list[ast.AST], theirs: set[str]) -> set[str]:
    """The names of the code, what was made of it, and the parameters that a test calls."""
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    found = theirs | {n.arg for n in nodes if isinstance(n, ast.arg) and n.arg in called}
    bindings = list(_bindings(nodes))
    before = -1
    while len(found) != before:
        before = len(found)
        for target, value in bindings:
            if root_of(value) in found:
                found |= names_of(target)
    return found
