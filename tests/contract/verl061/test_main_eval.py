"""verl's own `main_eval` with a reward spec: its mean is ours; a missing reward makes it NaN."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adjudge.rewards.spec import RewardSpec
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import GradingJob
from adjudge.runs.records import RunRecords
from adjudge.trainers.scoring import RECORD_VARIABLE
from adjudge.trainers.verl_eval import compute_score
from adjudge_lab.evaluation.ifeval.files import write_response_parquet
from adjudge_lab.evaluation.responses import PromptResponse

SPEC = """
version = 1

[[graders]]
name = "quality"
type = "llm"
template = "{prompt} / {response}"
score_range = [0.0, 1.0]

[judges.main]
type = "scripted"
[judges.main.script]
"broken" = "no verdict"
"question 1" = '{"score": 1.0}'
"good" = '{"score": 0.75}'
"" = '{"score": 0.25}'
"""

TEXTS = [["good", "poor", "same"], ["good", "worse", "same"], ["fair", "good", "same"]]


def write(folder: Path, texts: list[list[str]], sources: list[str]) -> Path:
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "prompt": [{"role": "user", "content": f"question {number}"}],
            "data_source": source,
            "reward_model": {"style": "rule", "ground_truth": ""},
            "responses": own,
        }
        for number, (own, source) in enumerate(zip(texts, sources, strict=True))
    ]
    path = folder / "gen.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    (folder / "held_out.toml").write_text(SPEC)
    return path


def main_eval(folder: Path, path: Path) -> dict[str, float]:
    where = subprocess.run(
        [sys.executable, "-m", "adjudge.trainers.verl_eval"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    kwargs = "+custom_reward_function.reward_kwargs"
    done = subprocess.run(
        [sys.executable, "-m", "verl.trainer.main_eval", f"data.path={path}",
         f"custom_reward_function.path={where}", f"{kwargs}.spec={folder / 'held_out.toml'}",
         f"{kwargs}.data={path}",
         "ray_kwargs.ray_init.num_cpus=2", f"hydra.run.dir={folder / 'hydra'}"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
             RECORD_VARIABLE: str(folder / "recorded")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(one for one in done.stdout.splitlines() if one.startswith("{'test_score"))
    plain = re.sub(r"np\.float64\(([^()]*)\)", r"\1", line).replace("nan", "None")
    found: dict[str, float] = ast.literal_eval(plain)
    return found


def graded(folder: Path, path: Path) -> list[float | None]:
    spec = RewardSpec.load(folder / "held_out.toml")
    job = GradingJob(paths=[path], spec=spec, folder=folder / "run", show_progress=False)
    return grade_rollouts(job).rewards


def test_its_means_are_those_of_adjudge_grade_and_nan_where_one_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, [*TEXTS, ["good", "broken", "poor"]], ["mine"] * 3 + ["gone"])
    scores = graded(tmp_path, path)
    # The judge likes prompt 1: "good" and "same" stand in other rows, too, word for word.
    assert scores == [0.75, 0.25, 0.25, 1.0, 1.0, 1.0, 0.25, 0.75, 0.25, 0.75, None, 0.25]
    mean = sum(score for score in scores[:9] if score is not None) / 9
    found = main_eval(tmp_path, path)
    # None: it prints nan.
    assert found == {"test_score/mine": pytest.approx(mean, abs=1e-12), "test_score/gone": None}
    recorded = list(RunRecords(tmp_path / "recorded"))
    assert [one.missing.kind for one in recorded if one.missing] == ["unparsable"]


def test_a_file_that_we_wrote_is_scored_too(tmp_path: Path) -> None:
    prompts: list[dict[str, Any]] = [
        {"key": n, "prompt": f"Say it, {n}.", "kwargs": [{}],
         "instruction_id_list": ["punctuation:no_comma"]} for n in range(3)
    ]  # fmt: skip
    responses = [PromptResponse(place=f"Say it, {n}.", sample=0, text="a, b" if n else "a", line=n)
                 for n in range(3)]  # fmt: skip
    path = tmp_path / "gen.parquet"
    write_response_parquet(path, prompts, responses, "prompt")
    (tmp_path / "held_out.toml").write_text(
        'version = 1\n[[graders]]\nname = "rules"\ntype = "ifeval"\n'
    )
    assert main_eval(tmp_path, path) == {"test_score/ifeval": pytest.approx(1 / 3)}


def test_without_the_data_graders_see_the_response_and_the_reference(tmp_path: Path) -> None:
    (tmp_path / "held_out.toml").write_text(SPEC.replace("{prompt} / ", ""))
    spec = str(tmp_path / "held_out.toml")
    assert compute_score("mine", "good", "", spec=spec) == 0.75
    assert json.dumps(compute_score("mine", "broken", "", spec=spec)) == "NaN"
