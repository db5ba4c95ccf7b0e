"""What every help page has to be: one sentence, an example that parses, and one screen."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from adjudge.cli.main import command_line

_MOST_LINES = 53
"""The longest page, of a command with 26 options; most have fewer than 30 lines."""
_COLUMNS = 80
_ROOT = Path(__file__).parents[3]
_EXAMPLE_WITHIN = 8


def check_help_page(
    words: str, monkeypatch: pytest.MonkeyPatch, commands: Mapping[str, str] | None = None
) -> None:
    """Check ``adjudge WORDS --help``; the examples are parsed and not run."""
    monkeypatch.setenv("COLUMNS", str(_COLUMNS))
    program = command_line(commands)
    done = CliRunner().invoke(program, [*words.split(), "--help"], prog_name="adjudge")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert len(lines) <= _MOST_LINES, f"{len(lines)} lines"
    assert max(map(len, lines)) <= _COLUMNS, max(lines, key=len)
    assert re.fullmatch(r"[A-Z].*\.", lines[0]), lines[0]
    assert any(line.startswith("Example") for line in lines[: _EXAMPLE_WITHIN - 1])
    place = next(place for place, line in enumerate(lines) if line.startswith("Example"))
    examples = lines[place + 1 : lines.index("", place)]
    assert examples
    for example in examples:
        _check_parses(program, f"adjudge {words}".strip(), example.strip())


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
