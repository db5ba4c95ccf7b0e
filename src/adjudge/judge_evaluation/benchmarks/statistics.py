"""Scores of a benchmark by subset, beside what is missing; and calibration and length.

Every official score here is a weighted sum of means over units (items, or prompts of the Ties
subset). A unit gives *cells* to each mean: values where the judge answered, and where it did not
the whole range in which they may lie. Nothing that is missing becomes a value.

Of pairs there are how well scores are calibrated, and what length has to do with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_evaluation.benchmarks.items import (
    Judgement,
    MissingJudgement,
    PairItem,
    pair_verdicts,
)
from adjudge.stats import mean, mean_of_all, sigmoid
from adjudge.stats.agreement import measure_reliability, spearman_correlation
from adjudge.stats.estimates import ItemColumns

SINGLE_WEIGHT = (1.0,)
"""The weights of a score that is one mean."""


class ScoreCell(NamedTuple):
    """``value`` between ``low`` and ``high``, both equal to it; ``None`` is missing.

    A missing one has the bounds of its whole range, so that a mean over what is known never lies
    outside the bounds of the mean over all.
    """

    value: float | None
    low: float
    high: float


ScoreUnit = tuple[tuple[ScoreCell, ...], ...]
"""Cells for each weight; none: the unit has no part in that mean."""


class Stratum(NamedTuple):
    """The units of one subset by id, how their means are weighted, and how many items are behind.

    ``answered`` counts the items of which nothing is missing.
    """

    weights: tuple[float, ...]
    units: Mapping[str, ScoreUnit]
    items: int
    answered: int


class ScoreShare(msgspec.Struct, frozen=True, kw_only=True):
    """A score beside what is missing.

    ``accuracy_of_answered`` is the score over what was answered (one verdict of a pair whose other
    is missing, too, where verdicts earn by themselves), ``None`` where that is nothing. It can rise
    when a wrong answer goes missing, so it never stands alone: ``low`` is the score if all that is
    missing were wrong, ``high`` if it were right, and ``low`` ≤ ``accuracy_of_answered`` ≤
    ``high``. No failure raises ``low`` or lowers ``high``. ``items`` = ``answered`` + ``missing``,
    the latter lacking a part at least.
    """

    accuracy_of_answered: float | None
    low: float | None
    high: float | None
    items: int
    answered: int
    missing: int


def known_cell(value: float) -> ScoreCell:
    """A cell whose value is known."""
    value = float(value)
    return ScoreCell(value, value, value)


def missing_cell(low: float = 0.0, high: float = 1.0) -> ScoreCell:
    """A cell whose value is missing and lies between the bounds."""
    return ScoreCell(None, low, high)


CellBound = Callable[[ScoreCell], float | None]
_VALUE, _LOW, _HIGH = attrgetter("value"), attrgetter("low"), attrgetter("high")

StratumTotals = tuple[Sequence[float], Sequence[float]]
"""Of one subset: the weights of its means, and the sums of its unit columns."""


def unit_columns(units: Iterable[ScoreUnit], of: CellBound = _VALUE) -> list[ItemColumns]:
    """Sum and number of each unit's known values for the first weight, the second and so on."""
    rows = [[[x for c in cells if (x := of(c)) is not None] for cells in unit] for unit in units]
    return [
        tuple(x for known in row for x in (math.fsum(known), float(len(known)))) for row in rows
    ]


def weighted_mean(weights: Sequence[float], totals: Sequence[float]) -> float | None:
    """The weighted sum of means from the sums of :func:`unit_columns`; ``None``: one has no value.

    >>> rows = unit_columns([((known_cell(1), known_cell(0)),), ((missing_cell(),),)])
    >>> weighted_mean(SINGLE_WEIGHT, [sum(column) for column in zip(*rows)])
    0.5
    """
    value = 0.0
    for place, weight in enumerate(weights):
        total, count = totals[2 * place : 2 * place + 2]
        if not count:
            return None
        value += weight * (total / count)
    return value


def overall_score(parts: Sequence[StratumTotals], *, pooled: bool) -> float | None:
    """The score over units of all subsets together, or the unweighted mean of the subsets' scores.

    ``None`` where a subset of those has none; all that are pooled have the same weights.
    """
    if not pooled:
        return mean_of_all(weighted_mean(*part) for part in parts)
    return weighted_mean(
        parts[0][0], [sum(of) for of in zip(*(own for _, own in parts), strict=True)]
    )


def measure_share(strata: Sequence[Stratum], *, pooled: bool = False) -> ScoreShare:
    """:func:`overall_score` of subsets, beside what is missing; see :class:`ScoreShare`."""

    def score(of: CellBound) -> float | None:
        columns = [unit_columns(one.units.values(), of) for one in strata]
        totals = [[math.fsum(column) for column in zip(*rows, strict=True)] for rows in columns]
        parts = [(one.weights, own) for one, own in zip(strata, totals, strict=True)]
        return overall_score(parts, pooled=pooled)

    items, answered = sum(one.items for one in strata), sum(one.answered for one in strata)
    return ScoreShare(
        accuracy_of_answered=score(_VALUE),
        low=score(_LOW),
        high=score(_HIGH),
        items=items,
        answered=answered,
        missing=items - answered,
    )


def units_answered_by_both(one: Stratum, other: Stratum) -> tuple[list[ScoreUnit], list[ScoreUnit]]:
    """The units of two judges on the same items, less every cell that either left unanswered.

    In the order of the units' ids.
    """
    firsts: list[ScoreUnit] = []
    seconds: list[ScoreUnit] = []
    for name in sorted(one.units):
        shared = [
            [(a, b) for a, b in zip(*cells, strict=True) if None not in (a.value, b.value)]
            for cells in zip(one.units[name], other.units[name], strict=True)
        ]
        firsts.append(tuple(tuple(a for a, _ in pairs) for pairs in shared))
        seconds.append(tuple(tuple(b for _, b in pairs) for pairs in shared))
    return firsts, seconds


def is_complete(cells: Iterable[ScoreCell]) -> bool:
    """Whether nothing of some cells is missing."""
    return all(cell.value is not None for cell in cells)


ScoreScale = Literal["logits", "probabilities"]
"""``logits``: Bradley-Terry scores. ``probabilities``: each answer's σ of such a score, in [0, 1].

Scores on any other scale say how answers order, not how sure that is.
"""

JudgedPairs = Sequence[tuple[PairItem, Judgement]]


class CalibrationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How probabilities of the better answer's winning fit what happened, over ``pairs`` pairs.

    ``brier`` = mean (1 − p)², 0.25 for p = ½ throughout. ``ece`` = Σ n_b/n · |accuracy_b −
    confidence_b| over 10 equal bins of the confidence max(p, 1 − p) in [0.5, 1] (Naeini et al.
    2015; Guo et al. 2017); p = ½ is right by half. ``log_loss`` = mean −ln p, the Bradley-Terry
    loss; ``ruled_out`` counts the pairs with p = 0, and with any it is infinite, which JSON cannot
    say: ``None``. ``bins``: (pairs, confidence, accuracy) of those that are not empty.
    """

    pairs: int
    brier: float | None
    ece: float | None
    log_loss: float | None
    bins: list[tuple[int, float, float]] = []
    ruled_out: int = 0


class LengthEffects(msgspec.Struct, frozen=True, kw_only=True):
    """What length has to do with the judge, over ``pairs`` pairs; lengths are characters.

    ``spearman`` correlates the difference of scores with that of lengths; for
    verdicts, which of the two both orders name (1, 0 or -1 each, averaged) takes its place.
    ``prefers_longer`` and ``better_is_longer`` are shares of the judge's choices and of the labels
    over pairs of different length; a good judge without length bias has both alike. The accuracies
    are over the pairs whose better answer is longer, or shorter. Ties, and orders that disagree,
    are half. ``None``: no such pair, or nothing varies.
    """

    pairs: int
    spearman: float | None
    prefers_longer: float | None
    better_is_longer: float | None
    accuracy_longer: float | None
    accuracy_shorter: float | None


def score_differences(judged: JudgedPairs) -> list[float]:
    """Score of the better answer less that of the other, of every pair with two scores."""
    found = (_margin(item, judgement) for item, judgement in judged)
    return [margin for margin in found if margin is not None]


def win_probabilities(judged: JudgedPairs, scale: ScoreScale) -> list[float]:
    """P(the better answer wins) of every pair with two scores: σ(s_better − s_other).

    ``probabilities`` are turned back into scores first (logit). Raises
    :class:`~adjudge.errors.ConfigError` for one that is not in [0, 1].
    """
    found = []
    for item, judgement in judged:
        scores = _better_first(item, judgement)
        if scores is None:
            continue
        if scale == "probabilities":
            if not all(0 <= score <= 1 for score in scores):
                raise ConfigError(
                    f"scores as probabilities: must be in [0, 1] (found {scores[0]!r} and "
                    f"{scores[1]!r} in {item.where})"
                )
            found.append(_odds_against(*scores))
        else:
            found.append(sigmoid(scores[0] - scores[1]))
    return found


def calibration_metrics(probabilities: Sequence[float]) -> CalibrationMetrics:
    """See :class:`CalibrationMetrics`.

    >>> calibration_metrics([0.8, 0.8, 0.8, 0.8, 0.2]).brier
    0.16
    """
    count = len(probabilities)
    if not count:
        return CalibrationMetrics(pairs=0, brier=None, ece=None, log_loss=None)
    sure = [max(p, 1 - p) for p in probabilities]
    fit = measure_reliability(sure, [_half_ties(p - 0.5) for p in probabilities])
    ruled_out = sum(p == 0 for p in probabilities)
    return CalibrationMetrics(
        pairs=count,
        brier=math.fsum((1 - p) ** 2 for p in probabilities) / count,
        ece=fit.error,
        log_loss=None if ruled_out else -math.fsum(map(math.log, probabilities)) / count,
        bins=[(one.pairs, one.said, one.right) for one in fit.bins],
        ruled_out=ruled_out,
    )


def measure_length_effects(judged: JudgedPairs) -> LengthEffects:
    """See :class:`LengthEffects`."""
    rows: list[tuple[float, float, float]] = []
    for item, judgement in judged:
        if (margin := _signed_preference(item, judgement)) is not None:
            share = _half_ties(margin) if judgement.scores else (1 + margin) / 2
            a, b = (sum(len(turn["content"]) for turn in side) for side in (item.a, item.b))
            rows.append((margin, share, float(a - b if item.label == "A" else b - a)))
    margins, lengths = [row[0] for row in rows], [row[2] for row in rows]
    uneven = [(choice, by) for _, choice, by in rows if by]
    return LengthEffects(
        pairs=len(rows),
        spearman=spearman_correlation(margins, lengths),
        prefers_longer=mean([choice if by > 0 else 1 - choice for choice, by in uneven]),
        better_is_longer=mean([float(by > 0) for _, by in uneven]),
        accuracy_longer=mean([choice for choice, by in uneven if by > 0]),
        accuracy_shorter=mean([choice for choice, by in uneven if by < 0]),
    )


def _better_first(item: PairItem, judgement: Judgement) -> tuple[float, float] | None:
    if not judgement.scores:
        return None
    a, b = judgement.scores
    if isinstance(a, MissingJudgement) or isinstance(b, MissingJudgement):
        return None
    return (a, b) if item.label == "A" else (b, a)


def _margin(item: PairItem, judgement: Judgement) -> float | None:
    scores = _better_first(item, judgement)
    return None if scores is None else scores[0] - scores[1]


def _signed_preference(item: PairItem, judgement: Judgement) -> float | None:
    """How far a judge is for the better answer: a difference of scores, or verdicts, -1 to 1."""
    if judgement.scores:
        return _margin(item, judgement)
    found = [
        0.0 if verdict == "tie" else 1.0 if verdict == item.label else -1.0
        for verdict in pair_verdicts(judgement)
        if not isinstance(verdict, MissingJudgement)
    ]
    return math.fsum(found) / 2 if len(found) == 2 else None


def _half_ties(margin: float) -> float:
    return 0.5 if margin == 0 else float(margin > 0)


def _odds_against(p: float, q: float) -> float:
    """σ(logit p − logit q) = p(1 − q) / (p(1 − q) + q(1 − p)); ½ where both are equally certain."""
    ours, theirs = p * (1 - q), q * (1 - p)
    return ours / (ours + theirs) if ours + theirs else 0.5
