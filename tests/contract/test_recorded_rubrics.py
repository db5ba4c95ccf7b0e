"""Signed points on real rubrics, and what the lint says of them.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has
``healthbench/healthbench_val.parquet`` (500 HealthBench rubrics) and
``verinstruct/verinstruct_val.parquet`` (275 checklists).
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest
from tests.recorded import read_parquet

from adjudge.checks.rubric_lint import lint
from adjudge.rubrics import Rubric, RubricScore, rubric_from, score, score_range

pytestmark = pytest.mark.needs


def rubrics_in(name: str) -> list[Rubric]:
    return [rubric_from(row["reward_model"]["rubrics"]) for row in read_parquet(name)]


@pytest.fixture(scope="module")
def healthbench() -> list[Rubric]:
    return rubrics_in("healthbench/healthbench_val.parquet")


def test_raw_scores_below_zero_survive(healthbench: list[Rubric]) -> None:
    assert len(healthbench) == 500
    assert sum(len(rubric.criteria) for rubric in healthbench) == 5965
    lowest = []
    for rubric in healthbench:
        outcome = score(rubric, {c.id: c.is_fault for c in rubric.criteria})
        assert isinstance(outcome, RubricScore)
        bounds = score_range(rubric)
        assert bounds == (outcome.score, 1.0)
        lowest.append(outcome.score)
    assert min(lowest) == pytest.approx(-3.286, abs=5e-4)
    assert fmean(lowest) == pytest.approx(-0.503, abs=5e-4)


def test_each_rule_of_the_lint_finds_something_in_real_rubrics(healthbench: list[Rubric]) -> None:
    checklists = rubrics_in("verinstruct/verinstruct_val.parquet")
    assert len(checklists) == 275
    assert {rubric.scheme for rubric in checklists} == {"weights"}
    counts = Counter(found.rule for one in (*healthbench, *checklists) for found in lint(one))
    assert counts == {
        "compound": 1463,
        "unverifiable": 292,
        "long": 211,
        "presence_only": 66,
        "overlap": 34,
        "too_many": 32,
        "polarity": 13,
    }
