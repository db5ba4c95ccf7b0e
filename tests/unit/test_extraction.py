"""Where the answer stands in a response."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from adjudge.graders.answers.answer_text import find_last_marked, find_last_math, strip_wrappers
from adjudge.graders.answers.choices import (
    find_last_box,
    intersection_over_union,
    read_boolean,
    read_box,
    read_letter,
)
from adjudge.graders.answers.quantities import find_last_number, numbers_match, read_number
from adjudge.graders.rules.json_validation import find_json_text, find_last_json


def test_a_number_far_from_the_end_is_read_whole() -> None:
    for filler in range(1_980, 2_020):
        number = find_last_number("it is 1,234,567 " + "x" * filler)
        assert number is not None
        assert number.text == "1,234,567"


def test_a_whole_text_is_a_number_or_not() -> None:
    for text in ("42", " 42. ", "$42$", r"\text{42}", "{42}", "**42**", "- 42", "$-42", "42%"):
        assert read_number(text) is not None, text
    for text in ("42 apples", "about 42", "x = 42", "forty-two", "42, not 43", "40 + 2 = 42"):
        assert read_number(text) is not None, text
    for text in ("at least 42", "42 or 43", "x^2 = 42", "1 = 42", "42x", "1,2", "", "-", "$"):
        assert read_number(text) is None, text


def matches(answer: str, reference: str, rel_tol: float = 0.0, abs_tol: float = 0.0) -> bool:
    a, b = read_number(answer), read_number(reference)
    assert a is not None
    assert b is not None
    return numbers_match(a, b, rel_tol, abs_tol)


def test_numbers_are_compared_exactly() -> None:
    assert matches("0.1", "0.10")
    assert matches("1/3", "2/6")
    assert not matches("1/3", "0.3333333333333333333333333333333333333")
    assert not matches("12345678901234567890123", "12345678901234567890124")
    assert not matches("-$12345678901234567890123456789012", "-$12345678901234567890123456789013")


def test_a_percent_sign_may_be_left_out_but_not_changed() -> None:
    assert matches("50%", "50")
    assert matches("0.5", "50%")
    assert matches("50%", "50%")
    assert not matches("50%", "0.5%")
    assert not matches("0.5", "50")


def test_reference_boxes() -> None:
    assert read_box([1, 2.5, 3, 4]) == (1, 2.5, 3, 4)
    assert read_box("[1, 2, 3, 4]") == (1, 2, 3, 4)
    bad: list[Any] = [None, [1, 2, 3], [1, 2, 3, True], ["1"] * 4, [1, 2, 3, 10**400], {}, 4]
    for reference in bad:
        assert read_box(reference) is None, reference


def test_overlap_of_known_boxes() -> None:
    assert intersection_over_union((0, 0, 2, 2), (1, 1, 3, 3)) == pytest.approx(1 / 7)
    assert intersection_over_union((0, 0, 2, 2), (2, 0, 4, 2)) == 0
    assert intersection_over_union((0, 0, 0, 2), (0, 0, 0, 2)) == 0
    assert intersection_over_union((2, 2, 0, 0), (0, 0, 2, 2)) == 0
    assert (
        intersection_over_union((-1e308, -1e308, 1e308, 1e308), (-1e308, -1e308, 1e308, 1e308)) == 1
    )


def test_formulas_in_text() -> None:
    assert find_last_math("costs $5") is None
    assert find_last_math(r"price \$5, then $x$") is not None
    for text, formula in [
        ("$a$ and $$b$$", "b"),
        (r"\[a\] and \(b\)", "b"),
        (r"$a$ and \(b", "a"),
        (r"$\text{cost \$5}$", r"\text{cost \$5}"),
        ("$$ $$ and $a$", "a"),
    ]:
        found = find_last_math(text)
        assert found is not None, text
        assert found.text == formula


def test_json_in_text() -> None:
    assert find_last_json('{"a": [1, 2]}') == '{"a": [1, 2]}'
    assert find_last_json('[1] and {"a": "}"} end') == '{"a": "}"}'
    assert find_last_json("[1 and {2}") == "{2}"
    assert find_last_json("[1} {2]") is None
    assert find_json_text('"text"') == '"text"'
    assert find_json_text('```json\n{"a": 1}\n```') == '{"a": 1}'


def test_wrappers_come_off_only_in_pairs() -> None:
    assert strip_wrappers(r"$\boxed{\text{ a }}$") == "a"
    assert strip_wrappers("{a} and {b}") == "{a} and {b}"
    assert strip_wrappers("$a$ and $b$") == "$a$ and $b$"
    assert strip_wrappers(r"$\$5$") == r"\$5"
    assert strip_wrappers(r"\frac{1}{2}") == r"\frac{1}{2}"


SIGNS = r"""<answer> </answer> \boxed{ { } $ \( " \" [ ] 1 1, 1. - *1 \frac{1 1e 1/ ** ` [1,"""
HOSTILE = [*SIGNS.split(), r"\boxed ", "1 ", "A ", "not ", "answer is ", "no ", "[1 ", "( "]
HOSTILE += ["it isn't true ", "n't ", "1" + " " * 50]

READERS: list[Callable[[str], Any]] = [
    *(find_last_marked, find_last_math, find_last_json, find_last_number, read_number),
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
