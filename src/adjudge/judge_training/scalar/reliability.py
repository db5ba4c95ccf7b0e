"""How far stated probabilities hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

__all__ = ["Bin", "Reliability", "reliability_of"]

_BINS = 10
_LEAST = 1e-12
"""Probabilities count as no smaller in the log loss, so that it is finite."""


class Bin(msgspec.Struct, frozen=True, array_like=True):
    """Pairs of like probability: how many, its mean, and the share that was right."""

    pairs: int
    said: float
    right: float


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """Probabilities, 0.5 to 1, that the higher score is right, against what was right.

    ``error``: the expected calibration error, the mean distance of probability and share that is
    right over ``bins`` (ten of equal width, empty ones left out; Guo et al. 2017); few pairs a bin
    make it larger than it is. ``brier``: the mean squared distance to 1 (right), 0 (wrong) or 0.5
    (equal scores); ``log_loss``: the mean −log probability of what was the case. Less is better.
    """

    error: float
    brier: float
    log_loss: float
    bins: tuple[Bin, ...]


def reliability_of(said: Sequence[float], right: Sequence[float]) -> Reliability:
    """``said``: a probability from 0.5 to 1 for each pair, at least one; ``right``: 1, 0 or 0.5.

    >>> found = reliability_of([0.75, 0.75, 0.75, 0.75], [1, 1, 1, 0])
    >>> found.error, found.brier, found.bins
    (0.0, 0.1875, (Bin(pairs=4, said=0.75, right=0.75),))
    """
    n = len(said)
    binned: dict[int, list[tuple[float, float]]] = {}
    for p, was in zip(said, right, strict=True):
        place = min(_BINS - 1, max(0, int((p - 0.5) * 2 * _BINS)))
        binned.setdefault(place, []).append((p, was))
    bins = tuple(
        Bin(
            len(one),
            math.fsum(p for p, _ in one) / len(one),
            math.fsum(r for _, r in one) / len(one),
        )
        for _, one in sorted(binned.items())
    )
    return Reliability(
        error=math.fsum(one.pairs * abs(one.said - one.right) for one in bins) / n,
        brier=math.fsum((p - was) ** 2 for p, was in zip(said, right, strict=True)) / n,
        log_loss=math.fsum(_loss(p, was) for p, was in zip(said, right, strict=True)) / n,
        bins=bins,
    )


def _loss(p: float, was: float) -> float:
    return -(was * math.log(max(p, _LEAST)) + (1 - was) * math.log(max(1 - p, _LEAST)))
