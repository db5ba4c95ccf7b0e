"""The best rising fit to points: pool adjacent violators."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from itertools import groupby
from math import fsum
from operator import itemgetter

import msgspec

__all__ = ["Isotonic", "isotonic_of"]


class Isotonic(msgspec.Struct, frozen=True):
    """A rising function: ``values`` at the rising places ``at``, linear between, level outside."""

    at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.at) == len(self.values) > 0:
            raise ValueError("at and values must be equally many, one at least")
        if any(list(one) != sorted(one) for one in (self.at, self.values)):
            raise ValueError("at and values must rise")

    def __call__(self, x: float) -> float:
        """The value at ``x``.

        >>> Isotonic((0.0, 2.0), (0.5, 0.9))(1.0)
        0.7
        """
        high = bisect.bisect_right(self.at, x)
        if high == 0 or high == len(self.at):
            return self.values[max(0, high - 1)]
        part = (x - self.at[high - 1]) / (self.at[high] - self.at[high - 1])
        return self.values[high - 1] + part * (self.values[high] - self.values[high - 1])


class _Block(msgspec.Struct):
    """Neighbouring places that share a value, the mean of what was seen there."""

    low: float
    high: float
    total: float
    count: int

    @property
    def mean(self) -> float:
        return self.total / self.count


def isotonic_of(points: Iterable[tuple[float, float]]) -> Isotonic:
    """The rising function with the least squared distance to ``points`` (x, y), at least one.

    Pool adjacent violators (Ayer et al. 1955; Barlow et al. 1972): places whose means fall are
    joined until none does. Points in any order, equal x are one place. At every x of the points the
    result is the fit's value; between two blocks of equal value it is linear.

    >>> isotonic_of([(0, 0.0), (1, 3.0), (2, 1.0), (3, 4.0)])
    Isotonic(at=(0, 1, 2, 3), values=(0.0, 2.0, 2.0, 4.0))
    """
    blocks: list[_Block] = []
    for x, same in groupby(sorted(points), itemgetter(0)):
        values = [y for _, y in same]
        block = _Block(x, x, fsum(values), len(values))
        while blocks and blocks[-1].mean >= block.mean:
            last = blocks.pop()
            block = _Block(last.low, x, last.total + block.total, last.count + block.count)
        blocks.append(block)
    knots = [
        (x, block.mean)
        for block in blocks
        for x in ((block.low,) if block.low == block.high else (block.low, block.high))
    ]
    return Isotonic(tuple(x for x, _ in knots), tuple(y for _, y in knots))
