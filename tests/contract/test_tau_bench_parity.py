"""Loop and gain scores on real trajectories, against those recorded from py-openjudge 0.2.4.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has
``tau_bench/airline_gpt4o_even_tasks.jsonl`` (100 trajectories of tau-bench airline, even tasks).
"""

from __future__ import annotations

import json
from statistics import fmean
from typing import Any

import pytest
from tests.recorded import find_recorded

from adjudge.graders.rules.redundancy import (
    ActionLoopDetectionGrader,
    ObservationInformationGainGrader,
)
from adjudge.graders.rules.trajectory import parse_trajectory

pytestmark = pytest.mark.needs

FILE = "tau_bench/airline_gpt4o_even_tasks.jsonl"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in find_recorded(FILE).read_text("utf-8").splitlines()]


def scores(rows: list[dict[str, Any]], grader: Any) -> dict[tuple[int, int], float]:
    return {(r["task_id"], r["trial"]): grader.evaluate(r["traj"]).score for r in rows}


def mean_by_reward(rows: list[dict[str, Any]], grader: Any) -> tuple[float, float, float]:
    found = scores(rows, grader)
    rewards = {(row["task_id"], row["trial"]): row["reward"] for row in rows}
    failed = fmean(score for key, score in found.items() if rewards[key] == 0.0)
    passed = fmean(score for key, score in found.items() if rewards[key] == 1.0)
    return failed, passed, fmean(found.values())


@pytest.mark.parametrize(
    ("grader", "means"),
    [
        (ActionLoopDetectionGrader(), (0.998334, 1.0, 0.999150)),
        (ActionLoopDetectionGrader(similarity_threshold=0.8), (0.984137, 0.994624, 0.989276)),
        (ObservationInformationGainGrader(), (0.572185, 0.833903, 0.700427)),
    ],
)
def test_means_of_failed_passed_and_all(
    rows: list[dict[str, Any]], grader: Any, means: tuple[float, float, float]
) -> None:
    assert mean_by_reward(rows, grader) == pytest.approx(means, abs=5e-7)


def test_single_trajectories(rows: list[dict[str, Any]]) -> None:
    loop = scores(rows, ActionLoopDetectionGrader())
    spots = {(22, 1): 0.972222, (0, 3): 0.974359, (8, 1): 0.975, (46, 3): 0.993464}
    assert {key: loop[key] for key in spots} == pytest.approx(spots, abs=5e-7)
    assert sum(score == 1.0 for score in loop.values()) == 96

    looser = scores(rows, ActionLoopDetectionGrader(similarity_threshold=0.8))
    assert looser[0, 3] == pytest.approx(0.730769, abs=5e-7)

    gain = scores(rows, ObservationInformationGainGrader())
    spots = {(22, 1): 0.612848, (0, 3): 0.525726, (8, 1): 0.641451, (46, 3): 0.705174}
    spots |= {(0, 0): 0.916902, (2, 0): 0.579506, (4, 0): 0.702624, (6, 0): 0.802888}
    assert {key: gain[key] for key in spots} == pytest.approx(spots, abs=5e-7)


def test_every_call_of_the_file_is_paired(rows: list[dict[str, Any]]) -> None:
    trajectories = [parse_trajectory(row["traj"]) for row in rows]
    assert sum(len(trajectory.steps) for trajectory in trajectories) == 577
    assert sum(t.unanswered_calls + t.orphan_results for t in trajectories) == 0
    assert sum(not trajectory.steps for trajectory in trajectories) == 9
