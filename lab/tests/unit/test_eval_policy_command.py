"""What ``adjudge eval policy`` refuses before anybody is asked."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from adjudge.errors import ConfigError
from adjudge_lab.cli.eval_policy import eval_policy


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run.toml").write_text('[model]\nbase = "tiny"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(eval_policy)
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, ConfigError), done.output
    return str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run.toml",), "--model: is required"),
        (("http://localhost:1/v1#m",), "--config: is required"),
        (("run.toml", "--model", "http://h:1/v1#m", "--seeds", "9-1"), "--seeds '9-1'"),
        (
            ("run.toml", "--model", "http://h:1/v1#m", "--seeds", "1,1"),
            "each seed must be given once",
        ),
        (("run.toml", "--model", "http://h:1/v1"), "http://h:1/v1#MODEL"),
        (("run.toml", "--config", "run.toml", "--model", "a/b"), "both name a run file"),
        (("a/b", "--model", "c/d", "--config", "run.toml"), "both name a model"),
        (("run.toml", "--model", "http://h:1/v1#m", "--against", "http://h:1/v1/#m"), "same model"),
    ],
)
def test_bad_input_is_named(work: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*arguments)
    assert not (work / "runs").exists()


def test_a_run_folder_brings_its_own_run_file(work: Path) -> None:
    run = work / "runs" / "x"
    (run / "model").mkdir(parents=True)
    (run / "model" / "config.json").write_text("{}")
    (run / "config.toml").write_text("[model]\nbase = 3\n")
    assert f"{run / 'config.toml'}: model.base" in refused("runs/x")


def test_nothing_to_evaluate_by(work: Path) -> None:
    (work / "rows.jsonl").write_text('{"prompt": "q"}\n')
    (work / "run.toml").write_text(
        '[model]\nbase = "tiny"\n[[graders]]\nname = "q"\ntype = "llm"\n'
        'template = "{response} {reply_form}"\n'
        '[judge]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
        'combine_mode = "replace"\n[rollout]\ndataset = "rows.jsonl"\n'
    )
    said = refused("run.toml", "--model", "http://h:1/v1#m", "--no-judges", "-o", "out")
    assert "rollout.env_grader" in said
    assert not (work / "out").exists()


def test_a_dry_run_counts_the_judges_calls(work: Path) -> None:
    source = Path(__file__).parents[3] / "examples" / "rl_tiny.toml"
    app = typer.Typer()
    app.command()(eval_policy)
    words = [str(source), "--model", "http://127.0.0.1:9/v1#m", "--seeds", "1-5", "--dry-run"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["in_all"]["calls"] >= 5
    none = CliRunner().invoke(app, [*words, "--json", "--no-judges"])
    assert json.loads(none.stdout)["in_all"]["calls"] == 0
    assert not (work / "runs").exists()
