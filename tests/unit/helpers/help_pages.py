"""What every help page has to be: readable in 80 columns, with an example that parses."""

import re
import shlex
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from adjudge.cli.main import command_line

_COLUMNS = 80
_ROOT = Path(__file__).parents[3]


def check_help_page(words: str) -> None:
    """Check ``adjudge WORDS --help``; the examples are parsed and not run."""
    program = command_line()
    listed: Any = typer.main.get_command(program)
    command = listed
    for word in words.split():
        listed = command.commands[word]
        command = listed.load() if hasattr(listed, "load") else listed
    assert max(map(len, _help_page(program, words).splitlines())) <= _COLUMNS
    examples = re.findall(r"^Example: (.+?)$", command.help, re.MULTILINE)
    assert examples
    for example in examples:
        _check_parses(program, f"adjudge {words}".strip(), example)


def _help_page(program: typer.Typer, words: str) -> str:
    asked, env = [*words.split(), "--help"], {"COLUMNS": str(_COLUMNS)}
    done = CliRunner().invoke(program, asked, prog_name="adjudge", env=env)
    assert done.exit_code == 0, done.output
    return done.output


def _check_parses(program: typer.Typer, begins: str, example: str) -> None:
    words = shlex.split(example)
    words = words[: words.index(">")] if ">" in words else words
    assert words[: len(begins.split())] == begins.split(), example
    # One click context within the other, as when a command runs, but nothing is invoked.
    context = typer.main.get_command(program).make_context("adjudge", words[1:])
    while hasattr(context.command, "resolve_command"):
        inside = [*context._protected_args, *context.args]
        name, found, rest = context.command.resolve_command(context, inside)
        context = found.make_context(name, rest, parent=context)
    files = [word for word in words if word.startswith("examples/")]
    assert all((_ROOT / file).exists() for file in files), example
