"""What a study file must fulfil beyond the types of its keys; each complaint names the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.graders.registry import build_grader, grader_class, parameters
from adjudge.rewards.spec import GraderEntry
from adjudge.studies.matrix.arms import arms_of, table_of, watched
from adjudge.studies.matrix.given import counts
from adjudge.studies.matrix.keys import changed, covers, leaves
from adjudge.studies.matrix.planned import judges_of
from adjudge.studies.matrix.tables import GIVEN, NONE
from adjudge.studies.matrix.trained import POLICY, policy_tables, training_tables
from adjudge.training.planning.foreseen import foreseen_spec
from adjudge.training.planning.honoured import check_honoured
from adjudge.training.runfile import RunFile

if TYPE_CHECKING:
    from adjudge.studies.matrix.file import StudyFile

__all__ = ["check_study", "warnings_of"]

_NOWHERE = Path("@")
"""The study's folder as long as nobody said."""
_LEAST_SEEDS = 3
_OF_STUDY = {
    "training.seed": "seeds are the study's (seeds = [...])",
    "evaluation.kl": "it is always measured",
}
_OF_ALL = ("version", "kind", "backend", "model", "evaluation", "sentinel", "logging", "compute",
           "topology", "training.seed", "training.warm_start_iterations", "rollout.dataset",
           "rollout.env_name", "rollout.env_config", "services.task_url")  # fmt: skip
"""Keys of a run that no mitigation changes: the task, the first policy, how it is measured."""
_OF_JUDGES = ("graders", "judge", "services.judge_url")


def check_study(study: StudyFile) -> None:
    """Raise :class:`ConfigError` for the first thing that does not fit.

    Every arm is made for the first seed, and is a run that can be planned. What only a real run
    needs (keys, data sets, torch) is not looked for.
    """
    _check_seeds(study)
    _check_run(study)
    _check_judges(study)
    _check_mitigations(study)
    _check_gold(study)
    _check_plans(study)
    _check_given(study)
    _check_names(study)
    _check_runs(study)


def warnings_of(study: StudyFile) -> list[str]:
    """What a study could show and does not."""
    cells = study.cells
    used = {name for cell in cells for name in (cell.judge, *_members(study, cell.judge))}
    return [
        *_untested(study),
        *_unmeasured(study),
        *_twins(study),
        *_paid_besides(study),
        *(
            f"judge {name!r} is trained on by no plan and no panel; say held_out = true if that is "
            "meant"
            for name, judge in study.judges.items()
            if name not in used and not judge.held_out
        ),
        *(
            f"mitigation {name!r} is in no plan"
            for name in study.mitigations
            if all(cell.mitigation != name for cell in cells)
        ),
    ]


def _paid_besides(study: StudyFile) -> Iterator[str]:
    """Of arms that are paid for more than their judge's word."""
    judges = [arm.data.get("judge") or {} for arm in study.arms(Path())]
    if any(one.get("combine_mode", "weighted_sum") != "replace" for one in judges):
        yield (
            "arms learn from what the environment pays, too (judge.combine_mode is not 'replace'); "
            "the proxy that is scored is the judge's word alone"
        )


def _untested(study: StudyFile) -> Iterator[str]:
    """Of arms that nobody scores who is held out, or stems from another plan."""
    held_out = {name for name, judge in study.judges.items() if judge.held_out} - {study.gold}
    by_judge: dict[str, set[str]] = {}
    for cell in study.cells:
        by_judge.setdefault(cell.judge, set()).update(cell.plans)
    alone = []
    for name, plans in by_judge.items():
        others = {one for one, of in by_judge.items() if not of & plans} | held_out
        if not others - {name, *_members(study, name)}:
            alone.append(name)
    if alone:
        names = ", ".join(map(repr, alone))
        yield (
            f"no held-out judge, and none of another plan, scores what {names} trained: a gain may "
            "be theirs alone; add a judge with held_out = true"
        )


def _unmeasured(study: StudyFile) -> Iterator[str]:
    """Of settings that leave too little to look at."""
    if not study.plans:
        return
    every = table_of(study.run, "evaluation").get("every_n_iters", 0)
    if not every:
        yield (
            "run.evaluation.every_n_iters is 0: only the first and the last policy are looked at, "
            "which shows no over-optimisation"
        )
    if table_of(study.run, "sentinel").get("action") == "stop":
        yield "run.sentinel.action is 'stop': an arm ends at its first alarm, others go on"


def _twins(study: StudyFile) -> Iterator[str]:
    """Of trained judges that differ in their names alone."""
    known: dict[str, str] = {}
    for name, judge in study.training_files(_NOWHERE).items():
        said = judge.model_dump_json(exclude={"model": {"label"}})
        if said in known:
            yield (
                f"judges {known[said]!r} and {name!r} are trained alike: one judge of two names; "
                "change what is meant to differ, or the seed"
            )
        known.setdefault(said, name)


def _members(study: StudyFile, name: str) -> list[str]:
    judge = study.judges.get(name)
    return [] if judge is None else judge.members or []


def _check_seeds(study: StudyFile) -> None:
    if len(study.seeds) < _LEAST_SEEDS and not study.pilot:
        study.refuse(
            "seeds",
            f"found {len(study.seeds)}, must be {_LEAST_SEEDS} at least: fewer show no spread; or "
            "say pilot = true, and the report is stamped as one",
        )
    if not study.plans and not study.given:
        study.refuse("plans", "there is nothing to train: add [[plans]] or [[arms]]")


def _check_run(study: StudyFile) -> None:
    if study.plans and not isinstance(study.run.get("model"), Mapping):
        study.refuse("run.model", "is required by [[plans]]: the run file that their arms share")
    for key, _ in leaves(study.run):
        if key in _OF_STUDY:
            study.refuse(f"run.{key}", f"{_OF_STUDY[key]}; leave it out")
    _check_tables(study, "run", study.run)
    for one in study.run.get("graders", []):
        if counts(one):
            study.refuse(
                f"run.graders.{one['name']}",
                f"has weight {one.get('weight', 1.0)}; all arms watch the graders of [run], so "
                "give it weight = 0.0; what counts is a judge's or a mitigation's",
            )
        if _asks(study, one):
            study.refuse(
                f"run.graders.{one['name']}",
                "asks the judge, and each arm has another: it would not be one measure; make it a "
                "judge with held_out = true, which scores all arms",
            )


def _asks(study: StudyFile, grader: dict[str, Any]) -> bool:
    try:
        found = parameters(grader_class(grader["type"], study.folder))
    except ConfigError as error:
        raise ConfigError(f"{study.where}: run.graders.{grader['name']}: {error}") from None
    return any(one.is_judge for one in found)


def _check_tables(study: StudyFile, key: str, tables: Mapping[str, Any]) -> None:
    """That tables are tables, and ``graders`` a list of them with names and types."""
    for name, value in tables.items():
        if name not in _NO_TABLES and not isinstance(value, Mapping):
            study.refuse(f"{key}.{name}", "must be a table of a run file")
    graders = tables.get("graders", [])
    if not isinstance(graders, list):
        study.refuse(f"{key}.graders", "must be a list of tables")
    for number, one in enumerate(graders):
        if not (isinstance(one, dict) and all(isinstance(one.get(k), str) for k in _GRADER)):
            study.refuse(f"{key}.graders.{number}", "must be a table with a name and a type")


_GRADER = ("name", "type")
_NO_TABLES = ("version", "kind", "backend", "graders")


def _check_judges(study: StudyFile) -> None:
    if POLICY in study.judges:
        study.refuse(
            f"judges.{POLICY}", f"'@{POLICY}' is the first policy; choose another name for a judge"
        )
    trained = [name for name, judge in study.judges.items() if judge.train is not None]
    for name, judge in study.judges.items():
        key = f"judges.{name}"
        for member in judge.members or []:
            if member not in trained:
                said = "is not trained here" if member in study.judges else "is no judge here"
                there = ", ".join(trained) or "none"
                study.refuse(
                    f"{key}.members",
                    f"{member!r} {said}{nearest(member, trained)} (trained judges: {there})",
                )
        if judge.run is not None:
            _check_tables(study, f"{key}.run", judge.run)
            for said, value in leaves(judge.run):
                if not any(covers(one, said) for one in _OF_JUDGES):
                    study.refuse(
                        f"{key}.run.{said}",
                        "is not a judge's to change, or arms would differ in more than their judge "
                        f"(allowed: {', '.join(_OF_JUDGES)}); make it a mitigation",
                    )
                if said == "judge.enabled" and value is False:
                    study.refuse(f"{key}.run.judge.enabled", "is false: that is no judge")


def _check_mitigations(study: StudyFile) -> None:
    if NONE in study.mitigations:
        study.refuse(f"mitigations.{NONE}", "is there already and changes nothing; rename it")
    for name, mitigation in study.mitigations.items():
        key = f"mitigations.{name}.run"
        _check_tables(study, key, mitigation.run)
        keys = list(changed(mitigation.run))
        if not keys and not mitigation.run.get("graders"):
            study.refuse(key, f"changes nothing; that is {NONE!r}")
        for one in keys:
            if any(covers(other, one) for other in _OF_ALL):
                study.refuse(
                    f"{key}.{one}",
                    "is the same for all arms: first policy, task and measuring are no mitigation; "
                    "set it under [run]",
                )


def _check_gold(study: StudyFile) -> None:
    if study.gold in study.judges:
        if not study.judges[study.gold].held_out:
            study.refuse("gold", f"judge {study.gold!r} is trained on; say held_out = true")
        return
    names = [str(one.get("name")) for one in watched(study)]
    if study.gold not in names:
        known = [*names, *(name for name, one in study.judges.items() if one.held_out)]
        study.refuse(
            "gold",
            f"no grader of [[run.graders]] and no held-out judge is called {study.gold!r}"
            f"{nearest(study.gold, known)} (there are: {', '.join(known) or 'none'})",
        )


def _check_plans(study: StudyFile) -> None:
    for number, plan in enumerate(study.plans):
        key = f"plans.{plan.name}"
        if any(plan.name == one.name for one in study.plans[:number]):
            study.refuse(key, "there are two plans of this name")
        if study.given and plan.name == GIVEN:
            study.refuse(key, "is what the plan of [[arms]] is called; choose another name")
        judges = judges_of(study, plan)
        if plan.x is None or plan.x == "mitigation":
            continue
        for name in judges:
            judge = study.judges[name]
            known = [*judge.bias, *judge.levels]
            if plan.x not in known:
                there = ", ".join([*known, "mitigation"])
                study.refuse(
                    f"{key}.x",
                    f"judge {name!r} has no bias or level {plan.x!r}{nearest(plan.x, known)} "
                    f"(it has: {there}); write one that is 0 down, too",
                )


def _check_given(study: StudyFile) -> None:
    """That given arms begin with the policy that the others begin with."""
    begins = {
        name: (one.data["model"]["base"], one.run.training.warm_start_iterations)
        for name, one in study.given_arms.items()
    }
    if study.plans:
        first = study.first_run(study.seeds[0])
        base = study.folder / first.model.base
        shared = str(base.absolute()) if base.is_dir() else first.model.base
        begins = {"[run]": (shared, first.training.warm_start_iterations), **begins}
    (named, of_first), *others = begins.items()
    for name, found in others:
        for key, one, two in zip(_BEGINS, of_first, found, strict=True):
            if one != two:
                raise ConfigError(
                    f"{study.where}: arms {named} and {name} differ in {key} ({one}, {two}): all "
                    "arms of a study begin with the same policy"
                )
    for name, given in study.given_arms.items():
        if not given.run.judge.enabled and given.run.rollout.env_grader is None:
            study.refuse(
                f"arms.{name}", "judge.enabled is false, so that nobody judges its answers"
            )


_BEGINS = ("model.base", "training.warm_start_iterations")


def _check_names(study: StudyFile) -> None:
    """That folders and scores of two things are not one, on any file system."""
    given = dict.fromkeys(one.judge for one in study.given_arms.values())
    gold = [] if study.gold in study.judges else [study.gold]
    _check_distinct(study, "judges", [*gold, *study.judges, *given])
    _check_distinct(study, "arms", [arm.name for arm in arms_of(study, _NOWHERE)])


def _check_distinct(study: StudyFile, key: str, names: Iterable[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if name.casefold() in known:
            study.refuse(
                key, f"{known[name.casefold()]!r} and {name!r} are one name here; rename one"
            )
        known[name.casefold()] = name


def _check_runs(study: StudyFile) -> None:
    """That all that is to be run could be."""
    if (policy := policy_tables(study, study.seeds[0])) is not None:
        policy.file()
    training_tables(study, _NOWHERE)
    for arm in arms_of(study, _NOWHERE):
        if arm.seed != study.seeds[0]:
            continue
        names = [str(one.get("name")) for one in arm.data.get("graders", [])]
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            study.refuse(f"arm {arm.name}", f"two graders are called {twice[0]!r}; rename one")
        run = arm.run(f"{study.where}: arm {arm.name}")
        if run.backend != "trl":
            run.refuse("backend", f"is {run.backend!r}; a study trains here, by 'trl'")
        check_honoured(run, approximate=False)
        _check_graders(run)
    for name in study.scorers:
        _check_graders(study.scorer_run(name, _NOWHERE))
    study.first_run(study.seeds[0])


def _check_graders(run: RunFile) -> None:
    """That graders can be made; those of a judge that is yet to be trained are its own."""
    if not run.judge.folders:
        foreseen_spec(run).build_graders()
        return
    for one in map(GraderEntry.model_validate, run.graders):
        where = f"{run.where}: graders.{one.name}"
        build_grader(one.type, one.name, one.model_extra or {}, where=where, folder=run.folder)
