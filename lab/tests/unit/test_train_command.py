"""What ``adjudge train`` hands to Ray."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from adjudge_lab.cli import train as command
from adjudge_lab.rl.run import TrainingJob

RUN = """
[model]
base = "tiny"
[judge]
model = "m"
rubric_id = "r@v1"
"""


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would have been submitted, from a folder with ``run.toml`` in it."""
    calls: list[dict[str, Any]] = []

    def submit(path: Path, **given: Any) -> int:
        calls.append({"path": path, **given})
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "submit_job", submit)
    monkeypatch.setenv("OPENAI_API_KEY", "k-openai")
    monkeypatch.setenv("MINE", "k-mine")
    monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)
    Path("run.toml").write_text(RUN)
    return calls


def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(command.train)
    return CliRunner().invoke(app, ["run.toml", "--ray", "http://h:8265", *arguments])


def test_a_job_writes_where_it_is_told(submitted: list[dict[str, Any]]) -> None:
    assert invoke("-o", "/shared/first", "--seed", "3").exit_code == 0
    (job,) = submitted
    assert job["arguments"] == ["-o", "/shared/first", "--seed", "3"]


@pytest.mark.parametrize(
    ("judge", "keys"),
    [
        ("", {"OPENAI_API_KEY": "k-openai"}),
        ('api_key_env = "MINE"', {"MINE": "k-mine"}),
        ("enabled = false", {}),
        ('type = "vllm"\nbase_url = "http://h/v1"', {}),
    ],
)
def test_the_keys_that_a_job_needs_and_no_other(
    submitted: list[dict[str, Any]], judge: str, keys: dict[str, str]
) -> None:
    Path("run.toml").write_text(RUN + judge + "\n")
    done = invoke("-o", "/shared/first")
    assert done.exit_code == 0, done.exception
    assert submitted[0]["env"] == keys


def test_an_interrupted_run_says_how_to_go_on(
    submitted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train_run", interrupted)
    app = typer.Typer()
    app.command()(command.train)
    said = CliRunner().invoke(app, ["run.toml"]).stderr
    folder = said.partition("adjudge view ")[2].split()[0]
    assert folder.startswith("runs/train-")
    assert f"the same command with -o {folder}" in said
    assert not submitted


STEP = {
    "mean_return": 0.8625, "env_return": 0.3125, "judge_return": 1.1, "rollouts": 16.0,
    "rollouts/mean_return": 16.0, "rollouts/env_return": 16.0, "rollouts/judge_return": 8.0,
    "judge/drawn_frac": 0.5, "judge/missing_frac": 0.125, "judge/outcome_mean": 0.55,
}  # fmt: skip
LINES = """\
resumed after step 4  what was judged is kept
[ITER 5] mean_return=0.863, env_return=0.312, judge_return=1.1 (of 8), rollouts=16, drawn=50.0%, \
missing=12.5%
[RUBRIC_CALL] policy=adjudge, provider=openai, model=m
[RUBRIC_SCORE] event=none, outcome=0.55, combined=1.1
"""


@pytest.mark.parametrize(("more", "lines"), [((), LINES), (("-q",), "")])
def test_a_training_log_has_the_means_and_the_judge_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], lines: str
) -> None:
    def train(job: TrainingJob) -> None:
        job.on_resume(4)
        job.on_row(5, STEP)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "train_run", train)
    Path("run.toml").write_text(RUN)
    app = typer.Typer()
    app.command()(command.train)
    done = CliRunner().invoke(app, ["run.toml", "-o", "run", "--json", "--poll", *more])
    assert done.exit_code == 0
    assert done.stderr.partition("run\n")[2] == lines
