"""Where values come from and where they go: what a judge said, constants, a function's result."""

from __future__ import annotations

import ast

from adjudge.runs.code_syntax import (
    FUNCTION_NODES,
    FunctionNode,
    SourceFile,
    called_name,
    constant_parts,
    is_answer_name,
    is_judge_name,
    is_literal_number,
    is_non_score_name,
    is_score_name,
    is_setting,
    is_stand_in_name,
    last_name,
    looks_like_judge_call,
    nodes_inside,
    value_parts,
    word_set,
)

FunctionScope = FunctionNode | None
ScopedName = tuple[FunctionScope, str]
"""A name in a function or in the module; ``self.x`` and ``f()``, what f returns, in the module."""

ADDING_METHODS = word_set("append extend insert put put_nowait set_result setdefault add update")
_AWAITING_CALLS = word_set("gather wait_for wait shield")
_DELEGATING_CALLS = word_set("submit map imap starmap to_thread run_in_executor partial")
_SEARCH_METHODS = word_set("search match fullmatch findall")
_ROUNDS = 6
_SAME_NAME = 20
_DEEP = 8


class DataFlow:
    """The data flow of a file, without regard to the order of its statements.

    A value is a judge's when it is what a call of a judge returned or is made from it: through
    names, ``self`` attributes, containers, and the functions of the file.
    """

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self._functions: dict[str, list[FunctionNode]] = {}
        self._own: set[ScopedName] = set()
        """The names that a function assigns, its parameters among them."""
        for node in source.nodes:
            if isinstance(node, FUNCTION_NODES):
                self._functions.setdefault(node.name, []).append(node)
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    self._own.add((source.function(node), name))
        self.bound: dict[ScopedName, list[tuple[ast.AST, ast.AST, FunctionScope]]] = {}
        """What is assigned to a name: (the node that does it, the value, the value's scope)."""
        self._given: dict[FunctionScope, list[tuple[str, ast.AST]]] = {}
        """The same by the scope: (the name, the value)."""
        for node in source.nodes:
            self._bind(node, source.function(node))
        self._parts: dict[ast.AST | None, frozenset[ast.AST]] = {}
        self._used: dict[FunctionScope, set[ScopedName | None]] = {}
        self._results: dict[FunctionScope, frozenset[str] | None] = {}
        self._judged: set[ScopedName] = set()
        self._spread()

    # -- bindings ----------------------------------------------------------------------------

    def _bind(self, node: ast.AST, scope: FunctionScope) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._target(node, target, value, scope)
                    if isinstance(self.source.parents[node], ast.ClassDef):
                        self._put((None, f"self.{last_name(target)}"), node, value, scope)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
            ):
                self._target(node, target, value, scope)
            case (
                ast.For(target=target, iter=value)
                | ast.AsyncFor(target=target, iter=value)
                | ast.comprehension(target=target, iter=value)
            ):
                self._loop(node, target, value, scope)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._target(node, target, value, scope)
            case ast.Return(value=ast.expr() as value) if scope is not None:
                self._put((None, f"{scope.name}()"), node, value, scope)
            case ast.Call():
                self._call(node, scope)
            case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
                places = [*args.posonlyargs, *args.args]
                pairs = [*zip(places[::-1], args.defaults[::-1], strict=False)]
                pairs += [
                    (a, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d
                ]
                for place, default in pairs:
                    self._put((node, place.arg), node, default, scope)

    def _put(self, key: ScopedName, node: ast.AST, value: ast.AST, scope: FunctionScope) -> None:
        self.bound.setdefault(key, []).append((node, value, scope))
        self._given.setdefault(scope, []).append((key[1], value))

    def _target(self, node: ast.AST, target: ast.AST, value: ast.AST, scope: FunctionScope) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            parts = target.elts
            each = value.elts if isinstance(value, ast.Tuple) else []
            values = each if len(each) == len(parts) else [value] * len(parts)
            for part, one in zip(parts, values, strict=True):
                self._target(node, part, one, scope)
        elif (key := self.key(target, scope)) is not None:
            self._put(key, node, value, scope)

    def _loop(self, node: ast.AST, target: ast.AST, over: ast.AST, scope: FunctionScope) -> None:
        """Of ``for a, b in zip(x, y)`` each place has its own source."""
        parts, inners = getattr(target, "elts", [target]), getattr(over, "args", [])
        if called_name(over) == "zip" and len(inners) == len(parts):
            for part, inner in zip(parts, inners, strict=True):
                self._loop(node, part, inner, scope)
        elif called_name(over) == "enumerate" and len(parts) == 2 and inners:
            self._loop(node, parts[1], inners[0], scope)
        else:
            values = called_name(over) == "items" and len(parts) == 2
            self._target(node, parts[1] if values else target, over, scope)

    def _call(self, call: ast.Call, scope: FunctionScope) -> None:
        """Arguments go to the parameters of functions of this file, or into a container."""
        owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        if called_name(call) in ADDING_METHODS and (key := self.key(owner, scope)) is not None:
            for argument in call.args:
                self._put(key, call, argument, scope)
        for function in self._functions.get(called_name(call) or "", ())[:_SAME_NAME]:
            places = [*function.args.posonlyargs, *function.args.args]
            if isinstance(call.func, ast.Attribute) and places and places[0].arg in ("self", "cls"):
                places = places[1:]
            for place, argument in zip(places, call.args, strict=False):
                self._put((function, place.arg), call, argument, scope)
            for word in call.keywords:
                if word.arg:
                    self._put((function, word.arg), call, word.value, scope)

    def key(self, target: ast.AST, scope: FunctionScope) -> ScopedName | None:
        """The name that is read or written: ``x`` of ``x`` and ``x[i]``, ``self.x``.

        With the function that assigns it, here or around; with none where it is from elsewhere.
        """
        for _ in range(_DEEP):
            match target:
                case ast.Subscript(value=value) | ast.Starred(value=value):
                    target = value
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    return None, f"self.{name}"
                case ast.Name(id=name):
                    while scope is not None and (scope, name) not in self._own:
                        scope = self.source.function(scope)
                    return scope, name
                case _:
                    return None
        return None

    def bindings(
        self, node: ast.AST, scope: FunctionScope
    ) -> list[tuple[ast.AST, ast.AST, FunctionScope]]:
        """What the name was given, here or in a scope around; nothing for names from elsewhere."""
        key = self.key(node, scope)
        return self.bound.get(key, [])[-_SAME_NAME:] if key else []

    def defined(self, name: str | None) -> bool:
        """Whether a function of this name stands in the file."""
        return name in self._functions

    # -- what a judge said -------------------------------------------------------------------

    def _spread(self) -> None:
        """Follow what a judge said until no new name holds any."""
        for _ in range(_ROUNDS):
            before = len(self._judged)
            for key, given in self.bound.items():
                if key not in self._judged and any(self.judged(v, where) for _, v, where in given):
                    self._judged.add(key)
            if len(self._judged) == before:
                return

    def _asks(self, call: ast.Call) -> bool:
        name = called_name(call)
        if name in _AWAITING_CALLS:
            return False  # what is gathered is looked at by itself
        if name in _DELEGATING_CALLS and any(is_judge_name(last_name(one)) for one in call.args):
            return True
        given = self.bindings(call.func, self.source.function(call))
        if any(is_judge_name(last_name(value)) for _, value, _ in given):
            return True
        awaited = isinstance(self.source.parents.get(call), ast.Await)
        return (None, f"{name}()") in self._judged or looks_like_judge_call(
            call, awaited=awaited and not self.defined(name)
        )

    def judged(self, node: ast.AST, scope: FunctionScope) -> bool:
        """Whether a judge said this: by its call or, for what comes from elsewhere, by its name."""
        for part in value_parts(node):
            if isinstance(part, ast.Call) and self._asks(part):
                return True
            if isinstance(part, ast.Name | ast.Attribute):
                key = self.key(part, scope)
                if key in self._judged:
                    return True
                if key not in self.bound and (
                    is_answer_name(last_name(part))
                    or (key is not None and (None, f"{last_name(part)}()") in self._judged)
                ):  # a judge's name, or a function of this file as an argument
                    return True
        return False

    def scored(self, node: ast.AST, scope: FunctionScope) -> bool:
        """:meth:`judged`, or what the code itself calls a score."""
        return self.judged(node, scope) or self._named_score(node, scope)

    def _named_score(self, node: ast.AST, scope: FunctionScope, deep: int = _DEEP) -> bool:
        inner: list[ast.AST] = []
        match node:
            case ast.Name():
                displays = (ast.List, ast.Dict, ast.ListComp)
                filled = any(isinstance(v, displays) for _, v, _ in self.bindings(node, scope))
                return is_score_name(node.id) and not filled
            case ast.Attribute() | ast.Subscript():
                return is_score_name(last_name(node))
            case (
                ast.Call(func=ast.Attribute(value=owner, attr="get" | "pop"), args=[key, *_])
                | ast.Call(func=ast.Name(id="getattr"), args=[owner, key, *_])
            ):
                return is_score_name(last_name(key)) and not is_setting(owner)
            case (
                ast.Call(func=ast.Name(id="float" | "int" | "round" | "abs"), args=[value, *_])
                | ast.Call(func=ast.Attribute(value=value, attr="item" | "tolist"))
                | ast.Await(value=value)
                | ast.UnaryOp(operand=value)
            ):
                inner = [value]
            case ast.BinOp(left=left, right=right):
                inner = [left, right]
            case ast.Call():
                return is_score_name(called_name(node))
        return deep > 0 and any(self._named_score(one, scope, deep - 1) for one in inner)

    def asks(self, body: list[ast.stmt], scope: FunctionScope) -> bool:
        """Whether a judge is asked, or its reply read, in these statements."""
        for node in nodes_inside(*body):
            match node:
                case ast.Call():
                    if self._asks(node):
                        return True
                case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                    if not self._filled(node) and self.judged(node, scope):
                        return True
        return False

    def _filled(self, node: ast.AST) -> bool:
        """Whether this is the container that something is put into, and not read."""
        parent = self.source.parents.get(node)
        return (isinstance(parent, ast.Attribute) and parent.attr in ADDING_METHODS) or (
            isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store)
        )

    def used(self, node: ast.AST, scope: FunctionScope) -> bool:
        """Whether the value itself is used: a mere yes or no is a verdict and never missing."""
        if scope not in self._used:
            values = (value for _, value in self._given.get(scope, ()))
            parts = (part for value in values for part in value_parts(value))
            self._used[scope] = {self.key(part, scope) for part in parts}
        return self.key(node, scope) in self._used[scope]

    def searched(self, node: ast.AST, scope: FunctionScope) -> bool:
        """Whether this is what a pattern found in a judge's text."""
        given: list[ast.AST] = [node.value] if isinstance(node, ast.NamedExpr) else []
        given += [value for _, value, _ in self.bindings(node, scope)]
        return any(
            called_name(value) in _SEARCH_METHODS
            and (self.judged(value, scope) or is_judge_name(getattr(scope, "name", None)))
            for value in given
        )

    def parts(self, value: ast.AST | None) -> frozenset[ast.AST]:
        """:func:`value_parts` as a set, once for each value."""
        if value not in self._parts:
            self._parts[value] = frozenset(value_parts(value))
        return self._parts[value]

    # -- numbers -----------------------------------------------------------------------------

    def number(self, node: ast.AST | None, scope: FunctionScope, deep: int = _DEEP) -> bool:
        """A number that no one measured: a constant, a name of one, or something made of them."""
        if node is None or not deep or is_literal_number(node):
            return node is not None and deep > 0
        named, name = isinstance(node, ast.Name | ast.Attribute), last_name(node)
        given = self.bindings(node, scope) if named else []
        if named and (not given or isinstance(node, ast.Attribute)) and is_stand_in_name(name):
            return True
        if (
            isinstance(node, ast.Call)
            and len(self._functions.get(called_name(node) or "", ())) == 1
        ):
            given = self.bound.get((None, f"{called_name(node)}()"), [])
            given = given if len(given) == 1 else []  # one of several is a decision
        if given:
            constant = (ast.Assign, ast.AnnAssign, ast.Return, *FUNCTION_NODES)
            return all(
                isinstance(by, constant) and self.number(value, where, deep - 1)
                for by, value, where in given[:9]
            )
        if isinstance(node, ast.BinOp) and self.scored(node, scope):
            return False
        return any(self.number(part, scope, deep - 1) for part in constant_parts(node))

    # -- results -----------------------------------------------------------------------------

    def _result(self, scope: FunctionScope) -> frozenset[str] | None:
        """The names whose values reach what a function returns; ``None`` where it returns none."""
        if scope in self._results or scope is None:
            return self._results.get(scope)
        returned = [
            node.value
            for node in nodes_inside(scope)
            if isinstance(node, ast.Return | ast.Yield) and node.value is not None
        ]
        sources: dict[str, list[ast.AST]] = {}
        for name, value in self._given.get(scope, ()):
            sources.setdefault(name, []).append(value)
        found: set[str] = set()
        waiting: list[ast.AST] = [*returned]
        while waiting:
            for part in value_parts(waiting.pop()):
                if isinstance(part, ast.Name) and part.id not in found:
                    found.add(part.id)
                    waiting += sources.get(part.id, [])
        says = not all(isinstance(value, ast.Constant) for value in returned)
        self._results[scope] = frozenset(found) if says else None
        return self._results[scope]

    def arrives(
        self, target: ast.AST, scope: FunctionScope, *, otherwise: bool | None = None
    ) -> bool:
        """Whether what is put into ``target`` becomes a part of the result.

        Where the function returns nothing, ``otherwise`` or its name decides.
        """
        key = self.key(target, scope)
        if key is None or is_non_score_name(last_name(target)):
            return False
        names = self._result(key[0])
        if names is not None:
            return key[1] in names
        return is_score_name(last_name(target)) if otherwise is None else otherwise
