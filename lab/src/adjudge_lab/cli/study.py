"""``adjudge study run`` and ``adjudge study diff``: policies trained against judges.

What a terminal shows of a study: its plan, its results, and what two run files differ in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from adjudge.cli.console import StageProgress, clean, errors, output, print_json, say_how_to_resume
from adjudge.cli.options import JsonSummary, new_folder, output_option
from adjudge_lab.studies.summary_view import (
    cell_name,
    cell_views,
    pilot_note,
    plan_answer,
    plan_table,
    plan_title,
    transfer_table,
)

if TYPE_CHECKING:
    from adjudge_lab.studies.study import Study
from adjudge.report.page import Element, below, bold, element_text
from adjudge.report.table import Table

_MOST_JUDGES = 8


def print_study(console: Console, summary: Mapping[str, Any]) -> None:
    """Print a study's results: each plan's cells and answer, then the gains each scorer sees."""
    cells = cell_views(summary)
    for plan in summary["plans"]:
        console.print(f"[bold]{clean(plan_title(plan))}[/]")
        for part in filter(None, plan_table(plan, cells, summary)):
            console.print(part if isinstance(part, Table) else element_text(part))
        console.print(f"{clean(plan_answer(plan, summary))}\n", soft_wrap=True)
    if len(summary["transfer"]["scorers"]) <= _MOST_JUDGES + 1 and summary["transfer"]["rows"]:
        console.print("[bold]Trained on one, scored by all[/]  [dim]gains in SDs[/]")
        console.print(transfer_table(summary["transfer"]))
    console.print(
        "[dim]Gains are in SDs of the initial policy's answers; in brackets 95 % "
        "intervals. "
        "Onset: seeds in which the judge's reward kept rising while the gold reward fell.[/]"
    )
    if note := pilot_note(summary):
        console.print(f"[bold yellow]{clean(note)}[/]", soft_wrap=True)


def print_study_plan(console: Console, found: Mapping[str, Any]) -> None:
    """What :func:`adjudge_lab.studies.run.plan_study` found."""
    stamp = "  [bold yellow]PILOT[/]" if found["pilot"] else ""
    console.print(f"[bold]{clean(found['label'] or 'study')}[/]{stamp}")
    console.print(_facts(found))
    console.print()
    console.print(_plan_table(found["plans"], len(found["seeds"])))
    console.print()
    console.print(_judge_table(found["judges"]))
    for warning in found["warnings"]:
        console.print(f"[yellow]warning[/] {clean(warning)}", soft_wrap=True)


def _facts(found: Mapping[str, Any]) -> Table:
    runs = found["runs"]
    calls = found["calls"]
    facts = (
        ("folder", found["folder"]),
        ("gold", found["gold"]),
        ("seeds", ", ".join(map(str, found["seeds"]))),
        *((name, _done_text(runs[name])) for name in ("policies", "judges", "arms")),
        ("held out", ", ".join(found["held_out"]) or "none"),
        ("judge calls", "not counted" if calls is None else f"≤ {calls:,.0f} in the arms' runs"),
    )
    return Table(["", ""], [[bold(name), text] for name, text in facts])


def _done_text(count: Mapping[str, int]) -> str:
    there = f", {count['done']:,} done already" if count["done"] else ""
    return f"{count['in_all']:,}{there}"


def _plan_table(plans: Sequence[Mapping[str, Any]], seeds: int) -> Table:
    rows = []
    for one in plans:
        question = one["question"] + (f" over {one['x']}" if one["x"] else "")
        cells = [[cell_name(*cell), Element("br")] for cell in one["cells"]]
        arms = [f"{len(one['cells'])} × {seeds} seeds", below(f"{one['arms']} in all")]
        rows.append([one["name"], question, cells, arms])
    columns = ["plan", "question", "judge, mitigation", "arms"]
    return Table(columns, rows, keep=("judge, mitigation", "arms", "question"))


def _judge_table(judges: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for one in judges:
        state = {True: "trained already", False: "to be trained", None: ""}[one["trained"]]
        notes = ", ".join(text for text in ("held out" if one["held_out"] else "", state) if text)
        levels, bias = _listed_text(one["levels"]), _listed_text(one["bias"])
        rows.append([one["name"], levels, bias, one["how"], notes])
    return Table(["judge", "levels", "bias", "how", "state"], rows)


def _listed_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "–"


def print_differences(console: Console, files: tuple[Path, Path], found: Sequence[Any]) -> None:
    """A line for each key in which two run files differ."""
    if not found:
        console.print("The two files are equal, defaults included.")
        return
    rows = [[one.key, _value(one.left), _value(one.right)] for one in found]
    console.print(Table(["key", *files], rows, keep=[str(file) for file in files]))


def _value(value: object) -> str:
    return "–" if value is None else str(value)


def run_study_file(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The study file.")],
    folder: Annotated[
        Path | None,
        output_option(
            "study",
            "The study's folder",
            " An interrupted study resumes.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="How many runs go on at the same time [default: by the cores].",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan and write nothing."),
    ] = False,
    as_json: JsonSummary = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train policies against judges that differ in a known way.

    Example: adjudge study run study.toml --dry-run

    Trains first the initial policy of each seed, then the judges, then the arms: each judge of a
    plan with each mitigation and seed. Every checkpoint is scored by all judges and by the gold
    reward. Arms that differ in more than their judge and mitigation are an error.

    Writes report.html, summary.json, manifest.json, a tidy table of all scores, and the folders of
    the trained models. The same command with the same -o resumes, also with one more arm.

    Exit code: 0 done, 2 a bad file, 3 an arm failed or a judge could not be reached (the other arms
    are reported).
    """
    from adjudge_lab.studies.study import Study  # noqa: PLC0415

    study = Study.load(file)
    folder = folder or new_folder("study")
    if dry_run:
        _show_plan(study, folder, as_json=as_json)
        return
    summary = _run_shown(study, file, folder, jobs, quiet=quiet)
    if as_json:
        print_json(summary)
    else:
        print_study(output(), summary)
        output().print(
            f"\n[bold]{clean(folder)}/[/]  report.html  summary.json  manifest.json",
            soft_wrap=True,
        )
    if missed := {**summary["failed"], **summary.get("unscored", {})}:
        _print_failed(missed)
        raise typer.Exit(3)


def diff_run_files(
    left: Annotated[Path, typer.Argument(metavar="A.toml", help="One run file.")],
    right: Annotated[Path, typer.Argument(metavar="B.toml", help="The other run file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Show how two run files differ, defaults included.

    Example: adjudge study diff rl.toml ruscarl.toml

    Two arms of a study compare judges only where nothing else differs: model, prompts, sampling and
    evaluation.

    Exit code: 0 the files are equal, 1 they differ, 2 a bad file.
    """
    from adjudge_lab.rl.runfile_checks import load_run_file  # noqa: PLC0415
    from adjudge_lab.studies.manifest import diff_settings  # noqa: PLC0415

    found = diff_settings(load_run_file(left), load_run_file(right))
    if as_json:
        print_json([one._asdict() for one in found])
    else:
        print_differences(output(), (left, right), found)
    if found:
        raise typer.Exit(1)


def _run_shown(
    study: Study, file: Path, folder: Path, jobs: int | None, *, quiet: bool
) -> dict[str, Any]:
    """Run the study, with its progress; its summary."""
    from adjudge_lab.studies.run import StudyJob, run_study  # noqa: PLC0415  (not a plan)

    with _StudyProgress(show=not quiet) as shown:
        job = StudyJob(
            study=study, source=file, folder=folder, jobs=jobs,
            on_phase=shown.update, on_arm=shown.arm,
        )  # fmt: skip
        with say_how_to_resume(folder), redirect_stdout(sys.stderr):
            return run_study(job)


class _StudyProgress(StageProgress):
    """The progress of each phase, with the runs that go on."""

    def __init__(self, *, show: bool) -> None:
        super().__init__(show=show)
        self._runs: dict[str, str] = {}

    def arm(self, name: str, stage: str, done: int, total: int) -> None:
        """``done`` of ``total`` of what a run is at; over when it has all."""
        self._runs[name] = "" if done >= total else f"{name}: {stage} {done:,}/{total:,}"
        if self.reading is not None:
            details = "; ".join(filter(None, self._runs.values()))
            self.reading = replace(self.reading, details=details)


def _show_plan(study: Study, folder: Path, *, as_json: bool) -> None:
    from adjudge_lab.studies.run import plan_study  # noqa: PLC0415

    found = plan_study(study, folder)
    if as_json:
        print_json(found)
    else:
        print_study_plan(output(), found)


def _print_failed(failed: Mapping[str, str]) -> None:
    for name, why in failed.items():
        errors().print(f"[red]failed[/] {clean(name)}: {clean(why)}")
    errors().print(
        "The other arms are reported. The same command with the same -o tries the failed ones "
        "again."
    )
