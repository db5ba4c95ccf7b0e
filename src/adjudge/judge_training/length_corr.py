"""How far a judge pays for length."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["length_correlation"]


def length_correlation(scores: Sequence[float], lengths: Sequence[float]) -> float | None:
    """Correlation of score and length differences of pairs, whichever side is subtracted.

    Each pair counts in both orders, so that both means are 0: Σ s·l / √(Σ s² · Σ l²), from −1 to 1.
    ``None`` where all lengths or all scores are equal.

    >>> length_correlation([1.0, -2.0], [10, -20])
    1.0
    """
    power = math.fsum(s * s for s in scores) * math.fsum(n * n for n in lengths)
    if not power > 0 or not math.isfinite(power):
        return None
    return math.fsum(s * n for s, n in zip(scores, lengths, strict=True)) / math.sqrt(power)
