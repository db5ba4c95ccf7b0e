"""``adjudge grade --engine ray``: the graders are asked by workers on many machines.

This process reads the rollouts and hands each window of them out in parts, of whole groups where a
grader compares their samples. A worker asks the graders, and reports each answer as it comes. The
journal, the counts, group steps, missing policy, summary and report are those of the local engine,
in this process. A part whose worker died goes to another worker, with the answers that were
reported.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from adjudge.engine.loop import Job, run_all, run_blocking
from adjudge.errors import AdjudgeError, ConfigError
from adjudge.installation import install_command
from adjudge.judges.endpoint.connections import open_endpoints
from adjudge.judges.endpoint.settings import EndpointStats
from adjudge.rewards.batch_grader import AskOptions, BatchGrader
from adjudge.rewards.function import SpecRewardFunction, compute_fingerprint
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runs.job import GradingJob, RolloutGrader
from adjudge.types import GradedSample, GraderError, GraderResult, Sample

_PART_SAMPLES = (32, 512)
_PARTS_A_WORKER = 8
"""So many parts each of a window, so that all workers end at about the same time."""
_WORKER_CPUS = 0.1
"""Little, so that what a dead machine's workers did can go on beside the others."""
_OBJECT_STORE = 256 << 20
_REPORT_EVERY_S = 0.01
_MOST_DEATHS = 5
"""Workers in a row that die over one part without an answer: its next one would, too."""

StoredAnswer = tuple[str, str, int, GraderResult]
"""Sample key, grader, draw and result: a line of the journal."""
EndpointId = tuple[tuple[str, ...], tuple[str, ...]]
"""Addresses and models of an endpoint."""


@dataclass
class RayEngine:
    """Grading on a Ray cluster; give it to :class:`~adjudge.runs.job.GradingJob`.

    ``address``: ``None`` is what ``RAY_ADDRESS`` says, else a cluster of this machine alone that
    ends with the run; ``"auto"`` a cluster that runs here, ``"local"`` this machine alone, else a
    cluster's address. ``workers``: by default one per CPU of the cluster.
    """

    window: ClassVar[int] = 32_768

    address: str | None = None
    workers: int | None = None
    _calls: dict[str, dict[EndpointId, EndpointStats]] = field(default_factory=dict)
    """What each worker has asked so far."""

    @contextmanager
    def grade_with(
        self, job: GradingJob, function: SpecRewardFunction, tally: Tally
    ) -> Iterator[RolloutGrader]:
        """See :class:`.GradingEngine`."""
        if job.cassette is not None or job.budget_usd is not None:
            raise ConfigError(
                "--record, --replay and --budget-usd work in one process only. Use --engine local."
            )
        options = AskOptions(
            startup_patience_s=job.startup_patience_s,
            draws=job.draws,
            columns=function.options.get("columns", ()),
        )
        plan = WorkerPlan(job.spec, function.fingerprint, str(Path.cwd()), options)
        with _ray_cluster(self.address, self.workers):
            workers = self.workers or _count_cpus()
            yield _ClusterGrader(plan, workers, function, tally, self._calls)

    def endpoints(self) -> list[dict[str, Any]]:
        """The table of the workers' calls, as :meth:`CallCount.table` has it."""
        total: dict[EndpointId, EndpointStats] = {}
        for one in [*self._calls.values()]:  # a copy: reports go on coming
            for key, stats in one.items():
                total[key] = total.get(key, EndpointStats()).plus(stats)
        return [
            {"base_urls": list(urls), "models": list(models), **stats.summary()}
            for (urls, models), stats in total.items()
            if stats.calls
        ]


_Question = tuple[list[Sample], list[str], list[bool]]
"""Samples, the group of each, and whether each was drawn."""


@dataclass
class _Part:
    """What one worker is asked, what is known of it, and what the worker said.

    ``places``: where its samples are in their window.
    """

    places: Sequence[int]
    question: _Question
    known: list[StoredAnswer]
    counts: Tally = field(default_factory=Tally)
    judged: list[GradedSample] = field(default_factory=list)


class _ClusterGrader:
    """Asks the graders by workers."""

    def __init__(
        self,
        plan: WorkerPlan,
        workers: int,
        function: SpecRewardFunction,
        tally: Tally,
        calls: dict[str, dict[EndpointId, EndpointStats]],
    ) -> None:
        import ray  # noqa: PLC0415  (an extra, heavy)

        self._make_worker = ray.remote(RayWorker).options(num_cpus=_WORKER_CPUS)
        self._died = ray.exceptions.RayActorError
        self._plan, self._workers = plan, [self._make_worker.remote(plan) for _ in range(workers)]
        self._function, self._tally, self._calls = function, tally, calls
        self._journal = function.options.get("journal")
        self._asker = function.ask_part(function.spec)

    @property
    def needs_whole_groups(self) -> bool:
        """Whether the samples of a group must come in one call."""
        return self._asker.needs_whole_groups

    async def grade(
        self, samples: Sequence[Sample], groups: Sequence[str], *, step: int | None = None
    ) -> list[GradedSample]:
        """What all graders say of the samples, in order."""
        drawn = {group: self._function.is_drawn(group, step or 0) for group in set(groups)}
        parts = [
            self._begin_part(
                places,
                (
                    [samples[at] for at in places],
                    [groups[at] for at in places],
                    [drawn[groups[at]] for at in places],
                ),
            )
            for places in self._cut(groups)
        ]
        left = deque(parts)
        await run_all(self._hand_out(left, place) for place in range(len(self._workers)))
        judged = dict(
            chain.from_iterable(zip(one.places, one.judged, strict=True) for one in parts)
        )
        return [judged[place] for place in range(len(samples))]

    def _cut(self, groups: Sequence[str]) -> Iterator[list[int]]:
        """The places of each part's samples."""
        least, most = _PART_SAMPLES
        size = -(-len(groups) // (len(self._workers) * _PARTS_A_WORKER))
        size = min(max(least, size), most)
        together: dict[object, list[int]] = {}
        for place, group in enumerate(groups):
            together.setdefault(group if self.needs_whole_groups else place, []).append(place)
        part: list[int] = []
        for places in together.values():
            part += places
            if len(part) >= size:
                yield part
                part = []
        if part:
            yield part

    def _begin_part(self, places: Sequence[int], question: _Question) -> _Part:
        """A part with what the journal of an earlier run knows of it."""
        known: list[StoredAnswer] = []
        if self._journal is not None and len(self._journal):
            keys = self._asker.journal_keys(*question)
            found = ((key, self._journal.take(*key)) for key in keys)
            known = [(*key, one) for key, one in found if one is not None]
        self._tally.resumed += len(known)
        return _Part(places, question, known)

    async def _hand_out(self, left: deque[_Part], place: int) -> None:
        """Give one worker part after part; a part whose worker died goes to a new worker."""
        while left:
            part, deaths = left.popleft(), 0
            while not part.judged:
                known = len(part.known)
                try:
                    await self._ask(part, self._workers[place])
                except self._died as error:
                    deaths = deaths + 1 if len(part.known) == known else 0
                    if deaths == _MOST_DEATHS:
                        raise ConfigError(f"--engine ray: workers die: {error}") from None
                    self._workers[place] = self._make_worker.remote(self._plan)

    async def _ask(self, part: _Part, worker: Any) -> None:
        """Take what a worker reports of a part; raises what stopped the worker."""
        kept = Tally()  # of an earlier attempt: its answers are counted again, its cost is not
        kept.cost_usd, kept.asks = part.counts.cost_usd, part.counts.asks
        self._tally.replace(part.counts, kept)
        part.counts = Tally()
        ask = worker.grade.options(num_returns="streaming").remote
        async for reference in ask(*part.question, part.known):
            said: WorkerReport = pickle.loads(await reference)  # noqa: S301  (our own worker's words)
            part.known += said.answers
            if self._journal is not None:
                for answer in said.answers:
                    self._journal.put(*answer)
                self._journal.flush()
            self._tally.replace(part.counts, said.counts)
            part.counts, part.judged = said.counts, said.judged or []
            if said.endpoints is not None:
                self._calls[said.worker] = said.endpoints
            if said.error is not None:
                raise said.error


# --- the worker -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerPlan:
    """What all workers of a run are told.

    ``cwd`` is the driver's working directory, which relative paths of the spec start from; the rest
    is as of a batch grader.
    """

    spec: RewardSpec
    fingerprint: str
    cwd: str
    options: AskOptions


@dataclass
class WorkerReport:
    """What a worker says of a part: answers since its last report, and its counts so far.

    The last report has ``judged``, or the ``error`` that stops the run, and ``endpoints``: all
    calls of this worker so far, whose name is ``worker``.
    """

    worker: str
    answers: list[StoredAnswer]
    counts: Tally
    judged: list[GradedSample] | None = None
    error: AdjudgeError | None = None
    endpoints: dict[EndpointId, EndpointStats] | None = None


class RayWorker:
    """Asks a spec's graders about one part after the other; an actor of Ray.

    Keeps its judges and the outage watch from part to part. What stops the run (an outage, a
    refused key, a wrong configuration) is said as ``WorkerReport.error``.
    """

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan
        self._journal, self._tally = PartJournal(), Tally(None)
        self._grader: BatchGrader | None = None
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    def grade(
        self,
        samples: Sequence[Sample],
        groups: Sequence[str],
        sampled: Sequence[bool],
        known: Sequence[StoredAnswer],
    ) -> Iterator[bytes]:
        """Reports about a part, of which ``known`` answers are not asked for again."""
        self._journal.begin(known)
        vars(self._tally).update(vars(Tally()))  # the graders hold this one
        try:
            self._grader = self._grader or self._build_grader()
            asked = Job(self._grader.grade(samples, groups, sampled)).done
            while not asked.done():
                wait([asked], timeout=_REPORT_EVERY_S)
                if self._journal.answers:
                    yield _pack(run_blocking(self._report()))
            yield _pack(run_blocking(self._report(judged=asked.result())))
        except AdjudgeError as error:
            yield _pack(run_blocking(self._report(error=error)))

    async def _report(
        self, judged: list[GradedSample] | None = None, error: AdjudgeError | None = None
    ) -> WorkerReport:
        """On the engine's loop, where answers are counted."""
        answers, self._journal.answers = self._journal.answers, []
        said = WorkerReport(self._name, answers, deepcopy(self._tally), judged, error)
        if judged is not None or error is not None:
            said.endpoints = {
                (
                    tuple(one.endpoint_key.base_urls),
                    tuple(sorted(one.models)),
                ): one.stats.since(EndpointStats())
                for one in open_endpoints()
            }
        return said

    def _build_grader(self) -> BatchGrader:
        """The graders, ready to be asked; raises :class:`ConfigError`."""
        plan, host = self.plan, socket.gethostname()
        try:
            os.chdir(plan.cwd)
        except OSError as error:
            raise ConfigError(
                f"{plan.cwd}: no such folder on {host}. Put the folder of the spec at the same "
                "path on every machine (a shared file system)."
            ) from error
        graders = plan.spec.build_graders()
        if compute_fingerprint(plan.spec, graders) != plan.fingerprint:
            raise ConfigError(
                f"{host}: adjudge's version, or a file that the spec names, differs from the one "
                "where the run was started. Use the same on every machine."
            )
        options = plan.options.copy()
        options["journal"], options["tally"] = self._journal, self._tally
        return BatchGrader(plan.spec, graders, **options)


class PartJournal(Journal):
    """A journal of one part, without a file: it has what is known, and ``answers`` to report."""

    def __init__(self) -> None:
        self.answers: list[StoredAnswer] = []
        self._found: dict[tuple[str, str, int], deque[GraderResult]] = {}

    def begin(self, known: Sequence[StoredAnswer]) -> None:
        """Start with a part."""
        self.answers, self._found = [], {}
        for key, grader, draw, result in known:
            self._found.setdefault((key, grader, draw), deque()).append(result)

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def take(self, sample: str, grader: str, draw: int) -> GraderResult | None:
        """What is known, each answer once."""
        found = self._found.get((sample, grader, draw))
        return found.popleft() if found else None

    def put(self, sample: str, grader: str, draw: int, result: GraderResult) -> None:
        """Note a result to report; failures are asked again."""
        if not isinstance(result, GraderError):
            self.answers.append((sample, grader, draw, result))

    def flush(self) -> None:
        """Nothing waits here."""


def _pack(said: WorkerReport) -> bytes:
    """For our own driver; what of a user's metadata cannot be packed goes as text."""
    from ray import cloudpickle  # noqa: PLC0415

    try:
        return bytes(cloudpickle.dumps(said))
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError):
        plain = msgspec.json.Encoder(enc_hook=str).encode((said.answers, said.judged))
        said.answers, said.judged = msgspec.json.decode(
            plain, type=tuple[list[StoredAnswer], list[GradedSample] | None]
        )
        return bytes(cloudpickle.dumps(said))


# --- the cluster ----------------------------------------------------------------------------------


def _count_cpus() -> int:
    import ray  # noqa: PLC0415

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


@contextmanager
def _ray_cluster(address: str | None, workers: int | None) -> Iterator[None]:
    """A Ray cluster for the time being; one that this process already uses stays."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        import ray  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--engine ray: needs {error.name}. Run: {install_command('ray')}"
        ) from error
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise ConfigError(
            f"--ray-address {address}: workers cannot report through Ray Client. Run the command "
            "on a machine of the cluster, or with `ray job submit`."
        )
    options: dict[str, Any] = {"address": address, "log_to_driver": False}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        options |= {} if workers is None else {"num_cpus": workers}
    try:
        ray.init(logging_level=logging.WARNING, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--ray-address {address}: cannot connect to Ray: {error}") from error
    # Ray ends the process on SIGTERM without keeping anything: the handler before it comes back.
    if on_sigterm is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        ray.shutdown()
