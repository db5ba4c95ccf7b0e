"""What a run keeps of its evaluations, with rules as the judge: whole episodes and divergences."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile_checks import load_run_file

RUN = """
[model]
base = "tiny"

[[graders]]
name = "capital"
type = "adjudge_lab.rl.tiny:CapitalGrader"

[judge]
combine_mode = "replace"

[rollout]
max_tokens = 12

[training]
iterations_per_epoch = 4
warm_start_iterations = 12
batch_size = 16
group_size = 4
save_every_n_iters = 2
learning_rate = 3e-3

[evaluation]
instances = 4
every_n_iters = 3
kl = true

[logging]
to = "none"
"""


def run_into(folder: Path, text: str = RUN) -> dict[str, Any]:
    source = folder.parent / "run.toml"
    source.write_text(text)
    return train_run(TrainingJob(load_run_file(source), source, folder))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "plain"
    run_into(folder)
    return folder


def test_rules_alone_are_a_judge(plain: Path) -> None:
    summary = json.loads((plain / "summary.json").read_text())
    assert summary["judge"] == "rules"
    assert summary["endpoints"] == []
    assert [one["name"] for one in summary["graders"]] == ["capital"]
    assert "reward" in rows(plain / "metrics.jsonl")[0]


def test_the_policy_is_nowhere_at_first_and_somewhere_after(plain: Path) -> None:
    found = rows(plain / "evaluation.jsonl")
    assert [row["step"] for row in found] == [0] * 4 + [3] * 4 + [4] * 4
    assert [row["kl"] for row in found[:4]] == [0.0] * 4
    assert all(row["kl"] > 0 for row in found[4:])
    last = [row["kl"] for row in found[8:]]
    summary = json.loads((plain / "summary.json").read_text())
    assert summary["kl"] == pytest.approx(sum(last) / 4)


def test_evaluated_episodes_are_kept_whole(plain: Path) -> None:
    found = rows(plain / "evaluation_rollouts.jsonl")
    brief = rows(plain / "evaluation.jsonl")
    for row, short in zip(found, brief, strict=True):
        for name in ("step", "seed", "reward", "env_reward", "reward_info", "missing", "kl"):
            assert row[name] == short[name]
        assert [turn["role"] for turn in row["messages"]] == ["user", "assistant"]
        assert row["columns"]["rollout"] == f"evaluation {row['step']}/{row['seed']}"
        assert row["group"] == f"capitals {row['seed']}"
        assert 0 < row["tokens"] <= 12
    assert [row["index"] for row in found] == [0, 1, 2, 3] * 3
    trained = rows(plain / "rollouts.jsonl")[0].keys()
    assert trained - found[0].keys() == {"policy_version", "advantage", "turn_advantages"}


@pytest.mark.parametrize("lost", ["evaluation.jsonl", "evaluation_rollouts.jsonl"])
def test_a_resumed_run_has_each_episode_once(plain: Path, tmp_path: Path, lost: str) -> None:
    """Killed after the step that was saved last: later rows go, and are made again alike."""
    folder = tmp_path / "run"
    shutil.copytree(plain, folder)
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "model")
    shutil.rmtree(folder / "checkpoints" / "checkpoint-4")
    kept = (folder / lost).read_bytes()
    (folder / lost).write_bytes(kept[:-40])
    run_into(folder)
    for name in ("evaluation_rollouts.jsonl", "evaluation.jsonl"):
        assert (folder / name).read_bytes() == (plain / name).read_bytes()


def test_without_being_asked_for_it_is_not_measured(tmp_path: Path) -> None:
    summary = run_into(
        tmp_path / "run", RUN.replace("kl = true", "").replace("epoch = 4", "epoch = 1")
    )
    assert summary["kl"] is None
    assert {row["kl"] for row in rows(tmp_path / "run" / "evaluation.jsonl")} == {None}
