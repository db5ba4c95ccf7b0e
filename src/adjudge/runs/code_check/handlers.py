"""``except`` blocks that answer with a number, and numbers that outlive a failed ``try``."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from adjudge.runs.code_check.findings import CodeFinding, finding
from adjudge.runs.code_check.source import Function, Source, inside
from adjudge.runs.code_check.targets import numbers_set
from adjudge.runs.code_check.values import asks_judge, made_up, numbers, plain_number
from adjudge.runs.code_check.words import (
    called,
    identifier,
    name_of,
    score_name,
    speaks_of_judge,
    tokens,
    words,
)

__all__ = ["handlers"]

_Try = ast.Try | ast.TryStar
_BROAD = frozenset(("Exception", "BaseException"))
_EXITS = (ast.Raise, ast.Return, ast.Continue, ast.Break)
_LINE = words("timeout connection http rate api client request grading")
_NO_RESULTS = words("test config configs settings options params args")
_STAND_IN_NAMES = words("error errors default defaults fallback failed failure")


def handlers(source: Source) -> Iterator[CodeFinding]:
    """Every failure that is caught and answered with a number."""
    for node in source.nodes:
        match node:
            case ast.Try(handlers=caught) | ast.TryStar(handlers=caught):
                for handler in caught:
                    yield from _handler(source, node, handler)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                if any(called(item.context_expr) == "suppress" for item in items):
                    yield from _preset(source, node, node.body)
    for function in source.functions():
        yield from _gave_up(source, function)
        yield from _made_up(source, function)
    for call in source.all(ast.Call):
        yield from _retry_default(source, call)


def _handler(source: Source, node: _Try, one: ast.ExceptHandler) -> Iterator[CodeFinding]:
    asks = _asks(source, node) or _of_the_line(one)
    if not asks and not _broad(one):
        return  # a wrong answer that does not parse is really worth 0
    rule = "except-judge" if asks else "except-broad"
    for place, value in numbers_set(source, one.body, returns=_scores(source, node)):
        yield finding(source, rule, value, name=identifier(name_of(place), "score"))
    if not any(isinstance(part, _EXITS) for part in one.body):
        yield from _preset(source, node, node.body, handler=one)


def _asks(source: Source, node: _Try) -> bool:
    return source.cached("asks", node, lambda one: asks_judge(inside(*one.body)))


def _scores(source: Source, node: ast.AST) -> bool:
    """Whether what is returned around here is a score, by the names it stands in."""
    names = source.scope_names(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names = [node.name, *names]
    return any(score_name(name) or speaks_of_judge(name) for name in names[:2])


def _broad(handler: ast.ExceptHandler) -> bool:
    kinds = getattr(handler.type, "elts", [handler.type])
    return handler.type is None or any(name_of(kind) in _BROAD for kind in kinds)


def _of_the_line(handler: ast.ExceptHandler) -> bool:
    """Whether it catches what only asking somebody can raise: timeouts, connections, HTTP."""
    for kind in getattr(handler.type, "elts", [handler.type]):
        parts = tokens(name_of(kind) or "")
        if not _LINE.isdisjoint(parts) and "expired" not in parts:
            return True
    return False


def _preset(
    source: Source,
    node: ast.stmt,
    body: Sequence[ast.stmt],
    handler: ast.ExceptHandler | None = None,
) -> Iterator[CodeFinding]:
    """``score = 0.0`` before, ``score = judge(…)`` inside, nothing in the handler, used after."""
    function = source.function(node)
    if function is None:
        return
    inner = {
        target.id
        for part in inside(*body)
        if isinstance(part, ast.Assign) and not numbers(part.value)
        for target in _targets(part)
    }
    again = {t.id for part in (handler.body if handler else []) for p in inside(part)
             if isinstance(p, ast.Assign) for t in _targets(p)}  # fmt: skip
    used = source.cached("last_use", function, _last_uses)
    presets = source.cached("presets", function, _presets)
    for name in sorted(inner - again):
        earlier = [one for one in presets.get(name, []) if one.lineno < node.lineno]
        if earlier and used.get(name, 0) > (node.end_lineno or 0):
            yield finding(source, "preset-score", earlier[-1], name=name)


def _targets(node: ast.Assign) -> list[ast.Name]:
    parts = itertools.chain.from_iterable(getattr(t, "elts", [t]) for t in node.targets)
    return [part for part in parts if isinstance(part, ast.Name)]


def _presets(function: Function) -> dict[str, list[ast.Assign]]:
    found: dict[str, list[ast.Assign]] = {}
    for node in inside(function):
        if isinstance(node, ast.Assign) and plain_number(node.value):
            for target in _targets(node):
                if score_name(target.id):
                    found.setdefault(target.id, []).append(node)
    return {name: sorted(nodes, key=lambda one: one.lineno) for name, nodes in found.items()}


def _last_uses(function: Function) -> dict[str, int]:
    lines: dict[str, int] = {}
    for node in inside(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            lines[node.id] = max(lines.get(node.id, 0), node.lineno)
    return lines


def _gave_up(source: Source, function: Function) -> Iterator[CodeFinding]:
    """A ``return 0.0`` that is only reached when every ``try`` before it has failed."""
    last = function.body[-1]
    if not isinstance(last, ast.Return) or len(function.body) < 2:
        return
    if not (made_up(last.value) or numbers(last.value)):
        return
    tried = function.body[-2]
    scoring = _scores(source, function)
    for node in inside(tried):
        if isinstance(node, ast.Try) and _answers(node) and _asks(source, node):
            ends = [any(isinstance(part, ast.Raise | ast.Return) for part in one.body)
                    for one in node.handlers]  # fmt: skip
            if not all(ends) and (scoring or made_up(last.value)):
                yield finding(source, "gave-up", last)
                return


def _answers(node: ast.Try) -> bool:
    return any(
        isinstance(part, ast.Return) and part.value is not None and not plain_number(part.value)
        for part in inside(*node.body, *node.orelse)
    )


def _made_up(source: Source, function: Function) -> Iterator[CodeFinding]:
    """``_create_error_results``: results for what was not judged, each with a score."""
    parts = tokens(function.name)
    if _STAND_IN_NAMES.isdisjoint(parts) or not _NO_RESULTS.isdisjoint(parts):
        return
    for node in inside(*function.body):
        if isinstance(node, ast.Call | ast.Dict) and made_up(node):
            yield finding(source, "made-up-result", node)
            return


def _retry_default(source: Source, call: ast.Call) -> Iterator[CodeFinding]:
    """Tenacity's ``retry_error_callback=lambda state: 0.0``."""
    for word in call.keywords:
        match word:
            case ast.keyword(arg="retry_error_callback", value=ast.Lambda(body=body)) if numbers(
                body
            ) or made_up(body):
                yield finding(source, "gave-up", word.value)
