"""``adjudge watch``: the checks of a run that trains, from outside."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge.checks.steps import StepAlarm, describe_unchecked
from adjudge.cli.console import clean, errors, output, print_json
from adjudge.cli.options import JsonSummary
from adjudge.errors import ConfigError, RunFolderError, redact_addresses
from adjudge.files import write_json
from adjudge.runs.folder import read_json_object
from adjudge.runs.records import STOP_FILE, RunRecords
from adjudge.runs.view.run_reader import RunReader
from adjudge.runs.watch import RunWatch

_INTERVAL_S = 2.0
"""How often a run that goes on is read."""


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    gold: Annotated[
        str | None,
        typer.Option(
            metavar="GRADER", help="A grader of weight 0 that says what is really wanted."
        ),
    ] = None,
    stop: Annotated[
        bool,
        typer.Option(
            "--stop",
            help="At the first alarm, end the training: of a recorded run, whose own "
            "process ends it before its next step.",
        ),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Read what is there, and end: for a run that is over.")
    ] = False,
    as_json: JsonSummary = False,
) -> None:
    """Watch a training run, and warn when its judge misleads it.

    Example: adjudge watch runs/first --gold correct --stop

    Follows metrics.jsonl of a run that a trainer records, or of `adjudge train`, by the checks of
    the sentinel: the gold falls while the judge does not, rewards follow length, scores are all
    alike, rewards are missing. An alarm says what was seen, how an honest run may have it, and what
    to change. Ends when the run does, and names the checks that could not be made. Writes nothing,
    but with --stop a file stop.json in the folder; remove it before you train on.

    Exit code: 0 no alarm; 1 an alarm was raised; 2 bad input.
    """
    facts = read_json_object(run / "run.json") or {}
    if stop and (once or facts.get("kind", "record") != "record"):
        why = "goes with a run that is being recorded, not with --once"
        if not once:
            why = f"{run} is not recorded by a trainer, so nobody reads {STOP_FILE} there"
        raise ConfigError(f"--stop: {why}. Leave --stop out.")
    if once and not (run / "metrics.jsonl").is_file():
        raise RunFolderError(f"{run}: has no metrics.jsonl. Give the folder of a training run.")
    watching = RunWatch(run, gold=gold, action="stop" if stop else "warn")
    if once:
        _print_alarms(watching.read(to_the_end=True), as_json=as_json)
    else:
        _follow(run, watching, as_json=as_json)
    _finish(run, watching, as_json=as_json)


def _follow(run: Path, watching: RunWatch, *, as_json: bool) -> None:
    """Until the run is over, or is to be."""
    reader = RunReader(run, budget=0)  # says whether the run goes on; its samples are not read
    if not run.exists():
        errors().print(f"{clean(redact_addresses(str(run)))}: does not exist yet; waiting for it")
    while True:
        reader.refresh()
        over = reader.state in ("done", "stopped")
        _print_alarms(watching.read(to_the_end=over), as_json=as_json)
        if watching.checks.should_stop:
            alarm = next(one for one in watching.checks.alarms if not one.note)
            write_json(run / STOP_FILE, asdict(alarm))
            errors().print(f"[bold]{clean(run / STOP_FILE)}[/] asks the run to end")
            return
        if over:
            return
        time.sleep(_INTERVAL_S)


def _print_alarms(alarms: list[StepAlarm], *, as_json: bool) -> None:
    for alarm in alarms if not as_json else ():
        mark = "[dim]note[/]" if alarm.note else "[bold red]alarm[/]"
        output().print(
            f"{mark} step {alarm.step}: [bold]{clean(alarm.rule)}[/]: {clean(alarm.seen)}\n"
            f"  [dim]{clean(alarm.advice)}[/]"
            + (f"\n  [dim]or else: {clean(alarm.otherwise)}[/]" if alarm.otherwise else "")
        )


def _finish(run: Path, watching: RunWatch, *, as_json: bool) -> None:
    alarms = [one for one in watching.checks.alarms if not one.note]
    dropped = _count_dropped(run)
    if as_json:
        found: dict[str, Any] = {
            "steps": watching.steps,
            "alarms": [asdict(one) for one in watching.checks.alarms],
            "dropped": dropped,
            "stopped": watching.checks.should_stop,
            "unchecked": watching.checks.unchecked,
        }
        print_json(found)
    else:
        if dropped:
            reasons = ", ".join(f"{clean(why)} {count:,}" for why, count in dropped.items())
            output().print(
                f"[yellow]{sum(dropped.values()):,} samples were not recorded:[/] {reasons}"
            )
        words = f"{len(alarms)} alarm{'' if len(alarms) == 1 else 's'}" if alarms else "no alarm"
        output().print(f"{watching.steps:,} step{'' if watching.steps == 1 else 's'}: {words}")
        if unchecked := describe_unchecked(watching.checks.unchecked, "--gold"):
            output().print(f"[yellow]{clean(unchecked)}[/]", soft_wrap=True)
    if alarms:
        raise typer.Exit(1)


def _count_dropped(run: Path) -> dict[str, int]:
    try:
        return RunRecords(run).count_dropped()
    except RunFolderError:  # no row came yet
        return {}
