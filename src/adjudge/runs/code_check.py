"""Reward code that turns a judge's failures into numbers, found by reading it; nothing is run.

The rules over one file (about ``try``: caught failures that become numbers; about branches and
expressions that put a number where a score is asked for and not there), why each finding matters
to a group-relative trainer, and a remedy.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import msgspec

from adjudge.runs.code_flow import ADDING_METHODS, DataFlow, FunctionScope
from adjudge.runs.code_syntax import (
    SourceFile,
    called_name,
    is_judge_name,
    is_literal_number,
    is_non_score_name,
    is_score_name,
    is_setting,
    last_name,
    name_words,
    nodes_inside,
    word_set,
)
from adjudge.text import encode_exactly

_FILE = resources.files("adjudge.runs") / "code_rules.toml"
_TEXTS = tomllib.loads(_FILE.read_text(encoding="utf-8"))
_RULES: dict[str, tuple[str, tuple[str, str]]] = {
    name: (rule["why"].replace("{filled}", _TEXTS["filled"]), tuple(rule["fix"]))
    for name, rule in _TEXTS["rules"].items()
}
CODE_RULES = tuple(_RULES)


class CodeFinding(msgspec.Struct, frozen=True):
    """A place where a failure becomes a number.

    ``line`` counts from 1; ``code`` is what stands there, on one line; ``why`` says what a
    group-relative trainer makes of it; ``fix``: two lines that could stand there instead.
    """

    rule: str
    line: int
    code: str
    why: str
    fix: tuple[str, str]


def make_finding(source: SourceFile, rule: str, node: ast.AST) -> CodeFinding:
    """A finding of ``rule`` at ``node``."""
    text = source.text(node)
    code = text if len(text) <= 160 else f"{text[:159]}…"
    return CodeFinding(rule, getattr(node, "lineno", 1), code, *_RULES[rule])


_NAN_TESTS = word_set("isnan isna isnull isfinite")
_FILLS = word_set("nan_to_num fillna nan_to_num_ nanmean nanmedian")
_STATUS = word_set("status status_code")
_LEAVING_STATEMENTS = (ast.Return, ast.Continue, ast.Break)
_DEEP = 8

PresenceTest = tuple[ast.AST, bool, str]
"""(What is asked about, the outcome under which it is missing, how it is asked).

How: ``failure``, by an error's type or a status; ``nan``; ``none``; ``size``; ``truth``, which is
also how a decision about a present value is written.
"""


def presence_tests(  # noqa: C901  (a case per shape)
    test: ast.AST, deep: int = _DEEP
) -> Iterator[PresenceTest]:
    """What ``test`` asks about being there; ``x > 0`` is a decision and asks nothing."""
    match test if deep else None:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            for subject, missing, how in presence_tests(operand, deep - 1):
                yield subject, not missing, how
        case ast.BoolOp(values=values):
            for value in values[:50]:
                yield from presence_tests(value, deep - 1)
        case ast.Call(func=ast.Name(id="isinstance"), args=[subject, kinds]):
            last = [name_words(last_name(kind))[-1:] for kind in getattr(kinds, "elts", [kinds])]
            failing = ["error"] in last or ["exception"] in last
            yield subject, failing, "failure" if failing or ["score"] in last else "none"
        case ast.Call(func=ast.Name(id="hasattr"), args=[subject, key]):
            yield subject, False, "failure" if is_score_name(last_name(key)) else "none"
        case ast.Call(args=[subject, *_]) if called_name(test) in _NAN_TESTS:
            yield subject, called_name(test) != "isfinite", "nan"
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


def _compared(left: ast.AST, op: ast.AST, other: ast.AST) -> Iterator[PresenceTest]:
    negative = isinstance(op, ast.IsNot | ast.NotEq | ast.NotIn)
    value = getattr(other, "value", left)
    match left, op:
        case _, ast.Is() | ast.Eq() | ast.IsNot() | ast.NotEq() if value is None:
            yield left, not negative, "none"
        case ast.Attribute(value=subject, attr=name), _ if name in _STATUS and is_literal_number(
            other
        ):
            yield subject, negative or isinstance(op, ast.GtE), "failure"
        case ast.Constant(value=str(key)), ast.In() | ast.NotIn() if is_score_name(key):
            yield other, negative, "failure"
        case ast.Call(func=ast.Name(id="len"), args=[subject]), ast.Eq() | ast.NotEq() | ast.Lt():
            yield subject, (value == 0) != negative or isinstance(op, ast.Lt), "size"
        case _, ast.NotIn() if isinstance(other, ast.Tuple | ast.List | ast.Set):
            yield left, True, "none"


def find_absent_scores(flow: DataFlow) -> Iterator[CodeFinding]:
    """Every number in place of a score that is asked for and not there."""
    for node in flow.source.nodes:
        scope = flow.source.function(node)
        if isinstance(node, ast.If):
            for rule, statement in _numbers_in_branch(flow, node, scope):
                yield make_finding(flow.source, rule, statement)
            continue
        for rule, value in _default_of(flow, node, scope):
            named = is_non_score_name(last_name(value)) and not isinstance(value, ast.Name)
            if not named and (isinstance(node, ast.stmt) or _reaches_result(flow, node, scope)):
                yield make_finding(flow.source, rule, node)


# -- branches ----------------------------------------------------------------------------------


def _numbers_in_branch(
    flow: DataFlow, node: ast.If, scope: FunctionScope
) -> Iterator[tuple[str, ast.stmt]]:
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
        if not failing and isinstance(node.body[-1], _LEAVING_STATEMENTS):
            after = flow.source.after(node)
            failing = after if len(after) == 1 and isinstance(after[0], ast.Return) else ()
        for place, statement in assigned_numbers(flow, failing, scope):
            outer = flow.source.parents[statement]
            decided = outer is not node and isinstance(outer, ast.If)
            asked = known or not flow.bindings(subject, scope) or is_score_name(last_name(place))
            if asked and not decided:
                yield _rule(flow, subject, how, scope), statement
    yield from _number_in_last_else(flow, node, scope)


def _number_in_last_else(
    flow: DataFlow, node: ast.If, scope: FunctionScope
) -> Iterator[tuple[str, ast.stmt]]:
    """``if text == "A": 1.0``, ``elif text == "B": 0.0``, ``else: 0.5``: neither was said."""
    match node:
        case ast.If(test=first, orelse=[ast.If(test=second, orelse=[end, *_] as last)]):
            one, other = _text_read(first), _text_read(second)
            same = one and other and flow.source.text(one) == flow.source.text(other)
            if one and same and not isinstance(end, ast.If) and flow.judged(one, scope):
                for _, statement in assigned_numbers(flow, last, scope):
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


def _is_about_score(
    flow: DataFlow, subject: ast.AST, scope: FunctionScope, *, by_name: bool = True
) -> bool:
    """Whether what is asked about is a judge's answer or a score."""
    return not is_non_score_name(last_name(subject)) and (
        (flow.scored if by_name else flow.judged)(subject, scope) or flow.searched(subject, scope)
    )


def _rule(flow: DataFlow, subject: ast.AST, how: str, scope: FunctionScope) -> str:
    if flow.searched(subject, scope):
        return "no-match"
    return "nan-filled" if how == "nan" else "default-score"


def assigned_numbers(
    flow: DataFlow, statements: Sequence[ast.stmt], scope: FunctionScope
) -> Iterator[tuple[ast.AST, ast.stmt]]:
    """(Where it goes, the statement) for each made-up number that becomes a part of the result.

    A path that raises in the end has no result.
    """
    if any(isinstance(one, ast.Raise) for one in statements):
        return
    for node in nodes_inside(*statements):
        counts = isinstance(node, ast.AugAssign) and getattr(node.value, "value", None) == 1
        for place, value in _places(node):
            if (
                isinstance(node, ast.stmt)
                and flow.number(value, scope)
                and (flow.arrives(place, scope) if place is not node else scope is not None)
                and not (counts and not is_score_name(last_name(place)))
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
            return [(owner, argument) for argument in args] if name in ADDING_METHODS else []
    return []


# -- expressions -------------------------------------------------------------------------------


def _default_of(  # noqa: C901  (a case per shape)
    flow: DataFlow, node: ast.AST, scope: FunctionScope
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
        ) if flow.number(default, scope) and not (
            is_setting(owner) or is_non_score_name(last_name(owner))
        ):
            said = flow.scored(owner, scope) or any(
                is_score_name(last_name(x)) for x in (owner, key)
            )
            target = getattr(flow.source.statement(node), "targets", [None])[0]
            if said and not (target and flow.key(target, scope) == flow.key(owner, scope)):
                yield "default-score", key  # and not totals[k] = totals.get(k, 0) + 1
        case ast.Call(func=ast.Name(id="next"), args=[ast.GeneratorExp(elt=elt), default]):
            if flow.scored(elt, scope) and flow.number(default, scope):
                yield "default-score", elt
        case ast.Call(func=function, args=arguments) if called_name(node) in _FILLS:
            for one in [*arguments[:1], getattr(function, "value", function)]:
                if flow.scored(one, scope) or is_score_name(last_name(one)):
                    yield "nan-filled", one
        case (
            ast.Assign(targets=[ast.Subscript(slice=ast.Call(args=[one]) as test)], value=value)
            | ast.Call(
                func=ast.Attribute(attr="where"), args=[ast.Call(args=[one]) as test, value, _]
            )
        ) if called_name(test) in _NAN_TESTS and flow.number(value, scope):
            if flow.scored(one, scope) or is_score_name(last_name(one)):
                yield "nan-filled", one


def _conditional(
    flow: DataFlow, node: ast.IfExp, scope: FunctionScope
) -> Iterator[tuple[str, ast.AST]]:
    for subject, missing, how in presence_tests(node.test):
        number, value = (node.body, node.orelse) if missing else (node.orelse, node.body)
        known = how == "failure" or (
            is_made_of(flow, subject, value)
            and not is_non_score_name(last_name(subject))
            and (_is_about_score(flow, subject, scope) or flow.scored(value, scope))
        )
        if known and flow.number(number, scope) and not flow.number(value, scope):
            yield _rule(flow, subject, how, scope), value


def is_made_of(flow: DataFlow, subject: ast.AST, value: ast.AST) -> bool:
    """``score if score``, ``m.group(1) if m``; not ``score if correct``, ``total / n if n``."""

    def expressions_in(node: ast.AST) -> set[str]:
        return {flow.source.text(x) for x in ast.walk(node) if isinstance(x, type(subject))}

    divided = (x for x in ast.walk(value) if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Div))
    wanted = flow.source.text(subject)
    return wanted in expressions_in(value) - {""} and not any(
        wanted in expressions_in(x.right) for x in divided
    )


def _reaches_result(flow: DataFlow, node: ast.AST, scope: FunctionScope) -> bool:
    """Whether the value becomes a part of the result; not when it is shown, tested, sorted by."""
    statement = flow.source.statement(node)
    return any(
        node in flow.parts(value)
        and (place is statement or flow.arrives(place, scope, otherwise=True))
        for place, value in _places(statement)
    )


ALLOW_COMMENT = "adjudge: meant"
"""A comment with these words keeps its line out of the findings."""

_Try = ast.Try | ast.TryStar
_BROAD = word_set("Exception BaseException")
_EXITS = (ast.Raise, ast.Return, ast.Continue, ast.Break)
_LINE = word_set("connection http rate api client request grading")
_TEXT_WORK = word_set(
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
    source = SourceFile(encode_exactly(code) if isinstance(code, str) else code, where)
    flow = DataFlow(source)
    found: dict[tuple[int, str], CodeFinding] = {}
    for rule in (_find_caught_failures, find_absent_scores):
        for one in rule(flow):
            if ALLOW_COMMENT not in source.line(one.line):
                found.setdefault((one.line, one.code), one)
    return sorted(found.values(), key=lambda one: one.line)


def check_file(path: Path) -> list[CodeFinding]:
    """:func:`check_code` of a file; ``OSError`` where it cannot be read."""
    return check_code(path.read_bytes(), str(path))


def _find_caught_failures(flow: DataFlow) -> Iterator[CodeFinding]:
    """Every failure that is caught and answered with a number, or survived by one."""
    for node in flow.source.nodes:
        scope = flow.source.function(node)
        found: list[tuple[str, ast.AST]] = []
        match node:
            case ast.Try() | ast.TryStar():
                asks = flow.asks(node.body, scope)
                for handler in node.handlers:
                    found += _numbers_in_handler(flow, node, handler, scope, asks=asks)
                if asks and not all(_has_exit(one.body) for one in node.handlers):
                    found += _numbers_after_retries(flow, node, scope)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                if any(called_name(item.context_expr) == "suppress" for item in items):
                    found += _preset_scores(flow, node, node.body, (), scope)
            case ast.If(test=test, body=body, orelse=[]):
                for subject, missing, how in presence_tests(test):
                    if not missing and how != "size" and flow.judged(subject, scope):
                        found += _preset_scores(flow, node, body, (), scope, of=subject)
            case ast.keyword(arg="retry_error_callback", value=ast.Lambda(body=body)):
                found += [("gave-up", node.value)] if flow.number(body, scope) else []
        yield from (make_finding(flow.source, rule, place) for rule, place in found)


def _numbers_in_handler(
    flow: DataFlow, node: _Try, handler: ast.ExceptHandler, scope: FunctionScope, *, asks: bool
) -> Iterator[tuple[str, ast.AST]]:
    kinds = getattr(handler.type, "elts", [handler.type])
    # Connections, HTTP, rate limits: what only asking somebody can raise.
    asks = asks or any(not _LINE.isdisjoint(name_words(last_name(kind))) for kind in kinds)
    if not asks and handler.type is not None and not any(last_name(k) in _BROAD for k in kinds):
        return
    if not asks and not _more_than_parsing(flow, node):
        return
    named = flow.source.scope_names(node)[:2]
    for place, value in assigned_numbers(flow, handler.body, scope):
        keys = [
            last_name(k) for d in nodes_inside(value) if isinstance(d, ast.Dict) for k in d.keys
        ]
        if asks or any(
            is_score_name(n) or is_judge_name(n) for n in [*named, last_name(place), *keys]
        ):
            yield "except-judge" if asks else "except-broad", value
    if asks and not _has_exit(handler.body):
        yield from _preset_scores(flow, node, node.body, handler.body, scope)


def _more_than_parsing(flow: DataFlow, node: _Try) -> bool:
    """Whether more is tried than work on a text, by functions of this file or by known ones.

    An answer that does not parse is really worth 0, whatever exception says so.
    """
    return any(
        isinstance(part, ast.Call)
        and _TEXT_WORK.isdisjoint(name_words(called_name(part)))
        and not flow.defined(called_name(part))
        for part in nodes_inside(*node.body)
    )


def _has_exit(statements: Sequence[ast.stmt]) -> bool:
    return any(isinstance(one, _EXITS) for one in statements)


def _preset_scores(
    flow: DataFlow,
    node: ast.stmt,
    body: Sequence[ast.stmt],
    instead: Sequence[ast.stmt],
    scope: FunctionScope,
    *,
    of: ast.AST | None = None,
) -> Iterator[tuple[str, ast.AST]]:
    """``score = 0.0`` before, ``score = judge(…)`` inside, and the 0.0 stays when that fails."""
    again = {
        flow.key(t, scope) for one in nodes_inside(*instead) for t in getattr(one, "targets", ())
    }
    for part in nodes_inside(*body):
        if not isinstance(part, ast.Assign | ast.AugAssign) or flow.number(part.value, scope):
            continue
        if of is not None and not is_made_of(flow, of, part.value):
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


def _numbers_after_retries(
    flow: DataFlow, node: _Try, scope: FunctionScope
) -> Iterator[tuple[str, ast.AST]]:
    """Numbers that are only reached when a ``try`` and its repetitions have failed."""
    ways = {
        type(part)
        for part in nodes_inside(*node.body, *node.orelse)
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
    for _, value in assigned_numbers(flow, failing, scope):
        yield "gave-up", value
