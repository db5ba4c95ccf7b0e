"""How well the scores of pairs are calibrated, and what length has to do with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_evaluation.benchmarks.items import BenchmarkItem, Judgement, pair_verdicts
from adjudge.judge_evaluation.benchmarks.protocols import JudgedItem
from adjudge.stats import mean, mean_of_all, sigmoid
from adjudge.stats.agreement import measure_reliability, spearman_correlation

ScoreScale = Literal["logits", "probabilities"]
"""``logits``: Bradley-Terry scores. ``probabilities``: each answer's σ of such a score, in [0, 1].

Scores on any other scale say how answers order, not how sure that is.
"""

JudgedPairs = Sequence[JudgedItem]


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
    return [better - other for _, better, other in _scored_pairs(judged)]


def win_probabilities(judged: JudgedPairs, scale: ScoreScale) -> list[float]:
    """P(the better answer wins) of every pair with two scores: σ(s_better − s_other).

    ``probabilities`` are turned back into scores first (logit): p(1 − q) / (p(1 − q) + q(1 − p)), ½
    where both are equally certain. Raises :class:`~adjudge.errors.ConfigError` for one that is not
    in [0, 1].
    """
    if scale == "logits":
        return list(map(sigmoid, score_differences(judged)))
    found = []
    for where, p, q in _scored_pairs(judged):
        if not (0 <= p <= 1 and 0 <= q <= 1):
            raise ConfigError(
                f"scores as probabilities: must be in [0, 1] (found {p!r} and {q!r} in {where})"
            )
        ours, theirs = p * (1 - q), q * (1 - p)
        found.append(ours / (ours + theirs) if ours + theirs else 0.5)
    return found


def _scored_pairs(judged: JudgedPairs) -> Iterator[tuple[str, float, float]]:
    """Where each pair with two scores is from, the better answer's score, and the other's."""
    for item, judgement in judged:
        scores = [one for one in judgement.known_scores if one is not None]
        if len(scores) == 2:
            a, b = scores if item.label == "A" else scores[::-1]
            yield item.where, a, b


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
            a, b = (sum(len(turn["content"]) for turn in side) for side in item.answers)
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


def _signed_preference(item: BenchmarkItem, judgement: Judgement) -> float | None:
    """How far a judge is for the better answer: a difference of scores, or verdicts, -1 to 1."""
    if judgement.scores:
        return next(iter(score_differences([(item, judgement)])), None)
    return mean_of_all(
        None if one is None else 0.0 if one == "tie" else 1.0 if one == item.label else -1.0
        for one in pair_verdicts(judgement)
    )


def _half_ties(margin: float) -> float:
    return 0.5 if margin == 0 else float(margin > 0)
