"""``adjudge train --dry-run``: what a run would do, for people and as data."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from adjudge.cli.consoles import clean, output, print_json
from adjudge.runs.estimate import EPISODES
from adjudge.training.planning.plan import GraderPlan, Plan, VerlPlan

__all__ = ["print_plan"]


def print_plan(found: Plan, *, as_json: bool) -> None:
    """Print what :func:`adjudge.training.plan.plan` found."""
    if as_json:
        print_json(found.data())
        return
    console = output()
    _print_run(console, found)
    if found.graders:
        _print_judging(console, found)
    _print_unmet(console, found)
    if found.warnings:
        console.print("\n[bold]not there, or worth knowing[/]")
        for warning in found.warnings:
            _print_point(console, clean(warning))
    if found.verl is not None:
        _print_verl(console, found.verl)


def _print_run(console: Console, found: Plan) -> None:
    rollouts = found.rollouts
    per_step = (
        f"{rollouts['per_step']:,} a step ({rollouts['groups_per_step']:,} groups of "
        f"{rollouts['per_step'] // rollouts['groups_per_step']}), {rollouts['steps']:,} steps: "
        f"{rollouts['training']:,}"
    )
    held_out = (
        f"{rollouts['evaluation'] // rollouts['evaluations']:,} held-out episodes, "
        f"{rollouts['evaluations']:,} times: {rollouts['evaluation']:,}"
    )
    turns = "one turn" if found.turns == 1 else f"at most {found.turns:,} turns"
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in (
        ("run file", found.file),
        ("backend", found.backend),
        ("policy", found.policy),
        ("task", f"{found.task}, {turns}"),
        ("judge", found.judge or "none: judge.enabled is false"),
        ("reward", found.reward),
        ("learning rate", found.assumed_learning_rate),
        ("rollouts", per_step),
        ("evaluation", held_out),
        ("settings", "  ".join(f"{key}={value}" for key, value in found.settings.items())),
    ):
        if value:
            table.add_row(name, clean(value))
    console.print(table)


def _print_judging(console: Console, found: Plan) -> None:
    console.print()
    table = _table("grader", "scope", "weight", "calls an episode")
    for one in found.graders:
        table.add_row(
            clean(one.name),
            one.scope,
            f"{one.weight:g}" if one.weight else "report",
            _calls(one),
        )
    console.print(table)
    if not found.setups:
        return
    console.print()
    table = _table("judging set up so", "calls", "tokens in", "tokens out",
                   f"USD per {EPISODES:,}")  # fmt: skip
    for setup in found.setups:
        table.add_row(
            clean(setup.setup),
            f"{setup.calls:g}",
            f"{setup.input_tokens:,.0f}",
            f"{setup.output_tokens:,.0f}",
            _usd(setup.cost_usd, EPISODES),
        )
    console.print(table)
    console.print(f"[dim]{clean(found.assumed)}[/]")
    whole = found.in_all
    cost = "" if whole["cost_usd"] is None else f"; {_usd(whole['cost_usd'], 1)} USD"
    console.print(
        f"[bold]the whole run[/]  ≤ {whole['calls']:,.0f} calls, {whole['input_tokens']:,.0f} "
        f"tokens in, {whole['output_tokens']:,.0f} out{cost}"
    )


def _calls(one: GraderPlan) -> str:
    if not one.asks_judge:
        return "rule"
    return "not counted" if one.calls is None else f"≤ {one.calls:g}"


def _print_unmet(console: Console, found: Plan) -> None:
    if not found.unmet:
        return
    flag = "a run needs --approximate"
    if any(not one.runs for one in found.unmet):
        flag = "it cannot be run"
    console.print(f"\n[bold yellow]what backend {clean(found.backend)!r} does otherwise[/]: {flag}")
    for one in found.unmet:
        _print_point(console, clean(str(one)))


def _print_verl(console: Console, verl: VerlPlan) -> None:
    from adjudge.training.verl.run import shown  # noqa: PLC0415

    console.print(f"\n[bold]verl {verl.version}[/]")
    console.print(_lines(shown(verl.command, verl.environment)), soft_wrap=True)
    for path, content in verl.files.items():
        console.print(f"\n[bold]{clean(path)}[/]")
        console.print(_lines(_content(content)), soft_wrap=True)


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content.rstrip()
    first = msgspec.json.encode(content["first"]).decode()
    return f"{content['rows']:,} rows, the first: {first}"


def _lines(text: str) -> Text:
    """Text of several lines without control characters or markup of its own."""
    return Text("".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text))


def _print_point(console: Console, text: str) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("-", text)
    console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _usd(cost: float | None, times: int) -> str:
    return "no price" if cost is None else f"≤ {cost * times:.4g}"
