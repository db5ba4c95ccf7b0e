"""Several numbers that answer one question, as one number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Literal

__all__ = ["Reduce", "modal_share", "reduced", "soft_min"]

Reduce = Literal["mean", "median", "vote", "soft_min"]


def reduced(
    values: Sequence[float], how: Reduce, beta: float = 1.0, *, gate: bool = False
) -> float:
    """``values`` (at least one) as one number.

    * ``mean``, ``median`` (of two middle values their mean);
    * ``vote``: the most frequent value; of several as frequent ones their median, which favours
      none, or for a ``gate`` the lowest: it opens only for a majority;
    * ``soft_min``: :func:`soft_min` with ``beta``.

    >>> reduced([1.0, 4.0, 4.0, 1.0, 3.0], "vote"), reduced([0.0, 1.0], "vote", gate=True)
    (2.5, 0.0)
    """
    if how == "mean":
        return math.fsum(values) / len(values)
    if how == "median":
        return median(values)
    if how == "soft_min":
        return soft_min(values, beta)
    counts = Counter(values)
    most = max(counts.values())
    tied = [value for value, count in counts.items() if count == most]
    return min(tied) if gate else median(tied)


def modal_share(values: Sequence[float]) -> float:
    """The share of the most frequent value."""
    return max(Counter(values).values()) / len(values)


def soft_min(values: Sequence[float], beta: float, weights: Sequence[float] | None = None) -> float:
    """−β·log E[e^(−r/β)], the expectation under ``weights`` (equal when absent).

    β → 0 gives the minimum, β → ∞ the mean; to second order it is mean − variance/(2β)
    (arXiv 2606.09073). ``beta`` must be positive; computed stably around the minimum.
    """
    weights = [1.0] * len(values) if weights is None else weights
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if w > 0]
    total = math.fsum(weight for _, weight in pairs)
    low = min(value for value, _ in pairs)
    # expm1/log1p keep the digits that a large beta would lose: there every exponent is tiny.
    excess = math.fsum(weight * math.expm1((low - value) / beta) for value, weight in pairs) / total
    if excess > -0.5:
        return low - beta * math.log1p(excess)
    # Little weight near the minimum: the sum itself, scaled by its largest term.
    logs = [math.log(weight / total) - value / beta for value, weight in pairs]
    top = max(logs)
    return -beta * (top + math.log(math.fsum(math.exp(one - top) for one in logs)))
