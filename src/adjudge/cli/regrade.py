"""``adjudge regrade``: a run's rewards under another spec, and what that does to advantages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge.cli.console import clean, errors, output, print_json
from adjudge.cli.estimates import DryRun
from adjudge.cli.grade import check_budget, print_estimate, run_job
from adjudge.cli.options import (
    Budget,
    JsonSummary,
    Quiet,
    RecordTape,
    ReplayTape,
    WaitForJudge,
    check_replay,
    new_folder,
    output_option,
)
from adjudge.errors import ConfigError
from adjudge.judge_evaluation.diff.numbers import summarise_diff
from adjudge.judge_evaluation.diff.pairing import DiffRun, PairedRuns
from adjudge.judge_evaluation.diff.report import advantage_table, missing_table, write_verdict
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.records import RunRecords
from adjudge.runs.regrading import (
    RecordedAnswers,
    RegradingPlan,
    make_regrading_job,
    plan_regrading,
    select_entries,
)
from adjudge.stats.estimates import require_stats

_FORMULA = (
    "Advantages: (r − mean)/std within each group, std with n − 1 as in GRPO, over the samples "
    "that both reward; a group without spread has 0."
)


def regrade(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    spec: Annotated[Path, typer.Option("--spec", "-s", help="The other reward spec.")],
    folder: Annotated[Path | None, output_option("regrade")] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no judge: refuse a spec that needs one.")
    ] = False,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="The step whose weights count, where the spec has schedules."),
    ] = None,
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
    plan = plan_regrading(records, loaded, loaded.build_graders())
    _print_plan(plan)
    if offline and plan.asked:
        raise ConfigError(
            f"{spec}: --offline: {', '.join(plan.asked)} cannot be answered from the record. Leave "
            "--offline out to ask, or keep the run's settings of these graders."
        )
    job = make_regrading_job(
        records,
        loaded,
        folder=folder or new_folder("regrade"),
        show_progress=not quiet,
        budget_usd=budget_usd,
        engine=RecordedAnswers(records, plan),
        startup_patience_s=wait_for_judge,
    )
    if dry_run:
        job.spec = select_entries(loaded, plan.asked) or loaded
        if plan.asked:
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
                "recorded": plan.recorded,
                "asked": plan.asked,
                "verdict": write_verdict(summary),
                **{key: summary[key] for key in ("samples", "advantages", "missing", "reward")},
            }
        )
    else:
        _print_changes(summary, run, target)
    check_replay(replay, graded.summary)
    check_budget(graded.summary, target)


def _print_plan(plan: RegradingPlan) -> None:
    if plan.recorded:
        errors().print(f"from the record: {clean(', '.join(plan.recorded))}")
    for name, why in plan.asked.items():
        errors().print(f"asked: [bold]{clean(name)}[/] ({clean(why)})")


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
