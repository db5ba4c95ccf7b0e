"""Whole reward functions: each line that hides a failure of the judge is found, and no other."""

import ast

import pytest
from tests.unit.reward_functions_development import DEVELOPMENT
from tests.unit.reward_functions_held_out import HELD_OUT

from adjudge.runs.code_check import check_code

ALL = DEVELOPMENT | HELD_OUT


def hiding(code: str) -> set[int]:
    return {n for n, line in enumerate(code.splitlines(), 1) if line.endswith("# hides")}


def found(code: str) -> set[int]:
    return {one.line for one in check_code(code)}


def renamed(code: str) -> str:
    """The code with other names for all variables that it assigns; lines stay what they are."""
    nodes = [*ast.walk(ast.parse(code))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    local = sorted({n.id for n in names if isinstance(n.ctx, ast.Store)} - parameters)
    lines = code.splitlines()
    for node in sorted(names, key=lambda one: -one.col_offset):
        if node.id in local:
            line, new = lines[node.lineno - 1], f"v{local.index(node.id)}"
            lines[node.lineno - 1] = line[: node.col_offset] + new + line[node.end_col_offset :]
    return "\n".join(lines) + "\n"


def test_they_are_forty() -> None:
    assert len(DEVELOPMENT) == len(HELD_OUT) == 20
    assert sum(bool(hiding(code)) for _, code in ALL.values()) == 23


@pytest.mark.parametrize("name", ALL)
def test_what_hides_a_failure_is_found_and_nothing_else(name: str) -> None:
    assert found(ALL[name][1]) == hiding(ALL[name][1])


@pytest.mark.parametrize("name", ALL)
def test_whatever_the_variables_are_called(name: str) -> None:
    code = renamed(ALL[name][1])
    assert found(code) == hiding(code)
