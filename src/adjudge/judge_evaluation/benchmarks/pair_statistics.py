"""Preference files: score margins, calibration, and what length has to do with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_evaluation.benchmarks.items import (
    Judgement,
    MissingJudgement,
    PairItem,
    pair_verdicts,
)
from adjudge.runs.stats import mean, std
from adjudge.types import mid_ranks

__all__ = [
    "CalibrationMetrics",
    "JudgedPairs",
    "LengthEffects",
    "MarginStatistics",
    "ScoreScale",
    "calibration_metrics",
    "margin_statistics",
    "measure_length_effects",
    "pearson_correlation",
    "score_differences",
    "win_probabilities",
]


ScoreScale = Literal["logits", "probabilities"]
"""``logits``: Bradley-Terry scores. ``probabilities``: each answer's σ of such a score, in [0, 1].

Scores on any other scale say how answers order, not how sure that is.
"""

_BINS = 10

JudgedPairs = Sequence[tuple[PairItem, Judgement]]


class MarginStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Score of the better answer less that of the other, over the ``pairs`` with both.

    ``correlation`` is Pearson's r with the file's own margins, over ``with_margin`` pairs.
    """

    pairs: int
    mean: float | None
    median: float | None
    std: float | None
    negative: int
    zero: int
    correlation: float | None
    with_margin: int


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

    ``pearson`` and ``spearman`` correlate the difference of scores with that of lengths; for
    verdicts, which of the two both orders name (1, 0 or -1 each, averaged) takes its place.
    ``prefers_longer`` and ``better_is_longer`` are shares of the judge's choices and of the labels
    over pairs of different length; a good judge without length bias has both alike. The accuracies
    are over the pairs whose better answer is longer, or shorter. Ties, and orders that disagree,
    are half. ``None``: no such pair, or nothing varies.
    """

    pairs: int
    pearson: float | None
    spearman: float | None
    prefers_longer: float | None
    better_is_longer: float | None
    accuracy_longer: float | None
    accuracy_shorter: float | None


def margin_statistics(judged: JudgedPairs) -> MarginStatistics:
    """The margins of a judge that scores; see :class:`MarginStatistics`."""
    rows = [(item, _margin(item, judgement)) for item, judgement in judged]
    found = [margin for _, margin in rows if margin is not None]
    stated = [
        (item.margin, margin)
        for item, margin in rows
        if item.margin is not None and margin is not None
    ]
    return MarginStatistics(
        pairs=len(found),
        mean=mean(found),
        median=median(found) if found else None,
        std=std(found),
        negative=sum(margin < 0 for margin in found),
        zero=sum(margin == 0 for margin in found),
        correlation=pearson_correlation([a for a, _ in stated], [b for _, b in stated]),
        with_margin=len(stated),
    )


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
            found.append(_sigmoid(scores[0] - scores[1]))
    return found


def calibration_metrics(probabilities: Sequence[float]) -> CalibrationMetrics:
    """See :class:`CalibrationMetrics`.

    >>> calibration_metrics([0.8, 0.8, 0.8, 0.8, 0.2]).brier
    0.16
    """
    count = len(probabilities)
    if not count:
        return CalibrationMetrics(pairs=0, brier=None, ece=None, log_loss=None)
    bins: list[list[tuple[float, float]]] = [[] for _ in range(_BINS)]
    for p in probabilities:
        sure = max(p, 1 - p)
        right = 0.5 if p == 0.5 else float(p > 0.5)
        bins[min(_BINS - 1, int((sure - 0.5) * 2 * _BINS))].append((sure, right))
    filled = [
        (len(one), math.fsum(c for c, _ in one) / len(one), math.fsum(r for _, r in one) / len(one))
        for one in bins
        if one
    ]
    ruled_out = sum(p == 0 for p in probabilities)
    return CalibrationMetrics(
        pairs=count,
        brier=math.fsum((1 - p) ** 2 for p in probabilities) / count,
        ece=math.fsum(n * abs(right - sure) for n, sure, right in filled) / count,
        log_loss=None if ruled_out else -math.fsum(map(math.log, probabilities)) / count,
        bins=filled,
        ruled_out=ruled_out,
    )


def measure_length_effects(judged: JudgedPairs) -> LengthEffects:
    """See :class:`LengthEffects`."""
    rows = [
        (margin, _choice_share(judgement, margin), float(_length_difference(item)))
        for item, judgement in judged
        if (margin := _signed_preference(item, judgement)) is not None
    ]
    margins, lengths = [row[0] for row in rows], [row[2] for row in rows]
    uneven = [(choice, by) for _, choice, by in rows if by]
    return LengthEffects(
        pairs=len(rows),
        pearson=pearson_correlation(margins, lengths),
        spearman=pearson_correlation(mid_ranks(margins), mid_ranks(lengths)),
        prefers_longer=mean([choice if by > 0 else 1 - choice for choice, by in uneven]),
        better_is_longer=mean([float(by > 0) for _, by in uneven]),
        accuracy_longer=mean([choice for choice, by in uneven if by > 0]),
        accuracy_shorter=mean([choice for choice, by in uneven if by < 0]),
    )


def pearson_correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's r; ``None`` below two points and where one of the two does not vary."""
    if len(xs) < 2 or min(xs) == max(xs) or min(ys) == max(ys):
        return None
    dx, dy = _deviations(xs), _deviations(ys)
    xy = math.fsum(a * b for a, b in zip(dx, dy, strict=True))
    xx, yy = math.fsum(a * a for a in dx), math.fsum(b * b for b in dy)
    return max(-1.0, min(1.0, xy / math.sqrt(xx * yy))) if xx and yy else None


def _deviations(values: Sequence[float]) -> list[float]:
    """From the mean, over the widest: squares neither over- nor underflow."""
    widest = max(map(abs, values))
    scaled = [value / widest for value in values]
    centre = math.fsum(scaled) / len(scaled)
    moved = [value - centre for value in scaled]
    most = max(map(abs, moved)) or 1.0
    return [value / most for value in moved]


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


def _choice_share(judgement: Judgement, signed: float) -> float:
    """The share of a judge's choices that went to the better answer."""
    return _half_ties(signed) if judgement.scores else (1 + signed) / 2


def _length_difference(item: PairItem) -> int:
    a, b = (sum(len(turn["content"]) for turn in side) for side in (item.a, item.b))
    return a - b if item.label == "A" else b - a


def _half_ties(margin: float) -> float:
    return 0.5 if margin == 0 else float(margin > 0)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _odds_against(p: float, q: float) -> float:
    """σ(logit p − logit q) = p(1 − q) / (p(1 − q) + q(1 − p)); ½ where both are equally certain."""
    ours, theirs = p * (1 - q), q * (1 - p)
    return ours / (ours + theirs) if ours + theirs else 0.5
