"""``adjudge study FILE.toml`` and ``adjudge study diff``: trained against judges."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TaskID
from typer.core import TyperGroup

from adjudge.cli.bars import StageBars
from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.grade import new_folder
from adjudge.config import load_toml
from adjudge.errors import JudgeAuthError, JudgeUnavailable

if TYPE_CHECKING:
    from adjudge.studies.matrix.file import StudyFile

__all__ = ["GROUP_HELP", "RunsByDefault", "diff", "run"]

GROUP_HELP = """What a judge's choice does: studies.

`adjudge study FILE.toml` trains policies against judges that differ in a known way, and reports
what came of it: proxy against gold, transfer between judges, drift, onset of hacking, cost. It is
short for `adjudge study run FILE.toml`. See first what it would do:

\b
  adjudge study FILE.toml --dry-run
  adjudge study FILE.toml -o runs/study        (the same again goes on)
  adjudge study diff one.toml other.toml       (what two run files differ in)

Without any training: `adjudge study swap ROLLOUTS --judges A.toml B.toml`.
"""

_FILES = (".toml", ".json")


class RunsByDefault(TyperGroup):
    """A group whose ``run`` needs no name: a file or an option as the first word means it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with ``run`` before them where no verb is."""
        if args and args[0] not in self.commands and _means_run(args[0]):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def _means_run(word: str) -> bool:
    if word.startswith("-"):
        return word not in ("--help", "-h")
    # Any other word is a verb mistyped, and is told so.
    # A word may be what no file can be called, and `Path.is_file` raises for some of these.
    return word.endswith(_FILES) or "/" in word or os.path.isfile(word)  # noqa: PTH113


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The study's file.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The study's folder [default: runs/study-TIME]. One that was interrupted is gone "
            "on with.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Runs beside each other [default: by the cores]."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be done; write nothing.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Added to each of the file's seeds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Train policies against judges that differ in a known way, and report what came of it.

    First the policies that all arms of a seed begin with, then the judges that are trained, then
    the arms: each of the plans' judges with each mitigation and seed. Every checkpoint is scored by
    all judges and by the gold. Arms that differ in more than their judge and mitigation are
    refused.

    Writes report.html, summary.json, manifest.json, a tidy table of all scores, and the folders of
    what was trained. The same command with the same -o goes on, also with one more arm.

    Exit code: 0 done, 2 a bad file, 3 an arm failed or a judge could not be reached (the others are
    reported).

    Example: adjudge study study.toml --dry-run
    """
    study = _load(file, seed or 0)
    folder = folder or new_folder("study")
    if dry_run:
        _print_plan(study, folder, as_json=as_json)
        return
    summary = _do(study, file, folder, jobs, quiet=quiet)
    if as_json:
        print_json(summary)
    else:
        from adjudge.cli.study_matrix_tables import print_study  # noqa: PLC0415  (as above)

        print_study(output(), summary)
        output().print(
            f"\n[bold]{clean(folder)}/[/]  report.html  summary.json  manifest.json",
            soft_wrap=True,
        )
    if missed := {**summary["failed"], **summary.get("unscored", {})}:
        _print_failed(missed)
        raise typer.Exit(3)


def diff(
    left: Annotated[Path, typer.Argument(metavar="A.toml", help="A run file.")],
    right: Annotated[Path, typer.Argument(metavar="B.toml", help="Another.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Show what two run files differ in, with all defaults in their place.

    What a study says of two arms is about their judges only where nothing else differs: their
    model, prompts, sampling and evaluation.

    Exit code: 0 the same, 1 they differ, 2 a bad file.

    Example: adjudge study diff rl.toml ruscarl.toml
    """
    from adjudge.cli.study_matrix_tables import print_differences  # noqa: PLC0415
    from adjudge.studies.matrix.identity import config_diff  # noqa: PLC0415
    from adjudge.training.runfile import RunFile  # noqa: PLC0415

    found = config_diff(RunFile.load(left), RunFile.load(right))
    if as_json:
        print_json([one._asdict() for one in found])
    else:
        print_differences(output(), (left, right), found)
    if found:
        raise typer.Exit(1)


def _load(file: Path, seed: int) -> StudyFile:
    """The study in ``file``, with ``seed`` added to each of its seeds."""
    from adjudge.studies.matrix.file import StudyFile  # noqa: PLC0415  (`study swap` needs none)

    study = StudyFile.load(file)
    if not seed:
        return study
    data = {**load_toml(file, keep_references=True), "seeds": [one + seed for one in study.seeds]}
    return StudyFile.from_dict(data, where=str(file), folder=file.parent)


def _do(
    study: StudyFile, file: Path, folder: Path, jobs: int | None, *, quiet: bool
) -> dict[str, Any]:
    """Run the study, with bars; its summary."""
    from adjudge.studies.matrix.run import StudyJob, run_study  # noqa: PLC0415  (not a plan)

    with _Bars(show=not quiet) as bars:
        job = StudyJob(
            study=study, source=file, folder=folder, jobs=jobs,
            on_phase=bars.update, on_arm=bars.arm,
        )  # fmt: skip
        try:
            with redirect_stdout(sys.stderr):
                return run_study(job)
        except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
            errors().print(f"To go on where it stopped: the same command with -o {clean(folder)}")
            raise


class _Bars(StageBars):
    """A bar for each phase, and one for each run while it lasts."""

    def __init__(self, *, show: bool) -> None:
        super().__init__(show=show)
        self._runs: dict[str, TaskID] = {}

    def arm(self, name: str, stage: str, done: int, total: int) -> None:
        """``done`` of ``total`` of what a run is at; hidden when that is over."""
        if name not in self._runs:
            self._runs[name] = self._bars.add_task("", total=total)
        self._bars.update(
            self._runs[name],
            description=f"  {clean(name)} [dim]{clean(stage)}[/]",
            completed=done,
            total=total,
            visible=done < total,
        )


def _print_plan(study: StudyFile, folder: Path, *, as_json: bool) -> None:
    from adjudge.cli.study_matrix_tables import print_plan  # noqa: PLC0415
    from adjudge.studies.matrix.planning import study_plan  # noqa: PLC0415

    found = study_plan(study, folder)
    if as_json:
        print_json(found)
    else:
        print_plan(output(), found)


def _print_failed(failed: Mapping[str, str]) -> None:
    for name, why in failed.items():
        errors().print(f"[red]failed[/] {clean(name)}: {clean(why)}")
    errors().print("The others are reported. The same command with the same -o tries again.")
