"""``adjudge study swap``: several judges on the same stored rollouts, compared in one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from adjudge.cli.console import clean, errors, output, print_json, print_problems, resumable_work
from adjudge.cli.estimates import DryRun, print_call_estimates
from adjudge.cli.options import (
    JsonSummary,
    Quiet,
    Rows,
    budget_option,
    map_option,
    new_folder,
    output_option,
    parse_map,
)
from adjudge.errors import ConfigError
from adjudge.judge_evaluation.swap.report import (
    EXPLAINED_SHARES,
    format_calls,
    format_interval,
    format_missing_kinds,
    format_value,
)
from adjudge.judge_evaluation.swap.study import SwapStudy, estimate_swap, run_swap
from adjudge.report.elements import Element, below
from adjudge.report.table import Table, numeric
from adjudge.rollouts.formats.base import SAMPLE_FIELDS
from adjudge.stats.estimates import require_stats

_COLUMNS = ("best_changes", "sign_flips", "within_kendall", "kendall")
_HEADINGS = ("best changes", "sign flips", "τ-b within", "τ-b all")
_SHARES = ("length", "format", "length_r")
_MULTI_VALUE_OPTIONS = ("--judges", "-j")

swap_app = typer.Typer()


class _MultiJudgeCommand(TyperCommand):
    """Lets one ``--judges`` take several files: all that follows it up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments with ``--judges`` before each of its files."""
        spread: list[str] = []
        taking = False
        for place, one in enumerate(args):
            if one == "--":
                return super().parse_args(ctx, [*spread, *args[place:]])
            if one.startswith("-"):
                taking = one.partition("=")[0] in _MULTI_VALUE_OPTIONS
            elif taking and args[place - 1] not in _MULTI_VALUE_OPTIONS:
                spread.append("--judges")
            spread.append(one)
        return super().parse_args(ctx, spread)


@swap_app.command("swap", cls=_MultiJudgeCommand)
def swap(
    rollouts: Annotated[
        list[Path],
        typer.Argument(
            help="Files as for `adjudge grade`, run folders of `adjudge train`, verl's "
            "rollout_data_dir, TRL's completions, or LLMBar's dataset.json."
        ),
    ],
    judges: Annotated[
        list[str] | None,
        typer.Option(
            "--judges",
            "-j",
            metavar="[NAME=]FILE …",
            help="The judges: reward specs, folders of trained judges, or LLMBar's recorded "
            "judges.",
        ),
    ] = None,
    stored: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]COLUMN",
            help="Use a column with rewards as one more judge: reward, score, env_reward, … Can be "
            "repeated.",
        ),
    ] = None,
    folder: Annotated[Path | None, output_option("swap", "The study's folder")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="COLUMN,…",
            help="The columns that identify a group [default: group, else step and equal prompts].",
        ),
    ] = None,
    mapping: Annotated[
        list[str] | None, map_option("Read a field from another column, as for `adjudge grade`.")
    ] = None,
    rows: Rows = None,
    budget_usd: Annotated[
        float | None,
        budget_option("The most that each judge may cost in this folder."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the bootstrap.")] = 0,
    dry_run: DryRun = False,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Grade stored rollouts with several judges, and compare the results.

    Example: adjudge study swap rollouts.jsonl --judges strict.toml small.toml

    For each pair of judges: how well they agree, over all samples and inside groups; how often the
    best sample or an advantage's sign changes. For each judge: how much of its advantages length
    and format explain, how many rewards are missing, and its cost.

    Writes summary.json, report.html, a table of rows (sample × judge), and each judge's results
    under judges/. The same command with the same -o resumes, also with one more judge.

    Exit code: 0 done, 2 bad input or broken rows, 3 a judge did not answer.
    """
    study = SwapStudy(
        rollouts=rollouts,
        judges=judges or [],
        folder=folder or new_folder("swap"),
        mapping=parse_map(mapping, SAMPLE_FIELDS, rows),
        stored=_parse_stored(stored or []),
        group=[name.strip() for name in (group or "").split(",") if name.strip()],
        seed=seed,
        budget_usd=budget_usd,
        show_progress=not quiet,
    )
    if dry_run:
        print_call_estimates(estimate_swap(study), as_json=as_json)
        return
    require_stats()
    with resumable_work(study.folder):
        run_swap(study)
    _report_swap(study, as_json=as_json)
    if study.summary["broken_rows"]["count"]:
        raise typer.Exit(2)
    if any(not one["judged"] for one in study.summary["judges"]):
        errors().print("[red]A judge gave no reward at all.[/] See summary.json for the failures.")
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


def _report_swap(study: SwapStudy, *, as_json: bool) -> None:
    broken = study.summary["broken_rows"]
    rows = [
        f"[yellow]broken row[/] {clean(row['where'])}: {clean(row['message'])}"
        for row in broken["first"]
    ]
    print_problems(rows, broken["count"])
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
    console.print(_pair_table(summary["pairs"]))
    console.print()
    console.print(_judge_table(summary["judges"]))
    for one in summary["judges"]:
        lost = f"; [yellow]missing[/]: {clean(format_missing_kinds(one))}" if one["missing"] else ""
        console.print(f"[dim]{clean(one['name'])}: {clean(format_calls(one))}[/]{lost}")
    console.print(
        "[dim]best changes: groups in which no sample is best for both judges; sign flips: samples "
        "with advantages of opposite sign; length, format: explained share of the variance of the "
        "advantages (adjusted R²). Below each number: its 95 % interval, clustered by group, from "
        "8 groups on.[/]"
    )


def _pair_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            [pair["judges"][0], Element("br"), pair["judges"][1]],
            *(_estimate(name, pair[name]) for name in _COLUMNS),
            f"{pair['common']:,}",
        ]
        for pair in pairs
    ]
    return Table(["judges", *numeric(*_HEADINGS, "common")], rows)


def _judge_table(judges: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            one["name"],
            "–" if one["mean"] is None else f"{one['mean']:.3f}",
            f"{one['flat_groups']:,}/{one['compared_groups']:,}",
            *(_estimate(name, one["explained"][name]) for name in _SHARES),
        ]
        for one in judges
    ]
    shares = (EXPLAINED_SHARES[name][0] for name in _SHARES)
    return Table(["judge", *numeric("mean", "flat", *shares)], rows)


def _estimate(name: str, found: Mapping[str, Any]) -> list[object]:
    ends = format_interval(name, found)
    return [format_value(name, found), below(ends) if ends else None]
