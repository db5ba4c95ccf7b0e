"""``adjudge eval judge``: a judge on a benchmark, alone or against others, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from adjudge.cli.console import clean, errors, output, print_json, resumable_work
from adjudge.cli.options import (
    DryRun,
    JsonSummary,
    Quiet,
    WaitForJudge,
    against_option,
    data_option,
    new_folder,
    output_option,
    print_call_estimates,
    wait_for_judges,
)
from adjudge.datasets.files import find_files
from adjudge.judge_evaluation.benchmarks.judges import split_target
from adjudge.judge_evaluation.benchmarks.measures import ScoreScale
from adjudge.judge_evaluation.benchmarks.page import evaluation_tables, judge_warnings
from adjudge.judge_evaluation.benchmarks.validation import (
    ValidationJob,
    estimate_validation,
    validate_judges,
)
from adjudge.stats.estimates import require_stats


def _data_files(name: str) -> list[str]:
    """The files of a folder or a pattern; any other name is that of a file or a data set."""
    if Path(name).is_dir() or (not Path(name).exists() and any(one in name for one in "*?[")):
        return [str(file) for file in find_files([name])]
    return [name]


def eval_judge(
    target: Annotated[
        str,
        typer.Argument(
            metavar="JUDGE",
            help="A reward spec (SPEC.toml, SPEC.toml#GRADER), the folder of a trained judge, "
            "judgements.jsonl (or FILE#JUDGE), or recorded verdicts of LLMBar or JudgeBench.",
        ),
    ],
    against: Annotated[
        list[str] | None,
        against_option(help="Compare with this judge on the same items. Can be repeated."),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="rewardbench2, llmbar, judgebench or preference [default: detected].",
        ),
    ] = None,
    data: Annotated[
        list[str] | None, data_option("The items: files, folders or patterns. Can be repeated.")
    ] = None,
    as_pairs: Annotated[
        bool,
        typer.Option(
            "--as-pairs",
            help="Ask about RewardBench-2 in pairs of a right and a wrong answer: not its own "
            "protocol, but a judge that compares can be asked.",
        ),
    ] = False,
    scale: Annotated[
        ScoreScale | None, typer.Option(help="What its scores are, for calibration.")
    ] = None,
    wait_for_judge: WaitForJudge = 0.0,
    folder: Annotated[Path | None, output_option("eval")] = None,
    dry_run: DryRun = False,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Validate a judge on a benchmark, alone or against others.

    Example: adjudge eval judge judge.toml --data pairs.jsonl --against other.toml

    Reports the official score with a 95 % interval, calibration and length bias. Every pair is
    asked in both orders. Failed calls are counted beside the score, never as a choice.

    Writes judgements.jsonl, summary.json and report.html. The same command with the same -o resumes
    and asks only what is not answered yet.
    """
    if not dry_run:
        require_stats()
    job = ValidationJob(
        judges=[target, *(against or ())],
        folder=folder or new_folder("eval"),
        data=[file for name in data or () for file in _data_files(name)],
        kind=benchmark,
        as_pairs=as_pairs,
        scale=scale,
        show_progress=not quiet,
    )
    if dry_run:
        print_call_estimates(estimate_validation(job), as_json=as_json)
        return
    wait_for_judges([split_target(one)[0] for one in job.judges], wait_for_judge)
    with resumable_work(job.folder):
        validate_judges(job)
    if as_json:
        print_json(job.summary)
    else:
        print_validation(output(), job)
    if unusable := job.summary["benchmark"]["unusable"]["rows"]:
        errors().print(f"[yellow]{unusable:,} rows could not be used[/] (summary.json)")
        raise typer.Exit(2)


_MOST_PROBLEMS = 5


def print_validation(console: Console, job: ValidationJob) -> None:
    """The tables of the page, what a reader must know, and where the files are."""
    summary = job.summary
    about = summary["benchmark"]
    console.print(
        f"[bold]{clean(about['title'])}[/]: {about['items']:,} items, "
        f"{len(about['subsets'])} subset{'s' * (len(about['subsets']) != 1)}  ·  "
        f"{summary['seconds']:.1f} s"
    )
    for tables in evaluation_tables(summary).values():
        for table in filter(None, tables):
            console.print(table)
    for line in judge_warnings(summary):
        console.print(f"[yellow]{clean(line)}[/]", soft_wrap=True)
    for line in about["unusable"]["first"][:_MOST_PROBLEMS]:
        console.print(f"[yellow]unusable[/] {clean(line)}", soft_wrap=True)
    console.print(
        f"[dim]overall: {clean(about['official'])}. Intervals: 95 %, bootstrap over items. Failed "
        "items are missing: least/most is the score if all of them were wrong, or right. own is "
        "the score by the benchmark's own script.[/]"
    )
    console.print(f"\n[bold]{clean(job.folder)}/[/]  judgements.jsonl  summary.json  report.html")
