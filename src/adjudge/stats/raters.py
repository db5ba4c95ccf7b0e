"""How far people, or a person and a judge, say the same: κ of two, α of any number.

Both compare what differs with what would differ by chance. Cohen's κ takes chance from how often
each of the two gives each level; Krippendorff's α from all values together, so it takes any number
of raters, and samples that some have not rated.

A difference counts by its distance: 1 for any two levels, or (x − y)² of their values. Everything
is a function of sums over samples, so intervals are bootstraps over groups.

Source: Cohen, Psychol. Bull. 70 (1968); Krippendorff, Content Analysis, 4th ed. (2018), ch. 12.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, Literal

from adjudge.stats import Estimate
from adjudge.stats.bootstrap import bootstrap_groups
from adjudge.stats.estimates import NO_VALUE, ItemColumns, estimate_share, np

MAX_LEVELS = 20
"""With more levels a table of them says nothing; only squared distances of values are used."""

KappaWeights = Literal["plain", "quadratic"]
Ratings = Sequence[float]
"""What several raters say of one sample, in any order."""

_TOO_MANY = f"more than {MAX_LEVELS} levels"
_ONE_CLASS = "all values are equal"


def cohen_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """(p₀ − pₑ)/(1 − pₑ) of two labels each; ``None`` without any, and where pₑ = 1."""
    n = len(pairs)
    if not n:
        return None
    agreed = sum(first == second for first, second in pairs) / n
    firsts, seconds = (Counter(side) for side in zip(*pairs, strict=True))
    chance = sum(count * seconds[name] for name, count in firsts.items()) / (n * n)
    return None if chance == 1 else (agreed - chance) / (1 - chance)


def estimate_kappas(
    groups: Sequence[Sequence[tuple[float, float]]], *, seed: int = 0
) -> dict[KappaWeights, Estimate]:
    """Cohen's κ of pairs of numbers, by weights: 1 − Σ d·observed / Σ d·expected by chance.

    A group has the pairs of samples that depend on each other. Without a value where all numbers
    are equal, and with more than 20 levels.

    >>> found = estimate_kappas([[(0, 0)], [(1, 1)], [(2, 1)], [(2, 2)]])
    >>> round(found["quadratic"].value, 4)
    0.8
    """
    levels = find_levels(chain.from_iterable(chain.from_iterable(groups)))
    if why := _why_none(levels):
        return {name: Estimate(why=why) for name in ("plain", "quadratic")}
    place = {level: at for at, level in enumerate(levels)}
    size = len(levels)
    rows = []
    for pairs in groups:
        table = np.zeros((size, size))
        for one, other in pairs:
            table[place[one], place[other]] += 1
        rows.append(tuple(table.ravel().tolist()))

    def estimate(weights: Any) -> Estimate:
        def kappa(sums: Sequence[float]) -> float | None:
            table = np.asarray(sums).reshape(size, size)
            expected = (weights * np.outer(table.sum(axis=1), table.sum(axis=0))).sum()
            return float(1 - (weights * table).sum() * table.sum() / expected) if expected else None

        return bootstrap_groups(rows, kappa, seed=seed)

    apart = np.abs(np.subtract.outer(np.array(levels), np.array(levels)))
    plain = estimate((apart > 0).astype(float))
    squares = (apart / apart.max()) ** 2
    return {"plain": plain, "quadratic": plain if size == 2 else estimate(squares)}


def estimate_alpha(groups: Sequence[Sequence[Ratings]], *, seed: int = 0) -> Estimate:
    """Krippendorff's α (interval) of samples that two raters or more have rated: 1 − Dₒ/Dₑ.

    A group has the samples that depend on each other. Without a value where no sample has two
    ratings, and where all are equal.

    >>> round(estimate_alpha([[(1, 1), (2, 2)], [(3, 3), (3, 4)]]).value, 4)
    0.8889
    """
    rated = [[one for one in samples if len(one) > 1] for samples in groups]
    values = sorted(set(chain.from_iterable(chain.from_iterable(rated))))
    if len(values) < 2:
        return Estimate(why=_ONE_CLASS if values else "no sample has two ratings")
    middle = values[0] / 2 + values[-1] / 2
    scale = values[-1] / 2 - values[0] / 2
    moments = [_moments([(np.array(x) - middle) / scale for x in one]) for one in rated]
    return bootstrap_groups(moments, _interval_alpha, seed=seed)


def estimate_youden(groups: Sequence[Sequence[tuple[bool, bool]]], *, seed: int = 0) -> Estimate:
    """Youden's J = true minus false positive rate, of a judge that passes answers or not.

    A group has the pairs (right, passed) of answers that depend on each other. Without a value
    where no answer is right, or none is wrong. Where all right answers pass, or none does, or so
    with the wrong ones, resamples do not show how sure that rate is: the interval then reaches at
    least as far as Newcombe's, which is made of Wilson's of the two rates.

    Source: Newcombe, Statistics in Medicine 17 (1998), method 10.

    >>> estimate_youden([[(True, True)], [(True, False)], [(False, False)]]).value
    0.5
    """

    def rate_difference(sums: Sequence[float]) -> float | None:
        true_passed, true, false_passed, false = sums
        return true_passed / true - false_passed / false if true and false else None

    rows = []
    for pairs in groups:
        counts = Counter(pairs)
        true_passed, false_passed = counts[True, True], counts[False, True]
        row = (true_passed, true_passed + counts[True, False],
               false_passed, false_passed + counts[False, False])  # fmt: skip
        rows.append(tuple(map(float, row)))
    found = bootstrap_groups(rows, rate_difference, seed=seed)
    why = found.why if found.value is not None else "needs right answers and wrong ones"
    low, high = found.low, found.high
    if low is not None and high is not None:
        least, most = _newcombe_interval(rows)
        low, high = min(low, least), max(high, most)
    return Estimate(found.value, low, high, sum(map(len, groups)), why)


def _newcombe_interval(rows: Sequence[ItemColumns]) -> tuple[float, float]:
    """Bounds of the difference of two rates of which one is 0 or 1; of any others, nothing."""
    sides = [[row[at : at + 2] for row in rows if row[at + 1]] for at in (0, 2)]
    ours, theirs = map(estimate_share, sides)
    if None in (ours.value, theirs.value) or not {0.0, 1.0} & {ours.value, theirs.value}:
        return math.inf, -math.inf
    down = math.hypot(ours.value - ours.low, theirs.high - theirs.value)  # type: ignore[operator]
    up = math.hypot(ours.high - ours.value, theirs.value - theirs.low)  # type: ignore[operator]
    difference = ours.value - theirs.value  # type: ignore[operator]
    return max(-1.0, difference - down), min(1.0, difference + up)


def describe_youden(judge: str, found: Estimate) -> str:
    """What J ≤ 0 does to a training, in a sentence; empty where J is above 0.

    Source: arXiv 2601.04411 (training on noisy rewards: J > 0 is needed).
    """
    if found.value is None or (found.value > 0 and (found.low is None or found.low > 0)):
        return ""
    ends = "" if found.low is None else f" ({found.low:.3f} to {found.high:.3f})"
    number = f"Youden's J is {found.value:.3f}{ends}"
    if found.value > 0:
        return f"{judge} may train the wrong way: its {number}, and the interval reaches 0"
    return f"{judge} trains the wrong way: its {number}, not above 0"


def find_levels(values: Iterable[float]) -> list[float]:
    """The distinct values, the lowest first."""
    return sorted(set(values))


def binary_levels(values: Iterable[float]) -> tuple[float, float] | None:
    """The two levels of values, the lower first; ``None`` where they are of one, or of more.

    Of 0 alone, or of 1 alone, the other is known.

    >>> binary_levels([1, 1]), binary_levels([2, 5, 2]), binary_levels([1, 2, 3])
    ((0.0, 1.0), (2, 5), None)
    """
    levels = find_levels(values)
    if levels and {*levels} <= {0.0, 1.0}:
        levels = [0.0, 1.0]
    return (levels[0], levels[1]) if len(levels) == 2 else None


def _why_none(levels: Sequence[float]) -> str:
    if len(levels) < 2:
        return _ONE_CLASS if levels else NO_VALUE
    return _TOO_MANY if len(levels) > MAX_LEVELS else ""


def _moments(samples: Sequence[Any]) -> tuple[float, ...]:
    """Values, their sum and sum of squares, and the squared distances inside samples."""
    n = total = squares = inside = 0.0
    for x in samples:
        own, square = float(x.sum()), float(x @ x)
        n, total, squares = n + len(x), total + own, squares + square
        inside += 2 * (len(x) * square - own * own) / (len(x) - 1)
    return n, total, squares, inside


def _interval_alpha(sums: Sequence[float]) -> float | None:
    n, total, squares, inside = sums
    expected = 2 * (n * squares - total * total)
    return 1 - (n - 1) * inside / expected if expected > 1e-12 * n * n else None
