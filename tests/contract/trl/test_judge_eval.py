"""``adjudge eval judge`` of a judge that was just trained: run by `make test-trl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from tests.unit.helpers.benchmark_samples import write_sample
from typer.testing import CliRunner

from adjudge.cli.main import command_line
from adjudge.datasets.rows import Preference
from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob
from adjudge_lab.judge_training.run import run_judge
from adjudge_lab.synthetic import SyntheticSettings, synthetic_preferences

SMALL = """
kind = "judge"
method = "bradley_terry"
[model]
path = "tiny"
label = "small"
[data]
train = ["train.jsonl"]
val = ["val.jsonl"]
train_batch_size = 32
micro_batch_size = 16
max_length = 128
[optim]
lr = 3e-3
[trainer]
total_epochs = 2
"""


def write(path: Path, rows: list[Preference]) -> Path:
    lines = [json.dumps({"chosen": one.chosen, "rejected": one.rejected}) for one in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A small judge's folder, and the summary of its training."""
    work = tmp_path_factory.mktemp("work")
    made = synthetic_preferences(SyntheticSettings(n=560, seed=1)).rows
    write(work / "train.jsonl", made[:500])
    write(work / "val.jsonl", made[500:])
    source = work / "judge.toml"
    source.write_text(SMALL)
    job = JudgeJob(JudgeFile.load(source, environ={}), source, work / "judge")
    return work / "judge", run_judge(job)


def validated(*arguments: str) -> tuple[str, dict[str, Any]]:
    done = CliRunner().invoke(command_line(), ["eval", "judge", *arguments, "-q"])
    assert done.exit_code == 0, done.output
    out = Path(arguments[arguments.index("-o") + 1])
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return done.stdout, summary


def test_a_trained_folder_scores_what_its_training_said(
    judge: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, trained = judge
    data = str(folder.parent / "val.jsonl")
    arguments = (str(folder), "--data", data, "-o", str(tmp_path / "out"))
    _, summary = validated(*arguments)
    [found] = summary["judges"]
    assert (found["name"], found["kind"], found["mode"]) == ("small", "scalar", "pointwise")
    assert found["overall"]["score"] == pytest.approx(trained["validation"]["accuracy"])
    assert found["calibration"]["log_loss"] == pytest.approx(
        trained["validation"]["loss"], abs=1e-4
    )
    assert found["overall"]["items"] == 60
    _, again = validated(*arguments)
    assert again["judges"][0]["resumed"] == again["judges"][0]["questions"] == 120


def test_its_raw_outputs_and_its_ranks_on_another_benchmark(
    judge: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = judge
    data = write_sample(tmp_path / "rb2.jsonl", "rewardbench2")
    sample = ("--benchmark", "rewardbench2", "--data", str(data), "-o", str(tmp_path / "rb2"))
    _, summary = validated(str(folder), *sample, "--against", str(folder / "reward.toml"))
    raw, ranked = summary["judges"]
    assert (raw["scale"], ranked["scale"]) == ("logits", None)
    assert raw["overall"]["missing"] == ranked["overall"]["missing"] == 0
    assert (tmp_path / "rb2" / "report.html").stat().st_size > 10_000
