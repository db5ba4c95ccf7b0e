"""What judges in training earn: orders, hedges, and what a judge earns that looks at nothing."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError
from adjudge_lab.judge_training.judgement_rewards import (
    UNPARSABLE_REWARD,
    PairReward,
    consistent_pair_reward,
    constant_baselines,
    flip_preference,
    pointwise_reward,
)


def better(letter: str) -> str:
    return f"<think>Seen.</think>\n<better>{letter}</better>"


def score(rating: int) -> str:
    return f"<think>Seen.</think>\n<score>{rating}</score>"


NONE = "I cannot decide."

# Verdicts on both orders, each in its own order's letters; what both earn; consistent. Label: A.
BOTH_ORDERS = [
    ("A", "B", 1.0, True),
    ("A", "tie", 0.5625, False),
    ("tie", "B", 0.5625, False),
    ("A", "A", 0.25, False),
    ("B", "B", 0.25, False),
    ("tie", "tie", 0.25, True),
    ("B", "tie", 0.0625, False),
    ("tie", "A", 0.0625, False),
    ("B", "A", 0.0, True),
]


@pytest.mark.parametrize(("ab", "ba", "earned", "consistent"), BOTH_ORDERS)
def test_both_orders_earn_together(ab: str, ba: str, earned: float, consistent: bool) -> None:
    found = consistent_pair_reward(better(ab), better(ba), "A", ties=True)
    assert found == PairReward(earned, earned, consistent)
    swapped = consistent_pair_reward(
        better(flip_preference(ab)), better(flip_preference(ba)), "B", ties=True
    )
    assert swapped == found


@pytest.mark.parametrize(
    ("ab", "ba", "earned"),
    [("tie", "tie", 1.0), ("tie", "A", 0.5625), ("A", "A", 0.25), ("A", "B", 0.25)],
)
def test_both_orders_of_a_tie(ab: str, ba: str, earned: float) -> None:
    found = consistent_pair_reward(better(ab), better(ba), "tie", ties=True)
    assert (found.ab, found.ba) == (earned, earned)


@pytest.mark.parametrize(
    ("ab", "ba", "expected"),
    [
        (better("A"), NONE, PairReward(0.25, UNPARSABLE_REWARD, None)),
        (better("B"), NONE, PairReward(0.0, UNPARSABLE_REWARD, None)),
        (NONE, better("B"), PairReward(UNPARSABLE_REWARD, 0.25, None)),
        (NONE, better("A"), PairReward(UNPARSABLE_REWARD, 0.0, None)),
        (NONE, NONE, PairReward(UNPARSABLE_REWARD, UNPARSABLE_REWARD, None)),
        (better("A"), better("tie"), PairReward(0.25, UNPARSABLE_REWARD, None)),
    ],
)
def test_a_reply_without_a_verdict_costs_itself_most(
    ab: str, ba: str, expected: PairReward
) -> None:
    assert consistent_pair_reward(ab, ba, "A") == expected


def mean(rewards: list[float]) -> float:
    return sum(rewards) / len(rewards)


def test_a_tie_is_no_hedge() -> None:
    tie = better("tie")
    sure = consistent_pair_reward(tie, tie, "A", ties=True).ab
    coins = [consistent_pair_reward(better(a), better(b), "A").ab for a, b in product("AB", "AB")]
    assert sure < mean(coins) == 0.375


def test_constant_ratings_by_hand() -> None:
    found = constant_baselines([0, 0, 1, 4])
    assert found.by_answer == {"0": 0.6875, "1": 0.6875, "2": 0.5625, "3": 0.4375, "4": 0.3125}
    assert (found.best, found.best_reward, found.n) == ("0", 0.6875, 4)
    assert found.chance == pytest.approx(0.5375)


def test_constant_preferences_by_hand() -> None:
    found = constant_baselines(["A", "A", "A", "B"])
    assert found.by_answer == {"A": 0.25, "B": 0.25}
    assert (found.best, found.best_reward, found.chance, found.n) == ("A", 0.25, 0.375, 4)
    tied = constant_baselines(["A", "B", "B", "tie"])
    assert tied.by_answer == {"A": 0.25, "B": 0.25, "tie": 0.4375}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "found none"),
        ([1, "A"], "found int, str"),
        ([True, 1], "found bool, int"),
        ([1.0, 2.0], "found float"),
        ([None], "found NoneType"),
        ([0, 5], "must be an integer from 0 to 4 .found 5"),
        (["A", "a"], "found 'a'"),
    ],
)
def test_labels_that_are_none_are_named(labels: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        constant_baselines(labels)


@pytest.mark.parametrize("label", [5, -1, True, 3.0, "3", None, [3]])
def test_a_label_off_the_scale_is_refused_whatever_the_reply(label: Any) -> None:
    for reply in (score(3), NONE):
        with refuses("label"):
            pointwise_reward(reply, label)


@pytest.mark.parametrize("label", ["C", "", "a", "A or B", 0, None, ["A"], "x" * 10_000])
def test_a_label_that_is_no_letter_is_refused_whatever_the_reply(label: Any) -> None:
    for reply in (better("A"), NONE):
        with refuses("label") as raised:
            consistent_pair_reward(reply, reply, label)
        assert len(str(raised.value)) < 200


def test_a_tie_as_label_needs_ties() -> None:
    with refuses("label"):
        consistent_pair_reward(better("A"), better("B"), "tie")
