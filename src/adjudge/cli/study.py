"""``adjudge study swap``: several judges on the same stored rollouts, compared in one report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge.cli.console import clean, errors, output, print_json, print_problems, resumable_work
from adjudge.cli.options import (
    ColumnMap,
    DryRun,
    JsonSummary,
    Quiet,
    budget_option,
    new_folder,
    output_option,
    parse_map,
    print_call_estimates,
    split_pairs,
)
from adjudge.judge_evaluation.diff.swap import (
    SwapStudy,
    estimate_swap,
    judge_table,
    pair_table,
    run_swap,
)
from adjudge.rollouts.fields import SAMPLE_FIELDS
from adjudge.stats.estimates import require_stats


def swap(
    rollouts: Annotated[
        list[Path], typer.Argument(help="Files or folders as for `adjudge grade`.")
    ],
    judges: Annotated[
        list[str] | None,
        typer.Option(
            "--judge",
            metavar="[NAME=]FILE",
            help="A judge: a reward spec, or the folder of a trained judge. Can be repeated.",
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
    mapping: ColumnMap = None,
    budget_usd: Annotated[
        float | None, budget_option(help="The most that each judge may cost in this folder.")
    ] = None,
    dry_run: DryRun = False,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Grade stored rollouts with several judges, and compare the results.

    Example: adjudge study swap rollouts.jsonl --judge strict.toml --judge small.toml

    For each pair of judges: how well they agree, over all samples and inside groups; how often the
    best sample or an advantage's sign changes. For each judge: how many rewards are missing, and
    its cost.

    Writes summary.json, report.html, each judge's run under judges/ and the page of `adjudge diff`
    for each two judges under pairs/. The same command with the same -o resumes, also with one more
    judge.

    Exit code: 0 done, 2 bad input or broken rows, 3 a judge did not answer.
    """
    study = SwapStudy(
        rollouts=rollouts,
        judges=judges or [],
        folder=folder or new_folder("swap"),
        mapping=parse_map(mapping, SAMPLE_FIELDS),
        stored={
            name or column: column
            for name, column in split_pairs("--stored", stored, "[NAME=]COLUMN")
        },
        budget_usd=budget_usd,
        show_progress=not quiet,
    )
    if dry_run:
        print_call_estimates(estimate_swap(study), as_json=as_json)
        return
    require_stats()
    with resumable_work(study.folder):
        summary = run_swap(study)
    _report_swap(summary, study.folder, as_json=as_json)
    if summary["broken_rows"]["count"]:
        raise typer.Exit(2)
    if any(not one["judged"] for one in summary["judges"]):
        errors().print("[red]A judge gave no reward at all.[/] See summary.json for the failures.")
        raise typer.Exit(3)


def _report_swap(summary: Mapping[str, Any], folder: Path, *, as_json: bool) -> None:
    broken = summary["broken_rows"]
    rows = [
        f"[yellow]broken row[/] {clean(row['where'])}: {clean(row['message'])}"
        for row in broken["first"]
    ]
    print_problems(rows, broken["count"])
    if as_json:
        print_json(summary)
        return
    console = output()
    for table in (pair_table(summary["pairs"]), judge_table(summary["judges"])):
        console.print(table)
    for pair in summary["pairs"]:
        a, b = map(clean, pair["judges"])
        console.print(f"A {a}, B {b}: {clean(pair['verdict'])}", soft_wrap=True)
    console.print(f"\n[bold]{clean(folder)}/[/]  summary.json  report.html  pairs/")
