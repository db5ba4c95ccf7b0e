"""The reward of a run as a spec for verl's reward workers, which play no episodes themselves.

They see a rollout's answer and its row, and no environment. So where the run adds what the
environment pays, the rule that pays becomes a grader of the spec: with O the weighted mean of the
judged graders, and the rule's scores from 0 to h,

    env + s·(w_e·E + w_o·O)  =  (h + s·w_o)·mean + s·w_e·E,

where the mean is over the rule with weight h and the judged graders with their shares of s·w_o.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.graders.registry import grader_class, parameters
from adjudge.rewards.spec import RewardSpec
from adjudge.training.planning.foreseen import foreseen_spec, is_stand_in
from adjudge.training.runfile import RunFile
from adjudge.types import Role

__all__ = ["unrewardable", "verl_spec"]

_CAPITAL = "adjudge.training.task:CapitalGrader"

Problem = tuple[str, str, str, str]
"""Key, what was asked, what happens instead, because."""


def unrewardable(run: RunFile) -> Problem | None:
    """Why the rewards of a single-turn ``run`` cannot be had from verl, if so."""
    judge = run.judge
    if not judge.enabled or judge.combine_mode == "replace":
        return None
    mode = ("judge.combine_mode", repr(judge.combine_mode), "nothing can run")
    if judge.combine_mode == "multiply":
        return (*mode, "verl's reward workers have no environment whose reward they could multiply")
    spec = foreseen_spec(run)
    if problem := _not_added(run, spec):
        return (*mode, problem)
    graders = spec.build_graders()
    counted = [
        e for e in spec.graders if e.scope == "outcome" and e.weight and judge.outcome_weight
    ]
    if odd := [
        e.name for e in counted if getattr(graders[e.name], "role", Role.SCORE) != Role.SCORE
    ]:
        return (*mode, f"the grader {odd[0]!r} is no score that could be averaged with others")
    return None


def _not_added(run: RunFile, spec: RewardSpec) -> str | None:
    """Why the judge's part and the environment's are no mean of both."""
    judge = run.judge
    if judge.judge_scale * judge.outcome_weight < 0 or judge.judge_scale * judge.event_weight < 0:
        return "a judge that counts negatively cannot be added there"
    if judge.aggregate != "weighted_mean":
        return f"with aggregate = {judge.aggregate!r} there is no mean to add it to"
    payer = _payer(run, spec)
    low, high = _range(run, payer)
    if low != 0 or high is None or high <= 0:
        return f"the grader {payer['name']!r} must pay from 0 to some number to be added"
    return None


def verl_spec(run: RunFile, spec: RewardSpec, *, every_rollout: bool) -> dict[str, Any]:
    """``spec``, the reward spec of a single-turn run, as plain data for a file anywhere.

    Paths are absolute, and the environment's reward is part of it. ``every_rollout`` leaves
    ``sample_rate`` out, for a verl that has no groups. Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    judge = run.judge
    data = spec.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    data["graders"] = [_anywhere(run, one) for one in data["graders"]]
    reward = data["reward"]
    reward.pop("unjudged", None)
    if every_rollout:
        reward.pop("sample_rate", None)
    if not judge.enabled:
        payer = _anywhere(run, {**_payer(run, spec), "weight": 1.0})
        others = [
            one for one in data["graders"] if one["name"] not in (payer["name"], "environment")
        ]
        return {**data, "graders": [payer, *others]}
    if judge.combine_mode == "weighted_sum":
        _add_environment(run, spec, data)
    return data


def _add_environment(run: RunFile, spec: RewardSpec, data: dict[str, Any]) -> None:
    judge, reward = run.judge, data["reward"]
    payer = _payer(run, spec)
    _, high = _range(run, payer)
    height, share = float(high or 0.0), judge.judge_scale * judge.outcome_weight
    outcome = [e for e in spec.graders if e.scope == "outcome" and e.name != payer["name"]]
    total = sum(entry.weight for entry in outcome)
    shares = {e.name: share * e.weight / total if total else 0.0 for e in outcome}
    payer = _anywhere(run, {**payer, "weight": height})
    others = [
        {**one, "weight": shares.get(one["name"], one.get("weight", 1.0))}
        for one in data["graders"]
        if one["name"] != payer["name"]
    ]
    data["graders"] = [payer, *others]
    reward |= {
        "combine_mode": "replace",
        "judge_scale": 1.0,
        "outcome_weight": height + share,
        "event_weight": judge.judge_scale * judge.event_weight,
    }


def _payer(run: RunFile, spec: RewardSpec) -> dict[str, Any]:
    """The entry of the rule that computes the environment's reward."""
    name = run.rollout.env_grader
    if name is not None:
        return next(dict(one) for one in run.graders if one["name"] == name)
    taken = {entry.name for entry in spec.graders}
    name = "capital"
    while name in taken:
        name += "_"
    return {"name": name, "type": _CAPITAL}


def _range(run: RunFile, entry: dict[str, Any]) -> tuple[float | None, float | None]:
    where = f"{run.where}: rollout.env_grader"
    alone = RewardSpec.from_dict({"graders": [{**entry, "weight": 1.0}], "reward": {
        "normalise": False}}, where=where, folder=run.folder)  # fmt: skip
    if alone.asks_judge(alone.graders[0]):
        raise ConfigError(f"{where}: {entry['name']!r} asks a judge; an environment pays by a rule")
    found = getattr(alone.build_graders()[entry["name"]], "score_range", None)
    return (None, None) if found is None else found


def _anywhere(run: RunFile, entry: dict[str, Any]) -> dict[str, Any]:
    """``entry`` with absolute paths; the stand-in for a rubric by its name again."""
    entry = dict(entry)
    if is_stand_in(entry.get("criteria")):
        del entry["criteria"]
        entry |= {"rubric_id": run.judge.rubric_id, "rubric_dir": run.judge.rubric_dir}
    folder = run.folder.resolve()
    for parameter in parameters(grader_class(entry["type"], run.folder)):
        given = entry.get(parameter.name)
        if given is None and isinstance(parameter.default, Path):
            given = str(parameter.default)
        if parameter.annotation in (Path, Path | None) and isinstance(given, str):
            entry[parameter.name] = str(folder / given)
    return entry
