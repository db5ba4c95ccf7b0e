"""Recorded judge replies, read again: the scores that were recorded with them.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has
``judge_outputs/scores_clean.jsonl`` and ``scores_torn.jsonl`` (the same after a torn write), and
``ifeval/input_data.jsonl``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.recorded import find_recorded

from adjudge_lab.evaluation.ifeval.files import (
    read_ifeval_prompts,
    read_ifeval_responses,
    write_response_parquet,
)
from adjudge_lab.evaluation.responses import PromptResponse
from adjudge_lab.studies.replay import ReplayJob, replay_dump

pytestmark = pytest.mark.needs


@pytest.mark.parametrize("parse", ["strict", "anywhere", "either"])
@pytest.mark.parametrize("name", ["scores_clean.jsonl", "scores_torn.jsonl"])
def test_every_recorded_score_comes_out_exactly(tmp_path: Path, name: str, parse: str) -> None:
    job = ReplayJob(
        dump=find_recorded(f"judge_outputs/{name}"), folder=tmp_path / "out", parse=parse
    )
    summary = replay_dump(job)
    rows = [json.loads(line) for line in (job.folder / "rows.jsonl").read_text().splitlines()]
    scores = {(row["source"], row["score"] == row["recorded"]) for row in rows}
    assert scores == {("healthbench", True), ("verinstruct_verif", True)}  # to the bit
    assert [row["source"] for row in rows].count("healthbench") == 14
    assert sum(arm["parsed"] for arm in summary["arms"]) == len(rows) == 29
    assert sum(arm["common"]["changed"] for arm in summary["arms"]) == 0
    means = {arm["judge"][-3:]: arm["mean_score"] for arm in summary["arms"]
             if arm["source"] == "healthbench"}  # fmt: skip
    assert means == {
        "0.0": pytest.approx(0.6287, abs=5e-5),
        "0.7": pytest.approx(0.5590, abs=5e-5),
        "1.0": pytest.approx(0.7030, abs=5e-5),
    }
    ranges = {one["source"]: one for one in summary["ranges"]}
    assert ranges["healthbench"]["item"] == "healthbench:val:272"
    assert ranges["healthbench"]["largest"] == pytest.approx(0.526316, abs=5e-7)
    assert ranges["verinstruct_verif"]["largest"] == 0
    torn = [one["reason"] for one in summary["problems"]["first"]]
    assert torn == (["read without its 16,864 NUL bytes"] if "torn" in name else [])


def test_the_published_prompts_fit_verls_file(tmp_path: Path) -> None:
    prompts = read_ifeval_prompts(find_recorded("ifeval/input_data.jsonl"), "prompt")
    given = [PromptResponse(place=row["prompt"], sample=k, text=f"{k} of {row['key']}", line=0)
             for row in prompts for k in range(2)]  # fmt: skip
    write_response_parquet(tmp_path / "gen.parquet", prompts, given, "prompt")
    found, problems = read_ifeval_responses(tmp_path / "gen.parquet", "prompt")
    assert problems == []
    keyed: dict[Any, Any] = {(one.place, one.sample): one.text for one in found}
    assert keyed == {(one.place, one.sample): one.text for one in given}
