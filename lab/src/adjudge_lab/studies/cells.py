"""The cells of a study and their arms: plans are crossed, and each arm is a run file.

A cell is a judge that is trained on with a mitigation, for some plans. Arms may also be given as
whole run files, the form in which existing experiments come.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import dotted_key, load_toml, suggest_name
from adjudge.errors import ConfigError
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import load_run_file, resolve_run_file
from adjudge_lab.studies.study_file import (
    NO_MITIGATION,
    RUN_FILE_PLAN,
    LevelValue,
    RunFileArm,
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
    """Arms that differ in nothing but the seed; ``given`` names the run file that it is."""

    judge: str
    mitigation: str
    plans: tuple[str, ...]
    run_file: str | None = None


def make_cells(study: StudyFile) -> list[StudyCell]:
    """The cells of all plans in their order, each once, then the given arms.

    Raises :class:`~adjudge.errors.ConfigError` naming plan and combination.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for plan in study.plans:
        for judge, mitigation in _cross_plan(study, plan):
            found.setdefault((judge, mitigation), []).append(plan.name)
    cells = [
        StudyCell(judge, mitigation, tuple(plans)) for (judge, mitigation), plans in found.items()
    ]
    given = [
        StudyCell(one.judge, one.mitigation, (RUN_FILE_PLAN,), name)
        for name, one in study.run_file_arms.items()
    ]
    return [*cells, *given]


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
        study.refuse(f"plans.{plan.name}", _judge_problem(study, wanted, fitting, found))
    return found[0]


def _judge_problem(
    study: StudyFile, wanted: LevelCombination, fitting: list[str], found: list[str]
) -> str:
    """What is wrong with a combination that ``found`` not one judge of those ``fitting``."""
    if found:
        names = ", ".join(map(repr, found))
        return (
            f"{len(found)} judges have {_format_levels(wanted)} ({names}). List another level in "
            "which they differ, or name them in judge."
        )
    if fitting:
        return f"{fitting[0]!r} has {_format_levels(wanted)}, but is held out (held_out = true)"
    return (
        f"no judge has {_format_levels(wanted)}{_nearest_judge(study, wanted)}. Add one under "
        "[judges], or list the combination in skip."
    )


def _nearest_judge(study: StudyFile, wanted: LevelCombination) -> str:
    """What there is that differs from ``wanted`` in the fewest levels."""
    shared = {
        name: sum(_contains({factor: value}, judge.levels) for factor, value in wanted.items())
        for name, judge in study.judges.items()
        if not judge.held_out
    }
    if not shared or not max(shared.values()):
        return ""
    name = max(shared, key=lambda one: shared[one])
    there = {
        factor: study.judges[name].levels[factor]
        for factor in wanted
        if factor in study.judges[name].levels
    }
    return f" (nearest: {name!r} with {_format_levels(there)})"


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


_PATH_KEYS = (
    ("rollout", "dataset"),
    ("judge", "rubric_dir"),
    ("judge", "folder"),
    ("model", "base"),
    ("model", "custom_chat_template"),
)


def read_run_file_arms(study: StudyFile) -> dict[str, RunFileArm]:
    """The given arms by name; raises :class:`~adjudge.errors.ConfigError` naming the file."""
    found: dict[str, RunFileArm] = {}
    judges: dict[bytes, str] = {}
    for table in study.run_file_tables:
        if table.name in found:
            study.refuse(f"arms.{table.name}", "there are two arms of this name")
        path = study.folder / table.file
        try:
            run = load_run_file(path)
        except ConfigError as error:
            raise ConfigError(f"{study.where}: arms.{table.name}: {error}") from None
        judge = judges.setdefault(_reward_identity(run), table.name)
        mitigation = NO_MITIGATION if judge == table.name else table.name
        data = _make_paths_absolute(load_toml(path, keep_references=True), run)
        found[table.name] = RunFileArm(table, data, run, judge, mitigation)
    return found


def _make_paths_absolute(data: dict[str, Any], run: RunFile) -> dict[str, Any]:
    """The paths that a file's tables name, so that they lead there from the study's folder."""
    named: dict[str, Any] = {}
    for table, key in _PATH_KEYS:
        value = data.get(table, {}).get(key)
        places = [value] if isinstance(value, str) else value or []
        if key == "rubric_dir" and run.rubric_file is not None:
            places = [run.judge.rubric_dir]
        if places and all((run.folder / one).exists() for one in places):
            found = [str((run.folder / one).absolute()) for one in places]
            named = merge_tables(
                named, {table: {key: found if isinstance(value, list) else found[0]}}
            )
    return merge_tables(data, named)


def has_weight(grader: Any) -> bool:
    """Whether an entry of ``[[graders]]`` is more than watched."""
    return not isinstance(grader, dict) or grader.get("weight", 1.0) != 0


def _reward_identity(run: RunFile) -> bytes:
    """What makes a run's reward, the policy apart."""
    graders = [one for one in run.graders if has_weight(one)]
    said = [str(run.folder.resolve()), run.judge.model_dump(), graders, run.services.judge_url]
    return msgspec.json.encode(said, order="deterministic", enc_hook=str)


_Tables = dict[str, Any]

_JUDGE_KEYS = ("judge", "services.judge_url")
"""The keys that judges are there to change."""


@dataclass(frozen=True)
class Arm:
    """One training run: against ``judge``, with ``mitigation``, from ``seed``.

    ``levels`` are the judge's, and the mitigation. ``data``: the run file's tables; their
    relative paths start at ``beside``. ``declares``: the keys (or tables) of these in which it may
    differ from the other arms. ``given``: the name under ``[[arms]]`` of the run file that it is.
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
    run_file: str | None = None

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
    of_given = None if cell.run_file is None else study.run_file_arms[cell.run_file]
    named = f"{cell.judge}.{cell.mitigation}" if cell.run_file is None else cell.run_file
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
        levels, bias, declares = judge.levels, judge.bias, _declared_keys(study, cell)
    return Arm(
        name=name,
        judge=cell.judge,
        mitigation=cell.mitigation,
        seed=seed,
        levels={**levels, "mitigation": cell.mitigation},
        bias=dict(bias),
        plans=cell.plans,
        data=merge_tables({"version": 1, "kind": "rl", **tables}, own),
        beside=beside,
        declares=declares,
        run_file=cell.run_file,
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
    """The graders that all arms watch; of given arms alone, those that the first one watches."""
    graders: list[_Tables] = study.run.get("graders", [])
    if not graders and not study.plans and (first := first_run_file_arm(study)) is not None:
        return [one for one in first.data.get("graders", []) if not has_weight(one)]
    return graders


def base_tables(study: StudyFile) -> _Tables:
    """The tables that all arms share, graders apart.

    A study of given arms alone may leave them out; they are then the first arm's.
    """
    shared = {key: value for key, value in study.run.items() if key != "graders"}
    first = first_run_file_arm(study)
    if first is None or study.plans:
        return shared
    tables = {
        key: value for key, value in first.data.items() if key not in {"graders", "judge", "kind"}
    }
    if first.run.rollout.dataset is not None:
        dataset = str((first.run.folder / first.run.rollout.dataset).absolute())
        tables = merge_tables(tables, {"rollout": {"dataset": dataset}})
    services = {k: v for k, v in get_table(tables, "services").items() if k != "judge_url"}
    return merge_tables({**tables, "services": services}, shared)


def _declared_keys(study: StudyFile, cell: StudyCell) -> tuple[str, ...]:
    """The keys that an arm's judge and mitigation are there to change."""
    mitigation = study.known_mitigation(cell.mitigation)
    judge = study.judges[cell.judge].run or {}
    graders = [*judge.get("graders", []), *mitigation.get("graders", [])]
    names = (dotted_key("graders", str(one["name"])) for one in graders)
    return (*_JUDGE_KEYS, *names, *changed_keys(mitigation))


def first_run_file_arm(study: StudyFile) -> RunFileArm | None:
    """The first arm that is given as a run file."""
    return next(iter(study.run_file_arms.values()), None)


def get_table(tables: Mapping[str, Any], name: str) -> _Tables:
    """A table by its name; empty where it is missing."""
    found = tables.get(name)
    return dict(found) if isinstance(found, Mapping) else {}
