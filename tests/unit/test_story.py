"""The story of one sample: what a page gets of a row, its rollout and its judges' calls."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tests.rows import write_jsonl

from adjudge.rewards.spec import RewardSpec
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import GradingJob
from adjudge.runs.samples import describe_sample
from adjudge.runs.story import GraderFacts, tell_story
from adjudge.runs.view.run_reader import RunReader
from adjudge.types import Sample

CRITERIA = [{"criterion": "Names a dose", "points": 3}, {"criterion": "Says when", "points": 1}]


def _tell(details: dict[str, Any], **facts: Any) -> dict[str, Any]:
    graders = {"g": GraderFacts(name="g", **facts)}
    [found] = tell_story(graders, {"index": 0, "details": {"g": details}})["graders"]
    return dict(found)


def graded(folder: Path, spec: RewardSpec, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page says of each row, once all are graded."""
    rollouts = write_jsonl(folder / "in.jsonl", rows)
    grade_rollouts(GradingJob([rollouts], spec, folder / "run", show_progress=False))
    reader = RunReader(folder / "run")
    reader.refresh()
    return [describe_sample(reader, row) or {} for row in range(len(rows))]


def test_the_first_row_of_a_graded_folder(tmp_path: Path) -> None:
    rows = [
        {"prompt": "2 + 2?", "response": text, "reference": "4", "group": "g"}
        for text in ("4", "5")
    ]
    spec = RewardSpec.from_dict(
        {
            "graders": [
                {"name": "right", "type": "string_match"},
                {"name": "quality", "type": "rubric", "judge": "j", "criteria": CRITERIA,
                 "weight": 2.0},
            ],
            "judges": {"j": {"type": "scripted", "script": json.dumps(
                {"1": {"reason": "500 mg", "verdict": "MET"},
                 "2": {"reason": "not said", "verdict": "UNMET"}})}},
        }
    )  # fmt: skip
    story = graded(tmp_path, spec, rows)[0]["story"]
    right, quality = story["graders"]
    assert (story["index"], story["group"], story["missing"]) == (0, "g", None)
    assert (right["type"], right["asks_judge"], right["score"]) == ("string_match", False, 1.0)
    assert (quality["judges"], quality["weight"], quality["score"]) == (["j"], 2.0, 0.75)
    assert [(one["text"], one["points"], one["verdict"]) for one in quality["criteria"]] == [
        ("Names a dose", 3, "met"),
        ("Says when", 1, "not met"),
    ]
    assert [one["reward"] for one in story["members"]] == [
        one["reward"]
        for one in map(json.loads, (tmp_path / "run/rewards.jsonl").read_text().splitlines())
    ]


def _chains(folder: Path, reward: dict[str, Any]) -> list[dict[str, str]]:
    """Two samples of a group, by a rule and by points on a wider range: what the page says."""
    rows = [
        {"prompt": "2 + 2?", "response": text, "reference": "4", "group": "g", "reward": 1.0}
        for text in ("4", "it is five")
    ]
    spec = RewardSpec.from_dict(
        {
            "graders": [
                {"name": "right", "type": "string_match", "weight": 2.0},
                {"name": "points", "type": f"{__name__}:rate_length", "score_range": [0, 20]},
            ],
            "reward": reward,
        }
    )
    return [dict(one["chain"]) for one in graded(folder, spec, rows)]


def rate_length(response: str) -> float:
    return len(response)


def test_a_reward_is_shown_with_the_numbers_that_made_it(tmp_path: Path) -> None:
    first, second = _chains(
        tmp_path, {"group": "centre", "combine_mode": "weighted_sum", "judge_scale": 5.0}
    )
    assert first == {
        "points": "0.05 = 1 on the range 0 to 20",
        "outcome": "0.6833 = (2 × 1 (right) + 1 × 0.05 (points)) ÷ 3",
        "outcome in its group": "0.2583 = centre of 0.6833 in its group of 2",
        "reward": "2.292 = 1 (environment) + 5 (judge scale) × 0.2583 (judge part)",
    }
    assert second["reward"] == "-0.2917 = 1 (environment) + 5 (judge scale) × -0.2583 (judge part)"


def test_a_step_over_several_numbers_is_not_made_up(tmp_path: Path) -> None:
    """gdpo adds up z-scores of graders: of the rewards of their mean nothing is said."""
    for chain in _chains(tmp_path, {"group": "gdpo"}):
        assert list(chain) == ["points", "outcome"]


def test_a_criterion_without_an_answer_has_no_verdict() -> None:
    metadata = {"criteria": {"a": {"met": True, "reason": "r"}}, "missing": ["b"]}
    told = _tell(
        {"kind": "incomplete", "error": "1 of 2", "metadata": metadata},
        criteria=[{"name": "a", "text": "A", "points": 1}, {"name": "b", "text": "B", "points": 2}],
    )
    assert told["failure"] == {"kind": "incomplete", "error": "1 of 2"}
    assert [one["verdict"] for one in told["criteria"]] == ["met", "none"]
    assert told["score"] is None


def test_both_orders_of_a_pair_with_their_reasons() -> None:
    metadata = {"verdicts": {"as_given": "win", "swapped": "loss"}, "outcome": "inconsistent"}
    reason = "[as_given] it is [short]\n\n[swapped] the other"
    orders = _tell({"score": 0.5, "reason": reason, "metadata": metadata})["orders"]
    assert [(one["first"], one["verdict"], one["score"], one["reason"]) for one in orders] == [
        ("response", "win", 1.0, "it is [short]"),
        ("other", "loss", 0.0, "the other"),
    ]


def test_instructions_and_tests_are_criteria_and_members_are_votes() -> None:
    followed = {"instructions": ["x:y", "z:w"], "followed": [True, False]}
    assert [one["verdict"] for one in _tell({"metadata": followed})["criteria"]] == [
        "met",
        "not met",
    ]
    tests = {"passed": 1, "total": 2, "outcomes": ["passed", "wrong answer"]}
    assert [one["reason"] for one in _tell({"metadata": tests})["criteria"]][1] == "wrong answer"
    votes = {
        "members": {"a/1": {"score": 1.0, "reason": "yes"}},
        "missing": {"a/2": {"kind": "timeout", "error": "late"}},
        "asked": 2,
    }
    first, second = _tell({"score": 1.0, "metadata": votes})["votes"]
    assert (first["label"], first["score"]) == ("a/1", 1.0)
    assert (second["score"], second["failure"]["kind"]) == (None, "timeout")


def test_a_rubric_that_the_sample_brought_and_one_that_is_none() -> None:
    graders = {"g": GraderFacts(name="g", rubric_field="r")}
    row = {"details": {"g": {"score": 1.0, "metadata": {"criteria": {"1": {"met": True}}}}}}
    for brought, text in ((["Names a dose"], "Names a dose"), (7, ""), ({"criteria": 1}, "")):
        sample = Sample(response="x", extra={"r": brought})
        [told] = tell_story(graders, row, sample=sample)["graders"]
        assert [one["text"] for one in told["criteria"]] == [text]


def test_whatever_stands_in_a_row_is_json_for_a_browser() -> None:
    hostile: list[Any] = [None, 3, "<script>", [1], {"score": math.nan, "metadata": [2**80]}]
    for said in hostile:
        row = {"index": 2**80, "details": {"g": said, "events": said}, "messages": [said, "x"]}
        told = tell_story({}, row)
        assert json.loads(json.dumps(told, allow_nan=False)) == told
