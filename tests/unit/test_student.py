"""Student's t against tables, and its quantile against its tail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.runs.stats import t_quantile, t_tail


@pytest.mark.parametrize(
    ("p", "freedom", "exact"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.975, 5, 2.5706),
        (0.975, 9, 2.2622),
        (0.995, 4, 4.6041),
        (0.995, 29, 2.7564),
        (0.95, 30, 1.6973),
        (0.975, 39, 2.0227),
        (0.975, 2_000, 1.9612),
        (0.975, 5_000, 1.9604),
    ],
)
def test_quantiles_are_those_of_the_tables(p: float, freedom: int, exact: float) -> None:
    assert t_quantile(p, freedom) == pytest.approx(exact, abs=1e-4)


def test_tails_are_those_of_the_tables() -> None:
    assert 2 * t_tail(2.228, 10) == pytest.approx(0.05, abs=1e-4)
    assert t_tail(0.0, 7) == 0.5


@given(st.floats(0.51, 0.9999), st.integers(1, 1_999))
def test_the_tail_beyond_a_quantile_is_the_rest(p: float, freedom: int) -> None:
    assert t_tail(t_quantile(p, freedom), freedom) == pytest.approx(1 - p, rel=1e-6)
