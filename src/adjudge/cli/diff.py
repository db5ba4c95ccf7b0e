"""``adjudge diff``: two runs over the same rollouts, sample by sample."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from adjudge.cli.console import clean, errors, output, print_json
from adjudge.cli.options import ColumnMap, JsonSummary, Rows, parse_map
from adjudge.files import atomic_write
from adjudge.judge_evaluation.diff.conditions import list_metrics, parse_condition
from adjudge.judge_evaluation.diff.numbers import summarise_diff
from adjudge.judge_evaluation.diff.pairing import DiffRun, PairedRuns, read_labels
from adjudge.judge_evaluation.diff.report import (
    PAGE_SAMPLES,
    changes_table,
    describe_worst,
    diff_tables,
    render_diff_page,
    write_verdict,
)
from adjudge.rollouts.formats.fields import SAMPLE_FIELDS
from adjudge.stats.estimates import require_stats

_SCREEN_SAMPLES, _SCREEN_SETTINGS = 5, 12


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The run that is compared against.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other run.")],
    page: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.html", help="Write a page, too."),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Exit with code 1 where this holds: 'missing > 0.05', 'agreement_change.low < "
            "-0.02'. Can be repeated.",
        ),
    ] = None,
    mapping: ColumnMap = None,
    rows: Rows = None,
    as_json: JsonSummary = False,
) -> None:
    """Compare two runs over the same rollouts.

    Example: adjudge diff runs/old runs/new -o diff.html --fail-if "missing > 0.05"

    A and B are run folders of `adjudge grade` or `adjudge train`, or dumps of rollouts with
    rewards. Samples are joined by their content. Shows what differs in the specs; how rewards,
    scores and advantages change, with intervals clustered by group; who is right where there is an
    environment's reward; what is missing; cost; and the samples that changed most.

    Exit code: 0 done, 1 a condition of --fail-if holds or has no value, 2 bad input.
    """
    conditions = [parse_condition(one) for one in fail_if or []]
    require_stats()
    columns = parse_map(mapping, SAMPLE_FIELDS, rows)
    runs = PairedRuns(DiffRun(a, columns), DiffRun(b, columns))
    summary = summarise_diff(runs, read_labels(runs))
    summary["verdict"] = write_verdict(summary)
    summary["worst"] = describe_worst(runs, PAGE_SAMPLES)
    metrics = list_metrics(summary)
    results = [one.check(metrics) for one in conditions]
    summary["conditions"] = msgspec.to_builtins(results)
    if page is not None:
        atomic_write(page, render_diff_page(summary).encode())
    if as_json:
        print_json(summary)
    else:
        _print_diff(summary, page)
    failed = [one for one in results if one.failed]
    for one in failed:
        errors().print(f"[red]--fail-if {clean(one.condition)}:[/] {clean(one.sentence)}")
    if failed:
        raise typer.Exit(1)


def _print_diff(summary: Mapping[str, Any], page: Path | None) -> None:
    console = output()
    console.print(f"[bold]{clean(summary['verdict'])}[/]\n")
    samples, groups = summary["samples"], summary["groups"]
    console.print(f"[dim]A: {clean(summary['a']['path'])}[/]")
    console.print(f"[dim]B: {clean(summary['b']['path'])}[/]")
    console.print(
        f"[dim]{samples['both']:,} samples in both, {groups['count']:,} groups; only in A "
        f"{samples['only_a']:,}, only in B {samples['only_b']:,}[/]"
    )
    for line in _notes(summary):
        console.print(f"[yellow]{clean(line)}[/]")
    shown = {"settings", "costs"} if summary["identical"] else None
    for key, table in diff_tables(summary).items():
        if table and (shown is None or key in shown):
            console.print()
            more = 0
            if key == "settings":
                more = len(table.rows) - _SCREEN_SETTINGS
                table.rows = table.rows[:_SCREEN_SETTINGS]
            console.print(table)
            if more > 0:
                console.print(f"[dim]and {more} more; --json has all[/]")
    if changed := changes_table(summary, _SCREEN_SAMPLES):
        console.print()
        console.print(changed)
    if page is None:
        console.print("\n[dim]-o diff.html writes a page with these samples and both reasons[/]")
    else:
        console.print(f"\n[bold]{clean(page)}[/]")


def _notes(summary: Mapping[str, Any]) -> list[str]:
    """What a reader must know before the numbers."""
    found = []
    if not summary["groups"]["same"]:
        found.append("A and B group the samples differently: groups here are what both have.")
    if summary["environment_conflicts"]:
        found.append(
            f"The environment's reward of {summary['environment_conflicts']:,} samples differs "
            "between A and B: they are left out of the agreement with it."
        )
    if summary["settings"] == [] and not summary["same_spec"]:
        found.append("The settings are equal, but not the spec's hash: see adjudge's versions.")
    return found
