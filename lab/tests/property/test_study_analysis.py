"""What must hold of a study's analysis whatever was measured."""

import math
import random
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from lab.tests.unit.helpers.made_study import bare_arm

from adjudge_lab.statistics import Resampling
from adjudge_lab.studies.kl_curves import expected_best
from adjudge_lab.studies.overoptimization import find_onset, measure_cell_gap
from adjudge_lab.studies.results import (
    AnswerScores,
    CheckpointResult,
)

SCORES = st.integers(-8, 8).map(float)
PAIRS = st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=7)
FEW = Resampling(30)


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
