"""``adjudge export``: training data from a graded run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge.cli.console import clean, errors, output, print_json
from adjudge.cli.options import JsonSummary
from adjudge.report.table import Table, numeric
from adjudge.runs.export import ExportFormat, ExportKind, ExportSettings, export_run

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The run folder of `adjudge grade` or `adjudge train`."),
]
Target = Annotated[
    Path,
    typer.Option("-o", "--output", metavar="FILE", help="The file to write: .jsonl or .parquet."),
]
Form = Annotated[
    ExportFormat,
    typer.Option(
        "--format", help="trl: conversations as TRL reads them; verl: the columns of its data sets."
    ),
]


def export_dpo(
    run: Run,
    target: Target,
    pairs: Annotated[
        int,
        typer.Option(
            "--pairs-per-group",
            min=0,
            help="1: the best with the worst answer of a group; more: those of the largest margin; "
            "0: all.",
        ),
    ] = 1,
    min_margin: Annotated[
        float, typer.Option(help="The least difference of rewards in a pair.")
    ] = 0.0,
    as_json: JsonSummary = False,
) -> None:
    """Write preference pairs: of two answers to a prompt, the better is chosen.

    Example: adjudge export dpo runs/first -o pairs.jsonl --min-margin 0.2

    A row has prompt, chosen and rejected as messages, margin, both rewards and tools. A missing
    reward is in no pair, nor are ties, equal answers, and groups with several prompts; all are
    counted.

    Exit code: 0 done, 1 no row was written, 2 bad input.
    """
    _export(run, target, as_json, kind="dpo", form="trl", pairs=pairs, min_margin=min_margin)


def export_best(run: Run, target: Target, form: Form = "trl", as_json: JsonSummary = False) -> None:
    """Write the best answer of each group, to train on by SFT.

    Example: adjudge export best-of-n runs/first -o best.parquet --format verl

    This is rejection sampling. A row has messages, reward and tools. Of several best answers the
    first in the run is taken, and such groups are counted. A missing reward is never the best.

    Exit code: 0 done, 1 no row was written, 2 bad input.
    """
    _export(run, target, as_json, kind="best-of-n", form=form)


def export_sft(
    run: Run,
    target: Target,
    min_reward: Annotated[float, typer.Option(help="Samples from this reward on.")],
    form: Form = "trl",
    as_json: JsonSummary = False,
) -> None:
    """Write the samples with a high enough reward, to imitate.

    Example: adjudge export sft runs/first -o good.jsonl --min-reward 0.8

    A row has messages, reward and tools.

    Exit code: 0 done, 1 no row was written, 2 bad input.
    """
    _export(run, target, as_json, kind="sft", form=form, min_reward=min_reward)


def _export(
    run: Path, target: Path, as_json: bool, *, kind: ExportKind, form: ExportFormat, **settings: Any
) -> None:
    report = export_run(run, target, ExportSettings(kind=kind, form=form, **settings))
    if as_json:
        print_json(report.as_dict())
    else:
        console = output()
        console.print(
            f"[bold]{clean(target)}[/]: {report.written:,} rows of {report.samples:,} samples in "
            f"{report.groups:,} groups"
        )
        if report.tied_best:
            console.print(f"{report.tied_best:,} groups have several best answers: the first is in")
        if left := Table(
            ["left out", *numeric("count")],
            [
                [f"{what}: {why}", f"{count:,}"]
                for what, counts in (("samples", report.left_out), ("pairs", report.pairs_left_out))
                for why, count in counts.most_common()
            ],
        ):
            console.print(left)
    if not report.written:
        errors().print("[red]No row was written.[/]")
        raise typer.Exit(1)
