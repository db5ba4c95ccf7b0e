"""What one grading run is to do, who asks the graders, and what the run gave: a row a sample."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from adjudge.datasets.files import FileRow
from adjudge.errors import ConfigError
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.input_report import InputReport
from adjudge.rollouts.samples import BrokenInputRow, SampleReader
from adjudge.runner.progress import Tally
from adjudge.runs.rows import GradedRow
from adjudge.runs.summary import GradingTotals
from adjudge.types import GradedSample, Sample

if TYPE_CHECKING:
    from adjudge.judges.cassette import ReplyCache
    from adjudge.runs.samples import RunSamples

MOST_DRAWS = 100
WINDOW = 4096
"""How many samples are asked about at a time."""
_DEFAULT_TRANSCRIPTS, _DEFAULT_WITHOUT_JUDGE = 20_000, 2_000
"""Samples whose transcripts are kept, unless the user says otherwise. Where no judge is asked these
are rollouts that the input has too, and keeping many would take longer than grading them."""
_SHOWN_ROWS, _GROUP_CHARS = 10, 80

_log = logging.getLogger("adjudge")


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

    @property
    def window(self) -> int:
        """How many samples it is asked about at a time."""

    def grade_with(
        self, job: GradingJob, function: SpecRewardFunction, tally: Tally
    ) -> AbstractContextManager[RolloutGrader]:
        """Who asks in the place of ``function`` as long as the context lasts.

        Raises :class:`ConfigError`; its grader raises what stops a grader elsewhere.
        """

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
        return _DEFAULT_TRANSCRIPTS if self.asks_judge else _DEFAULT_WITHOUT_JUDGE

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


def select_entries(spec: RewardSpec, names: Collection[str]) -> RewardSpec | None:
    """The spec with those graders alone; ``None`` where it has none of them."""
    kept = [entry for entry in spec.graders if entry.name in names]
    return spec.model_copy(update={"graders": kept}) if kept else None


def open_cassette(record: Path | None, replay: Path | None) -> ReplyCache | None:
    """What ``--record`` or ``--replay`` names; raises :class:`ConfigError` for both."""
    if record is not None and replay is not None:
        raise ConfigError("--record and --replay: cannot be used together. Use one of them.")
    path = record or replay
    if path is None:
        return None
    from adjudge.judges.cassette import ReplyCache  # noqa: PLC0415  (few runs keep replies)

    return ReplyCache(path, "replay") if record is None else ReplyCache(path, sampled=True)


# --- what it gave -------------------------------------------------------------------------------


@dataclass
class GradedRun:
    """What :func:`adjudge.grade` gives: ``len()`` counts the samples, iterating gives their rows.

    ``rows``: one a sample in the order of the input; what could not be read is in ``broken``.
    ``summary``: the numbers of ``summary.json``. ``folder``: where the files were written, if so.

    >>> import adjudge
    >>> rollouts = [
    ...     {"prompt": "2 + 2?", "response": "4", "reference": "4"},
    ...     {"prompt": "2 + 2?", "response": "5", "reference": "4"},
    ... ]
    >>> run = adjudge.grade(rollouts, {"graders": [{"name": "right", "type": "string_match"}]})
    >>> run
    GradedRun(2 samples in 1 groups, mean reward 0.500)
    >>> [(row.reward, row.missing) for row in run]
    [(1.0, None), (0.0, None)]
    >>> run.rows[0].scores
    {'right': 1.0}
    >>> run.summary["reward"]["mean"]
    0.5
    """

    rows: Sequence[GradedRow]
    summary: Mapping[str, Any]
    broken: Sequence[BrokenInputRow] = ()
    folder: Path | None = None
    _page: tuple[Sequence[GradedRow], GradingTotals, RunSamples | None] = field(
        kw_only=True, repr=False
    )

    @property
    def rewards(self) -> list[float | None]:
        """The rewards of :attr:`rows`, in their order; ``None`` is missing, never a number.

        A row of the input that is in :attr:`broken` has none here: match by ``row.index``.
        """
        return [row.reward for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[GradedRow]:
        return iter(self.rows)

    def report(self, path: Path | str) -> Path:
        """Write the page that ``adjudge grade`` writes to ``path``: one HTML file, no network."""
        from adjudge.runs.report.page import (  # noqa: PLC0415  (slow to load; few want a page)
            choose_stories,
            write_grading_report,
        )

        rows, series, samples = self._page
        stories = None if samples is None else choose_stories(samples)
        write_grading_report(Path(path), self.summary, rows, series, stories)
        return Path(path)

    def __repr__(self) -> str:
        reward = self.summary["reward"]
        mean = "none" if reward["mean"] is None else f"{reward['mean']:.3f}"
        missing = f", {reward['missing']:,} missing" if reward["missing"] else ""
        broken = f", {len(self.broken):,} broken rows" if self.broken else ""
        return (
            f"GradedRun({self.summary['samples']:,} samples in "
            f"{self.summary['groups']['count']:,} groups, mean reward {mean}{missing}{broken})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the run in numbers, and its first samples."""
        from adjudge.report.page import paragraph, render_output  # noqa: PLC0415  (few are shown)
        from adjudge.report.table import Table, lost, numeric  # noqa: PLC0415
        from adjudge.runs.report.tables import list_results, number_cell  # noqa: PLC0415

        names = list(self.rows[0].scores) if self.rows else []
        cells = [
            [
                str(row.index),
                row.group[:_GROUP_CHARS],
                number_cell(row.reward) if row.missing is None else lost(str(row.missing.kind)),
                *(number_cell(row.scores.get(name)) for name in names),
            ]
            for row in self.rows[:_SHOWN_ROWS]
        ]
        more = len(self.rows) - len(cells)
        caption = f"The first {len(cells)} samples; {more:,} more are in rows." if more else None
        rows = Table(["index", "group", *numeric("reward", *names)], cells, caption=caption)
        return render_output(paragraph(repr(self)), *list_results(self.summary), rows)
