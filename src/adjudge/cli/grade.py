"""``adjudge grade``: rollouts in, rewards out; the estimate and the summary as tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from adjudge.cli.console import (
    clean,
    errors,
    output,
    print_input,
    print_json,
    print_problems,
    print_resume_command,
    resumable_work,
)
from adjudge.cli.options import (
    AtStep,
    Budget,
    ColumnMap,
    DryRun,
    JsonSummary,
    Quiet,
    RayAddress,
    RecordTape,
    ReplayTape,
    WaitForJudge,
    check_replay,
    judge_option,
    new_folder,
    output_option,
    parse_map,
    ray_option,
)
from adjudge.datasets.files import read_stdin
from adjudge.errors import ConfigError, ErrorKind, JudgeUnavailable
from adjudge.graders.registry import SHIPPED
from adjudge.report.page import format_sample_rate
from adjudge.report.table import Table, terminal_text
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.fields import SAMPLE_FIELDS
from adjudge.runner.progress import format_duration
from adjudge.runs.grading import grade_rollouts, read_first_samples
from adjudge.runs.job import MOST_DRAWS, GradedRun, GradingEngine, GradingJob
from adjudge.runs.report.tables import list_results

_ESTIMATE_ROWS = 200
_STDIN = Path("-")


def print_estimate(job: GradingJob, *, as_json: bool) -> None:
    """Estimate from the first samples, and print what each grader would ask in all."""
    from adjudge.cli.options import print_call_estimates  # noqa: PLC0415  (a dry run's alone)
    from adjudge.runs.judge_calls import estimate_calls, estimate_times, scale_estimates  # noqa: PLC0415  (a dry run's alone)

    graders = _shipped_graders(job.spec)
    try:
        job.spec.check_machine(graders)
    except ConfigError as problem:  # an estimate asks nobody: it needs neither key nor device
        errors().print(f"[yellow]The run itself will not start:[/] {clean(str(problem))}")
    samples, groups, rows = read_first_samples(job, _ESTIMATE_ROWS)
    looked_at = estimate_calls(job.spec, samples, groups, job.draws)
    asked = scale_estimates(job.spec, looked_at, len(samples), rows)
    times = estimate_times(job.spec, asked)
    if not as_json:
        if not asked:
            output().print("No grader asks a judge; there is nothing to estimate.")
            return
        output().print(f"{rows:,} samples, estimated from the first {len(samples):,}")
    facts = {"rows": rows, "looked_at": len(samples), "times": times}
    print_call_estimates(asked, as_json=as_json, of="grader", facts=facts)
    if not as_json:
        for name, time in times.items():
            output().print(_describe_time(name, time), soft_wrap=True)


def _describe_time(name: str, time: Mapping[str, Any]) -> str:
    """How long a judge takes, by how long one reply takes: a dry run has seen none."""
    fast, slow = (format_duration(time["rounds"] * reply_s) for reply_s in (1, 10))
    least = time["least_s"]
    return (
        f"{clean(name)}: {time['calls']:,} calls, at most {time['max_concurrency']:,} at a time: "
        f"{fast} where a reply takes 1 s, {slow} where it takes 10 s"
        + (f"; at least {format_duration(least)} by its rates per minute" if least else "")
    )


def _shipped_graders(spec: RewardSpec) -> dict[str, Any]:
    """The graders that are built; a user's own code is not run for an estimate."""
    judges = spec.build_judges()
    shipped = [entry for entry in spec.graders if entry.type in SHIPPED]
    return {entry.name: spec.build_grader(entry, judges) for entry in shipped}


def print_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """Samples, rewards, graders, judge calls; against the environment's reward if there is one."""
    groups, rate = summary["groups"], summary["samples_per_s"]
    speed = f", {format_sample_rate(rate)}" if rate else ""
    console.print(
        f"{summary['samples']:,} samples in {groups['count']:,} "
        f"group{'s' * (groups['count'] != 1)} "
        f"(size {groups['size_min']}-{groups['size_max']})"
        f"  ·  {summary['elapsed_s']:.1f} s{speed}" + _summary_notes(summary)
    )
    for part in list_results(summary):
        console.print(part if isinstance(part, Table) else terminal_text(part))


def _summary_notes(summary: Mapping[str, Any]) -> str:
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


def grade(
    rollouts: Annotated[
        list[Path],
        typer.Argument(
            help="Files, folders or patterns of rollouts in any known format; - is standard input."
        ),
    ],
    spec: Annotated[
        str,
        typer.Option(
            "--spec",
            "-s",
            metavar="FILE",
            help="The reward spec, a TOML file, or the address of a judge service.",
        ),
    ],
    mapping: ColumnMap = None,
    folder: Annotated[Path | None, output_option("grade")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first broken row [default: skip it].")
    ] = False,
    record: RecordTape = None,
    replay: ReplayTape = None,
    budget_usd: Budget = None,
    wait_for_judge: WaitForJudge = 0.0,
    draws: Annotated[
        int,
        judge_option(
            "--draws", min=1, max=MOST_DRAWS, help="Ask so often, to measure the judge's noise."
        ),
    ] = 1,
    step: AtStep = None,
    keep_transcripts: Annotated[
        int | None,
        typer.Option(
            "--keep-transcripts",
            min=0,
            help="How many samples the folder keeps whole [default: 20000, or 2000 without a "
            "judge].",
        ),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], ray_option("--engine", help="Where graders run.")
    ] = "local",
    ray_address: RayAddress = None,
    ray_workers: Annotated[
        int | None,
        ray_option("--ray-workers", min=1, help="How many workers grade [default: one per CPU]."),
    ] = None,
    dry_run: DryRun = False,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Grade rollouts with a reward spec.

    Example: adjudge grade rollouts.jsonl --spec reward.toml -o runs/first

    Writes rewards.jsonl, summary.json and report.html. The same command with the same -o resumes an
    interrupted run. A failed judge call makes the reward missing (null), never 0.

    Exit code: 0 done; 1 too many rewards are missing; 2 bad input or broken rows; 3 no judge
    answered; 4 the budget did not pay for all calls.
    """
    folder = folder or new_folder("grade")
    piped = rollouts == [_STDIN]
    loaded = _load_spec(spec) if "://" in spec else RewardSpec.load(spec)
    job = GradingJob(
        paths=[] if piped else rollouts,
        rows=read_stdin() if piped else None,
        rows_of="stdin",
        spec=loaded if step is None else loaded.at_step(step),
        folder=folder,
        mapping=parse_map(mapping, SAMPLE_FIELDS),
        strict=strict,
        show_progress=not quiet,
        budget_usd=budget_usd,
        engine=_make_engine(engine, ray_address, ray_workers),
        startup_patience_s=wait_for_judge,
        draws=draws,
        keep_transcripts=keep_transcripts,
        on_input=None if as_json else partial(print_input, errors()),
    )
    if dry_run:
        print_estimate(job, as_json=as_json)
        return
    job.use_cassette(record=record, replay=replay)
    run = run_job(job, folder)
    report_run(run, as_json=as_json)
    check_budget(run.summary, folder)
    if run.broken:
        raise typer.Exit(2)
    asked = run.summary["samples"] - run.summary["reward"]["not_sampled"]
    if asked > 0 and run.summary["missing"]["passing"] == asked:  # however few there are
        errors().print("[red]No judge answered:[/] all rewards are missing")
        raise typer.Exit(3)
    check_replay(replay, run.summary)
    if _too_many_missing(run.summary, job.spec.missing.max_missing):
        raise typer.Exit(1)


def _load_spec(address: str) -> RewardSpec:
    from adjudge.client.grader import make_service_spec  # noqa: PLC0415  (files need none)

    return make_service_spec(address, pinned=True)


def _make_engine(name: str, address: str | None, workers: int | None) -> GradingEngine | None:
    if name == "ray" or address is not None or workers is not None:
        from adjudge.runs.ray_engine import RayEngine  # noqa: PLC0415  (few grade on a cluster)

        return RayEngine(address, workers)
    return None


def _too_many_missing(summary: Mapping[str, Any], max_missing: float) -> bool:
    """Whether more rewards are missing than ``max_missing`` allows, which is said aloud."""
    reward = summary["reward"]
    asked, missing = summary["samples"] - reward["not_sampled"], reward["missing"]
    if missing <= max_missing * asked:
        return False
    errors().print(
        f"[red]too many rewards are missing:[/] {missing:,} of {asked:,} rewards are missing "
        f"({missing / asked:.1%}); missing.max_missing is {max_missing:.0%}"
    )
    return True


def check_budget(summary: Mapping[str, Any], folder: Path) -> None:
    """End with exit code 4 where money was not enough for a call, and say how to go on."""
    unpaid = sum(one["failures"].get(ErrorKind.BUDGET, 0) for one in summary["endpoints"])
    unpaid = unpaid or summary["missing"]["by_kind"].get(ErrorKind.BUDGET, 0)  # a service's budget
    if not unpaid:
        return
    reward = summary["reward"]
    asked = summary["samples"] - reward["not_sampled"]
    errors().print(
        f"[red]the budget is spent:[/] it was not enough for {unpaid:,} calls; "
        f"{reward['missing']:,} of {asked:,} rewards are missing"
    )
    budget = summary.get("spending", {}).get("budget_usd")
    larger = f"{2 * budget:g}" if budget else ""
    print_resume_command(folder, "To go on with a larger budget, run", larger)
    raise typer.Exit(4)


def run_job(job: GradingJob, folder: Path, *, keep_rows: bool = False) -> GradedRun:
    """Do the job in its ``folder``; when it is stopped, say how to go on.

    What a user's grader prints goes to standard error: standard output is the command's.
    """
    try:
        with resumable_work(folder):
            return grade_rollouts(job, keep_rows=keep_rows)
    except JudgeUnavailable:
        if job.startup_patience_s == 0:
            errors().print(
                "To wait for a judge server that is still starting, add --wait-for-judge SECONDS"
            )
        raise


def report_run(run: GradedRun, *, as_json: bool) -> None:
    """Print a graded run: tables or JSON on standard output, broken rows on standard error."""
    broken = [
        f"[yellow]broken row[/] {clean(row.where)}: {clean(row.message)}" for row in run.broken
    ]
    print_problems(broken, len(broken))
    if as_json:
        print_json(run.summary)
        return
    console = output()
    print_summary(console, run.summary)
    console.print(f"\n[bold]{clean(run.folder)}/[/]  rewards.jsonl  summary.json  report.html")
