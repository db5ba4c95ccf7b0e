"""How two judges compare, against numbers by hand."""

from __future__ import annotations

import msgspec
import pytest

from adjudge.judge_evaluation.diff.numbers import compare_rewards
from adjudge.stats.agreement import concordance_shares

GROUPS = [[0, 1, 2], [3, 4], [5, 6]]
A = [1.0, 2.0, 3.0, 1.0, 1.0, 0.0, None]
B = [3.0, 1.0, 2.0, 2.0, 1.0, 1.0, 5.0]


def test_two_small_judges_by_hand() -> None:
    found = compare_rewards(A, B, GROUPS)
    assert (found.samples, found.common, found.groups, found.all_groups) == (7, 6, 2, 3)
    assert msgspec.json.encode(found)  # Python's own numbers, not numpy's
    # Group 1: best of A is its third, of B its first. Group 2: A ties, so B's best is among A's.
    assert found.best_changes.value == pytest.approx(1 / 2)
    # Advantages: A −1, 0, 1 | 0, 0; B 1, −1, 0 | +, −.
    assert found.sign_flips.value == pytest.approx(1 / 5)
    # Pairs of group 1: (1,2) −, (1,3) −, (2,3) +; group 2 adds one pair that A ties.
    assert found.within_kendall.value == pytest.approx(-1 / (3 * 4) ** 0.5)


def test_judges_that_never_judged_the_same_sample_have_no_numbers() -> None:
    found = compare_rewards([1.0, None, 2.0, None], [None, 1.0, None, 0.0], [[0, 1], [2, 3]])
    assert (found.common, found.groups) == (0, 0)
    assert found.kendall.value is found.within_kendall.value is found.best_changes.value is None


def test_the_shares_of_rank_statistics_are_derivatives() -> None:
    """Weighting one sample twice changes the whole by about its share; small weights exactly so."""
    x, y = [1.0, 2.0, 2.0, 5.0, 3.0], [2.0, 1.0, 3.0, 3.0, 0.0]

    def sign(one: float) -> int:
        return (one > 0) - (one < 0)

    def whole(weights: list[float]) -> float:
        n = range(len(x))
        return sum(
            weights[i] * weights[j] * sign(x[i] - x[j]) * sign(y[i] - y[j]) / 2
            for i in n
            for j in n
        )

    step = 1e-6
    for place in range(len(x)):
        up = [1.0 + step * (at == place) for at in range(len(x))]
        down = [1.0 - step * (at == place) for at in range(len(x))]
        slope = (whole(up) - whole(down)) / (2 * step)
        assert concordance_shares(x, y)[place][0] == pytest.approx(slope, abs=1e-5)
