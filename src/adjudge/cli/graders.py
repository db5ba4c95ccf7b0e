"""``adjudge graders``: what can be asked."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from adjudge.cli.consoles import output, print_json
from adjudge.graders.registry import (
    SHIPPED,
    Parameter,
    grader_class,
    parameters,
    summary_of,
)
from adjudge.types import Role

__all__ = ["graders"]


def graders(
    name: Annotated[
        str | None, typer.Argument(help="One type, in full; 'module:Class' works too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every grader: its type, role, range, and whether it asks a judge.

    The type is what a reward spec says: [[graders]] type = "action_loop". The parameters stand in
    the same table of the spec. Your own class is type = "my_module:MyGrader".
    """
    if name is not None and name not in SHIPPED and ":" not in name:
        grader_class(name)  # raises with the nearest name
    described = {one: describe(one) for one in ([name] if name else sorted(SHIPPED))}
    if as_json:
        print_json(described)
    elif name is not None:
        _print_one(name, described[name])
    else:
        _print_all(described)


def describe(type_name: str) -> dict[str, Any]:
    """A grader type as plain data; raises :class:`ConfigError` for one that cannot be had."""
    cls = grader_class(type_name)
    line, score_range, role, mode = summary_of(cls)
    return {
        "summary": line,
        "class": f"{cls.__module__}:{cls.__name__}",
        "role": str(role),
        "range": list(score_range) if score_range else None,
        "mode": str(mode),
        "asks_judge": any(parameter.is_judge for parameter in parameters(cls)),
        "parameters": [
            _parameter(parameter) for parameter in parameters(cls) if not parameter.is_judge
        ],
        "doc": inspect.getdoc(cls) or "",
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
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
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("type", style="cyan", no_wrap=True)
    table.add_column("role")
    table.add_column("range", no_wrap=True)
    table.add_column("judge", justify="center")
    table.add_column("what it answers")
    for name, one in described.items():
        asks = "✓" if one["asks_judge"] else ""
        table.add_row(name, one["role"], _range_text(one), asks, escape(one["summary"]))
    console = output()
    console.print(table)
    console.print("\n[dim]adjudge graders TYPE shows one in full.[/]")


def _print_one(name: str, one: dict[str, Any]) -> None:
    console = output()
    console.print(f"[bold cyan]{escape(name)}[/]  role {one['role']}, range {_range_text(one)}")
    console.print(escape(one["doc"]))
    if not one["parameters"]:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("parameter", "type", "default"):
        table.add_column(heading)
    for parameter in one["parameters"]:
        default = "required" if parameter.get("required") else repr(parameter["default"])
        table.add_row(parameter["name"], escape(parameter["type"]), escape(default))
    console.print()
    console.print(table)
