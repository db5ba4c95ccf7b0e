"""``adjudge grade --engine ray``: the graders are asked by workers on many machines.

The files are cut into shards; Ray Data hands them to workers, which read them from the shared file
system and ask the graders that see one sample at a time. What they said comes back here, and from
there everything goes the ordinary way: listwise graders, group steps, missing policy, summary and
report are the local engine's own, over the same files in the same order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.shards import Shard, cut_files
from adjudge.errors import ConfigError, RolloutError
from adjudge.installation import install_command
from adjudge.judges.endpoint.settings import EndpointStats
from adjudge.rewards.batch_grader import BatchGrader
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rollouts.samples import GroupNames, SampleReader
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runs.job import GradingJob, RolloutGrader
from adjudge.runs.ray_worker import (
    EndpointId,
    Ledger,
    ShardWorker,
    WorkerPlan,
    WorkerReport,
    select_graders,
)
from adjudge.types import GradedSample, Sample

_WINDOW = 512
_SHARD_ROWS = (32, 4096)
_SHARDS_A_WORKER = 8
_WORKER_CPUS = 0.1
"""Little, so that what a dead machine's workers did can go on beside the others."""
_OBJECT_STORE = 256 << 20
_POLL_S = 0.25
_RAY_DATA_THREADS = ("StreamingExecutor", "ray-data-")
_THREADS_END_S = 60.0


@dataclass
class RayEngine:
    """Grading on a Ray cluster; give it to :class:`~adjudge.runs.job.GradingJob`.

    ``address``: ``None`` is what ``RAY_ADDRESS`` says, else a cluster of this machine alone that
    ends with the run; ``"auto"`` a cluster that runs here, ``"local"`` this machine alone, else a
    cluster's address. ``workers``: by default one per CPU of the cluster.
    """

    address: str | None = None
    workers: int | None = None
    _stats: dict[str, dict[EndpointId, EndpointStats]] = field(default_factory=dict)

    def grade_with(
        self, job: GradingJob, function: SpecRewardFunction, journal: Journal, tally: Tally
    ) -> RolloutGrader:
        """Ask all graders that see one sample; the asker that it gives knows their answers.

        Raises :class:`ConfigError`, and what stops a worker: ``JudgeUnavailable``,
        ``JudgeAuthError``.
        """
        if job.rows is not None:
            raise ConfigError("--engine ray: needs files, which the workers read for themselves")
        if job.cassette is not None or job.budget_usd is not None:
            raise ConfigError(
                "--record, --replay and --budget-usd work in one process only. Use --engine local."
            )
        alone = select_graders(function.spec, function.graders, listwise=False)
        if alone is None:
            return function  # nothing that workers could do
        plan = WorkerPlan(
            job.spec,
            function.fingerprint,
            dict(job.mapping),
            str(Path.cwd()),
            window=_WINDOW,
            startup_patience_s=job.startup_patience_s,
            draws=job.draws,
            columns=function.columns,
        )
        answers = _WorkerAnswers(function, journal, tally)
        with _ray_cluster(self.address, self.workers):
            workers = self.workers or _cluster_cpus()
            samples = (tally.total or 0) // function.answers_per_sample
            rows, parts = _shard_sizes(samples, workers)
            shards = _sampled_shards(
                job, function, cut_files(list(job.samples().find_readings()), rows, parts=parts)
            )
            for said in _worker_reports(plan, shards, workers, journal, tally):
                answers.add(said.judged)
                self._add_counts(said)
        return answers

    def _add_counts(self, report: WorkerReport) -> None:
        """Keep what a worker counted last; its reports come in any order."""
        known = self._stats.get(report.worker, {})
        if _count_calls(report.endpoints) >= _count_calls(known):
            self._stats[report.worker] = report.endpoints

    def endpoints(self) -> list[dict[str, Any]]:
        """The table of the workers' calls, as :meth:`CallCount.table` has it."""
        total: dict[EndpointId, EndpointStats] = {}
        for one in [*self._stats.values()]:  # a copy: reports go on coming
            for key, stats in one.items():
                total[key] = total.get(key, EndpointStats()).plus(stats)
        return [
            {"base_urls": list(urls), "models": list(models), **stats.summary()}
            for (urls, models), stats in total.items()
            if stats.calls
        ]


def _count_calls(endpoints: dict[EndpointId, EndpointStats]) -> int:
    return sum(stats.calls for stats in endpoints.values())


class _WorkerAnswers:
    """What the workers said, row by row, and the listwise graders, which are asked here."""

    def __init__(self, function: SpecRewardFunction, journal: Journal, tally: Tally) -> None:
        self._function = function
        self._said: dict[int, GradedSample] = {}
        together = select_graders(function.spec, function.graders, listwise=True)
        self._together: BatchGrader | None = None
        if together is not None:
            self._together = BatchGrader(
                together,
                function.graders,
                journal=journal,
                tally=tally,
                draws=function.draws,
                columns=function.columns,
            )

    def add(self, judged: Sequence[GradedSample]) -> None:
        """Answers of a worker; the same again changes nothing."""
        for one in judged:
            self._said[one.original_index] = one

    @property
    def needs_whole_groups(self) -> bool:
        """Whether the samples of a group must come in one call."""
        return self._together is not None

    async def grade(
        self,
        samples: Sequence[Sample],
        groups: Sequence[str],
        *,
        step: int | None = None,  # noqa: ARG002  (drawn long ago)
    ) -> list[GradedSample]:
        """The workers' answers about these samples, and those of the listwise graders."""
        judged = [self._of(*one) for one in zip(samples, groups, strict=True)]
        if self._together is None:
            return judged
        drawn = [one.sampled for one in judged]
        ranked = await self._together.grade(samples, groups, drawn)
        return [_join(*both) for both in zip(judged, ranked, strict=True)]

    def _of(self, sample: Sample, group: str) -> GradedSample:
        said = self._said.pop(sample.original_index, None)
        if said is None:
            raise RolloutError(
                f"row {sample.original_index}: no worker read it. Check that the files have "
                "not changed."
            )
        return replace(said, group_index=sample.group_index, group=group)


def _join(one: GradedSample, more: GradedSample) -> GradedSample:
    """What graders of single samples and listwise ones said of a sample, in every draw."""
    repeats = tuple(_join(*both) for both in zip(one.repeats, more.repeats, strict=True))
    return replace(one, outcome={**one.outcome, **more.outcome}, repeats=repeats)


def _shard_sizes(samples: int, workers: int) -> tuple[int, int]:
    """Rows in a shard, and shards in a Parquet row group."""
    least, most = _SHARD_ROWS
    even = -(-samples // (workers * _SHARDS_A_WORKER))
    return min(max(least, even), most), 2 * workers


def _sampled_shards(
    job: GradingJob, function: SpecRewardFunction, shards: Iterator[Shard]
) -> Iterator[tuple[Shard, list[int] | None]]:
    """Each shard, and under ``sample_rate`` which of its rows are judged.

    A draw is a group's, and what makes a group is known only in order: the rows are read here.
    """
    if function.spec.reward.sample_rate >= 1:
        yield from ((shard, None) for shard in shards)
        return
    groups = GroupNames()
    rows = SampleReader(job.paths, job.mapping).read()
    for shard in shards:
        flags = []
        for _ in range(shard.rows):
            _, sample = next(rows)
            if isinstance(sample, RolloutError):
                flags.append(0)
            else:
                flags.append(int(function.is_drawn(groups.name(sample), 0)))
        yield shard, flags


def _worker_reports(
    plan: WorkerPlan,
    shards: Iterator[tuple[Shard, list[int] | None]],
    workers: int,
    journal: Journal,
    tally: Tally,
) -> Iterator[WorkerReport]:
    """What the workers say, as it comes; raises what stopped one."""
    import ray  # noqa: PLC0415  (an extra, heavy)
    import ray.data  # noqa: PLC0415
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    items = [{"shard": msgspec.json.encode(one)} for one in shards]
    if not items:
        return
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    ledger = (
        ray.remote(Ledger)
        .options(num_cpus=0, scheduling_strategy=here, max_concurrency=1)
        .remote(str(journal.path.absolute()), journal.spec_hash)
    )
    graded = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        ShardWorker,
        fn_constructor_args=(plan, ledger),
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(items))),
        batch_size=1,
        num_cpus=_WORKER_CPUS,
    )
    try:
        with _tally_updates(ledger, tally):
            for row in graded.iter_rows():
                said: WorkerReport = pickle.loads(row["said"])  # noqa: S301  (our own workers' words)
                if said.error is not None:
                    raise said.error
                if said.last:
                    ledger.finish.remote(said.shard)
                yield said
    finally:
        # Everything reported so far is in the journal before the run ends, however it ends.
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(ledger.counts.remote(), timeout=5)
        ray.kill(ledger)


@contextmanager
def _tally_updates(ledger: Any, tally: Tally) -> Iterator[None]:
    """Keep ``tally`` at what the ledger counts."""
    import ray  # noqa: PLC0415

    def look() -> None:
        counts = ray.get(ledger.counts.remote())
        for name in ("done", "resumed", "note", "cost_usd", "failures", "asks"):
            setattr(tally, name, getattr(counts, name))

    def watch() -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            while not stop.wait(_POLL_S):
                look()

    stop = threading.Event()
    thread = threading.Thread(target=watch, name="adjudge-ray-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    look()


def _cluster_cpus() -> int:
    import ray  # noqa: PLC0415

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


@contextmanager
def _ray_cluster(address: str | None, workers: int | None) -> Iterator[None]:
    """A Ray cluster for the time being; one that this process already uses stays."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        import ray  # noqa: PLC0415
        import ray.data  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--engine ray: needs {error.name}. Run: {install_command('ray')}"
        ) from error

    _silence_ray_output()
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address.startswith("ray://"):
        raise ConfigError(
            f"--ray-address {address}: Ray Data does not work through Ray Client. Run the command "
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
        try:
            _await_ray_data_threads()
        finally:  # Ctrl-C while it waits
            ray.shutdown()


def _await_ray_data_threads() -> None:
    """Wait for the threads of Ray Data's executor.

    Ray Data itself waits two seconds for them; after a node was lost they can need more. One that
    calls Ray after its shutdown ends the whole process with exit code 1, whatever the run wrote.
    """
    end = time.monotonic() + _THREADS_END_S
    for thread in threading.enumerate():
        if thread.name.startswith(_RAY_DATA_THREADS):
            thread.join(max(0.0, end - time.monotonic()))


def _silence_ray_output() -> None:
    """Ray Data's own bars and logs would run through ours."""
    import ray.data  # noqa: PLC0415

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
