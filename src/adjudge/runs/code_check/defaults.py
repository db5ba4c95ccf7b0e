"""Expressions and branches that put a number where a score is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from adjudge.runs.code_check.asking import (
    absent_when,
    bare,
    failure_tested,
    nan_tested,
    none_tested,
    plural,
)
from adjudge.runs.code_check.findings import CodeFinding, finding
from adjudge.runs.code_check.source import Function, Source, inside
from adjudge.runs.code_check.targets import numbers_set
from adjudge.runs.code_check.values import number, speaks_of_score
from adjudge.runs.code_check.words import (
    called,
    identifier,
    name_of,
    score_name,
    setting,
    speaks_of_judge,
    tokens,
    words,
)

__all__ = ["defaults"]

_SHOWN = words(
    "print pprint debug info warning error exception critical log write echo update set_postfix "
    "format add_row"
)
_SEARCHES = frozenset(("search", "match", "fullmatch", "findall"))
_FILLS = frozenset(("nan_to_num", "fillna", "nan_to_num_"))


def defaults(source: Source) -> Iterator[CodeFinding]:
    """Every default in place of a score, except where it is only shown or sorted by."""
    rules = {
        ast.IfExp: _conditional,
        ast.Call: _call,
        ast.BoolOp: _either,
        ast.If: _branch,
        ast.Assign: _masked,
        ast.Match: _case,
    }
    for node in source.nodes:
        rule = rules.get(type(node))
        if rule is not None and not _only_shown(source, node):
            yield from rule(source, node)  # type: ignore[operator]  # each takes its own node


def _conditional(source: Source, node: ast.IfExp) -> Iterator[CodeFinding]:
    """``x.score if <there is one> else 0.0`` and its mirror image."""
    for sides, other, value in ((False, node.orelse, node.body), (True, node.body, node.orelse)):
        if sides not in absent_when(node.test) or not number(other) or number(value):
            continue
        tested = bare(node.test)
        if _match_tested(source, node.test):
            yield finding(source, "no-match", node, name=identifier(name_of(tested), "match"))
        elif failure_tested(node.test) or (
            speaks_of_score(value) and _same_or_owner(source, tested, value)
        ):
            rule = "nan-filled" if nan_tested(node.test) else "default-score"
            yield _defaulted(source, rule, node, value)


def _same_or_owner(source: Source, tested: ast.AST, value: ast.AST) -> bool:
    """``score if score …``, ``result.score if result …``; ``score if correct …`` is a decision."""
    wanted = source.text(tested)
    for _ in range(8):
        if wanted and source.text(value) == wanted:
            return True
        match value:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Await(value=inner):
                value = inner
            case ast.BinOp(left=inner) | ast.Call(func=ast.Attribute() as inner):
                value = inner
            case ast.Call(args=[inner, *_]):
                value = inner
            case _:
                return False
    return False


def _call(source: Source, node: ast.Call) -> Iterator[CodeFinding]:
    """``getattr(x, "score", 0.0)``, ``.get("score", 0)``, ``next(scores, 0.0)``, ``nan_to_num``."""
    if called(node) in _FILLS and _fill_of_scores(node):
        subject = node.func.value if isinstance(node.func, ast.Attribute) else node
        arguments = [*node.args[:1], subject]
        name = next((found for a in arguments if score_name(found := name_of(a))), "rewards")
        yield finding(source, "nan-filled", node, name=str(name))
        return
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, key, default]):
            missing = score_name(name_of(key)) and not setting(owner)
            plain = f"getattr({source.text(owner)[:50]}, {name_of(key)!r}, None)"
        case ast.Call(func=ast.Attribute(value=owner, attr="get" | "pop"), args=[key, default]):
            missing = not _table(owner) and not _counting(source, node, owner)
            missing = missing and (score_name(name_of(key)) or score_name(name_of(owner)))
            plain = f"{source.text(owner)[:50]}.get({source.text(key)[:30]})"
        case ast.Call(func=ast.Name(id="next"), args=[ast.GeneratorExp(elt=elt), default]):
            missing, key = speaks_of_score(elt), elt
            plain = f"next({source.text(node.args[0])[:50]}, None)"
        case _:
            return
    if missing and number(default):
        yield finding(source, "default-score", node, name=_target(source, node), plain=plain)


def _either(source: Source, node: ast.BoolOp) -> Iterator[CodeFinding]:
    """``score or 0.0``."""
    *values, last = node.values
    if isinstance(node.op, ast.Or) and number(last) and any(map(speaks_of_score, values)):
        yield _defaulted(source, "default-score", node, values[0])


def _branch(source: Source, node: ast.If) -> Iterator[CodeFinding]:
    """``if score is None: score = 0.0``, ``if hasattr(r, "score"): … else: s = 0.0``."""
    sides = absent_when(node.test)
    if not sides or _default_argument(source, node.test):
        return
    tested = bare(node.test)
    matched = _match_tested(source, node.test)
    asked = none_tested(node.test) or plural(name_of(tested))
    if not (matched or failure_tested(node.test) or (asked and speaks_of_score(tested))):
        return
    returns = matched or any(score_name(name) for name in source.scope_names(node))
    rule = "no-match" if matched else "nan-filled" if nan_tested(node.test) else "default-score"
    for statements in [node.body] * (True in sides) + [node.orelse] * (False in sides):
        for place, value in numbers_set(source, statements, returns=returns):
            name = identifier(name_of(tested if matched else place), "score")
            yield finding(source, rule, value, name=name)


def _masked(source: Source, node: ast.Assign) -> Iterator[CodeFinding]:
    """``rewards[isnan(rewards)] = 0.0``, ``rewards = where(isnan(rewards), 0.0, rewards)``."""
    for target in node.targets:
        if (
            isinstance(target, ast.Subscript)
            and score_name(name_of(target.value))
            and nan_tested(target.slice)
            and number(node.value)
        ):
            name = identifier(name_of(target.value), "rewards")
            yield finding(source, "nan-filled", node, name=name)
    match node.value:
        case ast.Call(args=[test, one, other]) if called(node.value) == "where":
            if (
                nan_tested(test)
                and (number(one) or number(other))
                and any(map(speaks_of_score, inside(test)))
            ):
                name = identifier(name_of(node.targets[0]), "rewards")
                yield finding(source, "nan-filled", node, name=name)


def _case(source: Source, node: ast.Match) -> Iterator[CodeFinding]:
    """``case GraderError(): score = 0.0``."""
    scored = False
    for case in node.cases:
        kinds = [part.cls for part in ast.walk(case.pattern) if isinstance(part, ast.MatchClass)]
        last = [tokens(name_of(kind) or "")[-1:] for kind in kinds]
        scored = scored or ["score"] in last
        catches_all = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
        if ["error"] in last or ["exception"] in last or (scored and catches_all):
            for place, value in numbers_set(source, case.body, returns=True):
                name = identifier(name_of(place), "score")
                yield finding(source, "default-score", value, name=name)


# -- what is tested ----------------------------------------------------------------------------


def _match_tested(source: Source, test: ast.AST) -> bool:
    """Whether it asks if a pattern was found, in text that a judge wrote."""
    name, function = name_of(bare(test)), source.function(test)
    return function is not None and name in source.cached("searched", function, _searched)


def _searched(function: Function) -> frozenset[str]:
    """The variables of a function that hold what a pattern found in a judge's text."""
    found = set()
    for node in inside(function):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call)
                | ast.NamedExpr(target=ast.Name(id=name), value=ast.Call() as call)
            ) if called(call) in _SEARCHES:
                texts = [*(name_of(text) for text in call.args), function.name]
                if any(speaks_of_judge(text) for text in texts):
                    found.add(name)
    return frozenset(found)


# -- what a number is for ----------------------------------------------------------------------


def _only_shown(source: Source, node: ast.AST) -> bool:
    """Whether the value ends in a message, a log line or a sort key."""
    for parent in source.ancestors(node):
        match parent:
            case ast.FormattedValue() | ast.JoinedStr():
                return True
            case ast.keyword(arg="key"):
                return True
            case ast.Call() if called(parent) in _SHOWN:
                return True
            case ast.stmt():
                return False
    return False


def _table(owner: ast.AST) -> bool:
    """``SEVERITY_SCORE.get(word, 2)`` looks a constant up; settings have defaults, too."""
    return setting(owner) or (name_of(owner) or "").isupper()


def _counting(source: Source, node: ast.Call, owner: ast.AST) -> bool:
    """``totals[name] = totals.get(name, 0) + 1`` adds up; nothing is missing there."""
    statement = source.statement(node)
    if not isinstance(statement, ast.Assign | ast.AugAssign):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(
        isinstance(target, ast.Subscript) and source.text(target.value) == source.text(owner)
        for target in targets
    )


def _default_argument(source: Source, test: ast.AST) -> bool:
    """``def f(score=None): if score is None: …`` is a default that the caller chose."""
    function, name = source.function(test), name_of(bare(test))
    if function is None or not isinstance(bare(test), ast.Name):
        return False
    places = function.args
    given = [*places.posonlyargs, *places.args][-len(places.defaults) or len(places.args) + 99 :]
    given += [a for a, d in zip(places.kwonlyargs, places.kw_defaults, strict=True) if d]
    return any(argument.arg == name for argument in given)


def _fill_of_scores(node: ast.Call) -> bool:
    subjects = [*node.args[:1]]
    if isinstance(node.func, ast.Attribute):
        subjects.append(node.func.value)
    return any(speaks_of_score(subject) for subject in subjects)


def _defaulted(source: Source, rule: str, node: ast.AST, value: ast.AST) -> CodeFinding:
    plain = source.text(value)[:60]
    if isinstance(value, ast.Attribute):
        plain = f"getattr({source.text(value.value)[:50]}, {value.attr!r}, None)"
    name = _target(source, node)
    return finding(source, rule, node, name=name, plain=plain)


def _target(source: Source, node: ast.AST) -> str:
    """The variable that the value goes to, where there is one."""
    statement = source.statement(node)
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return "score"
