"""Scores of a benchmark by subset, with bootstrap intervals and paired tests.

Every official score here is a weighted sum of means over units (items, or prompts of the Ties
subset). A unit gives *cells* to each mean: values where the judge answered, and where it did not
the whole range in which they may lie. Nothing that is missing becomes a value.

The bootstrap is by item, within subsets; tests for pairs of judges are exact.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from adjudge.runs.stats import quantile

__all__ = [
    "DEFAULT_RESAMPLES",
    "SINGLE_WEIGHT",
    "Interval",
    "ScoreCell",
    "ScoreShare",
    "ScoreUnit",
    "Stratum",
    "UnitTotals",
    "binomial_two_sided",
    "bootstrap_p_value",
    "is_complete",
    "known_cell",
    "mcnemar_p_value",
    "mean_share",
    "missing_cell",
    "percentile_interval",
    "pooled_share",
    "resample_statistic",
    "stratum_share",
    "units_answered_by_both",
    "weighted_mean",
    "weighted_mean_of_totals",
]


DEFAULT_RESAMPLES = 2_000
"""With so many the ends of a 95 % interval are off by about 3 % of its half-width."""

_MAX_UNDEFINED = 0.05


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A 95 % percentile interval; both ends ``None`` where there is none, and ``why``."""

    low: float | None = None
    high: float | None = None
    why: str = ""


def resample_statistic(
    sizes: Sequence[int],
    statistic: Callable[[list[list[int]]], float | None],
    *,
    resamples: int = DEFAULT_RESAMPLES,
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


def percentile_interval(drawn: Sequence[float | None]) -> Interval:
    """From the 2.5 % to the 97.5 % quantile of resampled values.

    None where all are equal (nothing varied: that is no certainty) and where more than 5 % are
    undefined.
    """
    present = _defined_values(drawn)
    if not present:
        return Interval(why="too few resamples have a score")
    if min(present) == max(present):
        return Interval(why="all units score the same")
    return Interval(low=quantile(present, 0.025), high=quantile(present, 0.975))


def bootstrap_p_value(drawn: Sequence[float | None]) -> float | None:
    """The level at which the percentile interval of differences would touch 0, two-sided.

    At least 2/(resamples + 1); ``None`` without a resample, where more than 5 % are undefined (as
    there is no interval then), and where all are the same difference: of one item, say, which tells
    nothing of others.
    """
    present = _defined_values(drawn)
    if not present or min(present) == max(present) != 0:
        return None
    below, above = sum(one <= 0 for one in present), sum(one >= 0 for one in present)
    return min(1.0, 2 * (min(below, above) + 1) / (len(present) + 1))


def _defined_values(drawn: Sequence[float | None]) -> list[float]:
    """The values there are; none where more than 5 % are undefined: the rest are no fair draw."""
    present = [one for one in drawn if one is not None]
    return present if len(present) >= (1 - _MAX_UNDEFINED) * len(drawn) else []


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Exact two-sided p that both judges are right equally often, from the discordant items.

    McNemar 1947 in its exact form: 2·P(X ≤ min(b, c)) for X ~ Binomial(b + c, ½), at most 1; 1
    without a discordant item.

    >>> mcnemar_p_value(1, 7)
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

    def __str__(self) -> str:
        if self.accuracy_of_answered is None or self.low is None or self.high is None:
            return f"no score ({self.answered} of {self.items} answered)"
        if not self.missing:
            return f"{self.accuracy_of_answered:.4f} ({self.items} answered)"
        return (
            f"{self.accuracy_of_answered:.4f} of {self.answered} answered, {self.missing} missing "
            f"({self.low:.4f} to {self.high:.4f})"
        )


def known_cell(value: float) -> ScoreCell:
    """A cell whose value is known."""
    value = float(value)
    return ScoreCell(value, value, value)


def missing_cell(low: float = 0.0, high: float = 1.0) -> ScoreCell:
    """A cell whose value is missing and lies between the bounds."""
    return ScoreCell(None, low, high)


def weighted_mean(weights: Sequence[float], units: Iterable[ScoreUnit]) -> float | None:
    """The weighted sum of the means of the known values; ``None`` where a term has none.

    >>> weighted_mean(SINGLE_WEIGHT, [((known_cell(1), known_cell(0)),), ((missing_cell(),),)])
    0.5
    """
    rows = list(units)
    total = 0.0
    for place, weight in enumerate(weights):
        values = [value for row in rows for value, _, _ in row[place] if value is not None]
        if not values:
            return None
        total += weight * (math.fsum(values) / len(values))
    return total


class UnitTotals:
    """The known values of some units summed and counted by unit, so that drawing many is quick."""

    def __init__(self, weights: Sequence[float], units: Sequence[ScoreUnit]) -> None:
        self.weights = weights
        self.size = len(units)
        rows = [[[c.value for c in cells if c.value is not None] for cells in u] for u in units]
        self._sums = [[math.fsum(row[place]) for row in rows] for place in range(len(weights))]
        self._counts = [[len(row[place]) for row in rows] for place in range(len(weights))]

    def totals(self, places: Sequence[int]) -> list[tuple[float, int]]:
        """Sum and number of the known values, for each weight, over the units at ``places``."""
        return [
            (sum(map(sums.__getitem__, places)), sum(map(counts.__getitem__, places)))
            for sums, counts in zip(self._sums, self._counts, strict=True)
        ]


def weighted_mean_of_totals(
    weights: Sequence[float], totals: Iterable[tuple[float, int]]
) -> float | None:
    """:func:`weighted_mean` from sums and numbers."""
    value = 0.0
    for weight, (total, count) in zip(weights, totals, strict=True):
        if not count:
            return None
        value += weight * (total / count)
    return value


def stratum_share(stratum: Stratum) -> ScoreShare:
    """The score of one subset; see :class:`ScoreShare`."""
    units = list(stratum.units.values())
    return ScoreShare(
        accuracy_of_answered=weighted_mean(stratum.weights, units),
        low=weighted_mean(stratum.weights, map(_lowest, units)),
        high=weighted_mean(stratum.weights, map(_highest, units)),
        items=stratum.items,
        answered=stratum.answered,
        missing=stratum.items - stratum.answered,
    )


def mean_share(shares: Sequence[ScoreShare]) -> ScoreShare:
    """The unweighted mean over subsets; no score where one of them has none."""
    return _combine_shares(
        shares,
        _mean([one.accuracy_of_answered for one in shares]),
        _mean([one.low for one in shares]),
        _mean([one.high for one in shares]),
    )


def pooled_share(strata: Sequence[Stratum]) -> ScoreShare:
    """The score over the units of all subsets together; all have the same weights."""
    units = {
        f"{place}/{name}": unit
        for place, stratum in enumerate(strata)
        for name, unit in stratum.units.items()
    }
    weights = strata[0].weights if strata else SINGLE_WEIGHT
    items = sum(one.items for one in strata)
    return stratum_share(Stratum(weights, units, items, sum(one.answered for one in strata)))


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


def _lowest(unit: ScoreUnit) -> ScoreUnit:
    return tuple(tuple(known_cell(cell.low) for cell in cells) for cells in unit)


def _highest(unit: ScoreUnit) -> ScoreUnit:
    return tuple(tuple(known_cell(cell.high) for cell in cells) for cells in unit)


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return None
    return math.fsum(present) / len(present)


def _combine_shares(
    shares: Sequence[ScoreShare], value: float | None, low: float | None, high: float | None
) -> ScoreShare:
    items, answered = sum(one.items for one in shares), sum(one.answered for one in shares)
    return ScoreShare(
        accuracy_of_answered=value,
        low=low,
        high=high,
        items=items,
        answered=answered,
        missing=items - answered,
    )
