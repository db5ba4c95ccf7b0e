"""Exact arithmetic on text: what is read, and that nothing large is ever computed."""

from __future__ import annotations

import math
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.graders.answers.answer_text import to_latex
from adjudge.graders.answers.numerals import MAX_DIGITS, ExpressionTooLarge
from adjudge.graders.answers.reader import read_value


def value(text: str) -> Fraction | None:
    """The value of all of ``text``; ``None`` where something is left over."""
    text = to_latex(text)
    found = read_value(text)
    return found.number if found is not None and found.end == len(text) else None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2+3*4", 14),
        ("-3^2", -9),
        ("(-3)^2", 9),
        ("2^3^2", 512),
        ("12/4*3", 9),
        ("6!", 720),
        ("2(4+1)", 10),
        (r"3\sqrt{16}", 12),
        ("sqrt(81)", 9),
        ("27^{1/3}", 3),
        (r"\sqrt[4]{16}", 2),
        (r"\frac34", "3/4"),
        (r"\frac3{4}", "3/4"),
        (r"\binom{6}{2}", 15),
        (r"4 \times 10^{-2}", "1/25"),
        (r"\left(\frac{2}{3}\right)^2", "4/9"),
        ("2 3/4", "11/4"),
        (r"2\frac{3}{4}", "11/4"),
        ("2¾", "11/4"),
        ("7²", 49),
        ("√49", 7),
        ("8÷4·3", 6),
        ("４２", 42),
        ("−8", -8),
        ("12 345", 12345),
        ("12,345.5", "24691/2"),
        ("40%", "2/5"),
        ("1e3", 1000),
    ],
)
def test_expressions(text: str, number: Any) -> None:
    assert value(text) == Fraction(number)


@pytest.mark.parametrize(
    "text",
    [
        *["", "x", "1,2", "12,34", "3.4.5", "5 6", "2024-05-14", "6/7/8", "1/0", "0^{-1}", "0/0"],
        *["(4", "4)", "(1, 2)", "6!!", "(-4)!", r"\sqrt{-1}", r"\frac{1}", "5-", "5–6", "^2", "²"],
        *["1e", "5 (6)"],
    ],
)
def test_what_is_no_single_value(text: str) -> None:
    assert value(text) is None


def test_irrational_values_are_marked_and_hold_many_digits() -> None:
    root = read_value(to_latex("√2"))
    assert root is not None
    assert not root.exact
    assert abs(root.number**2 - 2) < Fraction(1, 10**50)
    tau = read_value(r"2\pi")
    assert tau is not None
    assert math.isclose(tau.number, math.tau)


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
