"""verl's generation file as an IFEval evaluation writes it, and what reads it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.rows import write_jsonl

from adjudge.errors import ConfigError
from adjudge.rollouts.samples import SampleReader
from adjudge.types import Sample
from adjudge_lab.evaluation.ifeval.files import (
    check_parquet_prompts,
    read_ifeval_responses,
    write_response_parquet,
)


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
    given, _ = read_ifeval_responses(write_jsonl(tmp_path / "gen.jsonl", lines), "prompt")
    path = tmp_path / "out" / "gen.parquet"
    write_response_parquet(path, prompts, given, "prompt")
    for by in ("prompt", "key"):
        found, problems = read_ifeval_responses(path, by)
        assert [(one.place, one.sample, one.text, one.failure) for one in found] == [
            (prompts[0][by], 0, "half an emoji ?", ""), (prompts[0][by], 1, "two", ""),
            (prompts[1][by], 0, None, "unknown"), (prompts[1][by], 1, "one", ""),
            (prompts[2][by], 0, None, "unknown"), (prompts[2][by], 1, None, "unknown"),
        ]  # fmt: skip
        assert problems == []
    rows = [found for _, found in SampleReader([path]).read() if isinstance(found, Sample)]
    assert [(one.group, one.prompt) for one in rows] == [("row 0", "p"), ("row 0", "p"),
                                                         ("row 1", "q")]  # fmt: skip
    assert rows[2].extra["kwargs"] == [{"num_words": 3, "prompt_to_repeat": None}]


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
    with pytest.raises(
        ConfigError, match=r"do not fit a Parquet column \(.*\)\. Give --responses a \.jsonl"
    ):
        check_parquet_prompts(tmp_path / "gen.parquet", [good, {**good, **odd}])
