"""A study file (``kind = "study"``), resolved and checked: what it trains, what it cannot show.

Checks are of what a file must fulfil beyond the types of its keys; each complaint names the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from adjudge.config import flatten, suggest_name
from adjudge.graders.registry import build_grader, list_parameters, load_grader_class
from adjudge.rewards.spec import GraderEntry
from adjudge_lab.rl.backend_checks import check_backend_support, check_trains_here
from adjudge_lab.rl.rewards import dry_run_spec
from adjudge_lab.rl.runfile import TINY_BASE, RunFile
from adjudge_lab.studies.cells import (
    get_table,
    has_weight,
    make_arms,
    make_cells,
    plan_judges,
    shared_graders,
)
from adjudge_lab.studies.prerequisites import (
    POLICY_REFERENCE,
    judge_training_files,
    judge_training_waves,
    policy_tables,
    scorer_tables,
)
from adjudge_lab.studies.study_file import (
    NO_MITIGATION,
    StudyFile,
    changed_keys,
    covers_key,
)

_PLACEHOLDER_FOLDER = Path("@")
"""The study's folder as long as nobody said."""
_MIN_SEEDS = 3
_SET_BY_STUDY = {
    "training.seed": "seeds are the study's (seeds = [...])",
    "evaluation.kl": "it is always measured",
}
_SHARED_KEYS = ("version", "kind", "backend", "model", "evaluation", "sentinel", "logging",
                "compute", "topology", "training.seed", "training.warm_start_iterations",
                "rollout.dataset", "rollout.env_name", "rollout.env_config",
                "services.task_url")  # fmt: skip
"""Keys of a run that no mitigation changes: the task, the first policy, how it is measured."""
_JUDGE_KEYS = ("graders", "judge", "services.judge_url")


def find_study_warnings(study: StudyFile) -> list[str]:
    """What a study could show and does not."""
    cells = make_cells(study)
    used = {name for cell in cells for name in (cell.judge, *_members(study, cell.judge))}
    return [
        *_warn_no_held_out_judge(study),
        *_warn_few_evaluations(study),
        *_warn_equal_judges(study),
        *_warn_other_rewards(study),
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


def _warn_other_rewards(study: StudyFile) -> Iterator[str]:
    """Of arms that are paid for more than their judge's word."""
    judges = [arm.data.get("judge") or {} for arm in make_arms(study, Path())]
    if any(one.get("combine_mode", "weighted_sum") != "replace" for one in judges):
        yield (
            "arms learn from what the environment pays, too (judge.combine_mode is not 'replace'); "
            "the proxy that is scored is the judge's word alone"
        )


def _warn_no_held_out_judge(study: StudyFile) -> Iterator[str]:
    """Of arms that nobody scores who is held out, or stems from another plan."""
    held_out = {name for name, judge in study.judges.items() if judge.held_out} - {study.gold}
    by_judge: dict[str, set[str]] = {}
    for cell in make_cells(study):
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


def _warn_few_evaluations(study: StudyFile) -> Iterator[str]:
    """Of settings that leave too little to look at."""
    every = get_table(study.run, "evaluation").get("every_n_iters", 0)
    if not every:
        yield (
            "run.evaluation.every_n_iters is 0: only the first and the last policy are looked at, "
            "which shows no over-optimisation"
        )
    if get_table(study.run, "sentinel").get("action") == "stop":
        yield "run.sentinel.action is 'stop': an arm ends at its first alarm, others go on"


def _warn_equal_judges(study: StudyFile) -> Iterator[str]:
    """Of trained judges that differ in their names alone."""
    known: dict[str, str] = {}
    for name, judge in judge_training_files(study, _PLACEHOLDER_FOLDER).items():
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
    if len(study.seeds) < _MIN_SEEDS and not study.pilot:
        study.refuse(
            "seeds",
            f"must be at least {_MIN_SEEDS}, because fewer show no spread (found "
            f"{len(study.seeds)}). Add seeds, or set pilot = true, which marks the report as a "
            "pilot.",
        )


def _check_run(study: StudyFile) -> None:
    if not isinstance(study.run.get("model"), Mapping):
        study.refuse(
            "run.model", "is required by [[plans]]: their arms share the run file in [run]"
        )
    for key, _ in flatten(study.run):
        if key in _SET_BY_STUDY:
            study.refuse(f"run.{key}", f"{_SET_BY_STUDY[key]}. Leave it out.")
    _check_tables(study, "run", study.run)
    for one in study.run.get("graders", []):
        if has_weight(one):
            study.refuse(
                f"run.graders.{one['name']}",
                f"has weight {one.get('weight', 1.0)}, but all arms only watch the graders of "
                "[run]. Set weight = 0.0, and put graders that count into a judge or a mitigation.",
            )
        if _asks_judge(study, one):
            study.refuse(
                f"run.graders.{one['name']}",
                "asks the judge, which differs from arm to arm, so it would not be one measure. "
                "Make it a judge with held_out = true, which scores all arms.",
            )


def _asks_judge(study: StudyFile, grader: dict[str, Any]) -> bool:
    where = f"{study.where}: run.graders.{grader['name']}: type"
    found = list_parameters(load_grader_class(grader["type"], study.folder, where=where))
    return any(one.is_judge for one in found)


def _check_tables(study: StudyFile, key: str, tables: Mapping[str, Any]) -> None:
    """That tables are tables, and ``graders`` a list of them with names and types."""
    for name, value in tables.items():
        if name not in _PLAIN_KEYS and not isinstance(value, Mapping):
            study.refuse(f"{key}.{name}", "must be a table of a run file")
    graders = tables.get("graders", [])
    if not isinstance(graders, list):
        study.refuse(f"{key}.graders", "must be a list of tables")
    for number, one in enumerate(graders):
        if not (
            isinstance(one, dict)
            and all(isinstance(one.get(k), str) for k in _REQUIRED_GRADER_KEYS)
        ):
            study.refuse(f"{key}.graders.{number}", "must be a table with a name and a type")


_REQUIRED_GRADER_KEYS = ("name", "type")
_PLAIN_KEYS = ("version", "kind", "backend", "graders")


def _check_judges(study: StudyFile) -> None:
    if POLICY_REFERENCE in study.judges:
        study.refuse(
            f"judges.{POLICY_REFERENCE}",
            f"'@{POLICY_REFERENCE}' is the first policy. Choose another name for the judge.",
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
                    f"{member!r} {said}{suggest_name(member, trained)} (trained judges: {there})",
                )
        if judge.run is not None:
            _check_tables(study, f"{key}.run", judge.run)
            for said, value in flatten(judge.run):
                if not any(covers_key(one, said) for one in _JUDGE_KEYS):
                    study.refuse(
                        f"{key}.run.{said}",
                        "cannot be changed by a judge, because arms would differ in more than "
                        f"their judge (allowed: {', '.join(_JUDGE_KEYS)}). Make it a mitigation.",
                    )
                if said == "judge.enabled" and value is False:
                    study.refuse(f"{key}.run.judge.enabled", "is false, so there is no judge")


def _check_mitigations(study: StudyFile) -> None:
    if NO_MITIGATION in study.mitigations:
        study.refuse(
            f"mitigations.{NO_MITIGATION}",
            "is reserved for the arm without a mitigation. Rename it.",
        )
    for name, mitigation in study.mitigations.items():
        key = f"mitigations.{name}.run"
        _check_tables(study, key, mitigation.run)
        keys = list(changed_keys(mitigation.run))
        if not keys and not mitigation.run.get("graders"):
            study.refuse(key, f"changes nothing. Use {NO_MITIGATION!r} instead.")
        for one in keys:
            if any(covers_key(other, one) for other in _SHARED_KEYS):
                study.refuse(
                    f"{key}.{one}",
                    "must be the same for all arms, because a mitigation does not change the first "
                    "policy, the task or the measuring. Set it under [run].",
                )


def _check_gold(study: StudyFile) -> None:
    if study.gold in study.judges:
        if not study.judges[study.gold].held_out:
            study.refuse("gold", f"judge {study.gold!r} is trained on. Set held_out = true.")
        return
    names = [str(one.get("name")) for one in shared_graders(study)]
    if study.gold not in names:
        known = [*names, *(name for name, one in study.judges.items() if one.held_out)]
        study.refuse(
            "gold",
            f"no grader of [[run.graders]] and no held-out judge is called {study.gold!r}"
            f"{suggest_name(study.gold, known)} (there are: {', '.join(known) or 'none'})",
        )


def _check_plans(study: StudyFile) -> None:
    for number, plan in enumerate(study.plans):
        key = f"plans.{plan.name}"
        if any(plan.name == one.name for one in study.plans[:number]):
            study.refuse(key, "there are two plans of this name")
        judges = plan_judges(study, plan)
        if plan.x is None or plan.x == "mitigation":
            continue
        for name in judges:
            judge = study.judges[name]
            known = [*judge.bias, *judge.levels]
            if plan.x not in known:
                there = ", ".join([*known, "mitigation"])
                study.refuse(
                    f"{key}.x",
                    f"judge {name!r} has no bias or level {plan.x!r}{suggest_name(plan.x, known)} "
                    f"(it has: {there}). Write down a level that is 0, too.",
                )


def _check_names(study: StudyFile) -> None:
    """That folders and scores of two things are not one, on any file system."""
    gold = [] if study.gold in study.judges else [study.gold]
    _check_distinct(study, "judges", [*gold, *study.judges])
    _check_distinct(study, "arms", [arm.name for arm in make_arms(study, _PLACEHOLDER_FOLDER)])


def _check_distinct(study: StudyFile, key: str, names: Iterable[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if name.casefold() in known:
            study.refuse(
                key,
                f"{known[name.casefold()]!r} and {name!r} are one name here. Rename one of them.",
            )
        known[name.casefold()] = name


def _check_runs(study: StudyFile) -> None:
    """That all that is to be run could be."""
    first = policy_tables(study, study.seeds[0])
    first.run() if study.policy is None else first.training()
    judge_training_waves(study, _PLACEHOLDER_FOLDER)
    for arm in make_arms(study, _PLACEHOLDER_FOLDER):
        if arm.seed != study.seeds[0]:
            continue
        names = [str(one.get("name")) for one in arm.data.get("graders", [])]
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            study.refuse(
                f"arm {arm.name}", f"two graders are called {twice[0]!r}. Rename one of them."
            )
        run = arm.run(f"{study.where}: arm {arm.name}")
        check_trains_here(run, run.backend, "study")
        check_backend_support(run, approximate=False)
        _check_graders(run)
    for name in study.scorers:
        _check_graders(scorer_tables(study, name, _PLACEHOLDER_FOLDER).run())


def _check_graders(run: RunFile) -> None:
    """That graders can be made; those of a judge that is yet to be trained are its own."""
    if not run.judge.folders:
        dry_run_spec(run).build_graders()
        return
    for one in map(GraderEntry.model_validate, run.graders):
        where = f"{run.where}: graders.{one.name}"
        build_grader(one.type, one.name, one.model_extra or {}, where=where, folder=run.folder)


class Study(StudyFile):
    """A study file that was checked; :meth:`load` reads one.

    Every arm is made for the first seed, and is a run that can be planned. What only a real run
    needs (keys, data sets, torch) is not looked for.
    """

    def _check(self) -> None:
        _check_seeds(self)
        _check_run(self)
        _check_judges(self)
        _check_mitigations(self)
        _check_gold(self)
        _check_plans(self)
        _check_names(self)
        _check_runs(self)

    @property
    def is_tiny(self) -> bool:
        """Whether the policy is a small model made on the spot."""
        first = policy_tables(self, self.seeds[0])
        if self.policy is None:
            return first.run().model.base == TINY_BASE
        return first.training().model.path == TINY_BASE

    def roles(self) -> dict[str, dict[str, Any]]:
        """Of each scorer its ``levels``, ``bias`` and ``role``: training, held_out or gold.

        Those of a panel that is trained on are not held out. A panel has its ``members``, too.
        """
        known: dict[str, dict[str, Any]] = {self.gold: {"levels": {}, "bias": {}}}
        for name, judge in self.judges.items():
            known[name] = {"levels": judge.levels, "bias": judge.bias}
            if judge.members is not None:
                known[name]["members"] = list(judge.members)
        trained_on = {cell.judge for cell in make_cells(self)}
        trained_on |= {one for name in trained_on for one in known[name].get("members", [])}
        found = {}
        for name in self.scorers:
            role = "training" if name in trained_on else "held_out"
            found[name] = {**known[name], "role": "gold" if name == self.gold else role}
        return found
