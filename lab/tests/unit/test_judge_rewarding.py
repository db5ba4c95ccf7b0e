"""What batches of replies earn and show, by hand and by brute force."""

from itertools import product
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, strategies as st

from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import JudgementForm, ReplyFault
from adjudge.verdicts import UnreadableReply, Verdict
from adjudge_lab.judge_training.dataset import EncodedRows
from adjudge_lab.judge_training.judge_questions import JudgeQuestion
from adjudge_lab.judge_training.judgement_rewards import (
    UNPARSABLE_REWARD,
    GreedyValidation,
    JudgedQuestion,
    batch_rewards,
    consistent_pair_reward,
    reply_metrics,
    selection_metric,
)

PAIRWISE, POINTWISE = JudgementForm(mode="pairwise"), JudgementForm(mode="pointwise")


def said(value: Any) -> Verdict | UnreadableReply:
    """A reply's verdict; ``None``: it has none."""
    if value is None:
        return UnreadableReply(why=ReplyFault.NO_VERDICT)
    return Verdict(value=value)


def pair(row: int, label: str, given_: list[Any], swapped: list[Any]) -> list[JudgedQuestion]:
    """Both orders of a comparison and what was replied to each."""
    other = {"A": "B", "B": "A", "tie": "tie"}[label]
    return [
        JudgedQuestion(
            JudgeQuestion(messages=[], label=name, row=row, swapped=turned, answer_lengths=lengths),
            list(map(said, replies)),
        )
        for name, turned, lengths, replies in (
            (label, False, (3, 9), given_), (other, True, (9, 3), swapped),
        )
    ]  # fmt: skip


def rating(label: int, *replies: Any, length: int = 5) -> JudgedQuestion:
    question = JudgeQuestion(messages=[], label=label, row=label, answer_lengths=(length,))
    return JudgedQuestion(question, list(map(said, replies)))


VERDICTS = st.lists(st.sampled_from(["A", "B", "tie", None]), min_size=1, max_size=5)


@given(label=st.sampled_from(["A", "B", "tie"]), first=VERDICTS, second=VERDICTS)
def test_crossed_rewards_are_means_over_the_other_orders_replies(
    label: str, first: list[Any], second: list[Any]
) -> None:
    form = JudgementForm(mode="pairwise", ties=True)
    found = batch_rewards(pair(0, label, first, second), form)
    pairs = {
        (i, j): consistent_pair_reward(said(a), said(b), label, ties=True)
        for (i, a), (j, b) in product(enumerate(first), enumerate(second))
    }
    wanted = [
        [fmean(pairs[i, j].ab for j in range(len(second))) for i in range(len(first))],
        [fmean(pairs[i, j].ba for i in range(len(first))) for j in range(len(second))],
    ]
    assert found[0] == pytest.approx(wanted[0])
    assert found[1] == pytest.approx(wanted[1])
    for rewards, replies in zip(found, (first, second), strict=True):
        for reward, reply in zip(rewards, replies, strict=True):
            assert (reward == UNPARSABLE_REWARD) == (reply is None)


def test_rewards_keep_the_order_of_the_batch() -> None:
    one, other = pair(0, "A", ["A"], ["B"]), pair(1, "A", ["B"], ["A"])
    mixed = [other[1], one[0], other[0], one[1]]
    assert batch_rewards(mixed, PAIRWISE) == [[0.0], [1.0], [0.0], [1.0]]


def test_an_order_that_is_missing_or_there_twice_is_refused() -> None:
    whole = pair(7, "A", ["A"], ["B"])
    with pytest.raises(ConfigError, match="row 7: one order of its comparison is not in the batch"):
        batch_rewards(whole[:1], PAIRWISE)
    with pytest.raises(ConfigError, match="row 7: one order of its comparison comes twice"):
        batch_rewards([*whole, whole[0]], PAIRWISE)


def test_measures_of_ratings_by_hand() -> None:
    found = reply_metrics([rating(4, 4, 2, None), rating(1, 2, length=9)], POINTWISE)
    assert found["unread"] == pytest.approx(1 / 4)
    assert found["unread/no_verdict"] == pytest.approx(1 / 4)
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["error"] == pytest.approx((0 + 2 + 1) / 3)
    assert -1 <= found["length_corr"] < 0


def test_measures_of_comparisons_by_hand() -> None:
    judged = [*pair(0, "A", ["A", "B"], ["B", None]), *pair(1, "B", ["A"], ["A"])]
    found = reply_metrics(judged, PAIRWISE)
    assert found["unread"] == pytest.approx(1 / 6)
    # A, B, B of the first (labels A, A, B) and A, A of the second (labels B, A).
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["first_share"] == pytest.approx(3 / 5)
    # Crossed: (A, B) agrees, (B, B) does not; (A, A) does not.
    assert found["consistency"] == pytest.approx(1 / 3)


def test_a_reply_without_a_verdict_is_never_a_choice() -> None:
    for judged, form in (
        (pair(0, "A", [None, None], [None]), PAIRWISE),
        ([rating(0, None), rating(4, None)], POINTWISE),
    ):
        found = reply_metrics(judged, form)
        assert found == {"unread": 1.0, "unread/no_verdict": 1.0}
        assert all(
            reward == UNPARSABLE_REWARD for row in batch_rewards(judged, form) for reward in row
        )
    with_one = reply_metrics(pair(0, "A", ["A"], [None]), PAIRWISE)
    assert (with_one["accuracy"], with_one["first_share"]) == (1.0, 1.0)
    assert "consistency" not in with_one


def test_the_best_step_has_the_least_error_or_the_most_right_in_both_orders() -> None:
    assert selection_metric([rating(4, 3), rating(1, None)], POINTWISE) == pytest.approx(
        -(1 + 4) / 2
    )
    judged = [
        *pair(0, "A", ["A"], ["B"]),
        *pair(1, "A", ["A"], ["A"]),
        *pair(2, "A", ["A"], [None]),
        *pair(3, "B", ["A"], ["B"]),
    ]
    assert selection_metric(judged, PAIRWISE) == pytest.approx(1 / 4)


def test_a_subsets_accuracy_is_of_the_replies_that_have_a_verdict() -> None:
    ratings = [rating(2, 2), rating(2, None), rating(1, None), rating(0, 3)]
    nothing: EncodedRows[JudgeQuestion] = EncodedRows()
    asks = GreedyValidation(nothing, POINTWISE, most=1, size=1, opened=False)
    assert asks.subsets(ratings) == {"all": {"rows": 4, "unread": 0.5, "accuracy": 0.5}}
    assert asks.subsets(ratings[1:3]) == {"all": {"rows": 2, "unread": 1.0}}
    whole = asks.metrics(ratings)
    assert (whole["accuracy"], whole["unread"]) == (0.5, 0.5)
    compares = GreedyValidation(nothing, PAIRWISE, most=1, size=1, opened=False)
    found = compares.subsets(pair(0, "A", ["A"], [None]) + pair(1, "B", ["A"], ["B"]))
    assert found == {"all": {"rows": 4, "unread": 0.25, "accuracy": pytest.approx(1 / 3)}}
