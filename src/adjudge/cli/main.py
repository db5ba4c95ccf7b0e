"""``adjudge``: the verbs, and what their exit codes mean.

0 done · 1 a threshold was missed · 2 bad input (a file, a key, broken rows) · 3 judge unavailable ·
130 interrupted.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

import adjudge
from adjudge.cli import demo, doctor, grade, graders, init
from adjudge.errors import (
    ConfigError,
    JudgeAuthError,
    JudgeUnavailable,
    MissingRewardError,
    RolloutError,
    RunFolderError,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="adjudge",
    help="Rollouts in, rewards out: rules, rubrics and LLM judges, with honest failures.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

app.command("grade")(grade.grade)
app.command("demo")(demo.demo)
app.command("graders")(graders.graders)
app.command("init")(init.init)
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"adjudge {adjudge.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; errors of the user's making are one message, never a traceback."""
    try:
        app()
    except (ConfigError, RolloutError, RunFolderError) as error:
        _complain(str(error))
        sys.exit(2)
    except MissingRewardError as error:
        _complain(str(error))
        sys.exit(3)
    except (JudgeUnavailable, JudgeAuthError) as error:
        _complain(f"{error}\nWhat was graded is in the journal: the same command resumes.")
        sys.exit(3)
    except KeyboardInterrupt:
        _complain("interrupted; the same command resumes")
        sys.exit(130)


def _complain(message: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        f"[bold red]adjudge:[/] {escape(message)}"
    )
