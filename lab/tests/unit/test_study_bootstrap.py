"""Intervals of a study: known quantiles, what has none, coverage by simulation."""

import random

import pytest

from adjudge.stats import Estimate
from adjudge.stats.estimates import NOTHING_VARIED, t_interval
from adjudge_lab.statistics import Resampling, mean_over_seeds


def test_interval_over_three_seeds_by_hand() -> None:
    found = t_interval([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.low == pytest.approx(2 - 4.3027 / 3**0.5, abs=1e-4)
    assert found.high == pytest.approx(2 + 4.3027 / 3**0.5, abs=1e-4)
    assert t_interval([1.0, 1.0, 1.0]) == Estimate(1.0, why=NOTHING_VARIED)
    assert t_interval([1.0]).low is None
    assert t_interval([]).value is None


def test_missing_prompts_are_not_numbers() -> None:
    there = {f"p{at}": 1.0 + at % 2 for at in range(9)}
    columns: dict[int, list[dict[str, float]]] = {
        0: [{**there, "q": 1.0}],
        1: [{at: value + 3 for at, value in there.items()}],
        2: [{}],
    }
    (found,) = Resampling(200).estimates(columns, lambda seeds: mean_over_seeds(seeds, 1))
    assert found.value == pytest.approx((1.4 + 13 / 9 + 3) / 2)
    # 0 would be in the interval if what is missing were one.
    assert found.low is not None
    assert found.low >= 1.0


def test_what_has_no_interval() -> None:
    few = Resampling(50)
    assert few.means({0: [{"a": 1.0}]}, 1) == [Estimate(1.0, why="one seed and one prompt")]
    assert few.means({}, 2) == [Estimate(why="no value")] * 2
    assert few.means({0: [{"a": 1.0, "b": 1.0}], 1: [{"a": 1.0, "b": 1.0}]}, 1) == [
        Estimate(1.0, why=NOTHING_VARIED)
    ]
    one_seed = few.means({0: [{"a": 1.0, "b": 2.0}]}, 1)[0]
    assert (one_seed.value, one_seed.low, one_seed.high) == (1.5, 1.0, 2.0)


def covered(
    seeds: int,
    of_seed: float,
    of_prompt: float,
    *,
    prompts: int = 24,
    both: bool = True,
    runs: int = 200,
) -> float:
    """How often the interval of a mean over seeds and prompts holds the truth."""
    hits = 0
    rng = random.Random(seeds)
    for _ in range(runs):
        shared = [rng.gauss(0, of_prompt) for _ in range(prompts)]
        columns = {}
        for seed in range(seeds):
            own = rng.gauss(0, of_seed)
            columns[seed] = [{f"{at}": own + p + rng.gauss(0, 1) for at, p in enumerate(shared)}]
        resampling = Resampling(120, seed=rng.randrange(1000))
        (found,) = (
            resampling.means(columns, 1)
            if both
            else resampling.estimates(columns, lambda seeds: mean_over_seeds(seeds, 1))
        )
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0 <= found.high
    return hits / runs


@pytest.mark.slow
def test_coverage() -> None:
    # Prompts that all seeds share are not several observations; seeds may differ by much.
    for seeds, of_seed, of_prompt in [(3, 0.0, 1.0), (3, 0.5, 0.0), (3, 2.0, 0.5), (10, 1.0, 1.0)]:
        assert covered(seeds, of_seed, of_prompt) >= 0.92
    # Eight prompts, as the built-in study has.
    for seeds, of_prompt in [(1, 1.0), (3, 3.0), (10, 1.0)]:
        assert covered(seeds, 0.0, of_prompt, prompts=8, runs=150) >= 0.91
    # Resamples alone know too little of three seeds, which is what t is for.
    assert 0.6 <= covered(3, 2.0, 0.0, both=False) <= 0.9
