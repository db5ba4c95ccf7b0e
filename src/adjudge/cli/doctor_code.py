"""``adjudge doctor FILE.py``: where reward code turns failures into numbers, and what to write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer

from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.runs.code_check.check import MEANT, check_file
from adjudge.runs.code_check.findings import CodeFinding

__all__ = ["check_reward_code"]


def check_reward_code(path: Path, *, as_json: bool) -> None:
    """Read the file, print what was found; exit code 1 when there is something."""
    found = check_file(path)
    if as_json:
        report = {"file": str(path), "findings": [msgspec.to_builtins(one) for one in found]}
        print_json(report)
    else:
        _print(path, found)
    if found:
        raise typer.Exit(1)


def _print(path: Path, found: Sequence[CodeFinding]) -> None:
    console = output()
    console.soft_wrap = True
    told: set[tuple[str, str]] = set()
    for one in found:
        console.print(f"[bold]{clean(path)}:{one.line}[/]  {one.rule}")
        console.print(f"  [red]{clean(one.code)}[/]")
        if (one.rule, one.why) not in told:
            told.add((one.rule, one.why))
            console.print(f"  {clean(one.why)}")
        for line in one.fix:
            console.print(f"  [green]+ {clean(line)}[/]")
        console.print()
    if not found:
        console.print(f"{clean(path)}: no failure becomes a number here, as far as reading shows")
        return
    places = "place" if len(found) == 1 else "places"
    console.print(f"{len(found)} {places} where a failure becomes a number")
    errors().print(f"[dim]a line that is meant so: # {MEANT}[/]")
