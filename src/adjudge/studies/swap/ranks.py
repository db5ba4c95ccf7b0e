"""Rank correlations whose bootstrap over groups is exact or linearised, in O(n log n).

Kendall's τ-b and Spearman's ρ over all samples compare samples of different groups, so they are no
sums over groups. Their numerators and denominators are homogeneous functions of the samples'
weights, and each sample's share below is the derivative by its weight: a weighted sum of shares is
the first-order change of the whole under resampling (the Hájek projection of a U-statistic, as in
:mod:`adjudge.runs.agreement`). Inside groups, which are resampled whole, the sums are exact.

Source: Kendall, Biometrika 33 (1945), for τ-b; van der Vaart, Asymptotic Statistics, §11-12.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["concordance_shares", "spearman_shares"]


def concordance_shares(x: Sequence[float], y: Sequence[float]) -> list[tuple[int, int, int]]:
    """Per sample: concordant less discordant partners, partners untied in x, untied in y.

    Half of the sums are τ-b's C − D, n₀ − n₁ and n₀ − n₂.

    >>> [sum(column) // 2 for column in zip(*concordance_shares([1, 2, 3], [1, 3, 2]))]
    [1, 3, 3]
    """
    places, below, equal = _places(y)
    order = sorted(range(len(x)), key=x.__getitem__)
    tree = _Counts(len(below))
    shares = [(0, 0, 0)] * len(x)
    n, start = len(x), 0
    while start < n:
        end = start
        while end < n and x[order[end]] == x[order[start]]:
            end += 1
        batch = order[start:end]
        before = [tree.around(places[i]) for i in batch]
        for i in batch:
            tree.add(places[i])
        for i, (low, high) in zip(batch, before, strict=True):
            place = places[i]
            low_to, high_to = tree.around(place)
            over = n - below[place] - equal[place]
            agreeing = (low - high) + (over - high_to) - (below[place] - low_to)
            shares[i] = (agreeing, n - (end - start), n - equal[place])
        start = end
    return shares


def spearman_shares(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float, float]]:
    """Per sample: its share in Σ rs, Σ r² and Σ s² of centred mid-ranks r, s (doubled).

    The shares sum to three times the whole: each of the three is of third degree in the weights.

    >>> [sum(column) / 3 for column in zip(*spearman_shares([1, 2, 3], [1, 3, 2]))]
    [4.0, 8.0, 8.0]
    """
    r, s = _signs(x), _signs(y)
    by_x, by_y = _beyond(x, s), _beyond(y, r)
    own_x, own_y = _beyond(x, r), _beyond(y, s)
    return [
        (float(a * b + c + d), float(a * a + 2 * e), float(b * b + 2 * f))
        for a, b, c, d, e, f in zip(r, s, by_x, by_y, own_x, own_y, strict=True)
    ]


def _places(values: Sequence[float]) -> tuple[list[int], list[int], list[int]]:
    """Each value's place among the distinct ones; how many values lie below and at each place."""
    place = {value: at for at, value in enumerate(sorted(set(values)))}
    places = [place[value] for value in values]
    equal = [0] * len(place)
    for at in places:
        equal[at] += 1
    below, total = [], 0
    for count in equal:
        below.append(total)
        total += count
    return places, below, equal


def _signs(values: Sequence[float]) -> list[int]:
    """Per value: how many lie below it less how many above: twice its centred mid-rank."""
    places, below, equal = _places(values)
    n = len(values)
    return [2 * below[at] + equal[at] - n for at in places]


def _beyond(values: Sequence[float], weights: Sequence[int]) -> list[int]:
    """Per value: the weights of those above it less the weights of those below it."""
    places, below, _ = _places(values)
    sums = [0] * len(below)
    for at, weight in zip(places, weights, strict=True):
        sums[at] += weight
    total, under, turned = sum(sums), 0, []
    for one in sums:
        turned.append(total - 2 * under - one)
        under += one
    return [turned[at] for at in places]


class _Counts:
    """How many of the places added so far lie below and above one (a Fenwick tree)."""

    def __init__(self, size: int) -> None:
        self._tree = [0] * (size + 1)
        self._at = [0] * size
        self._total = 0

    def add(self, place: int) -> None:
        self._total += 1
        self._at[place] += 1
        place += 1
        while place < len(self._tree):
            self._tree[place] += 1
            place += place & -place

    def around(self, place: int) -> tuple[int, int]:
        equal, below = self._at[place], 0
        while place:
            below += self._tree[place]
            place &= place - 1
        return below, self._total - below - equal
