"""The HealthBench part of ``adjudge eval``: answers marked by a judge, as one table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.grade import new_folder
from adjudge.errors import ConfigError, JudgeAuthError, JudgeUnavailable
from adjudge.studies.healthbench.run import HealthbenchJob, evaluate_healthbench
from adjudge.studies.healthbench.words import USUAL, missing_lines, tag_groups

__all__ = ["eval_healthbench"]

_DASH = "–"


def eval_healthbench(
    target: str | None,
    data: Sequence[str],
    folder: Path | None,
    *,
    options: Mapping[str, Any],
    foreign: Mapping[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    """Evaluate and print.

    ``target``: ``SPEC.toml`` or ``SPEC.toml#GRADER``; ``options``: ``--responses``, ``--by`` and
    ``--concurrency``; ``foreign``: options of the other evaluations. Raises :class:`ConfigError`
    for what does not go together.
    """
    if given := [name for name, value in foreign.items() if value not in (None, False, [], ())]:
        raise ConfigError(f"{given[0]}: does not go with --benchmark healthbench")
    if target is None:
        raise ConfigError(
            "TARGET: is required: a reward spec with a grader of type rubric (SPEC.toml, or "
            "SPEC.toml#GRADER), whose judge marks the criteria"
        )
    responses: Sequence[str] = options["--responses"] or ()
    for name, found, what in (
        ("--data", data, "HealthBench's rows (prompt, rubrics)"),
        ("--responses", responses, "a file of responses (prompt and response a row)"),
    ):
        if len(found) != 1:
            raise ConfigError(f"{name}: is required once: {what}")
    job = HealthbenchJob(
        target=target,
        data=Path(data[0]),
        responses=Path(responses[0]),
        folder=folder or new_folder("eval"),
        by=_by(options["--by"]),
        concurrency=options["--concurrency"],
        show_progress=not quiet,
    )
    try:
        with redirect_stdout(sys.stderr):
            evaluate_healthbench(job)
    except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
        errors().print(f"To go on where it stopped: the same command with -o {clean(job.folder)}")
        raise
    _warn(errors(), job.summary)
    if as_json:
        print_json(job.summary)
    else:
        _print(output(), job)


def _by(value: str | None) -> Any:
    if value not in (None, "prompt", "key"):
        raise ConfigError(f"--by: found {value!r}, allowed: prompt, key")
    return value or "prompt"


def _warn(console: Console, summary: Mapping[str, Any]) -> None:
    for line in missing_lines(summary):
        console.print(f"[yellow]{clean(line)}[/]", soft_wrap=True)


def _print(console: Console, job: HealthbenchJob) -> None:
    summary = job.summary
    console.print(
        f"[bold]HealthBench[/]: {summary['scored']:,} of {summary['samples']:,} samples scored  ·  "
        f"{summary['prompts']:,} prompts of {clean(summary['data'])}  ·  {summary['seconds']:.1f} s"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for heading in ("score", "SD", "95 %", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("[bold]overall[/]", *_cells(summary["overall"]))
    groups = tag_groups(summary["tags"])
    for name in (one for one in groups if one in USUAL):
        table.add_row(f"[bold]{clean(name)}[/]", *[""] * 4)
        for value, one in groups[name].items():
            table.add_row(f"  {clean(value)}", *_cells(one))
    console.print(table)
    if others := [f"{name} ({len(tags)})" for name, tags in groups.items() if name not in USUAL]:
        console.print(f"[dim]also by {clean(', '.join(others))}: report.html[/]")
    console.print(
        "[dim]points met over positive points, a sample's not clipped, their mean clipped to 0 to "
        "1; SD and 95 % interval by bootstrap over prompts; what is missing is in no mean[/]"
    )
    files = "scores.jsonl  summary.json  report.html  grading/"
    console.print(f"\n[bold]{clean(job.folder)}/[/]  {files}", highlight=False, soft_wrap=True)


def _cells(one: Mapping[str, Any]) -> list[str]:
    if one["score"] is None:
        return [_DASH, _DASH, _DASH, "0"]
    low, high = one["low"], one["high"]
    # The bracket is markup to the console unless it is escaped.
    interval = _DASH if low is None else rf"\[{low:.3f}, {high:.3f}]"
    return [f"{one['score']:.4f}", f"{one['bootstrap_std']:.4f}", interval, f"{one['n_samples']:,}"]
