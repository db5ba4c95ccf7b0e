"""The arms of a study, each as the plain tables of a run file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adjudge.studies.matrix.given import Given, counts
from adjudge.studies.matrix.keys import changed, dotted, merged
from adjudge.studies.matrix.planned import Cell
from adjudge.studies.matrix.tables import LevelValue
from adjudge.studies.matrix.trained import judge_folder, policy_folder
from adjudge.training.runfile import RunFile

if TYPE_CHECKING:
    from adjudge.studies.matrix.file import StudyFile

__all__ = ["Arm", "arms_of", "base_tables", "first_given", "judge_tables", "table_of", "watched"]

_Tables = dict[str, Any]

_BY_JUDGE = ("judge", "services.judge_url")
"""The keys that judges are there to change."""


@dataclass(frozen=True)
class Arm:
    """One training run: against ``judge``, with ``mitigation``, from ``seed``.

    ``levels`` are the judge's, and the mitigation. ``data``: the run file's tables, whose relative
    paths start at ``beside``. ``declares``: the keys (or tables) of these in which it may differ
    from the other arms. ``given``: the name under ``[[arms]]`` of the run file that it is.
    """

    name: str
    judge: str
    mitigation: str
    seed: int
    levels: dict[str, LevelValue]
    bias: dict[str, float]
    plans: tuple[str, ...]
    data: _Tables
    beside: Path
    declares: tuple[str, ...]
    given: str | None = None

    @property
    def cell(self) -> tuple[str, str]:
        """What arms of different seeds have in common."""
        return self.judge, self.mitigation

    def run(self, where: str | None = None) -> RunFile:
        """The arm as a run; raises :class:`~adjudge.errors.ConfigError`."""
        return RunFile.from_dict(self.data, where=where or f"arm {self.name}", folder=self.beside)


def arms_of(study: StudyFile, folder: Path) -> list[Arm]:
    """All arms, those of a cell together; their policies and judges lie in ``folder``."""
    return [_arm(study, cell, seed, folder) for cell in study.cells for seed in study.seeds]


def _arm(study: StudyFile, cell: Cell, seed: int, folder: Path) -> Arm:
    of_given = None if cell.given is None else study.given_arms[cell.given]
    named = f"{cell.judge}.{cell.mitigation}" if cell.given is None else cell.given
    name = f"{named}.seed-{seed}"
    own: _Tables = {
        "model": {"base": policy_folder(folder, seed), "label": name},
        "training": {"seed": seed, "warm_start_iterations": 0},
        "evaluation": {"kl": True},
    }
    if of_given is not None:
        table, tables, beside = of_given.table, of_given.data, of_given.run.folder
        levels, bias, declares = table.levels, table.bias, tuple(table.differs)
    else:
        judge = study.judges[cell.judge]
        tables, beside = _cell_tables(study, cell, folder), study.folder
        levels, bias, declares = judge.levels, judge.bias, _declared(study, cell)
    return Arm(
        name=name,
        judge=cell.judge,
        mitigation=cell.mitigation,
        seed=seed,
        levels={**levels, "mitigation": cell.mitigation},
        bias=dict(bias),
        plans=cell.plans,
        data=merged({"version": 1, "kind": "rl", **tables}, own),
        beside=beside,
        declares=declares,
        given=cell.given,
    )


def _cell_tables(study: StudyFile, cell: Cell, folder: Path) -> _Tables:
    """The shared tables under the judge's under the mitigation's; their graders one after another.

    The gold is what the sentinel watches, if it is told nothing else.
    """
    base, judge = base_tables(study), judge_tables(study, cell.judge, folder)
    mitigation = study.known_mitigation(cell.mitigation)
    tables = merged(merged(base, {"judge": {}, **judge}), mitigation)
    graders = [*judge.get("graders", []), *mitigation.get("graders", []), *watched(study)]
    if any(one["name"] == study.gold for one in watched(study)):
        tables = merged({"sentinel": {"gold": study.gold}}, tables)
    return {**tables, "graders": graders}


def judge_tables(study: StudyFile, name: str, folder: Path) -> _Tables:
    """What a judge changes in a run file."""
    judge = study.judges[name]
    if judge.train is not None:
        return {"judge": {"folder": judge_folder(folder, name)}}
    if judge.members is not None:
        folders = [judge_folder(folder, one) for one in judge.members]
        return {"judge": {"folder": folders, "aggregate": judge.aggregate, "beta": judge.beta}}
    return judge.run or {}


def watched(study: StudyFile) -> list[_Tables]:
    """The graders that all arms watch; of given arms alone, those that the first one watches."""
    graders: list[_Tables] = study.run.get("graders", [])
    if not graders and not study.plans and (first := first_given(study)) is not None:
        return [one for one in first.data.get("graders", []) if not counts(one)]
    return graders


def base_tables(study: StudyFile) -> _Tables:
    """The tables that all arms share, graders apart.

    A study of given arms alone may leave them out; they are then the first arm's.
    """
    shared = {key: value for key, value in study.run.items() if key != "graders"}
    first = first_given(study)
    if first is None or study.plans:
        return shared
    tables = {
        key: value for key, value in first.data.items() if key not in {"graders", "judge", "kind"}
    }
    if first.run.rollout.dataset is not None:
        dataset = str((first.run.folder / first.run.rollout.dataset).absolute())
        tables = merged(tables, {"rollout": {"dataset": dataset}})
    services = {k: v for k, v in table_of(tables, "services").items() if k != "judge_url"}
    return merged({**tables, "services": services}, shared)


def _declared(study: StudyFile, cell: Cell) -> tuple[str, ...]:
    """The keys that an arm's judge and mitigation are there to change."""
    mitigation = study.known_mitigation(cell.mitigation)
    judge = study.judges[cell.judge].run or {}
    graders = [*judge.get("graders", []), *mitigation.get("graders", [])]
    names = (dotted("graders", str(one["name"])) for one in graders)
    return (*_BY_JUDGE, *names, *changed(mitigation))


def first_given(study: StudyFile) -> Given | None:
    """The first arm that is given as a run file."""
    return next(iter(study.given_arms.values()), None)


def table_of(tables: Mapping[str, Any], name: str) -> _Tables:
    """A table by its name; empty where there is none."""
    found = tables.get(name)
    return dict(found) if isinstance(found, Mapping) else {}
