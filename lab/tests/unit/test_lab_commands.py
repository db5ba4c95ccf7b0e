"""The lab's commands in the ``adjudge`` program, ``python -m adjudge_lab``, help."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import LAB_COMMANDS, command_line

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_extras_are_the_project_s() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert {one.extra for one in LAB_COMMANDS.values()} <= {"", *project["optional-dependencies"]}


def test_the_program_without_its_metadata(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "adjudge_lab", *words]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False
        )

    assert "Needs adjudge-lab" not in run("eval", "--help").stdout
    missing = run("study", "diff", "a.toml", "b.toml")
    assert missing.returncode == 2
    assert missing.stderr.startswith("adjudge: a.toml: ")


def test_keys_come_from_a_file_before_a_command_looks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADJUDGE_T_KEY", raising=False)
    Path(".env").write_text("ADJUDGE_T_KEY=k\n")
    CliRunner().invoke(command_line(), ["train", "run.toml", "--env-file", ".env"])
    assert os.environ.pop("ADJUDGE_T_KEY") == "k"
