"""The main job: files of rollouts through a reward spec, into a run folder."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from adjudge.checks.missing import answer_properties
from adjudge.checks.summary import list_warnings
from adjudge.datasets.files import FileRow, find_files
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, RolloutError, RunFolderError
from adjudge.files import atomic_write
from adjudge.judges.endpoint.connections import own_calls
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.reducer import RewardChecks
from adjudge.rewards.spec import RewardSpec, check_machine, describe_settings
from adjudge.rollouts.input_report import InputReport
from adjudge.rollouts.samples import GroupNames, SampleReader, compute_rollout_key
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Progress, Tally
from adjudge.runs.folder import JOURNAL_FILE, SPEC_IDENTITY, RunFolder, spec_facts
from adjudge.runs.graded_run import GradedRow, GradedRows, GradedRun, encode_row
from adjudge.runs.noise import DrawTotals
from adjudge.runs.report import ReportRow, ReportRows, ReportSeries
from adjudge.runs.spending import FolderSpending
from adjudge.runs.story import describe_graders
from adjudge.runs.summary import GradingTotals, SampleFacts
from adjudge.runs.transcripts import (
    DEFAULT_SAMPLES,
    DEFAULT_WITHOUT_JUDGE,
    TranscriptKeeper,
    TranscriptStore,
)
from adjudge.text import encode_json
from adjudge.types import GradedSample, GraderError, RewardResult, Sample
from adjudge.version import __version__

if TYPE_CHECKING:
    from adjudge.judges.cassette.cache import ReplyCache
    from adjudge.judges.endpoint.settings import SpendCeiling

_log = logging.getLogger("adjudge")

_WINDOW = 4096
_FIRST = 20
"""Broken rows and skipped files that the summary names."""

_NOT_HERE = "; judge calls that this process did not make are not kept"
_PROMPT_CHARS, _RESPONSE_CHARS = 400, 1200


class RolloutGrader(Protocol):
    """Who knows what the graders say; :class:`~adjudge.rewards.SpecRewardFunction` asks them."""

    @property
    def needs_whole_groups(self) -> bool:
        """Whether all samples of a group must come in one call."""

    async def grade(
        self, samples: Sequence[Sample], groups: Sequence[str], *, step: int | None = None
    ) -> list[GradedSample]:
        """What was said about each sample, in order."""


class GradingEngine(Protocol):
    """Somewhere else where the graders are asked before this process writes the results."""

    def grade(
        self, job: GradingJob, function: SpecRewardFunction, journal: Journal, tally: Tally
    ) -> RolloutGrader:
        """Do the asking; what it gives answers for ``function``."""

    def endpoints(self) -> list[dict[str, Any]]:
        """The table of judge calls that were made there; see :class:`CallCounter`."""


@dataclass
class GradingJob:
    """What :func:`grade_rollouts` is to do.

    ``rows``: rollouts in memory in the place of files, each with its name for messages; ``rows_of``
    says where they are from, ``by_name`` that their columns are adjudge's own. Without ``folder``
    nothing is written. ``cassette`` takes the place of the judges' own caches. ``budget_usd``: what
    all judges together may cost, in all invocations of the folder; every one then needs a price.
    ``engine``: who asks the graders, else this process. ``startup_patience_s``: how long to wait
    for a judge that has never been reached, by default the spec's ``patience_s``. ``draws``: how
    often each judge is asked about a sample; the first draw makes the reward, all of them tell the
    judge's noise. ``keep_transcripts``: of how many samples the folder keeps rollouts and judge
    calls, by default 20,000, or 2,000 of a spec that asks no judge. ``on_input`` hears how the
    input was read before a grader is asked.
    """

    paths: Sequence[Path]
    spec: RewardSpec
    folder: Path | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    show_progress: bool = True
    cassette: ReplyCache | None = None
    budget_usd: float | None = None
    engine: GradingEngine | None = None
    startup_patience_s: float | None = None
    draws: int = 1
    rows: Sequence[FileRow] | None = None
    rows_of: str = "rollouts in memory"
    by_name: bool = False
    keep_transcripts: int | None = None
    on_input: Callable[[InputReport], None] | None = None

    @property
    def input_names(self) -> list[str]:
        """What is graded, for people."""
        return [str(path) for path in self.paths] if self.rows is None else [self.rows_of]

    @property
    def asks_judge(self) -> bool:
        """Whether a grader of the spec asks a judge."""
        return any(map(self.spec.asks_judge, self.spec.graders))

    @property
    def most_transcripts(self) -> int:
        """Of how many samples transcripts are kept."""
        if self.keep_transcripts is not None:
            return self.keep_transcripts
        return DEFAULT_SAMPLES if self.asks_judge else DEFAULT_WITHOUT_JUDGE

    def use_cassette(self, *, record: Path | None, replay: Path | None) -> None:
        """Record all judge calls to a file, or answer them from one; ``None`` twice does neither.

        Raises :class:`ConfigError` for both. The job closes the file.
        """
        self.cassette = open_cassette(record, replay)
        for name, table in self.spec.judges.items() if self.cassette is not None else ():
            if table.is_unrecorded:
                _log.warning(
                    "%s: judges.%s: type %r is neither recorded nor replayed; it is asked",
                    self.spec.where,
                    name,
                    table.type,
                )
        if replay is not None:
            self.spec = self.spec.with_patience(0.0)  # a recorded outage does not pass

    def samples(self, say: Callable[[str], None] = _log.warning) -> SampleReader:
        """The usable samples of the input; ``say`` hears what its reader chose."""
        return SampleReader(
            self.paths,
            self.mapping,
            rows=self.rows,
            by_name=self.by_name,
            strict=self.strict,
            say=say,
        )


def open_cassette(record: Path | None, replay: Path | None) -> ReplyCache | None:
    """What ``--record`` or ``--replay`` names; raises :class:`ConfigError` for both."""
    if record is not None and replay is not None:
        raise ConfigError("--record and --replay: cannot be used together. Use one of them.")
    path = record or replay
    if path is None:
        return None
    from adjudge.judges.cassette.cache import ReplyCache  # noqa: PLC0415  (few runs keep replies)

    return ReplyCache(path, "replay") if record is None else ReplyCache(path, sampled=True)


def grade_rollouts(job: GradingJob, *, keep_rows: bool = True) -> GradedRun:
    """Grade every sample of the job; the rows that it gives are in the order of the input.

    Writes to the job's folder ``rewards.jsonl`` (one row a sample, input order), ``summary.json``
    and ``report.html``; ``journal.jsonl`` grows while it works, and the same job resumes from it.
    Without ``keep_rows`` the rows are in the file alone. Raises ``ConfigError``,
    ``RunFolderError``, ``RolloutError`` (``strict``: the first broken row; otherwise: no usable row
    at all), ``JudgeUnavailable``, ``JudgeAuthError`` and, under policy ``raise``,
    ``MissingRewardError``.

    Input of up to one window is read once. What is longer is read twice: first to count the samples
    of each group, then to grade them a window at a time. A group is rewarded and written once its
    last sample is graded, so what is in memory is a window, the groups that are open and some bytes
    a sample: files whose groups stand together take little, however long they are.
    """
    started = time.perf_counter()
    find_files(job.paths)  # before anything is opened
    job.spec.refuse_schedules("grading", "Say which: --step N, or step=… in Python.")
    with own_calls(job.budget_usd, job.cassette) as budget:
        return _grade(job, budget, started, keep_rows=keep_rows)


def _grade(job: GradingJob, budget: SpendCeiling, started: float, *, keep_rows: bool) -> GradedRun:
    graders = job.spec.build_graders(job.spec.build_judges(job.cassette, budget))
    check_machine(job.spec, graders)
    tally = Tally(None)
    with ExitStack() as opened:
        opened.enter_context(Progress(tally, show=job.show_progress))
        counted = count_samples(job)
        folder = journal = None
        if job.folder is not None:
            folder = opened.enter_context(_open_folder(job, job.folder, graders))
            journal = Journal(folder.path / JOURNAL_FILE, folder.facts["spec_hash"])
        spending = opened.enter_context(
            FolderSpending(
                job.folder,
                budget if job.engine is None else None,
                tally,
                combine=partial(_combine_calls, job.engine),
            )
        )
        if journal is not None:
            judged = {entry.name for entry in job.spec.graders if job.spec.asks_judge(entry)}
            resume_recording(job.cassette, journal, judged)
        keeper = None
        if folder is not None and job.most_transcripts:
            keeper = _open_keeper(job, folder, counted.sizes, opened)
        function = SpecRewardFunction(
            job.spec,
            graders=graders,
            journal=journal,
            tally=tally,
            startup_patience_s=job.startup_patience_s,
            draws=job.draws,
            listener=keeper if job.asks_judge else None,
            columns=counted.columns,
        )
        tally.total = counted.sizes.total() * function.answers_per_sample
        asker: RolloutGrader = function
        if job.engine is not None:
            asker = job.engine.grade(job, function, _journal_on_disk(journal), tally)
        recorder = _RunRecorder(function, keep_rows=keep_rows)
        rewarded = _rewarded_samples(job, asker, function, counted, keeper)
        rows = map(recorder.add, rewarded)
        if folder is None:
            deque(rows, maxlen=0)
        else:
            atomic_write(folder.path / "rewards.jsonl", map(encode_row, rows))
        tally.note = "writing summary and report"
        summary = recorder.totals.summarise(elapsed_s=time.perf_counter() - started)
        if recorder.draws is not None:
            summary["noise"] = recorder.draws.summarise()
        summary["warnings"] = list_warnings(summary)
        summary["groups"]["source"] = counted.report.group_source
        summary["input"] = counted.report.as_json()
        summary["asks"] = dict(tally.asks.most_common())
        summary["endpoints"] = spending.read()
        summary["spending"] = spending.summarise(summary["endpoints"])
        summary |= _run_facts(job, folder, tally, counted.reader)
        summary["transcripts"] = None if keeper is None else keeper.summarise()
        summary["prompts"] = None if keeper is None else dict(keeper.prompts) or None
        run = GradedRun(recorder.rows, summary, counted.reader.broken, job.folder, recorder.page())
        if folder is not None:
            folder.write_json("summary.json", summary)
            run.report(folder.path / "report.html")
    return run


def resume_recording(
    cassette: ReplyCache | None, journal: Journal, graders: Collection[str]
) -> None:
    """Make a run with ``--record`` ask its cassette, so that this has every call at the end.

    The journal of a resumed run may know results of calls that were not recorded.
    """
    if cassette is None or cassette.replays:
        return
    journal.before_flush = cassette.flush
    if count := journal.forget(graders):
        _log.warning(
            "%s: %d results are asked again, for their calls must be in %s. Those that are there "
            "already cost nothing.",
            journal.path.parent,
            count,
            cassette.path,
        )


def _combine_calls(
    engine: GradingEngine | None, here: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    return here if engine is None else [*engine.endpoints(), *here]


class _Rewarded(NamedTuple):
    """A sample with its reward and, where graders were asked several times, what each draw gave."""

    facts: SampleFacts
    judged: GradedSample
    result: RewardResult
    draws: Sequence[Mapping[str, float | None]] = ()


class _RunRecorder:
    """What a run keeps of its samples: numbers, some for the page, and rows if wanted."""

    def __init__(self, function: SpecRewardFunction, *, keep_rows: bool) -> None:
        self._names = [entry.name for entry in function.spec.graders]
        self._keep_rows = keep_rows
        self._table = ReportRows()
        self.totals = GradingTotals(function.spec, function.graders)
        self.draws: DrawTotals | None = None
        if function.draws > 1:
            self.draws = DrawTotals(self._names, function.asked_again, function.draws)
        self.rows = GradedRows()

    def add(self, one: _Rewarded) -> GradedRow:
        """Count the next sample."""
        facts, judged, result, draws = one
        self.totals.add(facts, judged, result)
        if self.draws is not None:
            self.draws.add(facts.group, judged, draws)
        self._table.add(
            result.score,
            _failure_kinds(self._names, judged, result),
            lambda: _report_row(self._names, facts, judged, result),
        )
        row = GradedRow(
            facts.index,
            facts.group,
            result,
            facts.key,
            facts.where,
            facts.step,
            facts.env_reward,
            [draw["reward"] for draw in draws],
        )
        if self._keep_rows:
            self.rows.append(row)
        return row

    def page(self) -> tuple[Sequence[ReportRow], ReportSeries]:
        """What the page shows besides the summary."""
        return self._table.chosen(), ReportSeries(
            reward=self.totals.rewards,
            scores=self.totals.scores,
            outcomes=self.totals.env_rewards,
            groups=self.totals.groups,
            unevaluable=self.totals.unevaluable,
        )


def _open_folder(job: GradingJob, path: Path, graders: Mapping[str, Any]) -> RunFolder:
    facts = {
        **spec_facts(job.spec, graders, job.paths, job.mapping),
        "reward": job.spec.reward.model_dump(mode="json"),  # these two are for `adjudge view`
        "graders": describe_graders(job.spec, graders),
        "settings": describe_settings(job.spec, graders),  # for `adjudge diff`
    }
    if job.rows is not None:  # what is in memory is known by its content
        facts["inputs"] = [f"{job.rows_of}, {_digest_rows(job.rows)}"]
    return RunFolder(path, facts, SPEC_IDENTITY, outputs=("report.html",), journal=JOURNAL_FILE)


def _open_keeper(
    job: GradingJob, folder: RunFolder, sizes: Mapping[str, int], opened: ExitStack
) -> TranscriptKeeper | None:
    """Who keeps transcripts; ``None`` on a file system that cannot, as one without locks."""
    claim = f"{folder.facts['spec_hash']} {folder.created}"
    try:
        store = opened.enter_context(TranscriptStore(folder.path, run=claim))
    except RunFolderError as error:
        _log.warning("%s This time no transcripts are kept.", error)
        return None
    return TranscriptKeeper(
        store,
        sizes,
        job.most_transcripts,
        has_judge=job.asks_judge,
        notes=_NOT_HERE if job.engine else "",
    )


def _digest_rows(rows: Sequence[FileRow]) -> str:
    digest = hashlib.sha256()
    for _, row in rows:
        digest.update(encode_json(row, lambda value: type(value).__name__) + b"\n")
    return f"sha256 {digest.hexdigest()[:16]}"


def _journal_on_disk(journal: Journal | None) -> Journal:
    if journal is None:
        raise ConfigError("engine: needs a run folder for its journal. Give one.")
    return journal


def _rewarded_samples(
    job: GradingJob,
    asker: RolloutGrader,
    function: SpecRewardFunction,
    counted: CountedSamples,
    keeper: TranscriptKeeper | None,
) -> Iterator[_Rewarded]:
    """Every sample with its reward, in input order, each once its group is whole."""
    found = RewardChecks()
    waiting: deque[_Waiting] = deque()
    open_groups: dict[str, list[_Waiting]] = {}
    left = counted.sizes
    for window in _grade_windows(job, asker, counted, keeper):
        waiting.extend(window)
        for one in window:
            open_groups.setdefault(one.facts.group, []).append(one)
        closed = [group for group in {one.facts.group: None for one in window} if not left[group]]
        whole = [one for group in closed for one in open_groups.pop(group)]
        whole.sort(key=lambda one: one.facts.index)
        judged = [one.judged for one in whole]
        for one, result in zip(whole, function.reward_part(judged, found), strict=True):
            one.result = result
        if function.draws > 1:
            for one, draws in zip(whole, function.draw_values(judged), strict=True):
                one.draws = draws
        while waiting and (done := waiting[0].result) is not None:
            one = waiting.popleft()
            yield _Rewarded(one.facts, one.judged, done, one.draws)
    if waiting or any(left.values()):
        raise RolloutError(
            f"{', '.join(job.input_names)}: changed while being read, so its groups are not whole. "
            "Run the same command again when nothing writes to it; what was graded is kept."
        )
    function.check_rewards(found)


@dataclass(slots=True)
class _Waiting:
    """A sample that is graded, and its reward once its group is whole."""

    facts: SampleFacts
    judged: GradedSample
    result: RewardResult | None = None
    draws: Sequence[Mapping[str, float | None]] = ()


@dataclass
class CountedSamples:
    """What the first reading of the input found.

    ``samples``: all of them, if one window holds them; else the input, to be read again. ``sizes``:
    how many samples of each group are still to come. ``reader`` and ``report`` know how the input
    was read. ``groups`` names the groups of ``samples``; ``columns``: those of any sample.
    """

    samples: Iterable[Sample]
    sizes: Counter[str]
    reader: SampleReader
    report: InputReport
    columns: Collection[str]
    groups: GroupNames = field(default_factory=GroupNames)


def count_samples(job: GradingJob) -> CountedSamples:
    """How many samples each group has; raises ``RolloutError`` where there are none."""
    report, reader = _report_input(job)
    first: list[Sample] = []
    sizes: Counter[str] = Counter()
    columns: set[str] = set()
    for sample in reader:
        sizes[report.add(sample)] += 1
        columns.update(sample.extra)
        if len(first) <= _WINDOW:
            first.append(sample)
    if not sizes:
        raise _no_usable_row(job, reader)
    _say_input(job, report, reader)
    samples = first if len(first) <= _WINDOW else reader
    return CountedSamples(samples, sizes, reader, report, columns)


def _report_input(job: GradingJob) -> tuple[InputReport, SampleReader]:
    report = InputReport()
    return report, job.samples() if job.on_input is None else job.samples(report.hear)


def _say_input(job: GradingJob, report: InputReport, reader: SampleReader) -> None:
    report.add_files(reader)
    if job.on_input is not None:
        job.on_input(report)


def _no_usable_row(job: GradingJob, reader: SampleReader) -> RolloutError:
    broken = reader.broken
    example = f"; first: {broken[0].where}: {broken[0].message}" if broken else ""
    return RolloutError(
        f"{', '.join(job.input_names)}: no usable row ({len(broken)} broken; read as "
        f"{', '.join(reader.count_formats()) or 'nothing'}){example}"
    )


def _grade_windows(
    job: GradingJob,
    asker: RolloutGrader,
    counted: CountedSamples,
    keeper: TranscriptKeeper | None = None,
) -> Iterator[list[_Waiting]]:
    """Graded samples, a window at a time.

    Where a grader compares the samples of a group, a window ends with the last group it has.
    """
    samples: list[Sample] = []
    facts: list[SampleFacts] = []
    open_groups: set[str] = set()
    left = counted.sizes
    for sample in counted.samples:
        group = counted.groups.name(sample)
        left[group] -= 1
        open_groups.add(group) if left[group] else open_groups.discard(group)
        samples.append(sample)
        facts.append(_sample_facts(sample, group))
        if len(samples) >= _WINDOW and not (asker.needs_whole_groups and open_groups):
            yield _grade_window(job, asker, samples, facts, keeper)
            samples, facts = [], []
    if samples:
        yield _grade_window(job, asker, samples, facts, keeper)


def _grade_window(
    job: GradingJob,
    asker: RolloutGrader,
    samples: Sequence[Sample],
    facts: Sequence[SampleFacts],
    keeper: TranscriptKeeper | None,
) -> list[_Waiting]:
    if keeper is not None:
        keeper.begin_window(samples, (one.group for one in facts))
    judged = run_blocking(asker.grade(samples, [one.group for one in facts], step=0))
    if job.cassette is not None:
        job.cassette.keep_failures()
    return list(map(_Waiting, facts, judged))


def read_first_samples(job: GradingJob, most: int) -> tuple[list[Sample], list[str], int]:
    """The first usable samples of a job, their groups, and how many samples it has."""
    find_files(job.paths)  # before anything is opened
    report, reader = _report_input(job)
    samples: list[Sample] = []
    names: list[str] = []
    for sample in reader:
        name = report.add(sample)
        if len(samples) < most:
            samples.append(sample)
            names.append(name)
    if not samples:
        raise _no_usable_row(job, reader)
    _say_input(job, report, reader)
    return samples, names, report.samples


def _sample_facts(sample: Sample, group: str) -> SampleFacts:
    calls = [message.get("tool_calls") for message in sample.messages or []]
    response = sample.response or ""
    return SampleFacts(
        index=sample.original_index,
        group=group,
        env_reward=sample.env_reward,
        length=len(response),
        properties=answer_properties(response),
        tool_calls=sum(len(some) for some in calls if isinstance(some, list)),
        prompt=(sample.prompt or "")[:_PROMPT_CHARS],
        response=response[:_RESPONSE_CHARS],
        key=compute_rollout_key(sample),
        where=sample.where,
        step=sample.step,
    )


def _run_facts(
    job: GradingJob, folder: RunFolder | None, tally: Tally, reader: SampleReader
) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "adjudge": __version__,
        "created": now if folder is None else folder.created,
        "spec": {"path": job.spec.where, "hash": job.spec.hash},
        "inputs": job.input_names,
        "map": dict(job.mapping),
        "resumed_results": tally.resumed,
        "cassette": job.cassette and msgspec.to_builtins(job.cassette.report()),
        "broken_rows": {
            "count": len(reader.broken),
            "first": [
                {"where": row.where, "message": row.message} for row in reader.broken[:_FIRST]
            ],
        },
        "formats": reader.count_formats(),
        "skipped_files": {
            "count": len(reader.skipped),
            "first": [
                {"file": file, "reason": reason}
                for file, reason in islice(reader.skipped.items(), _FIRST)
            ],
        },
    }


def _failure_kinds(
    names: Sequence[str], judged: GradedSample, result: RewardResult
) -> Iterator[str]:
    """What failed in a sample, each kind under its own name."""
    if result.missing is not None:
        yield f"reward: {result.missing.kind}"
    for name in names:
        one = judged.outcome.get(name)
        if isinstance(one, GraderError):
            yield f"{name}: {one.kind}"
        elif not getattr(one, "evaluable", True):
            yield f"{name}: not evaluable"


def _report_row(
    names: Sequence[str], facts: SampleFacts, judged: GradedSample, result: RewardResult
) -> ReportRow:
    details = result.details or {}
    notes = []
    for name in names:
        detail = details.get(name) or {}
        error = detail.get("error")
        notes.append(f"{detail.get('kind')}: {error}" if error else str(detail.get("reason", "")))
    return ReportRow(
        index=facts.index,
        group=facts.group,
        reward=result.score,
        missing_kind=None if result.missing is None else str(result.missing.kind),
        missing_message=None if result.missing is None else result.missing.error,
        env_reward=facts.env_reward,
        length=facts.length,
        tool_calls=facts.tool_calls,
        scores=[result.reward_info.get(f"{name}_score") for name in names],
        notes=notes,
        evaluable=[getattr(judged.outcome.get(name), "evaluable", True) for name in names],
        prompt=facts.prompt,
        response=facts.response,
    )
