"""A whole study: first policies, judges, arms, everybody's scores, analysis, report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.errors import JudgeAuthError, JudgeUnavailable
from adjudge.studies.matrix.analysis import analyse
from adjudge.studies.matrix.arms import Arm
from adjudge.studies.matrix.file import StudyFile
from adjudge.studies.matrix.folder import StudyFolder
from adjudge.studies.matrix.gathering import arm_source, best_of_source, gather_result
from adjudge.studies.matrix.identity import check_arms
from adjudge.studies.matrix.manifest import make_manifest
from adjudge.studies.matrix.page import write_figures, write_study_report
from adjudge.studies.matrix.scorers import scorer_tables
from adjudge.studies.matrix.scoring import Member, score_sources
from adjudge.studies.matrix.tables import GIVEN, Plan
from adjudge.studies.matrix.tasks import make_policy, sample_answers, train_arm, train_judge
from adjudge.studies.matrix.tidy import write_tidy
from adjudge.studies.matrix.workers import Outcome, Workers, workers

__all__ = ["StudyJob", "run_study"]

_OUTAGES = (JudgeUnavailable.__name__, JudgeAuthError.__name__)


@dataclass
class StudyJob:
    """A study's file and a folder to run it into.

    ``jobs``: how many processes work beside each other; by default as many as there are cores where
    the policy is tiny, else one. ``on_phase(what, done, total)`` hears of ``policies``, ``judges``,
    ``arms``, ``sampling``, ``scoring`` and ``analysis``; ``on_arm(name, stage, done, total)`` of
    the steps of each task. ``summary`` is what :func:`run_study` found, the content of
    ``summary.json``.
    """

    study: StudyFile
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
    arms = job.study.arms(folder)
    check_arms(job.study, arms)
    manifest = make_manifest(job.study, arms, folder)
    with StudyFolder(folder, job.source, manifest) as kept:
        run = _Run(job, kept, arms)
        with workers(job.jobs or _jobs(job.study, len(arms)), job.on_arm) as pool:
            run.prepare(pool)
            manifest = make_manifest(job.study, arms, folder)  # now with the judges' cards
            kept.describe(manifest)
            run.train(pool)
            run.score(pool)
        job.summary = run.finish(manifest, started)
    return job.summary


def _jobs(study: StudyFile, arms: int) -> int:
    return max(1, min(arms, os.cpu_count() or 1)) if study.is_tiny else 1


class _Run:
    """The state of one study on its way."""

    def __init__(self, job: StudyJob, folder: StudyFolder, arms: list[Arm]) -> None:
        self._job, self._study, self._folder, self._arms = job, job.study, folder, arms
        self._failed: dict[str, str] = {}
        self._unscored: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._beside = str(job.study.folder.resolve())

    def prepare(self, pool: Workers) -> None:
        """First policies and judges; each that is there already is not made again."""
        study, folder = self._study, self._folder.path
        with self._phase("policies"):
            task = make_policy if study.policy is None else train_judge
            policies = {f"policies/seed-{seed}": study.policy_data(seed) for seed in study.seeds}
            self._all(pool, "policies", task, policies)
        with self._phase("judges"):
            for wave in study.training_waves(folder):
                self._all(pool, "judges", train_judge, wave)

    def train(self, pool: Workers) -> None:
        """The arms; each that is there already is checked, not made again."""
        with self._phase("arms"):
            found = self._run(pool, "arms", train_arm, dict(map(self._arm_task, self._arms)))
        self._failed = {name: one.error for name, one in found.items() if one.error is not None}
        if len(self._failed) == len(self._arms):
            name, first = next(iter(found.items()))
            first._replace(name=f"no arm could be trained; the first, {name}").check()

    def _arm_task(self, arm: Arm) -> tuple[str, tuple[str, ...]]:
        folder = self._folder.path
        file = self._folder.write_toml(f"arms/{arm.name}.toml", arm.data)
        own, policy = folder / "arms" / arm.name, folder / "policies" / f"seed-{arm.seed}"
        return arm.name, (str(file), str(arm.beside), str(own), str(policy))

    def score(self, pool: Workers) -> None:
        """Many answers of the first policies; then every judge and the gold on all answers."""
        with self._phase("sampling"):
            _unfailed(self._run(pool, "sampling", sample_answers, self._sampling()))
        with self._phase("scoring"):
            alone, panels = self._scoring()
            found = self._run(pool, "scoring", score_sources, alone)
            found |= self._run(pool, "scoring", score_sources, panels)
        down = {name: one for name, one in found.items() if one.kind in _OUTAGES}
        down.pop(self._study.gold, None)  # without it there is nothing to report
        _unfailed({name: one for name, one in found.items() if name not in down})
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
            own = _scored(folder, name)
            wanted = (own.file, str(scorer.beside), sources, own.target)
            judge = study.judges.get(name)
            if judge is None or judge.members is None:
                alone[name] = wanted
            else:
                panels[name] = (*wanted, [_scored(folder, one) for one in judge.members])
        return alone, panels

    def finish(self, manifest: Mapping[str, Any], started: float) -> dict[str, Any]:
        """Analyse, and write what people read; the summary."""
        study, folder = self._study, self._folder
        self._job.on_phase("analysis", 0, 1)
        result = gather_result(
            folder.path,
            self._arms,
            study.roles(),
            study.gold,
            best_of_seeds=study.best_of_seeds,
            failed=self._failed,
            unscored=self._unscored,
        )
        plans = [_plan(plan, self._arms) for plan in [*study.plans, *_of_given(self._arms)]]
        numbers = analyse(result, plans, seed=study.seeds[0])
        summary = {
            "adjudge": adjudge.__version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "kind": "study",
            "label": study.label or self._job.source.stem,
            "pilot": study.pilot,
            "tiny": study.is_tiny,
            "seeds": study.seeds,
            "warnings": [*study.warnings, *folder.warnings, *map(_said, self._unscored.items())],
            "manifest": manifest,
            **numbers,
            "unscored": self._unscored,
            "plans": [{**of, **told} for of, told in zip(plans, numbers["plans"], strict=True)],
            "tidy": write_tidy(folder.path, result).name,
            "seconds": {**self._seconds, "total": round(time.perf_counter() - started, 1)},
        }
        folder.write_json("result.json", msgspec.to_builtins(result, str_keys=True))
        write_study_report(folder.path / "report.html", summary, result)
        write_figures(folder.path / "figures", summary, result)
        folder.write_json("summary.json", summary)
        self._job.on_phase("analysis", 1, 1)
        return summary

    def _all(
        self, pool: Workers, phase: str, task: Callable[..., Any], wanted: Mapping[str, Any]
    ) -> None:
        """Train what ``wanted`` says, by the folder to train it into; nothing goes on without."""
        tasks = {}
        for name, data in wanted.items():
            file = self._folder.write_toml(f"{name}.toml", data)
            tasks[name] = (str(file), self._beside, str(self._folder.path / name))
        _unfailed(self._run(pool, phase, task, tasks))

    def _run(
        self, pool: Workers, phase: str, task: Callable[..., Any], tasks: Mapping[str, Any]
    ) -> dict[str, Outcome]:
        done = 0
        self._job.on_phase(phase, done, len(tasks))

        def ended(_: Outcome) -> None:
            nonlocal done
            done += 1
            self._job.on_phase(phase, done, len(tasks))

        return pool.run(task, tasks, ended)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = round(time.perf_counter() - started, 1)


def _scored(folder: Path, name: str) -> Member:
    """Where a judge's run file and scores are."""
    scores = folder / "scores"
    return Member(str(scores / f"{name}.toml"), str(scores / f"{name}.jsonl"))


def _said(unscored: tuple[str, str]) -> str:
    name, why = unscored
    return f"judge {name!r} did not score all answers; those scores are missing: {why}"


def _unfailed(found: Mapping[str, Outcome]) -> None:
    for outcome in found.values():
        outcome.check()


def _of_given(arms: Sequence[Arm]) -> list[Plan]:
    """The plan of the arms that are given as run files, where there are any."""
    if not any(GIVEN in arm.plans for arm in arms):
        return []
    told = {"name": GIVEN, "title": "Arms given as run files", "judge": [arms[0].judge]}
    return [Plan.model_validate(told)]


def _plan(plan: Plan, arms: Sequence[Arm]) -> dict[str, Any]:
    return {
        "name": plan.name,
        "title": plan.title,
        "note": plan.note,
        "question": plan.question,
        "x": plan.x,
        "arms": [arm.name for arm in arms if plan.name in arm.plans],
    }
