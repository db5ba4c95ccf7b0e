"""What one grading run is to do: its input, its spec, its folder, and who asks the graders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from adjudge.datasets.files import FileRow
from adjudge.errors import ConfigError
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.input_report import InputReport
from adjudge.rollouts.samples import SampleReader
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.types import GradedSample, Sample

if TYPE_CHECKING:
    from adjudge.judges.cassette.cache import ReplyCache

MOST_DRAWS = 100
_DEFAULT_TRANSCRIPTS, _DEFAULT_WITHOUT_JUDGE = 20_000, 2_000
"""Samples whose transcripts are kept, unless the user says otherwise. Where no judge is asked these
are rollouts that the input has too, and keeping many would take longer than grading them."""

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

    def grade_with(
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


def open_cassette(record: Path | None, replay: Path | None) -> ReplyCache | None:
    """What ``--record`` or ``--replay`` names; raises :class:`ConfigError` for both."""
    if record is not None and replay is not None:
        raise ConfigError("--record and --replay: cannot be used together. Use one of them.")
    path = record or replay
    if path is None:
        return None
    from adjudge.judges.cassette.cache import ReplyCache  # noqa: PLC0415  (few runs keep replies)

    return ReplyCache(path, "replay") if record is None else ReplyCache(path, sampled=True)
