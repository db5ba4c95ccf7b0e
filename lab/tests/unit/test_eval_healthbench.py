"""``adjudge eval healthbench`` through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from adjudge.cli.main import command_line
from adjudge.errors import JudgeUnavailable

pytestmark = pytest.mark.slow  # whole commands, one after the other

SPEC = """
[[graders]]
name = "marks"
type = "rubric"
ask = "each"

[judges.main]
type = "scripted"
function = "health_judge:judge"
"""
# Met where the answer has the criterion's last word; no verdict on what is about luck.
JUDGE = r"""
import re
from pathlib import Path

def judge(messages):
    with Path("asked").open("a") as file:
        file.write("x")
    text = messages[-1]["content"]
    criterion = re.search(r"<sample_criteria-.*?>\n1\. (.*)", text)[1]
    response = re.search(r"<response-(\w+)>\n(.*?)\n</response-", text, re.DOTALL)[2]
    if "luck" in criterion and not Path("again").exists():
        return "no idea"
    met = criterion.split()[-1] in response
    return {"1": {"reason": "word", "verdict": "MET" if met else "UNMET"}}
"""
DEAD_JUDGE = """
[judges.main]
type = "openai"
base_url = "http://127.0.0.1:9/v1"
model = "none"
"""
MUTE_JUDGE = """
[judges.main]
type = "scripted"
function = "mute_judge:judge"
"""
CRITERIA = [
    {"criterion": "Recommends rest", "points": 6, "tags": {"axis": "accuracy"}},
    {"criterion": "Is brief", "points": 4, "tags": {"axis": "style"}},
    {"criterion": "Speaks of surgery", "points": -8, "tags": {"axis": "accuracy"}},
]
LUCK = {"criterion": "Wishes luck", "points": 2}


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("judge.toml").write_text(SPEC)
    Path("health_judge.py").write_text(JUDGE)
    rows = [
        {"prompt": "Leg?", "rubrics": CRITERIA},
        {"prompt": "Arm?", "rubrics": CRITERIA},
        {"prompt": "Exam?", "rubrics": [*CRITERIA, LUCK]},
        {"prompt": "Eye?", "rubrics": CRITERIA},
    ]
    write("data.jsonl", rows)
    said = {"Leg?": "brief rest", "Arm?": "surgery", "Exam?": "rest", "Else?": "rest"}
    write("said.jsonl", [{"prompt": p, "response": r} for p, r in said.items()])


def write(name: str, rows: list[Any]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def command(*arguments: str) -> Result:
    return CliRunner().invoke(command_line(), ["eval", "healthbench", *arguments])


def test_scores_by_hand_missing_intervals_and_going_on() -> None:
    asked = ("judge.toml", "--data", "data.jsonl", "--responses", "said.jsonl", "-o", "out", "-q")
    done = command(*asked)
    assert done.exit_code == 0, done.output
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["overall"]["score"] == pytest.approx((1.0 - 0.8) / 2)
    assert summary["tags"]["axis:style"]["score"] == pytest.approx(0.5)
    assert summary["tags"]["axis:accuracy"]["mean"] == pytest.approx((1 - 8 / 6) / 2)
    (missing,) = summary["missing"]
    assert (missing["key"], missing["low"], missing["high"]) == (
        "2", pytest.approx(6 / 12), pytest.approx(8 / 12))  # fmt: skip
    assert summary["bounds"] == pytest.approx([(0.2 + 6 / 12) / 3, (0.2 + 8 / 12) / 3])
    assert summary["without_response"] == {"count": 1, "first": ["3"]}
    assert summary["strays"]["count"] == 1
    assert "1 sample without a score" in done.stderr
    assert "overall" in done.stdout
    page = Path("out/report.html").read_text()
    assert "0.1000" in page
    assert "Not counted" in page
    first = Path("asked").stat().st_size

    Path("again").touch()  # now the judge knows: only what has no answer is asked
    done = command(*asked, "--json")
    summary = json.loads(done.stdout)
    assert summary["missing"] == []
    assert summary["overall"]["score"] == pytest.approx((1.0 - 0.8 + 6 / 12) / 3)
    assert Path("asked").stat().st_size - first == 4
    scores = [json.loads(line) for line in Path("out/scores.jsonl").read_text().splitlines()]
    assert [one["score"] for one in scores] == pytest.approx([1.0, -0.8, 0.5])


@pytest.mark.parametrize("judge", [DEAD_JUDGE, MUTE_JUDGE], ids=["no server", "no verdict"])
def test_a_judge_without_any_answer_ends_with_3(judge: str) -> None:
    Path("judge.toml").write_text(SPEC.partition("[judges")[0] + judge)
    Path("mute_judge.py").write_text("def judge(messages):\n    return 'no idea'\n")
    done = command(
        "judge.toml", "--data", "data.jsonl", "--responses", "said.jsonl", "-o", "out", "-q"
    )
    assert done.exit_code == 3 or isinstance(done.exception, JudgeUnavailable), done.output


def test_a_dry_run_counts_calls_and_asks_nobody() -> None:
    asked = ("judge.toml", "--data", "data.jsonl", "--responses", "said.jsonl", "--dry-run")
    done = command(*asked, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["judges"]["judge.toml"]
    assert (found["calls"], found["cost_usd"]) == (3 + 3 + 4, 0.0)
    assert not Path("asked").exists()
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "data.jsonl", "--responses", "said.jsonl"], "Missing argument 'TARGET'"),
        (["judge.toml", "--responses", "said.jsonl"], "Missing option '--data'"),
        (["judge.toml", "--data", "data.jsonl"], "Missing option '--responses'"),
        (
            ["judge.toml", "--data", "data.jsonl", "--responses", "said.jsonl", "--seeds", "1-2"],
            "No such option: --seeds",
        ),
        (
            ["judge.toml", "--data", "data.jsonl", "--responses", "said.jsonl", "--by", "text"],
            "'text' is not one of",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], words: str) -> None:
    done = command(*arguments)
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.stderr.split())


def test_another_folder_is_not_gone_on_with() -> None:
    asked = ("judge.toml", "--data", "data.jsonl", "--responses", "said.jsonl", "-o", "out", "-q")
    assert command(*asked).exit_code == 0
    write("data.jsonl", [{"prompt": "Leg?", "rubrics": CRITERIA[:1]}])
    done = command(*asked)
    assert done.exit_code == 2
    assert "other prompts (--data)" in " ".join(done.stderr.split())
