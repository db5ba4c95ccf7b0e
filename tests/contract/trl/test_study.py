"""A whole study with the real trainers: arms from one policy, everybody's scores, gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from adjudge.files import iter_rows

STUDY = """
version = 1
kind = "study"
seeds = [0, 1]
pilot = true
gold = "gold"
best_of = {prompts = 4, answers = 6}

[run.model]
base = "tiny"
[run.rollout]
env_name = "capitals"
max_tokens = 12
[run.training]
iterations_per_epoch = 4
warm_start_iterations = 20
batch_size = 16
group_size = 4
save_every_n_iters = 2
[run.judge]
combine_mode = "replace"
[run.evaluation]
instances = 8
every_n_iters = 2
[[run.graders]]
name = "gold"
type = "adjudge_lab.studies.parametric_judge:ParametricJudge"
weight = 0.0

[judges.plain]
bias = {length = 0.0}
run.graders = [{name = "j", type = "adjudge_lab.studies.parametric_judge:ParametricJudge"}]
[judges.long]
bias = {length = 1.0}
[[judges.long.run.graders]]
name = "j"
type = "adjudge_lab.studies.parametric_judge:ParametricJudge"
length = 1.0
[judges.learned]
held_out = true
[judges.learned.train]
method = "bradley_terry"
model = {path = "tiny", tiny = {hidden = 16, layers = 1}}
data = {train_batch_size = 16, micro_batch_size = 16, max_length = 128, synthetic = {n = 400}}
optim = {lr = 1e-2}
trainer = {total_epochs = 2, sp_size = 1}

[[plans]]
name = "bias"
question = "bias"
x = "length"
judge = ["plain", "long"]
"""

DOWN = """
[judges.down]
[judges.down.run.judge]
type = "openai"
model = "m"
base_url = "mock"
mock = {behaviour = "fixed", fail = ["401:1"]}
[[judges.down.run.graders]]
name = "j"
type = "llm"
template = "{response}{reply_form}"
score_range = [0.0, 1.0]
[[plans]]
name = "nobody"
judge = ["down"]
"""


def study(folder: Path, more: str = "") -> Path:
    path = folder / "study.toml"
    path.write_text(STUDY + more)
    return path


def start(file: Path, folder: Path) -> subprocess.Popen[str]:
    adjudge = [sys.executable, "-m", "adjudge_lab", "study", "run", str(file)]
    return subprocess.Popen(
        [*adjudge, "-o", str(folder), "-q", "--json", "-j", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def done(file: Path, folder: Path, code: int = 0) -> dict[str, Any]:
    process = start(file, folder)
    said, complaints = process.communicate(timeout=400)
    assert process.returncode == code, complaints
    return dict(json.loads(said)) if said else {}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    place = tmp_path_factory.mktemp("study")
    file = study(place)
    return file, place / "out", done(file, place / "out")


def test_every_arm_is_scored_by_everybody(whole: tuple[Path, Path, dict[str, Any]]) -> None:
    _, folder, summary = whole
    assert {arm["name"] for arm in summary["arms"]} == {
        f"{judge}.none.seed-{seed}" for judge in ("plain", "long") for seed in (0, 1)
    }
    assert summary["failed"] == {}
    rows = list(iter_rows(folder / "tidy.jsonl", dict[str, Any]))
    scored = {(row["arm"], row["step"], row["scorer"]) for row in rows if row["scorer"]}
    assert len(scored) == 4 * 3 * 4  # arms, checkpoints (0, 2, 4), scorers
    assert {row["scorer"] for row in rows if row["role"] == "held_out"} == {
        "plain",
        "long",
        "learned",
    }
    assert all(row["missing"] == 0 and row["value"] is not None for row in rows)
    assert (folder / "report.html").stat().st_size > 10_000


def test_arms_of_a_seed_begin_alike(whole: tuple[Path, Path, dict[str, Any]]) -> None:
    _, folder, summary = whole
    first: dict[int, set[str]] = {}
    for arm in summary["arms"]:
        rows = list(
            iter_rows(folder / "arms" / arm["name"] / "evaluation_rollouts.jsonl", dict[str, Any])
        )
        said = json.dumps([row["messages"] for row in rows if row["step"] == 0])
        first.setdefault(arm["seed"], set()).add(said)
        kls = [row["kl"] for row in rows if row["step"] == 0]
        assert max(map(abs, kls)) < 1e-5
        assert any(row["kl"] > 1e-4 for row in rows if row["step"] == 4)
    assert [len(texts) for texts in first.values()] == [1, 1]
    assert first[0] != first[1]


def test_the_proxy_is_what_the_arm_was_paid(whole: tuple[Path, Path, dict[str, Any]]) -> None:
    """What a scorer says of stored answers is what the run's own judge said of them."""
    _, folder, _ = whole
    for name, judge in (("plain.none.seed-0", "plain"), ("long.none.seed-1", "long")):
        rows = list(iter_rows(folder / "arms" / name / "evaluation_rollouts.jsonl", dict[str, Any]))
        paid = [row["reward"] for row in rows if row["step"] == 4]
        scores = list(iter_rows(folder / "scores" / f"{judge}.jsonl", dict[str, Any]))[1:]
        (line,) = [s for s in scores if (s["source"], s["step"]) == (f"arms/{name}", 4)]
        assert line["values"] == pytest.approx(paid)


def test_what_is_done_is_not_done_again(whole: tuple[Path, Path, dict[str, Any]]) -> None:
    file, folder, summary = whole
    kept = [
        folder / "arms" / "long.none.seed-0" / "metrics.jsonl",
        folder / "scores" / "gold.jsonl",
    ]
    before = [path.stat().st_mtime_ns for path in kept]
    again = done(file, folder)
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert (again["arms"], again["transfer"]) == (summary["arms"], summary["transfer"])


def test_a_killed_study_goes_on_to_the_same_end(
    whole: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    file, _, summary = whole
    process = start(file, tmp_path / "out")
    arms = tmp_path / "out" / "arms"
    end = time.monotonic() + 200
    while not list(arms.glob("*/metrics.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(3)  # its workers notice
    again = done(file, tmp_path / "out")
    assert again["arms"] == summary["arms"]
    assert again["cells"] == summary["cells"]


def test_an_arm_without_a_judge_fails_alone(tmp_path: Path) -> None:
    file = study(tmp_path, DOWN)
    text = file.read_text().replace("seeds = [0, 1]", "seeds = [0]")
    file.write_text(text.replace("iterations_per_epoch = 4", "iterations_per_epoch = 2"))
    summary = done(file, tmp_path / "out", code=3)
    assert set(summary["failed"]) == {"down.none.seed-0"}
    assert {arm["judge"] for arm in summary["arms"]} == {"plain", "long"}
    assert not (tmp_path / "out" / "arms" / "down.none.seed-0" / "summary.json").exists()
