"""What ``adjudge probe`` prints: the estimate, and the card as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from adjudge.cli.consoles import clean
from adjudge.studies.probes.card import Finding
from adjudge.studies.probes.cost import Cost
from adjudge.studies.probes.words import (
    about_many,
    effect_text,
    interval_text,
    limit_text,
    note,
    verdict_line,
)

__all__ = ["cost_line", "print_card"]

_STYLES = {
    "pass": "[green]pass[/]",
    "fail": "[bold red]FAIL[/]",
    "uncertain": "[yellow]uncertain[/]",
    "not applicable": "[dim]n/a[/]",
}
_UNITS = (
    "SD: in standard deviations of the scores of the items' own answers; net: share of verdicts "
    "for, less share against."
)


def cost_line(cost: Cost) -> str:
    """The estimate in one line."""
    if not cost.calls:
        return f"{cost.questions:,} questions, none to a judge"
    usd = "no price" if cost.cost_usd is None else f"≤ {cost.cost_usd:.4g} USD"
    return (
        f"{cost.questions:,} questions, about {cost.calls:,.0f} calls: {cost.input_tokens:,.0f} "
        f"tokens in, ≤ {cost.output_tokens:,.0f} out, {usd}, without retries"
    )


def print_card(console: Console, card: Mapping[str, Any], findings: Sequence[Finding]) -> None:
    """The table of the probes, and what it comes to."""
    grader = card["grader"]
    models = f" · {', '.join(map(clean, grader['models']))}" if grader["models"] else ""
    console.print(
        f"[bold]{clean(grader['name'])}[/] ({clean(grader['type'])}){models}: {card['topics']} "
        f"topics, {card['questions']:,} questions"
    )
    if missing := card["missing"]["by_kind"]:
        listed = ", ".join(f"{kind} {count:,}" for kind, count in missing.items())
        console.print(f"[yellow]{card['missing']['count']:,} without an answer[/]: {listed}")
    console.print(_table(findings, 100 * card["level"]))
    for one in findings:
        if one.verdict != "not applicable" and (more := note(one)):
            console.print(f"[dim]{one.probe}: {clean(more)}[/]")
    if left := [one for one in findings if one.verdict == "not applicable"]:
        console.print("[dim]not applicable:[/]")
        for one in left:
            console.print(f"[dim]  {one.probe}: {clean(one.why)}[/]")
    console.print(f"[bold]{verdict_line(card)}[/]")
    console.print(f"[dim]{_UNITS} {about_many(card)}[/]")


def _table(findings: Sequence[Finding], level: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("probe", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for heading in ("effect", f"{level:.4g} %", "allowed"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("in", style="dim", no_wrap=True)
    table.add_column("items", justify="right", style="dim")
    for one in findings:
        if one.verdict != "not applicable":
            table.add_row(
                one.probe,
                _STYLES[one.verdict],
                effect_text(one),
                f"[dim]{interval_text(one)}[/]",
                limit_text(one),
                one.unit.split()[0],
                f"{one.n:,}",
            )
    return table
