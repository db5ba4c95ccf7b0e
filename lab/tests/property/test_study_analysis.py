"""What must hold of a study's analysis whatever was measured."""

import math
import random
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.tests.unit.helpers.made_study import bare_arm

from adjudge_lab.statistics import Resampling
from adjudge_lab.studies.kl_curves import best_of_curves, expected_best
from adjudge_lab.studies.overoptimization import find_onset, measure_cell_gap
from adjudge_lab.studies.results import (
    AnswerScores,
    BestOfScores,
    CheckpointResult,
    StudyResult,
    score_units,
)

SCORES = st.integers(-8, 8).map(float)
PAIRS = st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=7)
ROWS = st.lists(st.tuples(st.none() | SCORES, st.none() | SCORES), min_size=12, max_size=12)
FEW = Resampling(30)
PROMPTS = [f"p{at // 3}" for at in range(12)]


def point(
    step: int, proxy: list[float | None], gold: list[float | None], prompts: list[str]
) -> CheckpointResult:
    scores = {"judge": AnswerScores(proxy), "gold": AnswerScores(gold)}
    return CheckpointResult(step=step, kl=float(step), scores=scores, prompts=prompts, features={})


@settings(max_examples=20)
@given(PAIRS, st.data())
def test_best_of_n_is_the_mean_over_subsets(
    pairs: list[tuple[float, float]], data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, len(pairs)))
    proxies, golds = [], []
    for chosen in combinations(pairs, n):
        top = max(proxy for proxy, _ in chosen)
        tied = [gold for proxy, gold in chosen if proxy == top]
        proxies.append(top)
        golds.append(sum(tied) / len(tied))
    # Equals of a subset share it, and every equal is in as many subsets: the same as by block.
    (found,) = expected_best(pairs, [n])
    assert found[0] == pytest.approx(sum(proxies) / len(proxies), abs=1e-9)
    assert found[1] == pytest.approx(sum(golds) / len(golds), abs=1e-9)


@settings(max_examples=15)
@given(st.permutations(range(8)), st.floats(0.01, 50), st.floats(-9, 9), st.integers(0, 99))
def test_best_of_curves_ignore_order_and_scale(
    order: list[int], slope: float, shift: float, seed: int
) -> None:
    rng = random.Random(seed)
    proxy = [rng.gauss(0, 1) for _ in range(8)]
    gold = [rng.gauss(0, 1) for _ in range(8)]
    prompts = ["a"] * 4 + ["b"] * 4

    def curve(places: list[int], slope: float, shift: float) -> list[tuple[float | None, ...]]:
        one = BestOfScores(
            seed=0,
            prompts=[prompts[at] for at in places],
            scores={
                "judge": AnswerScores([slope * proxy[at] + shift for at in places]),
                "gold": AnswerScores([gold[at] for at in places]),
            },
        )
        result = StudyResult(gold="gold", judges={"judge": {}}, arms=[], best_of=[one])
        (found,) = best_of_curves(result, score_units(result), FEW)
        return [(row.proxy.value, row.gold.value) for row in found.rows]

    plain, other = curve(list(range(8)), 1.0, 0.0), curve(order, slope, shift)
    for old, new in zip(plain, other, strict=True):
        assert new == pytest.approx(old, rel=1e-6, abs=1e-9)


@pytest.mark.slow
@settings(max_examples=60)
@given(ROWS, ROWS, st.floats(0.01, 50), st.floats(-9, 9), st.permutations(range(12)))
def test_gains_ignore_order_and_scale(
    before: list[tuple[float | None, float | None]],
    after: list[tuple[float | None, float | None]],
    slope: float,
    shift: float,
    order: list[int],
) -> None:
    def gaps(places: list[int], slope: float, shift: float) -> list[float | None]:
        def at(step: int, rows: list[tuple[float | None, float | None]]) -> CheckpointResult:
            chosen = [rows[place] for place in places]
            proxy = [None if a is None else slope * a + shift for a, _ in chosen]
            return point(step, proxy, [b for _, b in chosen], [PROMPTS[p] for p in places])

        one = bare_arm([at(0, before), at(9, after)])
        result = StudyResult(gold="gold", judges={"judge": {}}, arms=[one], best_of=[])
        end = measure_cell_gap([one], "gold", score_units(result), FEW).end
        return [end.proxy.value, end.gold.value, end.gap.value]

    plain, other = gaps(list(range(12)), 1.0, 0.0), gaps(order, slope, shift)
    for old, new in zip(plain, other, strict=True):
        assert (old is None) == (new is None)
        assert new is None or new == pytest.approx(old, rel=1e-6, abs=1e-6)


@settings(max_examples=20)
@given(st.lists(SCORES, min_size=2, max_size=8))
def test_gold_that_never_falls_is_never_hacked(golds: list[float]) -> None:
    points = [
        point(step, [float(step)] * 3, [value] * 3, ["a", "b", "c"])
        for step, value in enumerate(sorted(golds))
    ]
    assert find_onset(bare_arm(points), "gold", seen=16.0).step is None


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 4), st.floats(0.06, 1.0))
def test_a_step_down_is_found_where_it_is(fall: int, more: int, drop: float) -> None:
    points = [
        point(10 * at, [1.0 + at] * 3, [1.0 - (drop if at >= fall else 0.0)] * 3, ["a", "b", "c"])
        for at in range(fall + more)
    ]
    assert find_onset(bare_arm(points), "gold", seen=1.0).step == 10 * fall


def false_onsets(arms: int, checkpoints: int, prompts: int, seed: int) -> int:
    """How many of simulated arms whose gold stands still, and proxy rises, have an onset."""
    rng = random.Random(seed)
    names = [f"p{at}" for at in range(prompts)]
    found = 0
    for _ in range(arms):
        own = [rng.gauss(0, 1) for _ in names]
        points = [
            point(
                step,
                [float(step)] * prompts,
                [float(mean + rng.gauss(0, 1)) for mean in own],
                names,
            )
            for step in range(checkpoints)
        ]
        found += find_onset(bare_arm(points), "gold", seen=0.0).step is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("checkpoints", "prompts"), [(3, 16), (8, 48), (12, 32)])
def test_noise_is_rarely_called_hacking(checkpoints: int, prompts: int) -> None:
    assert false_onsets(400, checkpoints, prompts, seed=1) <= 0.05 * 400


@settings(max_examples=15)
@given(st.lists(st.lists(st.none() | SCORES, min_size=6, max_size=6), min_size=2, max_size=5))
def test_missing_scores_move_no_other_number(golds: list[list[float | None]]) -> None:
    """An arm whose gold is missing here and there has the numbers of what is there."""
    names = ["a", "b", "c", "d", "e", "f"]
    points = [point(at, [float(at)] * 6, values, names) for at, values in enumerate(golds)]
    found = measure_cell_gap([bare_arm(points)], "gold", {"judge": 1.0, "gold": 1.0}, FEW)
    changes = [
        new - old
        for old, new in zip(golds[0], golds[-1], strict=True)
        if old is not None and new is not None
    ]
    if not changes:
        assert found.end.gold.value is None
        return
    assert found.end.gold.value == pytest.approx(math.fsum(changes) / len(changes), abs=1e-12)
    assert found.end.prompts_left_out == 6 - len(changes)
    assert msgspec.to_builtins(found.end.seeds) == [0]
