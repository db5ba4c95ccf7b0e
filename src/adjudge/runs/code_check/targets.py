"""Where numbers go: assigned to a score, appended to scores, returned from a scoring function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from adjudge.runs.code_check.source import Source, inside
from adjudge.runs.code_check.values import made_up, numbers
from adjudge.runs.code_check.words import called, name_of, score_name

__all__ = ["numbers_set"]

_ADDS = frozenset(("append", "extend", "insert", "put", "put_nowait", "set_result", "setdefault"))


def numbers_set(
    source: Source, statements: Sequence[ast.stmt], *, returns: bool
) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Pairs (where it goes, the statement) for each made-up score among ``statements``.

    ``returns``: the function's name or its work says that what it returns is a score, so that a
    bare number counts there, too. Branches that go on to raise are left out.
    """
    for node in inside(*statements):
        if isinstance(node, ast.stmt) and not _raises_after(source, node):
            for place, value, certain in _placed(node):
                scored = score_name(name_of(place)) or (certain and returns)
                if made_up(value) or (scored and numbers(value)):
                    yield place, node
                    break


def _placed(node: ast.stmt) -> Iterator[tuple[ast.AST, ast.AST | None, bool]]:
    """(where, what, whether that is the function's own result)."""
    match node:
        case ast.Return(value=value) | ast.Expr(value=ast.Yield(value=value)):
            yield node, value, True
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpacked(target, value)
        case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
            yield target, value, False
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner), args=arguments) as call):
            if called(call) in _ADDS:
                yield from ((owner, argument, False) for argument in arguments)


def _unpacked(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None, bool]]:
    match target, value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            yield from ((one, other, False) for one, other in zip(targets, values, strict=True))
        case _:
            yield target, value, False


def _raises_after(source: Source, node: ast.stmt) -> bool:
    block = source.block(node)
    return isinstance(block[-1], ast.Raise) and node is not block[-1]
