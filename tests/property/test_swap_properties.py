"""What must hold of a swap's numbers whatever the rewards are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.judge_evaluation.diff import comparison
from adjudge.judge_evaluation.diff.comparison import RewardAgreement, compare_rewards
from adjudge.stats import Estimate

REWARDS = st.sampled_from([0.0, 0.25, 0.5, 1.0, -3.0, 0.1]) | st.floats(-10, 10, width=32)
NUMBERS = ("kendall", "within_kendall", "advantage_pearson")  # fmt: skip
SHARES = ("best_changes", "sign_flips")


@st.composite
def studies(draw: st.DrawFn) -> tuple[list[float | None], list[float | None], list[list[int]]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    n = sum(sizes)
    judge = st.lists(REWARDS | st.none(), min_size=n, max_size=n)
    ends = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    members = [list(range(a, b)) for a, b in pairwise(ends)]
    return draw(judge), draw(judge), members


Sums = Sequence[float]


def value_alone(
    rows: Sequence[Sums], statistic: Callable[[Sums], float | None], **_: object
) -> Estimate:
    sums = [math.fsum(column) for column in zip(*rows, strict=True)]
    return Estimate(statistic(sums) if sums else None)


@pytest.fixture(autouse=True)
def no_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values alone: the bootstrap has its own tests."""
    monkeypatch.setattr(comparison, "bootstrap_groups", value_alone)


def values(found: RewardAgreement, names: tuple[str, ...]) -> list[float | None]:
    return [getattr(found, name).value for name in names]


@given(studies(), st.sampled_from([0.5, 2.0, 4.0]), st.integers(-3, 3))
def test_what_compares_orders_does_not_know_the_scale(
    study: tuple[list[float | None], list[float | None], list[list[int]]], scale: float, shift: int
) -> None:
    a, b, members = study
    a = [None if one is None else float(round(one * 4)) for one in a]
    turned = [None if one is None else scale * one + shift for one in a]
    names = (
        "kendall",
        "within_kendall",
        "best_changes",
        "sign_flips",
    )
    before, after = compare_rewards(a, b, members), compare_rewards(turned, b, members)
    assert values(before, names) == values(after, names)


@given(studies())
def test_a_missing_reward_is_as_good_as_a_sample_that_is_not_there(
    study: tuple[list[float | None], list[float | None], list[list[int]]],
) -> None:
    a, b, members = study
    kept = [[at for at in group if a[at] is not None and b[at] is not None] for group in members]
    whole, rest = (
        compare_rewards(a, b, members),
        compare_rewards(a, b, [group for group in kept if group]),
    )
    assert values(whole, NUMBERS + SHARES) == values(rest, NUMBERS + SHARES)
