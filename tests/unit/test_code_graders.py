"""Code graders: which code they find, whether it parses, which cases are usable; no sandbox."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import fails
from tests.unit.helpers.code_grading import block, execute

from adjudge.errors import Cause, ErrorKind
from adjudge.graders.code.blocks import SyntaxCheckGrader, split_fenced_blocks
from adjudge.graders.code.grader import CodeExecutionGrader, same_output
from adjudge.types import GraderScore


def syntax(response: Any, **parameters: Any) -> GraderScore:
    return asyncio.run(SyntaxCheckGrader(**parameters).aevaluate(response))


# Finding the code


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```python\na\n```", [("python", "a\n")]),
        ("```Python title=x\na\n```", [("python", "a\n")]),
        ("~~~py\n```\n~~~", [("py", "```\n")]),
        ("````\n```\na\n```\n````", [("", "```\na\n```\n")]),
        ("1. so:\n   ```py\n   if a:\n       b\n   ```", [("py", "if a:\n    b\n")]),
        ("```py\nnever closed", [("py", "never closed")]),
        ("``` not `a` fence\na", []),
        ("```\na\n```\n```js\nb\n```", [("", "a\n"), ("js", "b\n")]),
        ("no code at all", []),
        ('```py\n"""\n```\n"""\na\n```\nb', [("py", '"""\n```\n"""\na\n')]),
        ("```\nx = '''it's\n```\n'''\n```", [("", "x = '''it's\n```\n'''\n")]),
        ('```py\n"""\n```\n```py\na\n```', [("py", '"""\n'), ("py", "a\n")]),
        ('```py\n# it\'s """\nx = "\'\'\'"\n```\nb', [("py", '# it\'s """\nx = "\'\'\'"\n')]),
        ('```js\n"""\n```\n"""\n```', [("js", '"""\n'), ("", "")]),
    ],
)
def test_fenced_blocks(text: str, blocks: list[tuple[str, str]]) -> None:
    assert split_fenced_blocks(text) == blocks


# Syntax


@pytest.mark.parametrize(
    "response", ["", " \n", block(""), block("# nothing\n\n  # more"), "{}", "..."]
)
def test_nothing_is_no_code(response: str) -> None:
    assert (syntax(response).score, syntax(response).cause) == (0.0, Cause.CANDIDATE)


def test_all_blocks_must_parse() -> None:
    good, bad = block(r"x = '\d'"), block("x = = 1")
    assert syntax(good).score == 1.0
    assert syntax(bad).score == 0.0
    assert syntax(good + "\n" + good).metadata == {"blocks": 2, "faulty": 0}
    assert syntax(good + "\n" + bad).score == 0.0
    assert "line 1" in syntax(bad).reason


def test_blocks_of_other_languages_are_not_looked_at() -> None:
    assert syntax(block("x = 1") + "\n" + block("not python!", "text")).score == 1.0
    assert syntax(block("x = 1") + "\n" + block("Output: 1 2", "")).score == 1.0
    assert syntax(block("ls -l", "bash")).cause is Cause.CANDIDATE


def test_unfenced_text_counts_when_it_is_code() -> None:
    assert syntax("def f(x):\n    return x\n").score == 1.0
    for prose in ("Paris", "42", "I think that the answer is x.", "a + b", ""):
        score = syntax(prose)
        assert (score.score, score.cause) == (0.0, Cause.CANDIDATE), prose


@pytest.mark.parametrize(
    "source",
    [
        "(" * 19_000,
        "-" * 19_000 + "1",
        "x" + ".a" * 9_000,
        "1" + "+1" * 9_000,
        "x = " + "1" * 10_000,
        "x = '\ud800'",
        "x = 'a\0b'",
        "def f():\n\t if x:\n        pass",
    ],
)
def test_hostile_source_does_not_parse_and_harms_nobody(source: str) -> None:
    assert syntax(block(source)).score == 0.0


def test_long_source_is_parsed_in_a_worker_process() -> None:
    assert syntax(block("x = 1\n" * 10_000)).score == 1.0
    assert syntax(block("x = 1\n" * 10_000 + "x = = 1")).score == 0.0
    assert syntax(block("-" * 1_000_000 + "1")).score == 0.0


def test_nothing_is_executed(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    assert syntax(block(f"open({str(witness)!r}, 'w')")).score == 1.0
    assert not witness.exists()


# Test cases

CASE = {"input": "", "output": "1"}

BROKEN: list[Any] = [
    *([{"args": [1], "expected": {1}}], [{"args": 1, "expected": 1}], [{"test": 3}], {"tests": []}),
    [{"input": ["1"], "output": "1"}],
    None,
    [],
    "not json",
    7,
    [{"input": "1"}],
    [{"input": "1", "output": float("nan")}],
    {"tests": [{"input": 1, "output": float("nan")}], "function": "f"},
    [{"args": [1]}],
    [{"args": [1], "kwargs": [1], "expected": 1}],
    {"test": "assert f(1) == 1"},
    {"inputs": ["1"], "outputs": []},
    {"inputs": ["f(1)"], "outputs": ["1"], "fn_name": "f"},
    [{"input": "1", "output": "[1", "testtype": "functional"}],
    [{"test": ""}],
    [{"test": "assert f( == 1"}],
]


@pytest.mark.parametrize("test_cases", BROKEN, ids=lambda value: repr(value)[:40])
def test_broken_test_cases_are_no_verdict_on_the_code(test_cases: Any) -> None:
    with fails(ErrorKind.INVALID_INPUT) as caught:
        execute("def f(x): return x", test_cases, function="f")
    assert len(str(caught.value)) < 500


def test_broken_case_is_named_by_number_and_lack() -> None:
    for case, said in (
        ({"input": "1"}, r"\(stdio\) lacks 'output'; it has input"),
        ({"args": [1], "expected": 1}, ".*name of the function"),
    ):
        with fails(ErrorKind.INVALID_INPUT, f"test case 2 {said}"):
            execute("print(1)", [CASE, case])


@pytest.mark.parametrize(
    ("produced", "expected", "same"),
    [
        ("1\n", "1", True),
        ("1\r\n2", "1\n2", True),
        ("1 2", "1  2", False),
        # Numbers by value; a whole number exactly.
        ("0.30000000000000004", "0.3", True),
        ("0.666667 2", "0.66666667 2", True),
        ("0.333334", "0.333333", False),
        ("3.0", "3", True),
        ("3.0000001", "3", False),
        ("1000000007.0", "1000000008.0", False),
        ("6.63e-34", "6.62e-34", False),
        ("-0.0", "0.0", True),
        ("007", "7", False),
        ("1" * 5000, "1" * 4999 + "2", False),
        ("1.0 2", "1 2 3", False),
        ("nan", "0.5", False),
    ],
)
def test_output_is_compared_up_to_white_space_at_the_ends(
    produced: str, expected: str, same: bool
) -> None:
    assert same_output(produced, expected) is same


# Without a sandbox


def test_code_that_does_not_parse_passes_nothing_and_needs_no_sandbox() -> None:
    score = execute("def f(:", [CASE] * 2)
    assert (score.score, score.metadata["total"], score.evaluable) == (0.0, 2, True)
    assert "SyntaxError" in score.reason


@pytest.mark.parametrize("response", ["I cannot.", "", "<think>```python\nprint(1)\n```"])
def test_no_code_is_zero_by_the_candidates_doing(response: str) -> None:
    score = asyncio.run(CodeExecutionGrader().aevaluate(response, [CASE] * 3))
    assert (score.score, score.cause, score.metadata["total"]) == (0.0, Cause.CANDIDATE, 3)
