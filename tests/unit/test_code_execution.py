"""Code run against its tests: honest code and failing code."""

import asyncio
import json
from typing import Any

import pytest
from tests.unit.helpers.code_grading import block, execute, needs_sandbox, outcomes

from adjudge.graders.code.grader import CodeExecutionGrader

pytestmark = needs_sandbox

# Honest code

ADDER = "a, b = map(int, input().split())\nprint(a + b)"
ADD_CASES = [{"input": f"{n} 2\n", "output": f"{n + 2}"} for n in range(3)]


def test_correct_output_before_a_crash_is_not_passed() -> None:
    score = execute("print(1)\nraise ValueError('late')", [{"input": "", "output": "1"}])
    assert score.score == 0.0
    assert "ValueError: late" in score.reason
    assert "Traceback" in score.metadata["stderr"]


def test_functions_are_called_with_json_values() -> None:
    code = """
def f(a, *, b=0):
    print("noise", end="", flush=True)
    return {"sum": a + b, "pair": (a, b), 3: None}
"""
    expected = {"sum": 3, "pair": [1, 2], "3": None}
    cases = [{"args": [1], "kwargs": {"b": 2}, "expected": expected}]
    assert execute(code, cases, function="f").score == 1.0


@pytest.mark.parametrize(
    ("returned", "expected", "passes"),
    [
        ("0.1 + 0.2", 0.3, True),
        ("True", 1, False),
        ("range(3)", [0, 1, 2], True),
        ("len(str(10 ** 5000))", 5001, True),
        ("float('nan')", float("nan"), True),
        ("10 ** 400", 1.0, False),
        ("{1, 2}", [1, 2], False),
        ("object()", None, False),
        ("'\\ud800'", "x", False),
    ],
)
def test_returned_values_are_compared_as_json(returned: str, expected: Any, passes: bool) -> None:
    cases = [{"args": [], "expected": expected}]
    assert execute(f"def f(): return {returned}", cases, function="f").score == float(passes)


def test_every_call_starts_afresh() -> None:
    code = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)"
    cases = [{"args": [1], "expected": 1}] * 3
    assert execute(code, cases, function="f").score == 1.0


def test_general_code_of_the_judge_service() -> None:
    hostile = 'it\'s "quoted" \'\'\' and \\ back """'
    tests = {"tests": [{"input": hostile, "output": hostile[::-1]}, {"input": 2, "output": 2}]}
    code = "def solution(x):\n    return x[::-1] if isinstance(x, str) else x"
    grader = CodeExecutionGrader(score="all")
    for reference in (tests, json.dumps(tests)):
        score = asyncio.run(grader.aevaluate(block(code), reference=reference))
        assert score.score == 1.0
    half = {"tests": [*tests["tests"], {"input": 1, "output": 2}]}
    assert asyncio.run(grader.aevaluate(block(code), reference=half)).score == 0.0


def test_assertions() -> None:
    code = "def f(x): return [x, x]\ndef t(x): return (x, x)"
    cases = [
        "assert f(1) == [1, 1]",
        "assert t(1) == (1, 1)",
        "assert t(1) == [1, 1]",
        "assert f(2) == [1, 1]",
        "assert all(v == 3 for v in f(2))",
    ]
    expected = ["passed"] * 2 + ["wrong answer", "wrong answer", "AssertionError: "]
    assert outcomes(execute(code, cases)) == expected


def test_all_stops_at_the_first_failure() -> None:
    cases = [{"input": "1 1", "output": "2"}, {"input": "1 1", "output": "3"}, *ADD_CASES]
    score = execute(ADDER, cases, score="all")
    assert score.score == 0.0
    assert outcomes(score)[2:] == ["not run: an earlier test failed"] * 3


F = "def f(x):\n    return x + 1"
G = "def g(x): return x + 1"
WRONG = "def f(x):\n    return x"
READS = "print(int(input()) + 1)"
CALLS = [{"args": [1], "expected": 2, "function": "f"}]
LINES = [{"input": "1\n", "output": "2"}]
# The blocks of a response, its cases, and whether it passes.
BLOCKS: dict[str, tuple[list[str], Any, bool]] = {
    "use": ([F, "print(f(2), undefined)"], CALLS, True),
    "use in a test of statements": ([F, "assert f(2) == 9"], ["assert f(1) == 2"], True),
    "helper behind": (["def f(x): return g(x)", G], CALLS, True),
    "helper corrected": (["def g(x): return x\ndef f(x): return g(x)", G], CALLS, True),
    "value built up": (["d = [0]\nd.append(2)", "d[0] = 1", "def f(x): return d[x]"], CALLS, True),
    "corrected": ([WRONG, F], CALLS, True),
    "made worse": ([F, WRONG], CALLS, False),
    "draft that does not parse": (["def f(x:", F], CALLS, True),
    "last one cut off": ([F, "def f(x):\n    return ("], CALLS, False),
    "future": (["class P: pass", f"from __future__ import annotations\n{F}\np = P()"], CALLS, True),
    "program and use": ([READS, "print(1)"], LINES, True),
    "program in three": (["n = int(input())", "n += 1", "print(n)"], LINES, True),
    "prelude": (["def f(x: List[int]) -> Any: return ceil(x) + pow(3, 4, 2)"], CALLS, True),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_solution_among_several_blocks(name: str) -> None:
    sources, cases, passes = BLOCKS[name]
    response = "\n".join(map(block, sources))
    assert asyncio.run(CodeExecutionGrader().aevaluate(response, cases)).score == float(passes)


FORMATS: dict[str, Any] = {
    "lines of JSON": [{"input": '[1, 2]\n"a"', "output": '["a", 3]', "testtype": "functional"}],
    "in a mapping": {
        "function": "f",
        "tests": [{"input": '[3]\n"a"', "output": '["a", 3]', "testtype": "functional"}],
    },
    "lists": {"fn_name": "f", "inputs": [[[1, 2], "a"]], "outputs": [["a", 3]]},
    "wrapped": {"fn_name": "f", "inputs": [[[1, 2], "a"]], "outputs": [[["a", 3]]]},
    "texts": json.dumps({"fn_name": "f", "inputs": ['[1, 2]\n"a"'], "outputs": ['["a", 3]']}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_calls(name: str) -> None:
    for code in (
        "def f(x, y): return y, sum(x)",
        "class Solution:\n  def f(s, x, y): return [y, sum(x)]",
    ):
        assert execute(code, FORMATS[name], function="f").score == 1.0
    assert execute("def f(x, y): return y, 4", FORMATS[name], function="f").score == 0.0


def test_formats_of_programs() -> None:
    for cases in (
        {"inputs": ["1\n2\n"], "outputs": ["3\n"]},
        {"inputs": [["1", "2"]], "outputs": [["3"]], "fn_name": None},
        [{"input": "1\n2", "output": "3", "testtype": "stdin"}],
    ):
        assert execute("print(int(input()) + int(input()))", cases).score == 1.0
    assert execute("print(10**5000)", [{"input": "", "output": f"1{'0' * 5000}"}]).score == 1.0


# Code that fails


def test_one_bad_call_leaves_the_others_their_verdicts() -> None:
    code = """
import ctypes, os, sys
def f(x):
    if x == 1: raise SystemExit(0)
    if x == 2:
        while True: pass
    if x == 3: os._exit(0)
    if x == 4: ctypes.string_at(0)
    if x == 5: return "x" * 10 ** 10
    if x == 6: sys.stdout.write("y" * 10 ** 8)
    return x
"""
    cases = [{"args": [n], "expected": n} for n in range(8)]
    score = execute(code, cases, function="f", test_deadline_s=1.0)
    assert score.metadata["passed"] == 2
    assert [text.split(":")[0] for text in outcomes(score)] == [
        "passed",
        "SystemExit",
        "timed out after 1 s",
        "ended with exit code 0",
        "ended with exit code 139",
        "MemoryError",
        "printed more than the output limit",
        "passed",
    ]


def test_deadline_of_the_sample_bounds_all_its_tests() -> None:
    cases = [{"input": "", "output": ""}] * 5
    score = execute("while True: pass", cases, deadline_s=0.6, test_deadline_s=0.5)
    assert score.score == 0.0
    assert outcomes(score)[0] == "timed out after 0.5 s"
    assert outcomes(score)[-1] == "not run: the sample's 0.6 s were used up"


def test_metadata_is_bounded() -> None:
    code = "import sys\nsys.stderr.write('e' * 100_000)\nraise ValueError('v' * 100_000)"
    score = execute(code, ["assert f()"] * 60)
    assert score.metadata["total"] == 60
    assert len(outcomes(score)) == 50
    assert max(map(len, outcomes(score))) <= 121
    assert len(score.metadata["stderr"]) <= 501
    assert len(score.reason) < 400
