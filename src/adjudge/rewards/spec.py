"""The reward spec: one TOML file that says what is asked and how the answers become a reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import msgspec
from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializeAsAny,
    Tag,
    field_validator,
    model_validator,
)

from adjudge.config import suggest_name
from adjudge.config_tables import UNNAMED, ConfigFile, ConfigTable
from adjudge.errors import ConfigError, Metadata
from adjudge.graders.binding import check_machines
from adjudge.graders.registry import (
    build_grader,
    is_grader,
    list_parameters,
    load_grader_class,
    name_type,
)
from adjudge.judges.base import ChatModel
from adjudge.judges.table import (
    NOT_ABOUT_REPLIES,
    AddressedTable,
    JudgeTable,
    build_judge,
)
from adjudge.types import Reduce

if TYPE_CHECKING:
    from adjudge.judges.cassette import ReplyCache
    from adjudge.judges.endpoint.settings import SpendCeiling

GraderScope = Literal["outcome", "event"]
AggregateMethod = Literal["weighted_mean", "points", "min"]
CombineMode = Literal["replace", "weighted_sum", "multiply"]
EventReduce = Literal["sum", "mean"]
GroupStep = Literal["none", "centre", "rloo", "z_score", "gdpo", "rank", "best_bonus"]
MissingPolicy = Literal["mask", "drop_group", "fallback", "raise"]

_Name = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*$")]
"""Letters, digits, ``_ . -``."""
Problems = Iterator[tuple[str, str]]
"""Keys that are wrong, and why."""

_RESERVED = ("source", "events")  # keys of a result's details beside the graders' names
# How a run is driven, not what it says: changing these resumes.
_NOT_HASHED: Metadata = {
    "max_concurrency": True,
    "missing": {"max_missing", "patience_s"},
    "judges": {"__all__": NOT_ABOUT_REPLIES},
}


def is_trained_judge(folder: Path | str) -> bool:
    """Whether ``folder`` is what training a judge leaves: it has a card beside its spec."""
    return (Path(folder) / "judge.json").is_file()


class PanelSettings(ConfigTable):
    """``panel`` of a grader that asks several judges, or one several times."""

    votes: int = Field(default=1, ge=1)
    """How often each judge is asked, from 1 to 100."""
    reduce: Reduce | None = None
    """How answers become one: ``mean``, ``median`` or ``vote``; by default ``mean``, for a gate
    ``vote``."""
    quorum: int | None = Field(default=None, ge=1)
    """The fewest answers that count, of judges × votes; by default all."""


class WeightSchedule(ConfigTable):
    """``weight = { from = 0.2, to = 0.0, steps = 300 }``: a weight that changes while one trains.

    In a straight line from ``from`` at step 0 to ``to`` at step ``steps``, and ``to`` ever after.

    >>> schedule = WeightSchedule.model_validate({"from": 0.2, "to": 0.0, "steps": 300})
    >>> [schedule.at(step) for step in (0, 150, 300, 1000)]
    [0.2, 0.1, 0.0, 0.0]
    """

    model_config = ConfigDict(serialize_by_alias=True)

    start: float = Field(alias="from", allow_inf_nan=False)
    """The weight at step 0."""
    end: float = Field(alias="to", allow_inf_nan=False)
    """The weight from step ``steps`` on."""
    steps: int = Field(ge=1)
    """How many steps the line takes."""

    def at(self, step: int) -> float:
        """The weight at a training step, from 0."""
        if step >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * (max(step, 0) / self.steps)

    @model_validator(mode="after")
    def _one_sign(self) -> Self:
        if self.start * self.end < 0:
            raise ValueError(
                "from and to must have the same sign, or a reward would become a punishment "
                f"(found {self.start:g} and {self.end:g})"
            )
        return self


def _find_kind(weight: object) -> str:
    return f"{UNNAMED}schedule" if isinstance(weight, Mapping | WeightSchedule) else UNNAMED


Weight = Annotated[
    Annotated[float, Field(allow_inf_nan=False), Tag(UNNAMED)]
    | Annotated[WeightSchedule, Tag(f"{UNNAMED}schedule")],
    Discriminator(_find_kind),
]
"""A number, or a schedule."""


class GraderEntry(ConfigTable):
    """One ``[[graders]]`` table: these keys, and the parameters of its type.

    In Python ``type`` may be a function, a class or a grader object; it reads as its name.
    """

    model_config = ConfigDict(extra="allow")

    name: _Name
    """Your name for the grader: letters, digits, ``_ . -``. Rows of ``rewards.jsonl`` have
    ``NAME_score``."""
    type: str
    """A shipped type, ``module:Class`` of your own, or a name that an installed package brings."""
    weight: Weight = 1.0
    """The grader's weight; 0: its score is reported and never needed. Or a schedule."""
    scope: GraderScope = "outcome"
    """``outcome`` judges the whole response, ``event`` each event of it."""
    mapper: dict[str, str] | None = None
    """``{ field = "column" }`` where your rows call a field otherwise; dots are allowed."""
    judge: str | Annotated[list[str], Field(min_length=1)] | None = None
    """The ``[judges.NAME]`` that is asked, or a list of several; not needed with one table."""
    panel: PanelSettings | None = None
    """``votes``, ``reduce``, ``quorum`` for several judges or votes."""
    _object: object = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_object(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        given = data.get("type") if isinstance(data, Mapping) else None
        if isinstance(given, str) or not is_grader(given):
            return handler(data)
        entry = handler({**data, "type": name_type(given)})
        entry._object = given  # noqa: SLF001  (its own)
        return entry

    @property
    def grader_type(self) -> Any:
        """What the type means: the object that was given for it, else its name."""
        return self.type if self._object is None else self._object

    @field_validator("name")
    @classmethod
    def _free(cls, name: str) -> str:
        if name in _RESERVED:
            raise ValueError("is a key of the results. Choose another name.")
        return name

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight; of a schedule the first and the last, between which all others are."""
        if isinstance(self.weight, WeightSchedule):
            return self.weight.start, self.weight.end
        return (self.weight,)

    @property
    def counts(self) -> bool:
        """Whether it is ever part of a reward; else it only reports."""
        return any(self.weights)

    def weight_at(self, step: int) -> float:
        """The weight at a training step."""
        return self.weight.at(step) if isinstance(self.weight, WeightSchedule) else self.weight


class JudgedReward(ConfigTable):
    """From a sample's judge results, and the environment's reward, to its reward.

    What a reward spec says in ``[reward]`` and the run file of a training in ``[judge]``.
    """

    aggregate: AggregateMethod = "weighted_mean"
    """``weighted_mean``, ``points`` or ``min``."""
    combine_mode: CombineMode = "replace"
    """``replace``, ``weighted_sum`` or ``multiply``."""
    event_weight: float = Field(default=0.0, allow_inf_nan=False)
    """The weight of E."""
    outcome_weight: float = Field(default=1.0, allow_inf_nan=False)
    """The weight of O."""
    event_reduce: EventReduce = "sum"
    """E is the ``sum`` or the ``mean`` over events."""
    judge_scale: float = Field(default=1.0, allow_inf_nan=False)
    """The factor s of the judged part."""
    sample_rate: float = Field(default=1.0, gt=0, le=1)
    """The share of groups that is judged, drawn anew in each step."""

    @property
    def undrawn_problem(self) -> str | None:
        """Why nobody can train with this ``sample_rate``, if so."""
        if self.sample_rate == 1 or self.combine_mode == "weighted_sum":
            return None
        return (
            f"must be 1 in training under combine_mode = {self.combine_mode!r}, since a group that "
            f"is not drawn has no reward there (found {self.sample_rate:g}). Set 1, or "
            "combine_mode = 'weighted_sum', under which it keeps the environment's reward."
        )


class RewardSettings(JudgedReward):
    """``[reward]``: from a sample's results to its reward."""

    normalise: bool = True
    """Whether scores become shares of their range before they are aggregated."""
    group: GroupStep = "none"
    """``none``, ``centre``, ``rloo``, ``z_score``, ``gdpo``, ``rank`` or ``best_bonus``."""
    bonus: float = Field(default=0.1, allow_inf_nan=False)
    """What ``best_bonus`` adds."""
    seed: int = 0
    """The seed of ``sample_rate``."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.group == "gdpo" and self.aggregate not in ("weighted_mean", "points"):
            raise ValueError(
                'group: "gdpo" adds up graders with their weights, after each was normalised. '
                f"Leave aggregate out (found aggregate = {self.aggregate!r})"
            )
        if self.event_weight == 0 and self.outcome_weight == 0:
            raise ValueError(
                "event_weight and outcome_weight are both 0, so no grader counts. Set one of them."
            )
        return self


class MissingSettings(ConfigTable):
    """``[missing]``: what a reward that stays missing means, and when to stop."""

    policy: MissingPolicy = "mask"
    """``mask``, ``drop_group``, ``fallback`` or ``raise``."""
    fallback: str | None = None
    """The rule grader that replaces the judges under ``policy = "fallback"``."""
    suspect: Literal["missing", "min"] = "missing"
    """``min``: a failure that the answer may have caused counts as the grader's worst score."""
    max_missing: float = Field(default=0.5, gt=0, le=1)
    """The share of missing samples above which adjudge waits for the judge, or stops."""
    patience_s: float = Field(default=600.0, ge=0, allow_inf_nan=False)
    """For how many seconds adjudge asks again in an outage, before it raises
    ``JudgeUnavailable``."""


class RewardSpec(ConfigFile):
    """A whole spec; :meth:`load` reads one from a file.

    >>> graders = [{"name": "right", "type": "answer", "answer_type": "NUMBER"}]
    >>> spec = RewardSpec.from_dict({"graders": graders, "reward": {"group": "z_score"}})
    >>> spec.graders[0].name, spec.reward.group, spec.missing.policy
    ('right', 'z_score', 'mask')
    """

    version: int = Field(default=1, ge=1, le=1)
    graders: list[GraderEntry] = Field(min_length=1)
    judges: dict[_Name, SerializeAsAny[JudgeTable]] = Field(default={})
    reward: RewardSettings = RewardSettings()
    missing: MissingSettings = MissingSettings()
    max_concurrency: int = Field(default=32, ge=1)
    """How many questions to graders are open at the same time."""

    unnamed: ClassVar[str] = "spec"

    @classmethod
    def load(cls, path: Path | str, **options: object) -> Self:
        """The spec in ``path``; raises :class:`ConfigError` naming file, key and remedy.

        The folder of a trained judge means the spec in the folder.
        """
        path = Path(path)
        if is_trained_judge(path):
            path = path / "reward.toml"
            if not path.is_file():
                raise ConfigError(
                    f"{path.parent}: has no reward.toml, since its judge was trained to answer, "
                    "not to judge"
                )
        return super().load(path, **options)

    @property
    def hash(self) -> str:
        """Of everything the spec says about rewards, comments and key order aside."""
        said = self.model_dump(mode="json", exclude=_NOT_HASHED)
        content = msgspec.json.encode(said, order="sorted")
        return sha256(content).hexdigest()[:16]

    def with_patience(self, seconds: float) -> Self:
        """The same spec with another ``patience_s``."""
        missing = self.missing.model_copy(update={"patience_s": seconds})
        return self.model_copy(update={"missing": missing})

    @property
    def counting(self) -> set[str]:
        """The graders without which a reward is missing."""
        weights = {"outcome": self.reward.outcome_weight, "event": self.reward.event_weight}
        return {g.name for g in self.graders if g.counts and weights[g.scope] != 0}

    @property
    def group_setting(self) -> str | None:
        """The setting that compares the samples of a group; ``None`` where none does."""
        if self.reward.group != "none":
            return f"reward.group = {self.reward.group!r}"
        if self.missing.policy in ("drop_group", "fallback"):
            return f"missing.policy = {self.missing.policy!r}"
        return None

    @property
    def schedules(self) -> dict[str, WeightSchedule]:
        """The weights that change with the training step, by grader."""
        return {g.name: g.weight for g in self.graders if isinstance(g.weight, WeightSchedule)}

    @property
    def schedule_ends(self) -> list[int]:
        """The steps at which a line begins or ends: a weight is 0 there, or at no step."""
        return sorted({0, *(one.steps for one in self.schedules.values())})

    def at_step(self, step: int) -> Self:
        """The spec with the numbers that its schedules come to at a training step."""
        if not self.schedules:
            return self
        graders = [g.model_copy(update={"weight": g.weight_at(step)}) for g in self.graders]
        return self.model_copy(update={"graders": graders})

    def refuse_schedules(self, who: str, remedy: str) -> None:
        """Raise :class:`ConfigError` where a weight needs a step, and ``who`` knows of none."""
        for name in self.schedules:
            why = f"is a schedule over training steps, and {who} knows of no step. {remedy}"
            self.refuse(f"graders.{name}.weight", why)

    def refuse_undrawn(self) -> None:
        """Raise :class:`ConfigError` where ``sample_rate`` would leave groups without a reward."""
        if problem := self.reward.undrawn_problem:
            self.refuse("reward.sample_rate", problem)

    def build_judges(
        self, cache: ReplyCache | None = None, budget: SpendCeiling | None = None
    ) -> dict[str, ChatModel]:
        """The chat models of ``[judges]`` by name; raises :class:`ConfigError`.

        ``cache`` takes the place of every cache that the tables name; ``budget`` is for all calls
        together, beside each endpoint's own ceiling; paid judges then need a price.
        """
        is_bounded = budget is not None and budget.ceiling is not None
        for name, table in self.judges.items():
            if not (isinstance(table, AddressedTable) and table.price is None):
                continue
            own_ceiling = table.endpoint and table.endpoint.budget_usd
            if is_bounded or own_ceiling is not None:
                raise ConfigError(
                    f"{self._where}: judges.{name}.price: is required with a budget. "
                    "Give US dollars per million tokens: input, output."
                )
        return {
            name: build_judge(
                name, table, where=self.where, folder=self.source_folder, cache=cache, budget=budget
            )
            for name, table in self.judges.items()
        }

    def build_graders(self, judges: Mapping[str, ChatModel] | None = None) -> Metadata:
        """The grader objects by name, asking ``judges`` (default: the spec's own).

        Raises :class:`ConfigError`.
        """
        judges = self.build_judges() if judges is None else judges
        return {entry.name: self.build_grader(entry, judges) for entry in self.graders}

    def build_grader(self, entry: GraderEntry, judges: Mapping[str, ChatModel]) -> Any:
        """The grader object of one entry; raises :class:`ConfigError`."""
        return build_grader(
            entry.grader_type,
            entry.name,
            entry.model_extra or {},
            where=f"{self.where}: graders.{entry.name}",
            folder=self.source_folder,
            judges=judges,
            judge=entry.judge,
            panel=None if entry.panel is None else entry.panel.model_dump(),
        )

    def check_machine(self, graders: Mapping[str, object]) -> None:
        """:func:`~adjudge.graders.binding.check_machines`, which names the file."""
        check_machines(graders, f"{self.where}: ")

    def asks_judge(self, entry: GraderEntry) -> bool:
        """Whether an entry's class takes a chat model; raises :class:`ConfigError`."""
        where = f"{self.where}: graders.{entry.name}: type"
        cls = load_grader_class(entry.grader_type, self.source_folder, where=where)
        return any(parameter.is_judge for parameter in list_parameters(cls))

    def _check(self) -> None:
        by_entry = map(self._check_entry, self.graders)
        self.refuse_first(self._check_counting(), self._check_fallback(), *by_entry)

    def _check_counting(self) -> Problems:
        """Each scope that has a weight has a grader with one, at both ends of each schedule."""
        names = Counter(entry.name for entry in self.graders)
        if repeated := [name for name, count in names.items() if count > 1]:
            yield "graders", f"the name {repeated[0]!r} is used twice"
        if not any(entry.counts for entry in self.graders):
            yield "graders", "every weight is 0, so no grader makes a reward. Set a weight."
        if self.reward.group != "none" and self.reward.outcome_weight == 0:
            why = "compares outcomes, but outcome_weight is 0. Set it, or group = 'none'."
            yield "reward.group", why
        if self.reward.aggregate != "points":
            for entry in self.graders:
                if (lowest := min(entry.weights)) < 0:
                    why = (
                        f"must be at least 0 with aggregate = {self.reward.aggregate!r} (found "
                        f"{lowest}). Use aggregate = 'points' for signed points. Give a penalty "
                        "grader a positive weight; its score is negative."
                    )
                    yield f"graders.{entry.name}.weight", why
        for scope, weight in (
            ("event", self.reward.event_weight),
            ("outcome", self.reward.outcome_weight),
        ):
            counting = [g for g in self.graders if g.scope == scope and g.counts]
            if counting and scope == "event" and "event_weight" not in self.reward.model_fields_set:
                why = (
                    "is 'event', but reward.event_weight is not set. Set it; 0 asks about every "
                    "event for the report only."
                )
                yield f"graders.{counting[0].name}.scope", why
            if weight != 0 and not counting:
                why = (
                    f"is {weight}, but no grader has scope = {scope!r} and a weight. Set it to 0, "
                    "or add such a grader."
                )
                yield f"reward.{scope}_weight", why
            for step in self.schedule_ends if counting else ():
                if not any(one.weight_at(step) for one in counting):
                    why = (
                        f"at step {step} no grader of scope = {scope!r} has a weight, so there is "
                        "no reward. Let one keep a weight above 0."
                    )
                    yield f"graders.{counting[0].name}.weight", why

    def _check_fallback(self) -> Problems:
        wanted, names = self.missing.fallback, [entry.name for entry in self.graders]
        if (self.missing.policy == "fallback") != (wanted is not None):
            why = "must name a rule grader where policy = 'fallback', and be absent elsewhere"
            yield "missing.fallback", why
        if wanted is not None and wanted not in names:
            hint, allowed = suggest_name(wanted, names), ", ".join(names)
            why = f"no grader has this name{hint} (found {wanted!r}; allowed: {allowed})"
            yield "missing.fallback", why

    def _check_entry(self, entry: GraderEntry) -> Problems:
        key = f"graders.{entry.name}"
        named = [entry.judge] if isinstance(entry.judge, str) else entry.judge or []
        for name in named:
            if name not in self.judges:
                yield (
                    f"{key}.judge",
                    f"there is no [judges.{name}]{suggest_name(name, self.judges)}",
                )
        if len({*named}) < len(named):
            yield f"{key}.judge", "must name each judge once. Use panel.votes to ask one again."
        if entry.panel is not None and len(named) < 2 and entry.panel.votes < 2:
            yield f"{key}.panel", "needs several judges, or votes of 2 or more. Leave it out."
