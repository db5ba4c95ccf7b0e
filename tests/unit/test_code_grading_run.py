"""Rollouts with code through the command line: what cannot be judged apart is missing or marked."""

import json
from pathlib import Path

import pytest
from tests.e2e.helpers.command import run_here
from tests.rows import read_jsonl, write_jsonl
from tests.unit.helpers.code_grading import block, needs_sandbox

SPEC = """
[[graders]]
name = "code"
type = "code_execution"
weight = 1.0
untrusted_tests = "{mode}"
"""
CODE = "class P:\n    def __eq__(self, other): return True\ndef f(x): return x"


@needs_sandbox
@pytest.mark.parametrize("mode", ["refuse", "allow"])
def test_untrusted_tests_are_missing_or_counted(tmp_path: Path, mode: str) -> None:
    (tmp_path / "reward.toml").write_text(SPEC.format(mode=mode))
    rows = [
        {"prompt": "p", "response": block(CODE), "test_cases": tests}
        for tests in (["assert abs(f(1) - 1) < 1e-6"], ["assert P() == P()"], ["assert f(1) == 1"])
    ]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    done = run_here("grade", "rows.jsonl", "-s", "reward.toml", "-o", "out", folder=tmp_path)
    graded = read_jsonl(tmp_path / "out/rewards.jsonl")
    summary = json.loads((tmp_path / "out/summary.json").read_text())["graders"]["code"]
    page = (tmp_path / "out/report.html").read_text()
    if mode == "allow":
        assert [row["reward"] for row in graded] == [1.0, 1.0, 1.0], done.stdout + done.stderr
        assert (summary["untrusted"], summary["missing"]) == (1, 0)
        assert "1 scores untrusted" in done.stdout
        assert "<dt>untrusted</dt>" in page
    else:
        assert [row["reward"] for row in graded] == [1.0, None, 1.0], done.stdout + done.stderr
        assert graded[1]["missing"]["kind"] == "unsupported"
        assert (summary["untrusted"], summary["missing"]) == (0, 1)
        assert "scores untrusted" not in done.stdout
