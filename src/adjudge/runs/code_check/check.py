"""All rules over one file; here those about ``try``: caught failures that become numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from adjudge.runs.code_check.absent import absent_rules, made_of, numbers_put, presence_tests
from adjudge.runs.code_check.findings import CodeFinding, finding
from adjudge.runs.code_check.flow import Flow, Scope
from adjudge.runs.code_check.source import Source, inside
from adjudge.runs.code_check.values import called, judge_name, name_of, score_name, tokens, words

__all__ = ["MEANT", "check_code", "check_file"]

MEANT = "adjudge: meant"
"""A comment with these words keeps its line out of the findings."""

_Try = ast.Try | ast.TryStar
_BROAD = words("Exception BaseException")
_EXITS = (ast.Raise, ast.Return, ast.Continue, ast.Break)
_LINE = words("connection http rate api client request grading")
_TEXT_WORK = words(
    "parse loads literal eval float int str len re match search findall group split strip lower "
    "upper replace extract verify latex sympify simplify normalize equal equiv compare join "
    "startswith endswith get items keys values append isinstance sorted set round abs sum min max "
    "zip enumerate range list dict tuple print format any all"
)


def check_code(code: bytes | str, where: str = "<code>") -> list[CodeFinding]:
    """Places where reward code turns a failure into a number, in the order of their lines.

    Reads the code, never runs it: follows what a judge said, and the constants in its place, to
    what a function returns. Raises :class:`~adjudge.errors.ConfigError` with the line where it is
    not Python.

    >>> [f.rule for f in check_code('total += getattr(result, "score", 0.0)')]
    ['default-score']
    """
    source = Source(code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code, where)
    flow = Flow(source)
    found: dict[tuple[int, str], CodeFinding] = {}
    for rule in (_caught, absent_rules):
        for one in rule(flow):
            if MEANT not in source.line(one.line):
                found.setdefault((one.line, one.code), one)
    return sorted(found.values(), key=lambda one: one.line)


def check_file(path: Path) -> list[CodeFinding]:
    """:func:`check_code` of a file; ``OSError`` where it cannot be read."""
    return check_code(path.read_bytes(), str(path))


def _caught(flow: Flow) -> Iterator[CodeFinding]:
    """Every failure that is caught and answered with a number, or survived by one."""
    for node in flow.source.nodes:
        scope = flow.source.function(node)
        found: list[tuple[str, ast.AST]] = []
        match node:
            case ast.Try() | ast.TryStar():
                asks = flow.asks(node.body, scope)
                for handler in node.handlers:
                    found += _handler(flow, node, handler, scope, asks=asks)
                if asks and not all(_exits(one.body) for one in node.handlers):
                    found += _gave_up(flow, node, scope)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                if any(called(item.context_expr) == "suppress" for item in items):
                    found += _preset(flow, node, node.body, (), scope)
            case ast.If(test=test, body=body, orelse=[]):
                for subject, missing, how in presence_tests(test):
                    if not missing and how != "size" and flow.judged(subject, scope):
                        found += _preset(flow, node, body, (), scope, of=subject)
            case ast.keyword(arg="retry_error_callback", value=ast.Lambda(body=body)):
                found += [("gave-up", node.value)] if flow.number(body, scope) else []
        yield from (finding(flow.source, rule, place) for rule, place in found)


def _handler(
    flow: Flow, node: _Try, handler: ast.ExceptHandler, scope: Scope, *, asks: bool
) -> Iterator[tuple[str, ast.AST]]:
    kinds = getattr(handler.type, "elts", [handler.type])
    # Connections, HTTP, rate limits: what only asking somebody can raise.
    asks = asks or any(not _LINE.isdisjoint(tokens(name_of(kind))) for kind in kinds)
    if not asks and handler.type is not None and not any(name_of(k) in _BROAD for k in kinds):
        return
    if not asks and not _more_than_parsing(flow, node):
        return
    named = flow.source.scope_names(node)[:2]
    for place, value in numbers_put(flow, handler.body, scope):
        keys = [name_of(k) for d in inside(value) if isinstance(d, ast.Dict) for k in d.keys]
        if asks or any(score_name(n) or judge_name(n) for n in [*named, name_of(place), *keys]):
            yield "except-judge" if asks else "except-broad", value
    if asks and not _exits(handler.body):
        yield from _preset(flow, node, node.body, handler.body, scope)


def _more_than_parsing(flow: Flow, node: _Try) -> bool:
    """Whether more is tried than work on a text, by functions of this file or by known ones.

    An answer that does not parse is really worth 0, whatever exception says so.
    """
    return any(
        isinstance(part, ast.Call)
        and _TEXT_WORK.isdisjoint(tokens(called(part)))
        and not flow.defined(called(part))
        for part in inside(*node.body)
    )


def _exits(statements: Sequence[ast.stmt]) -> bool:
    return any(isinstance(one, _EXITS) for one in statements)


def _preset(
    flow: Flow,
    node: ast.stmt,
    body: Sequence[ast.stmt],
    instead: Sequence[ast.stmt],
    scope: Scope,
    *,
    of: ast.AST | None = None,
) -> Iterator[tuple[str, ast.AST]]:
    """``score = 0.0`` before, ``score = judge(…)`` inside, and the 0.0 stays when that fails."""
    again = {flow.key(t, scope) for one in inside(*instead) for t in getattr(one, "targets", ())}
    for part in inside(*body):
        if not isinstance(part, ast.Assign | ast.AugAssign) or flow.number(part.value, scope):
            continue
        if of is not None and not made_of(flow, of, part.value):
            continue
        for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
            key = flow.key(target, scope)
            if key is None or key in again or not flow.arrives(target, scope):
                continue
            for by, value, where in reversed(flow.bindings(target, scope)):
                before = isinstance(by, ast.Assign | ast.AnnAssign) and by.lineno < node.lineno
                if before and flow.number(value, where):
                    again.add(key)
                    yield "preset-score", by
                    break


def _gave_up(flow: Flow, node: _Try, scope: Scope) -> Iterator[tuple[str, ast.AST]]:
    """Numbers that are only reached when a ``try`` and its repetitions have failed."""
    ways = {
        type(part)
        for part in inside(*node.body, *node.orelse)
        if isinstance(part, ast.Break | ast.Continue)
        or (isinstance(part, ast.Return) and not isinstance(part.value, ast.Constant))
    }
    failing = flow.source.after(node) if ways else []
    for outer in flow.source.ancestors(node):
        if isinstance(outer, ast.For | ast.AsyncFor | ast.While):
            failing += outer.orelse if ways & {ast.Break, ast.Return} else []
            ways &= {ast.Return}
        elif not isinstance(outer, ast.If | ast.With | ast.AsyncWith):
            break
        if ast.Return in ways:
            failing += flow.source.after(outer)
    for _, value in numbers_put(flow, failing, scope):
        yield "gave-up", value
