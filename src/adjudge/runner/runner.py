"""Many graders over many samples, at a stated concurrency, on the process's one event loop.

A fixed number of workers pull asks from one iterator: no task and no lock per item. Progress costs
nothing per item: it is read from the runner's counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from adjudge.engine.clock import LogLimiter
from adjudge.engine.loop import run_all, run_blocking, run_on_engine
from adjudge.errors import ConfigError, ErrorKind, Fields, JudgeAuthError
from adjudge.graders.binding import BoundGrader, GraderConfig, check_machines
from adjudge.judges.asking import Ask, JudgeCall, ask_counts, call_log, current_ask
from adjudge.runner.journal import Journal, sample_key
from adjudge.runner.progress import Progress, Tally
from adjudge.text import shorten_text
from adjudge.types import GraderError, GraderResult, Sample

_log = logging.getLogger("adjudge")

# Synchronous graders run on the loop itself; other work there (judge calls, progress, Ctrl-C)
# waits no longer than this.
_YIELD_AFTER_S = 0.005
_WAKE_BATCH = 32
_FIRST_ASK = Ask()


class Answers(Protocol):
    """Where results go: a list by place, or a mapping by name."""

    def __getitem__(self, place: Any, /) -> Any: ...

    def __setitem__(self, place: Any, result: GraderResult, /) -> None: ...


class Subject(NamedTuple):
    """What a question is about: samples, by their places in the call, or the one's ``event``."""

    samples: Sequence[int]
    event: int | None = None


class WorkItem(NamedTuple):
    """Who is asked about which ``fields``, and where the result goes: ``results[place]``.

    ``key`` is the journal's; ``subject`` is for callers that spread answers over samples.
    """

    grader: BoundGrader
    fields: Fields
    ask: Ask
    results: Answers
    place: str | int
    key: str | None
    subject: Subject = Subject(())


CallListener = Callable[[WorkItem, list[JudgeCall], GraderResult], None]
"""Gets an item, its calls and its result."""


@dataclass(frozen=True)
class WorkerPool:
    """How questions are asked: ``workers`` at a time, each answer put where its item says.

    With a ``journal``, what it knows is not asked, and what is asked is written to it. With
    ``show_progress``, and without a ``tally`` of the caller's, progress is shown. ``stop_on_auth``:
    a refused key ends the run. ``on_failure`` hears of each result that is a failure.
    """

    workers: int
    journal: Journal | None = None
    tally: Tally | None = None
    show_progress: bool = False
    stop_on_auth: bool = False
    on_failure: Callable[[GraderError], None] | None = None

    async def run(
        self, items: Iterable[WorkItem], total: int, listener: CallListener | None = None
    ) -> set[int]:
        """Ask ``total`` items, on the engine loop; the places of those that the journal answered.

        ``listener`` hears of the judge calls of each item that made any. Raises a grader's
        ``ConfigError``, and ``JudgeAuthError`` where that is asked for.
        """
        tally, known = self.tally or Tally(total), set[int]()
        asks, breather = enumerate(items), _CooperativeYield()
        shows = self.show_progress and self.tally is None and total > 1
        with Progress(tally, show=True) if shows else nullcontext():
            try:
                await run_all(
                    self._work(asks, tally, breather, known, listener)
                    for _ in range(min(self.workers, total))
                )
            finally:
                if self.journal is not None:
                    self.journal.flush()
        return known

    async def _work(
        self,
        asks: Iterator[tuple[int, WorkItem]],
        tally: Tally,
        breather: _CooperativeYield,
        known: set[int],
        listener: CallListener | None,
    ) -> None:
        journal, clock = self.journal, time.perf_counter
        ask_counts.set(tally.asks)  # the context is this worker's own
        last: Ask | None = None
        for number, item in asks:
            grader, fields, ask, results, place, key, _ = item
            draw = ask.draw
            if journal is not None and key is not None:
                resumed = journal.take(key, grader.name, draw)
                if resumed is not None:
                    results[place] = resumed
                    known.add(number)
                    tally.done += 1
                    tally.resumed += 1
                    continue
            while clock() > breather.until:
                await breather.wait_turn()
            if ask is not last:
                current_ask.set(last := ask)
            if listener is None:
                result = await grader.ask(fields, draw)
            else:
                result = await _ask_heard(item, listener)
            results[place] = result
            tally.done += 1
            if result.provenance is not None and result.provenance.paid is not None:
                tally.cost_usd += result.provenance.paid.cost_usd or 0.0
            if type(result) is GraderError:
                tally.failures[result.kind] += 1
                if self.on_failure is not None:
                    self.on_failure(result)
                if self.stop_on_auth and result.kind is ErrorKind.AUTH:
                    raise JudgeAuthError(f"{grader.name}: {result.error}")
            if journal is not None and key is not None:  # what becomes of failures is its affair
                journal.put(key, grader.name, draw, result)


async def _ask_heard(item: WorkItem, listener: CallListener) -> GraderResult:
    """Ask ``item``; ``listener`` hears of the calls, where it made any."""
    calls: list[JudgeCall] = []
    call_log.set(calls)
    result = await item.grader.ask(item.fields, item.ask.draw)
    if calls:
        listener(item, calls, result)
    return result


class _CooperativeYield:
    """Lets the loop's other work have a turn, however many workers there are.

    Workers that each yielded by themselves would run one after the other within one turn of the
    loop; here all of them wait for the same turn to pass. They go on in small lots: woken all at
    once, most would find their time used up again.
    """

    def __init__(self) -> None:
        self.until = time.perf_counter() + _YIELD_AFTER_S
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait_turn(self) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._wake_waiting, loop)
        self._waiting.append(turn)
        await turn

    def _wake_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        self.until = time.perf_counter() + _YIELD_AFTER_S
        for _ in range(min(_WAKE_BATCH, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._wake_waiting, loop)


_GATHER_S = 0.5
"""Failures that come together are one warning."""

Dataset = Sequence[Fields | Sample]
"""Items to grade: samples, or mappings of field names to values."""

RunnerResult = dict[str, list[GraderResult]]
"""Per grader one result per item, in input order."""


class GradingRequest(NamedTuple):
    """One question to one grader: the grader's name, an item's fields, the number of the draw."""

    grader: str
    fields: Fields
    draw: int = 0


class GradingRunner:
    """Grades datasets: every grader on every item, ``max_concurrency`` asks in flight.

    ``grader_configs`` maps a name to a :class:`GraderConfig` (or just a grader). Results stay in
    input order, and whatever a grader does to one item concerns that item alone. With a
    ``journal``, answers found there are not asked again and new ones are written to it; with a
    ``tally``, results are counted there (a caller's progress bar) and no bar is shown.

    One runner serves any thread and any event loop, step after step, also after a fork: it holds
    configuration only, and all its work happens on the process's engine loop.

    >>> from adjudge import FunctionGrader
    >>> brief = FunctionGrader(lambda response: len(response) < 10, "brief", score_range=(0, 1))
    >>> runner = GradingRunner({"brief": brief})
    >>> [one.score for one in runner.run([{"response": "yes"}, {"response": "y" * 10}])["brief"]]
    [1.0, 0.0]
    """

    def __init__(
        self,
        grader_configs: Mapping[str, object],
        max_concurrency: int = 32,
        show_progress: bool = True,
        journal: Journal | None = None,
        tally: Tally | None = None,
    ) -> None:
        if not grader_configs:
            raise ConfigError("GradingRunner needs at least one grader")
        if max_concurrency < 1:
            raise ConfigError(f"max_concurrency: must be at least 1 (found {max_concurrency})")
        self.grader_configs = {
            name: GraderConfig.create(config) for name, config in grader_configs.items()
        }
        self.max_concurrency = max_concurrency
        self.show_progress = show_progress
        self.journal = journal
        self.tally = tally
        self._limiter = LogLimiter()
        self._checked = False

    async def arun(self, dataset: Dataset) -> RunnerResult:
        """Grade one dataset.

        What failed is a ``GraderError`` in its place; warnings say how many there are, of which
        kinds, while a long call lasts and at its end. Only :class:`~adjudge.errors.ConfigError`
        goes through, as it is, and stops the run: what the user wrote (an endpoint's settings, say)
        is as wrong for every other item. A key or a package that is missing is said before the
        first call.
        """
        [result] = await self.arun_multiple_datasets([dataset])
        return result

    async def arun_multiple_datasets(self, datasets: Sequence[Dataset]) -> list[RunnerResult]:
        """Grade several datasets as one stream of work; one result per dataset, in order.

        Raises what :meth:`arun` raises.
        """
        return await run_on_engine(self._grade(datasets))

    async def aask(self, asks: Sequence[GradingRequest]) -> list[GraderResult]:
        """Ask single questions that the journal does not know; one result each, in order.

        Raises :class:`~adjudge.errors.JudgeAuthError` as soon as a provider refuses the key, and
        :class:`~adjudge.errors.ConfigError` as soon as a grader does: every further call would fail
        too.
        """
        return await run_on_engine(self._ask(asks))

    def run(self, dataset: Dataset) -> RunnerResult:
        """:meth:`arun` from ordinary code; not on the engine's own loop (``RuntimeError``)."""
        return run_blocking(self.arun(dataset))

    def run_multiple_datasets(self, datasets: Sequence[Dataset]) -> list[RunnerResult]:
        """:meth:`arun_multiple_datasets` from ordinary code."""
        return run_blocking(self.arun_multiple_datasets(datasets))

    def _bound_graders(self) -> list[BoundGrader]:
        if not self._checked:
            check_machines({name: one.grader for name, one in self.grader_configs.items()})
            self._checked = True
        return [BoundGrader(name, config) for name, config in self.grader_configs.items()]

    def _pool(self, *, stop_on_auth: bool = False) -> WorkerPool:
        return WorkerPool(
            self.max_concurrency, self.journal, self.tally, self.show_progress, stop_on_auth
        )

    async def _grade(self, datasets: Sequence[Dataset]) -> list[RunnerResult]:
        graders = self._bound_graders()
        columns: list[dict[str, list[GraderResult | None]]] = [
            {grader.name: [None] * len(dataset) for grader in graders} for dataset in datasets
        ]
        total = len(graders) * sum(len(dataset) for dataset in datasets)
        failed: dict[tuple[str, ErrorKind], list[str]] = {}
        due = time.monotonic() + _GATHER_S

        def take(error: GraderError) -> None:
            nonlocal due
            if error.kind is not ErrorKind.NOT_APPLICABLE:
                failed.setdefault((error.name, error.kind), []).append(error.error)
                if time.monotonic() > due:  # a long call says it while it happens
                    self._warn_of_failures(failed)
                    due = time.monotonic() + _GATHER_S

        pool = replace(self._pool(), on_failure=take)
        try:
            await pool.run(self._items(datasets, columns, graders), total)
        finally:
            self._warn_of_failures(failed)
        return [_check_complete(one) for one in columns]

    def _warn_of_failures(self, failed: dict[tuple[str, ErrorKind], list[str]]) -> None:
        """Name each grader and kind, at most every ten seconds, with counts; forget them."""
        for key, errors in failed.items():
            if count := self._limiter.count(key, len(errors)):
                problem = shorten_text(errors[0])
                _log.warning("%s: %d answers failed (%s): %s", key[0], count, key[1], problem)
        failed.clear()

    def _items(
        self,
        datasets: Sequence[Dataset],
        columns: Sequence[Mapping[str, list[GraderResult | None]]],
        graders: Sequence[BoundGrader],
    ) -> Iterator[WorkItem]:
        """What is to be asked, lazily, in input order."""
        has_journal = self.journal is not None
        key: str | None = None
        for dataset, column in zip(datasets, columns, strict=True):
            places = [(grader, column[grader.name]) for grader in graders]
            for place, item in enumerate(dataset):
                fields = item.fields() if isinstance(item, Sample) else item
                if has_journal:
                    key = sample_key(fields)
                for grader, results in places:
                    yield WorkItem(grader, fields, _FIRST_ASK, results, place, key)

    async def _ask(self, asks: Sequence[GradingRequest]) -> list[GraderResult]:
        graders = {grader.name: grader for grader in self._bound_graders()}
        results: list[GraderResult | None] = [None] * len(asks)

        def items() -> Iterator[WorkItem]:
            last: Fields | None = None
            key: str | None = None
            for place, (name, fields, draw) in enumerate(asks):
                if self.journal is not None and fields is not last:
                    key, last = sample_key(fields), fields
                yield WorkItem(graders[name], fields, Ask(draw), results, place, key)

        await self._pool(stop_on_auth=True).run(items(), len(asks))
        return _check_complete({"": results})[""]


def _check_complete(slot: dict[str, list[GraderResult | None]]) -> RunnerResult:
    """``slot`` with nothing left open: every item has exactly one result per grader."""
    for name, results in slot.items():
        if None in results:
            raise RuntimeError(f"grader {name!r} left item {results.index(None)} without a result")
    return slot  # type: ignore[return-value]  # just checked
