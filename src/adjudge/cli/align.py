"""``adjudge align``: a run's judges against people's labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from adjudge.cli.console import clean, errors, output, print_json
from adjudge.cli.options import (
    JsonSummary,
    RunFolderPath,
    new_folder,
    output_option,
    parse_numbers,
    threshold_option,
)
from adjudge.config import check_allowed
from adjudge.errors import ConfigError
from adjudge.judge_evaluation.alignment.measures import TargetAlignment, measure_alignment
from adjudge.judge_evaluation.alignment.report import (
    describe_counts,
    describe_selection,
    dispute_table,
    measure_table,
    summarise_alignment,
    write_alignment,
)
from adjudge.judge_evaluation.labels import (
    WHOLE_REWARD,
    JoinedLabels,
    join_labels,
    read_label_files,
)
from adjudge.runs.labels import LABELS_FILE
from adjudge.runs.records import RunRecord, RunRecords
from adjudge.stats.agreement import describe_youden
from adjudge.stats.estimates import require_stats

_SHOWN_DISPUTES = 5


def align(
    run: RunFolderPath,
    labels: Annotated[
        list[Path] | None,
        typer.Option(
            "--labels",
            "-l",
            metavar="FILE",
            help="A file of labels: JSON lines, CSV, TSV or Parquet. Can be repeated [default: "
            "RUN/labels.jsonl].",
        ),
    ] = None,
    threshold: Annotated[
        list[str] | None,
        threshold_option(
            metavar="[GRADER=]SCORE",
            help="Compare classes: good is this score or more. Can be repeated; without a grader "
            "it is for all.",
        ),
    ] = None,
    min_kappa: Annotated[
        float | None,
        typer.Option(
            min=-1.0,
            max=1.0,
            help="The least κ (quadratic) of each judge with people; below it, or where it cannot "
            "be measured, the exit code is 1.",
        ),
    ] = None,
    folder: Annotated[Path | None, output_option("align", "The folder of the page")] = None,
    as_json: JsonSummary = False,
) -> None:
    """Compare a run's judges with people's labels.

    Example: adjudge align runs/first --min-kappa 0.6 -o runs/align

    For each grader with labels, and for the reward: accuracy, Cohen's κ, Krippendorff's α, τ-b
    inside groups, AUC and the confusion matrix, with 95 % intervals clustered by group; how well
    people agree with each other; and the samples on which judge and people differ most.

    Labels are made on the page of `adjudge view`, or in a file: a row names its sample by key,
    where or index, and has a verdict (right, wrong), a score or preferred_over.

    Writes align.json and align.html. Exit code: 0 done, 1 a κ below --min-kappa, 2 bad input.
    """
    require_stats()
    records = RunRecords(run)
    files = labels or [run / LABELS_FILE]
    if not labels and not files[0].exists():
        raise ConfigError(
            f"{files[0]}: has no labels yet. Make some with `adjudge view {run}`, or give a file "
            "with --labels."
        )
    joined = join_labels(read_label_files(files), records)
    _check_joined(joined, run)
    limits = _parse_thresholds(threshold, joined, records)
    found = measure_alignment(joined.joined, records, thresholds=limits)
    failed = [] if min_kappa is None else _find_failures(found, joined, min_kappa)
    summary = summarise_alignment(run, files, joined, found, failed)
    folder = folder or new_folder("align")
    write_alignment(folder, summary, found)
    if as_json:
        print_json(summary)
    else:
        _print_alignment(found, joined)
        output().print(f"\n[bold]{clean(folder)}/[/]  align.html  align.json")
    for line in failed:
        errors().print(f"[red]{clean(line)}[/]")
    if failed:
        raise typer.Exit(1)


def _check_joined(joined: JoinedLabels, run: Path) -> None:
    if joined.unknown and not joined.joined:
        raise ConfigError(
            f"{joined.unknown[0]}: its sample is not in {run} (found {joined.rows:,} labels, none "
            "of a sample of this run; allowed: a key, where or index of its rewards.jsonl). Give "
            "the run that was labelled."
        )
    if joined.unknown:
        count, first = len(joined.unknown), joined.unknown[0]
        errors().print(
            f"[yellow]{count:,} labels are of samples that the run does not have[/] "
            f"(the first: {clean(first)}); they are left out."
        )
    if joined.replaced:
        errors().print(
            f"[yellow]{joined.replaced:,} labels were replaced[/] by later ones of the same author "
            "about the same; the column author tells people apart."
        )


def _parse_thresholds(
    entries: Sequence[str] | None, joined: JoinedLabels, records: Iterable[RunRecord]
) -> Mapping[str, float]:
    limits = parse_numbers("--threshold", entries, "[GRADER=]SCORE")
    labelled = sorted({one.label.grader or WHOLE_REWARD for one in joined.joined})
    for name in limits.keys() - {"", *labelled}:
        known = name == WHOLE_REWARD or any(name in one.scores for one in records)
        problem = "no label is about this grader" if known else "is no grader of this run"
        check_allowed("--threshold", name, labelled, problem)
    return dict.fromkeys(labelled, limits.pop("")) | limits if "" in limits else limits


def _find_failures(
    found: Sequence[TargetAlignment], joined: JoinedLabels, least: float
) -> list[str]:
    """Every judge whose κ is below ``least``, or has none."""
    failed = []
    # Where people only compared samples, there is nothing that a κ could be of.
    labels = [one.label for one in joined.joined]
    rated = {one.grader or WHOLE_REWARD for one in labels if one.kind in ("score", "verdict")}
    kappas = {one.target: (one.random or one.whole).kappa for one in found}
    scored = {name: kappa for name, kappa in kappas.items() if name in rated} or kappas
    for name, kappa in scored.items():
        if kappa.value is None:
            failed.append(f"{name}: κ cannot be measured: {kappa.why}")
        elif kappa.value < least:
            failed.append(f"{name}: κ is {kappa.value:.3f}, below {least:g}")
    return failed or ([] if found else ["there is no label to measure a κ by"])


# --- the terminal -------------------------------------------------------------------------------


def _print_alignment(found: Sequence[TargetAlignment], joined: JoinedLabels) -> None:
    console = output()
    if not found:
        console.print("The labels are notes: there is nothing to compare.")
    for one in found:
        console.print(f"[bold]{clean(one.target)}[/]: {describe_counts(one.whole)}")
        if one.random is not None:
            console.print(measure_table(one.random, "samples drawn at random"))
        console.print(measure_table(one.whole, "all labels" if one.random else None))
        if warning := describe_youden(one.target, (one.random or one.whole).youden):
            console.print(f"[yellow]{clean(warning)}.[/]", soft_wrap=True)
        if one.worst:
            console.print(dispute_table(one.worst, _SHOWN_DISPUTES))
    if warning := describe_selection(found, joined):
        console.print(f"[yellow]{clean(warning)}[/]")
