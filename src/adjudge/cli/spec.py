"""Help with reward specs: ``adjudge init`` writes one, ``adjudge graders`` lists graders."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from adjudge.cli.console import clean, errors, output, print_json
from adjudge.datasets.files import read_rows
from adjudge.errors import ConfigError, RolloutError
from adjudge.extensions import describe_package, find_entry_points
from adjudge.graders.registry import (
    GRADER_GROUP,
    SHIPPED,
    Parameter,
    list_parameters,
    load_grader_class,
    summarize_grader,
)
from adjudge.messages import parse_conversation
from adjudge.report.table import Column, Table, styled
from adjudge.rollouts.formats.columns import SAMPLE_FIELDS, guess_mapping
from adjudge.types import Role


def graders(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show this type in full, or a class as 'module:Class' [default: list all types]."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """List all graders: type, role, range, and whether it asks a judge.

    A reward spec names the type, as in [[graders]] type = "action_loop". The parameters are keys of
    the same table of the spec. For a class of your own, write type = "my_module:MyGrader". Types of
    installed packages come last; they are imported when one is named.
    """
    described = {one: describe(one) for one in ([name] if name else sorted(SHIPPED))}
    if name is None:
        described |= {one: found for one, found in describe_installed() if one not in SHIPPED}
    if as_json:
        print_json(described)
    elif name is not None:
        _print_one(name, described[name])
    else:
        _print_all(described)


def describe(type_name: str) -> dict[str, Any]:
    """A grader type as plain data; raises :class:`ConfigError` for one that cannot be had."""
    cls = load_grader_class(type_name)
    line, score_range, role, mode = summarize_grader(cls)
    return {
        "summary": line,
        "class": f"{cls.__module__}:{cls.__name__}",
        "role": str(role),
        "range": list(score_range) if score_range else None,
        "mode": str(mode),
        "asks_judge": any(parameter.is_judge for parameter in list_parameters(cls)),
        "parameters": [
            _describe_parameter(parameter)
            for parameter in list_parameters(cls)
            if not parameter.is_judge
        ],
        "doc": inspect.getdoc(cls) or "",
    }


def describe_installed() -> Iterator[tuple[str, dict[str, Any]]]:
    """The grader types of installed packages; none is imported, so little is known of them."""
    for name, points in sorted(find_entry_points(GRADER_GROUP).items()):
        packages = " and ".join(map(describe_package, points))
        yield (
            name,
            {
                "summary": f"From {packages}.",
                "class": points[0].value,
                "role": None,
                "range": None,
                "mode": None,
                "asks_judge": None,
                "parameters": None,
                "doc": None,
            },
        )


def _describe_parameter(parameter: Parameter) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": parameter.name, "type": parameter.type_text}
    if parameter.required:
        shown["required"] = True
    else:
        default = parameter.default
        plain = isinstance(default, str | int | float | bool | list | dict | None)
        shown["default"] = default if plain else str(default)
    return shown


def _range_text(described: dict[str, Any]) -> str:
    if described["range"] is None:
        return "set by parameters" if described["role"] == Role.SCORE else ""
    low, high = described["range"]
    return f"{'-∞' if low is None else f'{low:g}'} … {'∞' if high is None else f'{high:g}'}"


def _print_all(described: dict[str, dict[str, Any]]) -> None:
    rows = [
        [
            styled(name, "name"),
            one["role"] or "",
            _range_text(one),
            "✓" if one["asks_judge"] else "",
            one["summary"],
        ]
        for name, one in described.items()
    ]
    columns = [Column("type", wrap=False), "role", Column("range", wrap=False),
               Column("judge", "c"), "what it answers"]  # fmt: skip
    console = output()
    console.print(Table(columns, rows))
    console.print("\n[dim]adjudge graders TYPE shows one in full.[/]")


def _print_one(name: str, one: dict[str, Any]) -> None:
    console = output()
    console.print(f"[bold cyan]{escape(name)}[/]  role {one['role']}, range {_range_text(one)}")
    console.print(escape(one["doc"]))
    if not one["parameters"]:
        return
    rows = [
        [one["name"], one["type"], "required" if one.get("required") else repr(one["default"])]
        for one in one["parameters"]
    ]
    console.print()
    console.print(Table(["parameter", "type", "default"], rows))


_INIT_ROWS = 50


def init(
    output: Annotated[Path, typer.Argument(help="The file to write.")] = Path("reward.toml"),
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A file of rollouts, from which columns and graders are guessed."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it exists.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a commented reward spec; --from fits it to a file of rollouts.

    Prints the command to run next. With --from, that command has the guessed columns as --map.
    """
    if output.exists() and not force:
        raise ConfigError(f"{output}: exists already. Use --force to overwrite it.")
    rows = _first_rows(source) if source is not None else []
    mapping = guess_mapping(rows)
    maps = [part for field, column in mapping.items() for part in ("--map", f"{field}={column}")]
    rollouts = str(source or "rollouts.jsonl")
    command = shlex.join(["adjudge", "grade", rollouts, "--spec", str(output), *maps])
    lacking = _missing_columns(rows, mapping)
    output.write_text(_spec_text(command, _spec_kind(rows, mapping)), encoding="utf-8")
    if as_json:
        made = {"spec": str(output), "map": mapping, "command": command, "lacking": lacking}
        typer.echo(msgspec.json.encode(made).decode())
        return
    for what in lacking:
        errors().print(f"[yellow]note:[/] {clean(what)}")
    typer.echo(f"Wrote {output}. Now run:\n  {command}")


def _first_rows(source: Path) -> list[dict[str, Any]]:
    found = [row for _, row in islice(read_rows([source]), _INIT_ROWS)]
    rows = [row for row in found if not isinstance(row, RolloutError)]
    if not rows:
        reason = f": {found[0]}" if found else ""
        raise ConfigError(f"{source}: has no usable row among its first {_INIT_ROWS}{reason}")
    return rows


def _missing_columns(rows: list[dict[str, Any]], mapping: dict[str, str]) -> list[str]:
    """What the rows do not seem to have, in words."""
    if not rows:
        return []
    has = {
        field for field in SAMPLE_FIELDS if any(mapping.get(field, field) in row for row in rows)
    }
    notes = []
    if not has & {"messages", "response"}:
        notes.append(
            "no column looks like messages or a response. Name one with --map response=COLUMN "
            f"(columns: {', '.join(rows[0])[:200]})"
        )
    if "reference" not in has and _spec_kind(rows, mapping) == "answer":
        notes.append("no column looks like a reference, which the answer grader compares with")
    return notes


def _spec_kind(rows: list[dict[str, Any]], mapping: dict[str, str]) -> str:
    """``agent`` where tool calls were made (or nothing is known), else ``answer``."""
    column = mapping.get("messages", "messages")
    conversations = [parse_conversation(row.get(column)) or [] for row in rows]
    calls = any(message.get("tool_calls") for messages in conversations for message in messages)
    return "agent" if calls or not rows else "answer"


def _spec_text(command: str, kind: str) -> str:
    files = resources.files("adjudge.cli") / "demo_data"
    frame, graders = (
        files.joinpath(name).read_text(encoding="utf-8")
        for name in ("init.toml", f"init_{kind}.toml")
    )
    return frame.replace("{graders}", graders).replace("{command}", command)
