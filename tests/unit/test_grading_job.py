import json
from pathlib import Path
from typing import Any

import pytest

from adjudge import RewardSpec
from adjudge.runs import grading
from adjudge.runs.grading import GradingJob, grade_rollouts


def job(folder: Path, rows: list[dict[str, Any]], **reward: Any) -> GradingJob:
    path = folder / "rollouts.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    entry = {"name": "length", "type": "string_match", "match": "exact"}
    spec = RewardSpec.from_dict({"graders": [entry], "reward": reward})
    return GradingJob([path], spec, folder / "out", show_progress=False)


def rows(n: int, groups: int) -> list[dict[str, Any]]:
    return [
        {"response": str(i), "reference": str(i % 3), "group": i % groups, "env_reward": i % 2}
        for i in range(n)
    ]


@pytest.mark.parametrize("window", [1, 7, 4096])
def test_rewards_do_not_depend_on_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(grading, "_WINDOW", window)
    options: dict[str, Any] = {"group": "z_score", "sample_rate": 0.5}
    results = grade_rollouts(job(tmp_path, rows(40, 8), **options))
    drawn = {i % 8 for i, result in enumerate(results) if result.score is not None}
    assert len(drawn) not in (0, 8)
    for i, result in enumerate(results):
        assert (result.score is not None) == (i % 8 in drawn)
    (tmp_path / "reference").mkdir()
    monkeypatch.setattr(grading, "_WINDOW", 1000)
    whole = grade_rollouts(job(tmp_path / "reference", rows(40, 8), **options))
    assert [r.score for r in whole] == [r.score for r in results]


def test_a_resumed_run_gives_the_same_rewards(tmp_path: Path) -> None:
    doubled = rows(6, 2) * 3
    first = job(tmp_path, doubled)
    scores = [r.score for r in grade_rollouts(first)]
    journal = tmp_path / "out" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:8]) + lines[8][:20])  # killed while writing
    again = job(tmp_path, doubled)
    assert [r.score for r in grade_rollouts(again)] == scores
    assert again.resumed == 7
    more = job(tmp_path, [*doubled, *rows(2, 2)])
    assert [r.score for r in grade_rollouts(more)] == [*scores, *scores[:2]]
    assert more.resumed == 18
