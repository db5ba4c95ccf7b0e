"""``adjudge study swap``: sources, judges that fail, resuming, what it writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.rows import write_jsonl
from typer.testing import CliRunner, Result

from adjudge.cli.study import swap
from adjudge.errors import ConfigError, RunFolderError

pytestmark = pytest.mark.slow  # whole commands, one after the other

JUDGE = '''
"""Judges that like length, brevity, or both but for some failures."""
import os
import re
from adjudge.errors import ErrorKind, GradingFailure

def _length(messages):
    with open("calls.txt", "a") as file:
        file.write("x")
    text = messages[-1]["content"]
    return min(4, len(re.findall("word", text)))

def long(messages):
    return {"reason": "r", "score": 1 + _length(messages)}

def short(messages):
    return {"reason": "r", "score": 5 - _length(messages)}

def mumbles(messages):
    found = _length(messages)
    return "well, well" if found == 3 else {"reason": "r", "score": 1 + found}
'''

SPEC = """
[[graders]]
name = "quality"
type = "helpfulness"

[judges.main]
type = "scripted"
function = "judge_of_swaps:{function}"
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "judge_of_swaps.py").write_text(JUDGE)
    for function in ("long", "short", "mumbles"):
        (tmp_path / f"{function}.toml").write_text(SPEC.format(function=function))
    rows = [
        {
            "prompt": f"question {group}",
            "response": "word " * (1 + at),
            "task": group,
            "old": None if at == 3 else float(at),
            "reward": at / 4,
        }
        for group in range(3)
        for at in range(4)
    ]
    write_jsonl(tmp_path / "rollouts.jsonl", rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(swap)
    return CliRunner().invoke(app, [*arguments, "-q"])


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_opposite_judges_change_every_group(work: Path) -> None:
    done = run("rollouts.jsonl", "--judge", "long.toml", "--judge", "short.toml", "-o", "out")
    assert done.exit_code == 0, done.output
    summary = summary_of(work / "out")
    assert [one["name"] for one in summary["judges"]] == ["long", "short"]
    [pair] = summary["pairs"]
    found = pair["advantages"]
    assert found["best_changes"]["value"] == found["sign_flips"]["value"] == 1.0
    assert found["within_kendall"]["value"] == pytest.approx(-1.0)
    assert "A long, B short: B turns 100 % of advantages" in done.output
    assert "question 0" in (work / "out" / "pairs" / "long-short.html").read_text()
    html = (work / "out" / "report.html").read_text()
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "")


def test_a_judge_that_fails_is_compared_on_the_rest(work: Path) -> None:
    done = run(
        "rollouts.jsonl", "--judge", "long.toml", "--judge", "mumbles.toml", "-o", "out", "--json"
    )
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    [pair] = summary["pairs"]
    found = pair["advantages"]
    assert (found["samples"], found["common"]) == (12, 9)
    assert (found["groups"], found["best_changes"]["value"]) == (3, 0.0)
    assert found["within_kendall"]["value"] == pytest.approx(1.0)
    mumbling = summary["judges"][1]
    assert (mumbling["judged"], mumbling["missing"]) == (9, {"unparsable": 3})


def test_the_same_command_resumes_and_one_more_judge_is_asked_alone(work: Path) -> None:
    run("rollouts.jsonl", "--judge", "long.toml", "--judge", "short.toml", "-o", "out")
    calls = len((work / "calls.txt").read_text())
    again = run("rollouts.jsonl", "--judge", "long.toml", "--judge", "short.toml", "-o", "out")
    assert again.exit_code == 0
    assert len((work / "calls.txt").read_text()) == calls
    more = run(
        *("rollouts.jsonl", "-o", "out", "--judge", "long.toml", "--judge", "short.toml"),
        *("--judge", "mumbles.toml"),
    )
    assert more.exit_code == 0
    assert len((work / "calls.txt").read_text()) > calls
    assert len(summary_of(work / "out")["pairs"]) == 3


def test_another_study_is_refused_in_the_same_folder(work: Path) -> None:
    run("rollouts.jsonl", "--judge", "long.toml", "--judge", "short.toml", "-o", "out")
    done = run("rollouts.jsonl", "--map", "prompt=task", "--judge", "long.toml", "--stored",
               "reward", "-o", "out")  # fmt: skip
    assert isinstance(done.exception, RunFolderError)


def test_stored_rewards_are_one_more_judge(work: Path) -> None:
    done = run("rollouts.jsonl", "--judge", "first=long.toml", "--stored", "old", "--stored",
               "gold=reward", "-o", "out")  # fmt: skip
    assert done.exit_code == 0, done.output
    summary = summary_of(work / "out")
    assert [one["name"] for one in summary["judges"]] == ["first", "old", "gold"]
    assert summary["judges"][1]["missing"] == {"not_stored": 3}
    found = [pair["advantages"] for pair in summary["pairs"]]
    assert [one["common"] for one in found] == [9, 12, 9]
    assert found[1]["within_kendall"]["value"] == pytest.approx(1.0)


def test_a_column_without_rewards_is_refused_before_a_judge_is_asked(work: Path) -> None:
    done = run("rollouts.jsonl", "--judge", "long.toml", "--stored", "nothing", "-o", "out")
    assert isinstance(done.exception, ConfigError | RunFolderError)
    assert not (work / "calls.txt").exists()


def test_broken_rows_are_named_and_kept_out(work: Path) -> None:
    with (work / "rollouts.jsonl").open("a") as file:
        file.write('{"prompt": "p"}\n{"prompt": "p", "response": "r", "old": "text"}\n')
    done = run("rollouts.jsonl", "--judge", "long.toml", "--stored", "old", "-o", "out")
    assert done.exit_code == 2
    broken = summary_of(work / "out")["broken_rows"]
    assert broken["count"] == 2
    assert broken["first"][0]["where"].endswith(":13")
    assert "must be a finite number, got str" in broken["first"][1]["message"]


def test_a_judge_that_says_nothing_is_exit_code_3(work: Path) -> None:
    rows = [{"prompt": "p", "response": "word word word", "reward": 1.0 * at} for at in range(2)]
    write_jsonl(work / "three.jsonl", rows)
    done = run("three.jsonl", "--judge", "mumbles.toml", "--stored", "reward", "-o", "out")
    assert done.exit_code == 3, done.output


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["rollouts.jsonl", "--judge", "rollouts.jsonl"], "--judge rollouts.jsonl"),
        (["rollouts.jsonl", "--judge", "long.toml", "--judge", "long.toml"], "--judge 'long.toml'"),
        (["rollouts.jsonl", "--judge", "a b=long.toml"], "--judge 'a b=long.toml'"),
        (["rollouts.jsonl", "--judge", "gone.toml", "--judge", "long.toml"], "gone.toml"),
        (["rollouts.jsonl", "--judge", "long.toml"], "--judge"),
        (["rollouts.jsonl", "--stored", "a=reward", "--stored", "a=old"], "--stored 'a=old'"),
        (["rollouts.jsonl", "--stored", "="], "--stored '='"),
        (["rollouts.jsonl", "--judge", "long.toml", "--stored", "long=old"], "--judge"),
        (["gone.jsonl", "--judge", "long.toml", "--judge", "short.toml"], "gone.jsonl"),
        (["out.d", "--judge", "long.toml", "--judge", "short.toml"], "out.d"),
    ],
)
def test_what_cannot_be_studied(work: Path, arguments: list[str], key: str) -> None:
    (work / "out.d").mkdir()
    done = run(*arguments, "-o", "out")
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith(key)
