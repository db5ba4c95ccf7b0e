"""How far two judges agree, over all samples and inside groups, and what of a group changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from adjudge.rewards.groups import z_scores
from adjudge.studies.probes.intervals import Row
from adjudge.studies.swap.estimates import Estimate, correlation, estimate, ratio
from adjudge.studies.swap.ranks import concordance_shares, spearman_shares
from adjudge.types import mid_ranks

__all__ = ["Comparison", "advantage_sign", "compare"]

_ROUNDING = 1e-9
_MOST_LEVELS = 20


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two judges on the samples that both judged; correlations are in [−1, 1], shares in [0, 1].

    ``common`` of ``samples`` were judged by both, in ``groups`` groups that can be compared (two
    such samples or more) of ``all_groups``. The first four are over all samples, as a judge of a
    test set is compared; ``within_…`` are inside groups, pooled, which is all that GRPO sees.

    ``kappa``: quadratic-weighted, where both scales are discrete and overlap; else none.
    ``advantage_pearson``: of the GRPO advantages. ``best_changes``: groups of which no sample is
    best for both. ``best_differs``: groups whose sets of best samples are not the same.
    ``sign_flips``: samples with advantages of opposite sign. ``sign_differs``: the same, and those
    where only one of the two is 0. ``flat``: groups that one of the judges, or both, scored all
    alike: nothing can flip there.
    """

    samples: int
    common: int
    groups: int
    all_groups: int
    pearson: Estimate
    spearman: Estimate
    kendall: Estimate
    kappa: Estimate
    within_pearson: Estimate
    within_spearman: Estimate
    within_kendall: Estimate
    advantage_pearson: Estimate
    best_changes: Estimate
    best_differs: Estimate
    sign_flips: Estimate
    sign_differs: Estimate
    flat: int


_Pair = tuple[list[float], list[float]]


def compare(
    a: Sequence[float | None],
    b: Sequence[float | None],
    members: Sequence[Sequence[int]],
    *,
    seed: int = 0,
) -> Comparison:
    """Two judges' rewards compared; ``members`` has the places of each group's samples.

    A sample that one of them did not judge is left out on both sides: each group is compared on
    what both judged, advantages included. Intervals are by group.
    """
    pairs = [_both(a, b, group) for group in members]
    pairs = [pair for pair in pairs if pair[0]]
    inside = [pair for pair in pairs if len(pair[0]) > 1]
    overall = _overall(pairs, seed)
    return Comparison(
        samples=len(a),
        common=sum(len(x) for x, _ in pairs),
        groups=len(inside),
        all_groups=len(members),
        **overall,
        **_within(inside, seed),
        **_changes(inside, seed),
        flat=sum(min(x) == max(x) or min(y) == max(y) for x, y in inside),
    )


def _both(a: Sequence[float | None], b: Sequence[float | None], group: Sequence[int]) -> _Pair:
    x, y = [], []
    for place in group:
        one, other = a[place], b[place]
        if one is not None and other is not None:
            x.append(one)
            y.append(other)
    return x, y


def _overall(pairs: Sequence[_Pair], seed: int) -> dict[str, Estimate]:
    x = [value for xs, _ in pairs for value in xs]
    y = [value for _, ys in pairs for value in ys]
    if not x or min(x) == max(x) or min(y) == max(y):
        return dict.fromkeys(("pearson", "spearman", "kendall", "kappa"), Estimate())
    own = [(_centre(side), _scale(side, _centre(side))) for side in (x, y)]
    moments = _moment_rows(pairs, own)
    shared = [(_centre(x), _scale((*x, *y), _centre(x)))] * 2
    ranks, orders = spearman_shares(x, y), concordance_shares(x, y)
    cubes = [math.fsum(share[at] for share in ranks) / 3 for at in range(3)]
    halves = [sum(share[at] for share in orders) / 2 for at in range(3)]

    def spearman(sums: Sequence[float]) -> float | None:
        return correlation(
            *((s - 2 * whole) / cubes[1] for s, whole in zip(sums, cubes, strict=True))
        )

    def kendall(sums: Sequence[float]) -> float | None:
        return correlation(
            *((s - whole) / halves[1] for s, whole in zip(sums, halves, strict=True))
        )

    return {
        "pearson": estimate(moments, _pearson, seed=seed),
        "spearman": estimate(_by_group(ranks, pairs), spearman, seed=seed),
        "kendall": estimate(_by_group(orders, pairs), kendall, seed=seed),
        "kappa": Estimate()
        if not _same_scale(x, y)
        else estimate(_moment_rows(pairs, shared), _kappa, seed=seed),
    }


def _centre(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)


def _scale(values: Sequence[float], centre: float) -> float:
    return max(abs(value / 2 - centre / 2) for value in values) * 2


def _moment_rows(pairs: Sequence[_Pair], units: Sequence[tuple[float, float]]) -> list[Row]:
    """n, Σx, Σy, Σx², Σy², Σxy of each group, in units (centre, scale) of each side."""
    rows: list[Row] = []
    for group in pairs:
        xs, ys = (
            [(value - centre) / scale for value in side]
            for side, (centre, scale) in zip(group, units, strict=True)
        )
        rows.append(
            (
                float(len(xs)),
                math.fsum(xs),
                math.fsum(ys),
                math.fsum(value * value for value in xs),
                math.fsum(value * value for value in ys),
                math.fsum(map(float.__mul__, xs, ys)),
            )
        )
    return rows


def _moments(sums: Sequence[float]) -> tuple[float, float, float, float]:
    n, x, y, xx, yy, xy = sums
    return xx / n - (x / n) ** 2, yy / n - (y / n) ** 2, xy / n - x * y / n**2, (x - y) / n


def _pearson(sums: Sequence[float]) -> float | None:
    of_x, of_y, product, _ = _moments(sums)
    return correlation(product, of_x, of_y)


def _kappa(sums: Sequence[float]) -> float | None:
    """1 − Σ(x−y)²/n ÷ its expectation were they independent (Cohen, Psychol. Bull. 70, 1968)."""
    of_x, of_y, product, apart = _moments(sums)
    expected = of_x + of_y + apart**2
    return 2 * product / expected if expected > _ROUNDING**2 else None


def _same_scale(x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether both have few levels, in ranges that overlap by half."""
    if len({*x, *y}) > _MOST_LEVELS:
        return False
    overlap = min(max(x), max(y)) - max(min(x), min(y))
    return overlap >= (max(*x, *y) - min(*x, *y)) / 2


def _by_group(shares: Sequence[tuple[float, float, float]], pairs: Sequence[_Pair]) -> list[Row]:
    rows, start = [], 0
    for x, _ in pairs:
        some = shares[start : start + len(x)]
        rows.append(tuple(math.fsum(share[at] for share in some) for at in range(3)))
        start += len(x)
    return rows


def _within(inside: Sequence[_Pair], seed: int) -> dict[str, Estimate]:
    one, other = (
        max((max(pair[at]) / 2 - min(pair[at]) / 2 for pair in inside), default=0.0) or 1.0
        for at in (0, 1)
    )
    linear = [_products(_centred(x, one), _centred(y, other)) for x, y in inside]
    ranked = [_products(_centred(mid_ranks(x)), _centred(mid_ranks(y))) for x, y in inside]
    ordered = [
        tuple(sum(share[at] for share in concordance_shares(x, y)) / 2 for at in range(3))
        for x, y in inside
    ]
    scaled = [_products(z_scores(x), z_scores(y)) for x, y in inside]

    def pooled(rows: Sequence[Row]) -> Estimate:
        return estimate(rows, lambda sums: correlation(*sums), seed=seed)

    return {
        "within_pearson": pooled(linear),
        "within_spearman": pooled(ranked),
        "within_kendall": pooled(ordered),
        "advantage_pearson": pooled(scaled),
    }


def _centred(values: Sequence[float], scale: float = 1.0) -> list[float]:
    if min(values) == max(values):
        return [0.0] * len(values)
    scaled = [value / scale for value in values]
    mean = math.fsum(scaled) / len(scaled)
    return [value - mean for value in scaled]


def _products(x: Sequence[float], y: Sequence[float]) -> Row:
    return (
        math.fsum(map(float.__mul__, x, y)),
        math.fsum(value * value for value in x),
        math.fsum(value * value for value in y),
    )


def advantage_sign(advantage: float) -> int:
    """−1, 0 or 1; what rounding alone makes differ from 0 is 0."""
    return 0 if abs(advantage) < _ROUNDING else int(math.copysign(1, advantage))


def _changes(inside: Sequence[_Pair], seed: int) -> dict[str, Estimate]:
    changes, differs, flips, turns = [], [], [], []
    for x, y in inside:
        best_x, best_y = _best(x), _best(y)
        changes.append((float(best_x.isdisjoint(best_y)), 1.0))
        differs.append((float(best_x != best_y), 1.0))
        signs = [
            (advantage_sign(one), advantage_sign(other))
            for one, other in zip(z_scores(x), z_scores(y), strict=True)
        ]
        flips.append((float(sum(one * other < 0 for one, other in signs)), float(len(x))))
        turns.append((float(sum(one != other for one, other in signs)), float(len(x))))
    rows = {
        "best_changes": changes,
        "best_differs": differs,
        "sign_flips": flips,
        "sign_differs": turns,
    }
    return {name: estimate(of, ratio, bounds=(0, 1), seed=seed) for name, of in rows.items()}


def _best(values: Sequence[float]) -> set[int]:
    best = max(values)
    return {place for place, value in enumerate(values) if value == best}
