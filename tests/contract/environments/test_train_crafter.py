"""``adjudge train`` on episodes of the real Crafter, played here and by a task app."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crafter", reason="not installed here; run `make test-environments`")
pytest.importorskip("trl", reason="not installed here; run `make test-environments`")

from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile_checks import load_run_file

EXAMPLES = Path(__file__).parents[3] / "examples"
SHORT = {
    "num_epochs": "1",
    "iterations_per_epoch": "2",
    "warm_start_iterations": "8",
    "batch_size": "8",
    "gradient_accumulation_steps": "1",
    "instances": "2",
    "every_n_iters": "0",
    "max_turns": "2",
    "max_tokens": "12",
    "episodes_per_batch": "6",
}


def trained(folder: Path, text: str = "", **changes: str) -> TrainingJob:
    """A short copy of the example, with ``text`` before its models and changed keys."""
    run = (EXAMPLES / "rl_crafter_tiny.toml").read_text()
    for key, value in {**SHORT, **changes}.items():
        run = re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", run)
    source = folder / "run.toml"
    source.write_text(run.replace("[model]", f"{text}\n[model]"))
    job = TrainingJob(load_run_file(source), source, folder / "run")
    train_run(job)
    return job


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_rollouts(job: TrainingJob) -> list[Any]:
    """What must hold of any run: groups that began alike, verdicts for every turn, credit."""
    rows = lines(job.folder / "rollouts.jsonl")
    assert [(row["step"], row["index"]) for row in rows] == [
        (step, index) for step in (1, 2) for index in range(8)
    ]
    held_out = set(range(100, 120))
    for start in range(0, 16, 4):
        group = rows[start : start + 4]
        assert len({(row["group"], row["seed"]) for row in group}) == 1
        assert len({row["messages"][1]["content"] for row in group}) == 1
        assert group[0]["seed"] not in held_out
        present = [row["reward"] for row in group if row["reward"] is not None]
        if len(present) > 1:
            total = sum(row["advantage"] for row in group if row["reward"] is not None)
            assert total == pytest.approx(0.0, abs=1e-6)
    for row in rows:
        replies = sum(turn["role"] == "assistant" for turn in row["messages"])
        assert replies == len(row["turn_rewards"]) == len(row["details"]["events"]) == 2
        if row["reward"] is not None:
            assert len(row["turn_advantages"]) == replies
            info = row["reward_info"]
            judged = 2.0 * (0.1 * info["events"] + info["outcome"])
            assert row["reward"] == pytest.approx(row["env_reward"] + judged)
    return rows


def test_episodes_are_played_judged_and_learned_from(tmp_path: Path) -> None:
    job = trained(tmp_path)
    rows = check_rollouts(job)
    assert [row["policy_version"] for row in rows] == [0] * 16  # the second step was played ahead
    metrics = lines(job.folder / "metrics.jsonl")
    assert [row["lag"] for row in metrics] == [0.0, 1.0]
    for row in metrics:
        parts = row["env_return"] + row["judge_return"]
        assert row["judge/missing_frac"] > 0 or row["mean_return"] == pytest.approx(parts)
    evaluated = lines(job.folder / "evaluation.jsonl")
    assert [(row["step"], row["seed"]) for row in evaluated] == [
        (0, 100), (0, 101), (2, 100), (2, 101),
    ]  # fmt: skip


def test_without_a_lag_every_step_is_played_by_the_policy_it_changes(tmp_path: Path) -> None:
    job = trained(tmp_path, pipeline_async_enabled="false", enabled="false", variety='"grpo"')
    rows = lines(job.folder / "rollouts.jsonl")
    assert [row["policy_version"] for row in rows] == [0] * 8 + [1] * 8
    assert all(row["reward"] == row["env_reward"] for row in rows)  # nobody judges
    assert job.summary["endpoints"] == []


@pytest.fixture
def app(tmp_path: Path) -> Iterator[str]:
    """The example's task app, in a process of its own."""
    env = {"PATH": "", "PORT": "0", "PYTHONPATH": ":".join(sys.path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "task_app_crafter.py")],
        stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address is not None
        yield address[0]
        process.terminate()


def test_a_task_app_plays_what_the_policy_says(tmp_path: Path, app: str) -> None:
    job = trained(tmp_path, f'[services]\ntask_url = "{app}"\n')
    check_rollouts(job)
