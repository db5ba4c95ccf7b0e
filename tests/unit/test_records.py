"""The samples of a run folder, and their rollouts."""

from pathlib import Path

import pytest
from tests.rows import write_jsonl

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
    file = write_jsonl(tmp_path / "rollouts.jsonl", ROWS)
    adjudge.grade(file, SPEC, output=tmp_path / "run")
    return tmp_path / "run"


def test_changed_rollouts_are_refused(graded: Path) -> None:
    file = graded.parent / "rollouts.jsonl"
    file.write_text(file.read_text().replace('"5"', '"7"'))
    with pytest.raises(RunFolderError, match="not what was graded"):
        list(RunRecords(graded).with_samples())


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has neither rewards\.jsonl"):
        RunRecords(tmp_path)


FOREIGN = [
    '{"index": -7}',
    '{"index": -7, "reward": 1.0}',
    '{"index": "x", "reward": 1.0}',
    '{"index": null, "reward": 1.0}',
    '{"index": 1e400, "reward": 1.0}',
    '{"index": 99999999999999999999, "reward": 1.0}',
    '{"index": 9000000000000000000, "reward": 1.0}',
    '{"index": 5}',
    '{"index": 0, "reward": 1.0, "key": "again"}',
    '{"index": 40, "reward": 1.0}',
    '{"index": 1, "messages": [{"x": 1}], "reward": 1.0}',
    "[1, 2]",
    "[" * 100_000,
    "\x00" * 100,
    "",
]


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_foreign_row_costs_itself_alone(
    graded: Path, caplog: pytest.LogCaptureFixture, foreign: str, place: int
) -> None:
    def read() -> list[tuple[int, float | None, str | None]]:
        found = RunRecords(graded).with_samples()
        return [(record.index, record.reward, sample.response) for record, sample in found]

    file = graded / "rewards.jsonl"
    lines = file.read_text().splitlines()
    expected = read()
    if '"index": 0' in foreign:
        place += 1  # the first of two counts
    file.write_text("\n".join([*lines[:place], foreign, *lines[place:], ""]))
    assert read() == expected
    assert f"{file}:{place + 1}" in caplog.text


@pytest.mark.parametrize(
    "content",
    [b'{"a": "\xff"}', b'{"a": ' + b"[" * 100_000, b'{"inputs": 7}', b'{"map": [1]}', b"[]", b""],
)
def test_a_damaged_manifest_is_one_message(graded: Path, content: bytes) -> None:
    (graded / "run.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"run\.json: "):
        list(RunRecords(graded).with_samples())
