"""A scaffold needs rubrics: a run that has none to show is refused before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adjudge.environments.tasks import read_dataset
from adjudge.errors import GradingFailure
from adjudge.training.scaffold.rows import COLUMNS, has_rubrics, rubrics_of

if TYPE_CHECKING:
    from adjudge.training.runfile import RunFile

__all__ = ["check_scaffold"]


def check_scaffold(run: RunFile) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for a scaffold on rows without rubrics.

    Held-out rows are never shown any, so they need none. A dataset that is not there is complained
    of by the run itself.
    """
    rollout = run.rollout
    if rollout.scaffold is None:
        return
    if rollout.dataset is None:
        run.refuse(
            "rollout.scaffold",
            "is for a dataset of single turns with rubrics; an environment has none to show",
        )
    path = run.folder / rollout.dataset
    if not path.is_file():
        return
    kept = set(run.evaluation.held_out)
    for number, row in enumerate(read_dataset(path)):
        if number in kept:
            continue
        if not has_rubrics(row):
            run.refuse(
                "rollout.scaffold",
                f"scaffold is on, but row {number} of {path} has no rubrics (looked for in "
                f"{', '.join(COLUMNS)}): nothing would be shown, and the arm would be plain RL; "
                "give every row rubrics, or leave the table out",
            )
        try:
            rubrics = rubrics_of(row)
        except GradingFailure as failure:
            run.refuse("rollout.scaffold", f"row {number} of {path}: {failure}")
        if not any(one.worth for one in rubrics):
            run.refuse(
                "rollout.scaffold", f"row {number} of {path}: no rubric has points: none is shown"
            )
