"""Reward code as people write it: failures that become numbers are found, measurements are not."""

import textwrap
from pathlib import Path

import pytest
from tests.unit.code_check_corpus import FOUND
from tests.unit.code_check_corpus_clean import CLEAN

from adjudge.errors import ConfigError
from adjudge.runs.code_check import CODE_RULES, check_code, check_file

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src/adjudge"
MIGRATED = HERE.parent / "integration" / "test_migrated_reward_functions.py"


@pytest.mark.parametrize("name", FOUND)
def test_failures_that_become_numbers_are_found(name: str) -> None:
    rules, code = FOUND[name]
    assert " ".join(one.rule for one in check_code(code)) == rules


@pytest.mark.parametrize("name", CLEAN)
def test_measurements_are_left_alone(name: str) -> None:
    assert check_code(CLEAN[name][1]) == []


def test_every_rule_has_an_example() -> None:
    assert {rule for rules, _ in FOUND.values() for rule in rules.split()} == set(CODE_RULES)


@pytest.mark.parametrize("name", FOUND)
def test_a_finding_says_what_to_write_instead(name: str) -> None:
    for one in check_code(FOUND[name][1]):
        assert len(one.fix) == 2
        assert one.code
        assert "\n" not in one.code
        assert "GRPO" in one.why or "training step" in one.why
        assert not any("{name}" in line or "{{" in line for line in one.fix)


@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_inside_methods_and_branches_too(name: str) -> None:
    rules, code = FOUND[name]
    nested = f"class A:\n    def f(self):\n        while True:\n{textwrap.indent(code, ' ' * 12)}\n"
    expected = rules.split()
    assert [one.rule for one in check_code(nested)] == expected


def test_migrated_reward_functions() -> None:
    (one,) = check_file(MIGRATED)
    assert (one.rule, one.code) == (
        "default-score",
        'result.score if hasattr(result, "score") else 0.0',
    )


@pytest.mark.parametrize("room", ["cli", "graders", "rewards", "runs", "trainers", "training"])
def test_our_own_code_has_none(room: str) -> None:
    for file in sorted(SRC.joinpath(room).rglob("*.py")):
        assert [(file.name, one.line, one.code) for one in check_file(file)] == []


def test_lines_and_code_are_those_of_the_file() -> None:
    code = 'a = 1\nδέκα = "ü" + str(\n    getattr(r,\n        "score", 0.0))\n'
    (one,) = check_code(code)
    assert (one.line, one.code) == (3, 'getattr(r, "score", 0.0)')


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (b"x = 1\ndef f(:\n", "reward.py:2: is not Python: "),
        (b"x = '\n", "reward.py:1: is not Python: "),
        (b"x = 1\n\xff\n", "reward.py:2: is not Python: not utf-8. Save it as UTF-8."),
        (b"# coding: rot13\n", "reward.py:1: is not Python: 'rot13' is not a text encoding"),
        (b"# coding: nonsense\n", "reward.py:1: is not Python: unknown encoding: nonsense"),
        (b"x = 1\x00", "reward.py:1: is not Python"),
        (b"(" * 5_000 + b")" * 5_000, "reward.py:1: is not Python: too many nested parentheses"),
        (b"x" * 5_000_000, "reward.py: must be at most 4,000,000 bytes (found 5,000,000)"),
    ],
)
def test_what_is_not_python_is_said_with_its_line(code: bytes, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_code(code, "reward.py")
    assert says in str(caught.value)


def test_other_encodings_are_read() -> None:
    code = "# coding: latin-1\ns = 'ü'; x = getattr(r, 'score', 0.0)\n".encode("latin-1")
    assert [one.code for one in check_code(code)] == ["getattr(r, 'score', 0.0)"]
