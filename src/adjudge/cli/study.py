"""``adjudge study``: what a judge's choice does, in one report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.grade import new_folder, parse_map
from adjudge.cli.study_matrix import GROUP_HELP, RunsByDefault, diff, run
from adjudge.cli.study_replay import replay
from adjudge.errors import ConfigError, JudgeAuthError, JudgeUnavailable
from adjudge.studies.swap.run import SwapStudy, run_swap
from adjudge.studies.swap.words import SHARES, calls_line, interval, missing_line, value

__all__ = ["study_app", "swap"]

_COLUMNS = ("best_changes", "sign_flips", "within_kendall", "kendall")
_HEADINGS = ("best changes", "sign flips", "τ-b within", "τ-b all")
_SHARES = ("length", "format", "length_r")
_SHOWN_BROKEN = 5
_TAKES_SEVERAL = ("--judges", "-j")

study_app = typer.Typer(
    name="study",
    cls=RunsByDefault,
    help=GROUP_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@study_app.callback()
def _group() -> None:
    """What a judge's choice does: studies."""


study_app.command("run")(run)
study_app.command("diff")(diff)
study_app.command("replay")(replay)


class _SeveralJudges(TyperCommand):
    """Lets one ``--judges`` take several files: all that follows it up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments with ``--judges`` before each of its files."""
        spread: list[str] = []
        taking = False
        for place, one in enumerate(args):
            if one == "--":
                return super().parse_args(ctx, [*spread, *args[place:]])
            if one.startswith("-"):
                taking = one.partition("=")[0] in _TAKES_SEVERAL
            elif taking and args[place - 1] not in _TAKES_SEVERAL:
                spread.append("--judges")
            spread.append(one)
        return super().parse_args(ctx, spread)


@study_app.command("swap", cls=_SeveralJudges)
def swap(
    rollouts: Annotated[
        list[Path],
        typer.Argument(
            help="Files as `adjudge grade` takes them, run folders of `adjudge train`, verl's "
            "rollout_data_dir, TRL's completions, or LLMBar's dataset.json.",
        ),
    ],
    judges: Annotated[
        list[str] | None,
        typer.Option(
            "--judges",
            "-j",
            metavar="[NAME=]FILE …",
            help="Reward specs, folders of trained judges, or LLMBar's recorded judges.",
        ),
    ] = None,
    stored: Annotated[
        list[str] | None,
        typer.Option(
            "--stored",
            metavar="[NAME=]COLUMN",
            help="Rewards in the rollouts as one more judge: reward, score, env_reward, …",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The study's folder [default: runs/swap-TIME]."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="COLUMN,…",
            help="Columns that name a group [default: group, else step and equal prompts].",
        ),
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", "-m", metavar="FIELD=COLUMN", help="As for `adjudge grade`."),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option("--budget-usd", min=0.0, help="What each judge may cost; needs its price."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the bootstrap.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Grade stored rollouts with several judges, and see what the swap changes.

    Per pair of judges: how far they agree, over all samples and inside groups; how many groups get
    another best sample, how many samples an advantage of the other sign; which criteria they mark
    differently. Per judge: how much of its advantages length and format explain, what is missing,
    what it cost. Numbers have 95 % intervals, by group, from 8 groups on.

    Writes summary.json, report.html, a table of rows (sample × judge), and under judges/ what each
    judge said. The same command with the same -o resumes, also with one more judge.

    Exit code: 0 done, 2 bad input or broken rows, 3 a judge did not answer.

    Example: adjudge study swap rollouts.jsonl --judges strict.toml small.toml -o runs/swap
    """
    study = SwapStudy(
        rollouts=rollouts,
        judges=judges or [],
        folder=folder or new_folder("swap"),
        mapping=parse_map(mapping or []),
        stored=_parse_stored(stored or []),
        group=[name.strip() for name in (group or "").split(",") if name.strip()],
        seed=seed,
        budget_usd=budget_usd,
        show_progress=not quiet,
    )
    try:
        with redirect_stdout(sys.stderr):
            run_swap(study)
    except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
        errors().print(f"To go on where it stopped: the same command with -o {clean(study.folder)}")
        raise
    _report(study, as_json=as_json)
    if study.summary["broken_rows"]["count"]:
        raise typer.Exit(2)
    if any(not one["judged"] for one in study.summary["judges"]):
        errors().print("[red]a judge gave no reward at all:[/] nothing was learned about it")
        raise typer.Exit(3)


def _parse_stored(entries: Sequence[str]) -> dict[str, str]:
    """``[NAME=]COLUMN`` entries as a mapping; raises :class:`ConfigError`."""
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, column = (part.strip() for part in entry.partition("="))
        column = column if equals else name
        if not (name and column):
            raise ConfigError(f"--stored {entry!r}: must be COLUMN or NAME=COLUMN")
        if name in found:
            raise ConfigError(f"--stored {entry!r}: the name {name!r} is used twice")
        found[name] = column
    return found


def _report(study: SwapStudy, *, as_json: bool) -> None:
    broken = study.summary["broken_rows"]
    for row in broken["first"][:_SHOWN_BROKEN]:
        errors().print(f"[yellow]broken row[/] {clean(row['where'])}: {clean(row['message'])}")
    if broken["count"] > _SHOWN_BROKEN:
        errors().print(f"[yellow]… and {broken['count'] - _SHOWN_BROKEN} more[/] (summary.json)")
    if as_json:
        print_json(study.summary)
        return
    _print_swap(output(), study.summary)
    files = f"summary.json  report.html  {study.summary['rows']}"
    output().print(f"\n[bold]{clean(study.folder)}/[/]  {files}")


def _print_swap(console: Console, summary: Mapping[str, Any]) -> None:
    """Two tables: pairs of judges, and judges."""
    groups = summary["groups"]["count"]
    console.print(
        f"{summary['samples']:,} samples in {groups:,} groups (by {clean(summary['grouped_by'])})"
    )
    console.print(_pair_table(summary["pairs"]), crop=False)
    console.print()
    console.print(_judge_table(summary["judges"]), crop=False)
    for one in summary["judges"]:
        lost = f"; [yellow]missing[/]: {clean(missing_line(one))}" if one["missing"] else ""
        console.print(f"[dim]{clean(one['name'])}: {clean(calls_line(one))}[/]{lost}")
    console.print(
        "[dim]best changes: groups of which no sample is best for both; sign flips: samples with "
        "advantages of opposite sign; length, format: shares of advantage variance (adjusted R²). "
        "Below each number its 95 % interval, by group, from 8 groups on.[/]"
    )


def _pair_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("judges", (*_HEADINGS, "common"))
    for pair in pairs:
        table.add_row(
            "\n".join(clean(name) for name in pair["judges"]),
            *(_estimate(name, pair[name]) for name in _COLUMNS),
            f"{pair['common']:,}",
        )
    return table


def _judge_table(judges: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("judge", ("mean", "flat", *(SHARES[name][0] for name in _SHARES)))
    for one in judges:
        table.add_row(
            clean(one["name"]),
            "–" if one["mean"] is None else f"{one['mean']:.3f}",
            f"{one['flat_groups']:,}/{one['compared_groups']:,}",
            *(_estimate(name, one["explained"][name]) for name in _SHARES),
        )
    return table


def _table(first: str, others: Sequence[str]) -> Table:
    """To be printed with ``crop=False``: a table that is too wide would lose its last digits."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold", min_width=14)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _estimate(name: str, found: Mapping[str, Any]) -> str:
    ends = interval(name, found)
    return value(name, found) + (f"\n[dim]{ends}[/]" if ends else "")
