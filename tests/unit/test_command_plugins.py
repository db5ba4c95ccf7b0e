"""Commands of other packages: listed, loaded when asked for, and plain about what is missing."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.e2e.helpers.command import invoke
from tests.unit.helpers.packages import Packages
from typer.testing import CliRunner

from adjudge import extensions
from adjudge.cli.main import command_line
from adjudge.installation import LAB, install_command

CODE = """
import typer
from adjudge.errors import ConfigError, JudgeUnavailable

app = typer.Typer()
NUMBER = 7

def hello(name: str) -> None:
    "Greet."
    print("hello", name)

def refuse() -> None:
    "Refuse."
    raise ConfigError("here.toml: key: is wrong")

def unreachable() -> None:
    "Ask nobody."
    raise JudgeUnavailable("nobody answers")

@app.command()
def first() -> None:
    "The first."
    print("first")

@app.command()
def second() -> None:
    "The second."
    raise ConfigError("there.toml: is wrong")
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    """No other package is installed, adjudge-lab neither."""
    found = Packages(tmp_path, CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(extensions, "entry_points", found.entry_points)
    absent = "adjudge_lab"
    monkeypatch.setattr(
        "adjudge.cli.main.find_spec", lambda name: None if name == absent else find_spec(name)
    )
    for name in ("greeter", "other", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return found


def sections(shown: str) -> dict[str, list[str]]:
    """The words under each heading of a help page."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        if heading := re.match("╭─ (\\S+) ─", line):
            rows = found.setdefault(heading[1], [])
        elif row := re.match("│ ([a-z]\\S*) ", line):
            rows.append(row[1])
    return found


@pytest.mark.parametrize(
    ("words", "name", "extra"),
    [
        (("train", "run.toml"), "train", "train"),
        (("train", "--help"), "train", "train"),
        (("eval", "policy"), "eval policy", ""),
        (("eval", "run.toml", "--model", "runs/first"), "eval policy", ""),
        (("eval", "--model", "m", "--config", "run.toml"), "eval policy", ""),
        (("eval", "ifeval", "m", "--data", "d"), "eval ifeval", ""),
        (("study", "run", "study.toml", "-o", "out"), "study run", "train"),
        (("study", "diff", "a.toml", "b.toml"), "study diff", ""),
    ],
)
def test_without_the_lab(packages: Packages, words: tuple[str, ...], name: str, extra: str) -> None:
    done = invoke(*words)
    assert done.exit_code == 2
    assert done.stderr == (
        f"adjudge: command {name}: is in the package adjudge-lab, which is not installed. "
        f"Run: {install_command(extra, LAB)}\n"
    )


def test_a_package_adds_commands(packages: Packages) -> None:
    packages.install(
        "greeter",
        {"hello": "greeter:hello", "eval.mine": "greeter:hello", "tools": "greeter:app",
         "own.refuse": "greeter:refuse", "down": "greeter:unreachable"},
    )  # fmt: skip
    shown = invoke("--help").output
    assert sections(shown)["Plug-ins"] == ["hello", "tools", "own", "down"]
    assert "From greeter 1.5." in shown
    assert "mine" in sections(invoke("eval", "--help").output)["Commands"]
    assert "greeter" not in sys.modules, "a list loads no package"

    assert invoke("hello", "there").output == "hello there\n"
    assert invoke("eval", "mine", "there").output == "hello there\n"
    assert invoke("tools", "first").output == "first\n"
    assert "The second." in invoke("tools", "--help").output
    for words, code, message in (
        (("own", "refuse"), 2, "adjudge: here.toml: key: is wrong\n"),
        (("tools", "second"), 2, "adjudge: there.toml: is wrong\n"),
        (("down",), 3, "adjudge: nobody answers\n"),
    ):
        done = invoke(*words)
        assert (done.exit_code, done.stderr) == (code, message)


def test_adjudge_s_own_commands_cannot_be_replaced(packages: Packages) -> None:
    names = ("grade", "eval", "eval.judge", "rubric")
    packages.install("greeter", dict.fromkeys(names, "greeter:hello"))
    assert "Plug-ins" not in sections(invoke("--help").output)
    for words in (("grade",), ("eval", "judge"), ("rubric", "lint")):
        assert "Greet" not in invoke(*words, "--help").output


@pytest.mark.parametrize(
    ("value", "other", "said"),
    [
        ("broken:run", "", ("must be a function with options", "(found 7", "in broken 1.5)")),
        ("broken", "", ("must be a function with options", "(found <module", "in broken 1.5)")),
        ("broken:run", "other:hello", ("is in two packages", "broken 1.5 (broken:run)",
                                       "other 1.5 (other:hello)")),
    ],
)  # fmt: skip
def test_what_is_no_command(
    packages: Packages, value: str, other: str, said: tuple[str, ...]
) -> None:
    packages.install("broken", {"run": value}, "run = 7")
    if other:
        packages.install("other", {"run": other})
    done = invoke("run")
    assert done.exit_code == 2
    assert all(one in done.stderr for one in said)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("adjudge gra", ["grade", "graders"]),
        ("adjudge eval j", ["judge"]),
        ("adjudge grade --rep", ["--replay"]),
        ("adjudge grade --engine ", ["local", "ray"]),
        ("adjudge train --", ["--help"]),
    ],
)
def test_a_shell_completes(packages: Packages, line: str, offered: list[str]) -> None:
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    env = {"_ADJUDGE_COMPLETE": "complete_bash", **asked}
    done = CliRunner().invoke(command_line(), [], prog_name="adjudge", env=env)
    assert done.output.split() == offered


def test_only_the_command_that_is_asked_for_is_imported() -> None:
    code = (
        "import sys; from adjudge.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "loaded = {name for name in sys.modules if name.startswith('adjudge.cli.')}\n"
        "print(*sorted(loaded), file=sys.stderr)"
    )

    def loaded(*words: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        return set(done.stderr.split())

    names = ("console", "main")
    always = {f"adjudge.cli.{name}" for name in names}
    assert loaded("--help") == always
    own = {"adjudge.cli.judges", "adjudge.cli.options"}
    assert loaded("mock", "--help") == always | own


def test_an_installed_package_in_a_process(tmp_path: Path) -> None:
    Packages(tmp_path, CODE).install("greeter", {"hello": "greeter:hello"})
    paths = [str(tmp_path), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in paths if one)}
    command = [sys.executable, "-m", "adjudge", "hello", "there"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "hello there\n"
