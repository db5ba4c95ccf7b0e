"""Rubric scores of recorded judge replies, and signed points on real rubrics.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has
``judge_outputs/scores_clean.jsonl``, ``healthbench/healthbench_val.parquet`` (500 HealthBench
rubrics) and ``verinstruct/verinstruct_val.parquet`` (275 checklists).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from tests.recorded import find_recorded, read_parquet

from adjudge.checks.rubric_lint import lint
from adjudge.rubrics import Incomplete, Rubric, RubricScore, rubric_from, score, score_range

pytestmark = pytest.mark.needs


def rubrics_in(name: str) -> list[Rubric]:
    return [rubric_from(row["reward_model"]["rubrics"]) for row in read_parquet(name)]


@pytest.fixture(scope="module")
def healthbench() -> list[Rubric]:
    return rubrics_in("healthbench/healthbench_val.parquet")


@pytest.fixture(scope="module")
def replies() -> list[dict[str, Any]]:
    path = find_recorded("judge_outputs/scores_clean.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["source"] == "healthbench"]


def marks_in(text: str) -> dict[str, bool]:
    fenced = re.search(r"```json\s*(\{.*?\})\s*```", text, re.DOTALL)
    assert fenced is not None
    return {name: said == "PRESENT" for name, said in json.loads(fenced[1]).items()}


def test_recorded_replies_give_the_recorded_scores(
    replies: list[dict[str, Any]], healthbench: list[Rubric]
) -> None:
    assert len(replies) == 14
    for row in replies:
        rubric = healthbench[int(row["id"].rsplit(":", 1)[1])]
        rubric = replace(rubric, clip=True)
        outcome = score(rubric, marks_in(row["judge_debug"]["response_text"]))
        assert isinstance(outcome, RubricScore)
        assert outcome.score == row["score"], row["id"]


def test_a_recorded_reply_cut_short_gives_an_interval_around_its_score(
    replies: list[dict[str, Any]], healthbench: list[Rubric]
) -> None:
    for row in replies:
        rubric = healthbench[int(row["id"].rsplit(":", 1)[1])]
        marks = marks_in(row["judge_debug"]["response_text"])
        whole = score(rubric, marks)
        half = score(rubric, dict(list(marks.items())[: len(marks) // 2]))
        assert isinstance(whole, RubricScore)
        assert isinstance(half, Incomplete)
        assert half.low <= whole.score <= half.high


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
