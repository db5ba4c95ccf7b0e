"""Rewards and metrics of a trained judge's replies; its greedy validation on held-out questions.

Elsewhere a reply without a verdict is missing. Here the judge is the policy and its reply the
action, so having no verdict is its own fault and has a price: :data:`UNPARSABLE_REWARD`, the least
there is, whatever the label. With d the distance of verdict and label, as a share of their scale:

=====================  ================  ======================================================
pointwise              1 − d             1, 0.75, 0.5, 0.25, 0: a step costs the same everywhere;
                                         under doubt the best answer is the labels' median
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

Metrics say what a batch of replies shows about the judge, and what one would earn that looks at
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from math import fsum
from typing import Any, NamedTuple

import msgspec

from adjudge.config import check_allowed
from adjudge.datasets.rows import RATINGS
from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import (
    PREFERENCE_VERDICTS,
    TIE_VERDICT,
    JudgementForm,
    ReplyFault,
)
from adjudge.verdicts import UnreadableReply, Verdict
from adjudge_lab.judge_training.base_model import AutocastFactory, greedy_replies
from adjudge_lab.judge_training.calibration import pair_length_correlation
from adjudge_lab.judge_training.dataset import EncodedRows
from adjudge_lab.judge_training.judge_questions import JudgeQuestion

UNPARSABLE_REWARD = -0.25
"""What a reply without a verdict earns; every verdict earns 0 to 1."""

_PREFERENCE_POSITION: Mapping[str, float] = {"A": 0.0, TIE_VERDICT: 0.5, "B": 1.0}
_FLIPPED_PREFERENCE: Mapping[str, str] = {"A": "B", "B": "A", TIE_VERDICT: TIE_VERDICT}

ReplyOrVerdict = str | Verdict | UnreadableReply
"""A reply's text, or what :meth:`JudgementForm.read` made of it."""


class PairReward(NamedTuple):
    """What the two replies to one pair earn, −0.25 to 1; see :func:`consistent_pair_reward`.

    ``ab``: the reply to the order as given; ``ba``: to the swapped one. ``consistent``: whether
    both name the same answer; ``None`` where one has no verdict.
    """

    ab: float
    ba: float
    consistent: bool | None


class ConstantBaselines(msgspec.Struct, frozen=True, kw_only=True):
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


def pointwise_reward(reply: ReplyOrVerdict, label: int, *, opened: bool = False) -> float:
    """1 − ``|rating − label|`` / 4, from 0 to 1; :data:`UNPARSABLE_REWARD` without a verdict.

    ``label``: an integer from 0 to 4. ``opened``: as for :meth:`JudgementForm.read`, unused where
    ``reply`` was read already. Raises :class:`~adjudge.errors.ConfigError` for another label.

    >>> pointwise_reward("<think>Half of it is right.</think><score>2</score>", 3)
    0.75
    >>> pointwise_reward("I would say 2.", 3)
    -0.25
    """
    _check_rating(label)
    form = JudgementForm(mode="pointwise")
    read = form.read(reply, opened=opened) if isinstance(reply, str) else reply
    return (
        UNPARSABLE_REWARD
        if isinstance(read, UnreadableReply)
        else _rating_reward(read.value, label)
    )


def consistent_pair_reward(
    reply_ab: ReplyOrVerdict,
    reply_ba: ReplyOrVerdict,
    label: str,
    *,
    ties: bool = False,
    opened: bool = False,
) -> PairReward:
    """What replies to both orders of one pair earn together: the square of their mean closeness.

    ``label``: of the order as given, ``reply_ab``'s; ``reply_ba`` was asked with A and B swapped.

    From most to least: right twice 1; right and a tie 0.5625; right once, which is the same letter
    twice, 0.25, and a tie twice the same; a tie and wrong 0.0625; wrong twice 0. Consistent and
    wrong earns less than inconsistent, which has half of the verdicts right. Where the label is a
    tie, tie twice earns 1, once 0.5625, else 0.25.

    Both replies earn this, unless one has no verdict. That one earns :data:`UNPARSABLE_REWARD`, and
    the other the square of half its own closeness (right 0.25, wrong 0): more than a reply without
    a verdict, and never more than beside one with a verdict. Raises as :func:`pointwise_reward`.

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
    form = JudgementForm(mode="pairwise", ties=ties)
    for reply in (reply_ab, reply_ba):
        read = form.read(reply, opened=opened) if isinstance(reply, str) else reply
        said.append(None if isinstance(read, UnreadableReply) else read.value)
    first, second = said[0], None if said[1] is None else flip_preference(said[1])
    earned = _squared_mean(
        _preference_closeness(first, label), _preference_closeness(second, label)
    )
    return PairReward(
        ab=UNPARSABLE_REWARD if first is None else earned,
        ba=UNPARSABLE_REWARD if second is None else earned,
        consistent=None if first is None or second is None else first == second,
    )


def constant_baselines(
    labels: Sequence[int] | Sequence[str], *, ties: bool | None = None
) -> ConstantBaselines:
    """What a judge earns that always says the same, for each verdict, and one that draws lots.

    ``labels``: all integers from 0 to 4, or all ``"A"``, ``"B"`` and ``"tie"``, of comparisons in
    both orders. ``ties``: whether a tie is offered; ``None``: if a label is one. A curve says
    something only above ``best_reward``.

    Raises :class:`~adjudge.errors.ConfigError` for no labels, and for others.

    >>> constant_baselines([0, 4, 4, 4]).by_answer
    {'0': 0.25, '1': 0.375, '2': 0.5, '3': 0.625, '4': 0.75}
    >>> paired = constant_baselines(["A", "A", "A", "B"])
    >>> paired.by_answer, paired.chance
    ({'A': 0.25, 'B': 0.25}, 0.375)
    """
    kinds = {type(label) for label in labels}
    if kinds not in ({int}, {str}):  # by type, for True counts as 1
        found = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
        raise ConfigError(f"labels: must be integers from 0 to 4, or A, B and tie (found {found})")
    counts: Counter[Any] = Counter(labels)
    pairs = kinds == {str}
    tied = TIE_VERDICT in counts if ties is None else ties
    for label in counts:
        if pairs:
            _check_preference(label, tied)
        else:
            _check_rating(label)
    offered: tuple[Any, ...] = (
        (*PREFERENCE_VERDICTS, *((TIE_VERDICT,) if tied else ())) if pairs else RATINGS
    )

    def earned(first: Any, second: Any, label: Any) -> float:
        if not pairs:
            return _rating_reward(first, label)
        return _squared_mean(
            _preference_closeness(first, label),
            _preference_closeness(_FLIPPED_PREFERENCE[second], label),
        )

    def mean(answers: Sequence[tuple[Any, Any]]) -> float:
        each = (times * earned(*said, label) for said in answers for label, times in counts.items())
        return fsum(each) / (counts.total() * len(answers))

    by_answer = {str(answer): mean([(answer, answer)]) for answer in offered}
    best = max(by_answer, key=by_answer.__getitem__)
    return ConstantBaselines(
        by_answer=by_answer,
        best=best,
        best_reward=by_answer[best],
        chance=mean(list(product(offered, repeat=2))),
        n=counts.total(),
    )


def flip_preference(verdict: str) -> str:
    """The same preference with A and B swapped: ``A`` for ``B``, ``B`` for ``A``; a tie stays.

    >>> flip_preference("A"), flip_preference("tie")
    ('B', 'tie')
    """
    return _FLIPPED_PREFERENCE[verdict]


def _rating_reward(rating: int, label: int) -> float:
    return 1 - abs(rating - label) / RATINGS[-1]


def _preference_closeness(verdict: str | None, label: str) -> float:
    """1 for the label, 0.5 for a tie off it, 0 for the other answer and for none."""
    return (
        0.0
        if verdict is None
        else 1 - abs(_PREFERENCE_POSITION[verdict] - _PREFERENCE_POSITION[label])
    )


def _squared_mean(first: float, second: float) -> float:
    mean = (first + second) / 2
    return mean * mean


def _check_rating(label: Any) -> None:
    if not isinstance(label, int) or isinstance(label, bool) or label not in RATINGS:
        raise ConfigError(
            f"label: must be an integer from 0 to 4 (found {label!r:.40}). Convert other scales "
            "before training."
        )


def _check_preference(label: Any, ties: bool) -> None:
    allowed = (*PREFERENCE_VERDICTS, TIE_VERDICT) if ties else PREFERENCE_VERDICTS
    if label == TIE_VERDICT and TIE_VERDICT not in allowed:
        raise ConfigError(
            "label: ties are not offered (found 'tie'). Set ties = true, or drop the row."
        )
    check_allowed("label", label, allowed)


ReadReply = Verdict | UnreadableReply


class JudgedQuestion(msgspec.Struct, frozen=True):
    """A question and the replies to it, read: as many as were drawn."""

    question: JudgeQuestion
    replies: Sequence[ReadReply]


def batch_rewards(judged: Sequence[JudgedQuestion], form: JudgementForm) -> list[list[float]]:
    """Each reply's reward, −0.25 to 1, in the order of ``judged``.

    A comparison's reply earns the mean of
    :func:`~adjudge_lab.judge_training.judgement_rewards.consistent_pair_reward` over all replies to
    the other order: what it earns beside one of them drawn at random, without that draw's noise.
    Raises :class:`~adjudge.errors.ConfigError` where one order of a comparison is missing, for
    nothing says what a verdict on one order alone is worth.
    """
    if form.mode == "pointwise":
        return [
            [pointwise_reward(reply, int(one.question.label)) for reply in one.replies]
            for one in judged
        ]
    rewards: list[list[float]] = [[] for _ in judged]
    for given, other in _order_pairs(judged):
        first, second = judged[given], judged[other]
        label = str(first.question.label)
        crossed = [
            [consistent_pair_reward(ab, ba, label, ties=form.ties) for ba in second.replies]
            for ab in first.replies
        ]
        rewards[given] = [_mean([pair.ab for pair in row]) for row in crossed]
        rewards[other] = [
            _mean([row[place].ba for row in crossed]) for place in range(len(second.replies))
        ]
    return rewards


def reply_metrics(judged: Sequence[JudgedQuestion], form: JudgementForm) -> dict[str, float]:
    """What replies show about their judge, each a mean; what has no cases is absent.

    ``accuracy``: the share of verdicts that are the label; ``error`` (pointwise): the mean distance
    to it; ``consistency`` (pairwise): of pairs of replies to both orders of one comparison, both
    with a verdict, the share that names the same answer; ``first_share``: the share of verdicts for
    what stood first, ties left out; ``length_corr``: of rating, or preference, and length of the
    answers. ``unread``: the share of replies without a verdict, which no other measure counts, and
    ``unread/FAULT`` why.
    """
    replies = [(one.question, reply) for one in judged for reply in one.replies]
    read = [(question, reply.value) for question, reply in replies if isinstance(reply, Verdict)]
    found = {"unread": 1 - len(read) / len(replies)} if replies else {}
    faults = Counter(reply.why for _, reply in replies if isinstance(reply, UnreadableReply))
    found |= {f"unread/{_metric_slug(why)}": count / len(replies) for why, count in faults.items()}
    if not read:
        return found
    found["accuracy"] = sum(value == question.label for question, value in read) / len(read)
    if form.mode == "pointwise":
        distances = [abs(value - int(question.label)) for question, value in read]
        found["error"] = fsum(distances) / len(read)
    else:
        found |= _pair_metrics(judged, [value for _, value in read])
    correlation = _length_correlation(read, form)
    return found if correlation is None else {**found, "length_corr": correlation}


def question_baselines(
    questions: Sequence[JudgeQuestion], form: JudgementForm
) -> ConstantBaselines:
    """What judges earn on these questions that look at no answer: what curves are held against.

    Of a comparison the label of the order as given counts; raises :class:`ConfigError` for none.
    """
    labels: list[Any] = [one.label for one in questions if not one.swapped]
    if form.mode == "pointwise":
        return constant_baselines(labels)
    return constant_baselines(labels, ties=form.ties)


def _order_pairs(judged: Sequence[JudgedQuestion]) -> list[tuple[int, int]]:
    """Places of both orders of each comparison: as given, then swapped."""
    places: dict[tuple[int, bool], int] = {}
    for place, one in enumerate(judged):
        key = (one.question.row, one.question.swapped)
        if places.setdefault(key, place) != place:
            raise ConfigError(f"row {one.question.row}: one order of its comparison comes twice")
    rows = {row for row, _ in places}
    if alone := [row for row in rows if len({(row, False), (row, True)} & places.keys()) < 2]:
        raise ConfigError(f"row {alone[0]}: one order of its comparison is not in the batch")
    return [(places[row, False], places[row, True]) for row in sorted(rows)]


def _pair_metrics(judged: Sequence[JudgedQuestion], verdicts: Sequence[Any]) -> dict[str, float]:
    named = [value for value in verdicts if value in ("A", "B")]
    found = {"first_share": sum(value == "A" for value in named) / len(named)} if named else {}
    same = [
        ab.value == flip_preference(ba.value)
        for given, other in _order_pairs(judged)
        for ab in judged[given].replies
        for ba in judged[other].replies
        if isinstance(ab, Verdict) and isinstance(ba, Verdict)
    ]
    return {**found, "consistency": sum(same) / len(same)} if same else found


_PREFERENCE: Mapping[str, float] = {"A": 1.0, "tie": 0.0, "B": -1.0}


def _length_correlation(
    read: Sequence[tuple[JudgeQuestion, Any]], form: JudgementForm
) -> float | None:
    if form.mode == "pairwise":
        scores = [_PREFERENCE[value] for _, value in read]
        lengths = [float(one.answer_lengths[0] - one.answer_lengths[1]) for one, _ in read]
        return pair_length_correlation(scores, lengths)
    ratings = [float(value) for _, value in read]
    lengths = [float(one.answer_lengths[0]) for one, _ in read]
    return pair_length_correlation(_center(ratings), _center(lengths))


def _center(values: Sequence[float]) -> list[float]:
    mean = _mean(values)
    return [value - mean for value in values]


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _metric_slug(why: str) -> str:
    """A fault's name as part of a metric's: ``no_verdict``."""
    return ReplyFault(why).name.lower()


SELECTION_METRICS = {
    "pointwise": "lowest mean error, a reply without a verdict counted as the largest",
    "pairwise": "most comparisons right in both orders",
}
"""By what the best step is chosen."""


class GreedyValidation:
    """Held-out questions and how a judge is asked them.

    ``most``: tokens of a reply; ``size``: prompts at once. ``opened``: the chat template opens the
    thinking.
    """

    def __init__(
        self,
        questions: EncodedRows[JudgeQuestion],
        form: JudgementForm,
        *,
        most: int,
        size: int,
        opened: bool,
    ) -> None:
        self.questions = questions.rows
        self.form = form
        self._prompts = [sides[0] for sides in questions.ids]
        self._most, self._size, self._opened = most, size, opened

    def ask_questions(
        self, model: Any, tokenizer: Any, autocast: AutocastFactory
    ) -> list[JudgedQuestion]:
        """Each question with the judge's likeliest reply, read."""
        replies = greedy_replies(
            model, tokenizer, self._prompts, most=self._most, size=self._size, autocast=autocast
        )
        return [
            JudgedQuestion(question, [self.form.read(text, opened=self._opened, cut=cut)])
            for question, (text, cut) in zip(self.questions, replies, strict=True)
        ]

    def metrics(self, judged: Sequence[JudgedQuestion]) -> dict[str, float]:
        """:func:`reply_metrics`, the mean reward, and what the best step is chosen by."""
        rewards = [one for row in batch_rewards(judged, self.form) for one in row]
        found = {**reply_metrics(judged, self.form), "reward_mean": fsum(rewards) / len(rewards)}
        name = "both_right" if self.form.mode == "pairwise" else "error_or_unread"
        return {**found, name: abs(selection_metric(judged, self.form))}

    def subsets(self, judged: Sequence[JudgedQuestion]) -> dict[str, dict[str, Any]]:
        """By subset: how many questions, and ``unread`` and ``accuracy`` as in :meth:`metrics`."""
        parts: dict[str, list[JudgedQuestion]] = {}
        for one in judged:
            parts.setdefault(one.question.subset or "all", []).append(one)
        found: dict[str, dict[str, Any]] = {}
        for name, part in sorted(parts.items()):
            measured = reply_metrics(part, self.form)
            of_read: dict[str, Any] = {
                key: measured[key] for key in ("unread", "accuracy") if key in measured
            }
            found[name] = {"rows": len(part), **of_read}
        return found


def selection_metric(judged: Sequence[JudgedQuestion], form: JudgementForm) -> float:
    """The measure that the best step has most of; :data:`SELECTION_METRICS` says which.

    Pointwise it is minus the mean error, where a reply without a verdict counts 4; pairwise the
    share of comparisons that are right in both orders, which one without a verdict is not.
    """
    if form.mode == "pointwise":
        return -fsum(_question_error(one) for one in judged) / len(judged)
    right: dict[int, bool] = {}
    for one in judged:
        reply = one.replies[0]
        hit = isinstance(reply, Verdict) and reply.value == one.question.label
        right[one.question.row] = right.get(one.question.row, True) and hit
    return sum(right.values()) / len(right)


def _question_error(one: JudgedQuestion) -> float:
    reply = one.replies[0]
    if isinstance(reply, UnreadableReply):
        return float(RATINGS[-1])
    return float(abs(reply.value - int(one.question.label)))
