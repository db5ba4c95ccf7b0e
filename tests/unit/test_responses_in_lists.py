"""verl's generation file: a list of responses a row, as samples of one group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.rows import write_jsonl

from adjudge.rollouts.samples import SampleReader
from adjudge.types import Sample

CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "why?"}]


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    return write_jsonl(folder / "gen.jsonl", rows)


def samples(path: Path, **mapping: str) -> list[Sample]:
    found = [sample for _, sample in SampleReader([path], mapping).read()]
    assert all(isinstance(one, Sample) for one in found), found
    return [one for one in found if isinstance(one, Sample)]


def test_each_response_is_a_sample_of_its_rows_group(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": CHAT, "responses": ["a", ""], "reward_model": {"ground_truth": "g"}},
        {"prompt": "why?", "response": "c"},
        {"prompt": CHAT, "responses": ["d"], "uid": "u"},
    )
    found = samples(path, reference="reward_model.ground_truth", group="uid")
    assert [(one.original_index, one.response) for one in found] == [
        (0, "a"),
        (1, ""),
        (2, "c"),
        (3, "d"),
    ]
    assert [one.group for one in found] == [None, None, None, "u"]
    assert [one.group for one in samples(path)] == ["row 0", "row 0", None, "row 2"]
    first = found[0]
    assert (first.prompt, first.reference, first.extra["sample"]) == ("why?", "g", 0)
    assert first.messages == [*CHAT, {"role": "assistant", "content": "a"}]
    assert "responses" not in first.extra


@pytest.mark.parametrize(
    "row",
    [
        {"response": "r", "responses": ["a", "b"]},
        {"messages": [*CHAT, {"role": "assistant", "content": "r"}], "responses": ["a", "b"]},
        {"response": "r", "responses": []},
        {"response": "r", "responses": [{"text": "a"}]},
    ],
)
def test_a_response_of_its_own_is_the_rows(tmp_path: Path, row: dict[str, Any]) -> None:
    [found] = samples(write(tmp_path, row))
    assert found.response == "r"


def test_a_mapped_response_is_the_rows(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "p", "best": "r", "responses": ["a", "b"]})
    assert [one.response for one in samples(path, response="best")] == ["r"]
