"""How much of a judge's advantages is length and format."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from adjudge.rewards.groups import z_scores
from adjudge.studies.probes.intervals import Row
from adjudge.studies.swap.estimates import Estimate, correlation, estimate
from adjudge.studies.swap.features import FEATURES, Features

__all__ = ["Explained", "explained"]

_LENGTH, _FORMAT, _ALL = (0,), (1, 2, 3), (0, 1, 2, 3)
_PIVOT = 1e-9
_CELLS = [(i, j) for i in range(len(FEATURES)) for j in range(i, len(FEATURES))]


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the variance of GRPO advantages; adjusted R², so chance is 0 and may be below.

    ``length_r``: the correlation of advantage and length, with its sign. ``length``, ``format``
    (Markdown, lists and code together) and ``both``: R² of the regression on these.
    ``format_beyond_length``: ``both`` less ``length``. Without a value: no answer differs from its
    group in that. ``groups`` of them entered: those in which
    the judge told two samples apart.
    """

    length_r: Estimate
    length: Estimate
    format: Estimate
    both: Estimate
    format_beyond_length: Estimate
    groups: int


def explained(
    rewards: Sequence[float | None],
    features: Sequence[Features],
    members: Sequence[Sequence[int]],
    *,
    seed: int = 0,
) -> Explained:
    """Regress a judge's advantages on the answers' features, both standardised inside groups.

    The advantage is (r − mean)/std over the samples of a group that the judge judged; a feature
    becomes the same over the same samples, and 0 where they do not differ. R² is adjusted for the
    number of features by the degrees of freedom inside groups, Σ(n − 1):
    1 − (1 − R²)·D/(D − p) (Ezekiel 1930). Intervals are by group.
    """
    rows = []
    for group in members:
        present = [(reward, features[at]) for at in group if (reward := rewards[at]) is not None]
        values = [reward for reward, _ in present]
        if len(values) > 1 and min(values) < max(values):
            rows.append(_row(z_scores(values), [shape for _, shape in present]))

    def part(wanted: Sequence[int], less: Sequence[int] = ()) -> Estimate:
        return _part(rows, wanted, less, seed)

    return Explained(
        length_r=estimate(rows, _length_r, seed=seed),
        length=part(_LENGTH),
        format=part(_FORMAT),
        both=part(_ALL),
        format_beyond_length=part(_ALL, _LENGTH),
        groups=len(rows),
    )


def _part(rows: Sequence[Row], wanted: Sequence[int], less: Sequence[int], seed: int) -> Estimate:
    """R² on the features ``wanted``, less that on ``less``, adjusted, with its interval.

    Resamples are biased by chance as the sample is by it, so they lie around R² before adjusting:
    the interval is moved by as much as adjusting moved the value.
    """

    def difference(sums: Sequence[float], *, adjust: bool) -> float | None:
        whole = _r_squared(sums, wanted, adjust=adjust)
        rest = _r_squared(sums, less, adjust=adjust) if less else 0.0
        return None if whole is None or rest is None else whole - rest

    found = estimate(rows, lambda sums: difference(sums, adjust=True), seed=seed)
    raw = difference([math.fsum(of) for of in zip(*rows, strict=True)], adjust=False) if rows else 0
    if found.low is None or found.high is None or found.value is None or raw is None:
        return found
    moved = found.value - raw
    return Estimate(found.value, found.low + moved, found.high + moved)


def _row(advantages: Sequence[float], shapes: Sequence[Features]) -> Row:
    """Σ a², Σ a·f for each feature, Σ f·g for every two."""
    columns = [z_scores([float(shape[at]) for shape in shapes]) for at in range(len(FEATURES))]
    return (
        _dot(advantages, advantages),
        *(_dot(advantages, column) for column in columns),
        *(_dot(columns[i], columns[j]) for i, j in _CELLS),
    )


def _dot(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(map(float.__mul__, x, y))


def _length_r(sums: Sequence[float]) -> float | None:
    return correlation(sums[1], sums[0], sums[1 + len(FEATURES)])


def _r_squared(sums: Sequence[float], wanted: Sequence[int], *, adjust: bool) -> float | None:
    """R² on some features from the sums; a feature that adds nothing is left out.

    ``None`` where none of them varies inside groups: there is nothing to ask.

    Gaussian elimination of the normal equations, each pivot taking its share. Advantages have
    Σ a² = Σ(n − 1): the degrees of freedom.
    """
    freedom, first = sums[0], 1 + len(FEATURES)
    cell = {}
    for place, (i, j) in enumerate(_CELLS):
        cell[i, j] = cell[j, i] = sums[first + place]
    size = len(wanted)
    table = [[cell[i, j] for j in wanted] + [sums[1 + i]] for i in wanted]
    scales = [table[k][k] for k in range(size)]
    left, used = freedom, 0
    for k in range(size):
        pivot = table[k][k]
        if pivot <= _PIVOT * max(scales[k], freedom):
            continue
        left -= table[k][size] ** 2 / pivot
        used += 1
        for row in range(k + 1, size):
            factor = table[row][k] / pivot
            table[row] = [
                own - factor * other for own, other in zip(table[row], table[k], strict=True)
            ]
    if not used or freedom <= used + 1:
        return None
    unexplained = max(0.0, left / freedom)
    return 1 - unexplained * (freedom / (freedom - used) if adjust else 1.0)
