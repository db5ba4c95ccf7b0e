"""What runs on Ray while shards are graded: the worker, and the ledger of answers.

A worker reads a shard, asks the graders and reports each answer as it comes. The ledger is an
actor beside the run's folder: it writes each answer to the journal at once, and tells a worker
that begins a shard again, because the machine that had it died, what is known of it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.files import read_rows
from adjudge.datasets.shards import Shard, read_shard
from adjudge.engine.loop import run_blocking
from adjudge.errors import AdjudgeError, ConfigError, RolloutError
from adjudge.files import UNENCODABLE
from adjudge.graders.base import is_listwise
from adjudge.judges.endpoint.connections import open_connections
from adjudge.judges.endpoint.settings import EndpointStats
from adjudge.rewards.batch_grader import BatchGrader
from adjudge.rewards.function import compute_fingerprint
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.nested import HEAD_ROWS
from adjudge.rollouts.recognition import find_reading
from adjudge.rollouts.samples import sample_from_row
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runs.job import select_entries
from adjudge.types import (
    GradedSample,
    GraderResult,
    Sample,
)

_RESULTS: msgspec.json.Decoder[GraderResult] = msgspec.json.Decoder(GraderResult)

LedgerEntry = tuple[str, str, int, bytes]
"""Sample key, grader, draw, encoded result: a line of the journal, or a failure."""


@dataclass
class _ShardProgress:
    attempt: int = 0
    entries: list[LedgerEntry] = field(default_factory=list)
    claimed: bool = False
    counts: Tally = field(default_factory=Tally)


class Ledger:
    """The journal's keeper; ``path`` and ``spec_hash`` are the journal's.

    Failures are kept for the shards that are being graded, so that a shard begun again goes on
    after them; they are never written, so that a resumed run asks them again.
    """

    def __init__(self, path: str, spec_hash: str) -> None:
        self._journal = Journal(path, spec_hash)
        self._begun: dict[int, _ShardProgress] = {}
        self._finished: set[int] = set()
        self._total = Tally()
        self._resumed = 0

    def begin(self, shard: int) -> tuple[int, list[LedgerEntry], bool]:
        """An attempt at a shard: its number, what is known, and whether to ask for more.

        More is what an earlier run's journal may know: see :meth:`claim`. Attempt 0: the shard is
        finished, and Ray only has not noticed.
        """
        if shard in self._finished:
            return 0, [], False
        begun = self._begun.setdefault(shard, _ShardProgress())
        begun.attempt += 1
        begun.counts = Tally()
        return begun.attempt, begun.entries, not begun.claimed and len(self._journal) > 0

    def claim(self, shard: int, wanted: Sequence[tuple[str, str, int]]) -> list[LedgerEntry]:
        """What the journal of an earlier run knows of sample keys, graders and draws.

        Each answer is given out once: equal samples are separate questions.
        """
        begun = self._begun[shard]
        if not begun.claimed:
            begun.claimed = True
            for key, grader, draw in wanted:
                if (found := self._journal.take(key, grader, draw)) is not None:
                    begun.entries.append((key, grader, draw, msgspec.json.encode(found)))
                    self._resumed += 1
        return begun.entries

    def report(
        self, shard: int, attempt: int, entries: Sequence[LedgerEntry], counts: Tally
    ) -> None:
        """Answers of an attempt, in the order in which they came; those of a dead one are late."""
        begun = self._begun.get(shard)
        if begun is None or begun.attempt != attempt:
            return
        for key, grader, draw, data in entries:
            begun.entries.append((key, grader, draw, data))
            try:
                self._journal.put(key, grader, draw, _RESULTS.decode(data))
            except msgspec.MsgspecError:
                continue  # metadata that does not survive JSON: asked again on resuming
        self._journal.flush()
        begun.counts = counts

    def finish(self, shard: int) -> None:
        """A shard's results have arrived; nobody will ask for it again."""
        begun = self._begun.pop(shard, None)
        if begun is not None:
            self._finished.add(shard)
            begun.counts.note = ""
            self._total.add(begun.counts)

    def counts(self) -> Tally:
        """How far everything is; ``resumed`` is what an earlier run's journal had."""
        total = Tally()
        for one in (self._total, *(begun.counts for begun in self._begun.values())):
            total.add(one)
        total.resumed = self._resumed
        return total


_REPORT_EVERY_S = 0.01
_REPORT_BYTES = 1 << 18

EndpointId = tuple[tuple[str, ...], tuple[str, ...]]
"""Addresses and models of an endpoint."""


@dataclass(frozen=True)
class WorkerPlan:
    """What all workers of a run are told.

    ``cwd`` is the driver's working directory, which relative paths of the spec start from;
    ``window`` how many samples a worker holds at once; the rest is as of a batch grader.
    """

    spec: RewardSpec
    fingerprint: str
    mapping: Mapping[str, str]
    cwd: str
    window: int
    startup_patience_s: float | None = None
    draws: int = 1
    columns: Collection[str] = ()


@dataclass
class WorkerReport:
    """What a worker says of some of a shard's rows, or why it can say nothing.

    ``last``: the shard is done. ``endpoints``: all calls of this worker so far, whose name is
    ``worker``.
    """

    shard: int
    judged: list[GradedSample] = field(default_factory=list)
    error: AdjudgeError | None = None
    last: bool = False
    worker: str = ""
    endpoints: dict[EndpointId, EndpointStats] = field(default_factory=dict)


def select_graders(
    spec: RewardSpec, graders: Mapping[str, Any], *, listwise: bool
) -> RewardSpec | None:
    """The spec with its listwise graders alone, or without them; ``None`` when none are left."""
    return select_entries(spec, [one for one in graders if is_listwise(graders[one]) is listwise])


class ShardWorker:
    """Grades shards, one after the other; made for ``ray.data.Dataset.map_batches``.

    Keeps its judges and the outage watch from shard to shard. ``ledger`` is the handle of a
    :class:`~adjudge.runs.ray_worker.Ledger` actor. Whatever stops the run (an outage, a refused
    key, a wrong configuration) is said as ``WorkerReport.error``, not raised: Ray would try again.
    """

    def __init__(self, plan: WorkerPlan, ledger: Any) -> None:
        self.plan = plan
        self._journal = ShardJournal(ledger)
        self._desk: _WorkerGraders | None = None
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    def __call__(self, batch: Mapping[str, Any]) -> Iterator[dict[str, list[Any]]]:
        """Answers for a batch of one shard, a window at a time."""
        shard, drawn = msgspec.json.decode(batch["shard"][0], type=tuple[Shard, list[int] | None])
        try:
            for said in self._windows(shard, drawn):
                said.worker, said.endpoints = self._name, run_blocking(_endpoints())
                yield {"said": [_packed(said)]}
        except AdjudgeError as error:
            yield {"said": [_packed(WorkerReport(shard.number, error=error))]}

    def _windows(self, shard: Shard, drawn: list[int] | None) -> Iterator[WorkerReport]:
        if self._desk is None:
            self._desk = _WorkerGraders(self.plan, self._journal)
        desk = self._desk
        if not self._journal.begin(shard.number):
            yield WorkerReport(shard.number, last=True)
            return
        samples = self._samples(shard)
        while window := list(islice(samples, self.plan.window)):
            yield WorkerReport(
                shard.number, desk.judged(window, _sampled_flags(window, drawn, shard))
            )
        self._journal.wait_until_reported()
        yield WorkerReport(shard.number, last=True)

    def _samples(self, shard: Shard) -> Iterator[Sample]:
        head = islice(read_rows([Path(shard.path)]), HEAD_ROWS)
        reading = find_reading([row for _, row in head if isinstance(row, dict)], self.plan.mapping)
        form = reading.format
        if form is not None and (form.request_id is not None or form.conversations is not None):
            raise ConfigError(
                f"{shard.path}: results of a batch and their requests, and the lines of a log, are "
                "joined by the local engine only. Leave out --engine ray."
            )
        for index, record in read_shard(shard):
            if isinstance(record, RolloutError):
                continue  # named by whoever reads the files in order
            with suppress(RolloutError):
                rows = [row for _, row in reading.places(record, index)]
                if len(rows) != 1:
                    raise ConfigError(
                        f"{shard.path}: rows with several responses are split into samples by the "
                        "local engine only. Leave out --engine ray, or write a row for each."
                    )
                if not isinstance(rows[0], RolloutError):
                    yield sample_from_row(rows[0], index)


class _WorkerGraders:
    """A worker's graders, ready to be asked; raises :class:`ConfigError`."""

    def __init__(self, plan: WorkerPlan, journal: ShardJournal) -> None:
        try:
            os.chdir(plan.cwd)
        except OSError as error:
            raise ConfigError(
                f"{plan.cwd}: no such folder on {socket.gethostname()}. Put the folders of spec "
                "and rollouts at the same paths on every machine (a shared file system)."
            ) from error
        graders = plan.spec.build_graders()
        if compute_fingerprint(plan.spec, graders) != plan.fingerprint:
            raise ConfigError(
                f"{socket.gethostname()}: adjudge's version, or a file that the spec names, "
                "differs from the one where the run was started. Use the same on every machine."
            )
        part = select_graders(plan.spec, graders, listwise=False)
        if part is None:
            raise ConfigError("no grader scores single samples")
        self._journal = journal
        self._grader = BatchGrader(
            part,
            graders,
            journal=journal,
            tally=journal.tally,
            startup_patience_s=plan.startup_patience_s,
            draws=plan.draws,
            columns=plan.columns,
        )

    def judged(self, window: list[Sample], drawn: list[bool]) -> list[GradedSample]:
        """What the graders say of a window, as the local engine asks them."""
        names = [""] * len(window)
        if self._journal.has_more:
            self._journal.claim(self._grader.journal_keys(window, names, drawn))
        return run_blocking(self._grader.grade(window, names, drawn))


class ShardJournal(Journal):
    """A journal that lives in the ledger: it knows one shard, and reports what is new.

    Reports go out at once when none went within 10 ms, so that a dying machine takes little with it
    but what was in flight.
    """

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.tally = Tally(None)
        self.has_more = False
        self._shard = self._attempt = 0
        self._entries: dict[tuple[str, str, int], deque[bytes]] = {}
        self._new: list[LedgerEntry] = []
        self._new_bytes = 0
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._last: Any = None

    def begin(self, shard: int) -> bool:
        """Start with a shard: learn what is known of it; whether there is anything left to do."""
        self._shard = shard
        self._entries, self._new, self._new_bytes = {}, [], 0
        vars(self.tally).update(vars(Tally()))  # the graders hold this one
        self._attempt, entries, self.has_more = _get(self._ledger.begin.remote(shard))
        self._learn(entries)
        return self._attempt > 0

    def claim(self, wanted: Sequence[tuple[str, str, int]]) -> None:
        """Learn what an earlier run knew of these sample keys, graders and draws."""
        self._learn(_get(self._ledger.claim.remote(self._shard, wanted)))

    def _learn(self, entries: Sequence[LedgerEntry]) -> None:
        for key, grader, draw, data in entries:
            self._entries.setdefault((key, grader, draw), deque()).append(data)

    def wait_until_reported(self) -> None:
        """Wait until the ledger has everything."""
        self.flush()
        if self._last is not None:
            _get(self._last)

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def take(self, sample: str, grader: str, draw: int) -> GraderResult | None:
        """What is known of this shard, each answer (failures too) once, in their order."""
        known = self._entries.get((sample, grader, draw))
        return _RESULTS.decode(known.popleft()) if known else None

    def put(self, sample: str, grader: str, draw: int, result: GraderResult) -> None:
        """Report a result, failures too; on the engine loop."""
        try:
            data = msgspec.json.encode(result)
        except UNENCODABLE:
            return  # metadata that JSON cannot hold
        self._new.append((sample, grader, draw, data))
        self._new_bytes += len(data)
        left = self._sent_at + _REPORT_EVERY_S - time.monotonic()
        if left <= 0 or self._new_bytes > _REPORT_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(left, self.flush)

    def flush(self) -> None:
        """Send what is new."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._new:
            report = self._ledger.report.remote
            self._last = report(self._shard, self._attempt, self._new, copy(self.tally))
            self._new, self._new_bytes = [], 0
        self._sent_at = time.monotonic()


def _sampled_flags(window: Sequence[Sample], drawn: list[int] | None, shard: Shard) -> list[bool]:
    if drawn is None:
        return [True] * len(window)
    return [bool(drawn[one.original_index - shard.first]) for one in window]


async def _endpoints() -> dict[EndpointId, EndpointStats]:
    return {
        (tuple(one.endpoint_key.base_urls), tuple(sorted(one.models))): one.endpoint.stats.since(
            EndpointStats()
        )
        for one in open_connections()
    }


def _get(reference: Any) -> Any:
    import ray  # noqa: PLC0415  (a worker's own, heavy)

    return ray.get(reference)


def _packed(said: WorkerReport) -> bytes:
    """For our own driver; what of a user's metadata cannot be packed goes as text."""
    from ray import cloudpickle  # noqa: PLC0415

    try:
        return bytes(cloudpickle.dumps(said))
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError):
        plain = msgspec.json.Encoder(enc_hook=str).encode(said.judged)
        said.judged = msgspec.json.decode(plain, type=list[GradedSample])
        return bytes(cloudpickle.dumps(said))
