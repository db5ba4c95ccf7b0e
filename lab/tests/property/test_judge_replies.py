"""Rewards in judge training: for any text, never for a form, and the more the nearer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from tests.property.test_verdicts import REPLY

from adjudge.graders.llm import trained_judge_card
from adjudge.graders.llm.trained_judge_card import JudgementForm, ReplyFault
from adjudge.verdicts import UnreadableReply, Verdict, read_choice, read_score
from adjudge_lab.judge_training.judgement_rewards import (
    UNPARSABLE_REWARD,
    ReplyOrVerdict,
    consistent_pair_reward,
    constant_baselines,
    pointwise_reward,
)

pytestmark = pytest.mark.slow  # many examples

RATED, COMPARED = JudgementForm(mode="pointwise"), JudgementForm(mode="pairwise", ties=True)

PIECES = st.sampled_from([
    "<think>", "</think>", "<score>", "</score>", "<better>", "</better>", "<Score>", "<THINK>",
    "</ think>", "<reasoning>", "<score", "0", "3", "4", "5", "-1", "3.0", "A", "B", "tie", "C",
    " ", "\n", "\r\n", "\t", "\u3000", "\u200b", "\ufeff", "\ud800", "３", "Ａ", "words ", "<", ">",
    "<score>3</score>", "<better>B</better>", "<think>x</think>", "[[4]]", '{"score": 4}',
])  # fmt: skip
NEARLY = st.tuples(
    st.sampled_from(["", "", "\n", "<think>", "x"]),
    st.just("<think>"),
    st.one_of(st.text(max_size=30), st.lists(PIECES, max_size=3).map("".join)),
    st.just("</think>"),
    st.sampled_from(["", "\n", "\n\n", " so "]),
    st.sampled_from(["<score>3</score>", "<better>A</better>", "<better>tie</better>", "<score>"]),
    st.sampled_from(["", "", "\n", ".", "</think>", "<score>3</score>"]),
).map("".join)
TEXT = st.one_of(st.lists(PIECES, max_size=12).map("".join), NEARLY, REPLY, st.text())
RATING = st.integers(0, 4)
LETTER = st.sampled_from(["A", "B", "tie"])
THINKING = st.text(max_size=60).filter(lambda text: isinstance(RATED.read(rated(text, 0)), Verdict))
BLANKS = st.text(" \t\r\n", max_size=4)


def rated(thinking: str, rating: object) -> str:
    return f"<think>{thinking}</think>\n<score>{rating}</score>"


def preferred(thinking: str, letter: object) -> str:
    return f"<think>{thinking}</think>\n<better>{letter}</better>"


@given(text=TEXT, opened=st.booleans(), cut=st.booleans(), ties=st.booleans())
def test_every_text_has_one_verdict_or_a_named_fault(
    text: str, opened: bool, cut: bool, ties: bool
) -> None:
    rating = RATED.read(text, opened=opened, cut=cut)
    form = JudgementForm(mode="pairwise", ties=ties)
    letter = form.read(text, opened=opened, cut=cut)
    for read in (rating, letter):
        if isinstance(read, UnreadableReply):
            assert isinstance(read.why, ReplyFault)
            assert str(read.kind) in {"unparsable", "out_of_range", "truncated"}
            assert str(read.kind) != "truncated" or cut
    assert isinstance(rating, UnreadableReply) or (
        type(rating.value) is int and 0 <= rating.value <= 4
    )
    assert isinstance(letter, UnreadableReply) or letter.value in (
        ("A", "B", "tie") if ties else ("A", "B")
    )
    assert isinstance(rating, UnreadableReply) or isinstance(letter, UnreadableReply)


@given(text=TEXT, opened=st.booleans(), cut=st.booleans())
def test_an_accepted_text_is_the_form_sign_by_sign(text: str, opened: bool, cut: bool) -> None:
    read = RATED.read(text, opened=opened, cut=cut)
    whole = "<think>" + text if opened else text
    if isinstance(read, Verdict):
        ending = f"<score>{read.value}</score>"
        bare = whole.strip(" \t\r\n")
        assert bare.startswith("<think>")
        assert bare.endswith(ending)
        between = bare.removesuffix(ending).rstrip(" \t\r\n")
        assert between.endswith("</think>")
        assert [bare.lower().count(tag) for tag in ("<score", "</score", "<better")] == [1, 1, 0]
        assert [bare.lower().count(tag) for tag in ("<think>", "</think>")] == [1, 1]


@given(text=TEXT, ties=st.booleans(), rating=RATING, letter=LETTER)
def test_no_reply_without_a_verdict_earns_what_one_with_a_verdict_does(
    text: str, ties: bool, rating: int, letter: str
) -> None:
    earned = pointwise_reward(text, rating)
    assert (earned == UNPARSABLE_REWARD) is isinstance(RATED.read(text), UnreadableReply)
    assert earned == UNPARSABLE_REWARD or 0 <= earned <= 1
    assert all(pointwise_reward(rated("", other), rating) > UNPARSABLE_REWARD for other in range(5))
    label = letter if ties else "A"
    other = preferred("", "A")
    compared = consistent_pair_reward(text, other, label, ties=ties).ab
    assert (compared == UNPARSABLE_REWARD) is isinstance(
        JudgementForm(mode="pairwise", ties=ties).read(text), UnreadableReply
    )
    assert compared == UNPARSABLE_REWARD or 0 <= compared <= 1


@given(one=TEXT, other=TEXT, label=LETTER)
def test_in_both_orders_a_reply_without_a_verdict_earns_least(
    one: str, other: str, label: str
) -> None:
    found = consistent_pair_reward(one, other, label, ties=True)
    lacking = [isinstance(COMPARED.read(text), UnreadableReply) for text in (one, other)]
    assert [earned == UNPARSABLE_REWARD for earned in found[:2]] == lacking
    assert all(earned == UNPARSABLE_REWARD or 0 <= earned <= 1 for earned in found[:2])
    assert (found.consistent is None) is any(lacking)


SAID: st.SearchStrategy[ReplyOrVerdict] = st.sampled_from(["A", "B", "tie", "C"]).map(
    lambda letter: preferred("", letter)
)


@given(thinking=THINKING, rating=RATING, letter=LETTER)
@example(thinking="It lacks 'a' and 'b', so", rating=1, letter="A")
def test_an_accepted_reply_is_read_alike_when_the_judge_serves(
    thinking: str, rating: int, letter: str
) -> None:
    served: Any = read_score(rated(thinking, rating), low=0, high=4, integer=True)
    assert isinstance(served, Verdict)
    assert served.value == rating
    served = read_choice(preferred(thinking, letter), ["A", "B", "tie"])
    assert isinstance(served, Verdict)
    assert served.value == letter


@given(labels=st.lists(st.sampled_from(["A", "B"]), min_size=1))
def test_no_letter_beats_lots_in_both_orders(labels: list[str]) -> None:
    found = constant_baselines(labels)
    assert found.best_reward == 0.25 < found.chance == 0.375


GROWING = [
    "<think>", "</think>", "<think></think>", "<score>", "</score>", "<score>3</score>", "<", "< ",
    "</", " ", "\n", "\t\r", "a", "<  / ", "\u200b", "<sc\u200bore", "<score>3", "<think", "３",
    "</think> ", "</think><score>3</score>", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("piece", GROWING)
@pytest.mark.parametrize("shape", ["<think>{}</think><score>3</score>", "<think>a</think>{}"])
def test_time_grows_with_the_text_and_no_faster(
    piece: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        trained_judge_card, "MAX_REPLY_CHARACTERS", 2_000_000
    )  # so that it is read at all

    def took(size: int) -> float:
        text = shape.format(piece * (size // len(piece)))
        start = time.process_time()
        RATED.read(text)
        return time.process_time() - start

    # Eight times the text: 8 times as long when linear, 64 times when quadratic.
    assert took(1_000_000) < 30 * max(took(125_000), took(125_000)) + 0.02
