"""``adjudge probe``: outputs, exit codes, resuming, thresholds, what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from adjudge.cli.probe import probe
from adjudge.errors import ConfigError, JudgeUnavailable, RunFolderError
from adjudge.judges.cassette import ReplyCache

pytestmark = pytest.mark.slow  # whole commands, one after the other

SPEC = """
[[graders]]
name = "quality"
type = "helpfulness"
judge = "main"

[[graders]]
name = "pairs"
type = "pairwise"
weight = 0.0
judge = "main"

[[graders]]
name = "short"
type = "length_penalty"
max_length = 100
weight = 0.0

[judges.main]
type = "scripted"
function = "judge_of_probes:reply"
"""

JUDGE = '''
"""Likes long answers; may be broken by a word in the environment."""
import os
import re
from adjudge.errors import ErrorKind, GradingFailure

def reply(messages):
    mood = os.environ.get("MOOD", "")
    if mood == "gone":
        raise GradingFailure(ErrorKind.CONNECTION, "nobody there")
    if mood == "mumbling":
        return "well, well"
    with open("calls.txt", "a") as file:
        file.write("x")
    text = messages[-1]["content"]
    found = re.findall(r"<(response[_ab]*)-([0-9a-f]+)>(.*?)</\\\\1-\\\\2>", text, re.DOTALL)
    lengths = [len(body) for _, _, body in found]
    if len(lengths) > 1:
        return {"better": "A" if lengths[0] > lengths[1] else "B"}
    return {"reason": "r", "score": min(5, 1 + lengths[0] // 60)}
'''.replace("\\\\", "\\")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "reward.toml").write_text(SPEC)
    (tmp_path / "judge_of_probes.py").write_text(JUDGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOOD", raising=False)
    return tmp_path


def run(*arguments: str, grader: str = "quality") -> Result:
    app = typer.Typer()
    app.command()(probe)
    return CliRunner().invoke(app, [f"reward.toml#{grader}", "-q", *arguments])


QUICK = ("--only", "length,sycophancy,reference", "--n", "10", "--repeats", "1")


def test_a_judge_that_likes_length_fails(work: Path) -> None:
    done = run(*QUICK, "-o", "out")
    assert done.exit_code == 1, done.output
    for name in ("probe.json", "report.html", "answers.jsonl"):
        assert (work / "out" / name).stat().st_size > 100
    card = json.loads((work / "out" / "probe.json").read_bytes())
    assert [one["probe"] for one in card["probes"]] == ["length", "sycophancy", "reference"]
    assert card["probes"][0]["verdict"] == "fail"
    assert card["probes"][2]["verdict"] == "not applicable"
    assert card["verdicts"]["fail"] >= 1
    assert card["topics"] == 10
    rows = (work / "out" / "answers.jsonl").read_text().splitlines()
    assert len(rows) == card["questions"] == 60
    assert (card["control_questions"], card["probes"][1]["questions"]) == (10, 50)
    assert "FAIL" in done.output


def test_a_threshold_decides(work: Path) -> None:
    loose = run(*QUICK, "-o", "out", "-t", "length=9", "-t", "sycophancy=9")
    assert loose.exit_code == 0, loose.output
    card = json.loads((work / "out" / "probe.json").read_bytes())
    assert [one["threshold"] for one in card["probes"][:2]] == [9.0, 9.0]


def test_resuming_asks_only_what_is_new(work: Path) -> None:
    run(*QUICK, "-o", "out")
    asked = (work / "calls.txt").read_text()
    assert len(asked) == 60
    again = run(*QUICK, "-o", "out", "--threshold", "length=0.1", "--json")
    assert (work / "calls.txt").read_text() == asked
    assert json.loads(again.stdout)["resumed"] == 60
    more = run("--only", "length,confidence", "--n", "10", "--repeats", "1",
               "-o", "out", "--json")  # fmt: skip
    assert json.loads(more.stdout)["resumed"] == 40
    assert len((work / "calls.txt").read_text()) == 80


def test_a_judge_that_fails_is_not_asked_until_it_does_not(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOOD", "mumbling")
    only = ("--only", "parse_failures", "--n", "10", "--json", "-o", "out")
    first = json.loads(run(*only).stdout)
    assert first["probes"][0]["effect"] == 1.0
    monkeypatch.delenv("MOOD")
    again = run(*only)
    assert again.exit_code == 1
    card = json.loads(again.stdout)
    assert (card["probes"][0]["effect"], card["missing"]) == (1.0, first["missing"])
    assert card["resumed"] == card["questions"]
    assert not (work / "calls.txt").exists()


def test_another_grader_needs_another_folder(work: Path) -> None:
    nobody = run(grader="nobody").exception
    assert isinstance(nobody, ConfigError)
    assert "no grader 'nobody'" in str(nobody)
    run(*QUICK, "-o", "out")
    other = run("--only", "position", "--n", "10", "-o", "out", grader="pairs")
    assert isinstance(other.exception, RunFolderError)


@pytest.mark.parametrize("orders", ["both", "one"])
def test_what_helps_is_not_what_is_set_already(work: Path, orders: str) -> None:
    spec = (
        'version = 1\n[[graders]]\nname = "pairs"\ntype = "pairwise"\n'
        f'orders = "{orders}"\n[judges.main]\ntype = "scripted"\n'
        "script = { '' = '{\"better\": \"A\"}' }\n"
    )
    (work / "reward.toml").write_text(spec)
    done = run("--only", "position", "--n", "12", "-o", "out", "--json", grader="pairs")
    [position] = json.loads(done.stdout)["probes"]
    assert position["verdict"] == "fail"
    assert ("another judge" in position["remedy"]) == (orders == "both")


def test_a_judge_that_is_away(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOOD", "gone")
    done = run(*QUICK, "-o", "out")
    assert isinstance(done.exception, JudgeUnavailable)
    assert "nobody there" in str(done.exception)
    assert not (work / "out" / "probe.json").exists()
    monkeypatch.delenv("MOOD")
    assert run(*QUICK, "-o", "out").exit_code == 1


def test_a_judge_that_says_nothing_usable(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOOD", "mumbling")
    assert run(*QUICK, "-o", "out").exit_code == 3


def test_strict_fails_what_is_uncertain(work: Path) -> None:
    quick = ("--only", "parse_failures", "--n", "8")
    assert run(*quick, "-o", "out").exit_code == 0
    assert run(*quick, "-o", "out", "--strict").exit_code == 1


def test_a_dry_run_asks_nobody(work: Path) -> None:
    done = run(*QUICK, "-o", "out", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    cost = json.loads(done.stdout)
    assert cost["in_all"]["calls"] == 60
    assert cost["in_all"]["input_tokens"] > 1000
    assert not (work / "out").exists()
    assert not (work / "calls.txt").exists()


def test_a_rule_can_be_probed_too(work: Path) -> None:
    done = run("--only", "length", "--n", "10", "-o", "out", "--json", grader="short")
    assert done.exit_code in (0, 1), done.output
    assert json.loads(done.stdout)["grader"]["models"] == []


def test_a_replay_without_the_replies_fails(work: Path) -> None:
    served = SPEC.split("[judges.main]", maxsplit=1)[0] + (
        '[judges.main]\ntype = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    (work / "reward.toml").write_text(served)
    ReplyCache(work / "empty.sqlite", "record").close()
    done = run(*QUICK, "-o", "out", "--replay", "empty.sqlite")
    assert done.exit_code == 1, done.output
    assert "calls are not in empty.sqlite" in done.output
    card = json.loads((work / "out" / "probe.json").read_bytes())
    assert card["missing"]["count"] == card["cassette"]["misses"] == 60


def test_own_items(work: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": f"q{n}", "right": f"It is {n}.", "wrong": "No idea."} for n in range(9)
    ]
    (work / "items.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = run("--items", "items.jsonl", "--only", "length,language", "-o", "out",
               "--json")  # fmt: skip
    card = json.loads(done.stdout)
    assert card["items"] == "items.jsonl"
    assert card["probes"][0]["n"] == 9
    assert card["probes"][1]["verdict"] == "not applicable"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "lenght"), "did you mean 'length'"),
        (("--only", "position"), "no probe applies to 'quality'"),
        (("-t", "length"), "must be PROBE=MOST"),
        (("-t", "length=-1"), "must be 0 or more"),
        (("-t", "lenght=1"), "did you mean 'length'"),
        (("--record", "a", "--replay", "b"), "cannot be used together"),
        (("--items", "absent.jsonl"), "absent.jsonl: no such file"),
    ],
)
def test_bad_input_is_named(work: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments, "-o", "out")
    assert isinstance(done.exception, ConfigError), done.output
    assert said in str(done.exception)
    assert not (work / "out").exists()
