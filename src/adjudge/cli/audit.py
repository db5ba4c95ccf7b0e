"""``adjudge audit``: what is wrong with a run that is already there."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from adjudge.audit import load_checks
from adjudge.audit.report import (
    AuditReport,
    audit_as_json,
    findings_table,
    impact_text,
    make_audit,
    nothing_table,
    skipped_table,
    write_audit_page,
)
from adjudge.cli.console import StageProgress, clean, output, print_input, print_json
from adjudge.cli.options import (
    ColumnMap,
    JsonSummary,
    Quiet,
    new_folder,
    output_option,
    parse_map,
)
from adjudge.files import write_json
from adjudge.rollouts.fields import SAMPLE_FIELDS
from adjudge.stats.estimates import require_stats

_MARKS = {"high": "[bold red]high[/]", "medium": "[yellow]medium[/]", "low": "[dim]low[/]"}
_SHOWN_WHERE = 3


def audit(
    dumps: Annotated[
        list[Path],
        typer.Argument(
            help="Files, folders or patterns of rollouts in any known format, of rewards without "
            "texts or of metrics by step, and run folders of `adjudge grade` or `adjudge train`."
        ),
    ],
    mapping: ColumnMap = None,
    own: Annotated[
        list[str] | None,
        typer.Option(
            "--check",
            metavar="NAME",
            help="A check of your own beside those of adjudge: an installed package's, or "
            "module:name. Can be repeated.",
        ),
    ] = None,
    folder: Annotated[Path | None, output_option("audit", "Where the page and JSON go")] = None,
    fail_on: Annotated[
        Literal["broken", "suspicious"],
        typer.Option("--fail-on", help="The verdict from which on the exit code is 1."),
    ] = "broken",
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Find what is wrong with a run, without a spec, a judge or a key.

    Example: adjudge audit rollouts/ -o runs/audit

    Says in one sentence whether the run is broken, suspicious, or nothing was seen. Then come
    findings, worst first: values that no other reward is near, rewards on two scales, outliers,
    groups without spread, advantages explained by length, format or place, copies, degenerate and
    cut-off responses, tool loops, drift over steps, components that fight, verdicts that contradict
    their reasons, NaN. Each has its effect with a 95 % interval, its samples, and how an honest run
    may have it. A check that found nothing says what it would have seen.

    The reward is the dump's own; of a graded run it is the judge's. Of rewards without texts, and
    of a log of metrics by step, what can be checked is checked; the rest names what it needs.
    Writes audit.html and audit.json. Needs the extra `full`.

    Exit code: 0 nothing was seen, or nothing from --fail-on on; 1 the run is broken (or, with
    --fail-on suspicious, suspicious); 2 bad input.
    """
    require_stats()
    with StageProgress(show=not quiet) as shown:
        report = make_audit(
            dumps,
            parse_map(mapping, SAMPLE_FIELDS),
            checks=load_checks(own or ()),
            progress=shown.update,
        )
    folder = folder or new_folder("audit")
    folder.mkdir(parents=True, exist_ok=True)
    write_audit_page(folder / "audit.html", report)
    found = audit_as_json(report)
    write_json(folder / "audit.json", found)
    if as_json:
        print_json(found)
    else:
        print_audit(output(), report, folder / "audit.html")
    if report.verdict in ("broken", fail_on):
        raise typer.Exit(1)


def print_audit(console: Console, report: AuditReport, page: Path) -> None:
    """The verdict, the findings, and what was not found."""
    console.print(f"[bold]{clean(report.sentence)}[/]")
    counts = [(report.count, "sample"), (report.groups, "group"), (report.steps, "step")]
    samples, groups, steps = (f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in counts)
    rollouts = f"{samples} in {groups}" if report.count else "no rollouts"
    console.print(f"[dim]{rollouts}{f', {steps}' if report.steps else ''}[/]")
    print_input(console, report.input)
    for note in report.notes:
        console.print(f"[yellow]note:[/] {clean(note)}")
    if report.findings:
        console.print()
        console.print(findings_table(report))
        for number, (_, finding) in enumerate(report.findings, 1):
            console.print(f"{number}. {_MARKS[finding.severity]} {clean(finding.sentence)}")
            places = [
                report.samples[row].where or f"row {row}"
                for row in finding.rows[:_SHOWN_WHERE]
                if row in report.samples
            ]
            if places:
                console.print(f"   [dim]see {clean(', '.join(places))}[/]")
            otherwise = f"or: {finding.otherwise}" if finding.otherwise else ""
            for line in (impact_text(finding.impact), otherwise, finding.advice):
                if line:
                    console.print(f"   [dim]{clean(line[0].upper() + line[1:])}[/]")
    if table := nothing_table(report):
        console.print()
        console.print("[bold]Nothing found[/]")
        console.print(table)
    if table := skipped_table(report):
        console.print()
        console.print("[bold]Not applicable[/]")
        console.print(table)
    console.print(f"\npage: {clean(page)}", soft_wrap=True)
    if len(report.paths) == 1 and "run folder" in report.input.formats:
        console.print(f"next: adjudge view {clean(shlex.quote(report.paths[0]))}", soft_wrap=True)
