"""``adjudge probe``: a report card of one judge; the estimate, and the card as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from adjudge.cli.console import clean, errors, output, print_json, resumable_work
from adjudge.cli.options import (
    Budget,
    DryRun,
    JsonSummary,
    Quiet,
    RecordTape,
    ReplayTape,
    WaitForJudge,
    check_replay,
    new_folder,
    output_option,
    parse_numbers,
    print_call_estimates,
    threshold_option,
    wait_for_judges,
)
from adjudge.errors import ErrorKind
from adjudge.judge_evaluation.benchmarks.judges import split_target
from adjudge.judge_evaluation.probes.probe import (
    ProbeFinding,
    format_note,
    format_questions,
    format_verdict_counts,
    multiple_testing_note,
    probe_table,
)
from adjudge.judge_evaluation.probes.run import ProbeJob, estimate_probe_calls, run_probes
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.job import open_cassette
from adjudge.stats.estimates import require_stats

_UNITS = (
    "SD: standard deviations of the scores of the unchanged answers; net: share of verdicts for, "
    "minus share against."
)


def print_card(console: Console, card: Mapping[str, Any], findings: Sequence[ProbeFinding]) -> None:
    """Print the table of the probes and the counts of their verdicts."""
    grader = card["grader"]
    models = f" · {', '.join(map(clean, grader['models']))}" if grader["models"] else ""
    console.print(
        f"[bold]{clean(grader['name'])}[/] ({clean(grader['type'])}){models}: {card['topics']} "
        f"topics, {format_questions(card)}"
    )
    if missing := card["missing"]["by_kind"]:
        listed = ", ".join(f"{kind} {count:,}" for kind, count in missing.items())
        console.print(f"[yellow]{card['missing']['count']:,} without an answer[/]: {listed}")
    console.print(probe_table(findings))
    for one in findings:
        if one.verdict != "not applicable" and (more := format_note(one)):
            console.print(f"[dim]{one.probe}: {clean(more)}[/]")
    if left := [one for one in findings if one.verdict == "not applicable"]:
        console.print("[dim]not applicable:[/]")
        for one in left:
            console.print(f"[dim]  {one.probe}: {clean(one.why)}[/]")
    console.print(f"[bold]{format_verdict_counts(card)}[/]")
    console.print(f"[dim]{_UNITS} {multiple_testing_note(card)}[/]")


_item_option = partial(typer.Option, rich_help_panel="Questions")


def probe(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help="The reward spec, a TOML file; SPEC.toml#GRADER chooses a grader [default: the "
            "one with a weight, or a judge].",
        ),
    ],
    items: Annotated[
        Path | None, typer.Option(help="Your own questions (JSONL) [default: 40 shipped].")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="A,B", help="Run these probes only [default: all].")
    ] = None,
    n: Annotated[int | None, _item_option(min=2, help="Use so many topics [default: all].")] = None,
    repeats: Annotated[int, _item_option(min=1, help="How often questions are repeated.")] = 3,
    language: Annotated[
        Literal["mixed", "en", "zh"], _item_option(help="The language of the questions.")
    ] = "mixed",
    family: Annotated[
        str, _item_option(help="The judge's model family, as the answers name it.")
    ] = "",
    no_reference: Annotated[
        bool, _item_option("--no-reference", help="Give the grader no reference answers.")
    ] = False,
    threshold: Annotated[
        list[str] | None,
        threshold_option(metavar="PROBE=MOST", help="The largest effect that a probe allows."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Count uncertain probes as failed (exit code 1).")
    ] = False,
    folder: Annotated[Path | None, output_option("probe")] = None,
    record: RecordTape = None,
    replay: ReplayTape = None,
    budget_usd: Budget = None,
    wait_for_judge: WaitForJudge = 0.0,
    dry_run: DryRun = False,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Measure the known biases of one judge, each with a threshold.

    Example: adjudge probe reward.toml --only position,length -o runs/card

    Each probe changes an answer in one way (longer, flattering, shown first, …) and compares the
    judge's scores. A probe fails when the effect's whole 95 % interval lies beyond the threshold.
    Writes probe.json, report.html and answers.jsonl; the same -o resumes.

    Exit code: 0 no probe failed, 1 a probe failed, 2 bad input, 3 the judge gave no usable answer,
    4 the budget allowed no call.
    """
    if not dry_run:
        require_stats()
    path, grader = split_target(spec)
    job = ProbeJob(
        spec=RewardSpec.load(path),
        folder=folder or new_folder("probe"),
        grader=grader,
        items=items,
        only=[name.strip() for name in (only or "").split(",") if name.strip()],
        n=n,
        repeats=repeats,
        language=language,
        thresholds=parse_numbers("--threshold", threshold, "PROBE=MOST"),
        family=family,
        gives_reference=not no_reference,
        budget_usd=budget_usd,
        show_progress=not quiet,
    )
    if dry_run:
        print_call_estimates({job.entry.name: estimate_probe_calls(job)}, as_json=as_json)
        return
    if replay is None:
        wait_for_judges([path], wait_for_judge)
    job.cassette = open_cassette(record, replay)
    with resumable_work(job.folder):
        run_probes(job)
    if as_json:
        print_json(job.card)
    else:
        print_card(output(), job.card, job.findings)
        files = "probe.json  report.html  answers.jsonl"
        output().print(f"\n[bold]{clean(job.folder)}/[/]  {files}")
    failing = ("fail", "uncertain") if strict else ("fail",)
    check_replay(replay, job.card)
    if any(one.verdict in failing for one in job.findings):
        raise typer.Exit(1)
    if job.card["missing"]["count"] == job.card["questions"]:
        errors().print("[red]The judge gave no usable answer.[/]")
        raise typer.Exit(4 if set(job.card["missing"]["by_kind"]) == {ErrorKind.BUDGET} else 3)
