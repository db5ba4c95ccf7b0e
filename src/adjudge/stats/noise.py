"""How much of the variance inside groups is noise: a grader asked several times about each sample.

A score of draw k is x_ik = group + signal_i + noise_ik, and a trainer that compares the samples of
a group sees it without the group's part. With the noise variance e and the signal variance s inside
groups, the noise share is e/(s + e), which is 1 minus the intraclass correlation within groups.

Of two draws of one group, half the variance of their differences has the expectation e, and the
mean of their variances s + e. Both are taken over the samples that have the two draws, with their
number less 1 as weight, averaged over the pairs of draws and added up over groups (N and T): for a
whole table N is the interaction sum of squares of a two-way analysis of variance over K − 1. What
a draw adds to its whole group is in neither, and scores that sum to a constant in every draw
(ranks, z-scores) need no other formula.

The interval is a jackknife over groups of log F, where F = (K·T − (K − 1)·N)/N is the ratio of the
mean squares between and within samples, with Student's t of G − 1. F is the scale on which the
normal theory is exact; the jackknife asks for no normal scores, nor for equal noise everywhere.
Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import combinations

import msgspec

from adjudge.stats import collect
from adjudge.stats.predictions import t_975

_ROUNDING = 2.0**-40
"""Noise of no more than this share of all variance is rounding."""


class NoiseShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of noise in the variance inside groups, of one draw.

    ``value`` is in [0, 1]; ``None`` where nothing differs inside groups or nothing was drawn twice.
    ``low`` and ``high`` bound it at 95 %, both ``None`` where no interval can be computed.
    ``noise_std`` and ``std`` are the standard deviations inside groups, of the noise and of all.
    ``samples`` have two draws or more, in ``groups`` that have two such samples; ``missing`` counts
    the draws without a number of samples that have one in another draw.
    """

    value: float | None
    low: float | None
    high: float | None
    noise_std: float | None
    std: float | None
    draws: int
    samples: int
    groups: int
    missing: int

    @property
    def pairs_right(self) -> float | None:
        """How often one draw puts the better of two samples first, were the scores normal."""
        if self.value is None:
            return None
        return 0.5 + math.asin(math.sqrt(1.0 - self.value)) / math.pi


def votes_to_halve(share: float | None) -> int | None:
    """How many independent votes, averaged, halve a noise share; ``None`` where none do.

    With n votes the share is (p/n)/(1 − p + p/n), which is p/2 at n = 1 + 1/(1 − p).

    >>> [votes_to_halve(share) for share in (0.0, 0.3, 0.9, 1.0)]
    [2, 3, 11, None]
    """
    if share is None or share >= 1.0:
        return None
    return math.ceil(round(1.0 + 1.0 / (1.0 - share), 9))


def noise_share(draws: Sequence[Sequence[float | None]], groups: Sequence[Hashable]) -> NoiseShare:
    """The noise share of ``draws``, each with a number a sample; ``None`` is missing.

    Where no draw differs from another, the share is 0 and the upper bound 1 − 0.05^(1/G): in no
    more of the groups was there noise that was not seen. Raises ``ValueError`` for draws of
    different lengths.

    >>> found = noise_share([[1, 2, 4, 4, 5, 9], [1, 3, 4, 5, 5, 8]], ["a"] * 3 + ["b"] * 3)
    >>> round(found.value, 3), found.groups
    (0.091, 2)
    """
    members = collect((group, place) for place, group in enumerate(groups))
    for column in draws:
        if len(column) != len(groups):
            raise ValueError(f"{len(column)} scores for {len(groups)} samples")
    present = [sum(value is not None for value in row) for row in zip(*draws, strict=True)]
    sums = [
        found
        for places in members.values()
        if (found := _group_sums([[column[at] for at in places] for column in draws]))[2]
    ]
    noise, total, weight = (
        (math.fsum(column) for column in zip(*sums, strict=True)) if sums else (0.0, 0.0, 0.0)
    )
    value: float | None = None
    low: float | None = None
    high: float | None = None
    if total > 0:
        if noise <= _ROUNDING * total:
            value, low, high = 0.0, 0.0, 1.0 - 0.05 ** (1 / len(sums))
        else:
            value = min(1.0, noise / total)
            low, high = share_interval(sums, len(draws))
    return NoiseShare(
        value=value,
        low=None if low is None else min(1.0, low),
        high=None if high is None else min(1.0, high),
        noise_std=math.sqrt(noise / weight) if weight else None,
        std=math.sqrt(total / weight) if weight else None,
        draws=len(draws),
        samples=sum(count > 1 for count in present),
        groups=len(sums),
        missing=sum(len(draws) - count for count in present if count),
    )


_Sums = tuple[float, float, float]
"""Of a group: the sums of squares of the noise and of all, and their degrees of freedom."""


def _group_sums(draws: Sequence[Sequence[float | None]]) -> _Sums:
    noise = total = weight = 0.0
    for one, other in combinations(draws, 2):
        pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
        if len(pairs) > 1:
            noise += _squares([a - b for a, b in pairs]) / 2
            total += (_squares([a for a, _ in pairs]) + _squares([b for _, b in pairs])) / 2
            weight += len(pairs) - 1
    count = max(1, math.comb(len(draws), 2))
    return noise / count, total / count, weight / count


def _squares(values: Sequence[float]) -> float:
    """The sum of squared deviations from the mean, exactly 0 for equal values."""
    if min(values) == max(values):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def share_interval(sums: Sequence[_Sums], draws: int) -> tuple[float | None, float | None]:
    """Bounds of the share, unclipped; ``None`` twice for one group, and where no error is known."""
    if len(sums) < 2:
        return None, None
    noise, total = (math.fsum(column) for column in list(zip(*sums, strict=True))[:2])
    for base in dict.fromkeys((draws, 2)):  # with missing draws F of all may be negative
        if (error := _jackknife_error(sums, noise, total, base)) is not None:
            break
    else:
        base, error = 2, _linear_error(sums, noise, total)
        if error is None:
            return None, None
    centre = _log_ratio(noise, total, base)
    half = t_975(len(sums) - 1) * error
    return _share_at(centre + half, base), _share_at(centre - half, base)


def _log_ratio(noise: float, total: float, base: int) -> float:
    return math.log((base * total - (base - 1) * noise) / noise)


def _share_at(log_ratio: float, base: int) -> float:
    """The share at a log F, which may be so large that its F is none."""
    return base / (math.exp(min(log_ratio, 700.0)) + base - 1)


def _jackknife_error(sums: Sequence[_Sums], noise: float, total: float, base: int) -> float | None:
    """The standard error of log F by leaving out each group; ``None`` where one has all noise."""
    values = []
    for own_noise, own_total, _ in sums:
        rest_noise, rest_total = noise - own_noise, total - own_total
        signal = base * rest_total - (base - 1) * rest_noise
        if rest_noise <= _ROUNDING * rest_total or signal <= _ROUNDING * rest_total:
            return None
        values.append(_log_ratio(rest_noise, rest_total, base))
    if base * total - (base - 1) * noise <= 0:
        return None
    return math.sqrt((len(sums) - 1) / len(sums) * _squares(values))


def _linear_error(sums: Sequence[_Sums], noise: float, total: float) -> float | None:
    """The same to first order, which needs noise in no more than one group."""
    signal = 2 * total - noise
    if signal <= _ROUNDING * total:
        return None
    count = len(sums)
    squares = math.fsum(
        ((2 * own_total - own_noise) / signal - own_noise / noise) ** 2
        for own_noise, own_total, _ in sums
    )
    return math.sqrt(count / (count - 1) * squares)
