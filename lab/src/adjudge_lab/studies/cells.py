"""The cells of a study and their arms: plans are crossed, and each arm is a run file.

A cell is a judge that is trained on with a mitigation, for some plans.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adjudge.config import dotted_key, suggest_name
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.studies.study_file import (
    NO_MITIGATION,
    LevelValue,
    StudyFile,
    StudyPlan,
    changed_keys,
    merge_tables,
    same_level,
)


def judge_folder(folder: Path, name: str) -> str:
    """Where a trained judge of the study in ``folder`` lies, absolute."""
    return str((folder / "judges" / name).absolute())


def policy_folder(folder: Path, seed: int) -> str:
    """Where the policy that the arms of ``seed`` begin with lies, absolute."""
    return str((folder / "policies" / f"seed-{seed}").absolute())


_MAX_CELLS = 10_000
LevelCombination = dict[str, LevelValue]


@dataclass(frozen=True)
class StudyCell:
    """Arms that differ in nothing but the seed."""

    judge: str
    mitigation: str
    plans: tuple[str, ...]


def make_cells(study: StudyFile) -> list[StudyCell]:
    """The cells of all plans in their order, each once.

    Raises :class:`~adjudge.errors.ConfigError` naming plan and combination.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for plan in study.plans:
        for judge, mitigation in _cross_plan(study, plan):
            found.setdefault((judge, mitigation), []).append(plan.name)
    return [
        StudyCell(judge, mitigation, tuple(plans)) for (judge, mitigation), plans in found.items()
    ]


def plan_judges(study: StudyFile, plan: StudyPlan) -> list[str]:
    """The judges that a plan trains on."""
    return list(dict.fromkeys(judge for judge, _ in _cross_plan(study, plan)))


def _cross_plan(study: StudyFile, plan: StudyPlan) -> Iterator[tuple[str, str]]:
    _check_plan_names(study, plan)
    factors = plan.factors
    if (number := math.prod(map(len, factors.values()))) > _MAX_CELLS:
        study.refuse(
            f"plans.{plan.name}",
            f"crosses too many cells (found {number:,}; allowed: at most {_MAX_CELLS:,})",
        )
    crossed = [
        dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())
    ]
    for one in plan.skip:
        if not any(_contains(one, combination) for combination in crossed):
            study.refuse(
                f"plans.{plan.name}.skip", f"no combination of the plan has {_format_levels(one)}"
            )
    kept = [one for one in crossed if not any(_contains(part, one) for part in plan.skip)]
    if not kept:
        study.refuse(f"plans.{plan.name}.skip", "leaves no combination of the plan")
    for combination in kept:
        yield _find_judge(study, plan, combination), str(combination["mitigation"])


def _find_judge(study: StudyFile, plan: StudyPlan, combination: LevelCombination) -> str:
    """The one judge that a combination is about."""
    if plan.judge is not None:
        return str(combination["judge"])
    wanted = {factor: combination[factor] for factor in plan.levels}
    fitting = [name for name, judge in study.judges.items() if _contains(wanted, judge.levels)]
    found = [name for name in fitting if not study.judges[name].held_out]
    if len(found) != 1:
        held_out = " (held_out = true)" if fitting and not found else ""
        study.refuse(
            f"plans.{plan.name}",
            f"must find one judge with {_format_levels(wanted)} (found "
            f"{', '.join(map(repr, fitting)) or 'none'}{held_out}). Add one or another level under "
            "[judges], or list the combination in skip.",
        )
    return found[0]


def _check_plan_names(study: StudyFile, plan: StudyPlan) -> None:
    """That a plan names what there is."""
    key = f"plans.{plan.name}"
    for name in plan.judge or []:
        if name not in study.judges:
            study.refuse(f"{key}.judge", _unknown_name("judge", name, list(study.judges)))
        if study.judges[name].held_out:
            study.refuse(
                f"{key}.judge", f"{name!r} is held out (held_out = true), so it is never trained on"
            )
    for name in plan.mitigation:
        if name != NO_MITIGATION and name not in study.mitigations:
            study.refuse(
                f"{key}.mitigation",
                _unknown_name("mitigation", name, [NO_MITIGATION, *study.mitigations]),
            )
    known = sorted({factor for judge in study.judges.values() for factor in judge.levels})
    for factor in plan.levels:
        if factor not in known:
            keys = [*known, *StudyPlan.model_fields]
            said = ", ".join(known) or "none"
            study.refuse(
                f"{key}.{factor}",
                f"no judge has a level of this name{suggest_name(factor, keys)} (levels: {said})",
            )
    for one in plan.skip:
        if not one or (other := [factor for factor in one if factor not in plan.factors]):
            said = f"{other[0]!r} is not listed by this plan" if one else "an entry is empty"
            study.refuse(f"{key}.skip", f"{said} (it lists {', '.join(plan.factors)})")


def _unknown_name(what: str, name: str, known: list[str]) -> str:
    there = ", ".join(known) or "none"
    return f"no {what} is called {name!r}{suggest_name(name, known)} (there are: {there})"


def _contains(part: Mapping[str, LevelValue], whole: Mapping[str, LevelValue]) -> bool:
    """Whether all of ``part`` is in ``whole``."""
    return all(key in whole and same_level(value, whole[key]) for key, value in part.items())


def _format_levels(levels: Mapping[str, LevelValue]) -> str:
    return ", ".join(f"{factor} = {_format_level(value)}" for factor, value in levels.items())


def _format_level(value: LevelValue) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def has_weight(grader: Any) -> bool:
    """Whether an entry of ``[[graders]]`` is more than watched."""
    return not isinstance(grader, dict) or grader.get("weight", 1.0) != 0


_Tables = dict[str, Any]

_JUDGE_KEYS = ("judge", "services.judge_url")
"""The keys that judges are there to change."""


@dataclass(frozen=True)
class Arm:
    """One training run: against ``judge``, with ``mitigation``, from ``seed``.

    ``levels`` are the judge's, and the mitigation. ``data``: the run file's tables; their
    relative paths start at ``beside``. ``declares``: the keys (or tables) of these in which it may
    differ from the other arms.
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

    @property
    def cell(self) -> tuple[str, str]:
        """What arms of different seeds have in common."""
        return self.judge, self.mitigation

    def run(self, where: str | None = None) -> RunFile:
        """The arm as a run; raises :class:`~adjudge.errors.ConfigError`."""
        return resolve_run_file(self.data, where=where or f"arm {self.name}", folder=self.beside)


def make_arms(study: StudyFile, folder: Path) -> list[Arm]:
    """All arms, those of a cell together; their policies and judges lie in ``folder``."""
    return [
        _make_arm(study, cell, seed, folder) for cell in make_cells(study) for seed in study.seeds
    ]


def _make_arm(study: StudyFile, cell: StudyCell, seed: int, folder: Path) -> Arm:
    judge, name = study.judges[cell.judge], f"{cell.judge}.{cell.mitigation}.seed-{seed}"
    own: _Tables = {
        "model": {"base": policy_folder(folder, seed), "label": name},
        "training": {"seed": seed, "warm_start_iterations": 0},
        "evaluation": {"kl": True},
    }
    tables = {"version": 1, "kind": "rl", **_cell_tables(study, cell, folder)}
    return Arm(
        name=name,
        judge=cell.judge,
        mitigation=cell.mitigation,
        seed=seed,
        levels={**judge.levels, "mitigation": cell.mitigation},
        bias=dict(judge.bias),
        plans=cell.plans,
        data=merge_tables(tables, own),
        beside=study.folder,
        declares=_declared_keys(study, cell),
    )


def _cell_tables(study: StudyFile, cell: StudyCell, folder: Path) -> _Tables:
    """The shared tables under the judge's under the mitigation's; their graders one after another.

    The gold is what the sentinel watches, unless the file says otherwise.
    """
    base, judge = base_tables(study), judge_tables(study, cell.judge, folder)
    mitigation = study.known_mitigation(cell.mitigation)
    tables = merge_tables(merge_tables(base, {"judge": {}, **judge}), mitigation)
    graders = [*judge.get("graders", []), *mitigation.get("graders", []), *shared_graders(study)]
    if any(one["name"] == study.gold for one in shared_graders(study)):
        tables = merge_tables({"sentinel": {"gold": study.gold}}, tables)
    return {**tables, "graders": graders}


def judge_tables(study: StudyFile, name: str, folder: Path) -> _Tables:
    """What a judge changes in a run file."""
    judge = study.judges[name]
    if judge.train is not None:
        return {"judge": {"folder": judge_folder(folder, name)}}
    if judge.members is not None:
        folders = [judge_folder(folder, one) for one in judge.members]
        return {"judge": {"folder": folders, "aggregate": judge.aggregate}}
    return judge.run or {}


def shared_graders(study: StudyFile) -> list[_Tables]:
    """The graders that all arms watch."""
    graders: list[_Tables] = study.run.get("graders", [])
    return graders


def base_tables(study: StudyFile) -> _Tables:
    """The tables that all arms share, graders apart."""
    return {key: value for key, value in study.run.items() if key != "graders"}


def _declared_keys(study: StudyFile, cell: StudyCell) -> tuple[str, ...]:
    """The keys that an arm's judge and mitigation are there to change."""
    mitigation = study.known_mitigation(cell.mitigation)
    judge = study.judges[cell.judge].run or {}
    graders = [*judge.get("graders", []), *mitigation.get("graders", [])]
    names = (dotted_key("graders", str(one["name"])) for one in graders)
    return (*_JUDGE_KEYS, *names, *changed_keys(mitigation))


def get_table(tables: Mapping[str, Any], name: str) -> _Tables:
    """A table by its name; empty where it is missing."""
    found = tables.get(name)
    return dict(found) if isinstance(found, Mapping) else {}
