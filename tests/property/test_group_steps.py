"""Group steps against their formulas in numpy, over the samples that are there."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses
from tests.unit.helpers.reward_functions import build

from adjudge import ErrorKind, FunctionGrader, GraderError, GraderScore, Role
from adjudge.rewards.formulas import gdpo_step, group_step
from adjudge.types import GradedSample, GraderResult

# Steps of a hundredth: no two values tie by rounding alone.
hundredths = st.integers(0, 100).map(lambda n: n / 100)
NAMES = ("right", "form", "long")


def rloo_by_numpy(rewards: Sequence[float]) -> Any:
    values = np.array(rewards)
    return values - (values.sum() - values) / (len(values) - 1)


def gdpo_by_numpy(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> Any:
    values = np.array(rows)
    std = values.std(axis=0, ddof=1)
    z = (values - values.mean(axis=0)) / np.where(std > 1e-12, std, np.inf)
    return z @ np.array(weights)


@given(st.lists(hundredths, min_size=2, max_size=12))
def test_rloo_compares_with_the_mean_of_the_others(rewards: list[float]) -> None:
    assert group_step(rewards, "rloo") == pytest.approx(rloo_by_numpy(rewards), abs=1e-12)


def test_a_component_that_is_not_finite_is_missing() -> None:
    rows = [{"a": math.nan, "b": 1.0}, {"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.0}]
    found = gdpo_step(rows, {"a": 1.0, "b": 1.0})
    assert found == [None, *gdpo_step(rows[1:], {"a": 1.0, "b": 1.0})]


# --- in a spec ----------------------------------------------------------------------------------


def judged(rows: Sequence[Sequence[float | ErrorKind]]) -> list[GradedSample]:
    """One group; the third grader is a penalty."""
    found = []
    for place, row in enumerate(rows):
        outcome: dict[str, GraderResult] = {}
        for name, said in zip(NAMES, row, strict=False):
            if isinstance(said, ErrorKind):
                outcome[name] = GraderError(name, said, "no")
            elif name == "long":
                outcome[name] = GraderScore(name, -said, role=Role.PENALTY)
            else:
                outcome[name] = GraderScore(name, 10 * said, score_range=(0, 10))
        found.append(GradedSample(place, place, "g", None, outcome, []))
    return found


def function(**reward: Any) -> Any:
    graders = {
        name: FunctionGrader(lambda x: x, name, score_range=(0, 10)) for name in NAMES[:2]
    } | {"long": FunctionGrader(lambda x: x, "long", role=Role.PENALTY)}
    weights = {"right": {"weight": 2.0}, "form": {"weight": 0.5}, "long": {"weight": 0.25}}
    return build(graders, entries=weights, reward={"group": "gdpo", **reward})


answers = st.lists(
    st.lists(
        st.one_of(hundredths, hundredths, hundredths, st.just(ErrorKind.TIMEOUT)),
        min_size=3,
        max_size=3,
    ),
    min_size=1,
    max_size=8,
)


@given(answers)
def test_a_sample_without_one_component_has_no_reward_and_moves_nobody(
    rows: list[list[float | ErrorKind]],
) -> None:
    scores = [result.score for result in function().reward(judged(rows))]
    whole = [row for row in rows if ErrorKind.TIMEOUT not in row]
    assert [score is None for score in scores] == [ErrorKind.TIMEOUT in row for row in rows]
    found = [score for score in scores if score is not None]
    assert found == [result.score for result in function().reward(judged(whole))]
    if len(whole) > 1:
        signed = [[float(a), float(b), -float(c)] for a, b, c in whole]
        assert found == pytest.approx(gdpo_by_numpy(signed, [2.0, 0.5, 0.25]), abs=1e-9)


def test_a_grader_with_nothing_to_judge_in_a_whole_group_is_no_component_there() -> None:
    rows = judged([[0.1, 0.5, 0.0], [0.9, 0.5, 0.0]])
    for one, score in zip(rows, (0.0, 10.0), strict=True):
        idle = {"evaluable": False, "cause": "not_applicable"}
        one.outcome["form"] = GraderScore("form", score, score_range=(0, 10), metadata=idle)
    scores = [result.score for result in function().reward(rows)]
    assert scores == pytest.approx([-(2**0.5), 2**0.5])


def test_what_gdpo_cannot_add_up_is_refused() -> None:
    with refuses("spec.reward.group"):
        function(aggregate="min")
    gate = FunctionGrader(lambda x: x, "gate", role=Role.GATE)
    with refuses("spec.graders.gate"):
        build({"gate": gate}, reward={"group": "gdpo"})
    build({"gate": gate, "one": FunctionGrader(lambda x: x, score_range=(0, 1))},
          entries={"gate": {"weight": 0.0}}, reward={"group": "gdpo"})  # fmt: skip
