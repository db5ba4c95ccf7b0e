"""What a judge in training replies, how it is read, and what it earns for every label."""

from __future__ import annotations

from typing import Any

import pytest

from adjudge.graders.llm.trained_judge_card import (
    MAX_REPLY_CHARACTERS,
    JudgementForm,
    ReplyFault,
)
from adjudge.verdicts import UnreadableReply, Verdict
from adjudge_lab.judge_training.judgement_rewards import (
    pointwise_reward,
)

THINK = "<think>It is right but curt.</think>"
TWICE, INSIDE = ReplyFault.THINKING_TWICE, ReplyFault.VERDICT_INSIDE
NOTHING = (-0.25,) * 5
FOR = {
    0: (1.0, 0.75, 0.5, 0.25, 0.0),
    1: (0.75, 1.0, 0.75, 0.5, 0.25),
    2: (0.5, 0.75, 1.0, 0.75, 0.5),
    3: (0.25, 0.5, 0.75, 1.0, 0.75),
    4: (0.0, 0.25, 0.5, 0.75, 1.0),
}
"""Rewards for the labels 0, 1, 2, 3, 4, by rating."""

# Name, reply, how it is read, rewards for the labels 0 to 4.
POINTWISE: list[tuple[str, str, int | ReplyFault, tuple[float, ...]]] = [
    ("as asked", f"{THINK}\n<score>3</score>", 3, FOR[3]),
    ("lowest", f"{THINK}<score>0</score>", 0, FOR[0]),
    ("highest", f"{THINK}\n\n<score>4</score>\n", 4, FOR[4]),
    ("empty thinking", "<think></think><score>2</score>", 2, FOR[2]),
    ("thinking over lines", "<think>\n1 < 2 > 0\n\nSo: 4?\n</think>\n<score>1</score>", 1, FOR[1]),
    ("empty", "", ReplyFault.NO_THINKING, NOTHING),
    ("no thinking", "<score>3</score>", ReplyFault.NO_THINKING, NOTHING),
    ("verdict before", f"<score>3</score>{THINK}", ReplyFault.NO_THINKING, NOTHING),
    ("a mark before", f"\ufeff{THINK}<score>3</score>", ReplyFault.NO_THINKING, NOTHING),
    ("only the end of thinking", "Right.</think><score>3</score>", ReplyFault.NO_THINKING, NOTHING),
    ("unclosed", "<think>It is right <score>3</score>", ReplyFault.UNCLOSED, NOTHING),
    ("invisible end", "<think>Right.</th\u200bink><score>3</score>", ReplyFault.UNCLOSED, NOTHING),
    ("nested", "<think>a <think>b</think> c</think><score>3</score>", TWICE, NOTHING),
    ("twice", f"{THINK}{THINK}<score>3</score>", TWICE, NOTHING),
    ("closed twice", f"{THINK}</think><score>3</score>", TWICE, NOTHING),
    ("inside", "<think>Right: <score>3</score></think>", INSIDE, NOTHING),
    ("inside, spread", "<think>< score : 0></think><score>4</score>", INSIDE, NOTHING),
    ("inside, unseen", "<think><sc\u200bore>0</think><score>4</score>", INSIDE, NOTHING),
    ("no verdict", THINK, ReplyFault.NO_VERDICT, NOTHING),
    ("brackets", f"{THINK}\n[[3]]", ReplyFault.NO_VERDICT, NOTHING),
    ("two", f"{THINK}<score>3</score><score>4</score>", ReplyFault.SEVERAL, NOTHING),
    ("one in another", f"{THINK}<score><score>3</score></score>", ReplyFault.SEVERAL, NOTHING),
    ("words after", f"{THINK}<score>3</score> I hope this helps!", ReplyFault.BESIDE, NOTHING),
    ("words between", f"{THINK}\nScore: <score>3</score>", ReplyFault.BESIDE, NOTHING),
    ("a mark after", f"{THINK}<score>3</score>\u200b", ReplyFault.BESIDE, NOTHING),
    ("ended twice", f"{THINK}<score>3</score></score>", ReplyFault.BESIDE, NOTHING),
    ("too high", f"{THINK}<score>5</score>", ReplyFault.VALUE, NOTHING),
    ("too low", f"{THINK}<score>-3</score>", ReplyFault.VALUE, NOTHING),
    ("nothing within", f"{THINK}<score></score>", ReplyFault.VALUE, NOTHING),
    ("a blank within", f"{THINK}<score> 3</score>", ReplyFault.VALUE, NOTHING),
    ("full width", f"{THINK}<score>３</score>", ReplyFault.VALUE, NOTHING),
    ("a mark within", f"{THINK}<score>3\u200b</score>", ReplyFault.VALUE, NOTHING),
    ("a capital", f"{THINK}<Score>3</Score>", ReplyFault.FORM, NOTHING),
    ("an attribute", f'{THINK}<score value="3"/>', ReplyFault.FORM, NOTHING),
    ("never ends", f"{THINK}<score>3", ReplyFault.FORM, NOTHING),
    ("the other kind", f"{THINK}<better>A</better>", ReplyFault.FORM, NOTHING),
    (
        "too long", f"<think>{'a' * MAX_REPLY_CHARACTERS}</think><score>3</score>",
        ReplyFault.TOO_LONG, NOTHING,
    ),
]  # fmt: skip


def cases(table: list[Any]) -> list[Any]:
    return [pytest.param(*case, id=name) for name, *case in table]


def said(read: Verdict | UnreadableReply) -> Any:
    return read.value if isinstance(read, Verdict) else read.why


def test_the_tables_are_what_they_say() -> None:
    assert len({reply for _, reply, *_ in POINTWISE}) == len(POINTWISE)
    assert {found for _, _, found, _ in POINTWISE} == {*FOR, *ReplyFault}


@pytest.mark.parametrize(("reply", "found", "rewards"), cases(POINTWISE))
def test_a_rating_is_read_to_the_letter(
    reply: str, found: int | ReplyFault, rewards: tuple[float, ...]
) -> None:
    read = JudgementForm(mode="pointwise").read(reply)
    assert said(read) == found
    assert tuple(pointwise_reward(reply, label) for label in range(5)) == rewards
    assert tuple(pointwise_reward(read, label) for label in range(5)) == rewards
