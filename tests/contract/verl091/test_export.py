"""What `adjudge export --format verl` writes, read by verl's own data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tiny import tokenizer
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
from verl.utils.dataset.rl_dataset import RLHFDataset

import adjudge
from adjudge.runs.export import ExportSettings, export_run

TOOL = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}


@pytest.fixture(params=[False, True], ids=["plain", "tools"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The best answer of each of three groups."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": "what is 2 + 3 ?"},
                {"role": "assistant", "content": said},
            ],
            "group": str(group),
            "reference": "5",
            **({"tools": [TOOL]} if request.param else {}),
        }
        for group in range(3)
        for said in ("5", "fail")
    ]
    file = tmp_path / "rollouts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"graders": [{"name": "right", "type": "string_match"}]}
    adjudge.grade(file, spec, output=tmp_path / "run")
    path = tmp_path / "best.parquet"
    settings = ExportSettings(kind="best-of-n", form="verl")
    assert export_run(tmp_path / "run", path, settings).written == 3
    return str(path)


def test_sft_reads_the_messages(table: str) -> None:
    config: Any = OmegaConf.create({"max_length": 64, "truncation": "right", "pad_mode": "right"})
    words = tokenizer()
    found = MultiTurnSFTDataset(parquet_files=table, tokenizer=words, config=config)
    assert len(found) == 3
    row = found[0]
    learned = row["input_ids"][row["loss_mask"].bool()]
    assert words.decode(learned).split()[0] == "5"
    assert "what is 2 + 3 ?" in words.decode(row["input_ids"])


def test_rl_reads_the_prompts(table: str, tmp_path: Path) -> None:
    config: Any = OmegaConf.create(
        {"max_prompt_length": 64, "cache_dir": str(tmp_path), "return_raw_chat": True,
         "filter_overlong_prompts": False, "truncation": "error"}
    )  # fmt: skip
    found = RLHFDataset(data_files=table, tokenizer=tokenizer(), config=config)
    assert len(found) == 3
    row = found[0]
    assert list(row["raw_prompt"]) == [{"role": "user", "content": "what is 2 + 3 ?"}]
    assert row["reward_model"]["ground_truth"] == "5"
    assert row["data_source"] == "adjudge"
    assert row["index"] == 0
