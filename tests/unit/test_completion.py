"""``adjudge completion``: what bash offers, asked of bash itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import command_line
from adjudge.graders.registry import SHIPPED


def script(shell: str) -> str:
    found = CliRunner().invoke(command_line(), ["completion", shell])
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "adjudge"
    file.write_text(script("bash"))
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "rollouts.jsonl").touch()
    return tmp_path


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("adjudge gra", {"grade", "graders"}),
        ("adjudge eval ", {"judge", "policy", "ifeval", "healthbench"}),
        ("adjudge study sw", {"swap"}),
        ("adjudge grade --rep", {"--replay"}),
        ("adjudge grade rollouts.jsonl --eng", {"--engine"}),
        ("adjudge grade --engine ", {"local", "ray"}),
        ("adjudge eval judge --mode p", {"pointwise", "pairwise"}),
        ("adjudge eval judge --against ", {"runs/first", "runs/second"}),
        ("adjudge graders json", {name for name in SHIPPED if name.startswith("json")}),
        ("adjudge view ", {"runs/first", "runs/second"}),
        ("adjudge grade x.jsonl -o runs/s", {"runs/second"}),
        ("adjudge grade r", set()),  # the shell completes files itself
        ("adjudge grade --spec ", set()),
        ("adjudge completion ", {"bash", "zsh", "fish"}),
        ("adjudge nothing --", set()),
    ],
)
def test_bash_offers(bash_script: Path, folder: Path, line: str, offered: set[str]) -> None:
    asked = """
        source "$1"
        read -ra COMP_WORDS <<< "$2"
        case "$2" in *" ") COMP_WORDS+=("");; esac
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _adjudge
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    found = subprocess.run(
        ["bash", "--norc", "-uc", asked, "bash", str(bash_script), line],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stderr == ""
    assert set(found.stdout.split()) == offered


def test_other_shells_have_every_command() -> None:
    fish, zsh = script("fish"), script("zsh")
    assert zsh.startswith("#compdef adjudge\n")
    for word in ("grade", "judge", "swap", "completion", "train"):
        assert f"-a '{word}' " in fish
        assert word in zsh
    assert "-l budget-usd -r -d" in fish
