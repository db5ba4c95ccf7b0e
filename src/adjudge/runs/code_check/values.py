"""Which expressions read a score, and which are a made-up one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from adjudge.runs.code_check.words import (
    DEEP,
    SCORE,
    called,
    name_of,
    score_name,
    setting,
    speaks_of_judge,
    tokens,
    words,
)

__all__ = ["asks_judge", "made_up", "number", "numbers", "plain_number", "speaks_of_score"]

_CALLS_OUT = words(
    "client session requests httpx aiohttp chat achat completion acompletion litellm "
    "urlopen runner scorer aevaluate"
)
_STAND_IN = words(
    "default defaults fallback neutral fail failed failure error timeout worst missing"
)
_MAKES = words("compute get make fn func function method manager results class")
_ZEROS = words("zeros zeros_like ones ones_like full full_like tensor array as_tensor")


def speaks_of_score(node: ast.AST | None, deep: int = DEEP) -> bool:  # noqa: PLR0911  (an answer per shape)
    """Whether the expression reads a score: a name, an attribute, a key, or one of them wrapped."""
    if node is None or not deep:
        return False
    match node:
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return score_name(name_of(node))
        case ast.Await(value=value) | ast.UnaryOp(operand=value):
            return speaks_of_score(value, deep - 1)
        case ast.BinOp(left=left, right=right):
            return speaks_of_score(left, deep - 1) or speaks_of_score(right, deep - 1)
        case ast.Call(func=ast.Attribute(value=value, attr="get" | "pop"), args=[key, *_]):
            return score_name(name_of(key)) and not setting(value)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, key, *_]):
            return score_name(name_of(key)) and not setting(owner)
        case ast.Call(func=ast.Name(id="float" | "int" | "round" | "abs"), args=[value, *_]):
            return speaks_of_score(value, deep - 1)
        case ast.Call(func=ast.Attribute(value=value, attr="item" | "tolist")):
            return speaks_of_score(value, deep - 1)
        case ast.Call(func=function):
            return score_name(name_of(function))
    return False


def plain_number(node: ast.AST | None) -> bool:
    """A literal number, ``-1.0`` and ``float("-inf")`` included; not a bool, not NaN."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        node = node.operand
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Call(func=ast.Name(id="float" | "int"), args=[ast.Constant(value=value)]):
            return "nan" not in str(value).lower()
    return False


def number(node: ast.AST | None) -> bool:
    """A number that stands for a missing one: a literal, or a name such as ``default_score``."""
    if plain_number(node):
        return True
    parts = tokens(name_of(node) or "") if isinstance(node, ast.Name | ast.Attribute) else []
    return (
        not _STAND_IN.isdisjoint(parts)
        and not SCORE.isdisjoint(parts)
        and not (_MAKES.intersection(parts))
    )


def numbers(node: ast.AST | None, deep: int = DEEP) -> bool:  # noqa: PLR0911  (an answer per shape)
    """:func:`number`, or a list, tuple or array of nothing else, or a tuple with one."""
    if node is None or not deep:
        return False
    match node:
        case ast.List(elts=parts) if parts:
            return all(numbers(part, deep - 1) or made_up(part, deep - 1) for part in parts)
        case ast.Tuple(elts=parts) if parts:
            return any(numbers(part, deep - 1) or made_up(part, deep - 1) for part in parts)
        case (
            ast.BinOp(op=ast.Mult(), left=ast.List() as part)
            | ast.BinOp(op=ast.Mult(), right=ast.List() as part)
        ):
            return numbers(part, deep - 1)
        case ast.ListComp(elt=part):
            return numbers(part, deep - 1) or made_up(part, deep - 1)
        case ast.Call(args=arguments) if called(node) in _ZEROS:
            return called(node) not in ("tensor", "array", "as_tensor") or any(
                numbers(argument, deep - 1) for argument in arguments
            )
    return number(node)


def made_up(node: ast.AST | None, deep: int = DEEP) -> bool:  # noqa: PLR0911  (an answer per shape)
    """A dict or an object that carries a made-up score: ``{"score": 0.0}``, ``R(score=0.0)``."""
    if node is None or not deep:
        return False
    match node:
        case ast.Dict(keys=keys, values=values):
            return any(
                score_name(name_of(key)) and numbers(value, deep - 1)
                for key, value in zip(keys, values, strict=True)
            )
        case ast.DictComp(key=key, value=value):
            return score_name(name_of(key)) and numbers(value, deep - 1)
        case ast.Call(keywords=keywords, args=arguments):
            if any(score_name(word.arg) and number(word.value) for word in keywords):
                return True
            kind = tokens(called(node) or "")
            results = {"score", "result", "reward"} & set(kind[-2:]) and called(node) != "score"
            return (
                bool(results)
                and (called(node) or "")[:1].isupper()
                and any(number(argument) for argument in arguments[1:2])
            )
        case ast.List(elts=[part, *_]) | ast.ListComp(elt=part):
            return made_up(part, deep - 1)
        case ast.Tuple(elts=parts):
            return any(made_up(part, deep - 1) for part in parts[:9])
    return False


def asks_judge(nodes: Iterable[ast.AST]) -> bool:
    """Whether a judge, or a server that could be one, is asked or its reply read in this code."""
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                if speaks_of_judge(name):
                    return True
        match node:
            case ast.Call(func=function):
                if any(_calls_out(name_of(part)) for part in _chain(function)):
                    return True
    return False


def _chain(node: ast.AST) -> Iterator[ast.AST]:
    """``a.b.c``, ``a.b``, ``a``."""
    for _ in range(DEEP):
        yield node
        if not isinstance(node, ast.Attribute):
            return
        node = node.value


def _calls_out(name: str | None) -> bool:
    parts = set(tokens(name or ""))
    return not _CALLS_OUT.isdisjoint(parts) or {"reward", "model"} <= parts
