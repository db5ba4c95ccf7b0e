"""A whole training run: first policy, reinforcement learning, evaluations, summary.

The summary has the first and the last values, and the sentinel's alarms.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from adjudge.checks.steps import StepAlarm, StepWatch
from adjudge.engine.loop import run_blocking
from adjudge.errors import ErrorKind
from adjudge.files import JsonlLog
from adjudge.judges.endpoint.connections import own_calls
from adjudge.judges.endpoint.settings import SpendCeiling
from adjudge.rewards.function import describe_settings
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.spending import FolderSpending
from adjudge.runs.story import describe_graders
from adjudge.stats import mean
from adjudge.trainers.scoring import Scorer
from adjudge.version import describe_writer
from adjudge_lab.environments import DatasetTask, Task
from adjudge_lab.rl.collector import RolloutCollector
from adjudge_lab.rl.comparison import (
    BASELINES_FILE,
    FixedScore,
    compare_held_out,
    read_held_out,
)
from adjudge_lab.rl.episodes import FixedAnswers, TaggedTask, build_task
from adjudge_lab.rl.held_out import (
    AnswerSample,
    EvaluatedEpisode,
    add_report,
    build_answer_sample,
    compute_divergences,
    evaluate_policy,
)
from adjudge_lab.rl.local_player import LocalPlayer
from adjudge_lab.rl.policy import (
    build_first_policy,
    load_policy,
    needs_hub,
    prepare_base_model,
    save_policy,
)
from adjudge_lab.rl.report import write_training_report
from adjudge_lab.rl.rewards import (
    ServedJudge,
    check_run_machine,
    check_service_libraries,
    fetch_service_calls,
    name_judge,
    start_run_judge,
)
from adjudge_lab.rl.rollouts import RolloutTokens, ScoredRollouts
from adjudge_lab.rl.run_folder import TrainingFolder
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.sinks import check_sink, open_sink
from adjudge_lab.rl.trainer_settings import MODEL_OPTIONS
from adjudge_lab.rl.trl_backend import (
    StepMetrics,
    TrainerHooks,
    grpo_settings,
    load_libraries,
    train_policy,
)


def summarise_training(
    run: RunFile,
    spec: RewardSpec,
    rows: Sequence[dict[str, float]],
    shown: Sequence[AnswerSample],
    checks: StepWatch,
) -> dict[str, Any]:
    """The summary of a run as plain data; ``None`` for what was never measured.

    ``first`` and ``last`` are means over the first and last tenth of the steps: the judge's reward
    (``reward``, scaled and combined as it was trained on), the environment's return (``env``), the
    judge's normalised score (``judge``), the gold, and the length in tokens. ``covered``: the
    shares of the rollouts that each of these means is of.
    """
    gold = run.sentinel.gold
    quantities = {
        "reward": "reward",
        "env": "env_return",
        "judge": "judge/outcome_mean",
        "gold": None if gold is None else f"judge/{gold}_score_mean",
        "length": "length",
        "zero_spread": "judge/zero_std_frac",
        "missing": "judge/missing_frac",
    }
    pairs = {
        name: (None, None) if key is None else first_and_last_means(rows, key)
        for name, key in quantities.items()
    }
    return {
        "label": run.model.label,
        "base": run.model.base,
        "variety": run.algorithm.variety,
        "env_name": run.env_name,
        "judge": name_judge(run),
        "seed": run.training.seed,
        "steps": len(rows),
        "steps_planned": run.training.steps,
        "batch_size": run.training.rollouts_per_step,
        "group_size": run.training.group_size,
        "graders": [
            {"name": one.name, "type": one.type, **one.model_dump(include={"weight"})}
            for one in spec.graders
        ],
        "gold": gold,
        "first": {name: pair[0] for name, pair in pairs.items()},
        "last": {name: pair[1] for name, pair in pairs.items()},
        "covered": {
            name: [mean([_covered(row, mean_of) for row in part]) for part in _ends(rows)]
            for name, mean_of in _MEANS.items()
        },
        "samples": {
            when: mean([one.reward for one in shown if one.when == when and one.reward is not None])
            for when in ("before", "after")
        },
        "sentinel": {
            "action": run.sentinel.action,
            "alarms": [msgspec.to_builtins(alarm) for alarm in checks.alarms],
            "unchecked": checks.unchecked,
        },
    }


def first_and_last_means(
    rows: Sequence[dict[str, float]], key: str
) -> tuple[float | None, float | None]:
    """Means of a metric over the first and the last tenth of the steps, at least one each.

    >>> first_and_last_means([{"x": float(i)} for i in range(30)], "x")
    (1.0, 28.0)
    """
    first, last = (mean([row[key] for row in part if key in row]) for part in _ends(rows))
    return first, last


def _ends(rows: Sequence[dict[str, float]]) -> tuple[Sequence[dict[str, float]], ...]:
    tenth = max(1, len(rows) // 10)
    return rows[:tenth], rows[-tenth:]


_MEANS = {"reward": "mean_return", "env": "env_return", "judge": "judge_return"}
_MEANS |= {"gold": "gold", "length": "length"}


def _covered(row: Mapping[str, float], name: str) -> float:
    """The share of a step's rollouts that a mean is of."""
    if "rollouts" not in row:  # of a trainer that says only what is missing
        return 1.0 - row.get("judge/missing_frac", 0.0)
    return row.get(f"rollouts/{name}", 0.0) / row["rollouts"]


_log = logging.getLogger("adjudge")


@dataclass
class TrainingJob:
    """A run file and a folder to run it into.

    ``on_progress(stage, done, total)`` hears of each step, ``on_row`` of its metrics, ``on_alarm``
    of each alarm at once, ``on_resume`` of the step after which an interrupted run goes on.
    ``summary`` is what :func:`train_run` found, the content of
    ``summary.json``.
    """

    run: RunFile
    source: Path
    folder: Path
    on_progress: Callable[[str, int, int], None] = lambda *_: None
    on_row: Callable[[int, StepMetrics], None] = lambda *_: None
    on_alarm: Callable[[StepAlarm], None] = lambda _: None
    on_resume: Callable[[int], None] = lambda _: None
    summary: dict[str, Any] = field(default_factory=dict)


def train_run(job: TrainingJob) -> dict[str, Any]:
    """Do the run and write its folder, or go on with one that was interrupted; the summary.

    What the folder holds is on the page about training. Raises
    :class:`~adjudge.errors.RunFolderError` for a folder of another run,
    :class:`~adjudge.errors.ConfigError` where TRL is not installed or this machine lacks what a
    grader needs (before anything is written), and what the reward raises.
    """
    started = time.perf_counter()
    check_run_machine(job.run)
    load_libraries(hub=needs_hub(job.run), one_thread=job.run.is_tiny)
    prepare_base_model(job.run)
    check_service_libraries(job.run)
    check_sink(job.run.logging.to, beside=job.run.folder)
    folder = TrainingFolder(job.folder, job.run, job.source)
    if folder.resumed:
        job.on_resume(folder.step)
    with (
        closing(folder),
        folder.releases_failed_start(),
        start_run_judge(job.run, job.folder) as (spec, service_url),
        own_calls(job.run.judge.budget_usd, None) as budget,
        TemporaryDirectory() as scratch,
    ):
        _TrainingRun(job, folder, spec, service_url, started, budget).go(scratch)
    return job.summary


class _TrainingRun:
    """The state of one run on its way."""

    def __init__(
        self,
        job: TrainingJob,
        folder: TrainingFolder,
        spec: RewardSpec,
        service_url: str | None,
        started: float,
        budget: SpendCeiling | None = None,
    ) -> None:
        self._job, self._spec, self._service_url = job, spec, service_url
        self._budget = budget
        self._run = job.run
        self._dir = folder
        self._journal = self._dir.journal(job.run.training.seed)
        graders = _build_graders(spec, budget)
        facts = describe_graders(spec, graders)
        for place, one in enumerate(facts):
            if isinstance(graders[one.name], ServedJudge):  # the judge is behind its service
                facts[place] = msgspec.structs.replace(one, asks_judge=True)
        folder.update_facts(graders=facts, settings=describe_settings(spec, graders))
        self._scorer = Scorer(spec, graders=graders, journal=self._journal)
        self._held_out_scorer = self._scorer
        if spec.schedules or spec.reward.sample_rate < 1:
            # Evaluations of one run compare: all is judged, with the weights of the last step.
            reward = spec.reward.model_copy(update={"sample_rate": 1.0})
            last = spec.at_step(job.run.training.steps).model_copy(update={"reward": reward})
            self._held_out_scorer = Scorer(last, graders=graders, journal=self._journal)
        self._report = None
        if job.run.report_spec_file is not None:
            report = RewardSpec.load(job.run.report_spec_file)
            self._report = Scorer(report, graders=_build_graders(report, budget))
        self._task: Task = build_task(job.run, spec)
        self._times: dict[str, float] = {"imports": time.perf_counter() - started}
        self._started = started
        self._shown = [
            msgspec.convert(row, AnswerSample) for row in self._dir.rows("samples.jsonl")
        ]
        self._rows: list[StepMetrics] = self._dir.rows("metrics.jsonl")
        self._kinds = self._known_kinds()
        sentinel = job.run.sentinel
        self._checks = StepWatch(sentinel.action, gold=sentinel.gold)
        for row in self._rows:  # what they saw before the run was interrupted
            self._checks.observe(int(row["step"]), row)
        self._reference: Any = None
        self._service_calls: list[dict[str, Any]] | None = None
        self._lacks_service_calls = False

    def go(self, scratch: str) -> None:
        """Train and write; ``scratch`` is a folder for what the warm start wants to keep."""
        with FolderSpending(self._dir.path, self._budget, combine=self._calls_made) as spending:
            self._go(scratch, spending)

    def _go(self, scratch: str, spending: FolderSpending) -> None:
        run = self._run
        self._sink = open_sink(
            run.logging.to,
            self._dir.path,
            label=run.model.label,
            config=grpo_settings(run),
            beside=run.folder,
        )
        with self._timed("warm_start"):
            model, tokenizer, losses = self._first(scratch)
        self._model = model
        self._player = LocalPlayer.for_run(run, model, tokenizer)
        if self._dir.step == 0:
            self._evaluate(0)
            self._evaluate_baselines()
        with self._timed("rl"):
            self._learn(model, tokenizer)
        steps = len(self._rows)
        if not run.evaluation.every_n_iters or steps % run.evaluation.every_n_iters:
            self._evaluate(steps)
        save_policy(model, tokenizer, self._dir.path / "model")
        self._finish(losses, spending)

    def _first(self, scratch: str) -> tuple[Any, Any, list[float]]:
        """The policy to go on with (at first that before any update); the warm start's losses.

        The policy is read from where it was kept, so that a resumed run begins with the same.
        """
        job, start = self._job, self._dir.first_policy_folder
        if not start.is_dir():
            total = self._run.training.warm_start_iterations
            model, tokenizer, losses = build_first_policy(
                self._run, scratch, lambda step: job.on_progress("warm start", step, total)
            )
            self._dir.write_json("state/warm_start.json", losses)
            save_policy(model, tokenizer, start)
            del model
        kept = self._dir.path / "state" / "warm_start.json"
        losses = msgspec.json.decode(kept.read_bytes()) if kept.exists() else []
        return *load_policy(self._dir.checkpoint or start, options=self._load_options), losses

    @property
    def _load_options(self) -> dict[str, Any] | None:
        return self._run.trl.get(MODEL_OPTIONS)

    def _learn(self, model: Any, tokenizer: Any) -> None:
        run, folder = self._run, self._dir
        store = folder.store
        collector = RolloutCollector(run, self._task, self._scorer, self._player, store=store)
        if self._checks.should_stop or folder.step >= run.training.steps:
            return
        train_policy(
            model,
            tokenizer,
            run,
            TrainerHooks(run, collector, on_settled=self._settled),
            folder=folder.first_policy_folder.parent,
            resume=folder.checkpoint,
            on_step=self._step,
            on_saved=folder.on_policy_saved,
        )

    def _settled(self, settled: ScoredRollouts) -> None:
        self._dir.append("rollouts.jsonl", settled.rows())

    def _step(self, step: int, row: StepMetrics) -> bool:
        row = {"step": step, **row}
        if "judge/missing_frac" in row:
            row = {**dict.fromkeys(self._kinds, 0.0), **row}
        self._rows.append(row)
        self._dir.append("metrics.jsonl", [row])
        self._sink.log(step, row)
        for alarm in self._checks.observe(step, row):
            self._dir.append("alarms.jsonl", [asdict(alarm)])
            self._job.on_alarm(alarm)
        self._job.on_row(step, row)
        self._job.on_progress("training", step, self._run.training.steps)
        every = self._run.evaluation.every_n_iters
        if every and step % every == 0:
            self._evaluate(step)
        return self._checks.should_stop

    def _evaluate(self, step: int) -> None:
        """Held-out episodes, judged by the run's own reward; not again after a resume."""
        run = self._run
        seeds = run.evaluation.held_out
        known = {row["seed"] for row in self._dir.rows("evaluation.jsonl") if row["step"] == step}
        if known >= set(seeds):
            return
        self._player.reseed("evaluation")  # the same draws each time
        done = 0

        def count_episode(_: EvaluatedEpisode) -> None:
            nonlocal done
            done += 1
            self._job.on_progress("evaluation", done, len(seeds))

        with self._timed("evaluation"):
            found = evaluate_policy(
                TaggedTask(self._task, f"evaluation {step}"), seeds, self._player,
                self._held_out_scorer, most=run.rollout.max_concurrent_rollouts, step=step,
                on_episode=count_episode,
            )  # fmt: skip
            self._measure(found)
            if self._report is not None:
                most = run.evaluation.report_instances
                run_blocking(add_report(self._report, found[:most], step=step))
        when = "before" if step == 0 else "after"
        self._shown = [one for one in self._shown if one.when != when]
        self._shown += [build_answer_sample(one, when) for one in found]
        # The samples first: rows that are there are not asked for again.
        JsonlLog(self._dir.path / "samples.jsonl").rewrite(self._shown)
        self._dir.write_evaluation(step, found)
        if (drift := self._last_drift()) is not None:
            self._sink.log(step, {"evaluation/kl": drift})

    def _evaluate_baselines(self) -> None:
        """The run's own reward of answers that the dataset has, on the held-out rows."""
        run, task = self._run, self._task
        if not run.evaluation.baselines or not isinstance(task, DatasetTask):
            return
        seeds = run.evaluation.held_out
        rows: list[FixedScore] = []
        for name in run.evaluation.baselines:
            answers = [str(task.begin(seed).columns[name]) for seed in seeds]
            found = evaluate_policy(
                TaggedTask(task, f"baseline {name}"), seeds, FixedAnswers(answers),
                self._held_out_scorer, most=run.rollout.max_concurrent_rollouts, step=0,
            )  # fmt: skip
            rows += [FixedScore(name=name, seed=one.seed, reward=one.reward) for one in found]
        JsonlLog(self._dir.path / BASELINES_FILE).rewrite(rows)

    def _compare(self) -> dict[str, Any] | None:
        """The held-out prompts after against before; ``None`` where there is one evaluation."""
        rows = read_held_out(self._dir.path, self._run.evaluation.split)
        return msgspec.to_builtins(compare_held_out(rows)) if rows else None

    def _measure(self, found: Sequence[EvaluatedEpisode]) -> None:
        """What the policy wrote in the episodes just played, and its divergence there."""
        player = self._player
        said = [player.conversations.get(place) for place in range(len(found))]
        texts = [RolloutTokens.of(one, player.end) for one in said]
        for one, spoke, text in zip(found, said, texts, strict=True):
            one.tokens = text.written_count if spoke is not None and spoke.replies else 0
        if not self._run.evaluation.kl:
            return
        if self._reference is None:
            first = self._dir.first_policy_folder
            self._reference, _ = load_policy(first, options=self._load_options)
        drifts = compute_divergences(self._model, self._reference, texts)
        for one, value in zip(found, drifts, strict=True):
            one.kl = value if one.tokens and one.error is None else None

    def _last_drift(self) -> float | None:
        """The mean divergence of the last evaluation, if it was measured."""
        rows = self._dir.rows("evaluation.jsonl")
        last = [row.get("kl") for row in rows if row["step"] == rows[-1]["step"]]
        return mean([value for value in last if value is not None])

    def _known_kinds(self) -> set[str]:
        """Metrics of failures that a resumed run has met: 0 where they do not occur, not absent."""
        kind = "judge/missing_frac/"
        found = {name for row in self._rows for name in row if name.startswith(kind)}
        failures = [row.get("missing") or {} for row in self._dir.rows("evaluation.jsonl")]
        kinds = {str(one.get("kind", ErrorKind.NOT_SAMPLED)) for one in failures}
        return found | {f"{kind}{one}" for one in kinds - {ErrorKind.NOT_SAMPLED}}

    def _calls_made(self, here: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The judge's calls: the service's own table, or what this process asked.

        A service that died after the last answer must not cost the run its report: of it the last
        table counts.
        """
        if self._service_url is None:
            return here
        try:
            self._service_calls = fetch_service_calls(self._service_url)
        except (OSError, ValueError) as error:
            if self._service_calls is None and not self._lacks_service_calls:
                self._lacks_service_calls = True
                _log.warning(
                    "The judge service gave no table of its calls (%s). The report shows the "
                    "calls to the service instead.",
                    error,
                )
        return here if self._service_calls is None else self._service_calls

    def _finish(self, losses: list[float], spending: FolderSpending) -> None:
        job, folder = self._job, self._dir
        endpoints = spending.read()
        seconds = {**self._times, "total": time.perf_counter() - self._started}
        job.summary = {
            **describe_writer(),
            **summarise_training(job.run, self._spec, self._rows, self._shown, self._checks),
            "resumed_from": folder.step if folder.resumed else None,
            "warm_start_loss": losses[-1] if losses else None,
            "kl": self._last_drift(),
            "held_out": self._compare(),
            "seconds": {name: round(value, 1) for name, value in seconds.items()},
            "endpoints": endpoints,
            "spending": spending.summarise(endpoints),
        }
        write_training_report(folder.path / "report.html", job.summary, self._rows, self._shown)
        folder.write_json("summary.json", job.summary)
        self._sink.close()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._times[name] = self._times.get(name, 0.0) + time.perf_counter() - started


def _build_graders(spec: RewardSpec, budget: SpendCeiling | None) -> dict[str, Any]:
    return spec.build_graders(spec.build_judges(budget=budget))
