"""Moments, quantiles, bins and spread against the standard library and plain counting."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from adjudge.stats import (
    bins_for,
    equal_count_bins,
    group_spread,
    histogram,
    mean,
    missing_by_bin,
    missing_by_value,
    quantile,
    std,
)

numbers = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(-1e6, 1e6))
lists = st.lists(numbers, min_size=2, max_size=40)


@given(lists)
def test_moments_are_those_of_the_standard_library(values: list[float]) -> None:
    assert mean(values) == pytest.approx(statistics.fmean(values))
    assert std(values) == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-9)


@given(st.floats(-1e6, 1e6), st.integers(2, 9))
def test_equal_values_have_exactly_no_spread(value: float, n: int) -> None:
    assert std([value] * n) == 0.0


def test_values_that_differ_by_rounding_have_no_spread_in_a_group() -> None:
    spread = group_spread([0.1 + 0.2, 0.3, 1e9 + 0.1 + 0.2, 1e9 + 0.3], ["a", "a", "b", "b"])
    assert (spread.stds, spread.zero_frac) == ([0.0, 0.0], 1.0)
    assert group_spread([2e-8, 4e-8], ["a", "a"]).zero == 0


def test_moments_of_too_little_are_none() -> None:
    assert (mean([]), std([1.0]), quantile([], 0.5)) == (None, None, None)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40))
def test_quartiles_are_those_of_the_standard_library(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=4, method="inclusive")
    assert [quantile(values, q) for q in (0.25, 0.5, 0.75)] == pytest.approx(expected)


@given(lists, st.sampled_from([None, -3.0, 0.0]), st.sampled_from([None, 1.0, 7.0]))
def test_every_value_is_in_one_bin(
    values: list[float], low: float | None, high: float | None
) -> None:
    bins = bins_for(values, low, high)
    assert bins.edges == sorted(set(bins.edges))
    hist = histogram(values, bins)
    assert sum(hist.counts) == len(values)
    assert low is None or bins.edges[0] <= low
    assert high is None or bins.edges[-1] >= high


@given(lists, st.integers(1, 10))
def test_equal_count_bins_keep_order_and_ties(values: list[float], count: int) -> None:
    runs = equal_count_bins(values, count)
    assert len(runs) <= count
    assert sorted(i for run in runs for i in run) == list(range(len(values)))
    for before, after in pairwise(runs):
        assert max(values[i] for i in before) < min(values[i] for i in after)


@given(st.lists(st.tuples(st.one_of(st.none(), numbers), st.booleans()), max_size=40))
def test_missing_counts_add_up(data: list[tuple[float | None, bool]]) -> None:
    values, missing = [x for x, _ in data], [gone for _, gone in data]
    known = [(x, gone) for x, gone in data if x is not None]
    found = missing_by_value(values, missing, most=3)
    assert sum(entry["n"] for entry in found) == len(known)
    assert sum(entry["missing"] for entry in found) == sum(gone for _, gone in known)


def test_missing_by_bin_names_the_ends_of_each_bin() -> None:
    found = missing_by_bin([5.0, 1.0, 3.0, 9.0], [True, False, False, True], bins=2)
    assert found == [
        {"low": 1.0, "high": 3.0, "n": 2, "missing": 0},
        {"low": 5.0, "high": 9.0, "n": 2, "missing": 2},
    ]


def test_groups_with_fewer_than_two_values_have_no_spread_to_count() -> None:
    spread = group_spread([1, None, 2, 2, 0, 1], ["a", "a", "b", "b", "c", "c"])
    assert (spread.groups, len(spread.stds), spread.zero) == (3, 2, 1)
    assert spread.zero_frac == 0.5
    assert spread.mean_std == pytest.approx(0.5**0.5 / 2)
    assert group_spread([None], ["a"]).zero_frac is None
