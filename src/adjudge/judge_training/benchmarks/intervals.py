"""Bootstrap intervals by item, within subsets, and exact tests for pairs of judges."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from adjudge.runs.distributions import quantile

__all__ = [
    "RESAMPLES",
    "Interval",
    "binomial_two_sided",
    "mcnemar",
    "p_of_zero",
    "percentile",
    "resampled",
]

RESAMPLES = 2_000
"""With so many the ends of a 95 % interval are off by about 3 % of its half-width."""

_MOST_UNDEFINED = 0.05


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A 95 % percentile interval; both ends ``None`` where there is none, and ``why``."""

    low: float | None = None
    high: float | None = None
    why: str = ""


def resampled(
    sizes: Sequence[int],
    statistic: Callable[[list[list[int]]], float | None],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[float | None]:
    """The statistic of ``resamples`` resamples, given as places in strata of ``sizes`` units.

    Each is as large as its stratum, drawn with replacement: drawing within subsets keeps their
    sizes, which are the benchmark's and not chance. The same seed draws the same.
    """
    choices = random.Random(seed).choices  # noqa: S311  (no secret)
    return [
        statistic([choices(range(size), k=size) if size else [] for size in sizes])
        for _ in range(resamples)
    ]


def percentile(drawn: Sequence[float | None]) -> Interval:
    """From the 2.5 % to the 97.5 % quantile of resampled values.

    None where all are equal (nothing varied: that is no certainty) and where more than 5 % are
    undefined.
    """
    present = _defined(drawn)
    if not present:
        return Interval(why="too few resamples have a score")
    if min(present) == max(present):
        return Interval(why="all units score the same")
    return Interval(low=quantile(present, 0.025), high=quantile(present, 0.975))


def p_of_zero(drawn: Sequence[float | None]) -> float | None:
    """The level at which the percentile interval of differences would touch 0, two-sided.

    At least 2/(resamples + 1); ``None`` without a resample, where more than 5 % are undefined (as
    there is no interval then), and where all are the same difference: of one item, say, which tells
    nothing of others.
    """
    present = _defined(drawn)
    if not present or min(present) == max(present) != 0:
        return None
    below, above = sum(one <= 0 for one in present), sum(one >= 0 for one in present)
    return min(1.0, 2 * (min(below, above) + 1) / (len(present) + 1))


def _defined(drawn: Sequence[float | None]) -> list[float]:
    """The values there are; none where more than 5 % are undefined: the rest are no fair draw."""
    present = [one for one in drawn if one is not None]
    return present if len(present) >= (1 - _MOST_UNDEFINED) * len(drawn) else []


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p that both judges are right equally often, from the discordant items.

    McNemar 1947 in its exact form: 2·P(X ≤ min(b, c)) for X ~ Binomial(b + c, ½), at most 1; 1
    without a discordant item.

    >>> mcnemar(1, 7)
    0.0703125
    """
    return binomial_two_sided(only_first, only_first + only_second)


def binomial_two_sided(successes: int, n: int) -> float:
    """Exact two-sided p of ``successes`` in ``n`` at probability ½; 1 for ``n`` = 0."""
    least = min(successes, n - successes)
    tail = term = 1
    for k in range(1, least + 1):
        term = term * (n - k + 1) // k
        tail += term
    # Whole numbers until here: large n would underflow.
    return min(1.0, math.ldexp(_ratio(tail, n), 1))


def _ratio(tail: int, n: int) -> float:
    """tail/2ⁿ without turning either into a float first."""
    shift = max(0, tail.bit_length() - 64)
    return math.ldexp(tail >> shift, shift - n)
