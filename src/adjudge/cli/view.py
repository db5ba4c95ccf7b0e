"""``adjudge view`` and ``adjudge watch``: a run on a live page, and the checks of its steps."""

from __future__ import annotations

import os
import sys
import threading
import time
import webbrowser
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from adjudge.checks.steps import SentinelAction, StepAlarm, StepWatch, describe_unchecked
from adjudge.cli.console import clean, errors, output, print_json
from adjudge.cli.options import JsonAddress, JsonSummary, RunFolderPath, UntilEof
from adjudge.errors import ConfigError, RunFolderError, redact_addresses
from adjudge.files import write_json
from adjudge.runs.folder import read_json_object
from adjudge.runs.records import STOP_FILE, RunRecords
from adjudge.runs.view.run_reader import RunReader
from adjudge.runs.view.server import ViewServer, serve_view


def view(
    run: RunFolderPath,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 picks a free one.")] = 0,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the address and open no browser.")
    ] = False,
    as_json: JsonAddress = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Take no labels; nothing is written.")
    ] = False,
    until_eof: UntilEof = False,
) -> None:
    """Show a training run or a grading run on a live page.

    Example: adjudge view runs/first

    Shows curves, histograms, groups with their advantages (failures left out, or counted as 0 at a
    click), and each sample with its messages, verdicts and reward. Works before, during and after
    the run. Nothing leaves this machine. Ctrl-C stops the page, not the run.

    People can label samples there: labels.jsonl in the run's folder is the only file that the page
    writes.
    """
    if not run.exists():
        name = clean(redact_addresses(str(run)))
        errors().print(f"{name}: does not exist yet; the page waits for it")
    elif run.is_dir() and not (run / "run.json").exists() and not any(run.glob("*.jsonl")):
        errors().print(f"{clean(run)}: holds no run yet; the page waits for one")
    server = ViewServer(run, port=port, read_only=read_only)
    ready = partial(_announce_page, as_json=as_json, no_open=no_open)
    serve_view(server, ready, until_eof=until_eof)


def _announce_page(server: ViewServer, *, as_json: bool, no_open: bool) -> None:
    if as_json:
        facts = {"url": server.url, "port": server.port, "pid": os.getpid()}
        typer.echo(msgspec.json.encode(facts))
        return
    typer.echo(server.url)
    typer.echo("Ctrl-C stops the page.")
    if not no_open and _has_screen():
        # A browser may take its time, or print on its own account.
        threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()


def _has_screen() -> bool:
    """Whether a browser would open a window; on a server it would take the terminal."""
    if sys.platform == "darwin":
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


_INTERVAL_S = 2.0
"""How often a run that goes on is read."""


def watch(
    run: RunFolderPath,
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
    if not run.exists():
        errors().print(f"{clean(redact_addresses(str(run)))}: does not exist yet; waiting for it")
    while True:
        _print_alarms(watching.read(to_the_end=once), as_json=as_json)
        if once or watching.is_over:
            break
        if watching.checks.should_stop:
            alarm = next(one for one in watching.checks.alarms if not one.note)
            write_json(run / STOP_FILE, asdict(alarm))
            errors().print(f"[bold]{clean(run / STOP_FILE)}[/] asks the run to end")
            break
        time.sleep(_INTERVAL_S)
    _finish(run, watching, as_json=as_json)


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
    dropped: dict[str, int] = {}
    with suppress(RunFolderError):  # no row came yet
        dropped = RunRecords(run).count_dropped()
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


class RunWatch:
    """The checks of the steps in ``metrics.jsonl`` of ``folder``, by what is appended to it.

    ``gold`` and ``action`` as for :class:`StepWatch`, which :attr:`checks` is. A file that was
    written anew is watched from its start.
    """

    def __init__(
        self, folder: Path, *, gold: str | None = None, action: SentinelAction = "warn"
    ) -> None:
        self._reader = RunReader(folder, budget=0)  # its samples are not read
        self._new_checks = partial(StepWatch, action, gold=gold)
        self._start()

    def _start(self) -> None:
        self._generation = self._reader.generation
        self.checks = self._new_checks()
        self.steps = 0

    @property
    def is_over(self) -> bool:
        """Whether the run was over when it was read."""
        return self._reader.state in ("done", "stopped")

    def read(self, *, to_the_end: bool = False) -> list[StepAlarm]:
        """The alarms of what is new; ``to_the_end``: nothing more comes of the last step."""
        raised: list[StepAlarm] = []
        more = True
        while more:
            steps = self._reader.refresh()
            if self._generation != self._reader.generation:
                self._start()
                raised = []
            more = bool(steps)
            if not more and (to_the_end or self.is_over):
                steps = self._reader.close_steps()
            self.steps += len(steps)
            for row in steps:
                raised += self.checks.observe(int(row["step"]), row)
        return raised
