"""``adjudge export``: pairs, best answers and good ones; what is left out, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from tests.refusals import refuses
from tests.rows import read_jsonl, write_jsonl

import adjudge
from adjudge.errors import ConfigError
from adjudge.runs.export import ExportSettings, export_run

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def make_run(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A run whose rewards are the rows' ``worth``; none is missing."""
    folder.mkdir(exist_ok=True)
    file = write_jsonl(folder / "rollouts.jsonl", rows)
    spec = {"graders": [{"name": "right", "type": "string_match"}]}
    adjudge.grade(file, spec, output=folder / "run")
    path = folder / "run" / "rewards.jsonl"
    graded = read_jsonl(path)
    for one, row in zip(graded, rows, strict=True):
        one["reward"] = row["worth"]
        if row["worth"] is None:
            one["missing"] = {"kind": "timeout", "message": "late"}
    write_jsonl(path, graded)
    return folder / "run"


def answers(group: str, *worth: float | None, **more: Any) -> list[dict[str, Any]]:
    return [
        {"prompt": f"question {group}", "response": f"{group}{at}", "reference": "r",
         "group": group, "worth": one, **more}
        for at, one in enumerate(worth)
    ]  # fmt: skip


ROWS = [
    *answers("a", 0.5, None, 1.0, 0.0),
    *answers("b", 1.0, 1.0, 0.9),
    *answers("c", 0.3, 0.3),
    *answers("d", 0.7),
    *answers("e", None, None),
]


def test_pairs_of_the_best_and_the_worst(tmp_path: Path) -> None:
    folder, out = make_run(tmp_path, ROWS), tmp_path / "pairs.jsonl"
    done = invoke("export", "dpo", folder, "-o", out, "--json")
    assert done.exit_code == 0, done.output
    rows = read_jsonl(out)
    said = [(one["chosen"][0]["content"], one["rejected"][0]["content"]) for one in rows]
    assert said == [("a2", "a3"), ("b0", "b2")]
    assert rows[0]["prompt"] == [{"role": "user", "content": "question a"}]
    assert (rows[0]["margin"], rows[0]["chosen_reward"], rows[0]["group"]) == (1.0, 1.0, "a")
    found = json.loads(done.stdout)
    assert found["left_out"] == {"missing reward": 3, "alone in its group": 1}
    assert found["pairs_left_out"] == {"tie": 1}
    assert (found["written"], found["samples"], found["groups"]) == (2, 12, 5)


def test_all_pairs_a_number_of_them_and_a_margin(tmp_path: Path) -> None:
    folder, out = make_run(tmp_path, ROWS), tmp_path / "pairs.jsonl"

    def pairs(*words: str) -> list[tuple[str, str]]:
        invoke("export", "dpo", folder, "-o", out, *words)
        return [
            (one["chosen"][0]["content"], one["rejected"][0]["content"]) for one in read_jsonl(out)
        ]

    everyone = [("a2", "a3"), ("a0", "a3"), ("a2", "a0"), ("b0", "b2"), ("b1", "b2")]
    assert pairs("--pairs-per-group", "0") == everyone
    assert pairs("--pairs-per-group", "2") == [*everyone[:2], *everyone[3:]]
    assert pairs("--pairs-per-group", "0", "--min-margin", "0.6") == everyone[:1]
    done = invoke("export", "dpo", folder, "-o", out, "--min-margin", "5")
    assert done.exit_code == 1
    assert "No row was written" in done.output


def test_pairs_share_their_prompt_exactly(tmp_path: Path) -> None:
    rows = answers("a", 0.0, 1.0)
    rows[1]["prompt"] += " "
    same = answers("b", 0.0, 1.0, response="same")
    report = export_run(
        make_run(tmp_path, [*rows, *same]), tmp_path / "x.jsonl", ExportSettings(kind="dpo")
    )
    assert report.written == 0
    assert dict(report.left_out) == {"different prompts in its group": 2}
    assert dict(report.pairs_left_out) == {"same answer": 1}


def test_the_best_of_each_group(tmp_path: Path) -> None:
    out = tmp_path / "best.jsonl"
    report = export_run(make_run(tmp_path, ROWS), out, ExportSettings(kind="best-of-n"))
    rows = read_jsonl(out)
    assert [one["messages"][-1]["content"] for one in rows] == ["a2", "b0", "c0"]
    assert report.tied_best == 2
    assert report.left_out["not the best of its group"] == 5


def test_good_answers(tmp_path: Path) -> None:
    folder, out = make_run(tmp_path, ROWS), tmp_path / "good.jsonl"
    assert invoke("export", "sft", folder, "-o", out, "--min-reward", "0.9").exit_code == 0
    assert [one["messages"][-1]["content"] for one in read_jsonl(out)] == ["a2", "b0", "b1", "b2"]
    done = invoke("export", "sft", folder, "-o", out)
    assert done.exit_code == 2
    assert "--min-reward" in done.output


def conversation(said: str, worth: float) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    return {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Where is it?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "there", "tool_call_id": "1"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "###STOP###"},
        ],
        "tools": TOOLS,
        "group": "t",
        "reference": "r",
        "worth": worth,
    }


def test_conversations_keep_their_tools(tmp_path: Path) -> None:
    folder = make_run(tmp_path, [conversation("here", 0.0), conversation("there", 1.0)])
    out = tmp_path / "pairs.jsonl"
    export_run(folder, out, ExportSettings(kind="dpo"))
    (row,) = read_jsonl(out)
    assert [one["role"] for one in row["prompt"]] == ["system", "user"]
    assert [one["role"] for one in row["chosen"]] == ["assistant", "tool", "assistant"]
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"at": 1}
    assert json.loads(row["tools"]) == TOOLS


def test_parquet_of_both_forms(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = make_run(tmp_path, [conversation("here", 0.0), conversation("there", 1.0)])
    out = tmp_path / "best.parquet"
    assert invoke("export", "best-of-n", folder, "-o", out, "--format", "verl").exit_code == 0
    (row,) = parquet.read_table(out).to_pylist()
    assert row["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"at":1}'
    assert row["prompt"][-1]["content"] == "Where is it?"
    assert row["reward_model"] == {"style": "rule", "ground_truth": "r"}
    assert row["tools"][0]["function"]["name"] == "look"
    assert row["extra_info"]["reward"] == 1.0
    parts = conversation("x", 1.0)
    parts["messages"][1]["content"] = [{"type": "image", "image": "a.png"}, "Where?"]
    mixed = make_run(tmp_path / "mixed", [*answers("a", 1.0), parts])
    with pytest.raises(ConfigError, match=r"Write JSON lines"):
        export_run(mixed, out, ExportSettings(kind="sft", min_reward=0.0))


def test_a_prompt_with_earlier_turns_stays_whole(tmp_path: Path) -> None:
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "2 + 2?"},
    ]
    rows = [
        {"prompt": history, "response": str(at), "group": "a", "reference": "4", "worth": at}
        for at in (0.0, 1.0)
    ]
    export_run(make_run(tmp_path, rows), tmp_path / "x.jsonl", ExportSettings(kind="dpo"))
    assert read_jsonl(tmp_path / "x.jsonl")[0]["prompt"] == history


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["dpo", "RUN", "-o", "x.csv"], "must end with one of"),
        (["dpo", "RUN", "-o", "x.jsonl", "--pairs-per-group", "-1"], "--pairs-per-group"),
        (["dpo", "RUN", "-o", "x.jsonl", "--min-margin", "nan"], "must be 0 or more"),
        (["sft", "RUN", "-o", "x.jsonl", "--min-reward", "nan"], "must be a number"),
        (["best-of-n", "RUN", "-o", "x.jsonl", "--format", "trll"], "is not one of"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: list[str], problem: str) -> None:
    folder = make_run(tmp_path, answers("a", 1.0))
    done = invoke("export", *(folder if word == "RUN" else word for word in words))
    assert done.exit_code == 2
    assert problem in done.output.replace("\n", " ")


def test_rounding_is_no_margin_and_no_reward(tmp_path: Path) -> None:
    folder, out = make_run(tmp_path, answers("a", 0.1 + 0.7, 0.3, 0.1)), tmp_path / "o.jsonl"
    assert 0.3 - 0.1 < 0.2
    export_run(folder, out, ExportSettings(kind="dpo", pairs=0, min_margin=0.2))
    assert len(read_jsonl(out)) == 3
    assert 0.1 + 0.7 < 0.8
    export_run(folder, out, ExportSettings(kind="sft", min_reward=0.8))
    assert len(read_jsonl(out)) == 1


def test_files_of_the_run_are_not_replaced(tmp_path: Path) -> None:
    folder = make_run(tmp_path, answers("a", 1.0, 0.0))
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "rollouts.jsonl")
    for name in ("rollouts.jsonl", "run/rewards.jsonl", "folder.parquet", "link.jsonl"):
        with pytest.raises(ConfigError, match=r"^-o .*(replaced|is a folder)"):
            export_run(folder, tmp_path / name, ExportSettings(kind="dpo"))
    assert len(read_jsonl(tmp_path / "rollouts.jsonl")) == 2


def test_tools_of_several_kinds_are_no_table(tmp_path: Path) -> None:
    """verl shows the column as it is: a tool must not get the parameters of another as nulls."""
    kinds = [{"name": one, "parameters": {"properties": {one: {"type": "string"}}}} for one in "xy"]
    rows = answers("a", 1.0, 0.0, tools=[{"type": "function", "function": one} for one in kinds])
    folder = make_run(tmp_path, rows)
    verl = ExportSettings(kind="best-of-n", form="verl")
    with refuses("tools"):
        export_run(folder, tmp_path / "o.parquet", verl)
    assert not (tmp_path / "o.parquet").exists()
    assert export_run(folder, tmp_path / "o.jsonl", verl).written == 1
    assert export_run(folder, tmp_path / "o.parquet", ExportSettings(kind="best-of-n")).written == 1


def test_no_reference_is_no_text(tmp_path: Path) -> None:
    row = {"prompt": "q", "response": "r", "group": 1}
    file = write_jsonl(tmp_path / "rollouts.jsonl", [row])
    spec = {"graders": [{"name": "n", "type": "length_penalty", "min_length": 0, "max_length": 9}]}
    adjudge.grade(file, spec, output=tmp_path / "run")
    settings = ExportSettings(kind="sft", form="verl")
    export_run(tmp_path / "run", tmp_path / "o.jsonl", settings)
    assert read_jsonl(tmp_path / "o.jsonl")[0]["reward_model"]["ground_truth"] is None
