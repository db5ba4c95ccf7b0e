"""``adjudge eval policy`` as a user runs it: a policy and a judge behind real servers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adjudge.mock import start_mock

pytestmark = pytest.mark.slow

RUN = """
[algorithm]
variety = "grpo"

[model]
base = "tiny"

[[graders]]
name = "quality"
type = "llm"
template = "How good is this answer to {prompt}?\\n{response}\\n{reply_form}"
score_range = [0.0, 10.0]

[judge]
model = "judge"
base_url = "JUDGE"
combine_mode = "weighted_sum"
sample_rate = 0.5
price = { input = 1.0, output = 2.0 }

[training]
judge_timeout_s = 3.0

[evaluation]
seeds = "0-3"
"""
ANSWERS = {
    "Cuba": "Havana.", "Egypt": "It is Cairo, I am quite sure about that one.", "France": "Rome",
    "Italy": "Rome, surely.", "Japan": "Osaka", "Kenya": "Nairobi", "Peru": "I do not know",
    "Spain": "Madrid of course",
}  # fmt: skip


def adjudge(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "adjudge_lab", *map(str, arguments)]
    env = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=env, timeout=240, check=False
    )


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    script = tmp_path_factory.mktemp("script") / "script.jsonl"
    rows = [json.dumps({"when": name, "reply": said}) for name, said in ANSWERS.items()]
    script.write_text("\n".join(rows) + "\n")
    with (
        start_mock(behaviour="scripted", script=str(script)) as policy,
        start_mock(behaviour="echo") as echo,
        start_mock(behaviour="length") as judge,
    ):
        yield {"policy": policy, "echo": echo, "judge": judge}


@pytest.fixture
def work(tmp_path: Path, servers: dict[str, str]) -> Path:
    (tmp_path / "run.toml").write_text(RUN.replace("JUDGE", servers["judge"]))
    return tmp_path


def episodes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def test_a_policy_on_seeds_with_judges(work: Path, servers: dict[str, str]) -> None:
    model = f"{servers['policy']}#policy"
    done = adjudge(
        "eval", "policy", "run.toml", "--model", model, "--seeds", "0-7", "-o", "out", folder=work
    )
    assert done.returncode == 0, done.stderr
    assert "official score" in done.stdout
    assert "quality" in done.stdout
    rows = episodes(work / "out")
    assert [row["seed"] for row in rows] == list(range(8))
    assert [row["env_reward"] for row in rows] == [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    assert all(row["reward"] is not None for row in rows)  # sample_rate is for training
    summary = json.loads((work / "out" / "summary.json").read_text())
    (found,) = summary["models"]
    assert found["official"]["value"] == 0.625
    assert found["scores"].keys() == {"quality", "reward"}
    assert found["scores"]["quality"]["pearson"]["low"] is not None
    assert found["judges"]["cost_usd"] > 0
    assert found["policy"]["calls"] == 8
    assert "<h1>Evaluation</h1>" in (work / "out" / "report.html").read_text()


def test_two_policies_are_compared_and_a_second_call_asks_nobody(
    work: Path, servers: dict[str, str]
) -> None:
    command = (
        "eval", f"{servers['policy']}#policy", "--against", f"{servers['echo']}#echo",
        "--config", "run.toml", "-o", "out", "--json",
    )  # fmt: skip
    first = adjudge(*command, folder=work)
    assert first.returncode == 0, first.stderr
    summary = json.loads(first.stdout)
    official = summary["comparison"]["official"]
    assert (official["model"], official["baseline"]) == (0.75, 0.0)
    assert (official["wins"], official["ties"], official["losses"]) == (3, 1, 0)
    assert summary["seeds"] == 4  # those of [evaluation]
    kept = (work / "out" / "episodes.jsonl").read_bytes()
    again = adjudge(*command, folder=work)
    assert again.returncode == 0, again.stderr
    second = json.loads(again.stdout)
    assert second["endpoints"] == []
    assert second["models"] == summary["models"]
    assert second["comparison"] == summary["comparison"]
    assert (work / "out" / "episodes.jsonl").read_bytes() == kept
    other = adjudge(*command, "--seeds", "0-5", folder=work)
    assert other.returncode == 2
    assert "other seeds" in other.stderr


def test_only_what_is_missing_is_done_again(work: Path, servers: dict[str, str]) -> None:
    command = (
        "eval", "policy", "run.toml",
        "--model", f"{servers['policy']}#policy", "-o", "out", "--json",
    )  # fmt: skip
    assert adjudge(*command, folder=work).returncode == 0
    rows = episodes(work / "out")
    late = {"kind": "timeout", "message": "late"}
    rows[1] |= {"reward": None, "missing": late, "reward_info": {"quality_score": None}}
    rows[2]["messages"][-1]["content"] = "kept as it is"
    text = "\n".join(map(json.dumps, rows[:3])) + '\n{"model'
    (work / "out" / "episodes.jsonl").write_text(text)
    done = adjudge(*command, folder=work)
    assert done.returncode == 0, done.stderr
    calls = {one["models"][0]: one["calls"] for one in json.loads(done.stdout)["endpoints"]}
    assert calls == {"policy": 1, "judge": 2}  # seed 3 was lost; seed 1 was not judged
    after = episodes(work / "out")
    assert [row["seed"] for row in after] == [0, 1, 2, 3]
    assert all(row["reward"] is not None for row in after)
    spent = [row["usage"]["input_tokens"] for row in after]
    assert spent[1] == 2 * rows[1]["usage"]["input_tokens"]  # what failed was paid for, too
    (whole,) = json.loads(done.stdout)["models"]
    assert whole["judges"]["input_tokens"] == sum(spent)
    assert after[2]["messages"][-1]["content"] == "kept as it is"


def test_a_judge_that_is_down_leaves_the_official_scores_and_says_so(
    work: Path, servers: dict[str, str]
) -> None:
    text = RUN.replace("JUDGE", servers["judge"]).replace("3.0\n", "0.3\n")
    with start_mock(fail=("503:1",)) as down:
        (work / "run.toml").write_text(text.replace(servers["judge"], down))
        command = (
            "eval",
            "policy",
            "run.toml",
            "--model",
            f"{servers['policy']}#policy",
            "-o",
            "out",
        )
        done = adjudge(*command, folder=work)
    assert done.returncode == 3
    assert "no judge answered" in done.stderr
    assert "To resume, run:" in done.stderr
    assert "-o out" in done.stderr
    rows = episodes(work / "out")
    assert [row["env_reward"] for row in rows] == [1.0, 1.0, 0.0, 1.0]
    assert {row["reward"] for row in rows} == {None}


def test_a_dataset_has_only_its_rows(work: Path, servers: dict[str, str]) -> None:
    (work / "rows.jsonl").write_text('{"prompt": "Cuba?", "answer": "Havana."}\n')
    text = RUN.replace("JUDGE", servers["judge"]) + (
        '\n[rollout]\ndataset = "rows.jsonl"\nenv_grader = "exact"\n'
        '\n[[graders]]\nname = "exact"\ntype = "string_match"\nweight = 0.0\n'
    )
    (work / "run.toml").write_text(text)
    command = ("eval", "policy", "run.toml", "--model", f"{servers['policy']}#policy")
    beyond = adjudge(*command, "--seeds", "0-1", "-o", "out", folder=work)
    assert beyond.returncode == 2
    assert "a seed is not a row of rows (found 1; allowed: 0 to 0)" in beyond.stderr
    done = adjudge(*command, "--seeds", "0", "-o", "out2", "--json", folder=work)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["models"][0]["official"]["value"] == 1.0
    assert "exact" not in summary["models"][0]["scores"]  # it is the official score
