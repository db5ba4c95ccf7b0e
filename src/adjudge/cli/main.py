"""``adjudge``: the verbs, and what their exit codes mean.

0 done · 1 a threshold was missed (of a probe, of missing rewards), or something was found ·
2 bad input (a file, a key, broken rows) · 3 judge unavailable · 4 the budget is spent ·
130 interrupted.
"""

from __future__ import annotations

import copy
import functools
import gc
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import NoReturn, ParamSpec

import typer

import adjudge
from adjudge.cli.consoles import clean, errors
from adjudge.errors import (
    ConfigError,
    JudgeAuthError,
    JudgeUnavailable,
    MissingRewardError,
    RolloutError,
    RunFolderError,
)

__all__ = ["command_line", "main"]

_VERBS = {
    "grade": "grade",
    "train": "train",
    "eval": "eval_command",
    "probe": "probe",
    "view": "view",
    "demo": "demo",
    "graders": "graders",
    "init": "init",
    "mock": "mock",
    "serve": "serve",
    "top": "top",
    "doctor": "doctor",
    "rubric": "rubric_app",
    "study": "study_app",
}
"""Each verb's function, in the module of the verb's name."""


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"adjudge {adjudge.__version__}")
        raise typer.Exit


P = ParamSpec("P")


def _guarded(command: Callable[P, None]) -> Callable[P, None]:
    """``command`` with errors of the user's making as one message and an exit code."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (ConfigError, RolloutError, RunFolderError) as error:
            _stop(2, str(error))
        except MissingRewardError as error:
            _stop(3, str(error))
        except (JudgeUnavailable, JudgeAuthError) as error:
            _stop(3, str(error))
        except OSError as error:
            _stop(2, f"{error.filename or 'a file'}: {error.strerror or error}")
        except KeyboardInterrupt:
            _stop(130, "interrupted")

    return guarded


def _guarded_group(group: typer.Typer) -> typer.Typer:
    """A copy of ``group`` with each of its verbs guarded."""
    found = copy.copy(group)
    found.registered_commands = [copy.copy(one) for one in group.registered_commands]
    for one in found.registered_commands:
        if one.callback is not None:
            one.callback = _guarded(one.callback)
    return found


def _stop(code: int, message: str) -> NoReturn:
    for line in message.splitlines():
        errors().print(f"[bold red]adjudge:[/] {clean(line)}")
    raise typer.Exit(code)


def command_line(verbs: Iterable[str] = _VERBS) -> typer.Typer:
    """The command line with these verbs; only theirs are imported."""
    found = typer.Typer(
        name="adjudge",
        help="Rollouts in, rewards out: rules, rubrics and LLM judges, with honest failures.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # help texts have brackets: [graders], [default: …]
        pretty_exceptions_enable=False,
    )
    found.callback(invoke_without_command=True)(_root)
    for verb in verbs:
        command = getattr(import_module(f"adjudge.cli.{verb}"), _VERBS[verb])
        if isinstance(command, typer.Typer):
            found.add_typer(_guarded_group(command))
        else:
            found.command(verb)(_guarded(command))
    return found


def __getattr__(name: str) -> typer.Typer:
    """``app``: the whole command line."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return command_line()


def main() -> None:
    """Run the command line."""
    # Calls in flight are many short-lived objects without cycles: with the default threshold the
    # collector takes a tenth of the time and finds nothing. The process is ours to tune.
    gc.set_threshold(50_000, 10, 10)
    asked = sys.argv[1:2]
    if asked and asked[0] in _VERBS:
        command_line(asked)()
    else:
        command_line(() if asked == ["--version"] else _VERBS)()
