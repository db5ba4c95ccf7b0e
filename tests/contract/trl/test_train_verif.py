"""The VerIF arm really trains: rules in the sandbox times the mock judge, a few steps of it."""

import json
import os
import re
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from adjudge.graders.code.sandbox import sandbox_available
from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile_checks import load_run_file

EXAMPLES = Path(__file__).parents[3] / "examples"
SHORT = {"iterations_per_epoch": 2, "warm_start_iterations": 10, "batch_size": 8, "group_size": 4,
         "instances": 2, "max_tokens": 12}  # fmt: skip


@pytest.mark.parametrize("arm", ["rules", "skip_rules"])
def test_an_arm_trains(tmp_path: Path, arm: str) -> None:
    reason = sandbox_available()
    if arm == "rules" and reason is not None:
        assert os.environ.get("ADJUDGE_REQUIRE_ALL") != "1", reason
        pytest.skip(reason)
    text = (EXAMPLES / "rl_verif_tiny.toml").read_text()
    for key, value in SHORT.items():
        text = re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", text)
    if arm == "skip_rules":
        text = text.replace("# skip_rules = true ", "skip_rules = true ")
    source = tmp_path / "run.toml"
    source.write_text(text)
    rows = (EXAMPLES / "verif_rows.jsonl").read_text()
    (tmp_path / "verif_rows.jsonl").write_text(rows)
    job = TrainingJob(load_run_file(source), source, tmp_path / "run", on_progress=lambda *_: None)
    train_run(job)
    lines = (job.folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    for row in map(json.loads, lines):
        assert 0 <= row["judge/verif_score_mean"] <= 1
        assert row["judge/missing_frac"] < 0.5
