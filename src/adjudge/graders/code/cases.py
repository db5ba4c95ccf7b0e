"""Test cases for code, as rows have them: what goes into the sandbox, and what must come out."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from adjudge.errors import ErrorKind, GradingFailure, InvalidInput
from adjudge.graders.base import is_nan
from adjudge.graders.code.analysis import find_requirements, parse_python
from adjudge.graders.code.blocks import find_names
from adjudge.graders.code.values import encode_tree
from adjudge.text import shorten_text

_Kind = Literal["stdio", "function", "functional", "solution", "assert"]
_TEST_TYPES: dict[str, _Kind] = {"functional": "functional", "stdin": "stdio"}
"""What LiveCodeBench calls its two."""
UntrustedTests = Literal["refuse", "allow"]

_BAD_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)


@dataclass(frozen=True)
class Case:
    """One test: what goes into the sandbox, and what must come out of it.

    ``kind`` is ``stdio`` (``request`` is standard input, ``expected`` the text on standard
    output); ``json``, ``exact`` or ``text`` (``request`` is a list of calls, ``expected`` a list of
    accepted encoded trees, one tree, or a text); ``test`` (``request`` is statements, the names
    that are the code's, and whether the test computes with what it gave the code; they run in a
    sandbox of their own) or ``beside`` (the same, but they run beside the code).
    ``refusal`` is why a ``test`` cannot run apart from the code; '' where it can. ``names`` are
    those that a test uses and does not bind.
    """

    kind: Literal["stdio", "json", "exact", "text", "test", "beside"]
    request: Any
    expected: Any = None
    refusal: str = ""
    names: frozenset[str] = frozenset()


def called_names(cases: Sequence[Case]) -> set[str]:
    """The names that tests may want of the code; none for a program."""
    calls = [case.request for case in cases if case.kind in ("json", "exact", "text")]
    named = {call[0] for request in calls for call in request}
    return named.union(*(case.names for case in cases))


def parse_cases(
    test_cases: Any, function: str, untrusted_tests: UntrustedTests = "refuse"
) -> list[Case]:
    """The cases of one row; ``function`` is the name to call where a case names none.

    ``test_cases`` is a list, a mapping with ``tests`` and perhaps ``function`` or with ``inputs``,
    ``outputs`` and perhaps ``fn_name``, or any of these as JSON text. Raises
    ``GradingFailure(invalid_input)`` for anything else, for an empty list, and for the first case
    that is broken; ``unsupported`` for one that has to run beside the code, unless
    ``untrusted_tests`` allows that.
    """
    if isinstance(test_cases, str):
        test_cases = _decoded(test_cases)
    bundled = isinstance(test_cases, Mapping)
    kind: _Kind | None = None
    if bundled and {"inputs", "outputs"} <= test_cases.keys():
        function = test_cases.get("fn_name") or ""
        kind = "functional" if function else "stdio"
        test_cases = _pairs(test_cases["inputs"], test_cases["outputs"], bool(function))
    elif bundled:
        keys = ", ".join(sorted(map(str, test_cases))) or "nothing"
        function = test_cases.get("function", function)
        if "tests" not in test_cases:
            raise _invalid(
                f"test_cases has neither tests nor inputs and outputs (found {keys}; allowed: "
                "a list of cases; tests, function; inputs, outputs, fn_name)"
            )
        test_cases = test_cases["tests"]
    if not isinstance(test_cases, list) or not test_cases:
        raise _invalid("test_cases must be a list of test cases that is not empty")
    cases = [
        _case(number, item, kind, function, bundled) for number, item in enumerate(test_cases, 1)
    ]
    return [
        case
        if case.refusal == ""
        else make_beside_case(number, case, case.refusal, untrusted_tests)
        for number, case in enumerate(cases, 1)
    ]


def make_beside_case(
    number: int, case: Case, why: str, untrusted_tests: UntrustedTests, *, suspect: bool = False
) -> Case:
    """The test ``case``, to run beside the code; raises where that is not allowed.

    ``suspect``: what it needs was seen when it ran, so the code may have brought it about.
    """
    if untrusted_tests == "allow":
        return Case("beside", case.request, names=case.names)
    raise GradingFailure(
        ErrorKind.UNSUPPORTED,
        shorten_text(
            f"test case {number} cannot be kept apart from the code that it judges: it {why}. "
            "untrusted_tests = 'allow' runs it beside the code, where the code can fake a pass",
            400,
        ),
        {"suspect": True} if suspect else {},
    )


def _pairs(inputs: Any, outputs: Any, called: bool) -> list[dict[str, Any]]:
    """The cases of APPS, TACO and PRIME, which keep what goes in apart from what comes out."""
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise _invalid("inputs and outputs must be lists of one length")
    pairs = zip(inputs, outputs, strict=True)
    if called:
        return [{"input": given, "output": value, "wrapped": True} for given, value in pairs]
    return [{"input": _joined(given), "output": _joined(text)} for given, text in pairs]


def _joined(lines: Any) -> Any:
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        return "\n".join(lines)
    return lines


def _case(number: int, item: Any, kind: _Kind | None, function: str, bundled: bool) -> Case:
    if isinstance(item, str):
        item = {"test": item}
    if not isinstance(item, Mapping):
        raise _invalid(f"test case {number} must be an object, got {type(item).__name__}")
    kind = kind or _kind_of(number, item, bundled)
    function = item.get("function", function)
    try:
        return _BUILDERS[kind](item, function)
    except KeyError as missing:
        has = ", ".join(sorted(map(str, item))) or "nothing"
        raise _invalid(f"test case {number} ({kind}) lacks {missing}; it has {has}") from None
    except _UnusableCase as fault:
        raise _invalid(f"test case {number} ({kind}): {fault}") from None


def _kind_of(number: int, item: Mapping[str, Any], bundled: bool) -> _Kind:
    if "testtype" in item:
        kind = _TEST_TYPES.get(str(item["testtype"]))
        if kind is None:
            allowed = ", ".join(_TEST_TYPES)
            found = shorten_text(item["testtype"])
            raise _invalid(f"test case {number}: testtype is unknown: {found}; allowed: {allowed}")
        return kind
    if "test" in item:
        return "assert"
    if "args" in item:
        return "function"
    return "solution" if bundled else "stdio"


class _UnusableCase(Exception):
    """A test case that cannot be used."""


def _stdio(item: Mapping[str, Any], function: str) -> Case:  # noqa: ARG001  (one signature for all)
    return Case("stdio", _text(item, "input").encode("utf-8", "replace"), _text(item, "output"))


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item[key]
    if value is None and key == "input":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or is_nan(value):
        raise _UnusableCase(f"{key} must be text, got {type(value).__name__}")
    return str(value)


def _function(item: Mapping[str, Any], function: str) -> Case:
    args, kwargs = item["args"], item.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, Mapping):
        raise _UnusableCase("args must be a list and kwargs an object")
    return Case("json", _call(args, kwargs, function), [_tree(item["expected"])])


def _functional(item: Mapping[str, Any], function: str) -> Case:
    """A call whose arguments and value are JSON, or lines of JSON, as LiveCodeBench has them."""
    args, expected = item["input"], item["output"]
    try:
        if isinstance(args, str):
            args = [json.loads(line) for line in args.strip("\n").split("\n") if args.strip()]
            expected = json.loads(expected) if isinstance(expected, str) else expected
    except (ValueError, RecursionError) as error:
        raise _UnusableCase(f"input and output must be lines of JSON: {error}") from None
    if not isinstance(args, list):
        raise _UnusableCase(f"input must be a list of arguments, got {type(args).__name__}")
    accepted = [expected]
    if item.get("wrapped") and isinstance(expected, list) and len(expected) == 1:
        accepted += expected  # APPS has [value] for a value, and its grader takes both
    return Case("json", _call(args, {}, function), [_tree(one) for one in accepted])


def _solution(item: Mapping[str, Any], function: str) -> Case:
    request = _call([item["input"]], {}, function or "solution")
    if is_nan(item["output"]):
        raise _UnusableCase("output must be a value, got NaN")
    return Case("text", request, str(item["output"]))


def _call(args: list[Any], kwargs: Mapping[str, Any], function: Any) -> list[list[Any]]:
    if not isinstance(function, str) or not function.isidentifier():
        raise _UnusableCase(f"the name of the function to call must be given, got {function!r}")
    try:
        return [[function, *map(_argument, json.loads(json.dumps([args, dict(kwargs)])))]]
    except (TypeError, ValueError, RecursionError) as error:
        raise _UnusableCase(f"the arguments are not JSON: {error}") from None


def _argument(value: Any) -> Any:
    """The tree of something given to the code, which sees dicts in the order they are written."""
    return encode_tree(value, live=_not_plain)


def _not_plain(value: Any) -> Any:
    raise TypeError(f"a value of type {type(value).__name__} cannot be given to the code")


def _tree(expected: Any) -> Any:
    try:
        return encode_tree(expected, as_json=True)
    except (TypeError, RecursionError) as error:
        raise _UnusableCase(f"the expected value is not JSON: {error}") from None


def _assertion(item: Mapping[str, Any], function: Any) -> Case:
    test = item["test"]
    if not isinstance(test, str) or not test.strip():
        raise _UnusableCase("test must be Python statements")
    return _judging(test, function if isinstance(function, str) else "")


@functools.lru_cache(maxsize=4096)
def _judging(test: str, function: str) -> Case:
    """The case of a test: ``assert CALL == LITERAL`` only needs the values of the calls."""
    tree = parse_python(test)
    if isinstance(tree, str):
        raise _UnusableCase(f"test is not Python: {tree}")
    equations = [_equation(statement) for statement in tree.body]
    if equations and None not in equations:
        calls, expected = zip(*equations, strict=True)
        return Case("exact", list(calls), ["list", *expected])
    needs = find_requirements(tree, function)
    statements = test + needs.added
    request = [statements, list(needs.own), needs.computes]
    _, names = find_names(statements) or (set(), set())
    return Case("test", request, refusal=needs.refusal, names=frozenset(names))


_BUILDERS = {
    "stdio": _stdio,
    "function": _function,
    "functional": _functional,
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
            expected = encode_tree(ast.literal_eval(literal))
        except _BAD_LITERAL:
            continue
        if len(kwargs) == len(call.keywords):
            return request, expected
    return None


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"test_cases is text but not JSON: {shorten_text(error)}") from None


def _invalid(message: str) -> GradingFailure:
    return InvalidInput(shorten_text(message, 400))
