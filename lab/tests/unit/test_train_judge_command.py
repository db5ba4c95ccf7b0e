"""What ``adjudge train`` of a judge's file plans, prints and hands to Ray."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import command_line
from adjudge.errors import ConfigError
from adjudge_lab.cli import train as command
from adjudge_lab.judge_training.judge_file import JUDGE_VARIABLES

BT = 'kind = "judge"\nmethod = "bradley_terry"\n[data]\ntrain = "rows.jsonl"\n'
GRPO = """
kind = "judge"
method = "grpo"
backend = "verl"
[model]
path = "org/base"
[data]
train = "rows.jsonl"
val_fraction = 0.2
train_batch_size = 4
micro_batch_size = 2
[trainer]
n_gpus_per_node = 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows to rate in it, and no variable that changes a run."""
    for name in JUDGE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"q{n}", "response": f"a{n}", "label": n % 5} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


@pytest.fixture
def submitted(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def submit(path: Path, **given: Any) -> int:
        calls.append({"path": path, **given})
        return 7

    monkeypatch.setattr(command, "submit_job", submit)
    return calls


def invoke(text: str, *arguments: str) -> Any:
    Path("judge.toml").write_text(text)
    return CliRunner().invoke(command_line(), ["train", "judge.toml", *arguments])


def test_a_judge_is_trained_on_a_cluster_by_our_own_trainer(
    submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_PATH", "org/other")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # Ray's own; a job gets another
    done = invoke(BT, "--ray", "http://h:8265", "-o", "/shared/j", "--seed", "4", "--poll")
    assert done.exit_code == 7
    (job,) = submitted
    assert job["path"] == Path("judge.toml")
    assert job["address"] == "http://h:8265"
    assert job["arguments"] == ["-o", "/shared/j", "--seed", "4"]
    assert job["env"] == {"MODEL_PATH": "org/other"}
    assert job["poll"] is True


@pytest.mark.parametrize("arguments", [(), ("-o", "runs/x")])
def test_a_job_s_own_folder_goes_away_with_it(
    submitted: list[dict[str, Any]], arguments: tuple[str, ...]
) -> None:
    refused = invoke(BT, "--ray", "http://h:8265", *arguments)
    assert refused.exit_code == 2
    assert "absolute folder" in " ".join(refused.output.split())
    assert not submitted


@pytest.mark.parametrize(
    ("variable", "in_file", "address"),
    [
        ("http://v:8265", "", "http://v:8265"),
        ("", 'ray_address = "http://f:8265"', "http://f:8265"),
        ("http://v:8265", 'ray_address = "http://f:8265"', "http://v:8265"),
    ],
)
def test_grpo_on_verl_goes_to_the_cluster_that_is_given(
    submitted: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    in_file: str,
    address: str,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", variable)
    assert invoke(f"{GRPO}\n[grpo]\n{in_file}\n", "-o", "/shared/j").exit_code == 7
    assert submitted[0]["address"] == address


@pytest.mark.parametrize("variable", ["", "10.0.0.1:6379"])
def test_inside_a_job_and_without_a_cluster_it_is_done_here(
    submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    seen = []

    def by_verl(*given: Any, quiet: bool) -> Any:
        seen.append(given)
        raise ConfigError("no verl")

    monkeypatch.setattr(command, "_by_verl", by_verl)
    monkeypatch.setenv("RAY_ADDRESS", variable)
    text = GRPO if not variable else f'{GRPO}\n[grpo]\nray_address = "http://f:8265"\n'
    assert invoke(text, "-o", "/shared/j").exit_code == 2
    assert seen
    assert not submitted


def test_a_plan_for_verl_prints_command_and_files_and_writes_nothing(here: Path) -> None:
    done = invoke(GRPO, "--dry-run")
    assert done.exit_code == 0, done.exception
    assert "python -m adjudge.trainers.verl.main_ppo \\" in done.stdout
    assert "actor_rollout_ref.rollout.n=4 \\" in done.stdout
    assert "VERL_FILE_LOGGER_PATH=" in done.stdout
    assert "16 rows, the first: {" in done.stdout
    assert "no tokenizer on this machine" in done.stdout
    assert sorted(one.name for one in here.iterdir()) == ["judge.toml", "rows.jsonl"]


def test_a_plan_with_a_folder_is_written_there(here: Path) -> None:
    done = invoke(GRPO, "--dry-run", "-o", "out", "--json")
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    files = found["verl"]["files"]
    assert [one["rows"] for one in files.values()] == [16, 4]
    assert all(Path(name).is_file() for name in files)
    text = (here / "out" / "verl.sh").read_text()
    assert text.startswith("#!/bin/sh\n")
    assert f"data.train_files={here / 'out' / 'train.parquet'}" in text
    assert found["method"] == "grpo"


PAIRS = "".join(
    json.dumps({"prompt": f"q{n}", "chosen": "yes", "rejected": "no"}) + "\n" for n in range(10)
)
CHAT = "".join(
    json.dumps({"messages": [{"role": "user", "content": f"q{n}"},
                             {"role": "assistant", "content": "yes"}]}) + "\n"
    for n in range(10)
)  # fmt: skip
SFT = BT.replace("bradley_terry", "sft")
RATED = SFT.replace("[data]", 'mode = "pointwise"\n[data]')
PAID = RATED.replace('"sft"', '"grpo"') + "train_batch_size = 6\n[model]\npath = 'tiny'\n"


@pytest.mark.parametrize(
    ("text", "data", "rows"),
    [
        (BT, PAIRS, {"train_rows": 9, "val_rows": 1, "unusable": 0, "steps": 3}),
        (SFT, CHAT, {"train_rows": 9, "val_rows": 1, "unusable": 0, "steps": 1}),
        (RATED, None, {"train_rows": 18, "val_rows": 2, "unusable": 0, "steps": 1}),
        (PAID, None, {"train_rows": 18, "val_rows": 2, "unusable": 0, "steps": 3}),
        (PAID.replace("= 6", "= 60"), None, 2),
        (BT, None, 2),
        (SFT, PAIRS, 2),
        (RATED, CHAT, 2),
        (BT.replace("rows.", "rowz."), None, 2),
        (PAID.replace("rows.", "rowz."), None, 2),
    ],
)
def test_a_plan_reads_the_rows_that_the_run_would_read(
    here: Path, text: str, data: str | None, rows: Any
) -> None:
    if data is not None:
        Path("rows.jsonl").write_text(data)
    done = invoke(text, "--dry-run", "--json")
    if rows == 2:
        assert done.exit_code == 2
        return
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == rows
    said = invoke(text, "--dry-run").stdout
    assert f"{rows['steps']} steps" in said
    assert "verl" not in said.replace("backend      trl", "")
    assert "{'" not in said
    assert sorted(one.name for one in here.iterdir()) == ["judge.toml", "rows.jsonl"]


def test_who_interrupts_is_told_how_to_go_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_here", interrupted)
    found = invoke(BT)
    assert found.exit_code == 130
    assert "To resume, run:\n  adjudge train judge.toml -o runs/judge-" in found.stderr
