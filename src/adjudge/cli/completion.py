"""``adjudge completion``: a script by which a shell completes commands, options and their values.

The script has all it knows in it, so that completing starts no Python. It is written once and
again after an update: commands of packages that are installed later are not in it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from adjudge.cli.plugins import CommandUnavailable
from adjudge.errors import ConfigError
from adjudge.extensions import find_entry_points
from adjudge.graders.registry import GRADER_GROUP, SHIPPED


class ShellName(StrEnum):
    """A shell that scripts are written for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class _Option(NamedTuple):
    """An option of a command; ``values``: those that it may have, where they are few."""

    names: list[str]
    help: str
    takes_value: bool
    values: list[str]


class _Command(NamedTuple):
    """A command or group by its words; ``values``: what may follow them, but for files."""

    words: str
    help: str
    options: list[_Option]
    values: list[str]
    is_group: bool = False


_CHOICE = re.compile(r"[a-z0-9_]+")
_SAFE = re.compile(r"[\w.:+-]+")
"""A word that no shell expands; what packages call their commands is theirs to choose."""
_FOLDER_OPTIONS = ("--output", "--model", "--against")
_FOLDER_COMMANDS = ("view",)


def completion(
    context: typer.Context,
    shell: Annotated[ShellName, typer.Argument(help="The shell to print a script for.")],
) -> None:
    """Print a completion script for bash, zsh or fish.

    Example: adjudge completion zsh > ~/.zfunc/_adjudge

    It completes commands, options and values, and starts no Python. Write it where the shell looks
    for it, and again after an update of adjudge:

    \b
      adjudge completion bash > \\
        ~/.local/share/bash-completion/completions/adjudge
      adjudge completion fish > ~/.config/fish/completions/adjudge.fish

    For zsh, ~/.zshrc needs fpath+=~/.zfunc before compinit. Where bash has no bash-completion,
    source the file in ~/.bashrc.
    """  # noqa: D301
    commands = list(_commands(context, context.find_root().command, ""))
    if shell is ShellName.FISH:
        typer.echo(_fish_script(commands))
    else:
        typer.echo(_zsh_script(commands) if shell is ShellName.ZSH else _bash_script(commands))


def _commands(context: typer.Context, command: Any, words: str) -> Iterator[_Command]:
    """The command and all below it; one of a package that cannot be loaded has no options."""
    options = [
        _option(context, one)
        for one in command.params
        if one.param_type_name == "option" and not one.hidden
    ]
    options.append(_Option(["--help"], "Show this message and exit.", False, []))
    summary = (command.help or "").strip().partition("\n")[0]
    if not hasattr(command, "list_commands"):
        values = _safe([*SHIPPED, *find_entry_points(GRADER_GROUP)]) if words == "graders" else []
        for argument in command.params:
            if argument.param_type_name == "argument":
                values += _choices(context, argument)
        yield _Command(words, summary, options, values)
        return
    inside = _safe(command.list_commands(context))
    yield _Command(words, summary, options, inside, is_group=True)
    for word in inside:
        name = f"{words} {word}".strip()
        try:
            below = command.commands[word]
        except (CommandUnavailable, ConfigError, ImportError):
            yield _Command(name, "", [], [])
        else:
            yield from _commands(context, below, name)


def _option(context: typer.Context, option: Any) -> _Option:
    values = _choices(context, option)
    words = (option.metavar or "").split("|")
    if not values and len(words) > 1:
        values = [word for word in words if _CHOICE.fullmatch(word)]
    names = [*option.opts, *option.secondary_opts]
    return _Option(names, option.help or "", not option.is_flag, values)


def _choices(context: typer.Context, parameter: Any) -> list[str]:
    """The values that a parameter may have, where it lists them."""
    found = parameter.shell_complete(context, "")
    return _safe(str(one.value) for one in found if one.type == "plain")


def _safe(words: Iterable[str]) -> list[str]:
    return [word for word in words if _SAFE.fullmatch(word)]


_BASH = """\
# adjudge: completion for {shell}, made by `adjudge completion {shell}`.
_adjudge() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" command="" words=""
    if [ "$COMP_CWORD" -gt 1 ]; then command="${{COMP_WORDS[1]}}"; fi
    case "$command" in
        {groups})
            if [ "$COMP_CWORD" -gt 2 ]; then command="$command ${{COMP_WORDS[2]}}"; fi;;
    esac
    COMPREPLY=()
    case "$command $prev" in
{values}
    esac
    if [ "${{cur#-}}" != "$cur" ]; then
        case "$command" in
{options}
        esac
    else
        case "$command" in
{arguments}
        esac
    fi
    COMPREPLY=( $(compgen -W "$words" -- "$cur") )
}}
complete -o default -o bashdefault -F _adjudge adjudge
"""
_FOLDERS = 'COMPREPLY=( $(compgen -d -- "${cur:-runs/}") ); return'


def _bash_script(commands: list[_Command], shell: str = "bash") -> str:
    values, options, arguments = [], [], []
    for one in commands:
        quoted = shlex.quote(one.words)
        flags = " ".join(name for option in one.options for name in option.names)
        options.append(f"            {quoted}) words='{flags}';;")
        if one.words in _FOLDER_COMMANDS:
            arguments.append(f"            {quoted}) {_FOLDERS};;")
        elif one.values:
            arguments.append(f"            {quoted}) words='{' '.join(one.values)}';;")
        for option in one.options:
            if not option.takes_value:
                continue
            case = "|".join(shlex.quote(f"{one.words} {name}") for name in option.names)
            action = "return"
            if option.values:
                words = " ".join(option.values)
                action = f"COMPREPLY=( $(compgen -W '{words}' -- \"$cur\") ); return"
            elif any(name in _FOLDER_OPTIONS for name in option.names) and one.words != "init":
                action = _FOLDERS
            values.append(f"        {case}) {action};;")
    groups = "|".join(one.words for one in commands if one.is_group and one.words)
    return _BASH.format(
        shell=shell,
        groups=groups,
        values="\n".join(values),
        options="\n".join(options),
        arguments="\n".join(arguments),
    )


def _zsh_script(commands: list[_Command]) -> str:
    """The bash function, which zsh runs by its own ``bashcompinit``."""
    start = "#compdef adjudge\nautoload -U +X bashcompinit && bashcompinit\n"
    return start + _bash_script(commands, "zsh")


def _fish_script(commands: list[_Command]) -> str:
    lines = ["# adjudge: completion for fish, made by `adjudge completion fish`."]
    for one in commands:
        path = one.words.split()
        seen = [f"__fish_seen_subcommand_from {word}" for word in path]
        if one.is_group:
            inside = " ".join(one.values)
            seen.append(f"not __fish_seen_subcommand_from {inside}")
        head = f"complete -c adjudge -n {shlex.quote('; and '.join(seen))}"
        helps = {below.words: below.help for below in commands}
        for value in one.values:
            about = helps.get(f"{one.words} {value}".strip(), "") if one.is_group else ""
            lines.append(f"{head} -a {_fish_quoted(value)} -d {_fish_quoted(about)}")
        for option in one.options:
            names = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names]
            words = " ".join(option.values)
            takes = f" -x -a {_fish_quoted(words)}" if words else " -r" * option.takes_value
            about = option.help.partition(".")[0]
            lines.append(f"{head} {' '.join(names)}{takes} -d {_fish_quoted(about)}")
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
