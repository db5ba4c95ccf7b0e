"""A whole study: its dry run, the run, and its results gathered from the folder.

The run makes first policies, judges, arms, everybody's scores, analysis and report. Results are
gathered once arms are trained and scored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import JudgeAuthError, JudgeUnavailable
from adjudge.version import describe_writer
from adjudge_lab.rl.plan import plan_run
from adjudge_lab.studies.analysis import analyse
from adjudge_lab.studies.cells import Arm, make_arms
from adjudge_lab.studies.gathering import arm_source, best_of_source, gather_study_result
from adjudge_lab.studies.manifest import StudyFolder, check_arms, make_manifest
from adjudge_lab.studies.prerequisites import (
    FileTables,
    judge_training_waves,
    policy_tables,
    scorer_tables,
)
from adjudge_lab.studies.report import write_figures, write_study_report
from adjudge_lab.studies.results import write_study_rows
from adjudge_lab.studies.study import Study, find_study_warnings
from adjudge_lab.studies.study_file import StudyJudge, StudyPlan
from adjudge_lab.studies.tasks import (
    PanelMember,
    TaskOutcome,
    TaskPool,
    make_first_policy,
    sample_answers,
    score_sources,
    start_workers,
    train_arm,
    train_study_judge,
)


def plan_study(study: Study, folder: Path) -> dict[str, Any]:
    """The runs of ``study`` as they would be done in ``folder``, as plain data; nothing is written.

    ``plans``: of each its cells. ``judges``: what each is and whether ``folder`` has it trained
    (``None``: it needs no training). ``runs``: how many of each kind and how many are done.
    ``calls``: what the arms would ask of judges that are asked over a network, at most; ``None``
    where that cannot be counted.

    Raises :class:`~adjudge.errors.ConfigError` for arms that would be confounded.
    """
    arms = make_arms(study, folder)
    check_arms(study, arms)
    judges = [_judge_overview(name, judge, folder) for name, judge in study.judges.items()]
    return {
        "label": study.label,
        "folder": str(folder),
        "pilot": study.pilot,
        "seeds": list(study.seeds),
        "gold": study.gold,
        "plans": [_plan_overview(one, arms) for one in study.plans],
        "judges": judges,
        "held_out": [one["name"] for one in judges if one["held_out"]],
        "arms": [
            {
                "name": arm.name,
                "plans": list(arm.plans),
                "done": _is_done(folder / "arms" / arm.name),
            }
            for arm in arms
        ],
        "runs": {
            "policies": _count_done([_has_policy(study, folder, seed) for seed in study.seeds]),
            "judges": _count_done([one["trained"] for one in judges if one["trained"] is not None]),
            "arms": _count_done([_is_done(folder / "arms" / arm.name) for arm in arms]),
        },
        "calls": _count_calls(study, arms),
        "warnings": find_study_warnings(study),
    }


def _has_policy(study: Study, folder: Path, seed: int) -> bool:
    """A policy that is trained has a folder before it is done."""
    own = folder / "policies" / f"seed-{seed}"
    return own.is_dir() if study.policy is None else _is_done(own)


def _is_done(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def _count_done(done: Sequence[bool]) -> dict[str, int]:
    return {"in_all": len(done), "done": sum(done)}


def _plan_overview(plan: StudyPlan, arms: Sequence[Arm]) -> dict[str, Any]:
    own = [arm for arm in arms if plan.name in arm.plans]
    return {
        "name": plan.name,
        "title": plan.title,
        "question": plan.question,
        "x": plan.x,
        "cells": [list(cell) for cell in dict.fromkeys(arm.cell for arm in own)],
        "arms": len(own),
    }


def _judge_overview(name: str, judge: StudyJudge, folder: Path) -> dict[str, Any]:
    if judge.members is not None:
        how = f"panel of {', '.join(judge.members)} ({judge.aggregate})"
    elif judge.run is not None:
        types = [str(one.get("type")) for one in judge.run.get("graders", [])]
        how = ", ".join(types) or ", ".join(judge.run)
    else:
        how = judge.train if isinstance(judge.train, str) else "trained here"
    return {
        "name": name,
        "how": how,
        "levels": dict(judge.levels),
        "bias": dict(judge.bias),
        "held_out": judge.held_out,
        "trained": None if judge.train is None else _is_done(folder / "judges" / name),
    }


def _count_calls(study: Study, arms: Sequence[Arm]) -> float | None:
    """One arm of each cell is looked at: its seeds ask the same number of questions."""
    cells: dict[tuple[str, str], list[Arm]] = {}
    for arm in arms:
        cells.setdefault((arm.judge, arm.mitigation), []).append(arm)
    total = 0.0
    for of in cells.values():
        calls = _arm_calls(study, of[0])
        if calls is None:
            return None
        total += calls * len(of)
    return total


def _arm_calls(study: Study, arm: Arm) -> float | None:
    if (arm.data.get("judge") or {}).get("folder"):
        return 0.0  # a trained judge answers in the run itself
    return plan_run(arm.run(f"{study.where}: arm {arm.name}")).in_all.get("calls", 0.0)


_OUTAGE_ERRORS = (JudgeUnavailable.__name__, JudgeAuthError.__name__)


@dataclass
class StudyJob:
    """A study's file and a folder to run it into.

    ``jobs``: how many processes work beside each other; by default as many as there are cores where
    the policy is tiny, else one. ``on_phase(what, done, total)`` hears of ``policies``, ``judges``,
    ``arms``, ``sampling``, ``scoring`` and ``analysis``; ``on_arm(name, stage, done, total)`` of
    the steps of each task. ``summary`` is what :func:`run_study` found, the content of
    ``summary.json``.
    """

    study: Study
    source: Path
    folder: Path
    jobs: int | None = None
    on_phase: Callable[[str, int, int], None] = lambda *_: None
    on_arm: Callable[[str, str, int, int], None] = lambda *_: None
    summary: dict[str, Any] = field(default_factory=dict)


def run_study(job: StudyJob) -> dict[str, Any]:
    """Do the study into ``job.folder``, or go on with one that was interrupted; the summary.

    An arm that fails for want of its judge is left out of the analysis and named in ``failed``; a
    judge that cannot be reached to score is named in ``unscored``, and what it did not score is
    missing. The same call tries both again. What the folder holds is on the page about studies.

    Raises :class:`~adjudge.errors.ConfigError` for arms that would be confounded,
    :class:`~adjudge.errors.RunFolderError` for the folder of another study, and what training a
    judge or a first policy raises.
    """
    started = time.perf_counter()
    folder = job.folder.resolve()
    arms = make_arms(job.study, folder)
    check_arms(job.study, arms)
    manifest = make_manifest(job.study, arms, folder)
    with StudyFolder(folder, job.source, manifest) as kept:
        run = _StudyRun(job, kept, arms)
        with start_workers(job.jobs or _default_jobs(job.study, len(arms)), job.on_arm) as pool:
            run.prepare(pool)
            manifest = make_manifest(job.study, arms, folder)  # now with the judges' cards
            kept.write_manifest(manifest)
            run.train(pool)
            run.score(pool)
        job.summary = run.finish(manifest, started)
    return job.summary


def _default_jobs(study: Study, arms: int) -> int:
    return max(1, min(arms, os.cpu_count() or 1)) if study.is_tiny else 1


class _StudyRun:
    """The state of one study on its way."""

    def __init__(self, job: StudyJob, folder: StudyFolder, arms: list[Arm]) -> None:
        self._job, self._study, self._folder, self._arms = job, job.study, folder, arms
        self._failed: dict[str, str] = {}
        self._unscored: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._beside = str(job.study.folder.resolve())

    def prepare(self, pool: TaskPool) -> None:
        """First policies and judges; each that is there already is not made again."""
        study, folder = self._study, self._folder.path
        with self._phase("policies"):
            task = make_first_policy if study.policy is None else train_study_judge
            policies = {f"seed-{seed}": policy_tables(study, seed) for seed in study.seeds}
            self._all(pool, "policies", task, policies)
        with self._phase("judges"):
            for wave in judge_training_waves(study, folder):
                self._all(pool, "judges", train_study_judge, wave)

    def train(self, pool: TaskPool) -> None:
        """The arms; each that is there already is checked, not made again."""
        with self._phase("arms"):
            found = self._run(pool, "arms", train_arm, dict(map(self._arm_task, self._arms)))
        self._failed = {name: one.error for name, one in found.items() if one.error is not None}
        if len(self._failed) == len(self._arms):
            name, first = next(iter(found.items()))
            first._replace(name=f"no arm could be trained; the first, {name}").raise_error()

    def _arm_task(self, arm: Arm) -> tuple[str, tuple[str, ...]]:
        folder = self._folder.path
        file = self._folder.write_toml(f"arms/{arm.name}.toml", arm.data)
        own, policy = folder / "arms" / arm.name, folder / "policies" / f"seed-{arm.seed}"
        return arm.name, (str(file), str(arm.beside), str(own), str(policy))

    def score(self, pool: TaskPool) -> None:
        """Many answers of the first policies; then every judge and the gold on all answers."""
        with self._phase("sampling"):
            _raise_first_error(self._run(pool, "sampling", sample_answers, self._sampling()))
        with self._phase("scoring"):
            alone, panels = self._scoring()
            found = self._run(pool, "scoring", score_sources, alone)
            found |= self._run(pool, "scoring", score_sources, panels)
        down = {name: one for name, one in found.items() if one.kind in _OUTAGE_ERRORS}
        down.pop(self._study.gold, None)  # without it there is nothing to report
        _raise_first_error({name: one for name, one in found.items() if name not in down})
        self._unscored = {name: str(one.error) for name, one in down.items()}

    def _sampling(self) -> dict[str, tuple[Any, ...]]:
        found = {}
        for seed in self._study.best_of_seeds:
            source = best_of_source(self._folder.path, seed)
            arm = next(one for one in self._arms if one.seed == seed)
            file = self._folder.path / "arms" / f"{arm.name}.toml"
            best = self._study.best_of
            if not source.path.exists():
                found[source.name] = (
                    str(file), str(arm.beside), str(source.path), best.prompts, best.answers,
                )  # fmt: skip
        return found

    def _scoring(self) -> tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]:
        """What scores alone, and the panels, which begin with what their members have said."""
        study, folder = self._study, self._folder.path
        sources = [arm_source(folder, arm) for arm in self._arms if arm.name not in self._failed]
        sources += [best_of_source(folder, seed) for seed in study.best_of_seeds]
        alone, panels = {}, {}
        for name in study.scorers:
            scorer = scorer_tables(study, name, folder)
            self._folder.write_toml(f"scores/{name}.toml", scorer.data)
            own = _panel_member(folder, name)
            wanted = (own.file, str(scorer.beside), sources, own.target)
            judge = study.judges.get(name)
            if judge is None or judge.members is None:
                alone[name] = wanted
            else:
                panels[name] = (*wanted, [_panel_member(folder, one) for one in judge.members])
        return alone, panels

    def finish(self, manifest: Mapping[str, Any], started: float) -> dict[str, Any]:
        """Analyse, and write what people read; the summary."""
        study, folder = self._study, self._folder
        self._job.on_phase("analysis", 0, 1)
        result = gather_study_result(
            folder.path,
            self._arms,
            study.roles(),
            study.gold,
            best_of_seeds=study.best_of_seeds,
            failed=self._failed,
            unscored=self._unscored,
        )
        plans = [_plan_table(plan, self._arms) for plan in study.plans]
        numbers = analyse(result, plans, seed=study.seeds[0])
        summary = {
            **describe_writer(),
            "kind": "study",
            "label": study.label or self._job.source.stem,
            "pilot": study.pilot,
            "tiny": study.is_tiny,
            "seeds": study.seeds,
            "warnings": [
                *find_study_warnings(study),
                *folder.warnings,
                *map(_unscored_warning, self._unscored.items()),
            ],
            "manifest": manifest,
            **numbers,
            "unscored": self._unscored,
            "plans": [{**of, **more} for of, more in zip(plans, numbers["plans"], strict=True)],
            "tidy": write_study_rows(folder.path, result).name,
            "seconds": {**self._seconds, "total": round(time.perf_counter() - started, 1)},
        }
        folder.write_json("result.json", msgspec.to_builtins(result, str_keys=True))
        write_study_report(folder.path / "report.html", summary, result)
        write_figures(folder.path / "figures", summary, result)
        folder.write_json("summary.json", summary)
        self._job.on_phase("analysis", 1, 1)
        return summary

    def _all(
        self, pool: TaskPool, phase: str, task: Callable[..., Any], wanted: Mapping[str, FileTables]
    ) -> None:
        """Train ``wanted``, each into its folder of ``phase``; nothing goes on without."""
        tasks = {}
        for name, one in ((f"{phase}/{own}", one) for own, one in wanted.items()):
            file = self._folder.write_toml(f"{name}.toml", one.data)
            tasks[name] = (str(file), self._beside, str(self._folder.path / name))
        _raise_first_error(self._run(pool, phase, task, tasks))

    def _run(
        self, pool: TaskPool, phase: str, task: Callable[..., Any], tasks: Mapping[str, Any]
    ) -> dict[str, TaskOutcome]:
        done = 0
        self._job.on_phase(phase, done, len(tasks))

        def ended(_: TaskOutcome) -> None:
            nonlocal done
            done += 1
            self._job.on_phase(phase, done, len(tasks))

        return pool.run(task, tasks, ended)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = round(time.perf_counter() - started, 1)


def _panel_member(folder: Path, name: str) -> PanelMember:
    """Where a judge's run file and scores are."""
    scores = folder / "scores"
    return PanelMember(str(scores / f"{name}.toml"), str(scores / f"{name}.jsonl"))


def _unscored_warning(unscored: tuple[str, str]) -> str:
    name, why = unscored
    return f"judge {name!r} did not score all answers; those scores are missing: {why}"


def _raise_first_error(found: Mapping[str, TaskOutcome]) -> None:
    for outcome in found.values():
        outcome.raise_error()


def _plan_table(plan: StudyPlan, arms: Sequence[Arm]) -> dict[str, Any]:
    return {
        "name": plan.name,
        "title": plan.title,
        "note": plan.note,
        "question": plan.question,
        "x": plan.x,
        "arms": [arm.name for arm in arms if plan.name in arm.plans],
    }
