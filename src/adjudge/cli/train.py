"""``adjudge train``: a policy learns from judges."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from adjudge.cli.consoles import clean, errors, output
from adjudge.cli.grade import new_folder
from adjudge.training.run import TrainingJob, plan, train_run
from adjudge.training.runfile import RunFile
from adjudge.training.sentinel import Alarm

__all__ = ["train"]


def train(
    run: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run file.")],
    folder: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The run folder [default: runs/train-TIME]."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Instead of the run file's.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing: say what would be done, and stop.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON instead of lines.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train a policy against judges: a warm start on demonstrations, then GRPO.

    Writes to the run folder: config.toml (the run file), metrics.jsonl (a row per step),
    samples.jsonl (answers before and after, with verdicts), summary.json, and report.html with the
    curves. A sentinel watches whether the judge's reward still means what was wanted, and says
    what to change; by [sentinel] action it warns or stops the run.

    Needs torch and TRL (make demo-rl sets them up). base = "tiny" needs no network and no GPU.

    Example: adjudge train examples/rl_tiny.toml -o runs/first
    """
    wanted = RunFile.load(run)
    if seed is not None:
        wanted = wanted.with_seed(seed)
    if dry_run:
        _print_plan(plan(wanted), as_json=as_json)
        return
    with _Bar(show=not quiet) as bar:
        job = TrainingJob(
            wanted,
            run,
            folder or new_folder("train"),
            on_progress=bar.update,
            on_alarm=bar.alarm,
        )
        train_run(job)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(job.summary)).decode())
    else:
        _print_summary(job)


def _print_plan(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    console = output()
    for name, value in found.items():
        label = clean(name.replace("_", " "))
        console.print(f"{label:<16} {clean(_plain(value))}", soft_wrap=True)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key}={one}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_summary(job: TrainingJob) -> None:
    console, summary = output(), job.summary
    first, last = summary["first"], summary["last"]
    steps = f"{summary['steps']} of {summary['steps_planned']} steps"
    console.print(f"[bold]{steps}[/] in {summary['seconds']['total']:.0f} s; first → last tenth:")
    for name, key in (
        ("judge reward", "reward"), ("gold accuracy", "gold"), ("length, tokens", "length"),
    ):  # fmt: skip
        if first[key] is not None and last[key] is not None:
            console.print(f"  {name:<16}{first[key]:7.3f} → {last[key]:.3f}")
    _print_sentinel(console, summary)
    console.print(f"\n[bold]{clean(job.folder)}/[/]  report.html  metrics.jsonl  samples.jsonl")


def _print_sentinel(console: Console, summary: dict[str, Any]) -> None:
    alarms = summary["sentinel"]["alarms"]
    if not alarms:
        console.print("  sentinel        nothing to report")
    for one in alarms:
        style = "bold" if one["note"] else "bold yellow"
        where = f"step {one['step']}, {one['rule'].replace('_', ' ')}"
        console.print(
            f"  sentinel        [{style}]{where}[/]: {clean(one['seen'])}", soft_wrap=True
        )
        console.print(f"                  [dim]→[/] {clean(one['advice'])}", soft_wrap=True)


class _Bar:
    """A bar per stage on standard error; alarms are lines above it."""

    def __init__(self, *, show: bool) -> None:
        self._bar = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=errors(),
            disable=not show or not errors().is_terminal,
        )
        self._stages: dict[str, TaskID] = {}

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        """``done`` of ``total`` steps of a stage."""
        if stage not in self._stages:
            self._stages[stage] = self._bar.add_task(stage, total=total)
        self._bar.update(self._stages[stage], completed=done)

    def alarm(self, alarm: Alarm) -> None:
        """A line for what the sentinel just found."""
        where = f"step {alarm.step}, {alarm.rule.replace('_', ' ')}"
        self._bar.console.print(f"[bold yellow]sentinel[/] {where}: {clean(alarm.seen)}")
