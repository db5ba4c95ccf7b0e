"""A checkpoint in shards, written by verl's own manager, merged by its own tool and evaluated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from adjudge.cli.main import command_line
from adjudge.errors import ConfigError
from adjudge_lab.evaluation.targets import find_shards, merge_checkpoint

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    tiny.save_model(folder / "model")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
         str(HERE / "save_shards.py"), str(folder / "model"), str(folder / "checkpoints"), "7"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def checkpoints(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run / "checkpoints", tmp_path / "checkpoints"))


def test_the_merged_weights_are_the_models(run: Path, tmp_path: Path) -> None:
    said: list[str] = []
    target = tmp_path / "merged"
    assert merge_checkpoint(run / "checkpoints", target, say=said.append) == target
    merged = load_file(target / "model.safetensors")
    whole = load_file(run / "model" / "model.safetensors")
    assert merged.keys() == whole.keys()
    for name, weight in whole.items():
        assert torch.equal(merged[name], weight.bfloat16()), name
    assert merge_checkpoint(run / "checkpoints", target, say=said.append) == target
    assert [line.split()[0] for line in said] == ["merging", f"{target}:"]


def test_another_checkpoint_does_not_go_over_a_merged_one(
    checkpoints: Path, run: Path, tmp_path: Path
) -> None:
    merge_checkpoint(run / "checkpoints", tmp_path / "merged")
    with pytest.raises(ConfigError, match="holds the model of"):
        merge_checkpoint(checkpoints, tmp_path / "merged")


def test_what_is_missing_is_said(checkpoints: Path) -> None:
    place = find_shards(checkpoints)
    assert place == checkpoints / "global_step_7" / "actor"
    (place / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(ConfigError, match=r"1 of 2 shards .*rank_1"):
        find_shards(checkpoints)
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("9")
    with pytest.raises(ConfigError, match="there is no global_step_9"):
        find_shards(checkpoints)


def test_a_shard_that_cannot_be_read_leaves_no_target(checkpoints: Path, tmp_path: Path) -> None:
    (find_shards(checkpoints) / "model_world_size_2_rank_1.pt").write_bytes(b"torn")
    with pytest.raises(ConfigError, match="verl.model_merger failed"):
        merge_checkpoint(checkpoints, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_command_merges_and_generates(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"key": 1, "prompt": "what is 2 + 3 ?", "kwargs": [{}],
           "instruction_id_list": ["punctuation:no_comma"]}  # fmt: skip
    Path("data.jsonl").write_text(json.dumps(row) + "\n")
    done = CliRunner().invoke(command_line(), [
        "eval", "ifeval", "--data", "data.jsonl", "--ckpt-dir",
        str(run / "checkpoints"), "--merge-target", "merged", "--max-tokens", "4", "-o", "out",
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    [model] = json.loads(Path("out/summary.json").read_text())["models"]
    assert (model["name"], model["responses_judged"]) == ("merged", 1)
