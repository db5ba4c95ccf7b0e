"""A run that is over: its samples read again, and its rewards under another spec.

A folder of ``adjudge grade`` has ``rewards.jsonl`` beside the rollouts that its ``run.json`` names;
one of ``adjudge train``, or of a flight recorder, has both in ``rollouts.jsonl``.

Under another spec, a grader whose settings are those of the run answers from its record, failures
included: a judge that failed then is not asked now, and its reward stays missing. The others are
asked, as ``adjudge grade`` asks them, and all the rest is ``adjudge grade``'s, too.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from adjudge.config import compare_settings, flatten, format_setting
from adjudge.errors import ErrorKind, RolloutError, RunFolderError
from adjudge.files import iter_rows, warn_damaged_lines
from adjudge.graders.base import GraderTraits, is_listwise
from adjudge.judges.table import NOT_ABOUT_REPLIES
from adjudge.rewards.function import SpecRewardFunction, describe_settings
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.rollouts.samples import SampleReader, compute_rollout_key, sample_from_row
from adjudge.runner.progress import Tally
from adjudge.runs.folder import read_json_object
from adjudge.runs.job import WINDOW, GradingJob, RolloutGrader, select_entries
from adjudge.runs.sample_index import RowIndex, SampleRow
from adjudge.runs.transcripts import FILE as TRANSCRIPTS_FILE, TranscriptStore
from adjudge.types import (
    GradedSample,
    GraderError,
    GraderResult,
    GraderScore,
    Role,
    Sample,
)

_GRADED, _TRAINED = "rewards.jsonl", "rollouts.jsonl"
_SCORE = "_score"

_log = logging.getLogger("adjudge")

RECORDER_FILE = "recorder.jsonl"
"""What each process that records says of itself, last counts last."""

STOP_FILE = "stop.json"
"""What ``adjudge watch --stop`` leaves in a recorded run: the run ends before its next step."""


class RecorderRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has recorded so far: ``dropped`` counts samples that it did not write.

    ``writer`` names it; ``error`` is the last thing that went wrong.
    """

    writer: str
    rank: int | None = None
    pid: int = 0
    host: str = ""
    time: float = 0.0
    rows: int = 0
    dropped: dict[str, int] = {}
    error: str = ""


class RunRecord(SampleRow, frozen=True, kw_only=True):
    """One sample of a run: a row of ``rewards.jsonl`` or ``rollouts.jsonl``.

    ``index`` counts the samples of the run (of a step, in a training run); ``key`` is what was
    judged; ``where`` is the ``FILE:ROW`` of the rollout.
    ``reward`` is ``None`` where it is missing, and ``missing`` says why. ``reward_info`` has the
    parts of the reward, ``details`` what each grader said. ``advantage`` is what the run recorded.
    A training run has the rollout here: ``messages``, and of a recorded one ``opening_turns``,
    ``prompt`` and ``response``; ``lost_rollout`` says what could not be read of one that was lost.
    """

    index: RowIndex
    reward: float | None
    key: str = ""
    where: str = ""
    reward_info: dict[str, float | None] = msgspec.field(default_factory=dict)
    details: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    opening_turns: Any = None
    prompt: str | None = None
    response: str | None = None
    lost_rollout: str | None = None

    @property
    def group_key(self) -> tuple[int | None, str]:
        """What its group is: samples of two steps are never in one group of a training run."""
        return self.step, str(self.group)

    @property
    def kind(self) -> str | None:
        """Why its reward is missing, if it is."""
        return self.missing.kind if self.missing and self.reward is None else None

    @property
    def scores(self) -> dict[str, float | None]:
        """Each grader's score by its name; ``None`` where it failed."""
        info = self.reward_info
        return {key.removesuffix(_SCORE): info[key] for key in info if key.endswith(_SCORE)}


class _Source(msgspec.Struct):
    """What ``run.json`` says of the rollouts, whatever else it says."""

    inputs: list[str] | None = None
    map: dict[str, str] | None = None


class RunRecords:
    """The samples of the run in ``path``, read as often as they are needed.

    ``facts`` is the folder's ``run.json``, ``summary`` its ``summary.json``, empty where it has
    none. Raises :class:`~adjudge.errors.RunFolderError` for a folder without samples.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        names = [name for name in (_GRADED, _TRAINED) if (path / name).is_file()]
        if not names:
            raise RunFolderError(
                f"{path}: has neither {_GRADED} nor {_TRAINED}. Give the folder of a finished run "
                "of `adjudge grade` or `adjudge train`, or one that a trainer recorded."
            )
        self.file = path / names[0]
        self.facts: Mapping[str, Any] = read_json_object(path / "run.json") or {}
        self.summary: Mapping[str, Any] = read_json_object(path / "summary.json") or {}

    @property
    def is_training(self) -> bool:
        """Whether the rollouts stand in the same file, as a training run writes them."""
        return self.file.name == _TRAINED

    def __iter__(self) -> Iterator[RunRecord]:
        damaged: list[int] = []
        seen: set[int] = set()

        def is_own(record: RunRecord) -> bool:
            if self.is_training:  # processes that record number their rows together
                return record.messages is not None or record.response is not None
            if not record.key or record.index in seen:
                return False
            seen.add(record.index)
            return True

        yield from iter_rows(self.file, RunRecord, damaged=damaged, keep=is_own)
        warn_damaged_lines(self.file, damaged, "The sample is left out.")

    def with_samples(self) -> Iterator[tuple[RunRecord, Sample]]:
        """Each record with its rollout, read again from where the run read it.

        Where those files are gone, from what the run kept of its rollouts. Raises
        :class:`~adjudge.errors.RunFolderError` where the rollouts are not what was graded, and for
        one that was not kept.
        """
        if self.is_training:
            for record in self:
                try:
                    yield record, sample_from_row(msgspec.structs.asdict(record), record.index)
                except RolloutError as error:
                    place = f"{self.file}: index {record.index}"
                    _log.warning("%s: %s. The sample is left out.", place, error)
            return
        is_gone = not all(one.exists() for one in self.inputs)
        if is_gone and (self.path / TRANSCRIPTS_FILE).is_file():
            for record, sample in self.with_kept_samples():
                if sample is None:
                    self.find_inputs()  # says which files would be needed
                else:
                    yield record, sample
            return
        samples = iter(SampleReader(self.find_inputs(), self._source.map or {}))
        for record in self:
            sample = next((one for one in samples if one.original_index == record.index), None)
            if sample is None or (record.key and compute_rollout_key(sample) != record.key):
                raise RunFolderError(
                    f"{record.where or self.path}: is not what was graded any more. Run "
                    "`adjudge grade` again, or restore the rollouts."
                )
            yield record, sample

    def with_kept_samples(self) -> Iterator[tuple[RunRecord, Sample | None]]:
        """Each record with what the run folder itself kept of its rollout; ``None``: nothing."""
        with TranscriptStore(self.path, read_only=True) as store:
            for record in self:
                yield record, store.read_sample(record.index)

    def count_dropped(self) -> dict[str, int]:
        """How many samples a flight recorder did not write, by the reason, over all processes."""
        last = {row.writer: row for row in iter_rows(self.path / RECORDER_FILE, RecorderRow)}
        return dict(sum((Counter(row.dropped) for row in last.values()), Counter[str]()))

    @property
    def inputs(self) -> list[Path]:
        """The files and folders that were graded."""
        return [Path(one) for one in self._source.inputs or ()]

    @property
    def _source(self) -> _Source:
        try:
            return msgspec.convert(self.facts, _Source)
        except msgspec.ValidationError as error:
            raise RunFolderError(f"{self.path / 'run.json'}: cannot be read: {error}") from None

    def find_inputs(self) -> list[Path]:
        """:attr:`inputs`; raises :class:`~adjudge.errors.RunFolderError` where some are gone."""
        inputs = self.inputs
        gone = [str(one) for one in inputs if not one.exists()]
        if gone or not inputs:
            raise RunFolderError(
                f"{self.path}: needs the rollouts that were graded, and they are not there: "
                f"{', '.join(gone) or 'its run.json names none'}. Put them back."
            )
        return inputs


# --- under another spec ---------------------------------------------------------------------------


_NOT_ABOUT_ANSWERS = {"weight"}


def plan_regrading(
    records: RunRecords, spec: RewardSpec, graders: Mapping[str, Any]
) -> dict[str, str]:
    """The graders of a spec that must be asked, and why; the others answer from the record.

    ``graders`` are the spec's, built.
    """
    asked: dict[str, str] = {}
    first = next(iter(records), None)
    if first is None:
        raise RunFolderError(f"{records.path}: has no samples. Give a run that has some.")
    before, now = records.facts.get("settings"), describe_settings(spec, graders)
    for entry in spec.graders:
        if entry.name not in first.scores:
            asked[entry.name] = "the run has no such grader"
        elif before is None:
            asked[entry.name] = "the run does not say its graders' settings"
        elif why := _find_change(entry, spec, before, now):
            asked[entry.name] = why
    events = [entry.name for entry in spec.graders if entry.scope == "event"]
    if not asked.keys().isdisjoint(events):
        for name in events:  # the events themselves may be others
            asked.setdefault(name, "another grader of events is asked")
    return asked


def _find_change(
    entry: GraderEntry, spec: RewardSpec, before: Mapping[str, Any], now: Mapping[str, Any]
) -> str:
    """What differs in a grader's settings or its judges', of what its answers depend on."""
    names = [entry.judge] if isinstance(entry.judge, str) else entry.judge
    if names is None:
        names = list(spec.judges) if spec.asks_judge(entry) else []
    sides = []
    for settings in (before, now):
        grader = dict(settings["graders"].get(entry.name) or {})
        judges = {
            name: {
                key: value
                for key, value in ((settings.get("judges") or {}).get(name) or {}).items()
                if key not in NOT_ABOUT_REPLIES
            }
            for name in names
        }
        kept = {key: value for key, value in grader.items() if key not in _NOT_ABOUT_ANSWERS}
        sides.append(dict(flatten({"grader": kept, "judges": judges})))
    if not (found := compare_settings(*sides)):
        return ""
    one = next((one for one in found if one.key != "grader.content"), found[0])
    if one.key == "grader.content":
        return "what it reads outside the spec has changed"
    key = one.key.removeprefix("grader.")
    return f"{key} was {format_setting(one.left)}, is {format_setting(one.right)}"


def make_regrading_job(records: RunRecords, spec: RewardSpec, **options: Any) -> GradingJob:
    """A job over the rollouts of a run; ``options`` are further fields of :class:`.GradingJob`.

    Raises :class:`~adjudge.errors.RunFolderError` for a run whose rollouts are gone.
    """
    if records.is_training:
        return GradingJob([records.file], spec, **options)
    mapping = dict(records.facts.get("map") or {})
    return GradingJob(records.find_inputs(), spec, mapping=mapping, **options)


class RecordedAnswers:
    """An engine that answers from ``records``, and asks the graders named in ``asked``.

    One goes once through the rollouts, in their order.
    """

    window: ClassVar[int] = WINDOW

    def __init__(self, records: RunRecords, asked: Collection[str]) -> None:
        self._path, self._asked = records.path, asked
        self._from_rows = records.is_training
        self._rows: Iterator[RunRecord] = iter(() if records.is_training else records)

    @contextmanager
    def grade_with(
        self,
        job: GradingJob,  # noqa: ARG002  (of the protocol)
        function: SpecRewardFunction,
        tally: Tally,
    ) -> Iterator[RolloutGrader]:
        """See :class:`.GradingEngine`."""
        self._function, self._tally = function, tally
        self._entries = function.spec.graders
        spec = select_entries(function.spec, self._asked)
        self._asker = None if spec is None else function.ask_part(spec)
        yield self

    def endpoints(self) -> list[dict[str, Any]]:
        """No calls are made elsewhere."""
        return []

    @property
    def needs_whole_groups(self) -> bool:
        """Whether the samples of a group must come in one call."""
        return self._asker is not None and self._asker.needs_whole_groups

    async def grade(
        self, samples: Sequence[Sample], groups: Sequence[str], *, step: int | None = None
    ) -> list[GradedSample]:
        """What the run and the graders that are asked say of the samples."""
        stated = [self._read(sample) for sample in samples]
        sampled = [
            kind != ErrorKind.NOT_SAMPLED
            and (self._from_rows or self._function.is_drawn(group, step or 0))
            for (_, kind, _), group in zip(stated, groups, strict=True)
        ]
        asked: Sequence[GradedSample | None] = [None] * len(samples)
        if self._asker is not None:
            asked = await self._asker.grade(samples, groups, sampled)
        found = []
        for at, sample in enumerate(samples):
            one = GradedSample(
                sample.original_index,
                sample.group_index,
                groups[at],
                sample.env_reward,
                {},
                [],
                sampled[at],
            )
            self._fill(one, *stated[at], asked[at])
            found.append(one)
        return found

    def _read(self, sample: Sample) -> tuple[Mapping[str, Any], str, str]:
        """What was said of a sample: details, and the kind and message of a missing reward."""
        if self._from_rows:
            missing = sample.extra.get("missing") or {}
            details = sample.extra.get("details")
            found = details if isinstance(details, Mapping) else {}
            kind, message = str(missing.get("kind", "")), str(missing.get("message", ""))
            return found, kind or _undrawn_kind(found), message
        record = next((one for one in self._rows if one.index == sample.original_index), None)
        if record is None or (record.key and compute_rollout_key(sample) != record.key):
            raise RunFolderError(
                f"{sample.where}: is not what {self._path} graded any more. Put the rollouts back."
            )
        missing = record.missing
        kind, message = ("", "") if missing is None else (missing.kind, missing.message)
        found = record.details or {}
        return found, kind or _undrawn_kind(found), message

    def _fill(
        self,
        one: GradedSample,
        details: Mapping[str, Any],
        kind: str,
        message: str,
        asked: GradedSample | None,
    ) -> None:
        absent = {"kind": kind or "bug", "error": message or "the run has no answer of it"}
        if not one.sampled:
            absent = {"kind": str(ErrorKind.NOT_SAMPLED), "error": "its group was not drawn"}
            details = {}
        for entry in self._entries:
            if entry.scope == "event":
                continue
            if entry.name in self._asked and asked is not None:
                one.outcome[entry.name] = asked.outcome[entry.name]
            else:
                one.outcome[entry.name] = self._result(entry.name, details.get(entry.name, absent))
        events = [entry.name for entry in self._entries if entry.scope == "event"]
        if not events:
            return
        stated = details.get("events", [] if one.sampled and not kind else absent)
        if asked is not None and events[0] in self._asked:
            one.events = asked.events
        elif isinstance(stated, Mapping):
            one.events = _make_error("events", stated, Role.SCORE)
        else:
            one.events = [
                {name: self._result(name, event.get(name, absent)) for name in events}
                for event in stated
            ]

    def _result(self, name: str, detail: Any) -> GraderResult:
        """A grader's answer as the run states it, on the scale of the grader that is there now."""
        self._tally.done += 1
        self._tally.resumed += 1
        if not isinstance(detail, Mapping):
            raise RunFolderError(
                f"{self._path}: what {name} answered is no table (found {type(detail).__name__}). "
                "Give a run with its files as adjudge wrote them."
            )
        grader = self._function.graders[name]
        traits = GraderTraits.of(grader)
        score = detail.get("score")
        if type(score) is not int and type(score) is not float:
            return _make_error(name, detail, traits.role)
        metadata = dict(detail.get("metadata") or {})
        spread = is_listwise(grader) and "rank" in metadata
        bounds = (0.0, 1.0) if spread else traits.score_range
        reason = str(detail.get("reason", ""))
        return GraderScore(name, score, reason, metadata, bounds, traits.role)


def _undrawn_kind(details: Mapping[str, Any]) -> str:
    """The kind of a reward that no grader was asked about: the environment's alone."""
    return str(ErrorKind.NOT_SAMPLED) if details.get("source") == "none" else ""


def _make_error(name: str, detail: Mapping[str, Any], role: Role) -> GraderError:
    kind, metadata = str(detail.get("kind", "bug")), dict(detail.get("metadata") or {})
    if kind not in set(ErrorKind):
        raise RunFolderError(
            f"details: the kind of a failure of {name} is unknown (found {kind!r:.80}; allowed: "
            f"{', '.join(ErrorKind)})"
        )
    return GraderError(name, ErrorKind(kind), str(detail.get("error", "")), metadata, role)
