"""Whole reward functions: each line that hides a failure of the judge is found, and no other."""

import pytest
from tests.unit.reward_functions_development import DEVELOPMENT
from tests.unit.reward_functions_held_out import HELD_OUT

from adjudge.runs.code_check.check import check_code


def read(code: str) -> tuple[set[int], set[int]]:
    """(lines that hide a failure, lines that are found)."""
    hiding = {n for n, line in enumerate(code.splitlines(), 1) if line.endswith("# hides")}
    return hiding, {one.line for one in check_code(code)}


@pytest.mark.parametrize("name", DEVELOPMENT)
def test_development(name: str) -> None:
    hiding, found = read(DEVELOPMENT[name][1])
    assert found == hiding


@pytest.mark.parametrize("name", HELD_OUT)
def test_held_out(name: str) -> None:
    hiding, found = read(HELD_OUT[name][1])
    assert found == hiding
