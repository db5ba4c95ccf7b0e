"""The order of training rows, and what pairs of scores say."""

import math
import random

import pytest
from hypothesis import given, strategies as st

from adjudge_lab.judge_training.calibration import (
    bradley_terry_loss,
    fit_normalisation,
    measure_pairs,
)
from adjudge_lab.judge_training.trl_trainers import LengthGroupedSampler, group_by_length

LENGTHS = st.lists(st.integers(1, 500), max_size=300)


@given(LENGTHS, st.integers(1, 9), st.integers(0, 99))
def test_every_row_comes_once(lengths: list[int], size: int, seed: int) -> None:
    order = group_by_length(lengths, size, random.Random(seed))
    assert sorted(order) == list(range(len(lengths)))


def test_batches_hold_like_lengths_in_no_order() -> None:
    rng = random.Random(0)
    lengths = [rng.randint(10, 1000) for _ in range(4000)]

    def padding(order: list[int]) -> float:
        batches = [[lengths[p] for p in order[at : at + 8]] for at in range(0, len(order), 8)]
        return 1 - sum(lengths) / sum(len(batch) * max(batch) for batch in batches)

    grouped = group_by_length(lengths, 8, random.Random(1))
    shuffled = rng.sample(range(4000), 4000)
    assert padding(grouped) < 0.02 < 0.3 < padding(shuffled)
    halves = [sum(lengths[place] for place in half) for half in (grouped[:2000], grouped[2000:])]
    assert halves[0] == pytest.approx(halves[1], rel=0.1)


def test_an_epoch_has_one_order_and_the_next_another() -> None:
    sampler = LengthGroupedSampler(list(range(40)), 4, seed=3)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    again = LengthGroupedSampler(list(range(40)), 4, seed=3)
    again.set_epoch(1)
    assert list(again) == list(sampler)


def test_pairs_by_hand() -> None:
    found = measure_pairs([(1.0, 0.0), (0.0, 2.0), (3.0, 3.0)], [(5, 3), (4, 4), (9, 8)])
    expected = (math.log1p(math.exp(-1)) + math.log1p(math.exp(2)) + math.log(2)) / 3
    assert found["loss"] == pytest.approx(expected)
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["margin"] == pytest.approx(-1 / 3)
    assert found["length_corr"] == pytest.approx(2 / math.sqrt(5 * 5))
    assert bradley_terry_loss([1.0], [1.0]) == pytest.approx(math.log(2))


def test_normalised_scores_are_quantiles() -> None:
    normalise = fit_normalisation([float(n) for n in range(101)])
    assert [normalise(score) for score in (-5.0, 0.0, 50.0, 99.0, 100.0, 7e9)] == pytest.approx(
        [0.0, 0.0, 0.5, 0.99, 1.0, 1.0]
    )
