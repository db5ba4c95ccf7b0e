"""Numbers of experiments with intervals: correlations, means over seeds and prompts, slopes.

Everything is drawn by a fixed seed: the same numbers give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from adjudge.stats import Estimate
from adjudge.stats.agreement import pearson_correlation, spearman_correlation, standardise
from adjudge.stats.estimates import (
    CONFIDENCE_LEVEL,
    DEFAULT_RESAMPLES,
    NO_VALUE,
    NOTHING_VARIED,
    draw_counts,
    expanded_tail,
    np,
    percentile_interval,
    t_interval,
    t_quantile,
)

_TINY = 1e-12
_MIN_ARMS = 4


def estimate_correlation(
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    ranks: bool = False,
    clusters: Sequence[int] | None = None,
    seed: int = 0,
) -> Estimate:
    """Pearson's r, or with ``ranks`` Spearman's ρ, with its expanded percentile interval.

    Of three pairs at least; every resample is ranked anew. With ``clusters`` (a number a pair, of
    two clusters at least) pairs of one cluster are drawn together. No interval where all points lie
    on a line, and where more than 5 % of the resamples have no value.
    """
    n = len(xs)
    value = (spearman_correlation if ranks else pearson_correlation)(xs, ys)
    if value is None or 1 - abs(value) < _TINY:
        return Estimate(value and float(round(value)), n=n, why="a perfect correlation")
    resampled = _resampled_ranks if ranks else _resampled_moments
    _, units = np.unique(range(n) if clusters is None else clusters, return_inverse=True)
    drawn = [
        one
        for counts in draw_counts(units.max() + 1, DEFAULT_RESAMPLES, seed)
        for one in _correlations(n, *resampled(counts[:, units], xs, ys))
    ]
    found = percentile_interval(
        drawn, value, tail=expanded_tail(units.max() + 1), undefined="too few seeds differ"
    )
    return Estimate(value, found.low, found.high, n, found.why)


def _resampled_moments(counts: Any, xs: Sequence[float], ys: Sequence[float]) -> tuple[Any, ...]:
    """Σ(x−x̄)², Σ(y−ȳ)² and Σ(x−x̄)(y−ȳ) of each resample, in units of the pairs."""
    n, x, y = counts.sum(1), standardise(xs), standardise(ys)
    of_x, of_y, xx, yy, xy = (counts @ np.stack([x, y, x * x, y * y, x * y], axis=1)).T
    return xx - of_x * of_x / n, yy - of_y * of_y / n, xy - of_x * of_y / n


def _resampled_ranks(counts: Any, xs: Sequence[float], ys: Sequence[float]) -> tuple[Any, ...]:
    """The same of the centred mid-ranks in each resample."""
    ranks, total = [], counts.sum(1, keepdims=True)
    for values in (xs, ys):
        _, places = np.unique(np.asarray(values, dtype=float), return_inverse=True)
        each = counts @ (places[:, None] == np.arange(places.max() + 1))
        ranks.append((np.cumsum(each, axis=1) - each / 2 - total / 2)[:, places])
    x, y = ranks
    return (counts * x * x).sum(1), (counts * y * y).sum(1), (counts * x * y).sum(1)


def _correlations(n: int, of_x: Any, of_y: Any, product: Any) -> list[float | None]:
    varies = (of_x > _TINY * n) & (of_y > _TINY * n)
    root = np.sqrt(np.where(varies, of_x * of_y, 1.0))
    return np.where(varies, np.clip(product / root, -1, 1), None).tolist()  # type: ignore[no-any-return]


MIN_BOOTSTRAP_SEEDS = 10
"""Below so many seeds a bootstrap over them is rough: three make only six different samples."""

_ONE_OBSERVATION = "one seed and one prompt"

PromptColumn = Mapping[str, float]
"""A value by prompt."""

SeedColumns = Mapping[int, Sequence[PromptColumn]]
"""By seed: the columns of a statistic, as many for each seed and in the same order."""

ColumnMeans = Sequence[float | None]
"""The mean of each column over the prompts of a resample; ``None`` where none has a value."""

SeedStatistic = Callable[[Sequence[tuple[int, ColumnMeans]]], Sequence[float | None]]
"""From seeds and their means to the numbers of interest; ``None`` where one has no value."""


class Resampling(msgspec.Struct, frozen=True):
    """How intervals over seeds and prompts are made: ``draws`` resamples, drawn by ``seed``.

    A resample draws one seed fewer than there are with replacement, which gives means the right
    variance (Rao and Wu 1988, JASA 83: as many as there are would make that of three seeds a third
    too small), and as many prompts as there are. Seeds that answered the same prompts get the same
    draw of prompts, so that what is particular to a prompt is not taken for several observations
    of it (Owen 2007, "The pigeonhole bootstrap", Annals of Applied Statistics 1: a little too wide
    rather than too narrow). With one seed only prompts are drawn. Ends are percentiles,
    for few prompts as far out as Student's t: their resamples vary too little and have normal
    tails. With fewer than ten seeds the ends are rough, and where three seeds differ by more than
    chance within them, the ends hold in 8 of 10 cases. A prompt without a value is missing from
    its column, never a number in it.
    """

    draws: int = 1_000
    seed: int = 0

    def estimates(self, columns: SeedColumns, statistic: SeedStatistic) -> list[Estimate]:
        """The numbers that ``statistic`` makes, with their intervals.

        ``statistic`` must give as many numbers for no seed at all. No interval where more than 5 %
        of the resamples have no value, nor where all have the same. Seeds without any value are not
        there.
        """
        columns = {seed: of for seed, of in sorted(columns.items()) if any(of)}
        prompts = sorted({one for of in columns.values() for column in of for one in column})
        observed = statistic(_means_by_seed(columns))
        if len(columns) < 2 and len(prompts) < 2:
            return [
                Estimate(one, why=NO_VALUE if one is None else _ONE_OBSERVATION) for one in observed
            ]
        drawn = [statistic(one) for one in self._resamples(columns, prompts)]
        one_prompt = len(prompts) < 2  # then only seeds are drawn
        tail = (1 - CONFIDENCE_LEVEL) / 2 if one_prompt else expanded_tail(len(prompts))
        return [
            Estimate(why=NO_VALUE)
            if one is None
            else percentile_interval(
                [found[place] for found in drawn],
                one,
                tail=tail,
                equal=NOTHING_VARIED,
                undefined="it has no value in many resamples",
            )
            for place, one in enumerate(observed)
        ]

    def averages(
        self, columns: SeedColumns, statistic: SeedStatistic, of: Collection[int] | None = None
    ) -> list[Estimate]:
        """As :meth:`estimates`, of numbers that are means over seeds: honest for few of them.

        The interval reaches as far as the resamples do and, around the value, as far as Student's t
        over the seeds' own numbers: the one knows of prompts that all seeds share, the other of how
        little three seeds tell about others. ``of``: the numbers that are means; all, without it.
        """
        found = self.estimates(columns, statistic)
        singles = [statistic([one]) for one in _means_by_seed(columns)]
        by_number = zip(*singles, strict=True) if singles else ([] for _ in found)
        return [
            widen_interval(one, t_interval([value for value in values if value is not None]))
            if of is None or place in of
            else one
            for place, (one, values) in enumerate(zip(found, by_number, strict=True))
        ]

    def means(self, columns: SeedColumns, width: int) -> list[Estimate]:
        """The mean over seeds of each of ``width`` columns, by :meth:`averages`."""
        return self.averages(columns, lambda seeds: mean_over_seeds(seeds, width))

    def _resamples(
        self, columns: SeedColumns, prompts: Sequence[str]
    ) -> Iterator[list[tuple[int, ColumnMeans]]]:
        """Seeds that were drawn, with their columns' means over the prompts that were drawn."""
        seeds, widths = list(columns), [len(of) for of in columns.values()]
        dense = np.array(
            [
                [column.get(one, math.nan) for one in prompts]
                for of in columns.values()
                for column in of
            ]
        )
        known = ~np.isnan(dense)
        filled = np.where(known, dense, 0.0)
        ends = np.cumsum([0, *widths]).tolist()
        rng = np.random.default_rng((self.seed, 1))
        for counts in draw_counts(len(prompts), self.draws, self.seed):
            shares = counts @ known.T
            sums = counts @ filled.T
            means = np.divide(sums, shares, out=np.full_like(sums, math.nan), where=shares > 0)
            rows = np.where(shares > 0, means, None).tolist()
            chosen = rng.integers(0, len(seeds), (len(rows), max(1, len(seeds) - 1))).tolist()
            for row, places in zip(rows, chosen, strict=True):
                yield [(seeds[at], row[ends[at] : ends[at + 1]]) for at in places]


def _means_by_seed(columns: SeedColumns) -> list[tuple[int, ColumnMeans]]:
    return [
        (seed, [math.fsum(of.values()) / len(of) if of else None for of in columns[seed]])
        for seed in sorted(columns)
    ]


def mean_over_seeds(seeds: Sequence[tuple[int, ColumnMeans]], width: int) -> list[float | None]:
    """Each column's mean over the seeds that have a value in it, each seed counting the same."""
    found: list[float | None] = []
    for place in range(width):
        values = [one for _, means in seeds if (one := means[place]) is not None]
        found.append(sum(values) / len(values) if values else None)
    return found


def widen_interval(one: Estimate, t: Estimate) -> Estimate:
    """``one`` with an interval as wide as both are, of those that there are."""
    if one.value is None or t.low is None or t.high is None:
        return one
    half = (t.high - t.low) / 2
    low, high = one.value - half, one.value + half
    if one.low is None or one.high is None:
        return Estimate(one.value, low, high)
    return Estimate(one.value, min(one.low, low), max(one.high, high))


class Observation(NamedTuple):
    """An arm: its judge, the judge's place on an axis, and what came out."""

    judge: str
    x: float
    outcome: float


def estimate_slope(observations: Sequence[Observation]) -> Estimate:
    """The change of the outcome a unit of ``x``; arms of one judge are one observation.

    All arms of a judge have one place on the axis, so judges are the units: ordinary least squares
    over their means, with Student's t of judges − 2 degrees of freedom (Donald and Lang 2007,
    Review of Economics and Statistics 89). Refused with fewer than four arms or two judges, and
    where ``x`` does not vary.
    """
    outcomes: dict[tuple[str, float], list[float]] = {}
    for one in observations:
        outcomes.setdefault((one.judge, one.x), []).append(one.outcome)
    judges = len(outcomes)
    if len({x for _, x in outcomes}) < 2:
        return Estimate(why="the axis does not vary")
    if len(observations) < _MIN_ARMS:
        return Estimate(
            why=f"{len(observations)} arms of {judges} judges are too few for a slope: "
            f"{_MIN_ARMS} arms are needed"
        )
    x = np.array([at for _, at in outcomes], dtype=float)
    y = np.array([math.fsum(of) / len(of) for of in outcomes.values()])
    along, middle = x - x.mean(), y.mean()
    slope = float(along @ (y - middle) / (along @ along))
    left = float(((y - middle - slope * along) ** 2).sum())
    if judges < 3:
        return Estimate(slope, why="as many coefficients as judges")
    if left <= 1e-20 * max(float(((y - middle) ** 2).sum()), middle * middle):
        return Estimate(slope, why=NOTHING_VARIED)
    freedom = judges - 2
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, freedom) * math.sqrt(
        left / freedom / float(along @ along)
    )
    return Estimate(slope, slope - half, slope + half)
