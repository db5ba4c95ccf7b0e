"""Numbers of experiments with intervals: correlations, means over seeds and prompts, regressions.

Everything is drawn by a fixed seed: the same numbers give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

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

    coefficients: dict[str, Estimate] = {}
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
    solved = _solve([[x[k] for k in places] for x, _ in judges], [y for _, y in judges])
    if solved is None:
        return msgspec.structs.replace(base, why=f"{', '.join(varying)} follow from each other")
    estimates, r2 = solved
    found = dict(zip([INTERCEPT, *varying], estimates, strict=True))
    for name in inputs:
        found.setdefault(name, Estimate(why=_DOES_NOT_VARY))
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
    inputs: Sequence[Sequence[float]], outcomes: Sequence[float]
) -> tuple[list[Estimate], float | None] | None:
    """Intercept and slopes with intervals, and R²; ``None`` where the inputs are collinear."""
    x, y = np.array(inputs, dtype=float), np.array(outcomes, dtype=float)
    middles, mean = x.mean(axis=0), y.mean()
    scales = np.abs(x - middles).max(axis=0)
    centred, outcome = (x - middles) / scales, y - mean
    q, r = np.linalg.qr(centred)
    if (np.diag(r) ** 2 <= _SINGULAR * (centred**2).sum(axis=0)).any():
        return None
    slopes = np.linalg.solve(r, q.T @ outcome)
    left = float(((outcome - centred @ slopes) ** 2).sum())
    around = float((outcome**2).sum())
    root = np.linalg.inv(r)
    shift = middles / scales
    factors = [1 / len(y) + ((shift @ root) ** 2).sum(), *((root**2).sum(axis=1) / scales**2)]
    values = [mean - slopes @ shift, *(slopes / scales)]
    freedom = len(y) - x.shape[1] - 1
    exact = left <= 1e-20 * max(around, mean * mean)
    return (
        [
            _coefficient_estimate(float(value), float(factor) * left, freedom, exact=exact)
            for value, factor in zip(values, factors, strict=True)
        ],
        1 - left / around if around > 1e-20 * mean * mean else None,
    )


def _coefficient_estimate(value: float, square: Any, freedom: int, *, exact: bool) -> Estimate:
    """``square``: the sum of squared residuals times the coefficient's factor."""
    if freedom < 1:
        return Estimate(value, why="as many coefficients as judges")
    if exact:
        return Estimate(value, why=NOTHING_VARIED)
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, freedom) * math.sqrt(square / freedom)
    return Estimate(value, value - half, value + half)
