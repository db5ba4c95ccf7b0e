"""The main job: files of rollouts through a reward spec, into a run folder."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from adjudge.checks.summary import list_warnings
from adjudge.datasets.files import find_files
from adjudge.engine.loop import run_blocking
from adjudge.errors import RolloutError, RunFolderError
from adjudge.files import atomic_write
from adjudge.judges.endpoint.connections import own_calls
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.reducer import RewardChecks
from adjudge.rollouts.input_report import InputReport
from adjudge.rollouts.samples import GroupNames, SampleReader
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Progress, Tally
from adjudge.runs.folder import JOURNAL_FILE, SPEC_IDENTITY, RunFolder, spec_facts
from adjudge.runs.job import WINDOW, GradedRun, GradingJob, RolloutGrader
from adjudge.runs.rows import GradedRow, ReportRows, RunObserver
from adjudge.runs.spending import FolderSpending
from adjudge.runs.summary import DrawTotals, GradingTotals
from adjudge.text import encode_json
from adjudge.types import Sample
from adjudge.version import describe_writer

if TYPE_CHECKING:
    from adjudge.judges.cassette import ReplyCache
    from adjudge.judges.endpoint.settings import SpendCeiling
    from adjudge.runs.samples import RunSamples
    from adjudge.runs.transcripts import TranscriptKeeper

_log = logging.getLogger("adjudge")

_MOST_INDEXED = 200_000
"""Of a run with more samples none is in full: finding the worst would take longer than reading."""
_FIRST = 20
"""Broken rows and skipped files that the summary names."""

_NOT_HERE = "; judge calls that this process did not make are not kept"


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
    job.spec.check_machine(graders)
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
                combine=lambda here: [*(job.engine.endpoints() if job.engine else ()), *here],
            )
        )
        if journal is not None:
            judged = filter(job.spec.asks_judge, job.spec.graders)
            resume_recording(job.cassette, journal, {entry.name for entry in judged})
        keeper = None if folder is None else _open_keeper(job, folder, counted.sizes, opened)
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
            asker = opened.enter_context(job.engine.grade_with(job, function, tally))
        names, total = [entry.name for entry in job.spec.graders], counted.sizes.total()
        totals, page = GradingTotals(job.spec, graders, started), ReportRows(names, total)
        observers: list[RunObserver] = [totals, page, spending]
        if function.draws > 1:
            observers.append(DrawTotals(names, function.asked_again, function.draws))
        if keeper is not None:
            observers.append(keeper)
        samples = None
        if folder is not None and total <= _MOST_INDEXED:
            from adjudge.runs.samples import RunSamples  # noqa: PLC0415  (not without a folder)

            samples = RunSamples(folder.path, "grade", folder.facts)
        kept: list[GradedRow] = []
        rewarded = _rewarded_samples(job, asker, function, counted, keeper)
        lines = _observe(rewarded, observers, kept if keep_rows else None, samples)
        if folder is None:
            deque(lines, maxlen=0)
        else:
            atomic_write(folder.path / "rewards.jsonl", lines)
        tally.note = "writing summary and report"
        summary: dict[str, Any] = {"transcripts": None}
        for one in observers:
            one.on_end(summary)
        summary["warnings"] = list_warnings(summary)
        summary["groups"]["source"] = counted.report.group_source
        summary |= _run_facts(job, folder, tally, counted)
        shown = page.chosen(), totals, samples
        run = GradedRun(kept, summary, counted.reader.broken, job.folder, _page=shown)
        if folder is not None:
            folder.write_json("summary.json", summary)
            run.report(folder.path / "report.html")
    return run


def _observe(
    samples: Iterable[GradedRow],
    observers: Sequence[RunObserver],
    kept: list[GradedRow] | None,
    index: RunSamples | None,
) -> Iterator[bytes]:
    """The lines of ``rewards.jsonl``, each once all observers have seen its sample."""
    for one in samples:
        for observer in observers:
            observer.on_sample(one)
        if kept is not None:
            kept.append(one)
        line = one.encode()
        if index is not None:
            index.add(line)
        yield line


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


def _open_folder(job: GradingJob, path: Path, graders: Mapping[str, Any]) -> RunFolder:
    from adjudge.runs.story import describe_spec  # noqa: PLC0415  (not without a folder)

    facts = {
        **spec_facts(job.spec, graders, job.paths, job.mapping),
        **describe_spec(job.spec, graders),
    }
    if job.rows is not None:  # what is in memory is known by its content
        digest = hashlib.sha256()
        for _, row in job.rows:
            digest.update(encode_json(row, lambda value: type(value).__name__) + b"\n")
        facts["inputs"] = [f"{job.rows_of}, sha256 {digest.hexdigest()[:16]}"]
    return RunFolder(path, facts, SPEC_IDENTITY, outputs=("report.html",), journal=JOURNAL_FILE)


def _open_keeper(
    job: GradingJob, folder: RunFolder, sizes: Mapping[str, int], opened: ExitStack
) -> TranscriptKeeper | None:
    """Who keeps transcripts; ``None`` on a file system that cannot, as one without locks."""
    if not job.most_transcripts:
        return None
    from adjudge.runs.transcripts import (  # noqa: PLC0415  (not without a folder)
        TranscriptKeeper,
        TranscriptStore,
    )

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


def _rewarded_samples(
    job: GradingJob,
    asker: RolloutGrader,
    function: SpecRewardFunction,
    counted: CountedSamples,
    keeper: TranscriptKeeper | None,
) -> Iterator[GradedRow]:
    """Every sample with its reward, in input order, each once its group is whole."""
    found = RewardChecks()
    order: deque[int] = deque()
    done: dict[int, GradedRow] = {}
    open_groups: dict[str, list[GradedRow]] = {}
    left = counted.sizes
    for window in _grade_windows(job, asker, counted, keeper):
        for row in window:
            order.append(row.index)
            open_groups.setdefault(row.group, []).append(row)
        closed = [group for group in {row.group: None for row in window} if not left[group]]
        whole = [row for group in closed for row in open_groups.pop(group)]
        whole.sort(key=lambda row: row.index)
        judged = [row.judged for row in whole]
        results = function.reward(judged, found=found)
        draws = function.draw_values(judged) if function.draws > 1 else repeat(())
        for row, result, drawn in zip(whole, results, draws, strict=False):
            row.result, row.draw_values = result, drawn
            done[row.index] = row
        while order and order[0] in done:
            yield done.pop(order.popleft())
    if order or any(left.values()):
        raise RolloutError(
            f"{', '.join(job.input_names)}: changed while being read, so its groups are not whole. "
            "Run the same command again when nothing writes to it; what was graded is kept."
        )
    function.check_rewards(found)


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
    report = InputReport()
    reader = job.samples() if job.on_input is None else job.samples(report.hear)
    first: list[Sample] = []
    sizes: Counter[str] = Counter()
    columns: set[str] = set()
    for sample in reader:
        sizes[report.add(sample)] += 1
        columns.update(sample.extra)
        if len(first) <= WINDOW:
            first.append(sample)
    report.add_files(reader)
    if not report.samples:
        broken = reader.broken
        example = f"; first: {broken[0].where}: {broken[0].message}" if broken else ""
        raise RolloutError(
            f"{', '.join(job.input_names)}: no usable row ({len(broken)} broken; read as "
            f"{', '.join(report.formats) or 'nothing'}){example}"
        )
    if job.on_input is not None:
        job.on_input(report)
    samples = first if len(first) <= WINDOW else reader
    return CountedSamples(samples, sizes, reader, report, columns)


def _grade_windows(
    job: GradingJob,
    asker: RolloutGrader,
    counted: CountedSamples,
    keeper: TranscriptKeeper | None,
) -> Iterator[list[GradedRow]]:
    """Graded samples, a window at a time.

    Where a grader compares the samples of a group, a window ends with the last group it has.
    """
    samples: list[Sample] = []
    groups: list[str] = []
    open_groups: set[str] = set()
    left, window = counted.sizes, WINDOW if job.engine is None else job.engine.window
    for sample in counted.samples:
        group = counted.groups.name(sample)
        left[group] -= 1
        open_groups.add(group) if left[group] else open_groups.discard(group)
        samples.append(sample)
        groups.append(group)
        if len(samples) >= window and not (asker.needs_whole_groups and open_groups):
            yield _grade_window(job, asker, samples, groups, keeper)
            samples, groups = [], []
    if samples:
        yield _grade_window(job, asker, samples, groups, keeper)


def _grade_window(
    job: GradingJob,
    asker: RolloutGrader,
    samples: Sequence[Sample],
    groups: Sequence[str],
    keeper: TranscriptKeeper | None,
) -> list[GradedRow]:
    if keeper is not None:
        keeper.begin_window(samples, groups)
    judged = run_blocking(asker.grade(samples, groups, step=0))
    if job.cassette is not None:
        job.cassette.keep_failures()
    return list(map(GradedRow.of, samples, groups, judged))


def read_first_samples(job: GradingJob, most: int) -> tuple[list[Sample], list[str], int]:
    """The first usable samples of a job, their groups, and how many samples it has."""
    find_files(job.paths)  # before anything is opened
    counted = count_samples(job)
    samples = list(islice(counted.samples, most))
    return samples, list(map(counted.groups.name, samples)), counted.sizes.total()


def _run_facts(
    job: GradingJob,
    folder: RunFolder | None,
    tally: Tally,
    counted: CountedSamples,
) -> dict[str, Any]:
    reader = counted.reader
    return {
        "input": counted.report.as_json(),
        "asks": dict(tally.asks.most_common()),
        **describe_writer(),
        **({} if folder is None else {"created": folder.created}),
        "spec": {"path": job.spec.where, "hash": job.spec.hash},
        "inputs": job.input_names,
        "map": dict(job.mapping),
        "resumed_results": tally.resumed,
        "cassette": job.cassette and msgspec.to_builtins(job.cassette.report()),
        "broken_rows": {
            "count": len(reader.broken),
            "first": [asdict(row) for row in reader.broken[:_FIRST]],
        },
        "formats": dict(counted.report.formats),
        "skipped_files": {
            "count": len(reader.skipped),
            "first": [
                {"file": file, "reason": reason}
                for file, reason in islice(reader.skipped.items(), _FIRST)
            ],
        },
    }
