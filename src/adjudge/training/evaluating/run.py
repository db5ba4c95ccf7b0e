"""A whole evaluation: one or two policies on the same seeds, judged, compared, written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.engine.loop import run_blocking
from adjudge.environments import Task
from adjudge.errors import PASSING_KINDS, REDRAW_KINDS, ConfigError, ErrorKind, JudgeUnavailable
from adjudge.judges.calls import CallCount
from adjudge.trainers.scoring import Scorer
from adjudge.training.evaluating.evaluation import Evaluated, evaluate, judge_episodes
from adjudge.training.evaluating.folder import EvalFolder, Known, episode_of, open_folder
from adjudge.training.evaluating.report import write_eval_report
from adjudge.training.evaluating.summary import summarise_eval
from adjudge.training.evaluating.targets import SeededEndpoint, Target, player_for
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import JudgeTable
from adjudge.training.served import check_service, listening_judge
from adjudge.training.state import digest_of
from adjudge.training.tasks import build_task
from adjudge.types import Usage

__all__ = ["EvalJob", "evaluate_targets"]

_AGAIN = PASSING_KINDS | REDRAW_KINDS


@dataclass
class EvalJob:
    """What is to be evaluated, and where it goes.

    ``targets`` are one policy, or it and a baseline. ``judged = False``: nobody asks a judge.
    ``rows[i]`` are the episodes of ``targets[i]`` in the order of ``seeds``; ``summary`` is what
    they come to. ``on_progress(stage, done, total)`` hears of each episode.
    """

    run: RunFile
    source: Path
    folder: Path
    targets: Sequence[Target]
    seeds: Sequence[int]
    judged: bool = True
    on_progress: Callable[[str, int, int], None] = lambda *_: None
    rows: list[list[dict[str, Any]]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


def evaluate_targets(job: EvalJob) -> dict[str, Any]:
    """Play, judge and compare; the summary.

    A folder that holds the same evaluation is gone on with: its episodes are kept, and only what
    failed in them is done again. Raises :class:`~adjudge.errors.RunFolderError` for any other
    folder, :class:`~adjudge.errors.ConfigError` for what cannot be evaluated,
    :class:`~adjudge.errors.JudgeUnavailable` and :class:`~adjudge.errors.JudgeAuthError` where
    judges are away, or no episode could be played because the policy is.
    """
    started = time.perf_counter()
    run = _as_evaluated(job)
    job.judged = run.judge.enabled
    check_service(run)
    calls = run_blocking(_count())
    with (
        open_folder(job.folder, _manifest(job)) as folder,
        listening_judge(run, job.folder) as (spec, _),
    ):
        scorer, task = Scorer(spec), build_task(run, spec)
        _check_seeds(job, task)
        for target in job.targets:
            _Evaluation(job, run, folder, task, scorer, target).go()
        names = [target.name for target in job.targets]
        folder.sort(names, job.seeds)
        known = folder.known()
        job.rows = [[known[name, seed] for seed in job.seeds] for name in names]
        spent = [folder.spent(name) for name in names]
        job.summary = {
            "adjudge": adjudge.__version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": str(job.source),
            **summarise_eval(run, spec, job.targets, job.rows, spent, judged=job.judged),
            "seconds": round(time.perf_counter() - started, 1),
            "endpoints": run_blocking(_table(calls)),
        }
        folder.write_json("summary.json", job.summary)
        write_eval_report(job.folder / "report.html", job.summary, job.rows)
    _refuse_silence(job)
    return job.summary


class _Evaluation:
    """One policy on the seeds."""

    def __init__(
        self,
        job: EvalJob,
        run: RunFile,
        folder: EvalFolder,
        task: Task,
        scorer: Scorer,
        target: Target,
    ) -> None:
        self._job, self._run, self._folder = job, run, folder
        self._task, self._scorer, self._target = task, scorer, target
        self._done = 0
        self._used: dict[int, Usage] = {}

    def go(self) -> None:
        """Play what was not played, judge again what judges failed at."""
        known, name = self._folder.known(), self._target.name
        self._used = {
            seed: msgspec.convert(row["usage"], Usage)
            for (model, seed), row in known.items()
            if model == name and row["usage"]
        }
        todo = [seed for seed in self._job.seeds if _unplayed(known, name, seed)]
        again = [
            episode_of(row)
            for seed in self._job.seeds
            if seed not in todo and _unjudged(row := known[name, seed])
        ]
        self._heard(len(self._job.seeds) - len(todo) - len(again))
        if again:
            for one in run_blocking(judge_episodes(self._scorer, again)):
                self._keep(one)
        if todo:
            self._play(todo)

    def _play(self, seeds: Sequence[int]) -> None:
        rollout = self._run.rollout
        most = min(rollout.episodes_per_batch or len(seeds), rollout.max_concurrent_rollouts)
        player = player_for(self._target, self._run, seeds)
        try:
            evaluate(self._task, seeds, player, self._scorer, most=most, on_episode=self._keep)
        finally:
            if isinstance(player, SeededEndpoint) and player.calls:
                used = player.usage
                tokens = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
                self._folder.spend(self._target.name, {"calls": player.calls, **tokens})

    def _keep(self, one: Evaluated) -> None:
        """Keep an episode; what was paid for it before is paid still."""
        if (used := self._used.get(one.seed)) is not None:
            one.usage = used if one.usage is None else used + one.usage
        self._folder.keep(self._target.name, one)
        self._heard(1)

    def _heard(self, count: int) -> None:
        self._done += count
        self._job.on_progress(self._target.name, self._done, len(self._job.seeds))


def _unplayed(known: Known, name: str, seed: int) -> bool:
    row = known.get((name, seed))
    return row is None or row["error"] is not None


def _unjudged(row: Mapping[str, Any]) -> bool:
    """Whether the judges failed in a way that asking again may cure."""
    missing = row["missing"]
    return missing is not None and missing["kind"] in _AGAIN


def _as_evaluated(job: EvalJob) -> RunFile:
    """The run as it is evaluated: every episode judged, whatever share training judges."""
    run = job.run
    if job.judged and run.judge.enabled:
        judge = run.judge.model_copy(update={"sample_rate": 1.0})
        return run.model_copy(update={"judge": judge})
    if run.rollout.dataset is not None and run.rollout.env_grader is None:
        run.refuse(
            "rollout.env_grader",
            "is not there, so the dataset pays nothing, and without judges there is nothing to "
            "evaluate by",
        )
    services = run.services.model_copy(update={"judge_url": None})
    return run.model_copy(update={"judge": JudgeTable(enabled=False), "services": services})


def _manifest(job: EvalJob) -> dict[str, Any]:
    cards: Sequence[Path | None] = job.run.judge_cards or [None]
    return {
        "kind": "eval",
        "adjudge": adjudge.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "label": " against ".join(target.name for target in job.targets),
        "models": [[target.name, target.identity] for target in job.targets],
        "seeds": list(job.seeds),
        "judges": job.judged,
        "settings": digest_of(job.source, job.run.rubric_file, *cards),
    }


def _check_seeds(job: EvalJob, task: Task) -> None:
    if task.size is not None and (beyond := [one for one in job.seeds if one >= task.size]):
        raise ConfigError(
            f"--seeds: {beyond[0]} is beyond {task.name}, which has {task.size:,} rows: seeds go "
            f"from 0 to {task.size - 1}"
        )


def _refuse_silence(job: EvalJob) -> None:
    """Where no episode at all was played, there is no evaluation."""
    rows = [row for own in job.rows for row in own]
    errors = [row["error"] for row in rows if row["error"] is not None]
    if not errors or len(errors) < len(rows):
        gone = [row["missing"]["kind"] for row in rows if row["missing"] and not row["error"]]
        if job.judged and len(gone) + len(errors) == len(rows) and {*gone} <= {*PASSING_KINDS}:
            raise JudgeUnavailable("no judge answered: nothing was learned about judges")
        return
    said = f"no episode could be played: {errors[0]['kind']}: {errors[0]['message']}"
    if {error["kind"] for error in errors} <= {*PASSING_KINDS, ErrorKind.AUTH}:
        raise JudgeUnavailable(said)
    raise ConfigError(said)


async def _count() -> CallCount:
    return CallCount()


async def _table(calls: CallCount) -> list[dict[str, Any]]:
    return calls.table()
