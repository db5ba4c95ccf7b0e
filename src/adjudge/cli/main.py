"""``adjudge``: the commands, how they are found and imported, and what their exit codes mean.

0 done · 1 a threshold was missed (of a probe, of missing rewards), or something was found ·
2 bad input (a file, a key, broken rows), or a command that is not installed ·
3 judge unavailable · 4 the budget is spent · 130 stopped by Ctrl-C · 143 stopped by SIGTERM.

Only the module of the command that is asked for is imported. Another package adds a command by an
entry point of the group ``adjudge.commands``. The name is the
command, with a dot where it belongs to a group; the object is a function that typer understands, or
a :class:`typer.Typer`::

    [project.entry-points."adjudge.commands"]
    tune = "my_package.cli:tune"                    # adjudge tune
    "eval.latency" = "my_package.cli:latency"       # adjudge eval latency

A command of adjudge itself cannot be replaced. Errors that adjudge defines
(:class:`~adjudge.errors.ConfigError` and others) end a command of a package as they end its own:
one message, and these exit codes.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import adjudge
from adjudge.cli.console import Terminated, clean, command_line_words, errors, stop_signals
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
from adjudge.extensions import describe_package, find_entry_points, load_entry_point
from adjudge.installation import LAB, install_command

ENTRY_POINT_GROUP = "adjudge.commands"
MARKUP: Final = "markdown"
"""How help texts are read. Under typer's other way, ``[graders]`` would be markup."""


class Command(NamedTuple):
    """A command: its heading in ``adjudge --help``, and ``module:function``.

    ``extra``: what of adjudge-lab a command of the lab needs.
    """

    heading: str
    target: str
    extra: str = ""


class CoreGroup(NamedTuple):
    """A group of commands.

    ``default``: the command that is meant where the first word is not a command of the group.
    """

    heading: str
    help: str
    default: str | None = None


LAB_COMMANDS = {
    "train": Command("Lab", "adjudge_lab.cli.train:train", "train"),
    "eval.policy": Command("Lab", "adjudge_lab.cli.eval_policy:eval_policy"),
    "eval.ifeval": Command("Lab", "adjudge_lab.cli.eval_benchmarks:eval_ifeval"),
    "eval.healthbench": Command("Lab", "adjudge_lab.cli.eval_benchmarks:eval_healthbench"),
    "conformance": Command("Lab", "adjudge_lab.cli.conformance:conformance"),
    "study.run": Command("Lab", "adjudge_lab.cli.study:run_study_file", "train"),
    "study.diff": Command("Lab", "adjudge_lab.cli.study:diff_run_files"),
    "study.replay": Command("Lab", "adjudge_lab.cli.study_replay:replay"),
}
"""The commands of adjudge-lab, which are listed where it is not installed, too."""


class CommandGroup(TyperGroup):
    """A group of commands; those of other packages are looked up where they may be meant.

    ``default``: the command that is meant where the first word is not a command of the group.
    """

    default: str | None = None
    add_plugins: Callable[[], None]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with the command before them where they name none."""
        if args and args[0] not in self.commands:
            self.add_plugins()
        if self.default and args and args[0] != "--help" and args[0] not in self.commands:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands' names, for a help page or a shell; none is imported."""
        self.add_plugins()
        for command in self.commands.values():
            if isinstance(command, LazyCommand):
                command.read_help()
        return super().list_commands(ctx)


class LazyCommand(TyperCommand):
    """A command that is listed by its first sentence, and imported when it is called."""

    def __init__(self, name: str, heading: str | None, points: list[EntryPoint]) -> None:
        self._full_name, self._points = name, points
        super().__init__(name.rpartition(".")[2], rich_help_panel=heading)

    def read_help(self) -> None:
        """Say what it does where commands are listed."""
        self.help = _describe(self._points)

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself."""
        try:
            command = self.load()
        except ConfigError:
            if not extra.get("resilient_parsing"):  # a shell asks how the line may go on
                raise
            command = TyperCommand(self.name)
        return command.make_context(info_name, args, parent, **extra)

    def load(self) -> Any:
        """The command or group itself.

        Raises :class:`~adjudge.errors.ConfigError` where its package is missing or broken.
        """
        name = self._full_name
        where = f"command {name.replace('.', ' ')}"
        points = self._points
        if not points:
            raise ConfigError(
                f"{where}: is in the package {LAB}, which is not installed. "
                f"Run: {install_command(LAB_COMMANDS[name].extra, LAB)}"
            )
        found = load_entry_point(points, where=where)
        try:
            return _make_command(str(self.name), found)
        except Exception as error:
            raise ConfigError(
                f"{where}: must be a function with options that typer reads, or a typer.Typer "
                f"(found {found!r:.80} in {describe_package(points[0])}): "
                f"{type(error).__name__}: {error}"
            ) from error


def add_commands(program: CommandGroup) -> None:
    """Add adjudge's own commands to the program, the lab's, and those of installed packages."""

    def find_group(name: str, points: list[EntryPoint]) -> Any:
        above, _, word = name.rpartition(".")
        parent = find_group(above, points) if above else program
        inside = getattr(parent, "commands", {})
        if word not in inside:
            about = CORE_GROUPS.get(name) or CoreGroup("Plug-ins", _describe(points))
            inside[word] = found = CommandGroup(
                name=word,
                help=about.help,
                rich_help_panel=about.heading,
                rich_markup_mode=MARKUP,
                no_args_is_help=True,
            )
            found.default, found.add_plugins = about.default, add_plugins
        return inside[word]

    def add(name: str, points: list[EntryPoint], heading: str | None) -> None:
        above, _, word = name.rpartition(".")
        group = find_group(above, points) if above else program
        if isinstance(group, CommandGroup):
            group.commands[word] = LazyCommand(name, None if above else heading, points)

    own = CORE_COMMANDS | LAB_COMMANDS

    @cache
    def add_plugins() -> None:
        for name, points in find_entry_points(ENTRY_POINT_GROUP).items():
            if name not in own and name not in CORE_GROUPS:
                add(name, points, "Plug-ins")

    program.add_plugins = add_plugins
    has_lab = find_spec(LAB.replace("-", "_")) is not None
    for name, one in own.items():
        is_here = has_lab or name not in LAB_COMMANDS
        points = [EntryPoint(name, one.target, ENTRY_POINT_GROUP)] if is_here else []
        add(name, points, one.heading)


def _describe(points: list[EntryPoint]) -> str:
    """One line about a command; nothing is imported for it."""
    if not points:
        return f"Needs {LAB}."
    return _read_sentence(points[0]) or (
        f"From {', '.join(dict.fromkeys(map(describe_package, points)))}."
    )


def _read_sentence(point: EntryPoint) -> str:
    """The first line of the docstring of a command that is adjudge's or the lab's."""
    if not point.module.startswith(("adjudge.", "adjudge_lab.")):
        return ""
    try:
        text = Path(str(find_spec(point.module).origin)).read_text(encoding="utf-8")  # type: ignore[union-attr]
    except (ImportError, AttributeError, OSError):
        return ""  # calling it says what is wrong
    name = re.escape(point.attr)
    found = re.search(rf'(?ms)^def {name}\(.*?"""(.+?)$', text)
    return found[1] if found else ""


def _make_command(word: str, found: Any) -> Any:
    """A function, or a typer application, as a click command."""
    outer = typer.Typer(
        rich_markup_mode=MARKUP, add_completion=False, pretty_exceptions_enable=False
    )
    if not isinstance(found, typer.Typer):
        if not callable(found):
            raise TypeError("it cannot be called")
        outer.command(word)(found)
    elif len(found.registered_commands) == 1 and found.registered_callback is None:
        outer.registered_commands = found.registered_commands
    else:
        outer.add_typer(found, name=word)
        outer.callback()(lambda: None)
        group: Any = typer.main.get_command(outer)
        return group.commands[word]
    return typer.main.get_command(outer)


CORE_COMMANDS = {
    "demo": Command("Reward", "adjudge.cli.demo:demo"),
    "init": Command("Reward", "adjudge.cli.init:init"),
    "grade": Command("Reward", "adjudge.cli.grade:grade"),
    "regrade": Command("Reward", "adjudge.cli.diff:regrade"),
    "graders": Command("Reward", "adjudge.cli.graders:graders"),
    "rubric.lint": Command("Reward", "adjudge.cli.rubric:lint_file"),
    "serve": Command("Reward", "adjudge.cli.serve:serve_command"),
    "mock": Command("Judge", "adjudge.cli.judges:mock"),
    "models.fetch": Command("Judge", "adjudge.cli.judges:fetch"),
    "models.list": Command("Judge", "adjudge.cli.judges:list_models"),
    "view": Command("Look", "adjudge.cli.view:view"),
    "watch": Command("Look", "adjudge.cli.view:watch"),
    "audit": Command("Check", "adjudge.cli.audit:audit"),
    "probe": Command("Check", "adjudge.cli.probe:probe"),
    "align": Command("Check", "adjudge.cli.align:align"),
    "eval.judge": Command("Check", "adjudge.cli.eval:eval_judge"),
    "study.swap": Command("Check", "adjudge.cli.study:swap"),
    "diff": Command("Check", "adjudge.cli.diff:diff"),
    "export.dpo": Command("Reward", "adjudge.cli.export:export_dpo"),
    "export.best-of-n": Command("Reward", "adjudge.cli.export:export_best"),
    "export.sft": Command("Reward", "adjudge.cli.export:export_sft"),
    "doctor": Command("Tools", "adjudge.cli.doctor:doctor"),
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

Example: adjudge study swap rollouts.jsonl --judge strict.toml --judge small.toml

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

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        add_commands(self)

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


def command_line() -> typer.Typer:
    """The program."""
    found = typer.Typer(
        name="adjudge",
        cls=_Program,
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


def main() -> None:
    """Run the program."""
    # Calls in flight are many short-lived objects without cycles: with the default threshold the
    # collector takes a tenth of the time and finds nothing. The process is ours to tune.
    gc.set_threshold(50_000, 10, 10)
    command_line()()
