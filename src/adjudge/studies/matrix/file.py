"""The file of a study (``kind = "study"``): policies trained against judges that differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from adjudge.config import load_toml, validate
from adjudge.errors import ConfigError
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.studies.matrix.arms import Arm, arms_of
from adjudge.studies.matrix.checks import check_study, warnings_of
from adjudge.studies.matrix.given import Given, read_given
from adjudge.studies.matrix.planned import Cell, cells_of
from adjudge.studies.matrix.scorers import first_tables, scorer_tables
from adjudge.studies.matrix.tables import (
    NONE,
    BestOf,
    GivenArm,
    Judge,
    Mitigation,
    Plan,
    Policy,
    plain,
)
from adjudge.studies.matrix.trained import policy_tables, training_tables, training_waves
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import TINY

__all__ = ["StudyFile"]


class StudyFile(BaseModel):
    """A whole study; :meth:`load` reads one, :meth:`arms` says what it comes to.

    ``gold`` names the grader of ``[[run.graders]]``, or the held-out judge, that says what is
    really wanted. ``seeds`` are three at least, unless it is a ``pilot``. ``run`` has the tables of
    a run file that all arms share, with the graders that are watched (weight 0).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    kind: Literal["study"]
    label: str = ""
    seeds: list[int] = [0, 1, 2]
    pilot: bool = False
    gold: str
    policy: Policy | None = None
    run: dict[str, Any] = {}
    judges: dict[str, Judge] = {}
    mitigations: dict[str, Mitigation] = {}
    best_of: BestOf = BestOf()
    plans: list[Plan] = []
    given: list[GivenArm] = Field(default=[], alias="arms")

    _where: str = PrivateAttr(default="study file")
    _folder: Path = PrivateAttr(default=Path())
    _given: dict[str, Given] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, path: Path | str) -> StudyFile:
        """The study in ``path``; raises :class:`ConfigError` naming file, key and remedy."""
        path = Path(path)
        return cls.from_dict(
            load_toml(path, keep_references=True), where=str(path), folder=path.parent
        )

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], *, where: str = "study file", folder: Path | None = None
    ) -> StudyFile:
        """A study from plain data; ``where`` opens every complaint.

        Relative paths start at ``folder``. Files that it names are read; data sets are not.
        """
        study = validate(cls, dict(data), where)
        study._where, study._folder = where, folder or Path()  # noqa: SLF001  (its own)
        study._given = read_given(study)  # noqa: SLF001
        check_study(study)
        return study

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= one < 2**32 for one in seeds):
            raise ValueError("must be different whole numbers from 0 to 2**32 - 1, at least one")
        return seeds

    @field_validator("judges", "mitigations")
    @classmethod
    def _named(cls, tables: dict[str, Any]) -> dict[str, Any]:
        for name in tables:
            try:
                plain(name)
            except ValueError as error:
                raise ValueError(f"{name!r}: {error}") from None
        return tables

    @property
    def where(self) -> str:
        """The file the study came from, for messages."""
        return self._where

    @property
    def folder(self) -> Path:
        """What the file's relative paths start from."""
        return self._folder

    @property
    def given_arms(self) -> dict[str, Given]:
        """The arms that are given as whole run files, by name."""
        return self._given

    @property
    def warnings(self) -> list[str]:
        """What can be run, but shows less than it could."""
        return warnings_of(self)

    @property
    def is_tiny(self) -> bool:
        """Whether the policy is a small model made on the spot."""
        trained = self.policy_file(self.seeds[0])
        return (self.first_run(0).model.base if trained is None else trained.model.path) == TINY

    @property
    def best_of_seeds(self) -> list[int]:
        """The seeds whose first policies answer many times."""
        return list(self.seeds) if self.best_of.answers else []

    @property
    def scorers(self) -> list[str]:
        """All that score every checkpoint: the judges, those of given arms, then the gold."""
        named = [*self.judges, *dict.fromkeys(one.judge for one in self._given.values())]
        return [*(name for name in named if name != self.gold), self.gold]

    @property
    def cells(self) -> list[Cell]:
        """What is trained, times the seeds: judge and mitigation, with the plans that ask for it.

        Raises :class:`ConfigError` for levels that find no judge, or several.
        """
        return cells_of(self)

    def roles(self) -> dict[str, dict[str, Any]]:
        """Of each scorer its ``levels``, ``bias`` and ``role``: training, held_out or gold.

        Those of a panel that is trained on are not held out. A panel has its ``members``, too.
        """
        known: dict[str, dict[str, Any]] = {self.gold: {"levels": {}, "bias": {}}}
        for name, judge in self.judges.items():
            known[name] = {"levels": judge.levels, "bias": judge.bias}
            if judge.members is not None:
                known[name]["members"] = list(judge.members)
        for one in reversed(self._given.values()):  # the first of a judge describes it
            known[one.judge] = {"levels": one.table.levels, "bias": one.table.bias}
        trained_on = {cell.judge for cell in self.cells}
        trained_on |= {one for name in trained_on for one in known[name].get("members", [])}
        found = {}
        for name in self.scorers:
            role = "training" if name in trained_on else "held_out"
            found[name] = {**known[name], "role": "gold" if name == self.gold else role}
        return found

    def arms(self, folder: Path) -> list[Arm]:
        """All arms of the study in ``folder``, the seeds of a cell together."""
        return arms_of(self, folder)

    def training_files(self, folder: Path) -> dict[str, JudgeFile]:
        """Of each trained judge its training file, in an order in which they can be trained."""
        return {name: one.file() for name, one in training_tables(self, folder).items()}

    def training_waves(self, folder: Path) -> list[dict[str, dict[str, Any]]]:
        """The plain tables of these by folder (``judges/NAME``).

        All of a wave can be trained at once, after the waves before.
        """
        return training_waves(self, folder)

    def policy_file(self, seed: int) -> JudgeFile | None:
        """What makes the policy that the arms of ``seed`` begin with; ``None``: see `first_run`."""
        found = policy_tables(self, seed)
        return None if found is None else found.file()

    def first_run(self, seed: int) -> RunFile:
        """A run file whose base and warm start are the policy of ``seed``."""
        return first_tables(self, seed).run()

    def policy_data(self, seed: int) -> dict[str, Any]:
        """The plain tables of the one or the other."""
        found = policy_tables(self, seed)
        return first_tables(self, seed).data if found is None else found.data

    def scorer_run(self, name: str, folder: Path) -> RunFile:
        """A run file whose reward is exactly what ``name``, one of :attr:`scorers`, says."""
        return scorer_tables(self, name, folder).run()

    def scorer_data(self, name: str, folder: Path) -> dict[str, Any]:
        """The plain tables of this; its relative paths start at ``scorer_run(…).folder``."""
        return scorer_tables(self, name, folder).data

    def gold_run(self, folder: Path) -> RunFile:
        """A run file whose reward is exactly the gold."""
        return self.scorer_run(self.gold, folder)

    def known_mitigation(self, name: str) -> dict[str, Any]:
        """The run-file tables of a mitigation; ``none`` has none."""
        return {} if name == NONE else self.mitigations[name].run

    def refuse(self, key: str, message: str) -> NoReturn:
        """Raise :class:`ConfigError` about one key of the file."""
        raise ConfigError(f"{self._where}: {key}: {message}")
