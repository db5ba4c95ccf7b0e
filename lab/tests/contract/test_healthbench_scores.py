"""HealthBench's shipped rows with a scripted judge: the scores are the formula, worked out here.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has
``healthbench/healthbench_val.parquet`` (500 rows, 5965 criteria).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.recorded import read_parquet

from adjudge_lab.evaluation.healthbench_run import HealthbenchJob, evaluate_healthbench

pytestmark = pytest.mark.slow

RESPONSE = "Please see a doctor soon, and rest until then."
SPEC = """
[[graders]]
name = "marks"
type = "rubric"
ask = "{ask}"

[judges.main]
type = "scripted"
function = "hash_judge:judge"
"""
# Met by a hash of the criterion's letters; some criteria never get a verdict.
JUDGE = r"""
import re
from hashlib import sha256

def judge(messages):
    text = messages[-1]["content"]
    block = text[text.index("<sample_criteria-"):]
    block = block[:block.index("\n</sample_criteria-")]
    marks = {}
    for line in block.split("\n")[1:]:
        number, _, words = line.partition(". ")
        drawn = sha256(re.sub("[^A-Za-z0-9]", "", words).encode()).digest()
        if drawn[1] != 0:
            verdict = "MET" if drawn[0] % 2 else "UNMET"
            marks[number] = {"reason": "", "verdict": verdict}
    return marks or "no verdict"
"""


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return read_parquet("healthbench/healthbench_val.parquet")


def met(criterion: dict[str, Any]) -> bool | None:
    drawn = sha256(re.sub("[^A-Za-z0-9]", "", criterion["criterion"]).encode()).digest()
    return None if drawn[1] == 0 else bool(drawn[0] % 2)


def formula(criteria: list[dict[str, Any]]) -> float | None:
    possible = sum(one["points"] for one in criteria if one["points"] > 0)
    earned = sum(one["points"] for one in criteria if met(one))
    return earned / possible if possible else None


def mean(values: list[float]) -> float:
    return min(1.0, max(0.0, sum(values) / len(values)))


def by_hand(rows: list[dict[str, Any]]) -> tuple[list[float | None], dict[str, float]]:
    """The scores of the rows, and the clipped means by tag over those that have one."""
    scores: list[float | None] = []
    tags = defaultdict(list)
    for row in rows:
        criteria = row["reward_model"]["rubrics"]
        if any(met(one) is None for one in criteria):
            scores.append(None)
            continue
        scores.append(formula(criteria))
        for axis in {one["tags"]["axis"] for one in criteria}:
            part = formula([one for one in criteria if one["tags"]["axis"] == axis])
            if part is not None:
                tags[f"axis:{axis}"].append(part)
    return scores, {tag: mean(values) for tag, values in tags.items()}


@pytest.mark.parametrize(("ask", "count"), [("all", 500), ("each", 25)])
def test_scores_are_the_formula(
    rows: list[dict[str, Any]], tmp_path: Path, ask: str, count: int
) -> None:
    rows = rows[:count]
    data, responses = tmp_path / "data.jsonl", tmp_path / "responses.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = [{"prompt": row["prompt"], "response": RESPONSE} for row in rows]
    responses.write_text("".join(json.dumps(row) + "\n" for row in said))
    (tmp_path / "judge.toml").write_text(SPEC.format(ask=ask))
    (tmp_path / "hash_judge.py").write_text(JUDGE)
    job = HealthbenchJob(
        target=str(tmp_path / "judge.toml"),
        data=data,
        responses=responses,
        folder=tmp_path / "out",
        show_progress=False,
    )
    summary = evaluate_healthbench(job)
    scores, tags = by_hand(rows)
    known = [one for one in scores if one is not None]
    lines = (tmp_path / "out/scores.jsonl").read_text().splitlines()
    found = [json.loads(line)["score"] for line in lines]
    assert [one is None for one in found] == [one is None for one in scores]
    assert [one for one in found if one is not None] == pytest.approx(known)
    assert summary["overall"]["score"] == pytest.approx(mean(known))
    assert summary["overall"]["n_samples"] == len(known) < len(rows)
    assert len(known) > 0.8 * len(rows)
    axes = {t: one["score"] for t, one in summary["tags"].items() if t.startswith("axis:")}
    assert axes == pytest.approx(tags)
    assert sum(summary["missing_by_kind"].values()) == len(rows) - len(known)
    for line, row, score in zip(map(json.loads, lines), rows, scores, strict=True):
        if score is None:
            check_interval(line, row["reward_model"]["rubrics"])


def check_interval(line: dict[str, Any], criteria: list[dict[str, Any]]) -> None:
    possible = sum(one["points"] for one in criteria if one["points"] > 0)
    earned = sum(one["points"] for one in criteria if met(one))
    unknown = [one["points"] for one in criteria if met(one) is None]
    low = (earned + sum(points for points in unknown if points < 0)) / possible
    high = (earned + sum(points for points in unknown if points > 0)) / possible
    assert (line["low"], line["high"]) == (pytest.approx(low), pytest.approx(high))
