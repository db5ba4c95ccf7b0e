"""``adjudge eval judge``: a judge on a benchmark, alone or against others, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from adjudge.cli.console import clean, errors, output, print_json, resumable_work
from adjudge.cli.estimates import DryRun, print_call_estimates
from adjudge.cli.options import (
    EnvFile,
    JsonForTables,
    QuestionsInFlight,
    Quiet,
    WaitForJudge,
    against_option,
    check_value,
    data_option,
    new_folder,
    output_option,
    wait_for_judges,
)
from adjudge.datasets.files import find_files
from adjudge.errors import ConfigError
from adjudge.judge_evaluation.benchmarks.judges import EvaluationMode
from adjudge.judge_evaluation.benchmarks.page import (
    LENGTH_EFFECTS,
    calibrations,
    position_sentence,
)
from adjudge.judge_evaluation.benchmarks.statistics import ScoreScale
from adjudge.judge_evaluation.benchmarks.validation import (
    ValidationJob,
    estimate_validation,
    validate_judges,
)
from adjudge.report.elements import bold
from adjudge.report.table import Column, Table, lost
from adjudge.stats.estimates import require_stats


def _data_files(name: str) -> list[str]:
    """The files of a folder or a pattern; any other name is that of a file or a data set."""
    if Path(name).is_dir() or (not Path(name).exists() and any(one in name for one in "*?[")):
        return [str(file) for file in find_files([name])]
    return [name]


def eval_judge(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="JUDGE",
            help="A reward spec (SPEC.toml, SPEC.toml#GRADER), the folder of a trained judge, "
            "judgements.jsonl (or FILE#JUDGE), or recorded verdicts of LLMBar or JudgeBench.",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        against_option("Compare with this judge on the same items. Can be repeated."),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="rewardbench2, llmbar, judgebench or preference [default: detected].",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        data_option(
            "The items: files, folders, patterns, or 'local', a small sample that ships with "
            "adjudge. Can be repeated."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="pointwise|pairwise",
            help="How to ask a judge that can do both [default: pairwise for pairs].",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="logits|probabilities",
            help="What its scores are, for calibration.",
        ),
    ] = None,
    wait_for_judge: WaitForJudge = 0.0,
    concurrency: QuestionsInFlight = None,
    env_file: EnvFile = None,  # noqa: ARG001  (loaded as the command line is read)
    folder: Annotated[Path | None, output_option("eval")] = None,
    dry_run: DryRun = False,
    as_json: JsonForTables = False,
    quiet: Quiet = False,
) -> None:
    """Validate a judge on a benchmark, alone or against others.

    Example: adjudge eval judge reward.toml --benchmark llmbar --data local

    Reports the official score with a 95 % interval, calibration and length bias. Every pair is
    asked in both orders. Failed calls are counted beside the score, never as a choice.

    Writes judgements.jsonl, summary.json and report.html. The same command with the same -o resumes
    and asks only what is not answered yet.
    """
    if target is None:
        raise ConfigError(
            "JUDGE: is required. Give a reward spec (.toml), the folder of a trained judge, or "
            "recorded judgements."
        )
    if not dry_run:
        require_stats()
    job = ValidationJob(
        judges=[target, *(against or ())],
        folder=folder or new_folder("eval"),
        data=[file for name in data or () for file in _data_files(name)],
        kind=benchmark,
        mode=check_value("--mode", mode, get_args(EvaluationMode)),
        scale=check_value("--scale", scale, get_args(ScoreScale)),
        concurrency=concurrency,
        show_progress=not quiet,
    )
    if dry_run:
        print_call_estimates(estimate_validation(job), as_json=as_json)
        return
    wait_for_judges([target, *(against or ())], wait_for_judge)
    with resumable_work(job.folder):
        validate_judges(job)
    if as_json:
        print_json(job.summary)
    else:
        print_validation(output(), job)
    if unusable := job.summary["benchmark"]["unusable"]["rows"]:
        errors().print(f"[yellow]{unusable:,} rows could not be used[/] (summary.json)")
        raise typer.Exit(2)


_DASH = "–"
_MOST_PROBLEMS = 5

_Entry = Mapping[str, Any]


def print_validation(console: Console, job: ValidationJob) -> None:
    """Scores, subsets, orders, calibration, lengths, comparisons."""
    summary = job.summary
    about, judges = summary["benchmark"], summary["judges"]
    if about["local"]:
        console.print(
            "[yellow]This is the sample that ships with adjudge, not the benchmark: the score says "
            "nothing about the benchmark.[/]"
        )
    console.print(
        f"[bold]{clean(about['title'])}[/]: {about['items']:,} items, "
        f"{len(about['subsets'])} subset{'s' * (len(about['subsets']) != 1)}  ·  "
        f"{summary['seconds']:.1f} s"
    )
    for judge in judges:
        console.print(_scores(judge))
    for table in (_orders(judges), _calibration(judges), _lengths(judges), _compared(summary)):
        if table:
            console.print(table)
    for judge in judges:
        if line := position_sentence(judge):
            console.print(f"[yellow]{clean(line)}[/]", soft_wrap=True)
        if judge["why"]:
            console.print(f"[yellow]{clean(judge['name'])}: {clean(judge['why'])}[/]")
        for kind, message in judge["first_failures"].items():
            said = f"{judge['name']}: the first {kind}: {message}"
            console.print(f"[yellow]{clean(said)}[/]", soft_wrap=True)
    for line in about["unusable"]["first"][:_MOST_PROBLEMS]:
        console.print(f"[yellow]unusable[/] {clean(line)}", soft_wrap=True)
    console.print(
        f"[dim]overall: {clean(about['official'])}. Intervals: 95 %, bootstrap over items. Failed "
        "items are missing: least/most is the score if all of them were wrong, or right. own is "
        "the score by the benchmark's own script.[/]"
    )
    console.print(f"\n[bold]{clean(job.folder)}/[/]  judgements.jsonl  summary.json  report.html")


def _columns(*headings: str) -> list[object]:
    return ["", *(Column(one, "i" if one == "95 %" else "n") for one in headings)]


def _scores(judge: _Entry) -> Table:
    """One judge overall and by subset."""
    pairs = judge["mode"] == "pairwise"
    headings = ["score", "95 %", "items", "missing", "least/most", "own"] + ["agrees"] * pairs
    rows = [[bold("overall"), *_row(judge["overall"], pairs=pairs)]]
    if len(judge["subsets"]) > 1 or judge["why"]:
        rows += [[name, *_row(one, pairs=pairs)] for name, one in judge["subsets"].items()]
    return Table(
        _columns(*headings),
        rows,
        caption=f"{judge['name']} ({judge['mode']})",
        drop=("own", "agrees", "least/most", "items"),
        keep=("score", "missing"),
    )


def _row(one: _Entry, *, pairs: bool) -> list[object]:
    least = one["at_least"]
    bounds = "" if least is None or not one["missing"] else f"{least:.3f}/{one['at_most']:.3f}"
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in one["failures"].items())
    cells: list[object] = [
        _format_number(one["score"], 4),
        _format_interval(one),
        f"{one['items']:,}",
        lost(kinds) if kinds else "0",
        bounds,
        _format_number(one["own"], 4),
    ]
    return [*cells, _format_number(one["orders"]["consistency"])] if pairs else cells


def _orders(judges: Sequence[_Entry]) -> Table:
    rows = [
        [
            judge["name"],
            *(f"{one[key]:,}" for key in ("right_as_given", "right_swapped", "both_right")),
            f"{one['agreeing']:,}",
            _format_number(one["kappa"], 4),
            f"{one['primacy']:,}/{one['recency']:,}",
            _format_number(one["position_p"], 4),
            f"{one['ties']:,}",
        ]
        for judge in judges
        for one in [judge["overall"]["orders"]]
        if one is not None and judge["mode"] == "pairwise"
    ]
    columns = _columns("given", "swapped", "both", "equal", "kappa", "1st/2nd", "p", "ties")
    return Table(columns, rows, caption="right in both orders, and named by position in both")


def _calibration(judges: Sequence[_Entry]) -> Table:
    rows = [
        [
            name,
            scale,
            f"{one['pairs']:,}",
            *(_format_number(one[key]) for key in ("ece", "brier")),
            "∞" if one["ruled_out"] else _format_number(one["log_loss"]),
        ]
        for judge in judges
        for name, scale, one in calibrations(judge, "by its card")
        if one
    ]
    columns = _columns("read as", "pairs", "error", "Brier", "log loss")
    return Table(columns, rows, caption="calibration")


def _lengths(judges: Sequence[_Entry]) -> Table:
    rows = [
        [judge["name"], *(_format_number(one[key]) for key in LENGTH_EFFECTS)]
        for judge in judges
        if (one := judge["lengths"])
    ]
    columns = _columns("r", "rho", "picks it", "is better", "right if so", "if not")
    return Table(columns, rows, caption="the longer answer")


def _compared(summary: _Entry) -> Table:
    rows = [
        [
            f"{one['a']} - {one['b']}",
            _format_number(one["difference"]),
            _format_interval(one["interval"]),
            _format_number(one["p"], 4),
            f"{one['only_a_right']:,}/{one['only_b_right']:,}",
            _format_number(one["mcnemar_p"], 4),
            f"{one['items']:,}",
        ]
        for one in summary["compared"]
    ]
    columns = _columns("difference", "95 %", "p", "only right", "McNemar p", "items")
    seldom = ("McNemar p", "only right", "items")
    return Table(columns, rows, caption="compared on what both answered", drop=seldom)


def _format_interval(one: _Entry) -> str:
    return _DASH if one["low"] is None else f"{one['low']:.3f} to {one['high']:.3f}"


def _format_number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return _DASH
    text = f"{value:.{digits}f}"
    return text if value == 0 or float(text) else f"{value:.1e}"  # no p is 0.0000
