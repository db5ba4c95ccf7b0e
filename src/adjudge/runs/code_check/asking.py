"""What a branch asks: whether there is a score, an answer, a failure."""

from __future__ import annotations

import ast

from adjudge.runs.code_check.source import inside
from adjudge.runs.code_check.words import called, name_of, score_name, speaks_of_judge, tokens

__all__ = ["absent_when", "bare", "failure_tested", "nan_tested", "none_tested", "plural"]

_NAN_TESTS = frozenset(("isnan", "isna", "isnull"))
_DEEP = 8
_NEVER: frozenset[bool] = frozenset()
_PRESENT = frozenset((False,))
_ABSENT = frozenset((True,))


def absent_when(test: ast.AST, deep: int = _DEEP) -> frozenset[bool]:  # noqa: PLR0911  (an answer per shape)
    """The outcomes of ``test`` under which something is missing; none for other questions.

    ``x is None`` says so when true, ``hasattr(x, "score")`` when false; ``x > 0`` is a decision
    about a measured x, whose numbers are meant.
    """
    if not deep:
        return _NEVER
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return frozenset(not outcome for outcome in absent_when(operand, deep - 1))
        case ast.BoolOp(values=values):
            return frozenset().union(*(absent_when(value, deep - 1) for value in values[:50]))
        case ast.Call() if called(test) == "isinstance":
            return _ABSENT if failing_kind(test) else _PRESENT
        case ast.Call():
            name = called(test)
            return _ABSENT if name in _NAN_TESTS else _PRESENT & _asked(name)
        case ast.Compare(left=left, ops=[op], comparators=[other]):
            return _compared(left, op, other)
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.NamedExpr():
            return _PRESENT
    return _NEVER


def _asked(name: str | None) -> frozenset[bool]:
    return _PRESENT if name in ("hasattr", "isfinite") else _NEVER


def _compared(left: ast.AST, op: ast.AST, other: ast.AST) -> frozenset[bool]:  # noqa: PLR0911  (an answer per shape)
    none = isinstance(other, ast.Constant) and other.value is None
    match op:
        case ast.Is() | ast.Eq() if none:
            return _ABSENT
        case ast.IsNot() | ast.NotEq() if none:
            return _PRESENT
        case ast.Eq() | ast.Lt() if _status(left, other):
            return _PRESENT
        case ast.NotEq() | ast.GtE() if _status(left, other):
            return _ABSENT
        case ast.In() if _score_key(left):
            return _PRESENT
        case ast.NotIn() if _score_key(left):
            return _ABSENT
    return _NEVER


def _status(node: ast.AST, other: ast.AST) -> bool:
    """``reply.status_code`` beside a number."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("status", "status_code")
        and isinstance(other, ast.Constant)
        and isinstance(other.value, int)
    )


def _score_key(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and score_name(name_of(node))


def failing_kind(test: ast.Call) -> bool:
    """Whether ``isinstance`` asks for an error: ``GraderError``, ``(Exception, TimeoutError)``."""
    if len(test.args) != 2:
        return False
    kinds = getattr(test.args[1], "elts", [test.args[1]])
    last = [tokens(name_of(kind) or "")[-1:] for kind in kinds]
    return ["error"] in last or ["exception"] in last


def failure_tested(test: ast.AST) -> bool:
    """Whether a failure is asked for by name: an error's type, a status code, ``"score" in x``."""
    for node in inside(test):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]):
                if failing_kind(node) or tokens(name_of(kind) or "")[-2:] == ["grader", "score"]:
                    return True
            case ast.Call(func=ast.Name(id="hasattr"), args=[_, key]) if score_name(name_of(key)):
                return True
            case ast.Compare(left=left, comparators=[other]) if _status(left, other) or _score_key(
                left
            ):
                return True
            case ast.Compare(left=left) if none_tested(node) and speaks_of_judge(name_of(left)):
                return True
    return False


def none_tested(test: ast.AST) -> bool:
    """Whether something is compared with ``None`` or NaN."""
    return nan_tested(test) or any(
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Is | ast.IsNot | ast.Eq | ast.NotEq)
        and isinstance(node.comparators[0], ast.Constant)
        and node.comparators[0].value is None
        for node in inside(test)
    )


def nan_tested(test: ast.AST) -> bool:
    """Whether something is asked to be NaN."""
    return any(called(node) in _NAN_TESTS for node in inside(test))


def bare(test: ast.AST) -> ast.AST:
    """The thing that is tested: ``x`` of ``not x``, ``x is None``, ``isnan(x)``."""
    for _ in range(_DEEP):
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner) | ast.BoolOp(values=[inner, *_]):
                test = inner
            case ast.Compare(left=inner, ops=[ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq()]):
                return inner
            case ast.NamedExpr(target=target):
                return target
            case ast.Call(args=[argument, *_]):
                return argument
    return test


def plural(name: str | None) -> bool:
    """Whether the name is of many: for these, truth asks for presence and not for a verdict."""
    return (name or "").endswith("s")
