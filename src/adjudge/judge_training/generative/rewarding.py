"""What a batch of replies earns, and what it shows about the judge that wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_training.generative.questions import Form, Question
from adjudge.judge_training.generative.replies import Fault
from adjudge.judge_training.generative.rewards import (
    Baselines,
    consistent_pair_reward,
    constant_baselines,
    flipped,
    pointwise_reward,
)
from adjudge.judge_training.length_corr import length_correlation
from adjudge.verdicts import Unread, Verdict

__all__ = ["Judged", "baselines_of", "measures_of", "rewards_of"]

Read = Verdict | Unread


class Judged(msgspec.Struct, frozen=True):
    """A question and the replies to it, read: as many as were drawn."""

    question: Question
    replies: Sequence[Read]


def rewards_of(judged: Sequence[Judged], form: Form) -> list[list[float]]:
    """Each reply's reward, −0.25 to 1, in the order of ``judged``.

    A comparison's reply earns the mean of
    :func:`~adjudge.judge_training.generative.rewards.consistent_pair_reward` over all replies to
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
    for given, other in _orders(judged):
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


def measures_of(judged: Sequence[Judged], form: Form) -> dict[str, float]:
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
    faults = Counter(reply.why for _, reply in replies if isinstance(reply, Unread))
    found |= {f"unread/{_slug(why)}": count / len(replies) for why, count in faults.items()}
    if not read:
        return found
    found["accuracy"] = sum(value == question.label for question, value in read) / len(read)
    if form.mode == "pointwise":
        distances = [abs(value - int(question.label)) for question, value in read]
        found["error"] = fsum(distances) / len(read)
    else:
        found |= _of_pairs(judged, [value for _, value in read])
    correlation = _length_correlation(read, form)
    return found if correlation is None else {**found, "length_corr": correlation}


def baselines_of(questions: Sequence[Question], form: Form) -> Baselines:
    """What judges earn on these questions that look at no answer: what curves are held against.

    Of a comparison the label of the order as given counts; raises :class:`ConfigError` for none.
    """
    labels: list[Any] = [one.label for one in questions if not one.swapped]
    if form.mode == "pointwise":
        return constant_baselines(labels)
    return constant_baselines(labels, ties=form.ties, both_orders=True)


def _orders(judged: Sequence[Judged]) -> list[tuple[int, int]]:
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


def _of_pairs(judged: Sequence[Judged], verdicts: Sequence[Any]) -> dict[str, float]:
    named = [value for value in verdicts if value in ("A", "B")]
    found = {"first_share": sum(value == "A" for value in named) / len(named)} if named else {}
    same = [
        ab.value == flipped(ba.value)
        for given, other in _orders(judged)
        for ab in judged[given].replies
        for ba in judged[other].replies
        if isinstance(ab, Verdict) and isinstance(ba, Verdict)
    ]
    return {**found, "consistency": sum(same) / len(same)} if same else found


_PREFERENCE: Mapping[str, float] = {"A": 1.0, "tie": 0.0, "B": -1.0}


def _length_correlation(read: Sequence[tuple[Question, Any]], form: Form) -> float | None:
    if form.mode == "pairwise":
        scores = [_PREFERENCE[value] for _, value in read]
        lengths = [float(one.answer_lengths[0] - one.answer_lengths[1]) for one, _ in read]
        return length_correlation(scores, lengths)
    ratings = [float(value) for _, value in read]
    lengths = [float(one.answer_lengths[0]) for one, _ in read]
    return length_correlation(_centred(ratings), _centred(lengths))


def _centred(values: Sequence[float]) -> list[float]:
    mean = _mean(values)
    return [value - mean for value in values]


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _slug(why: str) -> str:
    """A fault's name as part of a metric's: ``no_verdict``."""
    return Fault(why).name.lower()
