"""The main job: files of rollouts through a reward spec, into a run folder."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from adjudge.engine.loop import run_blocking
from adjudge.errors import RolloutError
from adjudge.files import atomic_write
from adjudge.judges.endpoint.connections import own_calls, start_call_counter
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.reducer import RewardChecks
from adjudge.rewards.spec import RewardSpec, check_machine
from adjudge.rollouts.rows import check_files, count_rows
from adjudge.rollouts.samples import check_mapping, compute_prompt_key, read_samples
from adjudge.runner.journal import Journal
from adjudge.runner.runner import Progress, Tally
from adjudge.runs.folder import JOURNAL_FILE, SPEC_IDENTITY, RunFolder, spec_facts
from adjudge.runs.report import ReportRow, ReportRows, ReportSeries, write_grading_report
from adjudge.runs.summary import GradingTotals, SampleFacts, answer_properties
from adjudge.text import encode_exactly
from adjudge.types import AnySample, GradedSample, RewardResult, Sample
from adjudge.version import __version__

if TYPE_CHECKING:
    from adjudge.judges.cassette.cache import ReplyCache
    from adjudge.judges.endpoint.settings import SpendCeiling

_WINDOW = 4096
_PROMPT_CHARS, _RESPONSE_CHARS = 400, 1200
_DEPTH = 20


@dataclass(frozen=True)
class BrokenInputRow:
    """A row that is no sample: ``where`` is ``FILE:LINE``."""

    where: str
    message: str


class RolloutGrader(Protocol):
    """Who knows what the graders say; :class:`~adjudge.rewards.SpecRewardFunction` asks them."""

    @property
    def needs_whole_groups(self) -> bool:
        """Whether all samples of a group must come in one call."""

    async def grade(
        self, samples: Sequence[AnySample], groups: Sequence[str], *, step: int | None = None
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
    """What :func:`grade_rollouts` is to do, and did: ``summary`` is empty until it is done.

    ``cassette`` takes the place of the judges' own caches. ``budget_usd``: what all judges together
    may cost; every one then needs a price. ``engine``: who asks the graders, else this process.
    ``startup_patience_s``: how long to wait for a judge that has never been reached, by default the
    spec's ``patience_s``.
    """

    paths: Sequence[Path]
    spec: RewardSpec
    folder: Path
    mapping: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    show_progress: bool = True
    cassette: ReplyCache | None = None
    budget_usd: float | None = None
    engine: GradingEngine | None = None
    startup_patience_s: float | None = None
    broken: list[BrokenInputRow] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    resumed: int = 0


def grade_rollouts(job: GradingJob) -> list[RewardResult]:
    """:func:`grade_to_folder`, with the results of all samples in the order of the input."""
    results: list[RewardResult] = []
    grade_to_folder(job, results.append)
    return results


def grade_to_folder(
    job: GradingJob, on_result: Callable[[RewardResult], None] = lambda _: None
) -> None:
    """Grade every sample of the job's files and write the run folder.

    Writes ``rewards.jsonl`` (one row a sample, input order), ``summary.json`` and ``report.html``;
    ``journal.jsonl`` grows while it works, and the same job resumes from it. ``on_result`` gets
    each sample's result, in input order. Raises ``ConfigError``, ``RunFolderError``,
    ``RolloutError`` (``strict``: the first broken row; otherwise: no usable row at all),
    ``JudgeUnavailable``, ``JudgeAuthError`` and, under policy ``raise``, ``MissingRewardError``.

    The files are read twice: first to count the samples of each group, then to grade them a window
    at a time. A group is rewarded and written once its last sample is graded, so what is in memory
    is a window, the groups that are open and some bytes a sample: files whose groups stand
    together take little, however long they are.
    """
    started = time.perf_counter()
    check_files(job.paths)
    check_mapping(job.paths, job.mapping)
    with own_calls(job.budget_usd, job.cassette) as budget:
        _grade_into_folder(job, budget, started, on_result)


def _grade_into_folder(
    job: GradingJob,
    budget: SpendCeiling | None,
    started: float,
    on_result: Callable[[RewardResult], None],
) -> None:
    graders = job.spec.build_graders(job.spec.build_judges(job.cassette, budget))
    check_machine(job.spec, graders)
    calls = start_call_counter()
    tally = Tally(count_rows(job.paths) * len(job.spec.graders))
    with (
        RunFolder(
            job.folder,
            {
                **spec_facts(job.spec, graders, job.paths, job.mapping),
                "reward": job.spec.reward.model_dump(mode="json"),  # for `adjudge view`
            },
            SPEC_IDENTITY,
            outputs=("report.html",),
            journal=JOURNAL_FILE,
        ) as folder,
        Progress(tally, show=job.show_progress),
    ):
        journal = Journal(folder.path / JOURNAL_FILE, folder.facts["spec_hash"])
        function = SpecRewardFunction(
            job.spec,
            graders=graders,
            journal=journal,
            tally=tally,
            startup_patience_s=job.startup_patience_s,
        )
        asker = _rollout_grader(job, function, journal, tally)
        names = [entry.name for entry in job.spec.graders]
        totals, rows, groups = GradingTotals(job.spec, graders), ReportRows(), GroupNames()

        def lines() -> Iterator[bytes]:
            for facts, judged, result in _rewarded_samples(job, asker, function, groups):
                totals.add(facts, judged, result)
                if rows.has_room:
                    rows.append(_report_row(names, facts, judged, result))
                on_result(result)
                yield _reward_line(facts, result)
            tally.note = "writing summary and report"

        atomic_write(folder.path / "rewards.jsonl", lines())
        job.resumed = tally.resumed
        summary = totals.summarise(elapsed_s=time.perf_counter() - started)
        summary["groups"]["source"] = groups.source
        elsewhere = [] if job.engine is None else job.engine.endpoints()
        summary["endpoints"] = [*elsewhere, *calls.read()]
        job.summary = summary | _run_facts(job, folder)
        folder.write_json("summary.json", job.summary)
        series = ReportSeries(
            reward=totals.rewards,
            scores=totals.scores,
            outcomes=totals.env_rewards,
            groups=totals.groups,
            unevaluable=totals.unevaluable,
        )
        write_grading_report(folder.path / "report.html", job.summary, rows.rows, series)


def _rollout_grader(
    job: GradingJob, function: SpecRewardFunction, journal: Journal, tally: Tally
) -> RolloutGrader:
    return function if job.engine is None else job.engine.grade(job, function, journal, tally)


def _rewarded_samples(
    job: GradingJob, asker: RolloutGrader, function: SpecRewardFunction, groups: GroupNames
) -> Iterator[tuple[SampleFacts, GradedSample, RewardResult]]:
    """Every sample with its reward, in input order, each once its group is whole."""
    found = RewardChecks()
    waiting: deque[_Waiting] = deque()
    open_groups: dict[str, list[_Waiting]] = {}
    left = _count_groups(job)
    for window in _grade_windows(job, asker, groups, left):
        waiting.extend(window)
        for one in window:
            open_groups.setdefault(one.facts.group, []).append(one)
        closed = [group for group in open_groups if not left[group]]
        whole = [one for group in closed for one in open_groups.pop(group)]
        whole.sort(key=lambda one: one.facts.index)
        for one, result in zip(
            whole, function.reward_part([one.judged for one in whole], found), strict=True
        ):
            one.result = result
        while waiting and (done := waiting[0].result) is not None:
            one = waiting.popleft()
            yield one.facts, one.judged, done
    if waiting or any(left.values()):
        files = ", ".join(map(str, job.paths))
        raise RolloutError(
            f"{files}: changed while being read, so its groups are not whole. "
            "Run the same command again when nothing writes to it; what was graded is kept."
        )
    function.check_rewards(found)


@dataclass(slots=True)
class _Waiting:
    """A sample that is graded, and its reward once its group is whole."""

    facts: SampleFacts
    judged: GradedSample
    result: RewardResult | None = None


def _count_groups(job: GradingJob) -> Counter[str]:
    """How many samples each group has; raises ``RolloutError`` where there are none."""
    groups = GroupNames()
    sizes = Counter(groups.name(sample) for sample in _usable_samples(job))
    if not sizes:
        first = f"; first: {job.broken[0].where}: {job.broken[0].message}" if job.broken else ""
        files = ", ".join(map(str, job.paths))
        raise RolloutError(f"{files}: no usable row ({len(job.broken)} broken){first}")
    job.broken.clear()  # found again, and in their places
    return sizes


def _grade_windows(
    job: GradingJob, asker: RolloutGrader, groups: GroupNames, left: Counter[str]
) -> Iterator[list[_Waiting]]:
    """Graded samples, a window at a time; ``left`` says how many of a group are still to come.

    Where a grader compares the samples of a group, a window ends with the last group it has.
    """
    samples: list[Sample] = []
    facts: list[SampleFacts] = []
    open_groups: set[str] = set()
    for sample in _usable_samples(job):
        group = groups.name(sample)
        left[group] -= 1
        open_groups.add(group) if left[group] else open_groups.discard(group)
        samples.append(sample)
        facts.append(_sample_facts(sample, group))
        if len(samples) >= _WINDOW and not (asker.needs_whole_groups and open_groups):
            yield _grade_window(job, asker, samples, facts)
            samples, facts = [], []
    if samples:
        yield _grade_window(job, asker, samples, facts)


def _grade_window(
    job: GradingJob, asker: RolloutGrader, samples: Sequence[Sample], facts: Sequence[SampleFacts]
) -> list[_Waiting]:
    judged = run_blocking(asker.grade(samples, [one.group for one in facts], step=0))
    if job.cassette is not None:
        job.cassette.keep_failures()
    return list(map(_Waiting, facts, judged))


def read_first_samples(job: GradingJob, most: int) -> tuple[list[Sample], list[str]]:
    """The first usable samples of a job as the reward function sees them, and their groups."""
    groups = GroupNames()
    check_files(job.paths)
    check_mapping(job.paths, job.mapping)
    samples = list(islice(_usable_samples(job), most))
    return samples, [groups.name(sample) for sample in samples]


def _usable_samples(job: GradingJob) -> Iterator[Sample]:
    for where, sample in read_samples(job.paths, job.mapping):
        if not isinstance(sample, RolloutError):
            yield sample
        elif job.strict:
            raise sample
        else:
            job.broken.append(BrokenInputRow(where, str(sample).removeprefix(f"{where}: ")))


class GroupNames:
    """Names each sample's group: its column, else one name per distinct prompt.

    Generated names stand in parentheses with a number, and are never those of a column: the
    counter skips names that rows have used.
    """

    def __init__(self) -> None:
        self._prompts: dict[bytes, str] = {}
        self._columns: set[str] = set()
        self._made: set[str] = set()
        self._by_column = self._by_prompt = self._alone = 0

    def name(self, sample: Sample) -> str:
        """The name of the next sample's group."""
        if sample.group is not None:
            self._by_column += 1
            self._columns.add(sample.group)
            return f"{sample.group} (column)" if sample.group in self._made else sample.group
        key = compute_prompt_key(sample)
        if key is None:
            self._alone += 1
            return self._new("row", sample.index)
        self._by_prompt += 1
        # Prompts are long, and there may be as many as samples.
        digest = blake2b(encode_exactly(key), digest_size=16).digest()
        if digest not in self._prompts:
            self._prompts[digest] = self._new("prompt", len(self._prompts))
        return self._prompts[digest]

    def _new(self, kind: str, number: int) -> str:
        name = f"({kind} {number})"
        while name in self._columns:
            name = f"({name})"
        self._made.add(name)
        return name

    @property
    def source(self) -> str:
        """Where the names came from, in words."""
        ways = {
            "column": self._by_column,
            "equal prompts": self._by_prompt,
            "no prompt, each alone": self._alone,
        }
        used = {way: count for way, count in ways.items() if count}
        if len(used) == 1:
            return next(iter(used))
        return "; ".join(f"{way}: {count} rows" for way, count in used.items())


def _sample_facts(sample: Sample, group: str) -> SampleFacts:
    calls = [message.get("tool_calls") for message in sample.messages or []]
    response = sample.response or ""
    return SampleFacts(
        index=sample.index,
        group=group,
        env_reward=sample.env_reward,
        length=len(response),
        properties=answer_properties(response),
        tool_calls=sum(len(some) for some in calls if isinstance(some, list)),
        prompt=(sample.prompt or "")[:_PROMPT_CHARS],
        response=response[:_RESPONSE_CHARS],
    )


_encoder = msgspec.json.Encoder(enc_hook=str)


def _reward_line(facts: SampleFacts, result: RewardResult) -> bytes:
    missing = result.missing
    row = {
        "index": facts.index,
        "group": facts.group,
        "reward": result.score,
        "missing": missing and {"kind": str(missing.kind), "message": missing.error},
        "reward_info": result.reward_info,
        "details": result.details,
    }
    try:
        return _encoder.encode(row) + b"\n"
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        # Metadata of a user's grader that JSON cannot hold, or a lone surrogate: as text.
        row["details"] = _json_safe(result.details)
        return json.dumps(row).encode() + b"\n"


def _json_safe(value: Any, depth: int = 0) -> Any:
    """``value`` as JSON can hold it, whatever it is."""
    if isinstance(value, dict) and depth < _DEPTH:
        return {str(key): _json_safe(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple) and depth < _DEPTH:
        return [_json_safe(inner, depth + 1) for inner in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return f"<{type(value).__name__}>"


def _run_facts(job: GradingJob, folder: RunFolder) -> dict[str, Any]:
    return {
        "adjudge": __version__,
        "created": folder.created,
        "spec": {"path": job.spec.where, "hash": job.spec.hash},
        "inputs": [str(path) for path in job.paths],
        "map": dict(job.mapping),
        "resumed_results": job.resumed,
        "cassette": job.cassette and msgspec.to_builtins(job.cassette.report()),
        "broken_rows": {
            "count": len(job.broken),
            "first": [{"where": row.where, "message": row.message} for row in job.broken[:20]],
        },
    }


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
