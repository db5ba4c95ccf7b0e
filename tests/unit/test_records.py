"""The samples of a run folder, and their rollouts."""

import json
from pathlib import Path

import pytest

import adjudge
from adjudge.errors import RunFolderError
from adjudge.runs.records import RunRecords

SPEC = {"graders": [{"name": "right", "type": "string_match"}]}
ROWS = [
    {"prompt": "2 + 2?", "response": said, "reference": "4", "group": "a", "step": 3}
    for said in ("4", "5", "six \ud800")
]


@pytest.fixture
def graded(tmp_path: Path) -> Path:
    file = tmp_path / "rollouts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    adjudge.grade(file, SPEC, output=tmp_path / "run")
    return tmp_path / "run"


def test_records_come_with_their_rollouts(graded: Path) -> None:
    found = list(RunRecords(graded).with_samples())
    assert [record.reward for record, _ in found] == [1.0, 0.0, 0.0]
    assert [record.scores for record, _ in found][:2] == [{"right": 1.0}, {"right": 0.0}]
    assert [record.group_key for record, _ in found] == [(3, "a")] * 3
    assert [record.where.rpartition(":")[2] for record, _ in found] == ["1", "2", "3"]
    assert [sample.response for _, sample in found][:2] == ["4", "5"]


def test_changed_rollouts_are_refused(graded: Path) -> None:
    file = graded.parent / "rollouts.jsonl"
    file.write_text(file.read_text().replace('"5"', '"7"'))
    with pytest.raises(RunFolderError, match="not what was graded"):
        list(RunRecords(graded).with_samples())


def test_rollouts_that_are_gone_are_read_from_what_the_run_kept(graded: Path) -> None:
    before = [sample for _, sample in RunRecords(graded).with_samples()]
    (graded.parent / "rollouts.jsonl").unlink()
    after = [sample for _, sample in RunRecords(graded).with_samples()]
    assert [one.response for one in after][:2] == [one.response for one in before][:2]
    (graded / "transcripts.sqlite").unlink()
    with pytest.raises(RunFolderError, match="Put them back"):
        list(RunRecords(graded).with_samples())


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has neither rewards\.jsonl"):
        RunRecords(tmp_path)
