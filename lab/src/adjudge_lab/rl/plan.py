"""The plan of a run without doing it: settings, rollouts, judge calls, costs, warnings.

Warnings are what the run will need and is not there yet, and what is worth knowing before it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, ErrorKind
from adjudge.hosts import is_loopback
from adjudge.rewards.batch_grader import BatchGrader
from adjudge.rewards.spec import MissingSettings
from adjudge.runner.progress import format_duration
from adjudge.runs.judge_calls import JudgeCallEstimate, estimate_calls
from adjudge.trainers.verl import installed_verl
from adjudge.types import GraderError
from adjudge_lab.environments.tasks import DatasetTask, Task, read_dataset
from adjudge_lab.rl.backend_checks import UnsupportedSetting, find_unsupported_settings
from adjudge_lab.rl.episodes import (
    INSTRUCTION_TOKENS,
    OBSERVATION_TOKENS,
    draw_training_seeds,
    dry_run_samples,
    find_environment_problem,
)
from adjudge_lab.rl.policy import describe_hub_problem, needs_hub
from adjudge_lab.rl.rewards import (
    build_reward_spec,
    build_single_turn_task,
    dry_run_spec,
    find_judge_key_env,
    load_rubric_or_stand_in,
    name_judge,
    uses_only_rules,
)
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.sinks import check_sink
from adjudge_lab.rl.tiny import CapitalsTask
from adjudge_lab.rl.trainer_settings import (
    RESERVED_GRPO_SETTINGS,
    check_trl_settings,
    flatten_settings,
)
from adjudge_lab.rl.verl.inputs import verl_version

TOTAL_KEYS = ("calls", "input_tokens", "output_tokens", "cost_usd")
"""What :func:`total_costs` gives."""


@dataclass(frozen=True)
class EpisodeCost:
    """What judging an episode takes, at most, without retries; no ``cost_usd`` without a price."""

    calls: float
    input_tokens: float
    output_tokens: float
    cost_usd: float | None


def _estimate_episode(
    asked: dict[str, JudgeCallEstimate], samples: int, share: float
) -> EpisodeCost:
    """``asked``: what ``samples`` rollouts are asked, by grader; ``share`` of them are judged."""
    several, per = list(asked.values()), share / samples
    costs = [one.cost_usd for one in several]
    known = [cost for cost in costs if cost is not None]
    return EpisodeCost(
        sum(one.calls for one in several) * per,
        sum(one.input_tokens for one in several) * per,
        sum(one.output_tokens for one in several) * per,
        sum(known) * per if len(known) == len(costs) else None,
    )


def total_costs(
    own: EpisodeCost | None, rollouts: dict[str, int], run: RunFile
) -> dict[str, float | None]:
    """The whole run's; held-out episodes are judged whatever ``sample_rate`` is."""
    if own is None:
        return dict.fromkeys(TOTAL_KEYS, 0.0)
    times = rollouts["training"] + rollouts["evaluation"] / run.judge.sample_rate
    return {
        key: None if (each := getattr(own, key)) is None else each * times for key in TOTAL_KEYS
    }


_CALL_S = 2.0
"""Seconds of a judge's call, as a hosted judge of medium size takes them; to give an order."""


def describe_time(run: RunFile, calls: float | None) -> str:
    """How long judging takes, as far as the file says; what the policy takes is not known."""
    training = run.training
    tokens = training.steps * training.rollouts_per_step * run.rollout.max_tokens
    tokens *= run.rollout.max_turns if run.is_multi_turn else 1
    policy = (
        f"the policy writes at most {tokens:,} tokens in {training.steps:,} steps; their time "
        "shows from the first step on"
    )
    if not calls:
        return policy
    way = run.judge.endpoint
    at_once = int(way.get("max_concurrency", training.async_semaphore_max))
    each = float(way.get("deadline_s", training.judge_timeout_s))
    paced = calls * 60 / float(way.get("requests_per_minute") or math.inf)
    usual, longest = (max(calls * seconds / at_once, paced) for seconds in (_CALL_S, each))
    return (
        f"judging about {format_duration(usual)} at {_CALL_S:g} s a call, {at_once} at a time; at "
        f"most {format_duration(longest)} at {each:g} s (judge_timeout_s); {policy}"
    )


def describe_assumptions(run: RunFile, task: Task | None) -> str:
    """What the numbers rest on, in words; ``task`` where its own prompts were counted."""
    replies = f"replies of {run.rollout.max_tokens} tokens (max_tokens)"
    if task is not None:
        return f"at most, without repeated calls: {replies}, verdicts of full length"
    turns = f"episodes of {run.rollout.max_turns} turns (max_turns), " if run.is_multi_turn else ""
    return (
        f"at most, without repeated calls: {turns}{replies}, verdicts of full length; "
        f"assumed: instructions of {INSTRUCTION_TOKENS} tokens, observations of "
        f"{OBSERVATION_TOKENS}"
    )


def list_run_warnings(run: RunFile) -> Iterator[str]:
    """A sentence each; nothing is asked, and no file but the rubric's looked for."""
    judge = run.judge
    if run.services.task_url is not None:
        yield f"services.task_url: the dry run did not connect to {run.services.task_url}"
        if run.services.policy_url is None and not is_loopback(_url_host(run.services.task_url)):
            yield (
                "services.policy_url is not set: an app on another machine cannot ask the policy "
                f"at {run.services.policy_host}"
            )
    elif run.is_multi_turn and (problem := find_environment_problem(run)) is not None:
        yield problem
    if judge.enabled:
        yield from _judge_warnings(run)
    elif run.graders:
        yield "judge.enabled is false: graders that ask a judge are left out, rules are watched"
    pays_by_turn = judge.enabled and judge.event_weight != 0
    if pays_by_turn and run.algorithm.adv_estimator == "grpo":
        yield (
            "algorithm.adv_estimator is 'grpo': event rewards are summed to one number a rollout, "
            "and no turn gets credit of its own; 'adjudge_grpo' gives it"
        )
    if pays_by_turn and judge.combine_mode == "multiply":
        yield (
            "judge.combine_mode is 'multiply': a product is no sum over turns, so all turns of a "
            "rollout get one advantage"
        )
    try:
        check_sink(run.logging.to, beside=run.folder)
    except ConfigError as problem:
        yield str(problem)
    if run.backend == "verl":
        yield from _verl_warnings(run)
    elif not check_trl_settings(run.trl, "GRPOConfig", RESERVED_GRPO_SETTINGS, run.where):
        yield "trl is not installed here, and [trl] is not checked"


def _judge_warnings(run: RunFile) -> Iterator[str]:
    judge = run.judge
    if judge.rubric_id is not None and run.rubric_file is None:
        where = "the task app has to have it" if run.services.task_url else "a run needs it"
        yield (
            f"judge.rubric_id: {run.folder / judge.rubric_dir / judge.rubric_id}.toml is not "
            f"there; {where}, and it is counted as one call"
        )
    variable = find_judge_key_env(run)
    own_host = bool(judge.base_urls) and all(map(is_loopback, map(_url_host, judge.base_urls)))
    if variable is not None and not own_host and not os.environ.get(variable):
        yield f"judge.api_key_env: the environment variable {variable} is not set"
    if (
        judge.has_server
        and judge.price is None
        and not (run.starts_mock or judge.folders or uses_only_rules(run))
    ):
        yield (
            "judge.price is not set, so no cost is shown: price = { input = …, output = … }, in US "
            "dollars per million tokens"
        )


def _url_host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _verl_warnings(run: RunFile) -> Iterator[str]:
    workers = flatten_settings(run.verl).get("reward.num_workers", 1)
    if run.judge.enabled and isinstance(workers, int) and workers > 1:
        yield (
            f"verl.reward.num_workers is {workers}: limits of calls, budgets and what is known of "
            "an outage count in each worker. Put adjudge serve in front to have one of each "
            "(docs/many-machines.md)"
        )
    if installed_verl() is None:
        unchecked = ", and [verl] is not checked" if run.verl else ""
        yield f"verl is not installed here; this is for {verl_version()}{unchecked}"
    elif installed_verl() != verl_version():
        yield f"verl {installed_verl()} is installed; settings are those of {verl_version()}"
    yield (
        "verl leaves its own logs, dumps and checkpoints in the folder; there are no "
        "metrics.jsonl, rollouts.jsonl, report or sentinel"
    )
    if run.judge.enabled and run.judge.combine_mode == "weighted_sum" and not run.is_multi_turn:
        yield (
            "the environment's reward is a grader of the spec there: the column `outcome` has both"
        )


_UNKNOWN_PORT_URL = "http://127.0.0.1:PORT"
"""Where a run has its mock or judge service listen, as far as can be said before."""


@dataclass(frozen=True)
class GraderPlan:
    """One grader: ``calls`` are its judge's per episode, at most; 0 for a rule.

    ``None`` where that cannot be counted; a warning then says why. ``weight`` 0 is report only; a
    schedule is a table as in the file.
    """

    name: str
    scope: str
    weight: float | dict[str, float]
    asks_judge: bool
    calls: float | None = 0.0


@dataclass(frozen=True)
class VerlPlan:
    """``command`` and ``environment`` of a verl run, and the ``files`` that it would write first.

    Text files with their content, Parquet files by their rows, columns and first row.
    """

    version: str
    installed: str | None
    command: list[str]
    environment: dict[str, str]
    files: dict[str, Any]


@dataclass
class RunPlan:
    """A run file resolved; ``assumed_learning_rate``: where the file says none.

    ``rollouts``: ``per_step``, ``groups_per_step``, ``steps``, ``training`` and ``evaluation`` (in
    all), ``evaluations``. ``rows``: those of a dataset. ``time``: how long it takes, in words.
    ``total_costs``: the judge's ``calls``, tokens and ``cost_usd`` for the
    whole run, at most; ``None`` where a grader's calls cannot be counted. ``unmet``: what the
    backend does otherwise; ``warnings``: what is not there yet.
    """

    file: str
    backend: str
    policy: str
    task: str
    turns: int
    judge: str | None
    reward: str
    assumed_learning_rate: str | None
    settings: dict[str, Any]
    rollouts: dict[str, int]
    rows: int | None = None
    graders: list[GraderPlan] = field(default_factory=list)
    episode: EpisodeCost | None = None
    in_all: dict[str, float | None] = field(default_factory=dict)
    budget_usd: float | None = None
    time: str = ""
    assumed: str = ""
    unmet: list[UnsupportedSetting] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    verl: VerlPlan | None = None

    def data(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        return asdict(self)


def plan_run(run: RunFile, folder: Path = Path("runs/NAME")) -> RunPlan:
    """What ``run`` would do into ``folder``; no judge is asked, nothing started or written.

    A model that is named, not lying here, is looked for in the cache and on the hub.

    Needs no torch, key, rubric file or task app: what is not there is a warning. Raises
    :class:`~adjudge.errors.ConfigError` for a file that is there and wrong.
    """
    warnings = list(list_run_warnings(run))
    if needs_hub(run) and (problem := describe_hub_problem(run.model.base)) is not None:
        warnings.append(f"model.base: {problem}")
    spec, task = dry_run_spec(run), _readable_task(run, warnings)
    samples, groups = dry_run_samples(run, spec, task)
    asked, size = estimate_calls(spec, samples, groups), len(samples)
    unknown = {name: one.why for name, one in asked.items() if one.why}
    warnings += (
        f"graders.{name}: its calls are not counted: {why}" for name, why in unknown.items()
    )
    rollouts = _count_rollouts(run)
    counted = asked and not unknown
    episode = _estimate_episode(asked, size, run.judge.sample_rate) if counted else None
    in_all = dict.fromkeys(TOTAL_KEYS) if unknown else total_costs(episode, rollouts, run)
    made = RunPlan(
        file=run.where,
        backend=run.backend,
        policy=run.model.base,
        task=run.services.task_url or run.env_name,
        turns=run.rollout.max_turns if run.is_multi_turn else 1,
        judge=_judge_label(run),
        reward=_reward_formula(run),
        assumed_learning_rate=_default_learning_rate(run),
        settings=_trainer_settings(run),
        rollouts=rollouts,
        rows=task.size if isinstance(task, DatasetTask) else None,
        graders=[
            GraderPlan(
                entry.name,
                entry.scope,
                entry.model_dump(include={"weight"})["weight"],
                spec.asks_judge(entry),
                _calls_per_episode(asked.get(entry.name), size),
            )
            for entry in spec.graders
        ],
        episode=episode,
        in_all=in_all,
        budget_usd=run.judge.budget_usd,
        time=describe_time(run, in_all["calls"]),
        assumed=describe_assumptions(run, task),
        unmet=find_unsupported_settings(run),
        warnings=warnings,
    )
    if run.backend == "verl":
        _add_verl_plan(run, folder, made)
    return made


def _calls_per_episode(asked: JudgeCallEstimate | None, samples: int) -> float | None:
    """A grader's calls per episode; ``None`` where it could not be asked."""
    if asked is None:
        return 0.0
    return None if asked.why else asked.calls / samples


def _readable_task(run: RunFile, warnings: list[str]) -> DatasetTask | CapitalsTask | None:
    """A single-turn task with prompts that can be read."""
    if run.is_multi_turn:
        return None
    path = run.folder / (run.rollout.dataset or "")
    if run.rollout.dataset is not None and not path.exists():
        warnings.append(f"rollout.dataset: {path} is not there; sizes are assumed")
        return None
    found = build_single_turn_task(run)
    next(draw_training_seeds(found, run.evaluation.held_out, run.training.seed))
    return found


_ROWS_TRIED = 200


def check_run_data(run: RunFile) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for a dataset that no grader could work on.

    That is a missing dataset, or one in which (in 200 rows, evenly spaced) a shipped rule with a
    weight, or a judge's prompt, finds no column. Rules of the user's own are not called.
    """
    if run.rollout.dataset is None:
        return
    path = run.folder / run.rollout.dataset
    if not path.exists():
        run.refuse("rollout.dataset", f"{path}: no such file")
    build_single_turn_task(run)
    spec, rows = dry_run_spec(run), read_dataset(path)
    task = DatasetTask(rows[:: math.ceil(len(rows) / _ROWS_TRIED)], name=run.env_name, pay=None)
    samples, groups = dry_run_samples(run, spec, task, most=_ROWS_TRIED)
    asked = estimate_calls(spec, samples, groups).items()
    unable = {name: one.why for name, one in asked if one.why.startswith(ErrorKind.INVALID_INPUT)}
    payer = run.rollout.env_grader
    rules = [
        one
        for one in spec.graders
        if (one.counts or one.name == payer)
        and ":" not in one.grader_type
        and not spec.asks_judge(one)
    ]
    alone = spec.model_copy(update={"graders": rules, "missing": MissingSettings(max_missing=1.0)})
    graders = alone.build_graders({})
    judged = run_blocking(BatchGrader(alone, graders).grade(samples, groups, [True] * len(samples)))
    for rule in rules:
        found = [one.outcome.get(rule.name) for one in judged]
        failed = [one for one in found if isinstance(one, GraderError)]
        if len(failed) == len(found) and failed[0].kind is ErrorKind.INVALID_INPUT:
            unable[rule.name] = failed[0].error
    for name, why in unable.items():
        columns = ", ".join(sorted(task.begin(0).columns))
        run.refuse(f"graders.{name}", f"cannot judge {path}: {why} (columns: {columns})")


def _trainer_settings(run: RunFile) -> dict[str, Any]:
    if run.backend == "verl":
        return {}
    from adjudge_lab.rl.trl_backend import grpo_settings  # noqa: PLC0415  (the trainer's side)

    return grpo_settings(run)


def _judge_label(run: RunFile) -> str | None:
    if not run.judge.enabled:
        return None
    judge = "rules alone" if uses_only_rules(run) else f"{name_judge(run)} ({run.judge.type})"
    if run.judge.folders:
        judge = f"{', '.join(run.judge.folders)} (trained)"
    if run.starts_mock:
        judge = "adjudge mock, started by the run"
    return judge if run.services.judge_url is None else f"{judge}, behind adjudge serve"


def _reward_formula(run: RunFile) -> str:
    """The formula of a rollout's reward, with its numbers."""
    judge = run.judge
    if not judge.enabled:
        return "env"
    parts = [
        f"{weight:g} · {name}"
        for weight, name in (
            (judge.event_weight, f"{judge.event_reduce} of events"),
            (judge.outcome_weight, "outcome"),
        )
        if weight
    ]
    judged = f"{judge.judge_scale:g} · ({' + '.join(parts)})"
    if judge.sample_rate < 1:
        share = f"{judge.sample_rate:.0%} of the groups, drawn anew each step"
        judged += f" in {share}; env in the others"
    return {
        "weighted_sum": f"env + {judged}",
        "multiply": f"env · {judged}",
        "replace": judged,
    }[judge.combine_mode]


def _default_learning_rate(run: RunFile) -> str | None:
    if run.training.learning_rate is not None:
        return None
    return f"{run.learning_rate:g}, the default for base = {run.model.base!r}"


def _count_rollouts(run: RunFile) -> dict[str, int]:
    training, every = run.training, run.evaluation.every_n_iters
    evaluations = 2 + ((training.steps - 1) // every if every else 0)  # before, between, after
    return {
        "steps": training.steps,
        "groups_per_step": training.rollouts_per_step // training.group_size,
        "per_step": training.rollouts_per_step,
        "training": training.steps * training.rollouts_per_step,
        "evaluations": evaluations,
        "evaluation": evaluations * len(run.evaluation.held_out),
    }


def _add_verl_plan(run: RunFile, folder: Path, made: RunPlan) -> None:
    """The command and the files, unless nothing can run."""
    from adjudge_lab.rl.verl import run as verl_run  # noqa: PLC0415  (reads the data)
    from adjudge_lab.rl.verl.inputs import VerlRows  # noqa: PLC0415

    if any(not one.runs for one in made.unmet):
        return
    data = run.folder / (run.rollout.dataset or "")
    rows = VerlRows(run) if run.rollout.dataset is None or data.exists() else None
    files = verl_run.VerlFiles.within(folder, rows)
    spec = build_reward_spec(
        run,
        _UNKNOWN_PORT_URL + "/v1" if run.starts_mock else None,
        _UNKNOWN_PORT_URL if run.services.judge_url else None,
        load_rubric_or_stand_in(run),
    )
    shown: dict[str, Any] = {str(files.spec): verl_run.format_verl_spec(run, spec)}
    if rows is not None:
        for path, some in ((files.train, rows.train), (files.validation, rows.validation)):
            several = list(some)
            first = several[0] if several else {}
            shown[str(path)] = {"rows": len(several), "columns": list(first), "first": first}
    made.verl = VerlPlan(
        verl_version(),
        installed_verl(),
        verl_run.build_verl_command(run, files, folder),
        verl_run.build_verl_environment(run, folder),
        shown,
    )
