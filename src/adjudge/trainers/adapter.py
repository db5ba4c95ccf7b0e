"""The base of every adapter: a trainer's rows in, rewards out, and what holds in all of them.

An adapter is what differs between trainers: where rows and groups come from, and how its trainer
leaves a sample out. It derives from :class:`Adapter`, which has the rest: the reward spec, the
fields that graders see, refusals of a spec that the trainer's calls cannot serve, metrics by name.

What graders see of a row is the same in every trainer, and in every other door
(:mod:`adjudge.intake`): ``prompt``, ``response``, ``messages`` where there is a conversation,
``reference``, and every column of the dataset under its own name, but for those that are about the
rollout (:data:`ROLLOUT_FIELDS`). ``env_reward`` is the column of that name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, TypeVar, Unpack

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, GradingFailure
from adjudge.intake.columns import ReferenceChoice, without_arrays
from adjudge.intake.rollouts import ThinkingWatch, compute_prompt_key, make_sample
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.fields import digest_prompt
from adjudge.trainers.scoring import SPEC_VARIABLE, ScoreOptions, Scorer, ScorerResult
from adjudge.types import RewardResult, Sample

if TYPE_CHECKING:  # most trainers record nothing, and need not wait for what does
    from adjudge.trainers.recorder import FlightRecorder

DEFAULT_NAME = "adjudge"
"""What a reward is called in a trainer's log, unless it is given a name."""

ROLLOUT_FIELDS = frozenset({"prompt", "response", "messages", "finish_reason"})
"""The fields that come from the rollout, so that a column of the dataset cannot replace them."""

ROLLOUT_FIELD_ERROR = (
    "columns: {!r} comes from the rollout, not from the dataset. Use another field, such as "
    "'reference' or 'env_reward', or 'messages' where the trainer has a rollout_func."
)

_log = logging.getLogger("adjudge")

_T = TypeVar("_T")
AdapterT = TypeVar("AdapterT", bound="Adapter")


class AdapterOptions(TypedDict, total=False):
    """The options of every adapter; see :class:`Adapter`."""

    name: str
    columns: Mapping[str, str] | None
    record: FlightRecorder | Path | str | None


class Adapter:
    """A reward spec inside a trainer; derive from it for a trainer of your own.

    ``spec`` is an object, a file, a judge service's address, or by default what ``ADJUDGE_SPEC``
    names. ``name`` tells several rewards of one trainer apart. ``columns`` names the dataset column
    of a field (``{"reference": "target"}``). ``record``: a folder to write rollouts and rewards
    to, or a :class:`~adjudge.trainers.recorder.FlightRecorder`; by default what ``ADJUDGE_RECORD``
    names, if anything.

    A class says ``trainer``, its name in messages, and ``call_holds``, what one call of the trainer
    has: whole groups (``"groups"``), or one sample, when a spec that needs more is refused. Raises
    :class:`~adjudge.errors.ConfigError`.

    >>> from adjudge import RewardSpec
    >>> class Loop(Adapter):
    ...     trainer = "my loop"
    ...     def rewards(self, prompt, responses, **columns):
    ...         fields = self.select_fields(columns)
    ...         samples = [
    ...             self.make_sample(place, place, prompt, response, fields)
    ...             for place, response in enumerate(responses)
    ...         ]
    ...         return self.score(samples, groups=[prompt] * len(samples)).rewards
    >>> loop = Loop(RewardSpec.from_dict({"graders": [{"name": "right", "type": "string_match"}]}))
    >>> loop.rewards("2 + 2?", ["4", "5"], answer="4")
    [1.0, 0.0]
    """

    trainer: ClassVar[str] = "this trainer"
    call_holds: ClassVar[Literal["groups", "one sample"]] = "groups"

    def __init__(
        self,
        spec: RewardSpec | Path | str | None = None,
        *,
        name: str = DEFAULT_NAME,
        columns: Mapping[str, str] | None = None,
        record: FlightRecorder | Path | str | None = None,
    ) -> None:
        self.scorer, self.name = Scorer(spec), name
        self.spec: RewardSpec = self.scorer.spec
        self.metric_prefix = "judge/" if name == DEFAULT_NAME else f"judge/{name}/"
        self.columns = dict(columns or {})
        for field in self.columns:
            # Messages may be what a trainer's own rollout code returns, which shows when it calls.
            if field in ROLLOUT_FIELDS and field != "messages":
                raise ConfigError(ROLLOUT_FIELD_ERROR.format(field))
        self._warned: set[str] = set()
        self._thinking_watch = ThinkingWatch(self.warn)
        self._references = ReferenceChoice(self.warn, "Name it with columns={{'reference': '{}'}}.")
        if self.call_holds == "one sample":
            self._check_one_sample()
        self.spec.refuse_undrawn()
        self.scorer.start_recording(record)

    # --- a trainer's rows as samples ------------------------------------------------------------

    def select_fields(self, columns: Mapping[str, _T]) -> dict[str, _T]:
        """What a sample gets beside the rollout and the reference, by field; see the module.

        ``columns`` are one row's values by column, or whole columns. Raises
        :class:`~adjudge.errors.ConfigError` for a named column that is not there.
        """
        fields = {name: value for name, value in columns.items() if name not in ROLLOUT_FIELDS}
        for field, column in self.columns.items():
            if column not in columns:
                has = ", ".join(sorted(columns)) or "no columns beside the prompt"
                raise ConfigError(
                    f"columns: the dataset has no column for {field!r} (found {column!r}; "
                    f"allowed: {has})"
                )
            if field != "messages":
                fields[field] = columns[column]
        return fields

    def make_sample(
        self,
        index: int,
        place: int,
        prompt: Any,
        completion: Any,
        fields: dict[str, Any],
        *,
        thinks: bool | None = None,
    ) -> Sample:
        """A row as a sample: ``index`` in the batch, ``place`` in its group.

        ``prompt`` and ``completion`` are texts or lists of chat messages; a text may be one that a
        chat template rendered. A completion that is ``None`` was lost: it has no reward.
        ``thinks``: whether the chat template opens the policy's thinking, where that is known. The
        reference is the first there is of its columns; arrays of any library are lists.
        """
        fields = {name: without_arrays(value) for name, value in fields.items()}
        self._references.set(fields, fixed="reference" in self.columns)
        sample = make_sample(index, place, prompt, completion, fields, thinks=thinks)
        if thinks is None and sample.response:
            self._thinking_watch.see(sample.response)
        return sample

    def name_group(self, sample: Sample, group: object = None) -> str:
        """The ``group`` that the trainer gives, else that of all that stands before the policy.

        A sample of which neither is known is like no other.
        """
        given = "" if group is None else str(group)
        return given or digest_prompt(compute_prompt_key(sample)) or os.urandom(8).hex()

    # --- what a trainer's calls cannot serve ----------------------------------------------------

    def check_whole_groups(self, broken: str | None, remedy: str) -> None:
        """Refuse an incomplete group where the spec compares the samples of one.

        ``broken`` says why a group may be incomplete; ``None`` is that none is.
        """
        compares = self.scorer.compares_groups
        if compares is not None and broken is not None:
            raise ConfigError(
                f"{self.spec.where}: {compares} needs whole groups, but {broken}. {remedy}, or use "
                "a spec that judges each sample by itself."
            )

    def _check_one_sample(self) -> None:
        if needs := self.scorer.needs_groups:
            raise ConfigError(
                f"{self.spec.where}: {needs}: needs whole groups, but {self.trainer} scores each "
                "rollout alone. Leave it out, or let the trainer's advantage compare the group."
            )

    def check_replaces(self) -> None:
        """Refuse a spec that combines with ``env_reward`` where the trainer adds rewards itself."""
        mode = self.spec.reward.combine_mode
        if mode != "replace":
            raise ConfigError(
                f"{self.spec.where}: reward.combine_mode: must be 'replace', since {self.trainer} "
                f"adds rewards itself (found {mode!r}). Set 'replace', and weight the judge there."
            )

    def check_drawn_groups(self, setting: str | None) -> None:
        """Refuse ``sample_rate`` where a ``setting`` compares groups: some have a judge's part."""
        rate = self.spec.reward.sample_rate
        if rate < 1 and setting is not None:
            raise ConfigError(
                f"{self.spec.where}: reward.sample_rate: must be 1 beside {setting}, since "
                f"{self.trainer} then compares the rewards of several groups, and only the drawn "
                f"ones have the judge's part (found {rate:g}). Set 1, or compare inside groups."
            )

    def warn(self, message: str) -> None:
        """Log a warning once, with the spec's file."""
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s: %s", self.spec.where, message)

    # --- scoring --------------------------------------------------------------------------------

    async def ascore(
        self, samples: Sequence[Sample], groups: Sequence[str], **options: Unpack[ScoreOptions]
    ) -> ScorerResult:
        """:meth:`Scorer.ascore <adjudge.trainers.scoring.Scorer.ascore>`; raises what it raises.

        A spec with schedules of weights needs the training ``step``: what a trainer calls may be a
        group, an evaluation or one of several processes, so calls are not counted.
        """
        if self.scorer.schedules and options.get("step") is None:
            self.spec.refuse_schedules(self.trainer, "Give the grader a number.")
        if self.call_holds == "one sample":
            options["whole_groups"] = False
        return await self.scorer.ascore(samples, groups, **options)

    def score(
        self, samples: Sequence[Sample], groups: Sequence[str], **options: Unpack[ScoreOptions]
    ) -> ScorerResult:
        """:meth:`ascore` from ordinary code, also inside somebody else's running loop."""
        return run_blocking(self.ascore(samples, groups, **options))

    async def ascore_one(
        self,
        prompt: Any,
        completion: Any,
        columns: Mapping[str, Any],
        group: object = None,
        *,
        thinks: bool | None = None,
        **fields: Any,
    ) -> ScorerResult:
        """:meth:`ascore` of one rollout, whose ``columns`` are its row's; ``fields`` replace them.

        ``group`` as for :meth:`name_group`, the other arguments as for :meth:`make_sample`.
        """
        given = {**self.select_fields(columns), **fields}
        sample = self.make_sample(0, 0, prompt, completion, given, thinks=thinks)
        return await self.ascore([sample], [self.name_group(sample, group)])

    def sample_metrics(self, scored: ScorerResult) -> dict[str, float]:
        """What to log beside one sample: parts of its reward, whether it is missing, its cost.

        What is not there is absent, never 0.
        """
        [result] = scored.results
        parts = {f"judge/{name}": value for name, value in result.reward_info.items()}
        parts["judge/missing_frac"] = float(result.score is None)
        for name in ("judge/suspect_frac", "judge/cost_usd"):
            parts[name] = scored.metrics.get(name)
        return self.rename_metrics({k: value for k, value in parts.items() if value is not None})

    def rename_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """What to log: ``judge/…``, or ``judge/NAME/…`` for an adapter with a name of its own."""
        prefix = self.metric_prefix
        return {prefix + key.removeprefix("judge/"): value for key, value in metrics.items()}


_shared: dict[tuple[object, ...], Any] = {}


def share_adapter(
    kind: type[AdapterT],
    spec: RewardSpec | Path | str | None = None,
    **options: Unpack[AdapterOptions],
) -> AdapterT:
    """One adapter for each spec's file in a process, for trainers that ask for a new one a batch.

    ``spec`` is by default what ``ADJUDGE_SPEC`` names; one that is an object has its own.
    """
    if isinstance(spec, RewardSpec):
        return kind(spec, **options)
    path = str(spec or os.environ.get(SPEC_VARIABLE, ""))
    key = kind, path, repr(options)
    if key not in _shared:
        _shared[key] = kind(path, **options)
    adapter: AdapterT = _shared[key]
    return adapter


def check_settings(
    settings: Mapping[str, tuple[Any, str]], owner: Any, spell: Callable[[str], str]
) -> None:
    """Refuse a trainer's settings beside which a missing reward would count.

    ``settings`` has, by dotted name in ``owner``, the one value that is allowed (``None``: unset)
    and why; ``spell`` gives the name that users know. Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    for key, (allowed, why) in settings.items():
        found = owner
        for name in key.split("."):
            found = getattr(found, name, None)
        if (found or None) != (allowed or None):
            raise ConfigError(
                f"{spell(key)}: must be {allowed or 'unset'}, since {why} (found {found!r})"
            )


def make_missing_failure(result: RewardResult) -> GradingFailure:
    """A missing reward as an exception, for trainers that leave out a rollout that failed."""
    missing = result.missing
    if missing is None:
        return GradingFailure("bug", "no reward, and no reason why")
    return GradingFailure(missing.kind, f"no reward: {missing.kind}: {missing.error}")
