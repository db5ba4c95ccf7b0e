"""``adjudge study replay``: dumped judge prompts asked again, or their replies read again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adjudge.cli.console import (
    StageProgress,
    clean,
    errors,
    output,
    print_json,
    print_problems,
    resumable_work,
)
from adjudge.cli.options import (
    DryRun,
    JsonSummary,
    Quiet,
    judge_option,
    map_option,
    new_folder,
    output_option,
    parse_map,
    print_call_estimates,
)
from adjudge.errors import ConfigError
from adjudge.report.table import Table, numeric
from adjudge_lab.studies.judge_dumps import DUMP_FIELDS
from adjudge_lab.studies.replay import (
    ReplayJob,
    estimate_replay,
    find_replay_judge,
    replay_dump,
)


def replay(
    dump: Annotated[
        Path,
        typer.Argument(
            help="JSONL or Parquet with a judge prompt in each row, and perhaps its reply and "
            "score."
        ),
    ],
    judge: Annotated[
        str | None,
        typer.Option(
            "--judge",
            "-j",
            metavar="SPEC.toml#JUDGE",
            help="The judge to ask, with its own settings, or http://HOST/v1#MODEL [default: none; "
            "recorded replies are parsed].",
        ),
    ] = None,
    parse: Annotated[
        str,
        typer.Option(
            metavar="strict|anywhere|either",
            help="Where the verdict must be; strict: it is the reply or its start; either: strict "
            "first.",
        ),
    ] = "strict",
    form: Annotated[
        str | None,
        typer.Option(
            metavar="marks|brackets|score",
            help="The form: {'1': 'PRESENT', …}, [[1]], or a score [default: detected].",
        ),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="LOW:HIGH", help="The range of a score, such as 1:5.")
    ] = None,
    repeats: Annotated[int, judge_option(help="How often each prompt is asked.")] = 1,
    mapping: Annotated[
        list[str] | None,
        map_option(
            help=f"Read a field ({', '.join(DUMP_FIELDS)}) from another column. Can be repeated."
        ),
    ] = None,
    folder: Annotated[Path | None, output_option("replay", "The folder")] = None,
    dry_run: DryRun = False,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Ask a judge a dump's prompts again, or parse its replies again.

    Example: adjudge study replay scores.jsonl --parse either -o runs/again

    Reports for each judge and source of the dump: how many verdicts could be parsed, and why the
    others could not (they are missing, never 0); the means over rows with both scores; how many
    scores changed; and the range of the scores of one item.

    Writes answers.jsonl, rows.jsonl and summary.json. The same command with the same -o asks only
    prompts without a reply; with another --parse it parses the recorded replies.

    Exit code: 0 done, 2 bad input, 3 the judge did not answer.
    """
    job = ReplayJob(
        dump=dump,
        folder=folder or new_folder("replay"),
        judge=None if judge is None else find_replay_judge(judge),
        parse=parse,
        form=form,
        scale=_parse_scale(scale),
        repeats=repeats,
        mapping=parse_map(mapping, DUMP_FIELDS),
    )
    if dry_run:
        print_call_estimates(estimate_replay(job), as_json=as_json)
        return
    with resumable_work(job.folder), StageProgress(show=not quiet) as shown:
        job.on_progress = shown.update
        replay_dump(job)
    _report(job, as_json=as_json)
    if job.judge is not None and not any(arm["parsed"] for arm in job.summary["arms"]):
        errors().print("[red]No reply could be read:[/] all verdicts are missing")
        raise typer.Exit(3)


def _parse_scale(given: str | None) -> tuple[float | None, float | None]:
    if given is None:
        return None, None
    low, _, high = given.partition(":")
    try:
        return float(low), float(high)
    except ValueError:
        raise ConfigError(f"--scale {given!r}: must be LOW:HIGH, such as 1:5") from None


def _report(job: ReplayJob, *, as_json: bool) -> None:
    problems = job.summary["problems"]
    lines = [
        f"[yellow]line {one['line']}[/] of {clean(one['file'])}: {clean(one['reason'])}"
        for one in problems["first"]
    ]
    print_problems(lines, problems["count"])
    if as_json:
        print_json(job.summary)
        return
    console = output()
    _print_summary(console, job.summary)
    files = "rows.jsonl  summary.json" + ("  answers.jsonl" if job.judge else "")
    console.print(f"\n[bold]{clean(job.folder)}/[/]  {files}")


def _print_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """Two tables: by judge and source, and the ranges of items."""
    asked = summary["asked"]
    by = "the recorded replies" if asked is None else (
        f"{clean(asked['model'])}, {asked['prompts']:,} prompts × {asked['repeats']}, "
        f"{asked['now']:,} asked now"
    )  # fmt: skip
    console.print(f"{summary['rows']:,} rows, read {summary['parse']}: {by}")
    arms = [
        [
            arm["judge"],
            arm["source"],
            f"{arm['parsed']:,}/{arm['verdicts']:,}",
            *(_number(arm["common"][key]) for key in ("recorded", "score")),
            f"{arm['common']['changed']:,}/{arm['common']['rows']:,}",
            ", ".join(f"{count:,} {kind}" for kind, count in arm["unparsable"].items()) or "–",
        ]
        for arm in summary["arms"]
    ]
    numbers = numeric("parsed", "recorded", "now", "changed")
    stay = ("parsed", "missing", "now", "source")
    console.print(Table(["judge", "source", *numbers, "missing"], arms, keep=stay))
    if any(one["repeated"] for one in summary["ranges"]):
        console.print()
        ranges = [
            [
                one["source"],
                *(f"{one[key]:,}" for key in ("items", "repeated")),
                *(_number(one[key]) for key in ("mean", "largest")),
                one["item"] or "–",
            ]
            for one in summary["ranges"]
        ]
        numbers = numeric("items", "repeated", "mean range", "largest")
        console.print(Table(["source", *numbers, "of item"], ranges))
    console.print(
        "[dim]recorded, now: means over the rows that have both; missing verdicts are in none. "
        "Ranges: largest less smallest score of one item.[/]"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
