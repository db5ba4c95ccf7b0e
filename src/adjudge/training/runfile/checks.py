"""What a run file must fulfil beyond the types of its keys; each complaint names key and remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.mock.behaviour import BEHAVIOURS
from adjudge.mock.server import serve
from adjudge.training.runfile.tables import CAPITALS, MOCK, NOWHERE, TINY
from adjudge.training.runfile.trained import check_trained
from adjudge.training.scaffold.checks import check_scaffold

if TYPE_CHECKING:
    from adjudge.training.runfile import RunFile

__all__ = ["check_run"]

_SHIPPED = (CAPITALS, "crafter")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BEHAVIOURS = ("fixed", "length", "rubric", "criteria")


def check_run(run: RunFile) -> None:
    """Raise :class:`ConfigError` for the first thing that does not fit.

    What only a real run needs (a key, a rubric's file, a task app, torch) is not looked for.
    """
    _check_batches(run)
    _check_task(run)
    if run.judge.enabled:
        _check_judge(run)
        _check_mock(run)
    _check_rewards(run)
    _check_service(run)
    _check_gold(run)
    check_scaffold(run)


def _check_batches(run: RunFile) -> None:
    training = run.training
    if training.batch_size % training.group_size:
        run.refuse(
            "training.batch_size",
            f"is {training.batch_size}, must be a multiple of group_size "
            f"({training.group_size}): groups are whole",
        )


def _check_task(run: RunFile) -> None:
    rollout, name = run.rollout, run.env_name
    if rollout.dataset is not None and run.services.task_url is not None:
        run.refuse("rollout.dataset", "a task app has its own task; leave services.task_url out")
    if run.services.task_url is not None or rollout.dataset is not None:
        return
    if name not in _SHIPPED and ":" not in name:
        run.refuse(
            "rollout.env_name",
            f"found {name!r}{nearest(name, _SHIPPED)} (allowed: {', '.join(_SHIPPED)}, "
            "module:Class of yours, or any name with services.task_url)",
        )
    if run.model.base == TINY and ":" in name and run.training.warm_start_iterations:
        run.refuse(
            "training.warm_start_iterations",
            f"is {run.training.warm_start_iterations}, but {name!r} has no demonstrations; set it "
            "to 0, or give a base that can speak",
        )


def _check_judge(run: RunFile) -> None:
    judge = run.judge
    if judge.folders:
        check_trained(run)
        return
    if run.is_ruled:
        _check_ruled(run)
        return
    if not judge.model:
        run.refuse(
            "judge.model",
            "is required (or folder: a trained judge's; or [[graders]] that are all rules); "
            "enabled = false trains without a judge",
        )
    if judge.api_key_env is not None and not _VARIABLE.match(judge.api_key_env):
        run.refuse(  # what stands there may be the key
            "judge.api_key_env", "must be the name of an environment variable, not the key itself"
        )
    if judge.rubric_id is None and not run.graders:
        run.refuse(
            "judge.rubric_id",
            "is required where there are no [[graders]]: by what is the judge to judge?",
        )
    if judge.rubric_id is not None and not judge.outcome_weight and not judge.event_weight:
        run.refuse("judge.outcome_weight", "and event_weight are both 0: nothing is judged")


def _check_ruled(run: RunFile) -> None:
    for name in ("base_url", "api_key_env", "price"):
        if getattr(run.judge, name) is not None:
            run.refuse(
                f"judge.{name}", "is for a judge, and all [[graders]] are rules; leave it out"
            )


def _check_rewards(run: RunFile) -> None:
    judge, rollout = run.judge, run.rollout
    pays = rollout.dataset is None or rollout.env_grader is not None
    if not pays and (not judge.enabled or judge.combine_mode != "replace"):
        mode = (
            f"combine_mode = {judge.combine_mode!r}" if judge.enabled else "judge.enabled = false"
        )
        run.refuse(
            "rollout.env_grader",
            f"{mode} needs the environment's reward, and a dataset pays none: name the grader (a "
            "rule) that does, or set judge.combine_mode = 'replace'",
        )
    if rollout.env_grader is not None:
        names = [str(one.get("name")) for one in run.graders]
        if rollout.env_grader not in names:
            run.refuse(
                "rollout.env_grader",
                f"no grader is called {rollout.env_grader!r}{nearest(rollout.env_grader, names)}",
            )
        if run.asks_judge(run.graders[names.index(rollout.env_grader)]):
            run.refuse("rollout.env_grader", f"{rollout.env_grader!r} asks a judge; it is a rule's")
    if run.judge.rubric_id is not None and run.rubric_file is None:
        return  # a real run looks for it, or asks the task app
    if run.awaits_judge:
        return  # it may not be trained yet
    run.reward_spec(NOWHERE if run.starts_mock else None)


def _check_service(run: RunFile) -> None:
    if run.services.judge_url is None:
        return
    if not run.judge.enabled:
        run.refuse("services.judge_url", "judge.enabled is false, so there is nothing to serve")
    if run.judge.event_weight:
        run.refuse("services.judge_url", "event_weight is not 0; the service judges no events")
    if run.judge.folders:
        return
    if run.judge.rubric_id is None and not run.served(NOWHERE)["graders"]:
        run.refuse("services.judge_url", "no grader asks the judge, so there is nothing to serve")


def _check_mock(run: RunFile) -> None:
    mock = run.judge.mock
    if (mock is not None) != run.starts_mock:
        run.refuse(
            "judge.mock", 'goes with base_url = "mock", which starts a judge by these settings'
        )
    if mock is None:
        return
    if run.judge.type != "openai":
        run.refuse("judge.type", f'is {run.judge.type!r}; base_url = "{MOCK}" is "openai"')
    if mock.behaviour not in _BEHAVIOURS:
        hint = nearest(mock.behaviour, BEHAVIOURS)
        run.refuse(
            "judge.mock.behaviour",
            f"found {mock.behaviour!r}{hint} (allowed: {', '.join(_BEHAVIOURS)})",
        )
    try:
        serve(mock.settings())  # complains, if it must; nothing starts
    except ConfigError as error:
        run.refuse("judge.mock", str(error))


def _check_gold(run: RunFile) -> None:
    gold = run.sentinel.gold
    if gold is None:
        return
    weights = {str(one.get("name")): one.get("weight", 1.0) for one in run.graders}
    if gold not in weights:
        run.refuse("sentinel.gold", f"no grader is called {gold!r}{nearest(gold, weights)}")
    if weights[gold] != 0:
        run.refuse(
            "sentinel.gold",
            f"{gold!r} has weight {weights[gold]}; a gold that is trained on is none: "
            "give it weight = 0.0",
        )
