"""Estimates of a study with intervals: resampled seeds and prompts, regression over judges.

Pure Python, the same for the same seed. Seeds are resampled, and prompts within them; values come
by seed and prompt, and a prompt without a value is missing from its column, never a number in it.
The regression is least squares over the means of judges, with an intercept and Student's t.
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

from adjudge.runs.stats import quantile, t_quantile

__all__ = [
    "CONFIDENCE_LEVEL",
    "INTERCEPT",
    "MIN_BOOTSTRAP_SEEDS",
    "NOTHING_VARIED",
    "NO_VALUE",
    "ColumnMeans",
    "Observation",
    "PromptColumn",
    "Regression",
    "Resampling",
    "SeedColumns",
    "SeedEstimate",
    "SeedStatistic",
    "mean_over_seeds",
    "regress",
    "t_interval_over_seeds",
]


CONFIDENCE_LEVEL = 0.95
MIN_BOOTSTRAP_SEEDS = 10
"""Below so many seeds a bootstrap over them is rough: three make only six different samples."""

NOTHING_VARIED = "nothing varied"
NO_VALUE = "no value"
_ONE_OBSERVATION = "one seed and one prompt"
_MAX_UNDEFINED_SHARE = 0.05
_EQUALITY_TOLERANCE = 1e-10
_MAX_CACHED_DRAWS = 2_000_000

PromptColumn = Mapping[str, float]
"""A value by prompt."""

SeedColumns = Mapping[int, Sequence[PromptColumn]]
"""By seed: the columns of a statistic, as many for each seed and in the same order."""

ColumnMeans = Sequence[float | None]
"""The mean of each column over the prompts of a resample; ``None`` where none has a value."""

SeedStatistic = Callable[[Sequence[tuple[int, ColumnMeans]]], Sequence[float | None]]
"""From seeds and their means to the numbers of interest; ``None`` where one has no value."""

_Pick = Callable[[Sequence[float]], Sequence[float]]
_Dense = tuple[list[float], list[int] | None]


class SeedEstimate(msgspec.Struct, frozen=True):
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

    def estimates(self, columns: SeedColumns, statistic: SeedStatistic) -> list[SeedEstimate]:
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
            return [
                SeedEstimate(one, why=NO_VALUE if one is None else _ONE_OBSERVATION)
                for one in observed
            ]
        drawn: list[list[float | None]] = [[] for _ in observed]
        for chosen, pick in self._plan(len(seeds), n):
            means = {place: _means(dense[place], pick, n) for place in set(chosen)}
            found = statistic([(seeds[place], means[place]) for place in chosen])
            for values, value in zip(drawn, found, strict=True):
                values.append(value)
        tail = _tail(n)
        return [_interval(one, values, tail) for one, values in zip(observed, drawn, strict=True)]

    def averages(
        self, columns: SeedColumns, statistic: SeedStatistic, of: Collection[int] | None = None
    ) -> list[SeedEstimate]:
        """As :meth:`estimates`, of numbers that are means over seeds: honest for few of them.

        The interval reaches as far as the resamples do and, around the value, as far as Student's t
        over the seeds' own numbers: the one knows of prompts that all seeds share, the other of how
        little three seeds tell about others. ``of``: the numbers that are means; all, without it.
        """
        found = self.estimates(columns, statistic)
        singles = [statistic([one]) for one in self._by_seed(columns)]
        by_number = zip(*singles, strict=True) if singles else ([] for _ in found)
        return [
            _widen(one, t_interval_over_seeds([value for value in values if value is not None]))
            if of is None or place in of
            else one
            for place, (one, values) in enumerate(zip(found, by_number, strict=True))
        ]

    def means(self, columns: SeedColumns, width: int) -> list[SeedEstimate]:
        """The mean over seeds of each of ``width`` columns, by :meth:`averages`."""
        return self.averages(columns, lambda seeds: mean_over_seeds(seeds, width))

    @staticmethod
    def _by_seed(columns: SeedColumns) -> list[tuple[int, ColumnMeans]]:
        return [
            (seed, [math.fsum(of.values()) / len(of) if of else None for of in columns[seed]])
            for seed in sorted(columns)
        ]

    def _plan(self, seeds: int, prompts: int) -> Sequence[tuple[list[int], _Pick]]:
        draws = _cached_resamples if prompts * self.draws <= _MAX_CACHED_DRAWS else _draw_resamples
        return draws(seeds, prompts, self.draws, self.seed)  # type: ignore[return-value]


def mean_over_seeds(seeds: Sequence[tuple[int, ColumnMeans]], width: int) -> list[float | None]:
    """Each column's mean over the seeds that have a value in it, each seed counting the same."""
    found: list[float | None] = []
    for place in range(width):
        values = [one for _, means in seeds if (one := means[place]) is not None]
        found.append(sum(values) / len(values) if values else None)
    return found


def t_interval_over_seeds(values: Sequence[float]) -> SeedEstimate:
    """The mean of one number a seed with the interval of Student's t.

    Exact for normal differences between seeds, and wide for few: ±2.5 SD with three.
    """
    n = len(values)
    if not n:
        return SeedEstimate(why=NO_VALUE)
    middle = math.fsum(values) / n
    if n < 2:
        return SeedEstimate(middle, why="one seed")
    spread = math.sqrt(math.fsum((one - middle) ** 2 for one in values) / (n - 1))
    if spread <= _EQUALITY_TOLERANCE * abs(middle):
        return SeedEstimate(middle, why=NOTHING_VARIED)
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, n - 1) * spread / math.sqrt(n)
    return SeedEstimate(middle, middle - half, middle + half)


def _dense(column: PromptColumn, prompts: Sequence[str]) -> _Dense:
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
        return (1 - CONFIDENCE_LEVEL) / 2
    reach = t_quantile((1 + CONFIDENCE_LEVEL) / 2, prompts - 1) * math.sqrt(prompts / (prompts - 1))
    return NormalDist().cdf(-reach)


def _interval(value: float | None, drawn: Sequence[float | None], tail: float) -> SeedEstimate:
    if value is None:
        return SeedEstimate(why=NO_VALUE)
    present = sorted(one for one in drawn if one is not None)
    if len(present) < (1 - _MAX_UNDEFINED_SHARE) * len(drawn) or not present:
        return SeedEstimate(value, why="it has no value in many resamples")
    if present[-1] - present[0] <= _EQUALITY_TOLERANCE * max(abs(present[0]), abs(present[-1])):
        return SeedEstimate(value, why=NOTHING_VARIED)
    return SeedEstimate(value, quantile(present, tail), quantile(present, 1 - tail))


def _widen(one: SeedEstimate, t: SeedEstimate) -> SeedEstimate:
    """``one`` with an interval as wide as both are, of those that there are."""
    if one.value is None or t.low is None or t.high is None:
        return one
    half = (t.high - t.low) / 2
    low, high = one.value - half, one.value + half
    if one.low is None or one.high is None:
        return SeedEstimate(one.value, low, high)
    return SeedEstimate(one.value, min(one.low, low), max(one.high, high))


def _draw_resamples(
    seeds: int, prompts: int, draws: int, seed: int
) -> Iterator[tuple[list[int], _Pick]]:
    """Resamples: places of seeds, and a function that picks prompts from a column."""
    choices = random.Random(seed).choices  # noqa: S311  (no secret)
    for _ in repeat(None, draws):
        chosen = choices(range(seeds), k=max(1, seeds - 1))
        places = choices(range(prompts), k=prompts)
        yield chosen, itemgetter(*places) if prompts > 1 else list


@lru_cache(maxsize=8)
def _cached_resamples(
    seeds: int, prompts: int, draws: int, seed: int
) -> list[tuple[list[int], _Pick]]:
    """The same, kept: most numbers of a study are about the same seeds and prompts."""
    return list(_draw_resamples(seeds, prompts, draws, seed))


INTERCEPT = "intercept"
_SINGULAR = 1e-10
_DOES_NOT_VARY = "it does not vary"


class Observation(msgspec.Struct, frozen=True):
    """An arm: its judge, what describes the judge, and what came out."""

    judge: str
    inputs: Mapping[str, float]
    outcome: float


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """``coefficients``: change of the outcome a unit of each input, and the intercept.

    ``None`` where an input does not vary. ``r2``: of the judges' means. ``arms`` and ``judges``
    entered. Refused: without coefficients, with ``why``.
    """

    coefficients: dict[str, SeedEstimate] = {}
    r2: float | None = None
    arms: int = 0
    judges: int = 0
    why: str = ""


def regress(observations: Sequence[Observation], inputs: Sequence[str]) -> Regression:
    """Regress outcomes on ``inputs`` with an intercept; arms of one judge are one observation.

    What an input says is the same for all arms of a judge, so judges are the units: ordinary least
    squares over their means, with t of judges − coefficients degrees of freedom (Donald and Lang
    2007, Review of Economics and Statistics 89). Refused with fewer arms than coefficients + 2,
    with fewer judges than coefficients, where no input varies, and where one follows from others.
    """
    judges = _judge_means(observations, inputs)
    varying = [name for k, name in enumerate(inputs) if len({x[k] for x, _ in judges}) > 1]
    size = len(varying) + 1
    base = Regression(arms=len(observations), judges=len(judges))
    if not varying:
        return msgspec.structs.replace(
            base, why=f"{', '.join(inputs) or 'no input'}: {_DOES_NOT_VARY}"
        )
    if len(observations) < size + 2 or len(judges) < size:
        why = (
            f"{len(observations)} arms of {len(judges)} judges are too few for {size} "
            f"coefficients: {size + 2} arms and {size} judges are needed"
        )
        return msgspec.structs.replace(base, why=why)
    places = [inputs.index(name) for name in varying]
    solved = _solve([([x[k] for k in places], y) for x, y in judges])
    if solved is None:
        return msgspec.structs.replace(base, why=f"{', '.join(varying)} follow from each other")
    estimates, r2 = solved
    found = dict(zip([INTERCEPT, *varying], estimates, strict=True))
    for name in inputs:
        found.setdefault(name, SeedEstimate(why=_DOES_NOT_VARY))
    return msgspec.structs.replace(base, coefficients=found, r2=r2)


def _judge_means(
    observations: Sequence[Observation], inputs: Sequence[str]
) -> list[tuple[list[float], float]]:
    """Inputs and mean outcome of each judge."""
    by_judge: dict[str, list[Observation]] = {}
    for one in observations:
        by_judge.setdefault(one.judge, []).append(one)
    return [
        (
            [of[0].inputs[name] for name in inputs],
            math.fsum(one.outcome for one in of) / len(of),
        )
        for of in by_judge.values()
    ]


def _solve(
    rows: Sequence[tuple[Sequence[float], float]],
) -> tuple[list[SeedEstimate], float | None] | None:
    """Intercept and slopes with intervals, and R²; ``None`` where the inputs are collinear."""
    n, width = len(rows), len(rows[0][0])
    middles = [math.fsum(x[k] for x, _ in rows) / n for k in range(width)]
    scales = [max(abs(x[k] - middles[k]) for x, _ in rows) for k in range(width)]
    centred = [[(x[k] - middles[k]) / scales[k] for k in range(width)] for x, _ in rows]
    mean = math.fsum(y for _, y in rows) / n
    outcomes = [y - mean for _, y in rows]
    inverse = _inverse(
        [[math.fsum(x[i] * x[j] for x in centred) for j in range(width)] for i in range(width)]
    )
    if inverse is None:
        return None
    products = [
        math.fsum(x[k] * y for x, y in zip(centred, outcomes, strict=True)) for k in range(width)
    ]
    slopes = [_dot(row, products) for row in inverse]
    left = math.fsum((y - _dot(slopes, x)) ** 2 for x, y in zip(centred, outcomes, strict=True))
    around = math.fsum(y * y for y in outcomes)
    shift = [middle / scale for middle, scale in zip(middles, scales, strict=True)]
    factors = [1 / n + _dot(shift, [_dot(row, shift) for row in inverse])]
    factors += [inverse[k][k] / scales[k] ** 2 for k in range(width)]
    values = [mean - _dot(slopes, shift), *(s / c for s, c in zip(slopes, scales, strict=True))]
    freedom = n - width - 1
    exact = left <= 1e-20 * max(around, mean * mean)
    return (
        [
            _coefficient_estimate(value, factor * left, freedom, exact=exact)
            for value, factor in zip(values, factors, strict=True)
        ],
        1 - left / around if around > 1e-20 * mean * mean else None,
    )


def _coefficient_estimate(
    value: float, square: float, freedom: int, *, exact: bool
) -> SeedEstimate:
    """``square``: the sum of squared residuals times the coefficient's factor."""
    if freedom < 1:
        return SeedEstimate(value, why="as many coefficients as judges")
    if exact:
        return SeedEstimate(value, why=NOTHING_VARIED)
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, freedom) * math.sqrt(square / freedom)
    return SeedEstimate(value, value - half, value + half)


def _dot(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def _inverse(matrix: list[list[float]]) -> list[list[float]] | None:
    """By Gauss and Jordan; ``None`` where a row hardly differs from a mix of those before it.

    The matrix is symmetric and positive, so pivots are taken as they come.
    """
    size = len(matrix)
    table = [row + [float(i == k) for k in range(size)] for i, row in enumerate(matrix)]
    for k in range(size):
        pivot = table[k][k]
        if pivot <= _SINGULAR * matrix[k][k]:
            return None
        table[k] = [one / pivot for one in table[k]]
        for row in range(size):
            if row != k:
                factor = table[row][k]
                table[row] = [
                    one - factor * other for one, other in zip(table[row], table[k], strict=True)
                ]
    return [row[size:] for row in table]
