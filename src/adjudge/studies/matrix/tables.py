"""The tables of a study file: their keys, types and defaults, one class a table."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = [
    "GIVEN",
    "NONE",
    "BestOf",
    "GivenArm",
    "Judge",
    "LevelValue",
    "Mitigation",
    "Plan",
    "Policy",
    "Question",
    "Training",
    "plain",
    "same_level",
]

LevelValue = bool | int | str | Annotated[float, Field(allow_inf_nan=False)]
"""A level of a factor: a judge's family, its size, whether it thinks."""

Question = Literal["bias", "size", "ensemble", "failure", "other"]

Training = dict[str, Any] | str
"""The tables of a training file, or its name."""

NONE = "none"
"""The mitigation that changes nothing; every study has it."""

GIVEN = "arms"
"""The plan of the arms that are given as whole run files."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}\Z")


def same_level(left: LevelValue, right: LevelValue) -> bool:
    """Whether two levels are one: 8 is 8.0, but true is not 1.

    >>> same_level(8, 8.0), same_level(True, 1)
    (True, False)
    """
    return isinstance(left, bool) == isinstance(right, bool) and left == right


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def plain(name: str) -> str:
    """``name`` as that of a folder; raises ``ValueError``."""
    if not _NAME.match(name) or name.endswith("."):
        raise ValueError(
            "a name is letters, digits, '_', '.', '-', begins with a letter or digit, does not end "
            "with '.', and has 61 characters at most"
        )
    return name


class Policy(_Table):
    """``[policy]``: how the policies that all arms begin with are made, one a seed.

    ``train``: the tables of a training file (``method = "sft"``) or its name, relative to the study
    file. Without this table ``[run.model] base`` is it, after ``[run.training]
    warm_start_iterations``.
    """

    train: Training


class BestOf(_Table):
    """``[best_of]``: many answers of each first policy, for what the best of n would be worth.

    ``answers`` to each of the first ``prompts`` held-out prompts; ``answers = 0``: none are drawn.
    """

    prompts: int = Field(default=16, ge=1)
    answers: int = Field(default=64, ge=0)


class Judge(_Table):
    """``[judges.NAME]``: who can be trained on, and scores the answers of every checkpoint.

    ``levels`` is what plans and tables call it by; ``bias`` has its dials, where they are known.
    ``held_out``: it is never trained on. Exactly one of: ``train`` (tables of a training file of a
    judge, or a file's name; ``model.path`` may be ``@NAME``, another trained judge of the study, or
    ``@policy``), ``members`` (a panel of trained judges, one number by ``aggregate`` and ``beta``),
    ``run`` (what it changes in a run file: ``graders``, ``judge``, ``services.judge_url``).
    """

    levels: dict[str, LevelValue] = {}
    bias: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = {}
    held_out: bool = False
    train: Training | None = None
    members: list[str] | None = None
    aggregate: Literal["weighted_mean", "min", "soft_min"] = "weighted_mean"
    beta: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    run: dict[str, Any] | None = None

    @field_validator("levels")
    @classmethod
    def _not_taken(cls, levels: dict[str, LevelValue]) -> dict[str, LevelValue]:
        taken = sorted({*Plan.model_fields, "seed"} & levels.keys())
        if taken:
            raise ValueError(f"{taken[0]!r} is a key of plans; call the level something else")
        return levels

    @model_validator(mode="after")
    def _one_kind(self) -> Judge:
        kinds = [name for name in ("train", "members", "run") if getattr(self, name) is not None]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none"
            raise ValueError(f"needs exactly one of train, members, run; found {found}")
        if self.members is None and self.model_fields_set & {"aggregate", "beta"}:
            raise ValueError("aggregate and beta are for a panel (members); leave them out")
        if self.members is not None and len(set(self.members)) < max(2, len(self.members)):
            raise ValueError("members: a panel has two judges at least, and each once")
        return self


class Mitigation(_Table):
    """``[mitigations.NAME]``: ``run`` has the tables of a run file that it changes.

    Its graders come after the judge's.
    """

    run: dict[str, Any]


class Plan(_Table):
    """``[[plans]]``: a factorial block; everything listed is crossed, times the study's seeds.

    ``judge`` lists judges by name; any other key lists levels, and each combination of them must
    find exactly one judge that is not held out. ``skip`` lists combinations (or parts of them) that
    are left out. ``question`` is which figure answers the plan, with ``x`` (a bias or a level of
    its judges, or ``mitigation``) on its axis.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    __pydantic_extra__: dict[str, list[LevelValue]]

    name: str
    title: str = ""
    note: str = ""
    question: Question = "other"
    x: str | None = None
    judge: list[str] | None = None
    mitigation: list[str] = [NONE]
    skip: list[dict[str, LevelValue]] = []

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        return plain(name)

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
    def _something(self) -> Plan:
        if self.judge is not None and self.levels:
            other = next(iter(self.levels))
            raise ValueError(f"judge lists judges by name, so {other!r}, a level, has no use here")
        if self.judge is None and not self.levels:
            raise ValueError("list judges by name (judge), or levels (family, size, …)")
        for factor, values in self.factors.items():
            if not values:
                raise ValueError(f"{factor} lists nothing")
            if any(same_level(one, two) for i, one in enumerate(values) for two in values[:i]):
                raise ValueError(f"{factor} lists something twice")
        return self


class GivenArm(_Table):
    """``[[arms]]``: an arm given as a whole run file.

    ``differs``: the keys (or tables) in which it differs from the study's other arms on purpose,
    such as ``rollout.scaffold``. ``levels`` and ``bias`` are those of its judge, for reports.
    """

    name: str
    file: str
    levels: dict[str, LevelValue] = {}
    bias: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = {}
    differs: list[str] = []

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        return plain(name)
