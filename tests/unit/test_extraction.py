"""Where the answer stands in a response."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from adjudge.graders.answers.answer_text import find_last_marked, find_last_math, strip_wrappers
from adjudge.graders.answers.choices import (
    find_last_box,
    read_boolean,
    read_letter,
)
from adjudge.graders.answers.quantities import find_last_number, read_number
from adjudge.graders.rules.json_validation import find_json_text


def test_a_number_far_from_the_end_is_read_whole() -> None:
    for filler in range(1_980, 2_020):
        number = find_last_number("it is 1,234,567 " + "x" * filler)
        assert number is not None
        assert number.text == "1,234,567"


SIGNS = r"""<answer> </answer> \boxed{ { } $ \( " \" [ ] 1 1, 1. - *1 \frac{1 1e 1/ ** ` [1,"""
HOSTILE = [*SIGNS.split(), r"\boxed ", "1 ", "A ", "not ", "answer is ", "no ", "[1 ", "( "]
HOSTILE += ["it isn't true ", "n't ", "1" + " " * 50]

READERS: list[Callable[[str], Any]] = [
    *(find_last_marked, find_last_math, find_last_number, read_number),
    *(read_letter, read_boolean, find_last_box, strip_wrappers, find_json_text),
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_readers_are_linear_in_hostile_text(reader: Callable[[str], Any]) -> None:
    """Eight times the text takes some eight times as long; sixty-four would be quadratic."""

    def seconds(unit: str, size: int) -> float:
        text = unit * (size // len(unit))
        start = time.thread_time()
        reader(text)
        return time.thread_time() - start

    def grows_slowly(unit: str) -> bool:
        least = 0.0001  # below this the clock and the machine decide
        return seconds(unit, 32_000) < 24 * max(seconds(unit, 4_000), least)

    for unit in HOSTILE:
        assert any(grows_slowly(unit) for _ in range(5)), unit
