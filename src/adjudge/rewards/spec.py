"""The reward spec: one TOML file that says what is asked and how the answers become a reward."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from adjudge.config import load_toml, nearest, validate
from adjudge.errors import ConfigError
from adjudge.graders.llm.reduce import Reduce
from adjudge.graders.registry import build_grader, grader_class, parameters
from adjudge.judges.base import ChatModel
from adjudge.judges.budget import SpendCeiling
from adjudge.judges.cache import ReplyCache
from adjudge.judges.table import NOT_ABOUT_REPLIES, JudgeTable, build_judge
from adjudge.rewards.aggregate import AggregateMethod, GateRule, NotApplicable, Term
from adjudge.rewards.combine import CombineMode, EventReduce
from adjudge.rewards.groups import GroupStep
from adjudge.rewards.missing import MissingPolicy

__all__ = [
    "GraderEntry",
    "MissingSettings",
    "PanelSettings",
    "RewardSettings",
    "RewardSpec",
    "Scope",
    "is_trained_judge",
]

Scope = Literal["outcome", "event"]

_NAME = re.compile(r"[A-Za-z_][\w.-]*\Z")
_RESERVED = ("source", "events")  # keys of a result's details beside the graders' names
# How a run is driven, not what it says: changing these resumes.
_NOT_HASHED: dict[str, Any] = {
    "max_concurrency": True,
    "missing": {"max_missing", "patience_s"},
    "judges": {"__all__": NOT_ABOUT_REPLIES},
}


def is_trained_judge(folder: Path | str) -> bool:
    """Whether ``folder`` is what training a judge leaves: it has a card beside its spec."""
    return (Path(folder) / "judge.json").is_file()


class PanelSettings(BaseModel):
    """``panel`` of a grader that asks several judges, or one several times."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    votes: int = Field(default=1, ge=1)
    reduce: Reduce | None = None
    quorum: int | None = Field(default=None, ge=1)
    beta: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class GraderEntry(BaseModel):
    """One ``[[graders]]`` table: these keys, and the parameters of its type."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str
    type: str
    weight: float = Field(default=1.0, allow_inf_nan=False)
    essential: bool = False
    scope: Scope = "outcome"
    mapper: dict[str, str] | None = None
    judge: str | list[str] | None = None
    panel: PanelSettings | None = None

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not _NAME.match(name):
            raise ValueError("a grader's name is letters, digits, '_', '.', '-'")
        if name in _RESERVED:
            raise ValueError(f"{name!r} is a key of the results themselves; choose another name")
        return name


class RewardSettings(BaseModel):
    """``[reward]``: from a sample's results to its reward."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    aggregate: AggregateMethod = "weighted_mean"
    beta: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    gate: GateRule = "multiply"
    normalise: bool = True
    not_applicable: NotApplicable = "score"
    group: GroupStep = "none"
    bonus: float = Field(default=0.1, allow_inf_nan=False)
    combine_mode: CombineMode = "replace"
    event_weight: float = Field(default=0.0, allow_inf_nan=False)
    outcome_weight: float = Field(default=1.0, allow_inf_nan=False)
    event_reduce: EventReduce = "sum"
    judge_scale: float = Field(default=1.0, allow_inf_nan=False)
    negative_env: Literal["missing", "allow"] = "missing"
    sample_rate: float = Field(default=1.0, gt=0, le=1)
    unjudged: Literal["missing", "env"] = "missing"
    seed: int = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.unjudged == "env" and self.combine_mode != "weighted_sum":
            raise ValueError(
                'unjudged = "env" needs combine_mode = "weighted_sum": under '
                f"{self.combine_mode!r} an unjudged reward is on another scale than a judged one"
            )
        if self.event_weight == 0 and self.outcome_weight == 0:
            raise ValueError("event_weight and outcome_weight are both 0: nothing is rewarded")
        return self


class MissingSettings(BaseModel):
    """``[missing]``: what a reward that stays missing means, and when to stop."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    policy: MissingPolicy = "mask"
    min_valid: int = Field(default=2, ge=1)
    fallback: str | None = None
    suspect: Literal["missing", "min"] = "missing"
    max_missing: float = Field(default=0.5, gt=0, le=1)
    patience_s: float = Field(default=600.0, ge=0, allow_inf_nan=False)


class RewardSpec(BaseModel):
    """A whole spec; :meth:`load` reads one from a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: int = Field(default=1, ge=1, le=1)
    graders: list[GraderEntry] = Field(min_length=1)
    judges: dict[str, JudgeTable] = {}
    reward: RewardSettings = RewardSettings()
    missing: MissingSettings = MissingSettings()
    max_concurrency: int = Field(default=32, ge=1)

    _where: str = PrivateAttr(default="spec")
    _folder: Path | None = PrivateAttr(default=None)

    @classmethod
    def load(cls, path: Path | str) -> RewardSpec:
        """The spec in ``path``; raises :class:`ConfigError` naming file, key and remedy.

        The folder of a trained judge stands for the spec in it.
        """
        path = Path(path)
        if is_trained_judge(path):
            path = path / "reward.toml"
            if not path.is_file():
                raise ConfigError(
                    f"{path.parent}: its judge was taught to answer, not to judge: there is no "
                    "reward.toml"
                )
        return cls.from_dict(load_toml(path), where=str(path), folder=path.parent)

    @classmethod
    def from_dict(
        cls, data: dict[str, Any], *, where: str = "spec", folder: Path | None = None
    ) -> RewardSpec:
        """A spec from plain data; ``where`` opens every complaint."""
        spec = validate(cls, data, where)
        spec._where, spec._folder = where, folder  # noqa: SLF001  (a private attribute of its own)
        spec._check()  # noqa: SLF001
        return spec

    @property
    def hash(self) -> str:
        """Of everything the spec says about rewards, comments and key order aside."""
        said = self.model_dump(mode="json", exclude=_NOT_HASHED)
        content = msgspec.json.encode(said, order="sorted")
        return sha256(content).hexdigest()[:16]

    @property
    def where(self) -> str:
        """The file the spec came from, for messages."""
        return self._where

    def with_patience(self, seconds: float) -> Self:
        """The same spec with another ``patience_s``."""
        missing = self.missing.model_copy(update={"patience_s": seconds})
        return self.model_copy(update={"missing": missing})

    @property
    def counting(self) -> set[str]:
        """The graders without which a reward is missing."""
        weights = {"outcome": self.reward.outcome_weight, "event": self.reward.event_weight}
        return {g.name for g in self.graders if g.weight != 0 and weights[g.scope] != 0}

    def terms(self, scope: Scope) -> list[Term]:
        """Names, weights and essentials of the graders of one scope."""
        return [Term(g.name, g.weight, g.essential) for g in self.graders if g.scope == scope]

    def build_judges(
        self, cache: ReplyCache | None = None, budget: SpendCeiling | None = None
    ) -> dict[str, ChatModel]:
        """The chat models of ``[judges]`` by name; raises :class:`ConfigError`.

        ``cache`` takes the place of every cache that the tables name; ``budget`` is for all calls
        together, beside each endpoint's own ceiling.
        """
        opened: dict[str, ReplyCache] = {}
        judges = {}
        for name, table in self.judges.items():
            own = cache
            if own is None and table.cache is not None and table.cache_sampled:
                if table.cache not in opened:
                    path = (self._folder or Path()) / table.cache
                    opened[table.cache] = ReplyCache(path, sampled=True)
                own = opened[table.cache]
            judges[name] = build_judge(
                name, table, where=self._where, folder=self._folder, cache=own, budget=budget
            )
        return judges

    def build_graders(self, judges: Mapping[str, ChatModel] | None = None) -> dict[str, Any]:
        """The grader objects by name, asking ``judges`` (default: the spec's own).

        Raises :class:`ConfigError`.
        """
        judges = self.build_judges() if judges is None else judges
        return {entry.name: self.build_grader(entry, judges) for entry in self.graders}

    def build_grader(self, entry: GraderEntry, judges: Mapping[str, ChatModel]) -> Any:
        """The grader object of one entry; raises :class:`ConfigError`."""
        return build_grader(
            entry.type,
            entry.name,
            entry.model_extra or {},
            where=f"{self._where}: graders.{entry.name}",
            folder=self._folder,
            judges=judges,
            judge=entry.judge,
            panel=None if entry.panel is None else entry.panel.model_dump(),
        )

    def asks_judge(self, entry: GraderEntry) -> bool:
        """Whether an entry's class takes a chat model; raises :class:`ConfigError`."""
        return any(p.is_judge for p in parameters(grader_class(entry.type, self._folder)))

    def _check(self) -> None:
        counts = Counter(entry.name for entry in self.graders)
        if repeated := [name for name, count in counts.items() if count > 1]:
            self._refuse("graders", f"the name {repeated[0]!r} is used twice")
        if all(entry.weight == 0 for entry in self.graders):
            self._refuse("graders", "every weight is 0, so nothing makes a reward")
        if self.reward.group != "none" and self.reward.outcome_weight == 0:
            self._refuse("reward.group", "compares outcomes, but outcome_weight is 0")
        self._check_weights()
        self._check_scopes()
        self._check_fallback(counts)
        self._check_judges()

    def _check_weights(self) -> None:
        method = self.reward.aggregate
        for entry in self.graders:
            if entry.essential and (method != "min" or entry.weight == 0):
                self._refuse(
                    f"graders.{entry.name}.essential", "is for aggregate = 'min' and a weight"
                )
        if method == "points":
            return
        for entry in self.graders:
            if entry.weight < 0:
                self._refuse(
                    f"graders.{entry.name}.weight",
                    f"is {entry.weight}, but aggregate = {method!r} takes weights ≥ 0 "
                    "(signed points are aggregate = 'points'; a penalty grader is negative itself)",
                )

    def _check_scopes(self) -> None:
        for scope, weight in (
            ("event", self.reward.event_weight),
            ("outcome", self.reward.outcome_weight),
        ):
            counting = [g for g in self.graders if g.scope == scope and g.weight != 0]
            if counting and scope == "event" and "event_weight" not in self.reward.model_fields_set:
                self._refuse(
                    f"graders.{counting[0].name}.scope",
                    "is 'event', and reward.event_weight is not set: 0 asks about every event for "
                    "nothing but the report; say which",
                )
            if weight != 0 and not counting:
                self._refuse(
                    f"reward.{scope}_weight",
                    f"is {weight}, but no grader has scope = {scope!r} and a weight",
                )

    def _check_fallback(self, names: Counter[str]) -> None:
        wanted, policy = self.missing.fallback, self.missing.policy
        if (policy == "fallback") != (wanted is not None):
            self._refuse("missing.fallback", "names a rule grader, with policy = 'fallback' only")
        if wanted is not None and wanted not in names:
            self._refuse(
                "missing.fallback", f"no grader is called {wanted!r}{nearest(wanted, names)}"
            )

    def _check_judges(self) -> None:
        for name in self.judges:
            if not _NAME.match(name):
                self._refuse(
                    "judges", f"{name!r}: a judge's name is letters, digits, '_', '.', '-'"
                )
        for entry in self.graders:
            self._check_judge(entry)

    def _check_judge(self, entry: GraderEntry) -> None:
        key = f"graders.{entry.name}.judge"
        named = [entry.judge] if isinstance(entry.judge, str) else entry.judge or []
        for name in named:
            if name not in self.judges:
                hint = nearest(name, self.judges)
                self._refuse(key, f"there is no [judges.{name}]{hint}")
        if entry.judge == [] or len(set(named)) < len(named):
            self._refuse(key, "must name judges, each once (ask one again with panel.votes)")
        left_out = set(NOT_ABOUT_REPLIES)
        asked = [self.judges[name].model_dump_json(exclude=left_out) for name in named]
        if len(set(asked)) < len(asked):
            self._refuse(key, "names the same judge twice: for several draws of one, panel.votes")
        if entry.panel is not None and len(named) < 2 and entry.panel.votes < 2:
            self._refuse(
                f"graders.{entry.name}.panel", "is for several judges, or votes of 2 and more"
            )

    def _refuse(self, key: str, message: str) -> NoReturn:
        raise ConfigError(f"{self._where}: {key}: {message}")
