"""Test cases for code: read from a row, kept apart from what they expect, compared outside."""

from __future__ import annotations

import ast
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.rules.code_blocks import parsed
from adjudge.graders.rules.code_needs import find_needs
from adjudge.graders.rules.code_values import encode
from adjudge.graders.rules.text import shown

__all__ = ["Case", "Mode", "UntrustedTests", "beside", "parse_cases", "same_text", "same_value"]

Mode = Literal["auto", "stdio", "function", "solution", "assert"]
UntrustedTests = Literal["refuse", "allow"]

_BAD_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)


@dataclass(frozen=True)
class Case:
    """One test: what goes into the sandbox, and what must come out of it.

    ``kind`` is ``stdio`` (``request`` is standard input, ``expected`` the text on standard
    output); ``json``, ``exact`` or ``text`` (``request`` is a list of calls, ``expected`` an
    encoded tree or a text); ``test`` (``request`` is statements, the names that are the code's, and
    whether the test computes with what it gave the code; they run in a sandbox of their own) or
    ``beside`` (the same, but they run beside the code).
    ``refusal`` is why a ``test`` cannot run apart from the code; '' where it can.
    """

    kind: Literal["stdio", "json", "exact", "text", "test", "beside"]
    request: Any
    expected: Any = None
    refusal: str = ""


def parse_cases(
    test_cases: Any, mode: Mode, function: str, untrusted_tests: UntrustedTests = "refuse"
) -> list[Case]:
    """The cases of one row; ``function`` is the name to call where a case names none.

    ``test_cases`` is a list, a mapping with ``tests`` and perhaps ``function``, or either as JSON
    text. Raises ``GradingFailure(invalid_input)`` for anything else, for an empty list, and for
    the first case that is broken; ``unsupported`` for one that has to stand beside the code,
    unless ``untrusted_tests`` allows that.
    """
    if isinstance(test_cases, str):
        test_cases = _decoded(test_cases)
    bundled = isinstance(test_cases, Mapping)
    if bundled:
        function = test_cases.get("function", function)
        test_cases = test_cases.get("tests")
    if not isinstance(test_cases, list) or not test_cases:
        raise _invalid("test_cases must be a list of test cases that is not empty")
    cases = [
        _case(number, item, mode, function, bundled) for number, item in enumerate(test_cases, 1)
    ]
    return [
        case if case.refusal == "" else beside(number, case, case.refusal, untrusted_tests)
        for number, case in enumerate(cases, 1)
    ]


def beside(
    number: int, case: Case, why: str, untrusted_tests: UntrustedTests, *, suspect: bool = False
) -> Case:
    """The test ``case``, to run beside the code; raises where that is not allowed.

    ``suspect``: what it needs was seen when it ran, so the code may have brought it about.
    """
    if untrusted_tests == "allow":
        return Case("beside", case.request)
    raise GradingFailure(
        ErrorKind.UNSUPPORTED,
        shown(
            f"test case {number} cannot be kept apart from the code that it judges: it {why}. "
            "untrusted_tests = 'allow' runs it beside the code, where the code can fake a pass",
            400,
        ),
        {"suspect": True} if suspect else {},
    )


def _case(number: int, item: Any, mode: Mode, function: str, bundled: bool) -> Case:
    if isinstance(item, str):
        item = {"test": item}
    if not isinstance(item, Mapping):
        raise _invalid(f"test case {number} must be an object, got {type(item).__name__}")
    kind = _guessed(item, bundled) if mode == "auto" else mode
    function = item.get("function", function)
    try:
        return _BUILDERS[kind](item, function)
    except KeyError as missing:
        has = ", ".join(sorted(map(str, item))) or "nothing"
        raise _invalid(f"test case {number} ({kind}) lacks {missing}; it has {has}") from None
    except _Broken as fault:
        raise _invalid(f"test case {number} ({kind}): {fault}") from None


def _guessed(item: Mapping[str, Any], bundled: bool) -> Mode:
    if "test" in item:
        return "assert"
    if "args" in item:
        return "function"
    return "solution" if bundled else "stdio"


class _Broken(Exception):
    """A test case that cannot be used."""


def _stdio(item: Mapping[str, Any], function: str) -> Case:  # noqa: ARG001  (one signature for all)
    return Case("stdio", _text(item, "input").encode("utf-8", "replace"), _text(item, "output"))


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item[key]
    if value is None and key == "input":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Broken(f"{key} must be text, got {type(value).__name__}")
    return str(value)


def _function(item: Mapping[str, Any], function: str) -> Case:
    if "args" not in item and "input" in item:
        return Case("json", _call([item["input"]], {}, function), _tree(item["output"]))
    args, kwargs = item["args"], item.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, Mapping):
        raise _Broken("args must be a list and kwargs an object")
    return Case("json", _call(args, kwargs, function), _tree(item["expected"]))


def _solution(item: Mapping[str, Any], function: str) -> Case:
    request = _call([item["input"]], {}, function or "solution")
    return Case("text", request, str(item["output"]))


def _call(args: list[Any], kwargs: Mapping[str, Any], function: Any) -> list[list[Any]]:
    if not isinstance(function, str) or not function.isidentifier():
        raise _Broken(f"the name of the function to call must be given, got {function!r}")
    try:
        return [[function, *map(_argument, json.loads(json.dumps([args, dict(kwargs)])))]]
    except (TypeError, ValueError, RecursionError) as error:
        raise _Broken(f"the arguments are not JSON: {error}") from None


def _argument(value: Any) -> Any:
    """The tree of something given to the code, which sees dicts in the order they are written."""
    return encode(value, live=_not_plain)


def _not_plain(value: Any) -> Any:
    raise TypeError(f"a value of type {type(value).__name__} cannot be given to the code")


def _tree(expected: Any) -> Any:
    try:
        return encode(expected, as_json=True)
    except (TypeError, RecursionError) as error:
        raise _Broken(f"the expected value is not JSON: {error}") from None


def _assertion(item: Mapping[str, Any], function: Any) -> Case:
    test = item["test"]
    if not isinstance(test, str) or not test.strip():
        raise _Broken("test must be Python statements")
    return _judging(test, function if isinstance(function, str) else "")


@functools.lru_cache(maxsize=4096)
def _judging(test: str, function: str) -> Case:
    """The case of a test: ``assert CALL == LITERAL`` only needs the values of the calls."""
    tree = parsed(test)
    if isinstance(tree, str):
        raise _Broken(f"test is not Python: {tree}")
    equations = [_equation(statement) for statement in tree.body]
    if equations and None not in equations:
        calls, expected = zip(*equations, strict=True)
        return Case("exact", list(calls), ["list", *expected])
    needs = find_needs(tree, function)
    request = [test + needs.added, list(needs.own), needs.computes]
    return Case("test", request, refusal=needs.refusal)


_BUILDERS = {
    "stdio": _stdio,
    "function": _function,
    "solution": _solution,
    "assert": _assertion,
}


def _equation(statement: ast.stmt) -> tuple[list[Any], Any] | None:
    """The call and the value of ``assert function(literals) == literal``, either way round."""
    test = statement.test if isinstance(statement, ast.Assert) else None
    if not isinstance(test, ast.Compare) or [type(op) for op in test.ops] != [ast.Eq]:
        return None
    for call, literal in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        try:
            args = [ast.literal_eval(arg) for arg in call.args]
            kwargs = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords if one.arg}
            request = [call.func.id, _argument(args), _argument(kwargs)]
            expected = encode(ast.literal_eval(literal))
        except _BAD_LITERAL:
            continue
        if len(kwargs) == len(call.keywords):
            return request, expected
    return None


def same_value(produced: Any, expected: Any, *, as_json: bool, tolerance: float) -> bool:
    """Whether two encoded trees are equal; never raises, whatever was produced.

    ``as_json``: a boolean equals no number, and NaN equals NaN; otherwise as Python's ``==``.
    Where a float is expected, a number may differ by ``tolerance``, relative or absolute, whichever
    allows more; where an integer is, it may not.

    >>> same_value(["list", 0.30000000000000004], ["list", 0.3], as_json=True, tolerance=1e-9)
    True
    """
    stack = [(produced, expected)]
    while stack:
        one, other = stack.pop()
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            stack.extend(zip(one, other, strict=True))
        elif not _same_leaf(one, other, as_json, tolerance):
            return False
    return True


def _same_leaf(one: Any, other: Any, as_json: bool, tolerance: float) -> bool:
    if as_json and isinstance(one, bool) != isinstance(other, bool):
        return False
    # Lists arrive here only beside something else or at unequal lengths, and then differ at once.
    return bool(one == other) or _close(one, other, as_json, tolerance)


def _close(one: Any, other: Any, as_json: bool, tolerance: float) -> bool:
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return False
    if not isinstance(other, float):
        return False
    try:
        both_nan = as_json and math.isnan(one) and math.isnan(other)
        return both_nan or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an integer beyond the floats
        return False


def same_text(produced: str, expected: str) -> bool:
    r"""Whether two outputs agree up to white space at line ends and around the whole.

    >>> same_text("1 2 \n3\n\n", "1 2\n3")
    True
    """
    return _lines(produced) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"test_cases is text but not JSON: {shown(error)}") from None


def _invalid(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, shown(message, 400))
