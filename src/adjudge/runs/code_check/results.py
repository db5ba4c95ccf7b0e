"""What a runner returned: scores read from failures, and means over the survivors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from adjudge.runs.code_check.findings import CodeFinding, finding
from adjudge.runs.code_check.source import Function, Source, inside
from adjudge.runs.code_check.words import called, name_of, score_name, tokens

__all__ = ["results"]

_RUNS = frozenset(
    ("arun", "run", "arun_multiple_datasets", "run_multiple_datasets", "arun_dataset")
)
_PASSING = frozenset(("list", "enumerate", "zip", "reversed", "sorted", "tuple", "iter", "next"))
_METHODS = frozenset(("items", "values", "get", "pop"))
_MEANS = frozenset(("mean", "fmean", "average", "median", "nanmean"))
_ROUNDS = 6
_SAME_NAME = 20


def results(source: Source) -> Iterator[CodeFinding]:
    """Every unguarded ``.score`` of a runner's result, and every mean over survivors."""
    yield from _unguarded(source)
    for function in source.functions():
        yield from _survivors(source, function)


# -- results of a runner, followed through names and calls ---------------------------------------


def _unguarded(source: Source) -> Iterator[CodeFinding]:
    flow = _Flow(source)
    flow.settle()
    for node in source.all(ast.Attribute):
        if node.attr not in ("score", "rank", "normalized") or not isinstance(node.ctx, ast.Load):
            continue
        scope = source.function(node)
        if _in_a_test(source, node, scope):
            continue
        if flow.holds(node.value, scope) and not _guarded(source, node, scope):
            yield finding(source, "unguarded-score", node, owner=source.text(node.value)[:60])


def _in_a_test(source: Source, node: ast.AST, scope: Function | None) -> bool:
    """There an AttributeError is a failed test, which is what it should be."""
    return (scope is not None and scope.name.startswith("test")) or isinstance(
        source.statement(node), ast.Assert
    )


class _Flow:
    """Which names hold results of a runner, by function; parameters through calls in the file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._names: set[tuple[Function | None, str]] = set()
        self._returning: set[str] = set()
        self._functions: dict[str, list[Function]] = {}
        for function in source.functions():
            self._functions.setdefault(function.name, []).append(function)
        self._steps = [
            node
            for node in source.nodes
            if isinstance(
                node,
                ast.Assign | ast.AnnAssign | ast.For | ast.AsyncFor | ast.comprehension
                | ast.NamedExpr | ast.Return | ast.Call,
            )
        ]  # fmt: skip

    def settle(self) -> None:
        """Follow results until nothing new holds any."""
        for _ in range(_ROUNDS):
            before = len(self._names) + len(self._returning)
            for node in self._steps:
                self._step(node, self._source.function(node))
            if len(self._names) + len(self._returning) == before:
                return

    def _step(self, node: ast.AST, scope: Function | None) -> None:
        match node:
            case ast.Assign(targets=targets, value=value) if self.holds(value, scope):
                for target in targets:
                    self._mark(target, scope)
            case (
                ast.AnnAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
            ) if self.holds(value, scope):
                self._mark(target, scope)
            case (
                ast.For(target=target, iter=over)
                | ast.AsyncFor(target=target, iter=over)
                | ast.comprehension(target=target, iter=over)
            ):
                self._loop(target, over, scope)
            case ast.Return(value=value) if scope is not None and self.holds(value, scope):
                self._returning.add(scope.name)
            case ast.Call():
                self._pass_on(node, scope)

    def _loop(self, target: ast.AST, over: ast.AST, scope: Function | None) -> None:
        """Of ``for a, b in zip(x, y)`` only the places whose source holds results."""
        if isinstance(over, ast.Call) and isinstance(target, ast.Tuple):
            parts = target.elts
            match called(over), over.args:
                case "enumerate", [inner, *_] if len(parts) == 2:
                    self._loop(parts[1], inner, scope)
                    return
                case "zip", inners if len(inners) == len(parts):
                    for part, inner in zip(parts, inners, strict=True):
                        self._loop(part, inner, scope)
                    return
            if called(over) == "items" and len(parts) == 2 and self.holds(over, scope):
                self._mark(parts[1], scope)
                return
        if self.holds(over, scope):
            self._mark(target, scope)

    def _mark(self, target: ast.AST, scope: Function | None) -> None:
        if isinstance(target, ast.Name):
            self._names.add((scope, target.id))
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                if isinstance(part, ast.Name):
                    self._names.add((scope, part.id))

    def _pass_on(self, call: ast.Call, scope: Function | None) -> None:
        """Arguments that hold results make the parameters of a function in this file hold them."""
        for function in self._functions.get(called(call) or "", ())[:_SAME_NAME]:
            places = [*function.args.posonlyargs, *function.args.args]
            if isinstance(call.func, ast.Attribute) and places and places[0].arg in ("self", "cls"):
                places = places[1:]
            for place, argument in zip(places, call.args, strict=False):
                if self.holds(argument, scope):
                    self._names.add((function, place.arg))
            for word in call.keywords:
                if word.arg and self.holds(word.value, scope):
                    self._names.add((function, word.arg))

    def holds(self, node: ast.AST | None, scope: Function | None) -> bool:
        """Whether this is a runner's result, or holds some."""
        for _ in range(20):
            match node:
                case ast.Name(id=name):
                    return (scope, name) in self._names
                case ast.Await(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
                    node = inner
                case ast.Call():
                    if self._is_run(node):
                        return True
                    if called(node) == "run" and node.args:  # asyncio.run(…)
                        node = node.args[0]
                    elif called(node) in _PASSING and isinstance(node.func, ast.Name):
                        return any(self.holds(one, scope) for one in node.args[:4])
                    elif called(node) in _METHODS and isinstance(node.func, ast.Attribute):
                        node = node.func.value
                    else:
                        return False
                case _:
                    return False
        return False

    def _is_run(self, call: ast.Call) -> bool:
        name = called(call)
        if name in ("arun_multiple_datasets", "run_multiple_datasets"):
            return True
        if name in _RUNS and isinstance(call.func, ast.Attribute):
            owner = call.func.value
            return "runner" in tokens(name_of(owner) or called(owner) or "")
        return name in self._returning


def _guarded(source: Source, node: ast.Attribute, scope: Function | None) -> bool:
    """Whether the same expression is asked what it is, anywhere in the function."""
    root: ast.AST = scope or source.tree
    asked = source.cached("asked", root, lambda one: _asked(source, one))
    return source.text(node.value) in asked


def _asked(source: Source, root: ast.AST) -> frozenset[str]:
    found = set()
    for node in inside(root):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "hasattr" | "type"), args=[one, *_]):
                found.add(source.text(one))
            case ast.Call(func=ast.Name(id="getattr"), args=[one, key, *_]) if score_name(
                name_of(key)
            ):
                found.add(source.text(one))
            case ast.Match(subject=one):
                found.add(source.text(one))
            case ast.Attribute(value=one, attr="kind" | "error"):
                found.add(source.text(one))
            case ast.Try(handlers=caught) if any(
                name_of(handler.type) == "AttributeError" for handler in caught
            ):
                found.update(
                    source.text(part.value)
                    for part in inside(*node.body)
                    if isinstance(part, ast.Attribute)
                )
    return frozenset(found)


# -- means over those that answered --------------------------------------------------------------


def _survivors(source: Source, function: Function) -> Iterator[CodeFinding]:
    nodes = list(inside(function))
    filtered = {name for node in nodes for name in _filtered(node)}
    counted = {
        source.text(node.left.args[0])
        for node in nodes
        if isinstance(node, ast.Compare) and called(node.left) == "len"
        and isinstance(node.left, ast.Call) and node.left.args
        and not any(isinstance(c, ast.Constant) and c.value == 0 for c in node.comparators)
    }  # fmt: skip
    for node in nodes:
        over = _mean_over(node)
        if over is None:
            continue
        plain = isinstance(over, ast.Name) and over.id in filtered - counted
        if plain or _keeps_survivors(over):
            yield finding(source, "survivors-mean", node)


def _filtered(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _keeps_survivors(value):
            yield name
        case ast.If(test=test, body=body) if _tests_failure(test):
            yield from (name for one in body for name in _appended(one))
        case ast.Try(body=body, handlers=caught) if caught:
            adds = {name for one in body for name in _appended(one) if score_name(name)}
            filled = {name for h in caught for one in h.body for name in _appended(one)}
            stops = any(isinstance(one, ast.Raise | ast.Return) for h in caught for one in h.body)
            yield from () if stops else adds - filled


def _appended(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[_])
        ):
            yield name


def _keeps_survivors(node: ast.AST) -> bool:
    """``[r.score for r in results if hasattr(r, "score")]`` and the like."""
    match node:
        case ast.ListComp(generators=[one, *_]) | ast.GeneratorExp(generators=[one, *_]):
            return any(_tests_failure(test) for test in one.ifs)
    return False


def _tests_failure(test: ast.AST) -> bool:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _tests_failure_call(operand, ("error", "exception"))
    return _tests_failure_call(test, ("score",))


def _tests_failure_call(node: ast.AST, kinds: tuple[str, ...]) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, key]) if "score" in kinds:
            return score_name(name_of(key))
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]):
            words = tokens(name_of(kind) or "")
            return bool(words) and words[-1] in kinds
    return False


def _mean_over(node: ast.AST) -> ast.AST | None:
    """What is averaged: ``x`` of ``sum(x) / len(x)`` and of ``mean(x)``."""
    match node:
        case ast.BinOp(
            left=ast.Call(func=ast.Name(id="sum"), args=[over, *_]),
            op=ast.Div(),
            right=ast.Call(func=ast.Name(id="len"), args=[_]),
        ):
            return over
        case ast.Call(args=[over, *_]) if called(node) in _MEANS:
            return over
    return None
