"""What a machine lacks is refused before the first sample, wherever grading begins."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from typer.testing import CliRunner

from adjudge import RewardSpec, SpecRewardFunction
from adjudge.cli.main import command_line
from adjudge.errors import ConfigError
from adjudge.judges.cassette import ReplyCache
from adjudge.judges.models.local import LocalChatModel
from adjudge.service.spec_backend import SpecBackend
from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile_checks import load_run_file

VERIF = Path(__file__).parents[3] / "examples" / "rl_verif_tiny.toml"
CODE: dict[str, Any] = {"graders": [{"name": "code", "type": "code_execution"}]}
CODE_TOML = '[[graders]]\nname = "code"\ntype = "code_execution"\n'


def keyed(variable: str = "NO_SUCH_KEY", **grader: Any) -> dict[str, Any]:
    return {
        "judges": {"main": {"type": "openai", "model": "m", "api_key_env": variable}},
        "graders": [{"name": "quality", "type": "relevance", "judge": "main", **grader}],
    }


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without bubblewrap, and a folder with a row and a spec."""
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))  # noqa: PTH120
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("spec.toml").write_text(CODE_TOML)
    row = {"prompt": "p", "response": "```python\nx = 1\n```", "test_cases": ["assert True"]}
    Path("rows.jsonl").write_text(json.dumps(row))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("grade", "rows.jsonl", "-s", "spec.toml", "-o", "out"),
        ("doctor", "spec.toml"),
        ("train", str(VERIF), "--dry-run"),
    ],
)
def test_a_machine_without_a_sandbox_is_told_so(bare: Path, arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(command_line(), arguments)
    assert done.exit_code == 2
    assert "apt install bubblewrap" in " ".join(done.output.split())
    assert not (bare / "out").exists()


def test_an_estimate_without_a_sandbox_warns(bare: Path) -> None:
    words = ("grade", "rows.jsonl", "-s", "spec.toml", "-o", "out", "--dry-run")
    done = CliRunner().invoke(command_line(), words)
    assert done.exit_code == 0
    assert "apt install bubblewrap" in " ".join(done.output.split())
    assert not (bare / "out").exists()


def test_a_training_run_without_a_sandbox_writes_nothing(bare: Path) -> None:
    with refuses("graders.verif"):
        train_run(TrainingJob(load_run_file(VERIF), VERIF, bare / "run"))
    assert not (bare / "run").exists()


@pytest.mark.usefixtures("bare")
def test_a_library_user_and_a_service_are_told_so() -> None:
    spec = RewardSpec.from_dict(CODE)
    for begin in (SpecRewardFunction, SpecBackend):
        with refuses("spec.graders.code.code_execution"):
            begin(spec)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("panel", [{}, {"panel": {"votes": 2}}])
def test_a_key_that_is_not_set_is_refused(
    monkeypatch: pytest.MonkeyPatch, panel: dict[str, Any]
) -> None:
    spec = RewardSpec.from_dict(keyed(**panel))
    with refuses("spec.graders.quality"):
        SpecRewardFunction(spec)
    monkeypatch.setenv("NO_SUCH_KEY", "k")
    SpecRewardFunction(spec)


@pytest.mark.usefixtures("bare")
def test_what_is_replayed_needs_no_key(tmp_path: Path) -> None:
    with_key = ReplyCache(tmp_path / "cassette.db")
    with_key.close()
    spec = RewardSpec.from_dict(keyed())
    cassette = ReplyCache(tmp_path / "cassette.db", "replay")
    spec.check_machine(spec.build_graders(spec.build_judges(cassette)))
    cassette.close()


def test_rules_that_only_the_judge_reads_need_no_sandbox(bare: Path) -> None:
    table = {"main": {"type": "scripted", "script": '{"score": 1}'}}
    grader = {"name": "v", "type": "verif", "judge": "main", "skip_rules": True}
    SpecRewardFunction(RewardSpec.from_dict({"judges": table, "graders": [grader]}))
    assert bare.is_dir()


def test_a_local_judge_needs_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = type(sys)("torch")
    torch.cuda = type("cuda", (), {"is_available": staticmethod(lambda: False)})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr("adjudge.judges.models.local_loading.find_spec", lambda _: object())
    LocalChatModel("m").check_machine()
    with refuses("device"):
        LocalChatModel("m", device="cuda:0").check_machine()
    monkeypatch.setattr("adjudge.judges.models.local_loading.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install torch"):
        LocalChatModel("m").check_machine()
