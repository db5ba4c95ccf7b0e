"""Commands that are imported when they are called: adjudge's own, and those of other packages.

A package adds a command by an entry point of the group ``adjudge.commands``. The name is the
command, with a dot where it belongs to a group; the object is a function that typer understands, or
a :class:`typer.Typer`::

    [project.entry-points."adjudge.commands"]
    tune = "my_package.cli:tune"                    # adjudge tune
    "eval.latency" = "my_package.cli:latency"       # adjudge eval latency

A command of adjudge itself cannot be replaced. Errors that adjudge defines
(:class:`~adjudge.errors.ConfigError` and others) end a command of a package as they end its own:
one message, and the exit codes of :mod:`adjudge.cli.main`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from adjudge.errors import ConfigError
from adjudge.extensions import describe_package, find_entry_points, load_entry_point
from adjudge.installation import LAB, install_command

ENTRY_POINT_GROUP = "adjudge.commands"
MARKUP: Final = "markdown"
"""How help texts are read. Under typer's other way, ``[graders]`` would be markup."""


class CoreCommand(NamedTuple):
    """A command of adjudge itself: its heading in ``adjudge --help``, and ``module:function``."""

    heading: str
    target: str


class CoreGroup(NamedTuple):
    """A group of commands.

    ``default``: the command that is meant where the first word is not a command of the group.
    """

    heading: str
    help: str
    default: str | None = None


LAB_COMMANDS = {
    "train": "train",
    "eval.policy": "",
    "eval.ifeval": "",
    "eval.healthbench": "",
    "conformance": "",
    "study.run": "train",
    "study.diff": "",
    "study.replay": "",
}
"""The commands of adjudge-lab, each with the extra that it needs.

They are listed where it is not installed, too.
"""


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
        """The commands' names; none is imported."""
        self.add_plugins()
        return super().list_commands(ctx)


class LazyCommand(TyperCommand):
    """A command that is listed by its first sentence, and imported when it is called."""

    def __init__(self, name: str, heading: str | None, points: list[EntryPoint]) -> None:
        self._full_name, self._points = name, points
        word = name.rpartition(".")[2]
        super().__init__(word, help=_describe(points), rich_help_panel=heading)

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
        points = self._points or find_entry_points(ENTRY_POINT_GROUP).get(name)
        if not points:
            raise ConfigError(
                f"{where}: is in the package {LAB}, which is not installed. "
                f"Run: {install_command(LAB_COMMANDS[name], LAB)}"
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


def add_commands(
    program: CommandGroup,
    commands: Mapping[str, CoreCommand],
    groups: Mapping[str, CoreGroup],
    extra: Mapping[str, str],
) -> None:
    """Add adjudge's own commands to the program, the lab's, and those of installed packages.

    ``extra``: commands that are known without an entry point, name to ``module:attribute``.
    """

    def find_group(name: str, points: list[EntryPoint]) -> Any:
        above, _, word = name.rpartition(".")
        parent = find_group(above, points) if above else program
        inside = getattr(parent, "commands", {})
        if word not in inside:
            about = groups.get(name, CoreGroup("Plug-ins", _describe(points)))
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

    @cache
    def add_plugins() -> None:
        for name, points in find_entry_points(ENTRY_POINT_GROUP).items():
            if not (name in commands or name in groups or name in extra):
                add(name, points, "Lab" if name in LAB_COMMANDS else "Plug-ins")

    program.add_plugins = add_plugins
    for name, one in commands.items():
        add(name, [EntryPoint(name, one.target, ENTRY_POINT_GROUP)], one.heading)
    for name in dict.fromkeys((*LAB_COMMANDS, *extra)):
        points = [EntryPoint(name, extra[name], ENTRY_POINT_GROUP)] if name in extra else []
        add(name, points, "Lab")


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
    found = re.search(rf'(?ms)^(?:def {name}\(|@{name}\.command\().*?"""(.+?)$', text)
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
