"""κ and α: the numbers of scikit-learn and of the package krippendorff, on random tables.

The expected values are those of scikit-learn 1.9.1 and krippendorff 0.9.0.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from adjudge.stats.agreement import estimate_alpha, estimate_kappas

CASES = range(6)


def table(case: int) -> list[list[int | None]]:
    """Ratings by rater and sample, with holes; 2 to 7 levels that occur in all sizes."""
    rng = random.Random(case)
    levels, raters, count = 2 + case % 6, 2 + case % 4, 20 + 7 * case
    truth = [rng.randrange(levels) for _ in range(count)]
    return [
        [
            None if rng.random() < 0.1 and rater > 1
            else one if rng.random() < 0.6 else rng.randrange(levels)
            for one in truth
        ]
        for rater in range(raters)
    ]  # fmt: skip


EXPECTED = {
    0: [0.5876288660, 0.5876288660, 0.5937500000],
    1: [0.3387755102, 0.1327623126, 0.3791044776],
    2: [0.2858809802, 0.2614641995, 0.4070014144],
    3: [0.3145896657, 0.1860093271, 0.2452403608],
    4: [0.3139227104, 0.2382934443, 0.2454099570],
    5: [0.3316346531, 0.5334972342, 0.4632911392],
}


def ours(case: int) -> list[Any]:
    ratings = table(case)
    # In one group: the value alone, without resampling.
    pairs = [[(float(a or 0), float(b or 0)) for a, b in zip(*ratings[:2], strict=True)]]
    units = [[[float(x) for x in unit if x is not None] for unit in zip(*ratings, strict=True)]]
    kappas = estimate_kappas(pairs)
    return [*(kappas[name].value for name in ("plain", "quadratic")), estimate_alpha(units).value]


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_of_the_packages(case: int) -> None:
    found = ours(case)
    assert found == pytest.approx(EXPECTED[case], abs=1e-9)


def test_what_cannot_be_measured_has_a_sentence() -> None:
    assert estimate_kappas([])["plain"].why == "no value"
    assert estimate_kappas([[(1, 1)]])["plain"].why == "all values are equal"
    many = [[(float(at), float(at + 1))] for at in range(30)]
    assert estimate_kappas(many)["plain"].why == "more than 20 levels"
    assert estimate_alpha(many).value is not None
    assert estimate_alpha([[(1.0,)]]).why == "no sample has two ratings"


def test_intervals_are_by_group_and_cover() -> None:
    """Twelve copies of a sample in one group are one observation, not twelve."""
    rng = random.Random(0)
    pairs = [(float(rng.random() < 0.5), float(rng.random() < 0.5)) for _ in range(40)]
    alone = estimate_kappas([[pair] for pair in pairs])["plain"]
    copied = estimate_kappas([[pair] * 12 for pair in pairs])["plain"]
    assert alone.low == pytest.approx(copied.low)
    assert alone.high == pytest.approx(copied.high)
    assert estimate_kappas([pairs])["plain"].why == "fewer than 8 groups"
