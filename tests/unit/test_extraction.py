"""Where the answer stands in a response."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from adjudge.graders.answers.choices import read_boolean, read_letter
from adjudge.graders.answers.finding import find_last_marked, find_last_math, strip_wrappers
from adjudge.graders.answers.likeness import find_last_box, intersection_over_union, read_box
from adjudge.graders.answers.quantities import find_last_number, numbers_match, read_number
from adjudge.graders.rules.json_validation import find_json_text, find_last_json


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("<answer>4</answer>", "4"),
        ("<answer>1</answer> no: <answer> 2 </answer>.", "2"),
        (r"\boxed{4}", "4"),
        (r"\boxed{1} then \boxed{\frac{3}{4}}", r"\frac{3}{4}"),
        (r"\boxed{1} then <answer>2</answer>", "2"),
        (r"<answer>1</answer> then \boxed{2}", "2"),
        (r"<answer>it is \boxed{2}, not 1</answer>", "2"),
        (r"\boxed{\boxed{2}}", "2"),
        (r"\boxed{1} or \boxed{2}.", r"\boxed{1} or \boxed{2}"),
        (r"$\boxed{1}$, $\boxed{2}$ and $\boxed{3}$", r"\boxed{1}$, $\boxed{2}$ and $\boxed{3}"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        ("\\boxed{1}\n\n\\boxed{2}", "2"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \} b}", r"a \} b"),
        ("<answer>1</answer> and <answer>2", ""),
        (r"\boxed{1} and \boxed{2", ""),
        (r"\boxed{1}, to repeat it: \boxed{1", "1"),
        (r"Use \boxed{ for it. \boxed{1}", "1"),
        ("<answer><answer>4</answer></answer>", "4"),
        ("</answer> 4 <answer>", None),
        ("", None),
    ],
)
def test_the_last_closed_marker_counts(text: str, marked: str | None) -> None:
    assert find_last_marked(text) == marked


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("it is 14", "14"),
        ("-5", "-5"),
        ("−5", "-5"),  # the sign of typesetters
        ("1{,}234", "1234"),
        (r"1\,234.5", "1234.5"),
        ("3e5", "300000"),
        (r"3 \times 10^{5}", "300000"),
        ("50%", "0.5"),
        ("3/4", "0.75"),
        (r"\frac{3}{4}", "0.75"),
        (r"-\dfrac{3}{4}", "-0.75"),
        (r"1\frac{1}{2}", "1.5"),
        ("1 1/2", "1.5"),
        ("the 14th", "14"),
        (r"\text{14}", "14"),
        ("3 - 5 = -2", "-2"),
        ("2^{10}", "1024"),
        (r"\sqrt{16}", "4"),
        ("½", "0.5"),
        ("٣", "3"),
        ("1" * 400, "1" * 400),
        ("The answer is not 5 but 6.", "6"),
        ("The answer is 5. It took me 3 steps.", "5"),
        ("She bakes 4 * 6 = <<4*6=24>>24 rolls.", "24"),
        ("So the total cost is 4 * $6 = $24.", "24"),
        ("**Answer:** 24 rolls", "24"),
        (r"we have \(x = 24\).", "24"),
    ],
)
def test_the_last_number_is_read_whole(text: str, value: str) -> None:
    number = find_last_number(text)
    assert number is not None
    assert number.value == Decimal(value)


@pytest.mark.parametrize(
    "text",
    [
        *["", "none", "x14", "H2O", "x_4", "5x", r"\frac{a}{4}", "2024-01-15", "10:30", "1.2.3"],
        *["3,5", "1/0", "1/2/3", "1e99999", "1e-99999", "1" * 1001, "v1.2.3-rc4", "2^{5000x}"],
        *["14 and 15.", "(3, -5)", "5 or 6", "it is 5 or maybe 6", "between 5 and 6", "not 5"],
    ],
)
def test_parts_and_hedges_are_no_numbers(text: str) -> None:
    assert find_last_number(text) is None


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


def test_tolerances() -> None:
    assert matches("3.14", "3.14159", rel_tol=0.001)
    assert not matches("3.14", "3.14159", rel_tol=0.0001)
    assert matches("3.14", "3.14159", abs_tol=0.0016)
    assert not matches("3.14", "3.14159", abs_tol=0.0015)
    assert matches("-102", "-100", rel_tol=0.02)
    assert not matches("-102.1", "-100", rel_tol=0.02)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        (r"\text{(B)}", "B"),
        ("B, not A", "B"),
        ("The answer is (B), although A is close", "B"),
        ("Answer: **C** because A and B are wrong", "C"),
        ("A is wrong, so I choose C", "C"),
        ("A or B", None),
        ("B) Paris or C) Rome", None),
        ("Neither A nor B", None),
        ("Not A, but B", "B"),
        ("B rather than A", "B"),
        ("The answer is B because A is wrong and C is worse", "B"),
        ("B. U.S. Senate", "B"),
        ("Ｂ", "B"),
        ("I", "I"),
        ("Vitamin C is what I need", "C"),
        ("A cat", None),
        ("the answer is big", None),
        ("", None),
    ],
)
def test_option_letters(text: str, letter: str | None) -> None:
    assert read_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("No", False),
        ("Yes, because there is no other way", True),
        ("no, it is true that it is not", False),
        ("It is not true", False),
        ("it is not false", True),
        ("The answer is not true", False),
        ("There is no doubt that it holds: yes", True),
        ("There is no way that this is true", False),
        ("I do not doubt that it is true", True),
        ("yes and no", None),
        ("neither true nor false", None),
        ("untrue", None),
        ("", None),
    ],
)
def test_booleans_are_whole_words(text: str, value: bool | None) -> None:
    assert read_boolean(text) is value


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("[1, 2, 3, 4]", (1, 2, 3, 4)),
        ("(1.5 2e0 3. +4)", (1.5, 2, 3, 4)),
        ("<box>(1,2),(3,4)</box>", (1, 2, 3, 4)),
        ("[[1, 2], [3, 4]]", (1, 2, 3, 4)),
        ('[{"bbox_2d": [-1, 2, 3, 4], "label": "2 cats"}]', (-1, 2, 3, 4)),
        ("x1: 1, y1: 2, x2: 3, y2: 4", (1, 2, 3, 4)),
        ("[1,2,3,4] or rather [5,6,7,8]", (5, 6, 7, 8)),
        ("1 2 3", None),
        ("[1,2,3,1e999]", None),
        ("", None),
    ],
)
def test_boxes(text: str, box: tuple[float, ...] | None) -> None:
    assert find_last_box(text) == box


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


HOSTILE = [
    *[
        "<answer>",
        "</answer>",
        r"\boxed{",
        r"\boxed ",
        "{",
        "}",
        "$",
        r"\(",
        '"',
        '\\"',
        "[",
        "]",
        "1",
    ],
    *[
        "1,",
        "1.",
        "1 ",
        "-",
        "*1",
        r"\frac{1",
        "1e",
        "1/",
        "A ",
        "not ",
        "answer is ",
        "no ",
        "[1,",
    ],
    *["[1 ", "( ", "**", "`", "it isn't true ", "n't ", "1" + " " * 50],
]

READERS: list[Callable[[str], Any]] = [
    find_last_marked,
    find_last_math,
    find_last_json,
    find_last_number,
    read_number,
    read_letter,
    read_boolean,
]
READERS += [find_last_box, strip_wrappers, find_json_text]


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
