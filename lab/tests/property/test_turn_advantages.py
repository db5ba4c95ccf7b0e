"""Advantages of turns: hand-computed, and what must hold for every group."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from adjudge import ErrorKind, GradingFailure
from adjudge.stats import mean_and_std
from adjudge_lab.rl.rollouts import turn_advantages

Turns = list[float] | None
Group = list[tuple[float | None, Turns]]
Case = tuple[list[float | None], list[Turns], list[Turns], float]

EPSILON = 1e-6
reals = st.floats(-100, 100, allow_subnormal=False)


def group(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Group]:
    turns = st.none() | st.lists(numbers, max_size=5)
    return st.lists(st.tuples(st.none() | numbers, turns), max_size=8)


def advantages(rollouts: Group, *, divide: bool = True) -> list[list[float] | None]:
    rewards, turns = [reward for reward, _ in rollouts], [added for _, added in rollouts]
    return turn_advantages(rewards, turns, divide=divide, epsilon=EPSILON)


def stock(rewards: Sequence[float | None]) -> list[float | None]:
    """GRPO's, where a reward that is missing counts nowhere."""
    mean, std = mean_and_std([reward for reward in rewards if reward is not None])
    return [
        None if reward is None else (reward - mean) / (std + EPSILON) if std else 0.0
        for reward in rewards
    ]


HALF = math.sqrt(0.5)

HAND: dict[str, Case] = {
    # rewards, turns, centred, divisor
    "both earn 1, at the start and at the end": (
        [1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]],
        [[0.0, -0.5], [0.0, 0.5]], HALF,
    ),
    "G = 3 2 2 and 1 1 0": (
        [3.0, 1.0], [[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]],
        [[1.0, 0.5, 1.0], [-1.0, -0.5, -1.0]], math.sqrt(2),
    ),
    "what is tied to no turn stays to come": (
        [5.0, 1.0], [[1.0, 0.0], [1.0, 0.0]],
        [[2.0, 2.0], [-2.0, -2.0]], 2 * math.sqrt(2),
    ),
    "one that ended counts with its last turn": (  # G = 2 1 0, 1, and 0 0 in the second turn
        [2.0, 1.0, 0.0], [[1.0, 1.0, 0.0], [1.0], [0.0, 0.0]],
        [[1.0, 1 / 3, -1 / 3], [0.0], [-1.0, -2 / 3]], 1.0,
    ),
    "a missing one counts nowhere": (
        [2.0, None, 0.0], [[2.0, 0.0], [9.0, 9.0], [0.0, 0.0]],
        [[1.0, 0.0], None, [-1.0, 0.0]], math.sqrt(2),
    ),
    "not tied to turns": (  # G = 4 1 and 2, which is 2 in the second turn, too
        [4.0, 2.0], [[3.0, 1.0], None],
        [[1.0, -0.5], [-1.0]], math.sqrt(2),
    ),
    "a penalty passed is out of sight": (
        [-1.0, 0.0, 1.0], [[-1.0, 0.0], [0.0, 0.0], []],
        [[-1.0, -1 / 3], [0.0, -1 / 3], [1.0]], 1.0,
    ),
    "alone": ([7.0, None], [[1.0, 6.0], None], [[0.0, 0.0], None], 0.0),
    "all equal": ([0.1] * 3, [[0.1], None, []], [[0.0], [0.0], [0.0]], 0.0),
    "nobody": ([None, None], [[1.0], None], [None, None], 0.0),
    "no group": ([], [], [], 0.0),
}  # fmt: skip


@pytest.mark.parametrize("case", HAND)
def test_the_advantages_are_those_computed_by_hand(case: str) -> None:
    rewards, turns, centred, divisor = HAND[case]
    for divide in (False, True):
        found = turn_advantages(rewards, turns, divide=divide, epsilon=EPSILON)
        assert [row is None for row in found] == [row is None for row in centred]
        for row, wanted in zip(found, centred, strict=True):
            by = divisor + EPSILON if divide else 1.0
            assert row is None or row == pytest.approx([one / by for one in wanted or []])


@given(st.lists(st.tuples(reals, reals), min_size=1, max_size=8))
def test_with_one_turn_each_it_is_grpo_to_the_last_bit(rollouts: list[tuple[float, float]]) -> None:
    found = advantages([(reward, [added]) for reward, added in rollouts])
    assert found == [[one] for one in stock([reward for reward, _ in rollouts])]


@given(group(reals))
def test_a_missing_rollout_leaves_the_rest_bit_identical(rollouts: Group) -> None:
    found = advantages(rollouts)
    assert [row is None for row in found] == [reward is None for reward, _ in rollouts]
    rest = [rollout for rollout in rollouts if rollout[0] is not None]
    assert [row for row in found if row is not None] == advantages(rest)


@given(group(reals))
def test_no_advantage_is_larger_than_a_group_allows(rollouts: Group) -> None:
    """(n − 1)/√n is GRPO's own bound; a tie of the rewards must not let turns break it."""
    n = sum(reward is not None for reward, _ in rollouts)
    for row in advantages(rollouts):
        for one in row or []:
            assert abs(one) <= (n - 1) / math.sqrt(n) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("rewards", "turns", "said"),
    [
        ([1.0], [], "1 rewards and the turns of 0"),
        ([1.0, math.nan], [None, None], "rollout 1"),
        ([1.0, 2.0], [[1.0, math.inf], None], "rollout 0"),
        ([1e308], [[-1e308, 0.0]], "rollout 0"),
        ([1.7e308, -1.7e308, -1.7e308], [None, None, None], "too far apart"),
    ],
)
def test_what_is_no_group_is_refused(
    rewards: list[float | None], turns: list[Turns], said: str
) -> None:
    with pytest.raises(GradingFailure, match=said) as caught:
        turn_advantages(rewards, turns)
    assert caught.value.kind is ErrorKind.INVALID_INPUT
