"""Commands of other packages: listed, loaded when asked for, and plain about what is missing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.helpers.packages import Packages
from typer.testing import CliRunner, Result

from adjudge import extensions
from adjudge.cli.main import CORE_COMMANDS, CORE_GROUPS, command_line
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
    for name in ("greeter", "other", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(command_line(), words, env={"COLUMNS": "200"})


def sections(shown: str) -> dict[str, list[str]]:
    """The words under each heading of a help page."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        if heading := re.match("╭─ (\\S+) ─", line):
            rows = found.setdefault(heading[1], [])
        elif row := re.match("│ ([a-z]\\S*) ", line):
            rows.append(row[1])
    return found


def test_help_lists_commands_by_what_they_are_for(packages: Packages) -> None:
    found = sections(run("--help").output)
    listed = {name: heading for heading, names in found.items() for name in names}
    headings = {name: one.heading for name, one in CORE_COMMANDS.items()}
    headings |= {name: one.heading for name, one in CORE_GROUPS.items()}
    lab = {"train": "Lab", "conformance": "Lab"}
    assert listed == {name: one for name, one in headings.items() if "." not in name} | lab


def test_a_group_lists_what_is_installed_and_what_is_not(packages: Packages) -> None:
    shown = " ".join(run("eval", "--help").output.split())
    assert sections(run("eval", "--help").output)["Commands"] == [
        "judge",
        "policy",
        "ifeval",
        "healthbench",
    ]
    assert shown.count("Needs adjudge-lab.") == 3
    assert sections(run("study", "--help").output)["Commands"] == ["swap", "run", "diff", "replay"]


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
    done = run(*words)
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
    shown = run("--help").output
    assert sections(shown)["Plug-ins"] == ["hello", "tools", "own", "down"]
    assert "From greeter 1.5." in shown
    assert "mine" in sections(run("eval", "--help").output)["Commands"]
    assert "greeter" not in sys.modules, "a list loads no package"

    assert run("hello", "there").output == "hello there\n"
    assert run("eval", "mine", "there").output == "hello there\n"
    assert run("tools", "first").output == "first\n"
    assert "The second." in run("tools", "--help").output
    for words, code, message in (
        (("own", "refuse"), 2, "adjudge: here.toml: key: is wrong\n"),
        (("tools", "second"), 2, "adjudge: there.toml: is wrong\n"),
        (("down",), 3, "adjudge: nobody answers\n"),
    ):
        done = run(*words)
        assert (done.exit_code, done.stderr) == (code, message)


def test_the_commands_of_the_lab_come_so(packages: Packages) -> None:
    packages.install(
        "greeter", dict.fromkeys(("train", "conformance", "study.run"), "greeter:hello")
    )
    assert run("train", "here").output == "hello here\n"
    assert run("study", "run", "study.toml").output == "hello study.toml\n"
    assert "Needs adjudge-lab" not in run("--help").output


def test_commands_without_an_entry_point(packages: Packages) -> None:
    packages.install("greeter", {})
    program = command_line({"train": "greeter:hello"})
    assert CliRunner().invoke(program, ["train", "here"]).output == "hello here\n"


def test_adjudge_s_own_commands_cannot_be_replaced(packages: Packages) -> None:
    names = ("grade", "eval", "eval.judge", "rubric")
    packages.install("greeter", dict.fromkeys(names, "greeter:hello"))
    assert "Plug-ins" not in sections(run("--help").output)
    for words in (("grade",), ("eval", "judge"), ("rubric", "lint")):
        assert "Greet" not in run(*words, "--help").output


@pytest.mark.parametrize(
    ("value", "code", "why"),
    [
        ("broken:run", "import no_such_module", "ModuleNotFoundError: No module named"),
        ("broken:run", "raise RuntimeError('[b]boom')", "RuntimeError: [b]boom"),
        ("broken:run", "", "AttributeError"),
        ("no_such_module:run", "", "ModuleNotFoundError"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_one_message(
    packages: Packages, value: str, code: str, why: str
) -> None:
    packages.install("broken", {"run": value}, code)
    assert sections(run("--help").output)["Plug-ins"] == ["run"]
    done = run("run")
    assert done.exit_code == 2
    first, second = done.stderr.splitlines()
    package = f"broken 1.5 (adjudge.commands: {value})"
    assert first.startswith(f"adjudge: command run: 'run' cannot be loaded from {package}: {why}")
    assert 'python -c "import' in second
    assert run("grade", "--help").exit_code == 0


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
    done = run("run")
    assert done.exit_code == 2
    assert all(one in done.stderr for one in said)


def test_a_word_mistyped(packages: Packages) -> None:
    packages.install("greeter", {"hello": "greeter:hello"})
    assert "Did you mean 'hello'?" in run("helo").output
    assert "No such command 'sawp'. Did you mean 'swap'?" in run("study", "sawp").output
    assert "No such command 'x.y'" in run("x.y").output


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

    names = ("console", "interrupts", "main", "plugins")
    always = {f"adjudge.cli.{name}" for name in names}
    assert loaded("--help") == always
    own = {"adjudge.cli.mock", "adjudge.cli.settings"}
    assert loaded("mock", "--help") == always | own


def test_an_installed_package_in_a_process(tmp_path: Path) -> None:
    Packages(tmp_path, CODE).install("greeter", {"hello": "greeter:hello"})
    paths = [str(tmp_path), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in paths if one)}
    command = [sys.executable, "-m", "adjudge", "hello", "there"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "hello there\n"
