"""What a judge's reply earns in training, and what a judge that looks at nothing would earn.

Elsewhere a reply without a verdict is missing. Here the judge is the policy and its reply the
action, so having no verdict is its own fault and has a price: :data:`UNPARSABLE`, the least there
is, whatever the label. With d the distance of verdict and label, as a share of their scale:

=====================  ================  ======================================================
pointwise              1 − d             1, 0.75, 0.5, 0.25, 0: a step costs the same everywhere;
                                         under doubt the best answer is the labels' median
pairwise               (1 − d)²          right 1, off by a tie 0.25, wrong 0
pairwise, both orders  (1 − mean d)²     right twice 1, right once 0.25, wrong twice 0
no verdict             −0.25             one step of the pointwise scale below the worst verdict
=====================  ================  ======================================================

*Why squares.* A tie where one answer is better, and the same letter in both orders, are half right.
Squared, they earn 0.25, which is less than a coin earns (0.5), so neither pays. Over both orders,
where nothing is a tie, the mean reward is the accuracy less a quarter of the share of inconsistent
pairs: always saying A earns 0.25 on every pair, a coin for each order 0.375, one coin for both 0.5.
Right once still earns more than wrong twice, so that each verdict that is put right is felt, also
by a judge that is wrong throughout.

*Why only a step below.* Any gap makes a verdict the better choice. GRPO divides by the spread
within a group, so a wide gap would press together what tells the group's verdicts apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import fsum
from typing import Any, NamedTuple

import msgspec

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.judge_training.data.rows import RATINGS
from adjudge.judge_training.generative.replies import (
    PREFERENCES,
    TIE,
    read_preference,
    read_rating,
)
from adjudge.verdicts import Unread, Verdict

__all__ = [
    "UNPARSABLE",
    "Baselines",
    "PairReward",
    "consistent_pair_reward",
    "constant_baselines",
    "flipped",
    "pairwise_reward",
    "pointwise_reward",
]

UNPARSABLE = -0.25
"""What a reply without a verdict earns; every verdict earns 0 to 1."""

_PLACES: Mapping[str, float] = {"A": 0.0, TIE: 0.5, "B": 1.0}
_FLIPPED: Mapping[str, str] = {"A": "B", "B": "A", TIE: TIE}

Reply = str | Verdict | Unread
"""A reply's text, or what :func:`read_rating` or :func:`read_preference` made of it."""


class PairReward(NamedTuple):
    """What the two replies to one pair earn, −0.25 to 1; see :func:`consistent_pair_reward`.

    ``ab``: the reply to the order as given; ``ba``: to the swapped one. ``consistent``: whether
    both name the same answer; ``None`` where one has no verdict.
    """

    ab: float
    ba: float
    consistent: bool | None


class Baselines(msgspec.Struct, frozen=True, kw_only=True):
    """What replies earn, in the mean over ``n`` labels, that depend on no answer.

    ``by_answer``: always the same verdict, by verdict (``"0"`` to ``"4"``, ``"A"``, ``"B"``, and
    ``"tie"`` where offered). ``best``: the first of those that earn most; ``best_reward``: how
    much. ``chance``: every verdict equally often, drawn anew for each reply.
    """

    by_answer: dict[str, float]
    best: str
    best_reward: float
    chance: float
    n: int


def pointwise_reward(reply: Reply, label: int, *, opened: bool = False) -> float:
    """1 − ``|rating − label|`` / 4, from 0 to 1; :data:`UNPARSABLE` without a verdict.

    ``label``: an integer from 0 to 4. ``opened``: as for :func:`read_rating`, unused where
    ``reply`` was read already. Raises :class:`~adjudge.errors.ConfigError` for another label.

    >>> pointwise_reward("<think>Half of it is right.</think><score>2</score>", 3)
    0.75
    >>> pointwise_reward("I would say 2.", 3)
    -0.25
    """
    _check_rating(label)
    read = read_rating(reply, opened=opened) if isinstance(reply, str) else reply
    return UNPARSABLE if isinstance(read, Unread) else _rated(read.value, label)


def pairwise_reward(reply: Reply, label: str, *, ties: bool = False, opened: bool = False) -> float:
    """1 for the label, 0 for the other answer; :data:`UNPARSABLE` without a verdict.

    ``label``: ``"A"``, ``"B"``, or ``"tie"`` if ``ties``, which must say the same of the prompt; a
    tie in place of an answer, or an answer in place of a tie, earns 0.25. Raises as
    :func:`pointwise_reward`.

    >>> pairwise_reward("<think>B is right.</think><better>B</better>", "B")
    1.0
    """
    _check_preference(label, ties)
    read = read_preference(reply, ties=ties, opened=opened) if isinstance(reply, str) else reply
    return UNPARSABLE if isinstance(read, Unread) else _preferred(read.value, label)


def consistent_pair_reward(
    reply_ab: Reply, reply_ba: Reply, label: str, *, ties: bool = False, opened: bool = False
) -> PairReward:
    """What replies to both orders of one pair earn together: the square of their mean closeness.

    ``label``: of the order as given, ``reply_ab``'s; ``reply_ba`` was asked with A and B swapped.

    From most to least: right twice 1; right and a tie 0.5625; right once, which is the same letter
    twice, 0.25, and a tie twice the same; a tie and wrong 0.0625; wrong twice 0. Consistent and
    wrong stands below inconsistent, half of whose verdicts are right. Where the label is a tie, tie
    twice earns 1, once 0.5625, else 0.25.

    Both replies earn this, unless one has no verdict. That one earns :data:`UNPARSABLE`, and the
    other the square of half its own closeness (right 0.25, wrong 0): more than a reply without a
    verdict, and never more than beside one with a verdict. Raises as :func:`pairwise_reward`.

    >>> a, b = (f"<think>Seen.</think><better>{letter}</better>" for letter in "AB")
    >>> consistent_pair_reward(a, b, "A")
    PairReward(ab=1.0, ba=1.0, consistent=True)
    >>> consistent_pair_reward(a, a, "A")
    PairReward(ab=0.25, ba=0.25, consistent=False)
    >>> consistent_pair_reward(a, "A, I think.", "A")
    PairReward(ab=0.25, ba=-0.25, consistent=None)
    """
    _check_preference(label, ties)
    said: list[str | None] = []
    for reply in (reply_ab, reply_ba):
        read = read_preference(reply, ties=ties, opened=opened) if isinstance(reply, str) else reply
        said.append(None if isinstance(read, Unread) else read.value)
    first, second = said[0], None if said[1] is None else flipped(said[1])
    earned = _squared(_close(first, label), _close(second, label))
    return PairReward(
        ab=UNPARSABLE if first is None else earned,
        ba=UNPARSABLE if second is None else earned,
        consistent=None if first is None or second is None else first == second,
    )


def constant_baselines(
    labels: Sequence[int] | Sequence[str], *, ties: bool | None = None, both_orders: bool = False
) -> Baselines:
    """What a judge earns that always says the same, for each verdict, and one that draws lots.

    ``labels``: all integers from 0 to 4, or all ``"A"``, ``"B"`` and ``"tie"``. ``ties``: whether a
    tie is offered; ``None``: if a label is one. ``both_orders``: by :func:`consistent_pair_reward`
    rather than :func:`pairwise_reward`. A curve says something only above ``best_reward``.

    Raises :class:`~adjudge.errors.ConfigError` for no labels, and for others.

    >>> constant_baselines([0, 4, 4, 4]).by_answer
    {'0': 0.25, '1': 0.375, '2': 0.5, '3': 0.625, '4': 0.75}
    >>> paired = constant_baselines(["A", "A", "A", "B"], both_orders=True)
    >>> paired.by_answer, paired.chance
    ({'A': 0.25, 'B': 0.25}, 0.375)
    """
    kinds = {type(label) for label in labels}
    if kinds not in ({int}, {str}):  # by type, for True counts as 1
        found = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
        raise ConfigError(f"labels: found {found}, must be integers from 0 to 4, or A, B and tie")
    counts: Counter[Any] = Counter(labels)
    pairs = kinds == {str}
    tied = TIE in counts if ties is None else ties
    for label in counts:
        if pairs:
            _check_preference(label, tied)
        else:
            _check_rating(label)
    if both_orders and not pairs:
        raise ConfigError("both_orders: the labels are ratings of one answer, which has no order")
    offered: tuple[Any, ...] = (*PREFERENCES, *((TIE,) if tied else ())) if pairs else RATINGS
    single: Callable[[Any, Any], float] = _preferred if pairs else _rated

    def earned(first: Any, second: Any, label: Any) -> float:
        if not both_orders:
            return single(first, label)
        return _squared(_close(first, label), _close(_FLIPPED[second], label))

    def mean(answers: Sequence[tuple[Any, Any]]) -> float:
        each = (times * earned(*said, label) for said in answers for label, times in counts.items())
        return fsum(each) / (counts.total() * len(answers))

    by_answer = {str(answer): mean([(answer, answer)]) for answer in offered}
    best = max(by_answer, key=by_answer.__getitem__)
    return Baselines(
        by_answer=by_answer,
        best=best,
        best_reward=by_answer[best],
        chance=mean(list(product(offered, repeat=2))),
        n=counts.total(),
    )


def flipped(verdict: str) -> str:
    """The same preference with A and B swapped: ``A`` for ``B``, ``B`` for ``A``; a tie stays.

    >>> flipped("A"), flipped("tie")
    ('B', 'tie')
    """
    return _FLIPPED[verdict]


def _rated(rating: int, label: int) -> float:
    return 1 - abs(rating - label) / RATINGS[-1]


def _close(verdict: str | None, label: str) -> float:
    """1 for the label, 0.5 for a tie off it, 0 for the other answer and for none."""
    return 0.0 if verdict is None else 1 - abs(_PLACES[verdict] - _PLACES[label])


def _preferred(verdict: str, label: str) -> float:
    close = _close(verdict, label)
    return close * close


def _squared(first: float, second: float) -> float:
    mean = (first + second) / 2
    return mean * mean


def _check_rating(label: Any) -> None:
    if not isinstance(label, int) or isinstance(label, bool) or label not in RATINGS:
        raise ConfigError(
            f"label: found {label!r:.40}, must be an integer from 0 to 4; bring other scales to it "
            "before training"
        )


def _check_preference(label: Any, ties: bool) -> None:
    allowed = (*PREFERENCES, TIE) if ties else PREFERENCES
    if isinstance(label, str) and label in allowed:
        return
    if label == TIE:
        raise ConfigError("label: found 'tie', but no tie is offered: ties = true, or drop the row")
    hint = nearest(label, allowed) if isinstance(label, str) and len(label) < 40 else ""
    raise ConfigError(f"label: found {label!r:.40}{hint} (allowed: {', '.join(allowed)})")
