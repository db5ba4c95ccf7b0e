"""The runs beside the arms: judges and first policies that are trained before, and scorers.

In a scorer's run the reward is the scorer's score alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.config import load_toml, suggest_name
from adjudge.datasets.sources import is_on_hub
from adjudge.errors import ConfigError
from adjudge_lab.judge_training.judge_file import TINY_MODEL, JudgeFile
from adjudge_lab.rl.backend_checks import check_trains_here
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.studies.cells import (
    base_tables,
    get_table,
    has_weight,
    judge_folder,
    judge_tables,
    policy_folder,
    shared_graders,
)
from adjudge_lab.studies.study_file import StudyFile, merge_tables

POLICY_REFERENCE = "policy"
"""``model.path = "@policy"``: the policy that the arms of the first seed begin with."""


class TrainingTables(NamedTuple):
    """The tables of a training file; their relative paths start at ``beside``."""

    data: dict[str, Any]
    beside: Path
    where: str

    def file(self) -> JudgeFile:
        """What they say; raises :class:`ConfigError`.

        Variables of the environment (``MODEL_PATH``, …) would make all judges one: left out.
        """
        judge = JudgeFile.from_dict(self.data, where=self.where, folder=self.beside, environ={})
        check_trains_here(judge, judge.backend, "study")
        return judge

    def over(self, tables: Mapping[str, Any]) -> TrainingTables:
        """The same with other values."""
        return self._replace(data=merge_tables(self.data, tables))

    @property
    def refers_to(self) -> str | None:
        """The judge (or :data:`POLICY_REFERENCE`) that it begins with."""
        model = self.data.get("model")
        path = model.get("path") if isinstance(model, Mapping) else None
        return path[1:] if isinstance(path, str) and path.startswith("@") else None


def policy_training_tables(study: StudyFile, seed: int) -> TrainingTables | None:
    """What makes the first policy of ``seed``; ``None`` where it is not trained by itself.

    Raises :class:`ConfigError` for a training file of a judge.
    """
    if study.policy is None:
        return None
    source = _training_source(study, study.policy.train, "policy.train")
    policy = source.file()
    if policy.method != "sft" or policy.mode is not None:
        policy.refuse(
            "method", "must be 'sft' without a mode, because the policy answers and does not judge"
        )
    return source.over({"trainer": {"seed": seed}})


def judge_training_tables(study: StudyFile, folder: Path) -> dict[str, TrainingTables]:
    """The training of each judge that is trained, each after the one that it begins with.

    References are paths in ``folder``. Raises :class:`ConfigError` for an unknown reference, or a
    circle of them.
    """
    sources = _training_sources(study)
    ordered: dict[str, TrainingTables] = {}
    for name in sources:
        for one in _training_order(sources, name):
            if one not in ordered:
                ordered[one] = _resolve_start(study, sources[one], folder)
    return ordered


def judge_training_waves(study: StudyFile, folder: Path) -> list[dict[str, dict[str, Any]]]:
    """The same as plain tables by folder, those that can be trained at once together."""
    sources, waves = _training_sources(study), defaultdict[int, dict[str, dict[str, Any]]](dict)
    for name, one in judge_training_tables(study, folder).items():
        waves[len(_training_order(sources, name))][f"judges/{name}"] = one.data
    return [waves[number] for number in sorted(waves)]


def _training_sources(study: StudyFile) -> dict[str, TrainingTables]:
    return {
        name: _training_source(study, judge.train, f"judges.{name}.train")
        for name, judge in study.judges.items()
        if judge.train is not None
    }


def _training_order(sources: Mapping[str, TrainingTables], name: str) -> list[str]:
    """``name`` after all that must be trained before it."""
    line = [name]
    while (before := sources[line[-1]].refers_to) is not None and before != POLICY_REFERENCE:
        where = sources[line[-1]].where
        if before not in sources:
            known = [POLICY_REFERENCE, *sources]
            said = ", ".join(f"@{one}" for one in known)
            raise ConfigError(
                f"{where}: model.path: no trained judge is called '@{before}'"
                f"{suggest_name(before, known)} (there are: {said})"
            )
        if before in line:
            raise ConfigError(
                f"{where}: model.path: '@{before}' itself begins with this judge, so neither can "
                "be trained first"
            )
        line.append(before)
    return line[::-1]


def _resolve_start(study: StudyFile, source: TrainingTables, folder: Path) -> TrainingTables:
    before = source.refers_to
    if before is not None:
        at = (
            policy_folder(folder, study.seeds[0])
            if before == POLICY_REFERENCE
            else judge_folder(folder, before)
        )
        source = source.over({"model": {"path": at}})
    judge = source.file()
    if judge.method == "sft" and judge.mode is None:
        judge.refuse(
            "mode", "is required, because SFT without a mode teaches to answer, not to judge"
        )
    return source


def _training_source(
    study: StudyFile, train: dict[str, Any] | str | None, key: str
) -> TrainingTables:
    if not isinstance(train, str):
        return TrainingTables(train or {}, study.folder, f"{study.where}: {key}")
    path = study.folder / train
    return TrainingTables(
        _make_paths_absolute(load_toml(path, keep_references=True), path.parent),
        path.parent,
        str(path),
    )


def _make_paths_absolute(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths of a file that may lie elsewhere, so that they lead there from everywhere."""
    model, rows = data.get("model"), data.get("data")
    path = model.get("path") if isinstance(model, Mapping) else None
    if isinstance(path, str) and path != TINY_MODEL and (folder / path).is_dir():
        data = merge_tables(data, {"model": {"path": str((folder / path).absolute())}})
    for key in ("train", "val"):
        if isinstance(rows, Mapping) and key in rows:
            named = [rows[key]] if isinstance(rows[key], str) else rows[key]
            if isinstance(named, list) and all(isinstance(one, str) for one in named):
                found = [one if is_on_hub(one) else str((folder / one).absolute()) for one in named]
                data = merge_tables(data, {"data": {key: found}})
    return data


_Tables = dict[str, Any]

_JUDGE_ONLY_REWARD: _Tables = {"combine_mode": "replace", "judge_scale": 1.0, "sample_rate": 1.0}
"""What makes a judge's word the reward, whole and unchanged."""
_PLACEHOLDER_GRADER: _Tables = {"name": "anything", "type": "json_valid"}
"""A rule for a run that nobody judges."""
_UNUSED_ROLLOUT_KEYS = ("env_grader", "scaffold")
"""Keys of ``[rollout]`` that are about a reward or a training that scores have no part in."""


class RunTables(NamedTuple):
    """The tables of a run file; their relative paths start at ``beside``."""

    data: _Tables
    beside: Path
    where: str

    def run(self) -> RunFile:
        """What they say; raises :class:`~adjudge.errors.ConfigError`."""
        return resolve_run_file(self.data, where=self.where, folder=self.beside)


def first_policy_tables(study: StudyFile, seed: int) -> RunTables:
    """The run that makes, by base and warm start, the first policy of the arms of ``seed``.

    Only a gold that is a rule grades this run, so that it waits for no judge.
    """
    graders = [_PLACEHOLDER_GRADER] if study.gold in study.judges else [_gold_grader(study)]
    where = f"{study.where}: first policy"
    found = _scorer_run_tables(study, {**base_tables(study), "judge": {}}, graders, where)
    found.data["training"]["seed"] = seed
    return found


def scorer_tables(study: StudyFile, name: str, folder: Path) -> RunTables:
    """The run rewarded by exactly the score of a judge, or of the gold.

    Neither mitigations nor watched graders nor the environment count in it.
    """
    where = f"{study.where}: scorer {name}"
    if name not in study.judges:
        tables = {**base_tables(study), "judge": {}}
        return _scorer_run_tables(study, tables, [_gold_grader(study)], where)
    judge = judge_tables(study, name, folder)
    tables = merge_tables(base_tables(study), {"judge": {}, **judge})
    graders = [one for one in judge.get("graders", []) if has_weight(one)]
    return _scorer_run_tables(study, tables, graders, where)


def _gold_grader(study: StudyFile) -> _Tables:
    gold = next(one for one in shared_graders(study) if one["name"] == study.gold)
    return {**gold, "weight": 1.0}


def _scorer_run_tables(
    study: StudyFile, tables: _Tables, graders: list[_Tables], where: str
) -> RunTables:
    rollout, services = get_table(tables, "rollout"), get_table(tables, "services")
    judge = {**get_table(tables, "judge"), **_JUDGE_ONLY_REWARD}
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
        "rollout": {
            key: value for key, value in rollout.items() if key not in _UNUSED_ROLLOUT_KEYS
        },
        "services": services,
        "training": {**get_table(tables, "training"), "seed": study.seeds[0]},
    }
    return RunTables(data, study.folder, where)
