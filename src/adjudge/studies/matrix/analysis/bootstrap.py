"""Intervals of what a study measured: seeds are resampled, and prompts within them.

Pure Python, the same for the same seed. Values come by seed and prompt; a prompt without a value
is missing from its column, never a number in it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from statistics import NormalDist

import msgspec

from adjudge.runs.distributions import quantile
from adjudge.runs.student import t_quantile

__all__ = [
    "NOTHING_VARIED",
    "NO_VALUE",
    "ROUGH_BELOW",
    "Column",
    "Columns",
    "Estimate",
    "Means",
    "Resampling",
    "Statistic",
    "mean_over_seeds",
    "over_seeds",
]

LEVEL = 0.95
ROUGH_BELOW = 10
"""Below so many seeds a bootstrap over them is rough: three make only six different samples."""

NOTHING_VARIED = "nothing varied"
NO_VALUE = "no value"
_ONE = "one seed and one prompt"
_MOST_UNDEFINED = 0.05
_EQUAL = 1e-10
_MOST_KEPT = 2_000_000

Column = Mapping[str, float]
"""A value by prompt."""

Columns = Mapping[int, Sequence[Column]]
"""By seed: the columns of a statistic, as many for each seed and in the same order."""

Means = Sequence[float | None]
"""The mean of each column over the prompts of a resample; ``None`` where none has a value."""

Statistic = Callable[[Sequence[tuple[int, Means]]], Sequence[float | None]]
"""From seeds and their means to the numbers of interest; ``None`` where one has no value."""

_Pick = Callable[[Sequence[float]], Sequence[float]]
_Dense = tuple[list[float], list[int] | None]


class Estimate(msgspec.Struct, frozen=True):
    """A number and its 95 % interval; ``None`` where it could not be had, and ``why``."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""


class Resampling(msgspec.Struct, frozen=True):
    """How intervals are made: ``draws`` resamples, drawn by ``seed``.

    A resample draws one seed fewer than there are with replacement, which gives means the right
    variance (Rao and Wu 1988, JASA 83: as many as there are would make that of three seeds a third
    too small), and as many prompts as there are. Seeds that answered the same prompts get the same
    draw of prompts, so that what is particular to a prompt is not taken for several observations
    of it (Owen 2007, "The pigeonhole bootstrap", Annals of Applied Statistics 1: a little too wide
    rather than too narrow). With one seed only prompts are drawn. Ends are percentiles, further out
    for few prompts, whose resamples vary too little and have normal tails: as far as Student's t
    would be (Hesterberg 2015, "What teachers should know about the bootstrap", The American
    Statistician 69). With fewer than ten seeds they are rough, and where three seeds differ by
    more than chance within them, they hold in 8 of 10 cases.
    """

    draws: int = 1_000
    seed: int = 0

    def estimates(self, columns: Columns, statistic: Statistic) -> list[Estimate]:
        """The numbers that ``statistic`` makes, with their intervals.

        ``statistic`` must give as many numbers for no seed at all. No interval where more than 5 %
        of the resamples have no value, nor where all have the same. Seeds without any value are not
        there.
        """
        columns = {seed: of for seed, of in columns.items() if any(of)}
        seeds = sorted(columns)
        prompts = sorted({one for of in columns.values() for column in of for one in column})
        dense = [[_dense(column, prompts) for column in columns[seed]] for seed in seeds]
        n = len(prompts)
        observed = statistic(self._by_seed(columns))
        if len(seeds) < 2 and n < 2:
            return [Estimate(one, why=NO_VALUE if one is None else _ONE) for one in observed]
        drawn: list[list[float | None]] = [[] for _ in observed]
        for chosen, pick in self._plan(len(seeds), n):
            means = {place: _means(dense[place], pick, n) for place in set(chosen)}
            found = statistic([(seeds[place], means[place]) for place in chosen])
            for values, value in zip(drawn, found, strict=True):
                values.append(value)
        tail = _tail(n)
        return [_interval(one, values, tail) for one, values in zip(observed, drawn, strict=True)]

    def averages(
        self, columns: Columns, statistic: Statistic, of: Collection[int] | None = None
    ) -> list[Estimate]:
        """As :meth:`estimates`, of numbers that are means over seeds: honest for few of them.

        The interval reaches as far as the resamples do and, around the value, as far as Student's t
        over the seeds' own numbers: the one knows of prompts that all seeds share, the other of how
        little three seeds tell about others. ``of``: the numbers that are means; all, without it.
        """
        found = self.estimates(columns, statistic)
        singles = [statistic([one]) for one in self._by_seed(columns)]
        by_number = zip(*singles, strict=True) if singles else ([] for _ in found)
        return [
            _widest(one, over_seeds([value for value in values if value is not None]))
            if of is None or place in of
            else one
            for place, (one, values) in enumerate(zip(found, by_number, strict=True))
        ]

    def means(self, columns: Columns, width: int) -> list[Estimate]:
        """The mean over seeds of each of ``width`` columns, by :meth:`averages`."""
        return self.averages(columns, lambda seeds: mean_over_seeds(seeds, width))

    @staticmethod
    def _by_seed(columns: Columns) -> list[tuple[int, Means]]:
        return [
            (seed, [math.fsum(of.values()) / len(of) if of else None for of in columns[seed]])
            for seed in sorted(columns)
        ]

    def _plan(self, seeds: int, prompts: int) -> Sequence[tuple[list[int], _Pick]]:
        draws = _kept if prompts * self.draws <= _MOST_KEPT else _drawn
        return draws(seeds, prompts, self.draws, self.seed)  # type: ignore[return-value]


def mean_over_seeds(seeds: Sequence[tuple[int, Means]], width: int) -> list[float | None]:
    """Each column's mean over the seeds that have a value in it, each seed counting the same."""
    found: list[float | None] = []
    for place in range(width):
        values = [one for _, means in seeds if (one := means[place]) is not None]
        found.append(sum(values) / len(values) if values else None)
    return found


def over_seeds(values: Sequence[float]) -> Estimate:
    """The mean of one number a seed with the interval of Student's t.

    Exact for normal differences between seeds, and wide for few: ±2.5 SD with three.
    """
    n = len(values)
    if not n:
        return Estimate(why=NO_VALUE)
    middle = math.fsum(values) / n
    if n < 2:
        return Estimate(middle, why="one seed")
    spread = math.sqrt(math.fsum((one - middle) ** 2 for one in values) / (n - 1))
    if spread <= _EQUAL * abs(middle):
        return Estimate(middle, why=NOTHING_VARIED)
    half = t_quantile((1 + LEVEL) / 2, n - 1) * spread / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half)


def _dense(column: Column, prompts: Sequence[str]) -> _Dense:
    """Values in the order of ``prompts``, and 1 where there is one, if they are not all there."""
    filled = [column.get(prompt, 0.0) for prompt in prompts]
    if len(column) == len(prompts):
        return filled, None
    return filled, [int(prompt in column) for prompt in prompts]


def _means(columns: Sequence[_Dense], pick: _Pick, n: int) -> list[float | None]:
    found: list[float | None] = []
    for filled, there in columns:
        count = n if there is None else sum(pick(there))
        found.append(sum(pick(filled)) / count if count else None)
    return found


@lru_cache(maxsize=64)
def _tail(prompts: int) -> float:
    """The share of resamples beyond each end of an interval."""
    if prompts < 2:  # only seeds are drawn
        return (1 - LEVEL) / 2
    reach = t_quantile((1 + LEVEL) / 2, prompts - 1) * math.sqrt(prompts / (prompts - 1))
    return NormalDist().cdf(-reach)


def _interval(value: float | None, drawn: Sequence[float | None], tail: float) -> Estimate:
    if value is None:
        return Estimate(why=NO_VALUE)
    present = sorted(one for one in drawn if one is not None)
    if len(present) < (1 - _MOST_UNDEFINED) * len(drawn) or not present:
        return Estimate(value, why="it has no value in many resamples")
    if present[-1] - present[0] <= _EQUAL * max(abs(present[0]), abs(present[-1])):
        return Estimate(value, why=NOTHING_VARIED)
    return Estimate(value, quantile(present, tail), quantile(present, 1 - tail))


def _widest(one: Estimate, t: Estimate) -> Estimate:
    """``one`` with an interval as wide as both are, of those that there are."""
    if one.value is None or t.low is None or t.high is None:
        return one
    half = (t.high - t.low) / 2
    low, high = one.value - half, one.value + half
    if one.low is None or one.high is None:
        return Estimate(one.value, low, high)
    return Estimate(one.value, min(one.low, low), max(one.high, high))


def _drawn(seeds: int, prompts: int, draws: int, seed: int) -> Iterator[tuple[list[int], _Pick]]:
    """Resamples: places of seeds, and a function that picks prompts from a column."""
    choices = random.Random(seed).choices  # noqa: S311  (no secret)
    for _ in repeat(None, draws):
        chosen = choices(range(seeds), k=max(1, seeds - 1))
        places = choices(range(prompts), k=prompts)
        yield chosen, itemgetter(*places) if prompts > 1 else list


@lru_cache(maxsize=8)
def _kept(seeds: int, prompts: int, draws: int, seed: int) -> list[tuple[list[int], _Pick]]:
    """The same, kept: most numbers of a study are about the same seeds and prompts."""
    return list(_drawn(seeds, prompts, draws, seed))
