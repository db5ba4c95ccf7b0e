"""The runs beside the arms: whose reward is one scorer's word, and that make first policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from adjudge.studies.matrix.arms import base_tables, first_given, judge_tables, table_of, watched
from adjudge.studies.matrix.given import Given, counts
from adjudge.studies.matrix.keys import merged
from adjudge.training.runfile import RunFile

if TYPE_CHECKING:
    from adjudge.studies.matrix.file import StudyFile

__all__ = ["RunTables", "first_tables", "scorer_tables"]

_Tables = dict[str, Any]

_JUDGED: _Tables = {"combine_mode": "replace", "judge_scale": 1.0, "sample_rate": 1.0}
"""What makes a judge's word the reward, whole and unchanged."""
_ANYTHING: _Tables = {"name": "anything", "type": "json_valid"}
"""A rule for a run that nobody judges."""
_NOT_SCORED = ("env_grader", "scaffold")
"""Keys of ``[rollout]`` that are about a reward or a training that scores have no part in."""


class RunTables(NamedTuple):
    """The tables of a run file; their relative paths start at ``beside``."""

    data: _Tables
    beside: Path
    where: str

    def run(self) -> RunFile:
        """What they say; raises :class:`~adjudge.errors.ConfigError`."""
        return RunFile.from_dict(self.data, where=self.where, folder=self.beside)


def first_tables(study: StudyFile, seed: int) -> RunTables:
    """The run whose base and warm start make the policy that the arms of ``seed`` begin with.

    Nobody judges it but the gold, where that is a rule, so that it waits for no judge.
    """
    tables, graders, beside = _gold(study) if study.gold not in study.judges else _nobody(study)
    found = _scored(study, tables, graders, f"{study.where}: first policy", beside)
    found.data["training"]["seed"] = seed
    return found


def scorer_tables(study: StudyFile, name: str, folder: Path) -> RunTables:
    """The run whose reward is exactly what a judge, or the gold, says.

    Neither mitigations nor watched graders nor the environment count in it. For a given arm's judge
    it is what the arm's own file rewards.
    """
    where = f"{study.where}: scorer {name}"
    if name in study.judges:
        judge = judge_tables(study, name, folder)
        tables = merged(base_tables(study), {"judge": {}, **judge})
        graders = [one for one in judge.get("graders", []) if counts(one)]
        return _scored(study, tables, graders, where, study.folder)
    if name == study.gold:
        return _scored(study, *_gold(study)[:2], where, _gold(study)[2])
    given = next(one for one in study.given_arms.values() if one.judge == name)
    graders, tables = _of_given(given)
    return _scored(study, tables, graders, where, given.run.folder)


def _gold(study: StudyFile) -> tuple[_Tables, list[_Tables], Path]:
    """The shared tables, the gold's grader, and the folder that its paths start from."""
    gold = next(one for one in watched(study) if one["name"] == study.gold)
    first = first_given(study)
    theirs = first is not None and not study.plans and not study.run.get("graders")
    beside = first.run.folder if first is not None and theirs else study.folder
    return {**base_tables(study), "judge": {}}, [{**gold, "weight": 1.0}], beside


def _nobody(study: StudyFile) -> tuple[_Tables, list[_Tables], Path]:
    """The same with a rule that is always there."""
    return {**base_tables(study), "judge": {}}, [_ANYTHING], study.folder


def _of_given(one: Given) -> tuple[list[_Tables], _Tables]:
    """The graders and tables that make a given arm's reward."""
    if one.run.judge.enabled:
        return [grader for grader in one.data.get("graders", []) if counts(grader)], one.data
    paid_by = one.run.rollout.env_grader  # checked: there is one
    graders = [grader for grader in one.data["graders"] if grader["name"] == paid_by]
    return [{**grader, "weight": 1.0} for grader in graders], {**one.data, "judge": {}}


def _scored(
    study: StudyFile, tables: _Tables, graders: list[_Tables], where: str, beside: Path
) -> RunTables:
    rollout, services = table_of(tables, "rollout"), table_of(tables, "services")
    judge = {**table_of(tables, "judge"), **_JUDGED}
    judge.pop("unjudged", None)
    if not judge.get("event_weight"):
        judge["outcome_weight"] = 1.0
    # A score is asked for where it is wanted, without a service of its own.
    services.pop("judge_url", None)
    data = {
        "version": 1,
        "kind": "rl",
        **{key: value for key, value in tables.items() if key != "sentinel"},
        "graders": graders,
        "judge": judge,
        "rollout": {key: value for key, value in rollout.items() if key not in _NOT_SCORED},
        "services": services,
        "training": {**table_of(tables, "training"), "seed": study.seeds[0]},
    }
    return RunTables(data, beside, where)
