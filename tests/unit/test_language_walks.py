"""The draws of the language walks: those of Python's own generator, in its order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numpy", reason="the walks need numpy, of the extra full")

from adjudge.graders.instructions.walks import Walks, _Draws


@given(
    size=st.one_of(st.integers(1, 40), st.sampled_from([1 << 7, (1 << 7) - 1, 4096, 4097, 29_999])),
    taken=st.lists(st.integers(1, 400), max_size=7),
)
@settings(max_examples=60, deadline=None)
def test_they_are_those_of_pythons_generator(size: int, taken: list[int]) -> None:
    theirs, ours = random.Random(0), _Draws(size)
    for n in taken:
        assert ours.normal() == theirs.gauss(0.0, 1.0)
        ahead = ours.ahead(n + 3)
        assert ahead[:n] == [theirs.choice(range(size)) for _ in range(n)]
        ours.take(n)


@pytest.mark.parametrize("size", [1 << bits for bits in range(15)])
def test_no_text_asks_for_more_than_is_held(size: int) -> None:
    """Powers of two throw nearly every second number away: what takes most of the stream."""
    draws = _Draws(size)
    for _ in range(7):
        draws.normal()
        assert len(draws.ahead(1001)) == 1001
        draws.take(1001)


def test_the_language_with_the_larger_shares_wins() -> None:
    walks = Walks([{"a": 900.0, "b": 10.0}, {"a": 10.0, "b": 900.0}, {"c": 1.0}])
    a, b = walks.rows["a"], walks.rows["b"]
    assert walks.likeliest([a, a, a, b]) == 0
    assert walks.likeliest([b] * 5 + [a]) == 1


def test_nothing_is_likely_where_all_are_alike() -> None:
    walks = Walks([{"a": 3.0} for _ in range(12)])
    assert walks.likeliest([0]) is None
