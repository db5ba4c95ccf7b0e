"""Swap studies of odd but legitimate rollouts: what is a group, and what a page must not claim."""

import json
from pathlib import Path

import pytest

from adjudge.judge_evaluation.swap.judgements import SwapTable
from adjudge.judge_evaluation.swap.rollouts import find_rollout_sources, gather_rollouts
from adjudge.judge_evaluation.swap.study import read_swap_judges


def gathered(folder: Path, rows: list[dict[str, object]], *group: str) -> SwapTable:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = folder / "study" / "rollouts.jsonl"
    target.parent.mkdir()
    return gather_rollouts(find_rollout_sources([file], {}), target, group=group).table


def test_llmbar_is_known_by_its_columns_a_row_a_line_too(tmp_path: Path) -> None:
    row: dict[str, object] = {"input": "q", "output_1": "r", "output_2": "s", "label": 2}
    table = gathered(tmp_path, [row, row])
    assert table.members == [[0, 1], [2, 3]]
    assert [line.env_reward for line in table.samples] == [0.0, 1.0] * 2


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a/b", "c"), ("a", "b/c")), (("a\\", "b"), ("a", "\\b")), (("a\\/b", "c"), ("a\\", "b/c"))],
)
def test_groups_of_two_columns_are_those_of_both(
    tmp_path: Path, one: tuple[str, str], other: tuple[str, str]
) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": "q", "response": "r", "source": source, "row": row}
        for source, row in (one, one, other)
    ]
    assert gathered(tmp_path, rows, "source", "row").members == [[0, 1], [2]]


def test_a_group_of_one_column_is_called_as_it_is(tmp_path: Path) -> None:
    sheet = gathered(tmp_path, [{"prompt": "q", "response": "r", "uid": "a/b"}], "uid")
    assert sheet.samples[0].group == "a/b"


def test_published_files_of_one_judge_are_one_judge(tmp_path: Path) -> None:
    paths = [
        tmp_path / subset / "evaluators" / "GPT-4" / "Vanilla" / "result.json"
        for subset in ("Natural", "Manual")
    ]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("[]")
    [judge] = read_swap_judges([str(path) for path in paths])
    assert (judge.name, judge.paths) == ("GPT-4_Vanilla", paths)
