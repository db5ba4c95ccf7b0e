"""``adjudge conformance``: what a trainer does with a missing reward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from adjudge.cli.console import clean, output, print_json
from adjudge.report.table import Table, lost, styled
from adjudge_lab.conformance.checks import (
    COUNTS,
    RIGHT,
    TRAINER_CHECKS,
    CheckEnd,
    Conformance,
    TrainerFinding,
    TrainerVerdict,
    run_conformance,
)
from adjudge_lab.conformance.drivers import DRIVERS, STAND_INS, build_driver

_CELLS = {
    CheckEnd.PASSES: styled("✓", "good"),
    CheckEnd.STOPS: lost("stops"),
    CheckEnd.DROPS: lost("drops"),
    CheckEnd.UNKNOWN: lost("–"),
}
_SENTENCES = {
    TrainerVerdict.EXACT: "is exact: the others learn what they learn without the missing answer",
    TrainerVerdict.UNBIASED: (
        "is unbiased: the others get the right advantages, while the checks above still fail, so "
        "that a step with more failures weighs less"
    ),
    TrainerVerdict.DROPS: (
        "drops the whole group: nothing false is learned, but its other answers teach nothing"
    ),
    TrainerVerdict.WRONG: (
        "is wrong: a missing reward changes what the others learn, or is learned from"
    ),
    TrainerVerdict.STOPS: "stops the run",
}


def conformance(
    trainer: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(one for one in DRIVERS if one not in STAND_INS)}, or module:Class, a "
            "driver of your own."
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--source",
            metavar="DIR",
            help="The folder that holds the trainer's package: a checkout, or an unzipped wheel "
            "[default: the installed package].",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show what a trainer's own code does with missing rewards.

    Example: adjudge conformance trl

    Its advantage and loss functions are given groups in which none to all rewards are missing.
    What each other answer then learns is held to what it learns in a group without the missing
    ones. Nothing is trained, no GPU is used, and of the trainer only the driven files are needed.

    The code of --source is executed: name only a trainer that you trust.

    Exit code: 0 where some way to say "missing" is exact, unbiased or drops the group, 1 where
    none is, 2 bad input.
    """
    found = run_conformance(build_driver(trainer, source))
    if as_json:
        ways = {way: found.judge_way(way) for way in found.ways}
        print_json({**msgspec.to_builtins(found), "verdict": found.verdict, "ways": ways})
    else:
        print_conformance(output(), found)
    raise typer.Exit(0 if found.verdict in RIGHT else 1)


def print_conformance(console: Console, found: Conformance) -> None:
    """A table for each way to say "missing", what fails, and a sentence on each way."""
    console.print(f"{clean(found.trainer)} {clean(found.version)}: {clean(found.decided_at)}")
    for way in found.ways:
        findings = [one for one in found.findings if one.way == way]
        settings = list(dict.fromkeys(one.setting for one in findings))
        cells = {(one.check, one.setting): _cell(one) for one in findings}
        rows = [
            [check, *(cells[check, setting] for setting in settings)] for check in TRAINER_CHECKS
        ]
        console.print(Table([f"missing as {way}", *settings], rows))
        seen: set[str] = set()
        for one in findings:
            if one.text and one.check not in seen:
                seen.add(one.check)
                console.print(f"  {one.check}: {clean(one.text)}", soft_wrap=True)
        verdict = found.judge_way(way)
        note = " (not documented)" if way in found.undocumented else ""
        console.print(f"{clean(way)}{note} {_SENTENCES[verdict]}.\n", soft_wrap=True)


def _cell(one: TrainerFinding) -> object:
    if one.outcome is not CheckEnd.FAILS:
        return _CELLS[one.outcome]
    if one.check not in COUNTS:
        return styled("wrong", "bad")
    return lost("spreads" if one.check == "NaN" else "counts")
