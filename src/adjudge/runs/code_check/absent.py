"""Branches and expressions that put a number where a score is asked for and not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from adjudge.runs.code_check.findings import CodeFinding, finding
from adjudge.runs.code_check.flow import ADDS, Flow, Scope
from adjudge.runs.code_check.source import inside
from adjudge.runs.code_check.values import (
    called,
    literal_number,
    name_of,
    other_name,
    score_name,
    setting,
    tokens,
    words,
)

__all__ = ["absent_rules", "made_of", "numbers_put", "presence_tests"]

_NAN_TESTS = words("isnan isna isnull isfinite")
_FILLS = words("nan_to_num fillna nan_to_num_ nanmean nanmedian")
_STATUS = words("status status_code")
_LEAVES = (ast.Return, ast.Continue, ast.Break)
_DEEP = 8

Test = tuple[ast.AST, bool, str]
"""(What is asked about, the outcome under which it is missing, how it is asked).

How: ``failure``, by an error's type or a status; ``nan``; ``none``; ``size``; ``truth``, which is
also how a decision about a present value is written.
"""


def presence_tests(  # noqa: C901  (a case per shape)
    test: ast.AST, deep: int = _DEEP
) -> Iterator[Test]:
    """What ``test`` asks about being there; ``x > 0`` is a decision and asks nothing."""
    match test if deep else None:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            for subject, missing, how in presence_tests(operand, deep - 1):
                yield subject, not missing, how
        case ast.BoolOp(values=values):
            for value in values[:50]:
                yield from presence_tests(value, deep - 1)
        case ast.Call(func=ast.Name(id="isinstance"), args=[subject, kinds]):
            last = [tokens(name_of(kind))[-1:] for kind in getattr(kinds, "elts", [kinds])]
            failing = ["error"] in last or ["exception"] in last
            yield subject, failing, "failure" if failing or ["score"] in last else "none"
        case ast.Call(func=ast.Name(id="hasattr"), args=[subject, key]):
            yield subject, False, "failure" if score_name(name_of(key)) else "none"
        case ast.Call(args=[subject, *_]) if called(test) in _NAN_TESTS:
            yield subject, called(test) != "isfinite", "nan"
        case ast.Call(func=ast.Attribute(value=subject, attr="startswith")):
            yield subject, False, "truth"
        case ast.Compare(left=left, ops=[op], comparators=[other]):
            yield from _compared(left, op, other)
        case ast.Attribute(value=subject, attr="ok"):
            yield subject, False, "none"
        case ast.Name() | ast.Attribute() | ast.Subscript():
            yield test, False, "truth"
        case ast.NamedExpr(target=target):
            yield target, False, "truth"


def _compared(left: ast.AST, op: ast.AST, other: ast.AST) -> Iterator[Test]:
    negative = isinstance(op, ast.IsNot | ast.NotEq | ast.NotIn)
    value = getattr(other, "value", left)
    match left, op:
        case _, ast.Is() | ast.Eq() | ast.IsNot() | ast.NotEq() if value is None:
            yield left, not negative, "none"
        case ast.Attribute(value=subject, attr=name), _ if name in _STATUS and literal_number(
            other
        ):
            yield subject, negative or isinstance(op, ast.GtE), "failure"
        case ast.Constant(value=str(key)), ast.In() | ast.NotIn() if score_name(key):
            yield other, negative, "failure"
        case ast.Call(func=ast.Name(id="len"), args=[subject]), ast.Eq() | ast.NotEq() | ast.Lt():
            yield subject, (value == 0) != negative or isinstance(op, ast.Lt), "size"
        case _, ast.NotIn() if isinstance(other, ast.Tuple | ast.List | ast.Set):
            yield left, True, "none"


def absent_rules(flow: Flow) -> Iterator[CodeFinding]:
    """Every number in place of a score that is asked for and not there."""
    for node in flow.source.nodes:
        scope = flow.source.function(node)
        if isinstance(node, ast.If):
            for rule, statement in _branch(flow, node, scope):
                yield finding(flow.source, rule, statement)
            continue
        for rule, value in _defaulted(flow, node, scope):
            named = other_name(name_of(value)) and not isinstance(value, ast.Name)
            if not named and (isinstance(node, ast.stmt) or _lands(flow, node, scope)):
                yield finding(flow.source, rule, node)


# -- branches ----------------------------------------------------------------------------------


def _branch(flow: Flow, node: ast.If, scope: Scope) -> Iterator[tuple[str, ast.stmt]]:
    """``if score is None: score = 0.0``, ``if reply.ok: … else: s = 0.0``."""
    for subject, missing, how in presence_tests(node.test):
        known = _is_about_score(flow, subject, scope, by_name=how not in ("truth", "size"))
        if not (known or how == "failure") or any(
            by is scope for by, _, _ in flow.bindings(subject, scope)
        ):  # the default of a parameter is the caller's choice
            continue
        if how in ("truth", "size") and not flow.used(subject, scope):
            continue
        failing: Sequence[ast.stmt] = node.body if missing else node.orelse
        if not failing and isinstance(node.body[-1], _LEAVES):
            after = flow.source.after(node)
            failing = after if len(after) == 1 and isinstance(after[0], ast.Return) else ()
        for place, statement in numbers_put(flow, failing, scope):
            outer = flow.source.parents[statement]
            decided = outer is not node and isinstance(outer, ast.If)
            asked = known or not flow.bindings(subject, scope) or score_name(name_of(place))
            if asked and not decided:
                yield _rule(flow, subject, how, scope), statement
    yield from _last_else(flow, node, scope)


def _last_else(flow: Flow, node: ast.If, scope: Scope) -> Iterator[tuple[str, ast.stmt]]:
    """``if text == "A": 1.0``, ``elif text == "B": 0.0``, ``else: 0.5``: neither was said."""
    match node:
        case ast.If(test=first, orelse=[ast.If(test=second, orelse=[end, *_] as last)]):
            one, other = _text_read(first), _text_read(second)
            same = one and other and flow.source.text(one) == flow.source.text(other)
            if one and same and not isinstance(end, ast.If) and flow.judged(one, scope):
                for _, statement in numbers_put(flow, last, scope):
                    yield "no-match", statement


def _text_read(test: ast.AST) -> ast.AST | None:
    """The text that is looked at for a constant."""
    match test:
        case ast.Compare(left=ast.Constant(value=str()), ops=[ast.In()], comparators=[text]):
            return text
        case ast.Compare(left=text, ops=[ast.Eq()], comparators=[ast.Constant(value=str())]):
            return text
        case ast.Call(func=ast.Attribute(value=text, attr="startswith")):
            return text
    return None


def _is_about_score(flow: Flow, subject: ast.AST, scope: Scope, *, by_name: bool = True) -> bool:
    """Whether what is asked about is a judge's answer or a score."""
    return not other_name(name_of(subject)) and (
        (flow.scored if by_name else flow.judged)(subject, scope) or flow.searched(subject, scope)
    )


def _rule(flow: Flow, subject: ast.AST, how: str, scope: Scope) -> str:
    if flow.searched(subject, scope):
        return "no-match"
    return "nan-filled" if how == "nan" else "default-score"


def numbers_put(
    flow: Flow, statements: Sequence[ast.stmt], scope: Scope
) -> Iterator[tuple[ast.AST, ast.stmt]]:
    """(Where it goes, the statement) for each made-up number that becomes a part of the result.

    A path that raises in the end has no result.
    """
    if any(isinstance(one, ast.Raise) for one in statements):
        return
    for node in inside(*statements):
        counts = isinstance(node, ast.AugAssign) and getattr(node.value, "value", None) == 1
        for place, value in _places(node):
            if (
                isinstance(node, ast.stmt)
                and flow.number(value, scope)
                and (flow.arrives(place, scope) if place is not node else scope is not None)
                and not (counts and not score_name(name_of(place)))
                and not isinstance(node, ast.For | ast.AsyncFor)
            ):
                yield place, node
                break


def _places(statement: ast.AST | None) -> list[tuple[ast.AST, ast.AST | None]]:
    """(Where a value goes, the value); a return goes to itself."""
    match statement:
        case ast.Return(value=value) | ast.Expr(value=ast.Yield(value=value)):
            return [(statement, value)]
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            return [*zip(targets, values, strict=False)]
        case ast.Assign(targets=targets, value=value):
            each = [part for one in targets for part in getattr(one, "elts", [one])]
            return [(target, value) for target in each]
        case (
            ast.AnnAssign(target=target, value=value)
            | ast.AugAssign(target=target, value=value)
            | ast.For(target=target, iter=value)
            | ast.AsyncFor(target=target, iter=value)
        ):
            return [(target, value)]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=name), args=args)):
            return [(owner, argument) for argument in args] if name in ADDS else []
    return []


# -- expressions -------------------------------------------------------------------------------


def _defaulted(  # noqa: C901  (a case per shape)
    flow: Flow, node: ast.AST, scope: Scope
) -> Iterator[tuple[str, ast.AST]]:
    """(The rule, what is missing) where the expression has a number for want of a score."""
    match node:
        case ast.IfExp():
            yield from _conditional(flow, node, scope)
        case ast.BoolOp(op=ast.Or(), values=[*values, last]) if flow.number(last, scope):
            if not isinstance(last, ast.Dict) and any(flow.scored(one, scope) for one in values):
                yield "default-score", values[0]
        case (
            ast.Call(func=ast.Name(id="getattr"), args=[owner, key, default])
            | ast.Call(func=ast.Attribute(value=owner, attr="get" | "pop"), args=[key, default])
        ) if flow.number(default, scope) and not (setting(owner) or other_name(name_of(owner))):
            said = flow.scored(owner, scope) or any(score_name(name_of(x)) for x in (owner, key))
            target = getattr(flow.source.statement(node), "targets", [None])[0]
            if said and not (target and flow.key(target, scope) == flow.key(owner, scope)):
                yield "default-score", key  # and not totals[k] = totals.get(k, 0) + 1
        case ast.Call(func=ast.Name(id="next"), args=[ast.GeneratorExp(elt=elt), default]):
            if flow.scored(elt, scope) and flow.number(default, scope):
                yield "default-score", elt
        case ast.Call(func=function, args=arguments) if called(node) in _FILLS:
            for one in [*arguments[:1], getattr(function, "value", function)]:
                if flow.scored(one, scope) or score_name(name_of(one)):
                    yield "nan-filled", one
        case (
            ast.Assign(targets=[ast.Subscript(slice=ast.Call(args=[one]) as test)], value=value)
            | ast.Call(
                func=ast.Attribute(attr="where"), args=[ast.Call(args=[one]) as test, value, _]
            )
        ) if called(test) in _NAN_TESTS and flow.number(value, scope):
            if flow.scored(one, scope) or score_name(name_of(one)):
                yield "nan-filled", one


def _conditional(flow: Flow, node: ast.IfExp, scope: Scope) -> Iterator[tuple[str, ast.AST]]:
    for subject, missing, how in presence_tests(node.test):
        number, value = (node.body, node.orelse) if missing else (node.orelse, node.body)
        known = how == "failure" or (
            made_of(flow, subject, value)
            and not other_name(name_of(subject))
            and (_is_about_score(flow, subject, scope) or flow.scored(value, scope))
        )
        if known and flow.number(number, scope) and not flow.number(value, scope):
            yield _rule(flow, subject, how, scope), value


def made_of(flow: Flow, subject: ast.AST, value: ast.AST) -> bool:
    """``score if score``, ``m.group(1) if m``; not ``score if correct``, ``total / n if n``."""

    def expressions_in(node: ast.AST) -> set[str]:
        return {flow.source.text(x) for x in ast.walk(node) if isinstance(x, type(subject))}

    divided = (x for x in ast.walk(value) if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Div))
    wanted = flow.source.text(subject)
    return wanted in expressions_in(value) - {""} and not any(
        wanted in expressions_in(x.right) for x in divided
    )


def _lands(flow: Flow, node: ast.AST, scope: Scope) -> bool:
    """Whether the value becomes a part of the result; not when it is shown, tested, sorted by."""
    statement = flow.source.statement(node)
    return any(
        node in flow.parts(value)
        and (place is statement or flow.arrives(place, scope, otherwise=True))
        for place, value in _places(statement)
    )
