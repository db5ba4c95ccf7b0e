"""How well scores tell chosen from rejected, and how much of that is length."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adjudge.judge_training.length_corr import length_correlation

__all__ = ["bradley_terry_loss", "calibration_error", "pair_metrics"]

_BINS = 10

Pairs = Sequence[tuple[float, float]]
"""Scores (or lengths) of chosen and rejected."""


def pair_metrics(
    scores: Pairs, lengths: Pairs, margins: Sequence[float] | None = None
) -> dict[str, float]:
    """``loss``, ``accuracy``, ``margin``, ``calibration_error`` and ``length_corr`` of pairs.

    Scores are finite. ``accuracy``: the share of pairs whose chosen side has the higher score
    (equal is not higher); ``margin``: the mean difference of scores; ``lengths`` in tokens. What
    cannot be computed is absent.
    """
    differences = [chosen - rejected for chosen, rejected in scores]
    n = len(differences)
    found = {
        "loss": bradley_terry_loss(differences, margins),
        "accuracy": sum(d > 0 for d in differences) / n,
        "margin": math.fsum(differences) / n,
        "calibration_error": calibration_error(differences),
    }
    correlation = length_correlation(differences, [chosen - other for chosen, other in lengths])
    return found if correlation is None else {**found, "length_corr": correlation}


def bradley_terry_loss(
    differences: Sequence[float], margins: Sequence[float] | None = None
) -> float:
    """Mean of −log σ(d − m), d the chosen side's score above the other's, m the margin (0).

    Bradley and Terry (1952); the margin as in Llama 2 (Touvron et al. 2023, eq. 2).

    >>> round(bradley_terry_loss([0.0]), 4), bradley_terry_loss([2000.0, -2000.0])
    (0.6931, 1000.0)
    """
    over = margins or [0.0] * len(differences)
    losses = [_softplus(m - d) for d, m in zip(differences, over, strict=True)]
    return math.fsum(losses) / len(losses)


def calibration_error(differences: Sequence[float]) -> float:
    """Expected calibration error of σ(|d|) as the probability that the higher score is right.

    Ten bins of equal width over 0.5 to 1; 0 is perfect (Guo et al. 2017). Equal scores are half
    right.
    """
    bins: list[list[tuple[float, float]]] = [[] for _ in range(_BINS)]
    for d in differences:
        sure = 1 / (1 + math.exp(-min(abs(d), 700.0)))
        place = min(_BINS - 1, int((sure - 0.5) * 2 * _BINS))
        bins[place].append((sure, 0.5 if d == 0 else float(d > 0)))
    gaps = (abs(math.fsum(sure - right for sure, right in one)) for one in bins)
    return math.fsum(gaps) / len(differences)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
