"""An IFEval evaluation as tables that a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from adjudge.cli.consoles import clean
from adjudge.studies.ifeval.run import IfevalJob
from adjudge.studies.ifeval.words import headline, missing_lines

__all__ = ["print_ifeval", "print_missing"]

_DASH = "–"
_LEVELS = (("prompt", "strict", "Pr(S)"), ("instruction", "strict", "Ins(S)"),
           ("prompt", "loose", "Pr(L)"), ("instruction", "loose", "Ins(L)"))  # fmt: skip
_SHORT = {(level, reading): short for level, reading, short in _LEVELS}

Entry = Mapping[str, Any]


def print_ifeval(console: Console, errors: Console, job: IfevalJob) -> None:
    """Accuracies, categories and types of each model, differences, what is in no share."""
    summary = job.summary
    models = summary["models"]
    console.print(
        f"[bold]IFEval[/]: {summary['prompts']:,} prompts of {clean(summary['data'])}  ·  "
        f"{summary['seconds']:.1f} s"
    )
    console.print(_overall(models))
    for one in models:
        console.print(_parts(one))
    for at in range(0, len(summary["compared"]), len(_LEVELS)):
        console.print(_compared(summary["compared"][at : at + len(_LEVELS)]))
    print_missing(errors, summary)
    console.print(
        "[dim]percent; S strict, L loose; in brackets 95 % bootstrap intervals over prompts; "
        "several samples of a prompt count with their mean, not their best; what is missing is in "
        "no share[/]"
    )
    files = "eval_results_{strict,loose}.jsonl  summary.json  report.html"
    console.print(f"\n[bold]{clean(job.folder)}/[/]  {files}", highlight=False, soft_wrap=True)


def print_missing(console: Console, summary: Entry) -> None:
    """A warning a line: what is in no share, and why."""
    for one in summary["models"]:
        for line in missing_lines(one):
            console.print(f"[yellow]{clean(one['name'])}:[/] {clean(line)}", soft_wrap=True)


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title, table.title_style = (clean(title), "bold") if title else (None, "")
    table.add_column("", overflow="fold")
    for heading in headings:
        table.add_column(clean(heading), justify="right", no_wrap=True)
    return table


def _overall(models: Sequence[Entry]) -> Table:
    table = _table("", [short for *_, short in _LEVELS])
    for one in models:
        cells = [one[reading][level] for level, reading, _ in _LEVELS]
        table.add_row(clean(one["name"]), *(_percent(cell) for cell in cells))
        table.add_row("", *(f"[dim]{_interval(cell)}[/]" for cell in cells))
    return table


def _parts(one: Entry) -> Table:
    table = _table(headline(one), ("strict", "95 %", "loose", "95 %", "of"))
    types = one["strict"]["by_type"]
    for category in one["strict"]["by_category"]:
        table.add_row(f"[bold]{clean(category)}[/]", *_both(one, "by_category", category))
        for name in types:
            own, _, rest = name.partition(":")
            if own == category:
                table.add_row(f"  {clean(rest)}", *_both(one, "by_type", name))
    return table


def _both(one: Entry, part: str, name: str) -> list[str]:
    strict, loose = (one[reading][part][name] for reading in ("strict", "loose"))
    cells = [_percent(strict), _interval(strict), _percent(loose), _interval(loose)]
    return [*cells, f"{strict['n']:,}"]


def _compared(compared: Sequence[Entry]) -> Table:
    """One pair of models: a row a reading and level."""
    headings = ("points", "95 %", "p", "only/only", "McNemar p", "prompts")
    table = _table(f"{compared[0]['a']} less {compared[0]['b']}", headings)
    for one in compared:
        only = _DASH if one["only_a"] is None else f"{one['only_a']:,}/{one['only_b']:,}"
        difference = one["difference"]
        table.add_row(
            _SHORT[one["level"], one["reading"]],
            _DASH if difference is None else f"{100 * difference:+.2f}",
            _interval(one),
            _p(one["p"]),
            only,
            _p(one["mcnemar_p"]),
            f"{one['prompts']:,}",
        )
    return table


def _percent(one: Entry) -> str:
    return _DASH if one["value"] is None else f"{100 * one['value']:.2f}"


def _interval(one: Entry) -> str:
    # The bracket is markup to the console unless it is escaped.
    low, high = one["low"], one["high"]
    return _DASH if low is None else rf"\[{100 * low:.1f}, {100 * high:.1f}]"


def _p(value: float | None) -> str:
    return _DASH if value is None else f"{value:.4f}"
