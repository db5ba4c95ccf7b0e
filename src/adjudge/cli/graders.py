"""``adjudge graders``: which graders there are, and what each takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.markup import escape

from adjudge.cli.console import output, print_json
from adjudge.extensions import describe_package, find_entry_points
from adjudge.graders.registry import (
    GRADER_GROUP,
    SHIPPED,
    Parameter,
    list_parameters,
    load_grader_class,
    summarize_grader,
)
from adjudge.report.table import Column, Table, styled
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
