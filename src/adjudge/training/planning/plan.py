"""What a run would do, without doing it: settings, rollouts, questions to judges, money."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adjudge.environments.tasks import DatasetTask
from adjudge.runs.estimate import Asked, estimate
from adjudge.training.planning.costs import TOTALS, Setup, assumptions, in_all, setups
from adjudge.training.planning.foreseen import (
    foreseen_samples,
    foreseen_spec,
    rubric_of,
    single_turn_task,
)
from adjudge.training.planning.honoured import Unmet, not_honoured
from adjudge.training.planning.warnings import warnings_of
from adjudge.training.runfile import RunFile
from adjudge.training.task import CapitalsTask
from adjudge.training.verl.version import installed_verl, verl_version

__all__ = ["GraderPlan", "Plan", "VerlPlan", "plan"]

_SOME_PORT = "http://127.0.0.1:PORT"
"""Where a run has its mock or judge service listen, as far as can be said before."""


@dataclass(frozen=True)
class GraderPlan:
    """One grader: ``calls`` are its judge's per episode, at most; 0 for a rule.

    ``weight`` 0 is report only. ``None`` where that cannot be counted; a warning then says why.
    """

    name: str
    scope: str
    weight: float
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
class Plan:
    """A run file resolved; ``assumed_learning_rate``: where the file says none.

    ``rollouts``: ``per_step``, ``groups_per_step``, ``steps``, ``training`` and ``evaluation`` (in
    all), ``evaluations``. ``in_all``: the judge's ``calls``, tokens and ``cost_usd`` for the whole
    run, at most; ``None`` where a grader's calls cannot be counted. ``unmet``: what the backend
    does otherwise; ``warnings``: what is not there yet.
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
    graders: list[GraderPlan] = field(default_factory=list)
    setups: list[Setup] = field(default_factory=list)
    in_all: dict[str, float | None] = field(default_factory=dict)
    assumed: str = ""
    unmet: list[Unmet] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    verl: VerlPlan | None = None

    def data(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints it."""
        return asdict(self)


def plan(run: RunFile, folder: Path = Path("runs/NAME")) -> Plan:
    """What ``run`` would do into ``folder``; nothing is asked, started or written.

    Needs no torch, key, rubric file or task app: what is not there is a warning. Raises
    :class:`~adjudge.errors.ConfigError` for a file that is there and wrong.
    """
    warnings = list(warnings_of(run))
    spec, task = foreseen_spec(run), _task(run, warnings)
    samples, groups = foreseen_samples(run, spec, task)
    asked, size = estimate(spec, samples, groups), len(samples)
    unknown = {name: one.why for name, one in asked.items() if one.why}
    warnings += (
        f"graders.{name}: its calls are not counted: {why}" for name, why in unknown.items()
    )
    rollouts = _rollouts(run)
    found = [] if unknown else list(setups(run, asked, size))
    made = Plan(
        file=run.where,
        backend=run.backend,
        policy=run.model.base,
        task=run.services.task_url or run.env_name,
        turns=run.rollout.max_turns if run.is_multi_turn else 1,
        judge=_judge(run),
        reward=_reward(run),
        assumed_learning_rate=_assumed_rate(run),
        settings=_settings(run),
        rollouts=rollouts,
        graders=[
            GraderPlan(
                entry.name,
                entry.scope,
                entry.weight,
                spec.asks_judge(entry),
                _calls(asked.get(entry.name), size),
            )
            for entry in spec.graders
        ],
        setups=found,
        in_all=dict.fromkeys(TOTALS) if unknown else in_all(found, rollouts, run),
        assumed=assumptions(run, task),
        unmet=not_honoured(run),
        warnings=warnings,
    )
    if run.backend == "verl":
        _add_verl(run, folder, made)
    return made


def _calls(asked: Asked | None, samples: int) -> float | None:
    """A grader's calls per episode; ``None`` where it could not be asked."""
    if asked is None:
        return 0.0
    return None if asked.why else asked.calls / samples


def _task(run: RunFile, warnings: list[str]) -> DatasetTask | CapitalsTask | None:
    """A single-turn task whose prompts can be read."""
    if run.is_multi_turn:
        return None
    path = run.folder / (run.rollout.dataset or "")
    if run.rollout.dataset is not None and not path.exists():
        warnings.append(f"rollout.dataset: {path} is not there; sizes are assumed")
        return None
    return single_turn_task(run)


def _settings(run: RunFile) -> dict[str, Any]:
    if run.backend == "verl":
        return {}
    from adjudge.training.rl import settings_of  # noqa: PLC0415  (the trainer's side)

    return settings_of(run)


def _judge(run: RunFile) -> str | None:
    if not run.judge.enabled:
        return None
    judge = "rules alone" if run.is_ruled else f"{run.judge.model} ({run.judge.type})"
    if run.judge.folders:
        judge = f"{', '.join(run.judge.folders)} (trained)"
    if run.starts_mock:
        judge = "adjudge mock, started by the run"
    return judge if run.services.judge_url is None else f"{judge}, behind adjudge serve"


def _reward(run: RunFile) -> str:
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
    return {
        "weighted_sum": f"env + {judged}",
        "multiply": f"env · {judged}",
        "replace": judged,
    }[judge.combine_mode]


def _assumed_rate(run: RunFile) -> str | None:
    if run.training.learning_rate is not None:
        return None
    return f"{run.learning_rate:g}, the default for base = {run.model.base!r}"


def _rollouts(run: RunFile) -> dict[str, int]:
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


def _add_verl(run: RunFile, folder: Path, made: Plan) -> None:
    """The command and the files, unless nothing can run."""
    from adjudge.training.verl import run as verl_run  # noqa: PLC0415  (reads the data)
    from adjudge.training.verl.data import VerlRows  # noqa: PLC0415

    if any(not one.runs for one in made.unmet):
        return
    data = run.folder / (run.rollout.dataset or "")
    rows = VerlRows(run) if run.rollout.dataset is None or data.exists() else None
    files = verl_run.VerlFiles.of(folder, rows)
    spec = run.reward_spec(
        _SOME_PORT + "/v1" if run.starts_mock else None,
        _SOME_PORT if run.services.judge_url else None,
        rubric_of(run),
    )
    shown: dict[str, Any] = {str(files.spec): verl_run.spec_text(run, spec)}
    if rows is not None:
        for path, some in ((files.train, rows.train), (files.validation, rows.validation)):
            several = list(some)
            first = several[0] if several else {}
            shown[str(path)] = {"rows": len(several), "columns": list(first), "first": first}
    made.verl = VerlPlan(
        verl_version(),
        installed_verl(),
        verl_run.verl_command(run, files, folder),
        verl_run.verl_environment(run, folder),
        shown,
    )
