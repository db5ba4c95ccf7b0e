"""Bootstrap over groups of any number that is a function of sums over groups."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from adjudge.studies.probes.intervals import Estimate, Row, Statistic, bootstrap

__all__ = ["Estimate", "correlation", "estimate", "ratio"]

_FEWEST, _MOST_UNITS = 8, 500
_TINY = 1e-12


def estimate(
    rows: Sequence[Row],
    statistic: Statistic,
    *,
    bounds: tuple[float, float] = (-1.0, 1.0),
    seed: int = 0,
) -> Estimate:
    """A statistic of the groups' summed columns with its 95 % interval, cut to ``bounds``.

    A row is a group. More than 500 groups are put together at random into 500 blocks, which are
    then resampled: sums of independent groups have the same variance in blocks. Below 8 groups
    there is no interval: so few say nothing of how much groups differ. Else as
    :func:`adjudge.studies.probes.intervals.bootstrap`, whose notes on few groups and on resamples
    that do not vary hold here.
    """
    if len(rows) < _FEWEST:
        sums = [math.fsum(column) for column in zip(*rows, strict=True)]
        return Estimate(statistic(sums) if rows else None)
    found = bootstrap(_blocks(rows, seed), statistic, seed=seed)
    if found.low is None or found.high is None:
        return found
    return Estimate(found.value, max(bounds[0], found.low), min(bounds[1], found.high))


def _blocks(rows: Sequence[Row], seed: int) -> list[Row]:
    if len(rows) <= _MOST_UNITS:
        return list(rows)
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)  # noqa: S311  (no secret)
    return [
        tuple(map(math.fsum, zip(*(rows[at] for at in order[first::_MOST_UNITS]), strict=True)))
        for first in range(_MOST_UNITS)
    ]


def ratio(sums: Sequence[float]) -> float | None:
    """First column by second; ``None`` of nothing."""
    return sums[0] / sums[1] if sums[1] > 0 else None


def correlation(product: float, square: float, other: float) -> float | None:
    """``product``/√(``square``·``other``) within [−1, 1]; ``None`` where one does not vary."""
    if square <= _TINY or other <= _TINY:
        return None
    return max(-1.0, min(1.0, product / math.sqrt(square * other)))
