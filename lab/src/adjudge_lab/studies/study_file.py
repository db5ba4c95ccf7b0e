"""The schema of a study file, one class a table, and tables of a run file laid over each other.

Keys of tables are dotted names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from adjudge.config import dotted_key
from adjudge.config_tables import ConfigFile, ConfigTable
from adjudge_lab.rl.runfile import PanelAggregate


def covers_key(declared: str, key: str) -> bool:
    """Whether ``declared`` is ``key`` or a table that has it.

    >>> covers_key("judge", "judge.mock.seed"), covers_key("judge", "judges")
    (True, False)
    """
    return key == declared or key.startswith(f"{declared}.")


def changed_keys(tables: Mapping[str, Any]) -> Iterator[str]:
    """The keys of tables, graders apart; a table in a table is one key.

    It may be there to be turned on, with all its defaults.

    >>> list(changed_keys({"rollout": {"scaffold": {}, "temperature": 1.0}, "graders": []}))
    ['rollout.scaffold', 'rollout.temperature']
    """
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from (dotted_key(name, key) for key in value)
        elif name != "graders":
            yield dotted_key(name)


def merge_tables(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, table by table.

    >>> merge_tables({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}, "b": 4})
    {'a': {'x': 1, 'y': 3}, 'b': 4}
    """
    found = dict(base)
    for name, value in over.items():
        known = found.get(name)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        found[name] = merge_tables(known, value) if both else value  # type: ignore[arg-type]  # both
    return found


LevelValue = bool | int | str | Annotated[float, Field(allow_inf_nan=False)]
"""A level of a factor: a judge's family, its size, whether it thinks."""

PlanQuestion = Literal["bias", "size", "ensemble", "failure", "other"]

TrainingSource = dict[str, Any] | str
"""The tables of a training file, or its name."""

NO_MITIGATION = "none"
"""The mitigation that changes nothing; every study has it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}\Z")


def same_level(left: LevelValue, right: LevelValue) -> bool:
    """Whether two levels are one: 8 is 8.0, but true is not 1.

    >>> same_level(8, 8.0), same_level(True, 1)
    (True, False)
    """
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def check_name(name: str) -> str:
    """``name`` as that of a folder; raises ``ValueError``."""
    if not _NAME.match(name) or name.endswith("."):
        raise ValueError(
            "a name must be letters, digits, '_', '.', '-', begin with a letter or digit, not end "
            "with '.', and have at most 61 characters"
        )
    return name


FolderName = Annotated[str, AfterValidator(check_name)]


class StudyPolicy(ConfigTable):
    """``[policy]``: how the policies that all arms begin with are made, one a seed.

    ``train``: the tables of a training file (``method = "sft"``) or its name, relative to the study
    file. Without this table ``[run.model] base`` is it, after ``[run.training]
    warm_start_iterations``.
    """

    train: TrainingSource


class BestOfTable(ConfigTable):
    """``[best_of]``: many answers of each first policy, for what the best of n would be worth.

    ``answers`` to each of the first ``prompts`` held-out prompts; ``answers = 0``: none are drawn.
    """

    prompts: int = Field(default=16, ge=1)
    answers: int = Field(default=64, ge=0)


class StudyJudge(ConfigTable):
    """``[judges.NAME]``: who can be trained on, and scores the answers of every checkpoint.

    ``levels`` is what plans and tables call it by; ``bias`` has its dials, where they are known.
    ``held_out``: it is never trained on. Exactly one of: ``train`` (tables of a training file of a
    judge, or a file's name; ``model.path`` may be ``@NAME``, another trained judge of the study, or
    ``@policy``), ``members`` (a panel of trained judges, one number by ``aggregate``),
    ``run`` (what it changes in a run file: ``graders``, ``judge``, ``services.judge_url``).
    """

    levels: dict[str, LevelValue] = Field(default={})
    bias: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default={})
    held_out: bool = False
    train: TrainingSource | None = None
    members: list[str] | None = None
    aggregate: PanelAggregate = "weighted_mean"
    run: dict[str, Any] | None = None

    @field_validator("levels")
    @classmethod
    def _not_taken(cls, levels: dict[str, LevelValue]) -> dict[str, LevelValue]:
        taken = sorted({*StudyPlan.model_fields, "seed"} & levels.keys())
        if taken:
            raise ValueError(f"{taken[0]!r} is a key of plans. Give the level another name.")
        return levels

    @model_validator(mode="after")
    def _one_kind(self) -> StudyJudge:
        kinds = [name for name in ("train", "members", "run") if getattr(self, name) is not None]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none"
            raise ValueError(f"needs exactly one of train, members, run (found {found})")
        if self.members is None and "aggregate" in self.model_fields_set:
            raise ValueError("aggregate is only for a panel (members). Leave it out.")
        if self.members is not None and len(set(self.members)) < max(2, len(self.members)):
            raise ValueError("members: a panel must have at least two judges, and each once")
        return self


class Mitigation(ConfigTable):
    """``[mitigations.NAME]``: ``run`` has the tables of a run file that it changes.

    Its graders come after the judge's.
    """

    run: dict[str, Any]


class StudyPlan(ConfigTable):
    """``[[plans]]``: a factorial block; everything listed is crossed, times the study's seeds.

    ``judge`` lists judges by name; any other key lists levels, and each combination of them must
    find exactly one judge that is not held out. ``skip`` lists combinations (or parts of them) that
    are left out. ``question`` is which figure answers the plan, with ``x`` (a bias or a level of
    its judges, or ``mitigation``) on its axis.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[LevelValue]]

    name: FolderName
    title: str = ""
    note: str = ""
    question: PlanQuestion = "other"
    x: str | None = None
    judge: list[str] | None = None
    mitigation: list[str] = Field(default=[NO_MITIGATION])
    skip: list[dict[str, LevelValue]] = Field(default=[])

    @property
    def levels(self) -> dict[str, list[LevelValue]]:
        """The levels that are crossed, by factor."""
        return dict(self.__pydantic_extra__)

    @property
    def factors(self) -> dict[str, list[LevelValue]]:
        """All that is crossed but the seeds."""
        by_name: dict[str, list[LevelValue]] = (
            {} if self.judge is None else {"judge": [*self.judge]}
        )
        return {**by_name, **self.levels, "mitigation": [*self.mitigation]}

    @model_validator(mode="after")
    def _something(self) -> StudyPlan:
        if self.judge is not None and self.levels:
            other = next(iter(self.levels))
            raise ValueError(
                f"judge lists judges by name, so the level {other!r} has no effect. Leave it out."
            )
        if self.judge is None and not self.levels:
            raise ValueError(
                "a plan must have judges. List them by name (judge), or by levels (family, size, "
                "…)."
            )
        for factor, values in self.factors.items():
            if not values:
                raise ValueError(f"{factor} must not be empty")
            if any(same_level(one, two) for i, one in enumerate(values) for two in values[:i]):
                raise ValueError(f"{factor} lists a value twice")
        return self


class StudyFile(ConfigFile):
    """A whole study; :class:`~adjudge_lab.studies.study.Study` checks one and reads what it names.

    ``gold`` names the grader of ``[[run.graders]]``, or the held-out judge, that says what is
    really wanted. ``seeds`` are three at least, unless it is a ``pilot``. ``run`` has the tables of
    a run file that all arms share, with the graders that are watched (weight 0).
    """

    unnamed: ClassVar[str] = "study file"
    keeps_references: ClassVar[bool] = True

    version: Literal[1] = 1
    kind: Literal["study"]
    label: str = ""
    seeds: list[int] = Field(default=[0, 1, 2])
    pilot: bool = False
    gold: str
    policy: StudyPolicy | None = None
    run: dict[str, Any] = Field(default={})
    judges: dict[FolderName, StudyJudge] = Field(default={})
    mitigations: dict[FolderName, Mitigation] = Field(default={})
    best_of: BestOfTable = BestOfTable()
    plans: list[StudyPlan] = Field(min_length=1)

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= one < 2**32 for one in seeds):
            raise ValueError("must be different whole numbers from 0 to 2**32 - 1, at least one")
        return seeds

    @property
    def best_of_seeds(self) -> list[int]:
        """The seeds of first policies that answer many times."""
        return list(self.seeds) if self.best_of.answers else []

    @property
    def scorers(self) -> list[str]:
        """All that score every checkpoint: the judges, then the gold."""
        return [*(name for name in self.judges if name != self.gold), self.gold]

    def known_mitigation(self, name: str) -> dict[str, Any]:
        """The run-file tables of a mitigation; ``none`` has none."""
        return {} if name == NO_MITIGATION else self.mitigations[name].run
