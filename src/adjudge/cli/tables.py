"""A run's summary as tables that a person can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adjudge.cli.consoles import clean
from adjudge.runs.calls import endpoint_name, endpoint_rows, hedge_note

__all__ = ["print_summary"]


def print_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """Samples, rewards, graders, judge calls; against the environment's reward if there is one."""
    groups, reward = summary["groups"], summary["reward"]
    console.print(
        f"{summary['samples']:,} samples in {groups['count']:,} groups "
        f"(by {escape(groups['source'])}; size {groups['size_min']}-{groups['size_max']})"
        f"  ·  {summary['elapsed_s']:.1f} s, {summary['samples_per_s'] or 0:,.0f} samples/s"
        + _noted(summary)
    )
    console.print(_scores(summary))
    if kinds := summary["missing"]["by_kind"]:
        listed = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        share = reward["missing"] / summary["samples"]
        console.print(f"[yellow]{reward['missing']} rewards missing[/] ({share:.1%}): {listed}")
        for kind, message in summary["missing"]["examples"].items():
            console.print(f"  [dim]{kind}, first: {clean(message)}[/]")
    for warning in summary.get("warnings") or []:
        console.print(f"[yellow]warning:[/] {clean(warning)}")
    for endpoint in summary["endpoints"]:
        console.print(_calls(endpoint))
    for name, grader in summary["graders"].items():
        if grader["judge"] and (note := hedge_note(name, grader["judge"])):
            console.print(f"[dim]{escape(note)}[/]")
    if summary["env_reward"]:
        console.print(_agreement(summary))
        console.print(
            "[dim]AUC: over all pairs of samples. Within group: over pairs that answer the same "
            "prompt, which is all that a "
            "group-relative trainer (GRPO) sees. 0.5 is chance; "
            "95 % intervals, clustered by group.[/]"
        )


def _calls(endpoint: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(escape(endpoint_name(endpoint)), overflow="fold")
    table.add_column("", overflow="fold")
    for label, text in endpoint_rows(endpoint):
        alarm = label in ("failed", "circuit opened")
        table.add_row(label, f"[yellow]{escape(text)}[/]" if alarm else escape(text))
    return table


def _noted(summary: Mapping[str, Any]) -> str:
    notes = []
    if left_out := summary["reward"]["not_sampled"]:
        notes.append(f"{left_out:,} not sampled")
    if broken := summary["broken_rows"]["count"]:
        notes.append(f"[red]{broken} broken rows[/]")
    if untrusted := sum(grader.get("untrusted", 0) for grader in summary["graders"].values()):
        notes.append(f"[red]{untrusted:,} scores untrusted[/]")
    if resumed := summary["resumed_results"]:
        notes.append(f"{resumed:,} results resumed")
    return "".join(f"  ·  {note}" for note in notes)


def _scores(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("grader", overflow="fold")
    table.add_column("weight", justify="right", no_wrap=True)
    for heading in ("mean", "std", "std in group", "zero spread", "missing", "not evaluable"):
        table.add_column(heading, justify="right", min_width=5)
    for name, grader in summary["graders"].items():
        weight = grader["weight"]
        table.add_row(
            escape(name),
            f"{weight:g}" if weight else "report",
            *_spread(grader),
            _count(grader["missing"], summary["samples"]),
            _count(grader["not_evaluable"], summary["samples"]),
        )
    reward = summary["reward"]
    missing = _count(reward["missing"], summary["samples"])
    table.add_row("[bold]reward[/]", "", *_spread(reward), missing, "")
    return table


def _spread(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    share = row["zero_spread_frac"]
    return (
        _number(row["mean"]),
        _number(row["std"]),
        _number(row["within_group_std"]),
        "–" if share is None else f"{share:.0%}",
    )


def _agreement(summary: Mapping[str, Any]) -> Table:
    env = summary["env_reward"]
    kind = "AUC" if env["binary"] else "concordance"
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("against the environment's reward", overflow="fold")
    table.add_column(f"{kind}, pooled", justify="right")
    table.add_column("95 %", justify="right", style="dim")
    table.add_column("within group", justify="right")
    table.add_column("95 %", justify="right", style="dim")
    table.add_column("pairs", justify="right", style="dim")
    rows = [(escape(name), grader) for name, grader in summary["graders"].items()]
    if summary["reward"]["auc"]:
        rows.append(("[bold]reward[/]", summary["reward"]))
    rows += [
        (f"[dim]baseline: {name.replace('_', ' ')}[/]", figures)
        for name, figures in summary["baselines"].items()
    ]
    for label, figures in rows:
        within = figures["concordance"]
        pairs = f"{within['pairs']:,}" if within else "0"
        table.add_row(label, *_estimate(figures["auc"]), *_estimate(within), pairs)
    return table


def _estimate(figures: Mapping[str, Any] | None) -> tuple[str, str]:
    if figures is None:
        return "–", ""
    low, high = figures["low"], figures["high"]
    interval = "" if low is None or high is None else f"{low:.2f}-{high:.2f}"
    return f"{figures['value']:.3f}", interval


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _count(count: int, total: int) -> str:
    if not count:
        return "0"
    return f"[yellow]{count} ({count / total:.1%})[/]"
