"""``adjudge``: the commands, and what their exit codes mean.

0 done · 1 a threshold was missed (of a probe, of missing rewards), or something was found ·
2 bad input (a file, a key, broken rows), or a command that is not installed ·
3 judge unavailable · 4 the budget is spent · 130 stopped by Ctrl-C · 143 stopped by SIGTERM.

Only the module of the command that is asked for is imported. Other packages add commands by entry
points (:mod:`adjudge.cli.plugins`); those of adjudge-lab come so.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import typer

import adjudge
from adjudge.cli.console import Terminated, clean, command_line_words, errors, stop_signals
from adjudge.cli.plugins import (
    MARKUP,
    CommandGroup,
    CoreCommand,
    CoreGroup,
    add_commands,
)
from adjudge.errors import (
    ConfigError,
    ErrorKind,
    JudgeAuthError,
    JudgeUnavailable,
    MissingRewardError,
    RolloutError,
    RunFolderError,
    redact_addresses,
)

CORE_COMMANDS = {
    "demo": CoreCommand("Reward", "adjudge.cli.demo:demo"),
    "init": CoreCommand("Reward", "adjudge.cli.init:init"),
    "grade": CoreCommand("Reward", "adjudge.cli.grade:grade"),
    "regrade": CoreCommand("Reward", "adjudge.cli.diff:regrade"),
    "graders": CoreCommand("Reward", "adjudge.cli.graders:graders"),
    "rubric.lint": CoreCommand("Reward", "adjudge.cli.rubric:lint_file"),
    "serve": CoreCommand("Reward", "adjudge.cli.serve:serve_command"),
    "mock": CoreCommand("Judge", "adjudge.cli.judges:mock"),
    "models.fetch": CoreCommand("Judge", "adjudge.cli.judges:fetch"),
    "models.list": CoreCommand("Judge", "adjudge.cli.judges:list_models"),
    "view": CoreCommand("Look", "adjudge.cli.view:view"),
    "watch": CoreCommand("Look", "adjudge.cli.view:watch"),
    "audit": CoreCommand("Check", "adjudge.cli.audit:audit"),
    "probe": CoreCommand("Check", "adjudge.cli.probe:probe"),
    "align": CoreCommand("Check", "adjudge.cli.align:align"),
    "eval.judge": CoreCommand("Check", "adjudge.cli.eval:eval_judge"),
    "study.swap": CoreCommand("Check", "adjudge.cli.study:swap_app"),
    "diff": CoreCommand("Check", "adjudge.cli.diff:diff"),
    "export.dpo": CoreCommand("Reward", "adjudge.cli.export:export_dpo"),
    "export.best-of-n": CoreCommand("Reward", "adjudge.cli.export:export_best"),
    "export.sft": CoreCommand("Reward", "adjudge.cli.export:export_sft"),
    "doctor": CoreCommand("Tools", "adjudge.cli.doctor:doctor"),
}
"""adjudge's own commands, in the order of ``adjudge --help``."""

CORE_GROUPS = {
    "export": CoreGroup(
        "Reward",
        """Write training data from a graded run, for TRL or verl.

Example: adjudge export dpo runs/first -o pairs.jsonl
""",
    ),
    "models": CoreGroup(
        "Judge",
        """Fetch and list small open models for judges of type embedded.

Example: adjudge models fetch smollm2
""",
    ),
    "rubric": CoreGroup(
        "Reward",
        """Check rubric files before a judge is paid to use them.

Example: adjudge rubric lint examples/rubric_rows.jsonl
""",
    ),
    "eval": CoreGroup(
        "Check",
        """Evaluate a judge or a policy, or score IFEval or HealthBench.

Example: adjudge eval judge judge.toml --data pairs.jsonl

Example: adjudge eval policy run.toml --model runs/first --seeds 1-20

`adjudge eval RUN.toml …` is short for `adjudge eval policy RUN.toml …`.
""",
        default="policy",
    ),
    "study": CoreGroup(
        "Check",
        """Study how the choice of a judge changes the result.

Example: adjudge study run study.toml --dry-run

Example: adjudge study swap rollouts.jsonl --judges strict.toml small.toml

`adjudge study run` trains policies against judges that differ in a known way, and reports proxy and
gold rewards, transfer between judges, drift, the onset of reward hacking, and cost. --dry-run
prints the plan; the same command with the same -o resumes. `adjudge study swap` compares judges
without training.
""",
    ),
}


_HELP = """\
Turn rollouts into rewards: rules, rubrics and LLM judges, with honest failures.

Example: adjudge grade rollouts.jsonl --spec reward.toml -o runs/first
"""
_USAGE_ERROR: Any = typer.BadParameter.__base__  # which typer gives no name of its own
_EXIT_CODES = """\
Exit codes: 0 done; 1 a threshold was missed, or something was found; 2 bad input; 3 judge
unavailable; 4 the budget is spent; 130 stopped by Ctrl-C; 143 by SIGTERM.
"""


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"adjudge {adjudge.__version__}")
        raise typer.Exit


class _Program(CommandGroup):
    """The program: errors of the user's making are one message and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click does; keeps the words, for messages that say how to continue."""
        self._words = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Load the command that is asked for, and run it."""
        try:
            with command_line_words(self._words), stop_signals():
                return super().invoke(ctx)
        except (ConfigError, RolloutError, RunFolderError) as error:
            _stop(2, str(error))
        except MissingRewardError as error:
            _stop(3, str(error))
        except (JudgeUnavailable, JudgeAuthError) as error:
            unpaid = getattr(error, "kind", None) is ErrorKind.BUDGET
            _stop(4 if unpaid else 3, str(error))
        except _USAGE_ERROR as error:
            error.message = redact_addresses(error.message)
            raise
        except BrokenPipeError:  # who reads our output has gone, such as `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None  # what a shell says of a program that SIGPIPE ended
        except OSError as error:
            _stop(2, f"{error.filename or 'a file'}: {error.strerror or error}")
        except Terminated:
            _stop(143, "stopped by SIGTERM")
        except KeyboardInterrupt:
            _stop(130, "interrupted")


def _stop(code: int, message: str) -> NoReturn:
    for line in message.splitlines():
        errors().print(f"[bold red]adjudge:[/] {clean(redact_addresses(line))}")
    raise typer.Exit(code)


def command_line(commands: Mapping[str, str] | None = None) -> typer.Typer:
    """The program.

    ``commands``: more of them, as entry points name them (``"eval.policy"`` to
    ``module:function``), where their package is not installed but can be imported.
    """

    class Program(_Program):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            add_commands(self, CORE_COMMANDS, CORE_GROUPS, commands or {})

    found = typer.Typer(
        name="adjudge",
        cls=Program,
        help=_HELP,
        epilog=_EXIT_CODES,
        no_args_is_help=True,
        rich_markup_mode=MARKUP,
        pretty_exceptions_enable=False,
    )
    found.callback(invoke_without_command=True)(_root)
    return found


def __getattr__(name: str) -> typer.Typer:
    """``app``: the program."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return command_line()


def main(commands: Mapping[str, str] | None = None) -> None:
    """Run the program; ``commands`` as for :func:`command_line`."""
    # Calls in flight are many short-lived objects without cycles: with the default threshold the
    # collector takes a tenth of the time and finds nothing. The process is ours to tune.
    gc.set_threshold(50_000, 10, 10)
    command_line(commands)()
