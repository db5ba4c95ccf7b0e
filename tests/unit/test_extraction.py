"""Where the answer stands in a response, and exact arithmetic: nothing large is ever computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from adjudge.graders.answers.answer_text import (
    find_last_marked,
    find_last_math,
    strip_wrappers,
    to_latex,
)
from adjudge.graders.answers.choices import (
    find_last_box,
    read_boolean,
    read_letter,
)
from adjudge.graders.answers.numerals import MAX_DIGITS, ExpressionTooLarge
from adjudge.graders.answers.quantities import find_last_number, read_number
from adjudge.graders.answers.reader import read_value
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


# Arithmetic


def value(text: str) -> Fraction | None:
    """The value of all of ``text``; ``None`` where something is left over."""
    text = to_latex(text)
    found = read_value(text)
    return found[0] if found is not None and found[1].at == len(text) else None


leaves = st.integers(0, 99).map(lambda n: (str(n), Fraction(n)))


def joined(parts: Any) -> Any:
    (left, a), sign, (right, b) = parts
    if sign == "/" and not b:
        sign = "*"
    number = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[sign]
    form = rf"\frac{{{left}}}{{{right}}}" if sign == "/" else f"({left}){sign}({right})"
    return form, number


trees = st.recursive(
    leaves,
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(joined),
    max_leaves=12,
)


@given(trees)
def test_it_agrees_with_exact_fractions(tree: tuple[str, Fraction]) -> None:
    text, number = tree
    assert value(text) == number


BOMBS = [
    *("2000!", "7^5000^5000", "((9!)!)!"),
    "10^{10^{10}}",
    "9^9^9^9",
    "9!!!!",
    "2^100000",
    "1e99999",
    r"\binom{100000}{5000}",
    "1" * (MAX_DIGITS + 1),
    "1" + "+1" * 5_000,
    "*".join(["9^4000"] * 60),
    r"\sqrt[10]{" + "9" * 900 + "}",
    r"\frac{1}{3^{5000}}" + r"+\frac{1}{7^{5000}}" * 9,
]


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:20])
def test_nothing_large_is_ever_computed(bomb: str) -> None:
    """Had it been, the test would not end."""
    with suppress(ExpressionTooLarge):
        assert read_value(bomb) is None
