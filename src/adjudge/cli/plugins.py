"""Commands that are loaded when they are asked for: adjudge's own, and those of other packages.

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

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from adjudge.cli.help import CommandHelp, write_introduction, write_options
from adjudge.errors import ConfigError
from adjudge.extensions import describe_package, find_entry_points, load_entry_point
from adjudge.installation import LAB, install_command

ENTRY_POINT_GROUP = "adjudge.commands"


class CoreCommand(NamedTuple):
    """A command of adjudge itself: its heading in ``adjudge --help``, where it is, its help."""

    heading: str
    module: str
    attribute: str
    help: str


class CoreGroup(NamedTuple):
    """A group of commands.

    ``default``: the command that is meant where the first word is none of the group's.
    """

    heading: str
    help: str
    default: str | None = None


class LabCommand(NamedTuple):
    """A command of adjudge-lab: its help, and the extra of adjudge-lab that it needs."""

    help: str
    extra: str = ""


LAB_COMMANDS = {
    "train": LabCommand("Train a policy against judges, a judge, or both in a chain.", "train"),
    "eval.policy": LabCommand(
        "Evaluate a policy on seeds, and its judges against the official score."
    ),
    "eval.ifeval": LabCommand("Score a model or stored responses on IFEval."),
    "eval.healthbench": LabCommand("Score stored responses on HealthBench with a rubric grader."),
    "conformance": LabCommand("Show what a trainer's own code does with missing rewards."),
    "study.run": LabCommand("Train policies against judges that differ in a known way.", "train"),
    "study.diff": LabCommand("Show how two run files differ, defaults included."),
    "study.replay": LabCommand("Ask a judge a dump's prompts again, or parse its replies again."),
}
"""The commands of adjudge-lab, which are listed where it is not installed, too."""


class CommandUnavailable(Exception):
    """A command of a package that is missing; ``command`` is how it is called: ``eval policy``."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.command = name.replace(".", " ")


class CommandCatalog:
    """All commands by their names, with a dot where one belongs to a group.

    ``extra`` are commands that are known without an entry point: name to ``module:attribute``.
    Installed packages are asked only about what is not in the other tables.
    """

    def __init__(
        self,
        commands: Mapping[str, CoreCommand],
        groups: Mapping[str, CoreGroup],
        extra: Mapping[str, str],
    ) -> None:
        self._core = commands
        self.groups = groups
        self._extra = extra

    @cached_property
    def _plugins(self) -> dict[str, list[EntryPoint]]:
        found = find_entry_points(ENTRY_POINT_GROUP)
        for name, value in self._extra.items():
            found[name] = [EntryPoint(name, value, ENTRY_POINT_GROUP)]
        return found

    def has(self, name: str) -> bool:
        """Whether ``name`` is a command or a group."""
        return (
            name in self._core
            or name in self.groups
            or name in LAB_COMMANDS
            or name in self._plugins
            or self._is_plugin_group(name)
        )

    def names_in(self, group: str) -> list[str]:
        """The full names of the commands and groups in ``group``; ``""`` is the program."""
        prefix = f"{group}." if group else ""
        names = (*self._core, *LAB_COMMANDS, *self._plugins)
        inside = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return list(dict.fromkeys(prefix + name.partition(".")[0] for name in inside))

    def _is_plugin_group(self, name: str) -> bool:
        return any(one.startswith(f"{name}.") for one in self._plugins)

    def load(self, name: str) -> Any:
        """The command or group as click has it.

        Raises :class:`CommandUnavailable` where adjudge-lab is missing, and
        :class:`~adjudge.errors.ConfigError` for a package that cannot be loaded.
        """
        if name in self._core:
            own = self._core[name]
            return _make_command(name, getattr(import_module(own.module), own.attribute))
        if name in self.groups:
            return CommandGroup.make(self, name)
        if name in self._plugins:
            return _load_plugin(name, self._plugins[name])
        if name in LAB_COMMANDS:
            raise CommandUnavailable(
                name,
                f"is in the package {LAB}, which is not installed. "
                f"Run: {install_command(LAB_COMMANDS[name].extra, LAB)}",
            )
        return CommandGroup.make(self, name)

    def heading(self, name: str) -> str:
        """Under which heading ``adjudge --help`` lists ``name``."""
        if name in self._core:
            return self._core[name].heading
        if name in self.groups:
            return self.groups[name].heading
        return "Lab" if name in LAB_COMMANDS else "Plug-ins"

    def help(self, name: str) -> str:
        """One line about ``name``; nothing is loaded for it."""
        if name in self._core:
            return self._core[name].help
        if name in self.groups:
            return self.groups[name].help.partition("\n")[0]
        if name in LAB_COMMANDS:
            missing = "" if name in self._plugins else f" (needs {LAB})"
            return LAB_COMMANDS[name].help + missing
        points = [one for key, found in self._plugins.items() for one in found
                  if key == name or key.startswith(f"{name}.")]  # fmt: skip
        return f"From {', '.join(dict.fromkeys(map(describe_package, points)))}."


class LazyCommands(Mapping[str, Any]):
    """The commands in a group: word to command, which is loaded when it is taken out."""

    def __init__(self, catalog: CommandCatalog, group: str = "") -> None:
        self.catalog, self.group = catalog, group

    def full_name(self, word: str) -> str:
        """``word`` with the group before it."""
        return f"{self.group}.{word}" if self.group else word

    def __getitem__(self, word: str) -> Any:
        if word not in self:
            raise KeyError(word)
        return self.catalog.load(self.full_name(word))

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and "." not in word and self.catalog.has(self.full_name(word))

    def __iter__(self) -> Iterator[str]:
        names = self.catalog.names_in(self.group)
        return iter([name.rpartition(".")[2] for name in names])

    def __len__(self) -> int:
        return len(list(iter(self)))


class CommandGroup(TyperGroup):
    """A group whose commands are loaded when they are asked for, and listed under headings."""

    commands: Any
    default: str | None = None

    @classmethod
    def make(cls, catalog: CommandCatalog, name: str) -> CommandGroup:
        """The group of that name."""
        about = catalog.groups.get(name)
        words = catalog.help(name) if about is None else about.help
        found = cls(
            name=name.rpartition(".")[2], help=words, no_args_is_help=True, rich_markup_mode=None
        )
        found.commands = LazyCommands(catalog, name)
        found.default = None if about is None else about.default
        return found

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """The commands' names; none is loaded."""
        return list(self.commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with the command before them where they name none."""
        if self.default and args and args[0] != "--help" and args[0] not in self.commands:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The page as :mod:`adjudge.cli.help` lays it out; options after the commands."""
        write_introduction(self, ctx, formatter)
        self.format_commands(ctx, formatter)
        write_options(self, ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Each heading with its commands; of a group within the program, one heading."""
        catalog: CommandCatalog = self.commands.catalog
        sections: dict[str, list[tuple[str, str]]] = {}
        for word in self.commands:
            name = self.commands.full_name(word)
            heading = "Commands" if self.commands.group else catalog.heading(name)
            sections.setdefault(heading, []).append((word, catalog.help(name)))
        width = max((len(word) for rows in sections.values() for word, _ in rows), default=0)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(word.ljust(width), words) for word, words in rows])


def _load_plugin(name: str, points: list[EntryPoint]) -> Any:
    where = f"command {name.replace('.', ' ')}"
    found = load_entry_point(points, where=where)
    try:
        return _make_command(name, found)
    except Exception as error:
        package = describe_package(points[0])
        raise ConfigError(
            f"{where}: must be a function with options that typer reads, or a typer.Typer "
            f"(found {found!r:.80} in {package}): {type(error).__name__}: {error}"
        ) from error


def _make_command(name: str, found: Any) -> Any:
    """A function, or a typer application, as a click command."""
    outer = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,  # help texts have brackets: [graders], [default: …]
        pretty_exceptions_enable=False,
    )
    word = name.rpartition(".")[2]
    if not isinstance(found, typer.Typer):
        if not callable(found):
            raise TypeError("it cannot be called")
        outer.command(word, cls=CommandHelp)(found)
        return typer.main.get_command(outer)
    if len(found.registered_commands) == 1 and found.registered_callback is None:
        outer.registered_commands = found.registered_commands
        for one in outer.registered_commands:
            one.cls = CommandHelp if one.cls is TyperCommand else one.cls
        return typer.main.get_command(outer)
    outer.add_typer(found, name=word)
    outer.callback()(lambda: None)
    group: Any = typer.main.get_command(outer)
    return group.commands[word]
