"""What a terminal shows of a study: its plan, its results, and what two run files differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adjudge.cli.consoles import clean
from adjudge.runs.report.charts import number
from adjudge.studies.matrix.answers import answer
from adjudge.studies.matrix.cells import (
    CellView,
    cell_name,
    cells_of,
    length_feature,
    plan_cells,
    title_of,
)
from adjudge.studies.matrix.limits import pilot_note

__all__ = ["print_differences", "print_plan", "print_study"]

_MOST_JUDGES = 8


def print_study(console: Console, summary: Mapping[str, Any]) -> None:
    """What a study came to: each plan's cells and answer, then who sees whose gains."""
    cells = cells_of(summary)
    for plan in summary["plans"]:
        console.print(f"[bold]{clean(title_of(plan))}[/]")
        _print_results(console, plan_cells(plan, cells), length_feature(summary))
        console.print(f"{clean(answer(plan, summary))}\n", soft_wrap=True)
    if len(summary["transfer"]["scorers"]) <= _MOST_JUDGES + 1 and summary["transfer"]["rows"]:
        console.print("[bold]Trained on one, scored by all[/]  [dim]gains in SDs[/]")
        console.print(_transfer_table(summary["transfer"]), crop=False)
    console.print(
        "[dim]Gains are in SDs of the first policy's answers; below each number its 95 % interval. "
        "Onset: seeds in which the policy began to please its judge at the gold's cost.[/]"
    )
    if note := pilot_note(summary):
        console.print(f"[bold yellow]{clean(note)}[/]", soft_wrap=True)


def _print_results(console: Console, cells: Sequence[CellView], feature: str | None) -> None:
    table = _narrow_table(
        "trained on", "gold", "gold gain", "proxy gain", f"Δ {feature or 'length'}"
    )
    table.add_column("onset", no_wrap=True)
    why: dict[str, None] = {}
    for cell in cells:
        end = cell.gap["end"]
        found = [*(end[name] for name in ("gold_level", "gold", "proxy")),
                 cell.features.get(feature or "", {}).get("change")]  # fmt: skip
        why |= {f"{cell.name}: {one['why']}": None for one in found if one and one["value"] is None}
        table.add_row(clean(cell.name), *map(_estimate, found), _onset(cell.onset))
    console.print(table, crop=False)
    for text in why:
        console.print(f"[dim]– {clean(text)}[/]", soft_wrap=True)


def _transfer_table(found: Mapping[str, Any]) -> Table:
    table = _narrow_table("trained on", *(clean(name) for name in found["scorers"]))
    for row in found["rows"]:
        table.add_row(
            clean(row["judge"]), *(_estimate(row["gains"][name]) for name in found["scorers"])
        )
    return table


def _narrow_table(first: str, *numbers: str) -> Table:
    """A column of names that may be broken, and numbers that may not.

    To be printed with ``crop=False``: a table that is too wide would lose its last digits.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold", min_width=10)
    for heading in numbers:
        table.add_column(heading, no_wrap=True)
    return table


def _estimate(found: Mapping[str, Any] | None) -> str:
    if found is None or found["value"] is None:
        return "–"
    ends = "no interval"
    if found["low"] is not None and found["high"] is not None:
        ends = f"{number(found['low'], 2)} to {number(found['high'], 2)}"
    return f"{number(found['value'], 2)}\n[dim]{ends}[/]"


def _onset(onset: Mapping[str, Any]) -> str:
    """How many seeds had one, and below it the median step."""
    if not onset["known"]:
        return "–"
    when = "" if onset["median_step"] is None else f"\n[dim]step {onset['median_step']:g}[/]"
    return f"{onset['hacked']}/{onset['known']}{when}"


def print_plan(console: Console, found: Mapping[str, Any]) -> None:
    """What :func:`adjudge.studies.matrix.planning.study_plan` found."""
    stamp = "  [bold yellow]PILOT[/]" if found["pilot"] else ""
    console.print(f"[bold]{clean(found['label'] or 'study')}[/]{stamp}")
    console.print(_facts(found))
    console.print()
    console.print(_plan_table(found["plans"], len(found["seeds"])))
    console.print()
    console.print(_judge_table(found["judges"]))
    for warning in found["warnings"]:
        console.print(f"[yellow]warning[/] {clean(warning)}", soft_wrap=True)


def _facts(found: Mapping[str, Any]) -> Table:
    runs = found["runs"]
    calls = found["calls"]
    table = _table("", "", shown=False)
    for name, text in (
        ("folder", found["folder"]),
        ("gold", found["gold"]),
        ("seeds", ", ".join(map(str, found["seeds"]))),
        *((name, _done(runs[name])) for name in ("policies", "judges", "arms")),
        ("held out", ", ".join(found["held_out"]) or "none"),
        ("judge calls", "not counted" if calls is None else f"≤ {calls:,.0f} in the arms' runs"),
    ):
        table.add_row(name, clean(text))
    return table


def _done(count: Mapping[str, int]) -> str:
    there = f", {count['done']:,} done already" if count["done"] else ""
    return f"{count['in_all']:,}{there}"


def _plan_table(plans: Sequence[Mapping[str, Any]], seeds: int) -> Table:
    table = _table("plan", "question", "judge, mitigation", "arms")
    for one in plans:
        question = one["question"] + (f" over {one['x']}" if one["x"] else "")
        cells = "\n".join(clean(cell_name(*cell)) for cell in one["cells"])
        arms = f"{len(one['cells'])} × {seeds} seeds"
        table.add_row(
            clean(one["name"]), clean(question), cells, f"{arms}\n[dim]{one['arms']} in all[/]"
        )
    return table


def _judge_table(judges: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("judge", "levels", "bias", "how", "")
    for one in judges:
        state = {True: "trained already", False: "to be trained", None: ""}[one["trained"]]
        held = "held out" if one["held_out"] else ""
        table.add_row(
            clean(one["name"]),
            clean(_listed(one["levels"])),
            clean(_listed(one["bias"])),
            clean(one["how"]),
            ", ".join(text for text in (held, state) if text),
        )
    return table


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "–"


def print_differences(console: Console, files: tuple[Path, Path], found: Sequence[Any]) -> None:
    """A line for each key in which two run files differ."""
    if not found:
        console.print("They are the same, with all defaults in their place.")
        return
    table = _table("key", *(clean(path) for path in files))
    for one in found:
        table.add_row(clean(one.key), clean(_value(one.left)), clean(_value(one.right)))
    console.print(table)


def _value(value: object) -> str:
    return "–" if value is None else str(value)


def _table(first: str, *others: str, shown: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=shown)
    table.add_column(first, overflow="fold", style="" if shown else "bold")
    for heading in others:
        table.add_column(heading, overflow="fold")
    return table
