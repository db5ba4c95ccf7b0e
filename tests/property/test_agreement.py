"""Concordance against brute force, its interval against simulation."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

import pytest
from hypothesis import given, strategies as st

from adjudge.stats.predictions import ConcordanceEstimate, concordance, within_group_concordance

phi = NormalDist().cdf

# Few distinct values make ties and equal outcomes common.
values = st.one_of(
    st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(allow_nan=False, width=16)
)
rows = st.lists(st.tuples(values, values, st.integers(0, 4)), max_size=30)
Row = tuple[float | None, float | None, int]


def brute(data: Sequence[Row], *, inside: bool) -> tuple[float, int]:
    kept = [(s, y, g) for s, y, g in data if s is not None and y is not None]
    won, pairs = 0.0, 0
    for i, (s, y, g) in enumerate(kept):
        for s2, y2, g2 in kept[:i]:
            if y == y2 or (inside and g != g2):
                continue
            pairs += 1
            won += 0.5 if s == s2 else float((s > s2) == (y > y2))
    return won, pairs


def split(data: Sequence[Row]) -> tuple[list[float | None], list[float | None], list[int]]:
    return [r[0] for r in data], [r[1] for r in data], [r[2] for r in data]


def check(found: ConcordanceEstimate, won: float, pairs: int) -> None:
    assert found.pairs == pairs
    if not pairs:
        assert found.value is None
        assert (found.low, found.high) == (None, None)
        return
    assert found.value is not None
    assert found.value == pytest.approx(won / pairs, rel=1e-12, abs=0)
    if found.low is not None:
        assert found.high is not None
        assert 0 <= found.low <= found.value + 1e-12
        assert found.value - 1e-12 <= found.high <= 1


@given(rows)
def test_pooled_value_is_the_share_over_all_pairs(data: list[Row]) -> None:
    check(concordance(*split(data)), *brute(data, inside=False))


@given(rows)
def test_within_group_value_is_the_share_over_pairs_of_a_group(data: list[Row]) -> None:
    check(within_group_concordance(*split(data)), *brute(data, inside=True))


@given(rows)
def test_left_out_samples_are_counted_once(data: list[Row]) -> None:
    scores, outcomes, groups = split(data)
    for found in (
        concordance(scores, outcomes),
        within_group_concordance(scores, outcomes, groups),
    ):
        assert found.no_outcome == outcomes.count(None)
        assert found.samples + found.missing + found.no_outcome == len(data)


# --- the cases without a variance ----------------------------------------------------------------


def test_nan_is_missing() -> None:
    found = concordance([math.nan, 1, 2], [1, math.nan, 0])
    assert (found.samples, found.missing, found.no_outcome) == (1, 1, 1)


def test_one_cluster_has_no_interval() -> None:
    found = concordance([1, 2, 3], [0, 1, 0], ["a"] * 3)
    assert (found.value, found.low, found.high, found.clusters) == (0.5, None, None, 1)


def test_a_constant_score_has_no_interval() -> None:
    found = concordance([1, 1, 1, 1], [0, 1, 0, 1])
    assert (found.value, found.low, found.high) == (0.5, None, None)


def test_perfect_order_has_the_one_sided_bound_over_disjoint_pairs() -> None:
    found = concordance([1, 2, 3, 7, 8], [0, 0, 0, 1, 1])
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.05 ** (1 / 2))
    groups = ["a", "a", "b", "b", "c", "c"]
    inside = within_group_concordance([2, 1, 2, 1, 2, 1], [0, 1] * 3, groups)
    assert (inside.value, inside.low) == (0.0, 0.0)
    assert inside.high == pytest.approx(1 - 0.05 ** (1 / 3))


def test_a_group_without_a_comparable_pair_is_no_cluster_of_the_within_group_number() -> None:
    found = within_group_concordance([1, 2, 1, 2, 1, 2], [0, 1, 1, 0, 1, 1], list("aabbcc"))
    assert (found.value, found.pairs, found.clusters) == (0.5, 2, 2)


# --- the interval ---------------------------------------------------------------------------------


def made(
    rng: random.Random, clusters: int, size: int, effect: float, level: float, levels: int = 2
) -> tuple[list[float], list[float], list[int]]:
    """Scores with a cluster level of variance level², raised by ``effect`` per outcome step."""
    scores, outcomes, groups = [], [], []
    for cluster in range(clusters):
        shift = rng.gauss(0, level)
        for _ in range(size):
            outcome = rng.randrange(levels)
            scores.append(shift + rng.gauss(0, 1) + effect * outcome)
            outcomes.append(float(outcome))
            groups.append(cluster)
    return scores, outcomes, groups


@pytest.mark.parametrize(("clusters", "size", "level"), [(8, 8, 1.0), (25, 4, 0.0), (25, 4, 1.0)])
def test_about_95_percent_of_intervals_hold_the_truth(
    clusters: int, size: int, level: float
) -> None:
    rng = random.Random(11)
    effect, draws = 0.8, 300
    inside = phi(effect / math.sqrt(2))
    across = phi(effect / math.sqrt(2 + 2 * level**2))
    same = (size - 1) / (clusters * size - 1)
    truths = (same * inside + (1 - same) * across, inside)
    held = [0, 0]
    for _ in range(draws):
        data = made(rng, clusters, size, effect, level)
        both = (concordance(*data), within_group_concordance(*data))
        for place, found in enumerate(both):
            assert found.low is not None
            assert found.high is not None
            held[place] += found.low <= truths[place] <= found.high
    for count in held:
        assert 0.90 <= count / draws <= 0.99


def test_what_differs_by_rounding_is_a_tie() -> None:
    sums = [0.1 + 0.2, 0.3, 0.9]
    assert concordance(sums, [1.0, 0.0, 1.0]).value == 0.75
    assert concordance([1.0, 0.0, 2.0], sums).pairs == 2
