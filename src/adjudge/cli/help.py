"""What ``--help`` prints: one sentence, an example, the usage, and options in groups.

A command's docstring has the sentence as its first paragraph and the example as the second
(``Example: adjudge …``; more of them, more paragraphs). Of a command with many options each
belongs to the group that its ``rich_help_panel`` names, or that all options of its name are in; the
others are the most used, and come first.

Options can also be the fields of a settings struct, declared, named and typed there
(:func:`settings_options`). All of this is apart from :mod:`adjudge.cli.options`, which imports
judges: a help page needs none.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

Command = Callable[..., None]

JUDGE_CALLS = "Judge calls"
OUTPUT = "Output"
"""The last group of a page, which has ``--help``, too."""
RAY = "Ray"

_OPTIONS = "Options"
_FEW_OPTIONS = 10
_USUAL_GROUPS = {
    **dict.fromkeys(("--json", "--quiet", "--verbose", "--help"), OUTPUT),
    **dict.fromkeys(("--record", "--replay", "--budget-usd", "--wait-for-judge"), JUDGE_CALLS),
    "--concurrency": JUDGE_CALLS,
    **dict.fromkeys(("--ray", "--ray-address"), RAY),
}
"""Where options are that several commands have."""
_WIDEST_NAME = 26
_TYPE_NAMES = {"int": "N", "float": "X", "Path": "PATH", "path": "PATH", "str": "TEXT"}
_TYPE = re.compile(r" <(?:list\[)?(\w+)(?: range)?\]?>$")
_NOTES = re.compile(r"(?:^|  )\[([^\]]*)\]$")
_RANGE = re.compile(r"[-\d.e]*[<>=x]+x?[<>=]*[-\d.e]*")


class CommandHelp(TyperCommand):
    """A command whose help page is laid out as this module says."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The whole page."""
        write_introduction(self, ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then each group of options; all in columns of one width."""
        write_options(self, ctx, formatter)


def write_introduction(command: Any, ctx: Any, formatter: Any) -> None:
    """Sentence, examples, usage, and the other paragraphs of ``command.help``."""
    sentence, *paragraphs = re.split(r"\n[ \t]*\n", (command.help or "").strip())
    if sentence:
        formatter.write_text(sentence)
    found = [one for one in paragraphs if one.startswith("Example: ")]
    if found:
        with formatter.section("Example" if len(found) == 1 else "Examples"):
            for one in found:
                words = " ".join(one.removeprefix("Example: ").split())
                formatter.write(f"{' ' * formatter.current_indent}{words}\n")
    if sentence:
        formatter.write_paragraph()
    command.format_usage(ctx, formatter)
    rest = "\n\n".join(one for one in paragraphs if one not in found)
    if rest:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(rest)


def write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """The arguments and the groups of options of ``command``."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], _OPTIONS: []}
    parameters = command.get_params(ctx)
    grouped = sum(one.param_type_name == "option" for one in parameters) > _FEW_OPTIONS
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        name, text = record
        if parameter.param_type_name == "argument":
            row = _TYPE.sub("", name), _shorten_notes(text, without=("required",))
            sections["Arguments"].append(row)
            continue
        group = _group_of(parameter) if grouped else _OPTIONS
        row = _TYPE.sub(_name_type, name), _shorten_notes(text)
        sections.setdefault(group, []).append(row)
    if OUTPUT in sections:
        sections[OUTPUT] = sections.pop(OUTPUT)
    names = [name for rows in sections.values() for name, _ in rows]
    width = max((len(name) for name in names if len(name) <= _WIDEST_NAME), default=0)
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows], width)


def _group_of(option: Any) -> str:
    """The group that an option names, or that all options of its name are in."""
    usual = (_USUAL_GROUPS[name] for name in option.opts if name in _USUAL_GROUPS)
    return getattr(option, "rich_help_panel", None) or next(usual, _OPTIONS)


def _name_type(found: re.Match[str]) -> str:
    return f" {_TYPE_NAMES.get(found[1], found[1].upper())}"


def _shorten_notes(text: str, without: tuple[str, ...] = ()) -> str:
    """``text`` without the bounds of a number, which the error names, and a default said twice."""
    if (notes := _NOTES.search(text)) is None:
        return text
    words = text[: notes.start()]
    kept = [
        one
        for one in notes[1].split("; ")
        if one not in without
        and not _RANGE.fullmatch(one)
        and not (one.startswith("default: ") and "[default: " in words)
    ]
    return f"{words} [{'; '.join(kept)}]".strip() if kept else words


def settings_options(
    default: msgspec.Struct,
    texts: Mapping[str, str],
    names: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
) -> Callable[[Command], Command]:
    """Give a command an option for each field in ``texts``, in place of its ``settings``.

    ``default`` has the values of options that are left out, and the other fields. ``texts``: what
    the help says of each, in its order. A field of several values is an option that can be
    repeated; ``names``: options that are not called as their fields are;
    ``groups``: the groups of the help that options are in.
    """
    fields = {field.name: field for field in msgspec.structs.fields(type(default))}
    options = [
        _option(
            fields[name],
            getattr(default, name),
            (names or {}).get(name, name),
            text,
            (groups or {}).get(name),
        )
        for name, text in texts.items()
    ]

    def add(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in texts}
            for name, value in values.items():
                if isinstance(getattr(default, name), tuple):
                    values[name] = tuple(value or ())
            command(settings=msgspec.structs.replace(default, **values), **given)

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for one in signature.parameters.values():
            parameters += options if one.name == "settings" else [one]
        keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        run.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in keywords}
        return run

    return add


def _option(
    field: msgspec.structs.FieldInfo, value: Any, name: str, text: str, group: str | None
) -> inspect.Parameter:
    several = isinstance(value, tuple)
    option = typer.Option("--" + name.replace("_", "-"), help=text, rich_help_panel=group)
    kind: Any = list[str] | None if several else field.type
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if several else value,
        annotation=Annotated[kind, option],
    )
