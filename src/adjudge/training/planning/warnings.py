"""What a run will need and is not there yet, and what is worth knowing before it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from adjudge.hosts import is_loopback
from adjudge.training.runfile import RunFile
from adjudge.training.tasks import environment_problem
from adjudge.training.verl.version import installed_verl, verl_version

__all__ = ["warnings_of"]


def warnings_of(run: RunFile) -> Iterator[str]:
    """A sentence each; nothing is asked, and no file but the rubric's looked for."""
    judge = run.judge
    if run.services.task_url is not None:
        yield f"services.task_url: {run.services.task_url} is not asked here; a run does"
        if run.services.policy_url is None and not is_loopback(_host(run.services.task_url)):
            yield (
                "services.policy_url is not set: an app on another machine cannot ask the policy "
                f"at {run.services.policy_host}"
            )
    elif run.is_multi_turn and (problem := environment_problem(run)) is not None:
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
    if run.backend == "verl":
        yield from _verl_warnings(run)


def _judge_warnings(run: RunFile) -> Iterator[str]:
    judge = run.judge
    if judge.rubric_id is not None and run.rubric_file is None:
        where = "the task app has to have it" if run.services.task_url else "a run needs it"
        yield (
            f"judge.rubric_id: {run.folder / judge.rubric_dir / judge.rubric_id}.toml is not "
            f"there; {where}, and it is counted as one call"
        )
    variable = run.judge_key_env
    own_host = judge.base_url is not None and is_loopback(_host(judge.base_url))
    if variable is not None and not own_host and not os.environ.get(variable):
        yield f"judge.api_key_env: the environment variable {variable} is not set"
    if judge.price is None and not (run.starts_mock or judge.folders or run.is_ruled):
        yield (
            "judge.price is not set, so no cost is shown: price = { input = …, output = … }, in US "
            "dollars per million tokens"
        )


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _verl_warnings(run: RunFile) -> Iterator[str]:
    if installed_verl() is None:
        yield f"verl is not installed here; this is for {verl_version()}"
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
