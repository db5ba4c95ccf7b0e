"""``adjudge grade``: rollouts in, rewards out."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from datetime import datetime
from enum import StrEnum
from itertools import chain, count
from pathlib import Path
from typing import Annotated

import typer

from adjudge.cli.consoles import clean, errors, log_rubrics, output, print_json
from adjudge.cli.estimate import print_estimate
from adjudge.cli.judges import WaitForJudge
from adjudge.cli.tables import print_summary
from adjudge.config import nearest
from adjudge.errors import (
    ConfigError,
    ErrorKind,
    JudgeAuthError,
    JudgeUnavailable,
)
from adjudge.judges.cache import ReplyCache
from adjudge.rewards.samples import RewardResult
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.samples import FIELDS
from adjudge.runs.grading import Engine, GradingJob, grade_rollouts
from adjudge.runs.ray_engine import RayEngine

__all__ = ["grade", "new_folder", "parse_map", "report_job", "run_job"]

_SHOWN_BROKEN = 5


class EngineName(StrEnum):
    """Where graders are asked."""

    LOCAL = "local"
    RAY = "ray"


def grade(
    rollouts: Annotated[
        list[Path], typer.Argument(help="Files of rollouts: JSONL, or Parquet with [parquet].")
    ],
    spec: Annotated[Path, typer.Option("--spec", "-s", help="The reward spec, a TOML file.")],
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            "-m",
            metavar="FIELD=COLUMN",
            help="Where a field comes from, once per field: messages=traj, group=task_id, "
            "env_reward=reward, or any field a grader asks for; dots reach into columns.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The run folder [default: runs/grade-TIME]."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first broken row.")] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="CASSETTE",
            help="Keep every reply of a judge in this file, and ask only what has none in it yet; "
            "of a call that failed for good, the failure.",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            "--replay",
            metavar="CASSETTE",
            help="Answer from this file alone, without key or network, failures included; a call "
            "that is not in it fails and says what changed (exit code 1).",
        ),
    ] = None,
    budget_usd: Annotated[
        float | None,
        typer.Option(
            "--budget-usd",
            min=0.0,
            help="What all judges together may cost in this invocation; needs their prices. Calls "
            "beyond it are missing as 'budget'.",
        ),
    ] = None,
    wait_for_judge: WaitForJudge = 0.0,
    engine: Annotated[
        EngineName,
        typer.Option("--engine", help="Who asks the graders: this process, or workers of Ray."),
    ] = EngineName.LOCAL,
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address",
            metavar="auto|local|ADDRESS",
            help="auto: a Ray cluster that runs here; local: this machine alone "
            "[default: $RAY_ADDRESS, else local].",
        ),
    ] = None,
    ray_workers: Annotated[
        int | None,
        typer.Option("--ray-workers", min=1, help="[default: one per CPU of the cluster]"),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Ask nobody: estimate calls, tokens and cost, and stop."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON instead of tables.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log each rubric call and score.")
    ] = False,
) -> None:
    """Grade rollouts with a reward spec.

    Writes to the run folder: rewards.jsonl (a row per sample, input order: index, group, reward
    or why it is missing, each grader's score and reason), summary.json, and report.html, which
    opens in any browser without a network. The same command resumes an interrupted run.

    A judge that failed leaves the reward missing (null), never 0. Broken rows are named and kept
    out.

    Judges cost money: --dry-run estimates it, --budget-usd bounds it, --record keeps replies so
    that nothing is paid for twice, --replay repeats a recorded run without a network.

    --engine ray grades on the machines of a Ray cluster, with the same results; every machine needs
    adjudge, the judges' keys in its environment, and spec and rollouts at the same paths.

    Exit code: 0 done; 1 more of the rewards that were asked for are missing than [missing]
    max_missing of the spec allows, or calls are not in the replayed file; 2 bad input or broken
    rows; 3 no judge answered, an outage was longer than patience_s, or a key was refused; 4 the
    budget is spent, and that makes more rewards missing than max_missing; 130 interrupted.

    Example: adjudge grade rollouts.jsonl --spec reward.toml --map messages=traj -o runs/first
    """
    job = GradingJob(
        paths=rollouts,
        spec=RewardSpec.load(spec),
        folder=folder or new_folder("grade"),
        mapping=parse_map(mapping or []),
        strict=strict,
        show_progress=not quiet,
        budget_usd=budget_usd,
        engine=_engine(engine, ray_address, ray_workers),
        startup_patience_s=wait_for_judge,
    )
    if dry_run:
        print_estimate(job, as_json=as_json)
        return
    job.cassette = _cassette(record, replay)
    if replay is not None:
        job.spec = job.spec.with_patience(0.0)  # a recorded outage does not pass
    with log_rubrics(to_stderr=verbose):
        run_job(job)
    report_job(job, as_json=as_json)
    if job.broken:
        raise typer.Exit(2)
    if _all_down(job):
        errors().print("[red]no judge answered:[/] nothing was learned from it")
        raise typer.Exit(3)
    if replay is not None and job.summary["cassette"]["misses"]:
        misses = job.summary["cassette"]["misses"]
        errors().print(f"[red]replay:[/] {misses:,} calls are not in {clean(replay)}")
        raise typer.Exit(1)
    if code := _too_many_missing(job):
        raise typer.Exit(code)


def _engine(name: EngineName, address: str | None, workers: int | None) -> Engine | None:
    if name is EngineName.RAY:
        return RayEngine(address, workers)
    for option, value in (("--ray-address", address), ("--ray-workers", workers)):
        if value is not None:
            raise ConfigError(f"{option}: goes with --engine ray")
    return None


def _all_down(job: GradingJob) -> bool:
    """Whether every reward is missing because judges were away, however few samples there are."""
    asked = job.summary["samples"] - job.summary["reward"]["not_sampled"]
    return bool(asked > 0 and job.summary["missing"]["passing"] == asked)


def _too_many_missing(job: GradingJob) -> int:
    """The exit code for more missing rewards than ``max_missing`` allows, said aloud; else 0.

    4 where the others alone would be few enough without those that no money was left for.
    """
    reward = job.summary["reward"]
    asked, missing = job.summary["samples"] - reward["not_sampled"], reward["missing"]
    allowed = job.spec.missing.max_missing * asked
    if missing <= allowed:
        return 0
    unpaid = job.summary["missing"]["by_kind"].get(ErrorKind.BUDGET, 0)
    spent = missing - unpaid <= allowed
    errors().print(
        f"[red]{'the budget is spent' if spent else 'too many rewards are missing'}:[/] "
        f"{missing:,} of {asked:,} that were asked for are missing ({missing / asked:.1%}); "
        f"missing.max_missing is {job.spec.missing.max_missing:.0%}"
    )
    return 4 if spent else 1


def _cassette(record: Path | None, replay: Path | None) -> ReplyCache | None:
    if record is not None and replay is not None:
        raise ConfigError("--record and --replay: one of the two")
    if record is not None:
        return ReplyCache(record, "record", sampled=True)
    return None if replay is None else ReplyCache(replay, "strict")


def new_folder(verb: str) -> Path:
    """A run folder that does not exist yet: ``runs/VERB-TIME``, with a number if need be."""
    first = Path("runs") / f"{verb}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    later = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(path for path in chain([first], later) if not path.exists())


def run_job(job: GradingJob) -> list[RewardResult]:
    """Do the job; when it is stopped, say how to go on.

    What a user's grader prints goes to standard error: standard output is the command's.
    """
    try:
        with redirect_stdout(sys.stderr):
            return grade_rollouts(job)
    except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError) as error:
        errors().print(f"To go on where it stopped: the same command with -o {clean(job.folder)}")
        if isinstance(error, JudgeUnavailable) and job.startup_patience_s == 0:
            errors().print("To wait for a judge that is still starting: --wait-for-judge SECONDS")
        raise


def parse_map(entries: list[str]) -> dict[str, str]:
    """``FIELD=COLUMN`` entries as a mapping; raises :class:`ConfigError`."""
    mapping: dict[str, str] = {}
    for entry in entries:
        field, equals, column = (part.strip() for part in entry.partition("="))
        if not (field and equals and column):
            raise ConfigError(f"--map {entry!r}: must be FIELD=COLUMN, such as messages=traj")
        if field in mapping:
            raise ConfigError(f"--map {entry!r}: {field!r} is mapped twice")
        if field not in FIELDS and (hint := nearest(field, FIELDS)):
            errors().print(f"[yellow]--map {clean(entry)}[/]: an extra field{clean(hint)}")
        mapping[field] = column
    return mapping


def report_job(job: GradingJob, *, as_json: bool) -> None:
    """Print a finished job: tables or JSON on standard output, broken rows on standard error."""
    for row in job.broken[:_SHOWN_BROKEN]:
        errors().print(f"[yellow]broken row[/] {clean(row.where)}: {clean(row.message)}")
    if len(job.broken) > _SHOWN_BROKEN:
        errors().print(f"[yellow]… and {len(job.broken) - _SHOWN_BROKEN} more[/] (summary.json)")
    if as_json:
        print_json(job.summary)
        return
    console = output()
    print_summary(console, job.summary)
    console.print(f"\n[bold]{clean(job.folder)}/[/]  rewards.jsonl  summary.json  report.html")
