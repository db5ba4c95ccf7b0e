"""The runs beside the arms: judges and first policies that are trained before, and scorers.

In a scorer's run the reward is the scorer's score alone.
"""

from __future__ import annotations

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
from adjudge_lab.studies.study_file import StudyFile, TrainingSource, merge_tables

POLICY_REFERENCE = "policy"
"""``model.path = "@policy"``: the policy that the arms of the first seed begin with."""


class FileTables(NamedTuple):
    """The tables of a training or a run file; their relative paths start at ``beside``."""

    data: dict[str, Any]
    beside: Path
    where: str

    def training(self) -> JudgeFile:
        """The training file; raises :class:`ConfigError`.

        Variables of the environment (``MODEL_PATH``, …) would make all judges one: left out.
        """
        judge = JudgeFile.from_dict(self.data, where=self.where, folder=self.beside, environ={})
        check_trains_here(judge, judge.backend, "study")
        return judge

    def run(self) -> RunFile:
        """The run file; raises :class:`ConfigError`."""
        return resolve_run_file(self.data, where=self.where, folder=self.beside)

    def over(self, tables: Mapping[str, Any]) -> FileTables:
        """The same with other values."""
        return self._replace(data=merge_tables(self.data, tables))

    @property
    def refers_to(self) -> str | None:
        """The judge (or :data:`POLICY_REFERENCE`) that a training begins with."""
        model = self.data.get("model")
        path = model.get("path") if isinstance(model, Mapping) else None
        return path[1:] if isinstance(path, str) and path.startswith("@") else None


def policy_tables(study: StudyFile, seed: int) -> FileTables:
    """What makes the first policy of ``seed``: a training file, or a run of base and warm start.

    Of the graders of the run only a gold that is a rule grades, so that it waits for no judge.
    Raises :class:`ConfigError` for a training file of a judge.
    """
    if study.policy is None:
        graders = [_PLACEHOLDER_GRADER] if study.gold in study.judges else [_gold_grader(study)]
        where = f"{study.where}: first policy"
        found = _scorer_run_tables(study, {**base_tables(study), "judge": {}}, graders, where)
        return found.over({"training": {"seed": seed}})
    source = _training_source(study, study.policy.train, "policy.train")
    policy = source.training()
    if policy.method != "sft" or policy.mode is not None:
        policy.refuse(
            "method", "must be 'sft' without a mode, because the policy answers and does not judge"
        )
    return source.over({"trainer": {"seed": seed}})


def judge_training_waves(study: StudyFile, folder: Path) -> list[dict[str, FileTables]]:
    """The training of each judge that is trained, those that can be trained at once together.

    Each comes after the one that it begins with, which is a path in ``folder``. Raises
    :class:`ConfigError` for an unknown reference, or a circle of them.
    """
    left = {
        name: _training_source(study, judge.train, f"judges.{name}.train")
        for name, judge in study.judges.items()
        if judge.train is not None
    }
    _check_references(left)
    waves: list[dict[str, FileTables]] = []
    while left:
        ready = {name: one for name, one in left.items() if one.refers_to not in left}
        if not ready:
            names = ", ".join(left)
            study.refuse("judges", f"{names}: what each begins with (model.path) leads in a circle")
        waves.append({name: _resolve_start(study, one, folder) for name, one in ready.items()})
        left = {name: one for name, one in left.items() if name not in ready}
    return waves


def judge_training_files(study: StudyFile, folder: Path) -> dict[str, JudgeFile]:
    """Of each trained judge its training file, in an order in which they can be trained."""
    waves = judge_training_waves(study, folder)
    return {name: one.training() for wave in waves for name, one in wave.items()}


def _check_references(sources: Mapping[str, FileTables]) -> None:
    known = [POLICY_REFERENCE, *sources]
    for source in sources.values():
        before = source.refers_to
        if before is not None and before not in known:
            said = ", ".join(f"@{one}" for one in known)
            raise ConfigError(
                f"{source.where}: model.path: no trained judge is called '@{before}'"
                f"{suggest_name(before, known)} (there are: {said})"
            )


def _resolve_start(study: StudyFile, source: FileTables, folder: Path) -> FileTables:
    before = source.refers_to
    if before is not None:
        at = (
            policy_folder(folder, study.seeds[0])
            if before == POLICY_REFERENCE
            else judge_folder(folder, before)
        )
        source = source.over({"model": {"path": at}})
    judge = source.training()
    if judge.method == "sft" and judge.mode is None:
        judge.refuse(
            "mode", "is required, because SFT without a mode teaches to answer, not to judge"
        )
    return source


def _training_source(study: StudyFile, train: TrainingSource, key: str) -> FileTables:
    if not isinstance(train, str):
        return FileTables(train, study.folder, f"{study.where}: {key}")
    path = study.folder / train
    return FileTables(
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


def scorer_tables(study: StudyFile, name: str, folder: Path) -> FileTables:
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
) -> FileTables:
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
    return FileTables(data, study.folder, where)
