"""Rewards that differ by rounding alone are one reward: to group steps, and to trainers."""

import itertools
import math
from collections.abc import Sequence
from statistics import median
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st
from tests.unit.helpers.reward_functions import build

from adjudge import FunctionGrader, GraderScore
from adjudge.rewards.formulas import group_step
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import GroupStep
from adjudge.stats import TIE_TOLERANCE, snap_ties
from adjudge.types import GradedSample, GraderResult

STEPS: tuple[GroupStep, ...] = get_args(GroupStep)


def function(weights: Sequence[float], **reward: Any) -> SpecRewardFunction:
    graders = {
        f"g{i}": FunctionGrader(lambda x: x, f"g{i}", score_range=(0, 1))
        for i in range(len(weights))
    }
    entries = {f"g{i}": {"weight": weight} for i, weight in enumerate(weights)}
    return build(graders, entries=entries, reward=reward)


def judged(
    scores: Sequence[Sequence[float]], env: Sequence[float | None] | None = None, **options: Any
) -> list[GradedSample]:
    """One group whose graders have said ``scores``."""
    found = []
    for place, row in enumerate(scores):
        outcome: dict[str, GraderResult] = {
            f"g{i}": GraderScore(f"g{i}", score, score_range=(0, 1), **options)
            for i, score in enumerate(row)
        }
        found.append(GradedSample(place, place, "g", env[place] if env else None, outcome, []))
    return found


def rewards(made: SpecRewardFunction, said: Sequence[GradedSample]) -> list[float]:
    found = [result.score for result in made.reward(said)]
    return [score for score in found if score is not None]


# --- as rounding makes them ---------------------------------------------------------------------


@pytest.mark.parametrize("step", ["none", "z_score"])
def test_no_group_of_four_binary_graders_is_split(step: GroupStep) -> None:
    made = function((0.1, 0.2, 0.3, 0.4), group=step)
    alone = function((0.1, 0.2, 0.3, 0.4))
    answers = list(itertools.product((0.0, 1.0), repeat=4))
    tenths = {a: round(sum(w * s for w, s in zip((1, 2, 3, 4), a, strict=True))) for a in answers}
    one = {answer: alone.reward(judged([answer]))[0].score for answer in answers}
    groups = with_ties = split_in_floats = split = 0
    for group in itertools.combinations_with_replacement(answers, 4):
        levels = len({tenths[answer] for answer in group})
        groups += 1
        with_ties += levels < len(set(group))
        split_in_floats += len({one[answer] for answer in group}) > levels
        split += len(set(rewards(made, judged(group)))) != levels
    assert (groups, with_ties, split_in_floats, split) == (3876, 670, 405, 0)


def test_a_rounding_error_is_no_advantage() -> None:
    assert group_step([0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2], "z_score") == [0.0] * 4
    larger_by_an_ulp = [0.3] * 7 + [math.nextafter(0.3, 1)]
    assert group_step(larger_by_an_ulp, "z_score") == [0.0] * 8
    assert group_step(larger_by_an_ulp, "rank") == [0.5] * 8
    assert len(set(group_step(larger_by_an_ulp, "best_bonus"))) == 1
    assert group_step([0.1] * 3, "centre") == [0.0] * 3


def test_one_huge_reward_blurs_no_others() -> None:
    assert group_step([1e9, 0.2, 0.9, 0.5], "rank") == [1.0, 0.0, 2 / 3, 1 / 3]
    assert len(set(snap_ties([1e9, -1e9, 0.2, 0.2 + 1e-8, 0.7]))) == 5


@pytest.mark.parametrize(
    ("mode", "env", "scores"),
    [
        ("weighted_sum", [0.1, 0.3], [0.2, 0.0]),
        ("weighted_sum", [-0.3, -0.1], [0.3, 0.1]),
        ("multiply", [0.1, 0.3], [0.3, 0.1]),
        ("multiply", [3.0, 1.0], [0.1, 0.3]),
    ],
)
def test_equal_with_the_environment_is_equal(
    mode: str, env: list[float], scores: list[float]
) -> None:
    made = function((1.0,), combine_mode=mode)
    assert len(set(rewards(made, judged([[score] for score in scores], env)))) == 1


# --- in general ---------------------------------------------------------------------------------

near = st.sampled_from([0.3, 0.1 + 0.2, 0.7, 0.1 + 0.6, 0.0, 5e-17, 0.5, 0.75])
some = st.lists(st.one_of(near, st.floats(-1e6, 1e6, allow_subnormal=False)), max_size=12)


@given(some, st.randoms(use_true_random=False))
def test_snapping_knows_no_order_and_moves_nothing_far(values: list[float], rng: Any) -> None:
    snapped = snap_ties(values)
    widest = max(1.0, median(map(abs, values)) if values else 0.0)
    for before, after in zip(values, snapped, strict=True):
        assert abs(before - after) <= TIE_TOLERANCE * widest
    order = rng.sample(range(len(values)), len(values))
    shuffled = snap_ties([values[at] for at in order])
    assert shuffled == [snapped[at] for at in order]
    assert sorted(snapped) == [now for _, now in sorted(zip(values, snapped, strict=True))]
