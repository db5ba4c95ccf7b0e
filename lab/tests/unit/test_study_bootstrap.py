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


def test_the_same_seed_draws_the_same() -> None:
    columns = {s: [{f"p{k}": (s * 7 + k * 3) % 11 / 10 for k in range(12)}] for s in range(3)}
    first = Resampling(100, seed=1).means(columns, 1)
    assert first == Resampling(100, seed=1).means(columns, 1)
    assert first != Resampling(100, seed=2).means(columns, 1)


def test_the_interval_of_a_mean_holds_both() -> None:
    columns = {s: [{f"p{k}": s + (k * 3) % 11 / 9 for k in range(12)}] for s in range(3)}
    (drawn,) = Resampling(200).estimates(columns, lambda seeds: mean_over_seeds(seeds, 1))
    (found,) = Resampling(200).means(columns, 1)
    means = [sum(of.values()) / len(of) for (of,) in columns.values()]
    t = t_interval(means)
    assert t.low is not None
    assert drawn.low is not None
    assert t.low < drawn.low
    assert found.low == pytest.approx(t.low)
    near = {s: [{f"p{k}": 0.01 * s + (k * 3) % 11 for k in range(12)}] for s in range(3)}
    assert Resampling(200).means(near, 1)[0].low == pytest.approx(
        Resampling(200).estimates(near, lambda seeds: mean_over_seeds(seeds, 1))[0].low
    )


@pytest.mark.parametrize("prompts", [3, 8, 40])
def test_few_prompts_have_wide_intervals(prompts: int) -> None:
    rng = random.Random(prompts)
    column = {f"{at}": rng.gauss(0, 1) for at in range(prompts)}
    (found,) = Resampling(2_000).means({0: [column]}, 1)
    t = t_interval(list(column.values()))  # of so many values drawn once each
    assert found.low is not None and t.low is not None  # noqa: PT018
    assert found.high is not None and t.high is not None  # noqa: PT018
    if prompts == 3:  # no mean of a resample lies further out
        assert (found.low, found.high) == pytest.approx(
            (min(column.values()), max(column.values()))
        )
    else:
        assert found.high - found.low == pytest.approx(t.high - t.low, rel=0.1)


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
