"""``adjudge study swap``: sources, judges that fail, resuming, what it writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from adjudge.cli.study import swap_app
from adjudge.errors import ConfigError, RolloutError, RunFolderError
from adjudge.judge_evaluation.swap.report import render_swap_page
from adjudge.judge_evaluation.swap.rollouts import find_rollout_sources, gather_rollouts
from adjudge.judge_evaluation.swap.study import SwapStudy, read_swap_judges, run_swap

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
    write(tmp_path / "rollouts.jsonl", rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(swap_app, [*arguments, "-q"])


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_opposite_judges_change_every_group(work: Path) -> None:
    done = run("rollouts.jsonl", "--judges", "long.toml", "short.toml", "-o", "out")
    assert done.exit_code == 0, done.output
    summary = summary_of(work / "out")
    assert summary["grouped_by"] == "equal prompts"
    assert [one["name"] for one in summary["judges"]] == ["long", "short"]
    [pair] = summary["pairs"]
    assert pair["best_changes"]["value"] == 1.0
    assert pair["sign_flips"]["value"] == 1.0
    assert pair["within_kendall"]["value"] == pytest.approx(-1.0)
    assert [one["explained"]["length_r"]["value"] for one in summary["judges"]] == [
        pytest.approx(1.0),
        pytest.approx(-1.0),
    ]
    assert "long" in done.output
    assert "100.0 %" in done.output
    html = (work / "out" / "report.html").read_text()
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "")


def test_a_share_that_is_unknown_is_no_share_of_zero(work: Path) -> None:
    assert run("rollouts.jsonl", "--judges", "long.toml", "short.toml", "-o", "out").exit_code == 0
    summary = summary_of(work / "out")
    tile = "<dt>Most changes</dt><dd>"
    assert f"{tile}100.0 %" in render_swap_page(summary)
    summary["pairs"][0]["best_changes"].update(value=None, low=None, high=None)
    assert f"{tile}–" in render_swap_page(summary)


def test_a_judge_that_fails_is_compared_on_the_rest(work: Path) -> None:
    done = run("rollouts.jsonl", "--judges", "long.toml", "mumbles.toml", "-o", "out", "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    [pair] = summary["pairs"]
    assert (pair["samples"], pair["common"]) == (12, 9)
    assert (pair["groups"], pair["best_changes"]["value"]) == (3, 0.0)
    assert pair["within_kendall"]["value"] == pytest.approx(1.0)
    mumbling = summary["judges"][1]
    assert mumbling["missing_by_kind"] == {"unparsable": 3}
    assert (mumbling["judged"], mumbling["missing"]) == (9, 3)


def test_rows_are_tidy(work: Path) -> None:
    run("rollouts.jsonl", "--judges", "long.toml", "mumbles.toml", "-o", "out")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = pq.read_table(work / "out" / "rows.parquet").to_pylist()
    assert len(rows) == 24
    lost = [row for row in rows if row["reward"] is None]
    assert {row["judge"] for row in lost} == {"mumbles"}
    assert {row["missing"] for row in lost} == {"unparsable"}
    assert all(row["advantage"] is None and row["best"] is None for row in lost)
    best = [row for row in rows if row["judge"] == "long" and row["best"]]
    assert len(best) == 3
    assert {row["length"] for row in best} == {20}


def test_a_table_without_pyarrow(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    run("rollouts.jsonl", "--judges", "long.toml", "short.toml", "-o", "out")
    rows = [json.loads(line) for line in (work / "out" / "rows.jsonl").read_text().splitlines()]
    assert [row["judge"] for row in rows] == ["long"] * 12 + ["short"] * 12


def test_the_same_command_resumes_and_one_more_judge_is_asked_alone(work: Path) -> None:
    run("rollouts.jsonl", "--judges", "long.toml", "short.toml", "-o", "out")
    calls = len((work / "calls.txt").read_text())
    again = run("rollouts.jsonl", "--judges", "long.toml", "short.toml", "-o", "out")
    assert again.exit_code == 0
    assert len((work / "calls.txt").read_text()) == calls
    more = run(
        "rollouts.jsonl", "--judges", *("long.toml", "short.toml", "mumbles.toml"), "-o", "out"
    )
    assert more.exit_code == 0
    assert len((work / "calls.txt").read_text()) > calls
    assert len(summary_of(work / "out")["pairs"]) == 3


def test_another_study_is_refused_in_the_same_folder(work: Path) -> None:
    run("rollouts.jsonl", "--judges", "long.toml", "short.toml", "-o", "out")
    done = run("rollouts.jsonl", "-g", "prompt", "--judges", "long.toml", "--stored", "reward",
               "-o", "out")  # fmt: skip
    assert isinstance(done.exception, RunFolderError)
    assert "another output folder" in str(done.exception)


def test_a_training_folder_is_not_written_over(work: Path) -> None:
    write(work / "run" / "rollouts.jsonl", [{"prompt": "p", "response": "r", "reward": 1.0}])
    (work / "run" / "run.json").write_text("{}")
    before = (work / "run" / "rollouts.jsonl").read_bytes()
    done = run("rollouts.jsonl", "--judges", "long.toml", "short.toml", "-o", "run")
    assert isinstance(done.exception, RunFolderError)
    assert (work / "run" / "rollouts.jsonl").read_bytes() == before


def test_stored_rewards_are_one_more_judge(work: Path) -> None:
    done = run("rollouts.jsonl", "--judges", "first=long.toml", "--stored", "old", "--stored",
               "gold=reward", "-o", "out")  # fmt: skip
    assert done.exit_code == 0, done.output
    summary = summary_of(work / "out")
    assert [one["name"] for one in summary["judges"]] == ["first", "old", "gold"]
    assert summary["judges"][1]["missing_by_kind"] == {"not_stored": 3}
    assert [pair["common"] for pair in summary["pairs"]] == [9, 12, 9]
    assert summary["pairs"][1]["within_spearman"]["value"] == pytest.approx(1.0)


def test_stored_rewards_that_differ_by_rounding_are_equal(work: Path) -> None:
    sums = [0.1 + 0.2, 0.3, 0.1 + 0.2, 0.1]
    rows = [
        {"prompt": "p", "response": "word " * (1 + at), "a": own, "b": round(own, 1)}
        for at, own in enumerate(sums)
    ]
    write(work / "rollouts.jsonl", rows)
    stored = ["--stored", "a=a", "--stored", "b=b"]
    assert run("rollouts.jsonl", *stored, "-o", "out").exit_code == 0
    summary = summary_of(work / "out")
    assert [one["tied_best"] for one in summary["judges"]] == [1, 1]
    [pair] = summary["pairs"]
    assert pair["best_differs"]["value"] == 0.0
    assert pair["kendall"]["value"] == 1.0


def test_rubric_marks_of_stored_details_are_compared(work: Path) -> None:
    def row(at: int, group: int, *, met: bool) -> dict[str, Any]:
        criteria = {"c1": {"met": met, "reason": ""}, "c2": {"met": True, "reason": ""}}
        details = {"style": {"score": 1.0, "metadata": {"criteria": criteria}}}
        shared = {"prompt": f"q{group}", "response": f"r{at}", "details": details}
        return {**shared, "reward": float(met), "other": 1.0 * at}

    write(work / "run" / "rollouts.jsonl", [row(at, at // 2, met=at % 2 == 0) for at in range(4)])
    study = SwapStudy(
        [work / "run"], [], work / "out", stored={"a": "reward", "b": "other"}, show_progress=False
    )
    [pair] = run_swap(study)["pairs"]
    assert [(one["criterion"], one["samples"]) for one in pair["criteria"]] == [
        ("", 8),
        ("style: c1", 4),
        ("style: c2", 4),
    ]
    assert pair["criteria"][0]["differs"]["value"] == 0.0


def sheet_of(work: Path, *paths: Path, **options: Any) -> Any:
    (work / "got").mkdir(exist_ok=True)
    return gather_rollouts(
        find_rollout_sources(list(paths), {}), work / "got" / "rollouts.jsonl", **options
    )


def test_verl_dumps_group_equal_prompts_of_one_step(work: Path) -> None:
    for step in (10, 2):
        rows = [
            {
                "input": "user q",
                "output": f"answer {at}",
                "gts": None,
                "score": 1.0 * at,
                "step": step,
            }
            for at in range(2)
        ]
        write(work / "dumps" / f"{step}.jsonl", rows)
    found = sheet_of(work, work / "dumps", stored={"score": "score"})
    lines = found.table.samples
    names = [line.group.partition("/")[0] for line in lines]
    assert names == ["2", "2", "10", "10"]
    assert len({line.group for line in lines}) == 2
    assert [line.features.length for line in lines] == [8] * 4
    assert found.table.judges[0].rewards == [0.0, 1.0, 0.0, 1.0]
    first = json.loads((work / "got" / "rollouts.jsonl").read_text().splitlines()[0])
    assert (first["prompt"], first["response"]) == ("user q", "answer 0")


@pytest.mark.parametrize("conversational", [True, False])
def test_trl_completions(work: Path, *, conversational: bool) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def said(role: str, text: str) -> Any:
        return [{"role": role, "content": text}] if conversational else text

    rows = [
        {"step": 1, "prompt": said("user", "q"), "completion": said("assistant", f"a{at}"),
         "kind": float(at), "short": float("nan") if at else 2.0, "advantage": 0.0}
        for at in range(3)
    ]  # fmt: skip
    (work / "completions").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), work / "completions" / "completions_00001.parquet")
    found = sheet_of(work, work / "completions", stored={"kind": "kind", "short": "short"})
    [group] = {line.group for line in found.table.samples}
    assert group.startswith("1/")
    assert [one.rewards for one in found.table.judges] == [[0.0, 1.0, 2.0], [2.0, None, None]]
    first = json.loads((work / "got" / "rollouts.jsonl").read_text().splitlines()[0])
    assert (first["prompt"], first["response"]) == ("q", "a0")


def test_broken_rows_are_named_and_kept_out(work: Path) -> None:
    with (work / "rollouts.jsonl").open("a") as file:
        file.write('{"prompt": "p"}\n{"prompt": "p", "response": "r", "old": "text"}\n')
    done = run("rollouts.jsonl", "--judges", "long.toml", "--stored", "old", "-o", "out")
    assert done.exit_code == 2
    broken = summary_of(work / "out")["broken_rows"]
    assert broken["count"] == 2
    assert broken["first"][0]["where"].endswith(":13")
    assert "must be a finite number or null, got str" in broken["first"][1]["message"]


def test_a_judge_that_says_nothing_is_exit_code_3(work: Path) -> None:
    rows = [{"prompt": "p", "response": "word word word", "reward": 1.0 * at} for at in range(2)]
    write(work / "three.jsonl", rows)
    done = run("three.jsonl", "--judges", "mumbles.toml", "--stored", "reward", "-o", "out")
    assert done.exit_code == 3, done.output


@pytest.mark.parametrize(
    ("judges", "said"),
    [
        (["long.toml", "rollouts.jsonl"], "Put rollouts before --judges."),
        (["long.toml", "long.toml"], "two judges are called 'long'"),
        (["a b=long.toml"], "letters, digits"),
        (["gone.toml"], "gone.toml"),
    ],
)
@pytest.mark.usefixtures("work")
def test_judges_that_are_none(judges: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_swap_judges(judges)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rollouts.jsonl", "--judges", "long.toml"], "two judges or more (found long)"),
        (["rollouts.jsonl", "--stored", "a=reward", "--stored", "a=old"], "used twice"),
        (["rollouts.jsonl", "--stored", "="], "must be COLUMN"),
        (
            ["rollouts.jsonl", "-j", "long.toml", "--stored", "long=old"],
            "there is already a judge called 'long'",
        ),
        (["gone.jsonl", "--judges", "long.toml", "short.toml"], "no such file"),
        (["out.d", "--judges", "long.toml", "short.toml"], "no rollouts in the folder"),
    ],
)
def test_what_cannot_be_studied(work: Path, arguments: list[str], said: str) -> None:
    (work / "out.d").mkdir()
    done = run(*arguments, "-o", "out")
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)


def test_no_row_at_all(work: Path) -> None:
    write(work / "none.jsonl", [{"response": 1}])
    with pytest.raises(RolloutError, match="no usable row"):
        sheet_of(work, work / "none.jsonl")


def test_a_group_column_that_rows_lack(work: Path) -> None:
    found = sheet_of(work, work / "rollouts.jsonl", group=["task"])
    assert [line.group for line in found.table.samples][::4] == ["0", "1", "2"]
    with pytest.raises(RolloutError, match="--group gone"):
        sheet_of(work, work / "rollouts.jsonl", group=["gone"])


RUBRIC = """
[[graders]]
name = "care"
type = "rubric"
criteria = [
  {{ id = "dose", criterion = "Names a dose", points = 2 }},
  {{ id = "brief", criterion = "Is brief", points = 1 }},
]

[judges.main]
type = "scripted"
function = "rubric_judges:{function}"
"""

RUBRIC_JUDGES = """
def strict(messages):
    return {"1": {"reason": "", "verdict": "MET"}, "2": {"reason": "", "verdict": "UNMET"}}

def kind(messages):
    return {"1": {"reason": "", "verdict": "MET"}, "2": {"reason": "", "verdict": "MET"}}
"""


def test_criteria_that_two_asked_rubric_judges_mark_differently(work: Path) -> None:
    (work / "rubric_judges.py").write_text(RUBRIC_JUDGES)
    for function in ("strict", "kind"):
        (work / f"{function}.toml").write_text(RUBRIC.format(function=function))
    done = run("rollouts.jsonl", "--judges", "strict.toml", "kind.toml", "-o", "out")
    assert done.exit_code == 0, done.output
    [pair] = summary_of(work / "out")["pairs"]
    found = [(c["criterion"], c["samples"], c["differs"]["value"]) for c in pair["criteria"]]
    assert found == [("", 24, 0.5), ("care: brief", 12, 1.0), ("care: dose", 12, 0.0)]
    assert (pair["criteria"][1]["met_first"], pair["criteria"][1]["met_second"]) == (0.0, 1.0)
    assert "care: brief" in (work / "out" / "report.html").read_text()
