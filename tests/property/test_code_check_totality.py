"""The code check reads anything: findings or a ConfigError with a line, and nothing else."""

import ast
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.code_check_corpus import FOUND
from tests.unit.code_check_corpus_clean import CLEAN

from adjudge.errors import ConfigError
from adjudge.runs.code_check import check_code

pytestmark = pytest.mark.slow

SNIPPETS = [code for _, code in (*FOUND.values(), *CLEAN.values())]
LIBRARY = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
PIECES = sorted({piece for code in SNIPPETS for piece in code.replace("(", " ( ").split(" ")})


def total(code: str | bytes) -> None:
    found, message = [], "f.py:"
    try:
        found = check_code(code, "f.py")
    except ConfigError as error:
        message = str(error)
    assert message.startswith("f.py:")
    assert all(one.line >= 1 for one in found)
    assert all(len(one.fix) == 2 for one in found)


@given(st.text(max_size=300) | st.binary(max_size=300))
def test_any_text(code: str | bytes) -> None:
    total(code)


@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_pieces_of_reward_code(pieces: list[str]) -> None:
    total(" ".join(pieces))


@given(st.data())
@settings(max_examples=200)
def test_reward_code_with_parts_exchanged(data: st.DataObject) -> None:
    """Whole programs with nodes of one put in place of nodes of another."""
    trees = [ast.parse(data.draw(st.sampled_from(SNIPPETS))) for _ in range(2)]
    exprs = [[n for n in ast.walk(tree) if isinstance(n, ast.expr)] for tree in trees]
    if all(exprs):
        target, donor = (data.draw(st.sampled_from(nodes)) for nodes in exprs)
        target.__class__ = donor.__class__
        target.__dict__.update(donor.__dict__)
    try:
        code = ast.unparse(trees[0])
    except (AttributeError, ValueError, TypeError, KeyError, RecursionError):
        return
    total(code)


@given(st.sampled_from(SNIPPETS), st.sampled_from(SNIPPETS))
def test_findings_of_one_function_do_not_depend_on_another(first: str, second: str) -> None:
    def wrapped(name: str, code: str) -> str:
        body = "\n".join(f"    {line}" for line in code.splitlines())
        return f"def {name}():\n{body}\n"

    alone = [one.code for one in check_code(wrapped("one", first))]
    after = check_code(wrapped("two", "x = 1") + wrapped("one", first))
    assert [one.code for one in after] == alone
    total(wrapped("one", first) + wrapped("two", second))


@pytest.mark.parametrize("path", LIBRARY[::5], ids=lambda path: path.name)
def test_the_standard_library(path: Path) -> None:
    total(path.read_bytes())


@pytest.mark.parametrize(
    "code",
    [
        "x = " + "not " * 900 + "score",
        "x = " + "-" * 900 + "1",
        "x = score" + ".a" * 900,
        "x = score" + "[0]" * 80,
        "x = 0.0 if score is None else " * 80 + "score",
        "x = " + " or ".join(["score"] * 5_000) + " or 0.0",
        "x = " + " + ".join(["score"] * 900),
        "f(" * 80 + "score" + ")" * 80,
        "if score is None:\n    score = 0.0\n" + "elif score is None:\n    score = 0.0\n" * 200,
        "try:\n    judge()\nexcept Exception:\n    score = 0.0\n" * 5_000,
        "def f(score):\n" + "    if not m:\n        score = 0.0\n" * 5_000,
    ],
    ids=range(11),
)
def test_deep_and_long_code(code: str) -> None:
    total(code)
