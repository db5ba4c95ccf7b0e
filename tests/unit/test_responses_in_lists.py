"""verl's generation file: a list of responses a row, as samples of one group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError, RolloutError
from adjudge.rollouts.rows import count_rows, read_rows
from adjudge.rollouts.samples import read_samples
from adjudge.rollouts.shards import cut_files, read_shard
from adjudge.studies.ifeval.files import read_responses
from adjudge.studies.ifeval.verl_file import check_parquet, write_parquet
from adjudge.types import Sample

CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "why?"}]


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "gen.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def samples(path: Path, **mapping: str) -> list[Sample]:
    found = [sample for _, sample in read_samples([path], mapping)]
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
    assert [(one.index, one.response) for one in found] == [(0, "a"), (1, ""), (2, "c"), (3, "d")]
    assert [one.group for one in found] == [None, None, None, "u"]
    assert [one.group for one in samples(path)] == ["row 0", "row 0", None, "row 2"]
    first = found[0]
    assert (first.prompt, first.reference, first.extras["sample"]) == ("why?", "g", 0)
    assert first.messages == [*CHAT, {"role": "assistant", "content": "a"}]
    assert "responses" not in first.extras


def test_each_response_counts(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"prompt": "p", "responses": ["a"] * n} for n in (2, 3, 1)]
    path = write(tmp_path, *rows)
    assert count_rows([path]) == 6 == len(samples(path))
    table = tmp_path / "gen.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    assert count_rows([table]) == 6 == len(samples(table))
    assert count_rows([write(tmp_path, *rows, {"prompt": "p", "response": "b"})]) == 7


def test_a_response_that_was_not_made_is_a_broken_row(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "p", "responses": ["a", None]})
    [(_, first), (where, second)] = read_samples([path])
    assert isinstance(first, Sample)
    assert isinstance(second, RolloutError)
    assert where == f"{path}:1"
    assert "responses.1: is null" in str(second)


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


def test_shards_do_not_cut_lists(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "p", "responses": ["a", "b"]})
    [shard] = cut_files([path], 10)
    with pytest.raises(ConfigError, match="by the local engine only"):
        list(read_shard(shard))


def test_what_we_write_is_what_we_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    prompts = [
        {"key": 7, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {"key": 8, "prompt": "q", "instruction_id_list": ["a:b"], "kwargs": [{"num_words": 3}]},
        {"key": 9, "prompt": "r", "instruction_id_list": ["a:b"], "kwargs": [{}]},
    ]  # fmt: skip
    lines = [
        {"prompt": "p", "response": "half an emoji \ud83d", "sample": 0},
        {"prompt": "p", "response": "two", "sample": 1},
        {"prompt": "q", "response": "one", "sample": 1},
        {"prompt": "q", "error": {"kind": "timeout"}, "sample": 0},
    ]
    given, _ = read_responses(write(tmp_path, *lines), "prompt")
    path = tmp_path / "out" / "gen.parquet"
    write_parquet(path, prompts, given, "prompt")
    for by in ("prompt", "key"):
        found, problems = read_responses(path, by)
        assert [(one.place, one.sample, one.text, one.failure) for one in found] == [
            (prompts[0][by], 0, "half an emoji ?", ""), (prompts[0][by], 1, "two", ""),
            (prompts[1][by], 0, None, "unknown"), (prompts[1][by], 1, "one", ""),
            (prompts[2][by], 0, None, "unknown"), (prompts[2][by], 1, None, "unknown"),
        ]  # fmt: skip
        assert problems == []
    rows = [found for _, found in read_samples([path]) if isinstance(found, Sample)]
    assert [(one.group, one.prompt) for one in rows] == [("row 0", "p"), ("row 0", "p"),
                                                         ("row 1", "q")]  # fmt: skip
    assert rows[2].extras["kwargs"] == [{"num_words": 3, "prompt_to_repeat": None}]


@pytest.mark.parametrize(
    "odd",
    [
        {"kwargs": "abc"},
        {"kwargs": [{"num_words": 10**30}]},
        {"kwargs": [{"num_words": "three"}]},
        {"key": "a text"},
        {"key": [1]},
    ],
)
def test_prompts_that_fit_no_columns_are_refused_before_anything_is_generated(
    tmp_path: Path, odd: dict[str, Any]
) -> None:
    pytest.importorskip("pyarrow")
    good = {"key": 7, "prompt": "p", "instruction_id_list": ["a:b"], "kwargs": [{"num_words": 3}]}
    with pytest.raises(ConfigError, match=r"fit no Parquet column: .*; give --responses a \.jsonl"):
        check_parquet(tmp_path / "gen.parquet", [good, {**good, **odd}])


def test_arguments_that_are_no_object_stay_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    good = {"key": 7, "prompt": "p", "instruction_id_list": ["a:b"], "kwargs": [{"num_words": 3}]}
    path = tmp_path / "gen.parquet"
    write_parquet(path, [good, {**good, "key": 8, "prompt": "q", "kwargs": [None]}], [], "prompt")
    rows = [row for _, row in read_rows([path])]
    assert [row["kwargs"] for row in rows if isinstance(row, dict)] == [
        [{"num_words": 3, "prompt_to_repeat": None}], [None],
    ]  # fmt: skip
