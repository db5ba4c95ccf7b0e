"""The judges and policies that a study trains before its arms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from adjudge.config import load_toml, nearest
from adjudge.errors import ConfigError
from adjudge.judge_training.data.hub import is_on_hub
from adjudge.judge_training.judge_tables import TINY
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.studies.matrix.keys import merged

if TYPE_CHECKING:
    from adjudge.studies.matrix.file import StudyFile

__all__ = [
    "POLICY",
    "TrainingTables",
    "judge_folder",
    "policy_folder",
    "policy_tables",
    "training_tables",
    "training_waves",
]

POLICY = "policy"
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
        if judge.backend != "trl":
            judge.refuse("backend", f"is {judge.backend!r}; a study trains here, by 'trl'")
        return judge

    def over(self, tables: Mapping[str, Any]) -> TrainingTables:
        """The same with other values."""
        return self._replace(data=merged(self.data, tables))

    @property
    def refers_to(self) -> str | None:
        """The judge (or :data:`POLICY`) that it begins with."""
        model = self.data.get("model")
        path = model.get("path") if isinstance(model, Mapping) else None
        return path[1:] if isinstance(path, str) and path.startswith("@") else None


def judge_folder(folder: Path, name: str) -> str:
    """Where a trained judge of the study in ``folder`` lies, absolute."""
    return str((folder / "judges" / name).absolute())


def policy_folder(folder: Path, seed: int) -> str:
    """Where the policy that the arms of ``seed`` begin with lies, absolute."""
    return str((folder / "policies" / f"seed-{seed}").absolute())


def policy_tables(study: StudyFile, seed: int) -> TrainingTables | None:
    """What makes the first policy of ``seed``; ``None`` where it is not trained by itself.

    Raises :class:`ConfigError` for a training file of a judge.
    """
    if study.policy is None:
        return None
    source = _source(study, study.policy.train, "policy.train")
    policy = source.file()
    if policy.method != "sft" or policy.mode is not None:
        policy.refuse("method", "must be 'sft' without a mode: the policy answers, it judges not")
    return source.over({"trainer": {"seed": seed}})


def training_tables(study: StudyFile, folder: Path) -> dict[str, TrainingTables]:
    """The training of each judge that is trained, each after the one that it begins with.

    References are paths in ``folder``. Raises :class:`ConfigError` for one to nobody, or around in
    a circle.
    """
    sources = _sources(study)
    ordered: dict[str, TrainingTables] = {}
    for name in sources:
        for one in _line(sources, name):
            if one not in ordered:
                ordered[one] = _judge(study, sources[one], folder)
    return ordered


def training_waves(study: StudyFile, folder: Path) -> list[dict[str, dict[str, Any]]]:
    """The same as plain tables by folder, those that can be trained at once together."""
    sources, waves = _sources(study), defaultdict[int, dict[str, dict[str, Any]]](dict)
    for name, one in training_tables(study, folder).items():
        waves[len(_line(sources, name))][f"judges/{name}"] = one.data
    return [waves[number] for number in sorted(waves)]


def _sources(study: StudyFile) -> dict[str, TrainingTables]:
    return {
        name: _source(study, judge.train, f"judges.{name}.train")
        for name, judge in study.judges.items()
        if judge.train is not None
    }


def _line(sources: Mapping[str, TrainingTables], name: str) -> list[str]:
    """``name`` after all that must be trained before it."""
    line = [name]
    while (before := sources[line[-1]].refers_to) is not None and before != POLICY:
        where = sources[line[-1]].where
        if before not in sources:
            known = [POLICY, *sources]
            said = ", ".join(f"@{one}" for one in known)
            raise ConfigError(
                f"{where}: model.path: no trained judge is called '@{before}'"
                f"{nearest(before, known)} (there are: {said})"
            )
        if before in line:
            raise ConfigError(f"{where}: model.path: '@{before}' begins with this one itself")
        line.append(before)
    return line[::-1]


def _judge(study: StudyFile, source: TrainingTables, folder: Path) -> TrainingTables:
    before = source.refers_to
    if before is not None:
        at = (
            policy_folder(folder, study.seeds[0])
            if before == POLICY
            else judge_folder(folder, before)
        )
        source = source.over({"model": {"path": at}})
    judge = source.file()
    if judge.method == "sft" and judge.mode is None:
        judge.refuse("mode", "is required: SFT without one teaches to answer, not to judge")
    return source


def _source(study: StudyFile, train: dict[str, Any] | str | None, key: str) -> TrainingTables:
    if not isinstance(train, str):
        return TrainingTables(train or {}, study.folder, f"{study.where}: {key}")
    path = study.folder / train
    return TrainingTables(
        _placed(load_toml(path, keep_references=True), path.parent), path.parent, str(path)
    )


def _placed(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths of a file that may lie elsewhere, so that they lead there from everywhere."""
    model, rows = data.get("model"), data.get("data")
    path = model.get("path") if isinstance(model, Mapping) else None
    if isinstance(path, str) and path != TINY and (folder / path).is_dir():
        data = merged(data, {"model": {"path": str((folder / path).absolute())}})
    for key in ("train", "val"):
        if isinstance(rows, Mapping) and key in rows:
            named = [rows[key]] if isinstance(rows[key], str) else rows[key]
            if isinstance(named, list) and all(isinstance(one, str) for one in named):
                found = [one if is_on_hub(one) else str((folder / one).absolute()) for one in named]
                data = merged(data, {"data": {key: found}})
    return data
