"""A very small chain by the command line, killed inside and between stages: `make test-trl`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")
pytest.importorskip("uvicorn", reason="the service's libraries are not installed here")

CHAIN = """
kind = "chain"
label = "A very small chain <b>"

[[stages]]
name = "sft"
[stages.judge]
method = "sft"
model.path = "tiny"
optim.lr = 3e-3
trainer.sp_size = 1
[stages.judge.data]
train_batch_size = 16
micro_batch_size = 16
max_length = 128
synthetic = { n = 100, seed = 1 }

[[stages]]
name = "judge"
[stages.judge]
method = "bradley_terry"
model.path = "@sft"
optim.lr = 3e-3
trainer = { total_epochs = 2, eval_every = 4 }
[stages.judge.data]
train_batch_size = 8
micro_batch_size = 8
max_length = 128
synthetic = { n = 120, noise = 0.1 }

[[stages]]
name = "check"
[stages.evaluate]
judge = "@judge"
synthetic = { n = 40, seed = 2 }

[[stages]]
name = "seen"
[stages.evaluate]
judge = "@judge"
synthetic = { n = 130, noise = 0.1 }

[[stages]]
name = "policy"
[stages.run]
services.judge_url = "serve"
model.base = "@sft"
judge = { folder = "@judge", combine_mode = "replace" }
rollout = { env_name = "capitals", max_tokens = 8 }
evaluation.instances = 4
sentinel.gold = "right"
[stages.run.training]
iterations_per_epoch = 2
warm_start_iterations = 0
batch_size = 8
group_size = 4
save_every_n_iters = 1
[[stages.run.graders]]
name = "right"
type = "adjudge_lab.rl.tiny:CapitalGrader"
weight = 0.0
[[stages.run.graders]]
name = "worth"
type = "adjudge_lab.judge_training.chain.evaluation:CapitalGold"
weight = 0.0
"""
LAST_S = 240.0


def start(source: Path, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "adjudge_lab", "train", str(source), "-o", str(folder)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    env.pop("MODEL_PATH", None)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def killed(source: Path, folder: Path, when: Callable[[], bool]) -> None:
    """The chain until something holds, then no more."""
    process = start(source, folder)
    until = time.monotonic() + LAST_S
    while process.poll() is None and not when() and time.monotonic() < until:
        time.sleep(0.02)
    over = process.poll()
    process.kill()
    _, said = process.communicate()
    assert over is None, said


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], str]:
    """The chain's folder, what stages left when they were first over, and the last call's lines."""
    place = tmp_path_factory.mktemp("chain")
    source, folder = place / "chain.toml", place / "out"
    source.write_text(CHAIN)
    saved = folder / "judge" / "checkpoints" / "checkpoint-4" / "trainer_state.json"
    killed(source, folder, saved.exists)
    first = {"sft": (folder / "sft" / "summary.json").read_bytes()}
    assert not (folder / "judge" / "summary.json").exists()
    killed(source, folder, (folder / "check" / "summary.json").exists)
    first |= {name: (folder / name / "summary.json").read_bytes() for name in ("judge", "check")}
    last = start(source, folder)
    printed, said = last.communicate(timeout=LAST_S)
    assert last.returncode == 0, said
    return folder, first, printed + said


def test_a_stage_that_is_over_is_not_done_again(done: tuple[Path, dict[str, bytes], str]) -> None:
    folder, first, said = done
    for name, summary in first.items():
        assert (folder / name / "summary.json").read_bytes() == summary
        assert f"{name}  done before" in said
    assert "5/5 policy  run" in said


def test_an_interrupted_stage_goes_on(done: tuple[Path, dict[str, bytes], str]) -> None:
    folder, _, _ = done
    judge = read(folder / "judge" / "summary.json")
    assert judge["resumed_from"] is not None
    steps = [row["step"] for row in rows(folder / "judge" / "metrics.jsonl")]
    assert steps == list(range(judge["steps"] + 1))


def test_each_stage_begins_with_what_an_earlier_one_left(
    done: tuple[Path, dict[str, bytes], str],
) -> None:
    folder, _, _ = done
    assert read(folder / "judge" / "judge.json")["base"]["path"] == str(folder / "sft")
    found = read(folder / "summary.json")
    assert [one["name"] for one in found["stages"]] == ["sft", "judge", "check", "seen", "policy"]
    _, judge, check, seen, policy = found["stages"]
    assert judge["validation"]["bayes_accuracy"] == pytest.approx(0.9)
    assert check["overall"]["items"] == 40
    assert check["overall"]["missing"] == 0
    assert check["served"] is True
    assert 0 <= check["overall"]["accuracy_of_answered"] <= 1
    assert check["calibration"]["ece"] is not None
    assert seen["left_out"] == 120
    assert seen["overall"]["items"] == 10
    assert policy["base"] == str(folder / "sft")
    assert policy["steps"] == 2
    assert set(policy["held_out"]["after"]) == {"judge", "right", "worth", "reward"}


def test_the_policy_is_judged_through_the_service(done: tuple[Path, dict[str, bytes], str]) -> None:
    folder, _, _ = done
    assert str(folder / "judge") in (folder / "policy" / "judge.toml").read_text()
    summary = read(folder / "policy" / "summary.json")
    assert summary["graders"][0]["type"] == "adjudge_lab.rl.rewards:ServedJudge"
    scores = [row["reward"] for row in rows(folder / "policy" / "evaluation.jsonl")]
    assert len(scores) == 8
    assert all(0.0 <= score <= 1.0 for score in scores)


def test_the_page_shows_all_of_it_and_runs_nothing(
    done: tuple[Path, dict[str, bytes], str],
) -> None:
    folder, _, _ = done
    html = (folder / "report.html").read_text()
    assert "<script" not in html
    assert "A very small chain &lt;b&gt;" in html
    for page in ("sft/report.html", "judge/report.html", "policy/report.html"):
        assert f'href="{page}"' in html
        assert (folder / page).is_file()
    for said in ("Bayes rate", "Calibration error"):
        assert said in html
