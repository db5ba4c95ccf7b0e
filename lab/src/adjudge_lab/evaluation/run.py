"""An evaluation in its folder: one or two policies on the same seeds, judged and compared.

The folder has every episode with its verdicts, appended as they come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from adjudge.engine.loop import run_blocking
from adjudge.errors import (
    PASSING_KINDS,
    REDRAW_KINDS,
    ConfigError,
    ErrorKind,
    JudgeUnavailable,
)
from adjudge.files import JsonlLog, iter_rows
from adjudge.runs.folder import RunFolder
from adjudge.runs.judge_calls import JudgeCallEstimate, estimate_run_calls
from adjudge.runs.spending import FolderSpending
from adjudge.text import encode_json
from adjudge.trainers.scoring import Scorer
from adjudge.types import GraderError, Usage
from adjudge.version import describe_writer
from adjudge_lab.environments import Episode, Task
from adjudge_lab.evaluation.report import write_evaluation_report
from adjudge_lab.evaluation.summary import summarise_evaluation
from adjudge_lab.evaluation.targets import EndpointPlayer, PolicyTarget, build_player
from adjudge_lab.rl.episodes import build_task, dry_run_samples
from adjudge_lab.rl.held_out import EvaluatedEpisode, evaluate_policy, judge_episodes
from adjudge_lab.rl.rewards import check_service_libraries, dry_run_spec, start_run_judge
from adjudge_lab.rl.run_folder import compute_run_digest
from adjudge_lab.rl.runfile import RunFile, RunJudgeTable

EPISODES_FILE = "episodes.jsonl"
_SPENT_FILE = "spent.jsonl"
_IDENTITY = {
    "models": "other models",
    "seeds": "other seeds",
    "judges": "other judges (--no-judges or not)",
    "settings": "another config",
}

KnownRows = dict[tuple[str, int], dict[str, Any]]
"""Rows of ``episodes.jsonl`` by model and seed; a later one replaces an earlier one."""


class EvaluationFolder(RunFolder):
    """``path``, claimed for what ``manifest`` says, or gone on with if it says the same."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        super().__init__(path, manifest, _IDENTITY, outputs=("rollouts.jsonl",))

    def _prepare(self) -> None:
        self._episodes = JsonlLog(self.path / EPISODES_FILE)
        self._spent = JsonlLog(self.path / _SPENT_FILE)

    def load_rows(self) -> KnownRows:
        """The episodes that are kept."""
        return {(row["model"], row["seed"]): row for row in _read_log(self._episodes)}

    def append_episode(self, model: str, one: EvaluatedEpisode) -> dict[str, Any]:
        """Append an episode; its row."""
        row = build_episode_row(model, one)
        self._episodes.append(row)
        decoded: dict[str, Any] = msgspec.json.decode(encode_json(row, str))
        return decoded

    def sort(self, models: Sequence[str], seeds: Sequence[int]) -> None:
        """Write the episodes again, one a model and seed, in this order."""
        known = self.load_rows()
        places = [(model, seed) for model in models for seed in seeds]
        self._episodes.rewrite(known[place] for place in places if place in known)

    def append_usage(self, model: str, usage: Mapping[str, Any]) -> None:
        """Note what a policy's replies consumed in this invocation."""
        self._spent.append({"model": model, **usage})

    def total_usage(self, model: str) -> dict[str, int]:
        """What a policy's replies consumed in all invocations; ``{}`` where it is unknown."""
        total: dict[str, int] = {}
        for row in _read_log(self._spent):
            if row.pop("model") == model:
                for name, count in row.items():
                    total[name] = total.get(name, 0) + count
        return total


def build_episode_row(model: str, one: EvaluatedEpisode) -> dict[str, Any]:
    """The row of ``episodes.jsonl``: all of the episode, and all that was said of it."""
    episode, row = one.episode, one.row()
    del row["step"]
    return {
        "model": model,
        **row,
        "error": one.error and {"kind": str(one.error.kind), "message": one.error.error},
        "details": one.details,
        "usage": one.usage,
        "env_name": episode.env_name,
        "messages": episode.messages,
        "turn_rewards": episode.rewards,
        "done": episode.done,
        "info": episode.info,
        "columns": episode.columns,
    }


def read_episode(row: Mapping[str, Any]) -> Episode:
    """The episode in a row, to be judged again."""
    error = row["error"]
    return Episode(
        row["env_name"],
        row["seed"],
        row["messages"],
        rewards=row["turn_rewards"],
        done=row["done"],
        info=row["info"],
        columns=row["columns"],
        error=error and GraderError("rollout", ErrorKind(error["kind"]), error["message"]),
    )


def _read_log(log: JsonlLog) -> Iterator[dict[str, Any]]:
    """Its rows; a damaged one is passed over: that episode is played again."""
    return iter_rows(log.path, dict[str, Any], damaged=[])


_RETRIED_KINDS = PASSING_KINDS | REDRAW_KINDS


@dataclass
class EvaluationJob:
    """What is to be evaluated, and where it goes.

    ``targets`` are one policy, or it and a baseline. ``judged = False``: no judge is asked.
    ``rows[i]`` are the episodes of ``targets[i]`` in the order of ``seeds``; ``summary`` is
    their result. ``on_progress(stage, done, total)`` hears of each episode.
    """

    run: RunFile
    source: Path
    folder: Path
    targets: Sequence[PolicyTarget]
    seeds: Sequence[int]
    judged: bool = True
    on_progress: Callable[[str, int, int], None] = lambda *_: None
    rows: list[list[dict[str, Any]]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


def evaluate_targets(job: EvaluationJob) -> dict[str, Any]:
    """Play, judge and compare; the summary.

    A folder that holds the same evaluation is gone on with: its episodes are kept, and only what
    failed in them is done again. Raises :class:`~adjudge.errors.RunFolderError` for any other
    folder, :class:`~adjudge.errors.ConfigError` for what cannot be evaluated,
    :class:`~adjudge.errors.JudgeUnavailable` and :class:`~adjudge.errors.JudgeAuthError` where
    judges are away, or no episode could be played because the policy is.
    """
    started = time.perf_counter()
    run = _evaluation_run(job)
    job.judged = run.judge.enabled
    check_service_libraries(run)
    with (
        EvaluationFolder(job.folder, _build_manifest(job)) as folder,
        FolderSpending(job.folder) as spending,
        start_run_judge(run, job.folder) as (spec, _),
    ):
        scorer, task = Scorer(spec.at_step(run.training.steps)), build_task(run, spec)
        _check_seeds(job, task)
        for target in job.targets:
            _PolicyEvaluation(job, run, folder, task, scorer, target).go()
        names = [target.name for target in job.targets]
        folder.sort(names, job.seeds)
        known = folder.load_rows()
        job.rows = [[known[name, seed] for seed in job.seeds] for name in names]
        spent = [folder.total_usage(name) for name in names]
        job.summary = {
            **describe_writer(),
            "config": str(job.source),
            **summarise_evaluation(run, spec, job.targets, job.rows, spent, judged=job.judged),
            "seconds": round(time.perf_counter() - started, 1),
            "endpoints": (endpoints := spending.read()),
            "spending": spending.summarise(endpoints),
        }
        folder.write_json("summary.json", job.summary)
        write_evaluation_report(job.folder / "report.html", job.summary, job.rows)
    _refuse_unplayed(job)
    return job.summary


def estimate_evaluation(job: EvaluationJob) -> dict[str, JudgeCallEstimate]:
    """What judges would be asked about each policy, by its name: episodes of full length, judged.

    Nobody is asked, and nothing is played or written.
    """
    run = _evaluation_run(job)
    found = JudgeCallEstimate("outcome")
    if run.judge.enabled:
        spec = dry_run_spec(run)
        found = estimate_run_calls(spec, *dry_run_samples(run, spec, None), len(job.seeds))
    return {target.name: found for target in job.targets}


class _PolicyEvaluation:
    """One policy on the seeds."""

    def __init__(
        self,
        job: EvaluationJob,
        run: RunFile,
        folder: EvaluationFolder,
        task: Task,
        scorer: Scorer,
        target: PolicyTarget,
    ) -> None:
        self._job, self._run, self._folder = job, run, folder
        self._task, self._scorer, self._target = task, scorer, target
        self._done = 0
        self._used: dict[int, Usage] = {}

    def go(self) -> None:
        """Play what was not played, judge again what judges failed at."""
        known, name = self._folder.load_rows(), self._target.name
        self._used = {
            seed: msgspec.convert(row["usage"], Usage)
            for (model, seed), row in known.items()
            if model == name and row["usage"]
        }
        todo = [seed for seed in self._job.seeds if _is_unplayed(known, name, seed)]
        again = [
            read_episode(row)
            for seed in self._job.seeds
            if seed not in todo and _is_unjudged(row := known[name, seed])
        ]
        self._report_progress(len(self._job.seeds) - len(todo) - len(again))
        if again:
            for one in run_blocking(judge_episodes(self._scorer, again)):
                self._keep(one)
        if todo:
            self._play(todo)

    def _play(self, seeds: Sequence[int]) -> None:
        rollout = self._run.rollout
        most = min(rollout.episodes_per_batch or len(seeds), rollout.max_concurrent_rollouts)
        player = build_player(self._target, self._run, seeds)
        try:
            evaluate_policy(
                self._task, seeds, player, self._scorer, most=most, on_episode=self._keep
            )
        finally:
            if isinstance(player, EndpointPlayer) and player.calls:
                used = player.usage
                tokens = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
                self._folder.append_usage(self._target.name, {"calls": player.calls, **tokens})

    def _keep(self, one: EvaluatedEpisode) -> None:
        """Keep an episode; what was paid for it before is paid still."""
        if (used := self._used.get(one.seed)) is not None:
            one.usage = used if one.usage is None else used + one.usage
        self._folder.append_episode(self._target.name, one)
        self._report_progress(1)

    def _report_progress(self, count: int) -> None:
        self._done += count
        self._job.on_progress(self._target.name, self._done, len(self._job.seeds))


def _is_unplayed(known: KnownRows, name: str, seed: int) -> bool:
    row = known.get((name, seed))
    return row is None or row["error"] is not None


def _is_unjudged(row: Mapping[str, Any]) -> bool:
    """Whether the judges failed in a way that asking again may cure."""
    missing = row["missing"]
    return missing is not None and missing["kind"] in _RETRIED_KINDS


def _evaluation_run(job: EvaluationJob) -> RunFile:
    """The run as it is evaluated: every episode judged, whatever share training judges."""
    run = job.run
    if job.judged and run.judge.enabled:
        judge = run.judge.model_copy(update={"sample_rate": 1.0})
        return run.model_copy(update={"judge": judge})
    if run.rollout.dataset is not None and run.rollout.env_grader is None:
        run.refuse(
            "rollout.env_grader",
            "is missing, so the dataset gives no reward, and without judges there is nothing "
            "to evaluate by. Name a grader (a rule), or evaluate with judges.",
        )
    services = run.services.model_copy(update={"judge_url": None})
    return run.model_copy(update={"judge": RunJudgeTable(enabled=False), "services": services})


def _build_manifest(job: EvaluationJob) -> dict[str, Any]:
    cards: Sequence[Path | None] = job.run.judge_cards or [None]
    return {
        "kind": "eval",
        "label": " against ".join(target.name for target in job.targets),
        "models": [[target.name, target.identity] for target in job.targets],
        "seeds": list(job.seeds),
        "judges": job.judged,
        "settings": compute_run_digest(job.source, job.run.rubric_file, *cards),
    }


def _check_seeds(job: EvaluationJob, task: Task) -> None:
    if task.size is not None and (beyond := [one for one in job.seeds if one >= task.size]):
        raise ConfigError(
            f"--seeds: a seed is not a row of {task.name} (found {beyond[0]}; allowed: 0 to "
            f"{task.size - 1:,})"
        )


def _refuse_unplayed(job: EvaluationJob) -> None:
    """Where no episode at all was played, there is no evaluation."""
    rows = [row for own in job.rows for row in own]
    errors = [row["error"] for row in rows if row["error"] is not None]
    if not errors or len(errors) < len(rows):
        gone = [row["missing"]["kind"] for row in rows if row["missing"] and not row["error"]]
        if job.judged and len(gone) + len(errors) == len(rows) and {*gone} <= {*PASSING_KINDS}:
            raise JudgeUnavailable("no judge answered, so no episode has a judge's score")
        return
    said = f"no episode could be played: {errors[0]['kind']}: {errors[0]['message']}"
    if {error["kind"] for error in errors} <= {*PASSING_KINDS, ErrorKind.AUTH}:
        raise JudgeUnavailable(said)
    raise ConfigError(said)
