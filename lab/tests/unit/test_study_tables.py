"""What a terminal shows of a study: nothing is cut so that another number is read."""

import io
import re
from typing import Any

import pytest
from lab.tests.unit.helpers.made_study import made_result, made_summary
from rich.console import Console

from adjudge_lab.cli.study import print_study

NUMBER = re.compile(r"[−+]?\d[\d.,]*(?:e−?\d+)?(?!…|[\d.,e])")


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return made_summary(made_result())


def numbers(summary: dict[str, Any], width: int) -> set[str]:
    file = io.StringIO()
    print_study(Console(file=file, width=width), summary)
    return set(NUMBER.findall(file.getvalue()))


@pytest.mark.parametrize("width", [50, 60, 70, 79, 80, 81, 120])
def test_numbers_are_whole_at_any_width(summary: dict[str, Any], width: int) -> None:
    assert numbers(summary, width) <= numbers(summary, 300)
