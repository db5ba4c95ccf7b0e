"""``adjudge diff`` and ``adjudge regrade``: what changes between two runs, or by another spec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from adjudge.cli.console import clean, errors, output, print_json
from adjudge.cli.grade import check_budget, print_estimate, run_job
from adjudge.cli.options import (
    AtStep,
    Budget,
    ColumnMap,
    DryRun,
    JsonSummary,
    Quiet,
    RecordTape,
    ReplayTape,
    RunFolderPath,
    WaitForJudge,
    check_replay,
    new_folder,
    output_option,
    parse_map,
)
from adjudge.errors import ConfigError
from adjudge.files import atomic_write
from adjudge.judge_evaluation.diff.conditions import list_metrics, parse_condition
from adjudge.judge_evaluation.diff.numbers import summarise_diff
from adjudge.judge_evaluation.diff.pairing import DiffRun, PairedRuns, read_labels
from adjudge.judge_evaluation.diff.report import (
    PAGE_SAMPLES,
    advantage_table,
    changes_table,
    describe_worst,
    diff_tables,
    missing_table,
    render_diff_page,
    write_verdict,
)
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.fields import SAMPLE_FIELDS
from adjudge.runs.job import select_entries
from adjudge.runs.records import RecordedAnswers, RunRecords, make_regrading_job, plan_regrading
from adjudge.stats.estimates import require_stats

_SCREEN_SAMPLES, _SCREEN_SETTINGS = 5, 12


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The run that is compared against.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other run.")],
    page: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.html", help="Write a page, too.")
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
    columns = parse_map(mapping, SAMPLE_FIELDS)
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


_FORMULA = (
    "Advantages: (r − mean)/std within each group, std with n − 1 as in GRPO, over the samples "
    "that both reward; a group without spread has 0."
)


def regrade(
    run: RunFolderPath,
    spec: Annotated[Path, typer.Option("--spec", "-s", help="The other reward spec.")],
    folder: Annotated[Path | None, output_option("regrade")] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no judge: refuse a spec that needs one.")
    ] = False,
    step: AtStep = None,
    record: RecordTape = None,
    replay: ReplayTape = None,
    budget_usd: Budget = None,
    wait_for_judge: WaitForJudge = 0.0,
    dry_run: DryRun = False,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Compute the rewards of a run again under another spec.

    Example: adjudge regrade runs/first --spec other.toml --offline -o runs/other

    Also says what happens to advantages. RUN is a run that a trainer recorded, or one of `adjudge
    train` or `adjudge grade`. A grader with the settings of the run answers from its record:
    other weights, another aggregate, missing policy or group step cost nothing. A failure stays
    missing. Graders that are new, or have another prompt, parameters or judge, are asked.

    Writes a run folder as `adjudge grade` does, for `adjudge view` and `adjudge diff`.

    Exit code: 0 done; 1 calls are not in the replayed file; 2 bad input, or --offline and a grader
    must be asked; 3 no judge answered; 4 the budget did not pay for all calls.
    """
    require_stats()
    records, loaded = RunRecords(run), RewardSpec.load(spec)
    loaded = loaded if step is None else loaded.at_step(step)
    asked = plan_regrading(records, loaded, loaded.build_graders())
    recorded = [entry.name for entry in loaded.graders if entry.name not in asked]
    if recorded:
        errors().print(f"from the record: {clean(', '.join(recorded))}")
    for name, why in asked.items():
        errors().print(f"asked: [bold]{clean(name)}[/] ({clean(why)})")
    if offline and asked:
        raise ConfigError(
            f"{spec}: --offline: {', '.join(asked)} cannot be answered from the record. Leave "
            "--offline out to ask, or keep the run's settings of these graders."
        )
    job = make_regrading_job(
        records,
        loaded,
        folder=folder or new_folder("regrade"),
        show_progress=not quiet,
        budget_usd=budget_usd,
        engine=RecordedAnswers(records, asked),
        startup_patience_s=wait_for_judge,
    )
    if dry_run:
        job.spec = select_entries(loaded, asked) or loaded
        if asked:
            print_estimate(job, as_json=as_json)
        elif as_json:
            print_json({"graders": {}})
        else:
            output().print("No grader is asked; it costs nothing.")
        return
    job.use_cassette(record=record, replay=replay)
    target = job.folder or Path()
    graded = run_job(job, target)
    runs = PairedRuns(DiffRun(run), DiffRun(target))
    summary = summarise_diff(runs)
    if as_json:
        print_json(
            {
                "recorded": recorded,
                "asked": asked,
                "verdict": write_verdict(summary),
                **{key: summary[key] for key in ("samples", "advantages", "missing", "reward")},
            }
        )
    else:
        _print_changes(summary, run, target)
    check_replay(replay, graded.summary)
    check_budget(graded.summary, target)


def _print_changes(summary: Mapping[str, Any], run: Path, target: Path) -> None:
    console = output()
    console.print(f"[bold]{clean(write_verdict(summary))}[/]")
    console.print(f"[dim]A: {clean(run)}; B: {clean(target)}. {_FORMULA}[/]")
    for table in (advantage_table(summary), missing_table(summary)):
        if table:
            console.print()
            console.print(table)
    console.print(f"\n[bold]{clean(target)}/[/]  rewards.jsonl  summary.json  report.html")
    console.print(f"next: adjudge diff {clean(run)} {clean(target)}", soft_wrap=True)
